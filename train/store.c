#include "store.h"
#include <poll.h>
#include <sodium.h>
#include <unistd.h>
#include "comm_shm.h"
#include "store_net.h"

/* A connection is given up when its other end has not spoken for HEAR_S seconds. */
enum { PENDING = 256, BATCH = 32, HEAR_S = 5, SLICE_MS = 200, AGAIN_MS = 50, RESOLVE_MS = 500 };

static bool rank_lost(const StoreKey *k, StoreAt at, Err *e) {
    int who = at.shared > 0 ? comm_shm_lost(at.shared) : -1;
    return who >= 0 && !err_world(e, "rank %d: rank %d has ended before the ranks met", k->rank, who);
}
static int slice(double until) { return (int)fmax(1, fmin(SLICE_MS, 1e3 * (until - now_seconds()))); }

/* ---- rank 0 ---------------------------------------------------------------------------------------------------------
 */
typedef struct {
    int fd, rank; /* rank 0: has not said hello */
    double since;
    size_t n; /* bytes of the message that is coming */
    StoreTalk talk;
    uint8_t thanks[STORE_TAG];
} Guest;
typedef struct {
    const StoreKey *key;
    StoreAt at;
    const void *bytes;
    size_t n;
    int fd;
    bool *has;
    int left;
    char refused[100];
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
    if (!store_hello_read(&g->talk, h->key, h->at.secret, &theirs, &what)) {
        snprintf(h->refused, sizeof h->refused, "; a caller that does not have the same secret was refused");
        part(g);
        return;
    }
    bool good = what == STORE_OK;
    if (!good && what != STORE_JOB)
        snprintf(h->refused, sizeof h->refused, "; a rank %d with %s was refused", theirs.rank, what_names[what]);
    store_answer_write(&g->talk, what, value_of(h->key, what), h->bytes, good ? h->n : 0, h->at.secret);
    bool said = store_say(g->fd, g->talk.answer, STORE_ANSWER, good ? h->fd : -1) &&
                (!good || !h->n || store_say(g->fd, h->bytes, h->n, -1));
    if (!said || !good)
        part(g);
    else
        g->rank = theirs.rank, g->n = 0;
}
static void serve(Host *h, Guest *g) {
    uint8_t *to = g->rank ? g->thanks : g->talk.hello;
    size_t whole = g->rank ? sizeof g->thanks : sizeof g->talk.hello;
    ssize_t got = store_hear(g->fd, to + g->n, whole - g->n, NULL);
    if (got > 0) g->n += (size_t)got;
    if (got < 0 || (!g->rank && !store_begins(g->talk.hello, g->n)))
        part(g);
    else if (g->n == whole && !g->rank)
        answer(h, g);
    else if (g->n == whole) {
        if (store_thanks_read(&g->talk, h->at.secret, g->thanks) && !h->has[g->rank]) h->has[g->rank] = true, h->left--;
        part(g);
    }
}
/* A free place, or that of who has been silent longest; one that only has to thank keeps its place. NULL: none. */
static Guest *place(Host *h, bool taken) {
    Guest *at = NULL;
    for (int i = 0; i < PENDING; i++) {
        Guest *g = &h->guest[i];
        if (g->fd < 0 && !taken) return g;
        if (g->fd >= 0 && !g->rank && (!at || g->since < at->since)) at = g;
    }
    if (at) part(at);
    return at;
}
static void welcome(Host *h, int listener) {
    for (int i = 0; i < BATCH; i++) {
        bool full;
        uint8_t nonce[STORE_NONCE];
        int s = store_accept(listener, h->at.local, &full);
        if (full && !place(h, true)) usleep(10000);
        if (s < 0) return;
        Guest *g = place(h, false);
        if (!g || !store_random(nonce, sizeof nonce, NULL)) {
            close(s);
            continue;
        }
        *g = (Guest){.fd = s, .since = now_seconds()};
        store_greeting_write(&g->talk, h->key, nonce);
        if (!store_say(s, g->talk.greeting, STORE_GREETING, -1)) part(g);
    }
}

