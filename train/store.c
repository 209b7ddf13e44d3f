#include "store.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char magic[8] = "kvsmstor";
enum { PENDING = 64, HEAR_S = 5 };

/* ---- messages -------------------------------------------------------------------------------------------------------
 */
void store_hello_write(const StoreKey *k, uint8_t out[STORE_HELLO]) {
    memcpy(out, magic, 8);
    store_put(out + 8, STORE_VERSION, 4);
    store_put(out + 12, (uint64_t)k->rank, 4);
    store_put(out + 16, (uint64_t)k->world, 4);
    store_put(out + 20, (uint64_t)k->restart, 4);
    store_put(out + 24, k->job, 8);
    store_put(out + 32, k->config, 8);
}
bool store_hello_read(const StoreKey *mine, const uint8_t *p, size_t n, StoreKey *k, StoreWhat *what) {
    if (n != STORE_HELLO || memcmp(p, magic, 8)) return false;
    uint64_t version = store_get(p + 8, 4), rank = store_get(p + 12, 4), world = store_get(p + 16, 4),
             restart = store_get(p + 20, 4);
    if (rank > INT32_MAX || world > INT32_MAX || restart > INT32_MAX) return false;
    *k = (StoreKey){.rank = (int)rank,
                    .world = (int)world,
                    .restart = (int)restart,
                    .job = store_get(p + 24, 8),
                    .config = store_get(p + 32, 8)};
    *what = version != STORE_VERSION          ? STORE_OTHER_VERSION
            : k->job != mine->job             ? STORE_JOB
            : k->restart != mine->restart     ? STORE_RESTART
            : k->world != mine->world         ? STORE_WORLD
            : k->config != mine->config       ? STORE_CONFIG
            : rank < 1 || k->rank >= k->world ? STORE_RANK
                                              : STORE_OK;
    return true;
}
void store_answer_write(StoreWhat what, uint64_t value, size_t n, uint8_t out[STORE_ANSWER]) {
    memcpy(out, magic, 8);
    store_put(out + 8, STORE_VERSION, 4);
    store_put(out + 12, what, 4);
    store_put(out + 16, value, 8);
    store_put(out + 24, n, 4);
    store_put(out + 28, 0, 4);
}
bool store_answer_read(const uint8_t *p, size_t n, StoreWhat *what, uint64_t *value, size_t *bytes) {
    if (n != STORE_ANSWER || memcmp(p, magic, 8) || store_get(p + 12, 4) > STORE_RANK ||
        store_get(p + 24, 4) > STORE_BYTES_MAX)
        return false;
    /* A rank 0 of another version says so in the one thing that all versions share, its version. */
    *what = store_get(p + 8, 4) == STORE_VERSION ? (StoreWhat)store_get(p + 12, 4) : STORE_OTHER_VERSION;
    *value = *what == STORE_OTHER_VERSION ? store_get(p + 8, 4) : store_get(p + 16, 8);
    *bytes = store_get(p + 24, 4);
    return *what != STORE_OK || store_get(p + 28, 4) == 0;
}

/* ---- sockets --------------------------------------------------------------------------------------------------------
 */
static socklen_t local_name(const StoreKey *k, struct sockaddr_un *a) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX}; /* a name that begins with 0 is in no folder */
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "kvsmith-%u-%016llx-%d", (unsigned)geteuid(),
                     (unsigned long long)k->job, k->restart);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}
static bool same_user(int fd) {
    struct ucred c;
    socklen_t n = sizeof c;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) && c.uid == geteuid();
}

static int listen_local(const StoreKey *k, Err *e) {
    struct sockaddr_un a;
    socklen_t n = local_name(k, &a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&a, n) && !listen(fd, SOMAXCONN)) return fd;
    if (errno == EADDRINUSE)
        err_input(
            e, "ranks: a rank 0 of the same job and start is running here already: end it, or name the job otherwise");
    else
        err_world(e, "ranks: a local socket: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}
static int listen_tcp(int port, Err *e) {
    int error = 0;
    for (int i = 0; i < STORE_PORTS && port + i < 65536; i++) {
        for (int v6 = 1; v6 >= 0; v6--) {
            int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, off = 0;
            if (fd < 0) continue;
            struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)(port + i))};
            struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(port + i))};
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            if (v6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
            int bad = v6 ? bind(fd, (struct sockaddr *)&a6, sizeof a6) : bind(fd, (struct sockaddr *)&a4, sizeof a4);
            if (!bad && !listen(fd, SOMAXCONN)) return fd;
            error = errno;
            close(fd);
            if (error == EADDRINUSE) break;
        }
    }
    err_world(e, "ranks: no port from MASTER_PORT %d to %d can be had: %s", port, port + STORE_PORTS - 1,
              strerror(error));
    return -1;
}

