#include "rendezvous_net.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- addresses ------------------------------------------------------------------------------------------------------
 */
static bool is_loopback(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}
static bool is_any(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET) return !((const struct sockaddr_in *)a)->sin_addr.s_addr;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    static const uint8_t none[4];
    return IN6_IS_ADDR_UNSPECIFIED(six) || (IN6_IS_ADDR_V4MAPPED(six) && !memcmp(six->s6_addr + 12, none, 4));
}

const char *rendezvous_resolve(const char *host, RendezvousAddresses *all) {
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    int bad = getaddrinfo(host, NULL, &hints, &list);
    *all = (RendezvousAddresses){.loopback = true, .named = bad};
    if (bad) {
        hints.ai_flags = 0;
        bad = getaddrinfo(host, NULL, &hints, &list);
    }
    if (bad) return bad == EAI_SYSTEM ? strerror(errno) : gai_strerror(bad);
    for (struct addrinfo *i = list; i && all->n < RENDEZVOUS_ADDRESSES; i = i->ai_next) {
        RendezvousAddress *x = &all->address[all->n];
        if ((i->ai_family != AF_INET && i->ai_family != AF_INET6) || i->ai_addrlen > sizeof x->at) continue;
        memcpy(&x->at, i->ai_addr, i->ai_addrlen);
        x->size = i->ai_addrlen;
        bool twice = false;
        for (int k = 0; k < all->n; k++)
            twice |= all->address[k].size == x->size && !memcmp(&all->address[k].at, &x->at, x->size);
        if (twice) continue;
        all->loopback &= is_loopback(&x->at);
        all->any |= is_any(&x->at);
        all->n++;
    }
    freeaddrinfo(list);
    return all->n ? NULL : "it has no IPv4 or IPv6 address";
}
void rendezvous_local(const RendezvousKey *k, RendezvousAddress *out) {
    struct sockaddr_un a = {.sun_family = AF_UNIX}; /* a name that begins with 0 is in no folder */
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "kvsmith-%u-%016llx-%d", (unsigned)geteuid(),
                     (unsigned long long)k->job, k->restart);
    *out = (RendezvousAddress){.size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)};
    memcpy(&out->at, &a, sizeof a);
}
static RendezvousAddress at_port(const RendezvousAddress *a, int port) {
    RendezvousAddress x = *a;
    uint16_t p = htons((uint16_t)port);
    if (x.at.ss_family == AF_INET) ((struct sockaddr_in *)&x.at)->sin_port = p;
    if (x.at.ss_family == AF_INET6) ((struct sockaddr_in6 *)&x.at)->sin6_port = p;
    return x;
}

/* ---- listening ------------------------------------------------------------------------------------------------------
 */
static int open_socket(const RendezvousAddress *a) {
    return socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}
static bool same_user(int fd) {
    struct ucred c;
    socklen_t n = sizeof c;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) && c.uid == geteuid();
}
/* -1 with errno set. */
static int listen_at(const RendezvousAddress *a) {
    int fd = open_socket(a), on = 1;
    if (fd < 0) return -1;
    if (a->at.ss_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, (const struct sockaddr *)&a->at, a->size) && !listen(fd, SOMAXCONN)) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}
int rendezvous_listen_local(const RendezvousKey *k, int out[RENDEZVOUS_ADDRESSES], Err *e) {
    RendezvousAddress a;
    rendezvous_local(k, &a);
    *out = listen_at(&a);
    if (*out >= 0) return 1;
    if (errno == EADDRINUSE)
        err_input(
            e,
            "ranks: a rank 0 of the same job and start is already running here: end it, or give this job another name");
    else
        err_runtime(e, "ranks: cannot bind a local socket: %s", strerror(errno));
    return 0;
}
int rendezvous_listen(const RendezvousAddresses *all, const char *host, int port, int out[RENDEZVOUS_ADDRESSES],
                      Err *e) {
    int error = 0;
    for (int i = 0; i < RENDEZVOUS_PORTS && port + i < 65536; i++) {
        int n = 0, elsewhere = 0;
        error = 0;
        for (int k = 0; k < all->n && !error; k++) {
            RendezvousAddress a = at_port(&all->address[k], port + i);
            int fd = listen_at(&a);
            if (fd >= 0)
                out[n++] = fd;
            else if (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)
                elsewhere++;
            else
                error = errno;
        }
        if (!error && n) return n;
        while (n) close(out[--n]);
        if (elsewhere == all->n) {
            err_input(e, "rank 0: MASTER_ADDR %.100s is not an address of this host: set it to one of rank 0's host",
                      host);
            return 0;
        }
        if (error != EADDRINUSE) break;
    }
    err_runtime(e, "ranks: no port from MASTER_PORT %d to %d is free at %.100s: %s", port, port + RENDEZVOUS_PORTS - 1,
                host, strerror(error));
    return 0;
}

/* ---- connections ----------------------------------------------------------------------------------------------------
 */
int rendezvous_connect(const RendezvousAddress *to, int port) {
    RendezvousAddress a = at_port(to, port);
    int fd = open_socket(&a);
    if (fd < 0) return -1;
    /* An interrupted connect continues by itself. EAGAIN, at a local name: its queue is full. */
    if (!connect(fd, (const struct sockaddr *)&a.at, a.size) || errno == EINPROGRESS || errno == EINTR) return fd;
    close(fd);
    return -1;
}
bool rendezvous_connected(int fd) {
    int error = 0, family = 0;
    socklen_t n = sizeof error, m = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) || error) return false;
    return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &m) && (family != AF_UNIX || same_user(fd));
}
int rendezvous_accept(int listener, bool local, bool *full) {
    *full = false;
    for (int tries = 0; tries < RENDEZVOUS_ADDRESSES; tries++) { /* others of this machine may call without pause */
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0 && local && !same_user(fd)) {
            close(fd);
            continue;
        }
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        *full = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
        return fd;
    }
    return -1;
}

ssize_t rendezvous_hear(int s, void *p, size_t n, int *fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec v = {p, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got;
    while ((got = recvmsg(s, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    if (got < 0) return errno == EAGAIN ? 0 : -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        int given;
        memcpy(&given, CMSG_DATA(c), sizeof given);
        if (fd && *fd < 0)
            *fd = given;
        else
            close(given);
    }
    return got ? got : -1;
}
bool rendezvous_say(int s, const void *p, size_t n, int fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec v = {(void *)(uintptr_t)p, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t put;
    while ((put = sendmsg(s, &m, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return put == (ssize_t)n;
}