/* The sockets of rank 0; names of hosts may come late. 0: none, `e` filled. */
static int listeners(const StoreKey *k, StoreAt at, double until, int out[STORE_ADDRESSES], Err *e);

static bool host(const StoreKey *k, StoreAt at, double until, double deadline, const void *bytes, size_t size, int fd,
                 Err *e) {
    int listener[STORE_ADDRESSES], nlisten = listeners(k, at, until, listener, e);
    if (!nlisten) return false;
    Host *h = xcalloc(1, sizeof *h);
    *h = (Host){.key = k,
                .at = at,
                .bytes = bytes,
                .n = size,
                .fd = fd,
                .has = xcalloc((size_t)k->world, 1),
                .left = k->world - 1};
    for (int i = 0; i < PENDING; i++) h->guest[i].fd = -1;
    bool lost = false;
    while (h->left && now_seconds() < until && !(lost = rank_lost(k, at, e))) {
        struct pollfd p[STORE_ADDRESSES + PENDING];
        Guest *of[STORE_ADDRESSES + PENDING];
        int n = 0; /* poll refuses more entries than a process may have descriptors */
        for (; n < nlisten; n++) p[n] = (struct pollfd){.fd = listener[n], .events = POLLIN};
        for (int i = 0; i < PENDING; i++)
            if (h->guest[i].fd >= 0) {
                of[n] = &h->guest[i];
                p[n++] = (struct pollfd){.fd = h->guest[i].fd, .events = POLLIN};
            }
        if (poll(p, (nfds_t)n, slice(until)) < 0) continue; /* interrupted */
        for (int i = nlisten; i < n; i++)
            if (p[i].revents) serve(h, of[i]);
        for (int i = 0; i < PENDING; i++)
            if (h->guest[i].fd >= 0 && !h->guest[i].rank && now_seconds() - h->guest[i].since > HEAR_S)
                part(&h->guest[i]);
        for (int i = 0; i < nlisten; i++)
            if (p[i].revents) welcome(h, listener[i]);
    }
    bool ok = !h->left;
    if (!ok && !lost) {
        int first = 1;
        while (h->has[first]) first++;
        err_world(e, "rank 0: rank %d%s did not come within %g s%s", first, h->left > 1 ? " and others" : "", deadline,
                  h->refused);
    }
    for (int i = 0; i < PENDING; i++)
        if (h->guest[i].fd >= 0) part(&h->guest[i]);
    for (int i = 0; i < nlisten; i++) close(listener[i]);
    free(h->has);
    free(h);
    return ok;
}

/* ---- the others -----------------------------------------------------------------------------------------------------
 */
typedef enum { AGAIN, GOT, REFUSED } Visit;
typedef enum { IDLE, CONNECTS, GREETING, ANSWER, BYTES } Phase;
/* One of the places where rank 0 may be. */
typedef struct {
    const StoreAddress *to;
    int port;
    Phase phase;
    double since; /* when it was begun; idle: when to try again */
    int fd, given;
    size_t n, whole; /* bytes of the message that is coming, and all of it */
    StoreTalk talk;
    uint8_t bytes[STORE_BYTES_MAX];
} Call;
typedef struct {
    const StoreKey *key;
    StoreAt at;
    void *bytes;
    size_t n;
    int *fd;
    const char *seen; /* what somebody there has shown to be, for the line of a deadline */
} Guests;

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
static void hang_up(Call *c) {
    if (c->fd >= 0) close(c->fd);
    if (c->given >= 0) close(c->given);
    c->fd = c->given = -1;
    c->phase = IDLE;
    c->since = now_seconds() + AGAIN_MS / 1e3;
}
static void expect(Call *c, Phase p, size_t bytes) {
    c->phase = p;
    c->n = 0;
    c->whole = bytes;
}