/* A connection whose other end speaks within HEAR_S seconds, or -1. */
static int connected(int family, const struct sockaddr *a, socklen_t n, double until) {
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int bad = connect(fd, a, n), error = 0;
    socklen_t size = sizeof error;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int ms = (int)fmax(1, 1e3 * fmin(HEAR_S, until - now_seconds()));
    if (!bad || (errno == EINPROGRESS && poll(&p, 1, ms) == 1 && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) &&
                 !error))
        return fd;
    close(fd);
    return -1;
}
static int connect_local(const StoreKey *k, double until) {
    struct sockaddr_un a;
    socklen_t n = local_name(k, &a);
    int fd = connected(AF_UNIX, (struct sockaddr *)&a, n, until);
    if (fd < 0 || same_user(fd)) return fd;
    close(fd);
    return -1;
}

/* All n bytes within HEAR_S seconds; `fd` (or NULL) is set when a descriptor comes along. */
static bool hear(int s, void *p, size_t n, int *fd) {
    double until = now_seconds() + HEAR_S;
    for (size_t at = 0; at < n;) {
        char control[CMSG_SPACE(sizeof(int))];
        struct iovec v = {(char *)p + at, n - at};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t got = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
        if (got > 0) {
            at += (size_t)got;
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
            int given;
            memcpy(&given, CMSG_DATA(c), sizeof given);
            if (fd && *fd < 0)
                *fd = given;
            else
                close(given);
            continue;
        }
        double left = until - now_seconds();
        struct pollfd w = {.fd = s, .events = POLLIN};
        if (!got || (errno != EAGAIN && errno != EINTR) || left <= 0 || poll(&w, 1, (int)(left * 1e3) + 1) <= 0)
            return false;
    }
    return true;
}
static bool say(int s, const void *p, size_t n, int fd) {
    double until = now_seconds() + HEAR_S;
    for (size_t at = 0; at < n;) {
        char control[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec v = {(char *)(uintptr_t)p + at, n - at};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        if (fd >= 0 && !at) {
            m.msg_control = control;
            m.msg_controllen = sizeof control;
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof fd);
            memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        ssize_t put_n = sendmsg(s, &m, MSG_NOSIGNAL);
        if (put_n > 0) {
            at += (size_t)put_n;
            continue;
        }
        double left = until - now_seconds();
        struct pollfd w = {.fd = s, .events = POLLOUT};
        if ((errno != EAGAIN && errno != EINTR) || left <= 0 || poll(&w, 1, (int)(left * 1e3) + 1) <= 0) return false;
    }
    return true;
}

/* ---- rank 0 ---------------------------------------------------------------------------------------------------------
 */
typedef struct {
    int fd, rank; /* rank 0: has not said hello */
    double since;
    size_t n;
    uint8_t hello[STORE_HELLO];
} Guest;
typedef struct {
    const StoreKey *key;
    const void *bytes;
    size_t n;
    int fd;
    bool *has;
    int left;
    char refused[80];
    Guest guest[PENDING];
} Host;

static void part(Guest *g) {
    close(g->fd);
    g->fd = -1;
}
static uint64_t value_of(const StoreKey *k, StoreWhat w) {
    return w == STORE_RESTART                    ? (uint64_t)k->restart
           : w == STORE_WORLD || w == STORE_RANK ? (uint64_t)k->world
           : w == STORE_CONFIG                   ? k->config
           : w == STORE_JOB                      ? k->job
                                                 : STORE_VERSION;
}
static const char *const what_names[] = {"",
                                         "another version of the program",
                                         "another job",
                                         "another start",
                                         "another number of ranks",
                                         "another configuration",
                                         "an unknown rank"};

static void answer(Host *h, Guest *g) {
    StoreKey theirs;
    StoreWhat what;
    uint8_t head[STORE_ANSWER];
    if (!store_hello_read(h->key, g->hello, g->n, &theirs, &what)) {
        part(g);
        return;
    }
    bool good = what == STORE_OK;
    if (!good && what != STORE_JOB)
        snprintf(h->refused, sizeof h->refused, "; a rank %d with %s was refused", theirs.rank, what_names[what]);
    store_answer_write(what, value_of(h->key, what), good ? h->n : 0, head);
    if (!say(g->fd, head, sizeof head, good ? h->fd : -1) || (good && h->n && !say(g->fd, h->bytes, h->n, -1)) || !good)
        part(g);
    else
        g->rank = theirs.rank;
}
static void serve(Host *h, Guest *g) {
    uint8_t thanks;
    ssize_t n = g->rank ? recv(g->fd, &thanks, 1, 0) : recv(g->fd, g->hello + g->n, sizeof g->hello - g->n, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0 && !g->rank) {
        g->n += (size_t)n;
        /* Nothing is waited for behind a beginning that is already wrong. */
        if (memcmp(g->hello, magic, zmin(g->n, 8)))
            part(g);
        else if (g->n == STORE_HELLO)
            answer(h, g);
        return;
    }
    if (n > 0 && !h->has[g->rank]) h->has[g->rank] = true, h->left--;
    part(g);
}
static void welcome(Host *h, int listener, bool local) {
    for (int s; (s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
        Guest *at = h->guest;
        for (int i = 0; i < PENDING; i++) { /* a free place, or that of who has been silent longest; */
            Guest *g = &h->guest[i];        /* who has got what it came for, and only has to say so, comes last */
            bool sooner = !g->rank != !at->rank ? !g->rank : g->since < at->since;
            if (at->fd >= 0 && (g->fd < 0 || sooner)) at = g;
        }
        if (local && !same_user(s)) {
            close(s);
            continue;
        }
        if (at->fd >= 0) part(at);
        *at = (Guest){.fd = s, .since = now_seconds()};
    }
}

static bool host(const StoreKey *k, StoreAt at, double until, double deadline, const void *bytes, size_t n, int fd,
                 Err *e) {
    int listener = at.local ? listen_local(k, e) : listen_tcp(at.port, e);
    if (listener < 0) return false;
    Host *h = xcalloc(1, sizeof *h);
    *h = (Host){.key = k, .bytes = bytes, .n = n, .fd = fd, .has = xcalloc((size_t)k->world, 1), .left = k->world - 1};
    for (int i = 0; i < PENDING; i++) h->guest[i].fd = -1;
    while (h->left && now_seconds() < until) {
        struct pollfd p[PENDING + 1];
        p[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int i = 0; i < PENDING; i++) p[i + 1] = (struct pollfd){.fd = h->guest[i].fd, .events = POLLIN};
        poll(p, PENDING + 1, (int)fmax(1, fmin(200, 1e3 * (until - now_seconds()))));
        for (int i = 0; i < PENDING; i++)
            if (p[i + 1].fd >= 0 && p[i + 1].revents) serve(h, &h->guest[i]);
        for (int i = 0; i < PENDING; i++)
            if (h->guest[i].fd >= 0 && now_seconds() - h->guest[i].since > HEAR_S) part(&h->guest[i]);
        if (p[0].revents) welcome(h, listener, at.local);
    }
    bool ok = !h->left;
    if (!ok) {
        int first = 1;
        while (h->has[first]) first++;
        err_world(e, "rank 0: rank %d%s did not come within %g s%s", first, h->left > 1 ? " and others" : "", deadline,
                  h->refused);
    }
    for (int i = 0; i < PENDING; i++)
        if (h->guest[i].fd >= 0) part(&h->guest[i]);
    close(listener);
    free(h->has);
    free(h);
    return ok;
}

/* ---- the others -----------------------------------------------------------------------------------------------------
 */
typedef enum { AGAIN, GOT, REFUSED } Visit;

static Visit refused(const StoreKey *k, StoreWhat what, uint64_t v, Err *e) {
    unsigned long long u = v;
    switch (what) {
    case STORE_OTHER_VERSION:
        err_input(e,
                  "rank %d: rank 0 speaks version %llu of the meeting's protocol, this program version %d: the same "
                  "program is needed everywhere",
                  k->rank, u, STORE_VERSION);
        return REFUSED;
    case STORE_RESTART:
        if (v < (uint64_t)k->restart) return AGAIN; /* it is the one that should have ended */
        err_input(e, "rank %d: this is start %d of the job, rank 0 is in start %llu", k->rank, k->restart, u);
        return REFUSED;
    case STORE_WORLD:
        err_input(e, "rank %d: %d ranks were told to this one, %llu to rank 0", k->rank, k->world, u);
        return REFUSED;
    case STORE_CONFIG:
        err_input(e, "rank %d: configuration %016llx differs from rank 0's %016llx: all ranks need the same", k->rank,
                  (unsigned long long)k->config, u);
        return REFUSED;
    case STORE_RANK: err_input(e, "rank %d: no rank of rank 0's %llu", k->rank, u); return REFUSED;
    default: return AGAIN; /* another job's */
    }
}
static Visit visit(const StoreKey *k, int s, void *bytes, size_t n, int *fd, Err *e) {
    uint8_t hello[STORE_HELLO], head[STORE_ANSWER];
    StoreWhat what;
    uint64_t value;
    size_t m;
    int given = -1;
    store_hello_write(k, hello);
    Visit v = AGAIN;
    if (say(s, hello, sizeof hello, -1) && hear(s, head, sizeof head, &given) &&
        store_answer_read(head, sizeof head, &what, &value, &m)) {
        if (what != STORE_OK)
            v = refused(k, what, value, e);
        else if (m == n && (!fd || given >= 0) && (!n || hear(s, bytes, n, NULL)) && say(s, "k", 1, -1))
            v = GOT;
    }
    if (v == GOT && fd) *fd = given;
    if (given >= 0 && !(v == GOT && fd)) close(given);
    close(s);
    return v;
}

/* At each of the ports, by each of the host's addresses. */
static Visit visit_tcp(const StoreKey *k, StoreAt at, double until, void *bytes, size_t n, Err *e) {
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM};
    Visit v = AGAIN;
    if (getaddrinfo(at.host, NULL, &hints, &list)) return AGAIN; /* names may come late, too */
    for (struct addrinfo *a = list; a && v == AGAIN; a = a->ai_next)
        for (int i = 0; i < STORE_PORTS && v == AGAIN && at.port + i < 65536; i++) {
            uint16_t port = htons((uint16_t)(at.port + i));
            if (a->ai_family == AF_INET)
                ((struct sockaddr_in *)(void *)a->ai_addr)->sin_port = port;
            else if (a->ai_family == AF_INET6)
                ((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_port = port;
            int s = connected(a->ai_family, a->ai_addr, a->ai_addrlen, until);
            if (s >= 0) v = visit(k, s, bytes, n, NULL, e);
        }
    freeaddrinfo(list);
    return v;
}

bool store_share(const StoreKey *k, StoreAt at, double deadline, void *bytes, size_t n, int *fd, Err *e) {
    double until = now_seconds() + deadline;
    CHECK(n <= STORE_BYTES_MAX && (at.local || !fd) && k->world > 1, "%zu bytes", n);
    if (!at.local && (!at.host || !*at.host || at.port < 1))
        return err_input(e, "ranks: MASTER_ADDR and MASTER_PORT are needed to meet over the network");
    if (k->rank == 0) return host(k, at, until, deadline, bytes, n, fd ? *fd : -1, e);
    do {
        int s = at.local ? connect_local(k, until) : -1;
        Visit v = at.local ? s < 0 ? AGAIN : visit(k, s, bytes, n, fd, e) : visit_tcp(k, at, until, bytes, n, e);
        if (v != AGAIN) return v == GOT;
        usleep(50000);
    } while (now_seconds() < until);
    if (at.local) return err_world(e, "rank %d: rank 0 was not found on this host within %g s", k->rank, deadline);
    return err_world(e, "rank %d: rank 0 was not found at %.100s, ports %d to %d, within %g s", k->rank, at.host,
                     at.port, at.port + STORE_PORTS - 1, deadline);
}