/* The greeting has come: say hello to a rank 0 of this job. */
static bool greeted(Guests *g, Call *c) {
    uint64_t job;
    uint8_t nonce[STORE_NONCE];
    if (!store_greeting_read(&c->talk, &job)) return false;
    if (job != g->key->job) {
        if (!g->seen) g->seen = "; a rank 0 of another job is there";
        return false;
    }
    g->seen = "; what is there says to be of this job and does not have the same secret";
    if (!store_random(nonce, sizeof nonce, NULL)) return false;
    store_hello_write(&c->talk, g->key, nonce, g->at.secret);
    expect(c, ANSWER, STORE_ANSWER);
    return store_say(c->fd, c->talk.hello, STORE_HELLO, -1);
}
static Visit answered(Guests *g, Call *c, Err *e) {
    StoreWhat what;
    uint64_t value;
    size_t n;
    uint8_t thanks[STORE_TAG];
    if (!store_answer_bytes(&c->talk, &n) || !store_answer_read(&c->talk, c->bytes, g->at.secret, &what, &value))
        return AGAIN;
    g->seen = what == STORE_RESTART ? "; a rank 0 of an earlier start is there" : NULL;
    if (what != STORE_OK) return refused(g->key, what, value, e);
    store_thanks_write(&c->talk, g->at.secret, thanks);
    if (n != g->n || (g->fd && c->given < 0) || !store_say(c->fd, thanks, sizeof thanks, -1)) return AGAIN;
    if (n) memcpy(g->bytes, c->bytes, n);
    if (g->fd) *g->fd = c->given, c->given = -1;
    return GOT;
}
/* The connection can be read, or, when it is not yet there, written. */
static Visit listen_to(Guests *g, Call *c, Err *e) {
    Visit v = AGAIN;
    bool go = true;
    if (c->phase == CONNECTS) {
        go = store_connected(c->fd);
        expect(c, GREETING, STORE_GREETING);
    } else {
        uint8_t *to = c->phase == GREETING ? c->talk.greeting : c->phase == ANSWER ? c->talk.answer : c->bytes;
        ssize_t got = store_hear(c->fd, to + c->n, c->whole - c->n, &c->given);
        go = got >= 0;
        if (got > 0) c->n += (size_t)got;
        if (go && c->n == c->whole) {
            size_t n = 0;
            if (c->phase == GREETING) {
                go = greeted(g, c);
            } else if (c->phase == ANSWER && store_answer_bytes(&c->talk, &n) && n && n == g->n) {
                expect(c, BYTES, n);
            } else { /* an answer without bytes, or with its bytes; of another length it is none of ours */
                v = c->phase == BYTES || !n ? answered(g, c, e) : AGAIN;
                go = false;
            }
        } else if (go && c->phase == GREETING) { /* nothing is waited for behind a beginning that is already wrong */
            go = store_begins(c->talk.greeting, c->n);
        }
    }
    if (!go) hang_up(c);
    return v;
}

static bool guest(const StoreKey *k, StoreAt at, double until, const StoreAddress *to, int addresses, int ports,
                  void *bytes, size_t n, int *fd, const char **seen, Err *e) {
    Guests g = {.key = k, .at = at, .bytes = bytes, .n = n, .fd = fd};
    int calls = addresses * ports;
    Call *all = xcalloc((size_t)calls, sizeof *all);
    struct pollfd *p = xcalloc((size_t)calls, sizeof *p);
    Call **of = xcalloc((size_t)calls, sizeof(Call *));
    for (int i = 0; i < calls; i++) {
        all[i] = (Call){.to = &to[i % addresses], .port = at.port + i / addresses, .fd = -1, .given = -1};
        if (!at.local && all[i].port > 65535) all[i].since = until + 1;
    }
    Visit v = AGAIN;
    while (v == AGAIN && now_seconds() < until && !rank_lost(k, at, e)) {
        double next = until;
        int busy = 0;
        for (int i = 0; i < calls; i++) {
            Call *c = &all[i];
            double now = now_seconds();
            if (c->phase != IDLE && now - c->since > HEAR_S) hang_up(c);
            if (c->phase == IDLE && now >= c->since) {
                c->fd = store_connect(c->to, c->port);
                c->since = now;
                c->phase = CONNECTS;
                if (c->fd < 0) hang_up(c);
            }
            if (c->phase == IDLE) {
                next = fmin(next, c->since);
                continue;
            }
            of[busy] = c;
            p[busy++] = (struct pollfd){.fd = c->fd, .events = c->phase == CONNECTS ? POLLOUT : POLLIN};
        }
        if (poll(p, (nfds_t)busy, slice(next)) < 0) continue; /* interrupted */
        for (int i = 0; i < busy && v == AGAIN; i++)
            if (p[i].revents) v = listen_to(&g, of[i], e);
    }
    for (int i = 0; i < calls; i++)
        if (all[i].fd >= 0) hang_up(&all[i]);
    free(all);
    free(of);
    free(p);
    *seen = g.seen ? g.seen : "";
    return v == GOT;
}

/* ---- both -----------------------------------------------------------------------------------------------------------
 */

/* The addresses of MASTER_ADDR, which all must be such as a secret, or none, is enough for. */
static bool find(const StoreKey *k, StoreAt at, double until, StoreAddresses *all, Err *e) {
    const char *why;
    while ((why = store_resolve(at.host, all))) {
        if (rank_lost(k, at, e)) return false;
        if (now_seconds() + RESOLVE_MS / 1e3 > until)
            return err_world(e, "rank %d: MASTER_ADDR %.100s: %s", k->rank, at.host, why);
        usleep(RESOLVE_MS * 1000);
    }
    if (all->any)
        return err_input(e, "MASTER_ADDR %.100s: expected one address of the host of rank 0, this one means all",
                         at.host);
    /* Systems give a host's own name an address of the loopback interface; who names that interface means it. */
    if (!k->rank && all->loopback && all->named && at.several && strcmp(at.host, "localhost"))
        return err_input(e,
                         "MASTER_ADDR %.100s is on this host the loopback interface, which ranks of other hosts do not "
                         "reach: set it to an address that they do",
                         at.host);
    if (!all->loopback && !at.secret.n)
        return err_input(e,
                         "ranks that meet at %.80s need a secret: set KVSMITH_SECRET for all to the same 16 random "
                         "characters or more (openssl rand -hex 32), or KVSMITH_SECRET_FILE to a file of mode 0600",
                         at.host);
    return true;
}
static int listeners(const StoreKey *k, StoreAt at, double until, int out[STORE_ADDRESSES], Err *e) {
    StoreAddresses all;
    if (at.local) return store_listen_local(k, out, e);
    return find(k, at, until, &all, e) ? store_listen(&all, at.host, at.port, out, e) : 0;
}

bool store_share(const StoreKey *k, StoreAt at, double deadline, void *bytes, size_t n, int *fd, Err *e) {
    double until = now_seconds() + deadline;
    CHECK(n <= STORE_BYTES_MAX && (at.local || !fd) && k->world > 1, "%zu bytes", n);
    if (!at.local && (!at.host || !*at.host || at.port < 1))
        return err_input(e, "ranks: MASTER_ADDR and MASTER_PORT are needed to meet over the network");
    if (sodium_init() < 0) return err_world(e, "ranks: libsodium does not start");
    if (k->rank == 0) return host(k, at, until, deadline, bytes, n, fd ? *fd : -1, e);
    StoreAddresses all = {.n = 1};
    if (at.local)
        store_local(k, all.address);
    else if (!find(k, at, until, &all, e))
        return false;
    const char *seen;
    if (guest(k, at, until, all.address, all.n, at.local ? 1 : STORE_PORTS, bytes, n, fd, &seen, e)) return true;
    if (e->status) return false;
    if (at.local)
        return err_world(e, "rank %d: rank 0 was not found on this host within %g s%s", k->rank, deadline, seen);
    return err_world(e, "rank %d: rank 0 was not found at %.100s, ports %d to %d, within %g s%s", k->rank, at.host,
                     at.port, at.port + STORE_PORTS - 1, deadline, seen);
}
