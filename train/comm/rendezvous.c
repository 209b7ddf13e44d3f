#include "rendezvous.h"
#include <poll.h>
#include <sodium.h>
#include <unistd.h>
#include "comm_shm.h"
#include "rendezvous_net.h"

/* A connection is given up when its other end has not spoken for HEAR_S seconds. */
enum { PENDING = 256, BATCH = 32, HEAR_S = 5, SLICE_MS = 200, AGAIN_MS = 50, RESOLVE_MS = 500 };

static bool rank_lost(const RendezvousKey *k, RendezvousAt at, Err *e) {
    int who = at.shared > 0 ? comm_shm_lost(at.shared) : -1;
    return who >= 0 && !err_runtime(e, "rank %d: rank %d exited before the ranks met", k->rank, who);
}
static int rendezvous_slice(double until) { return (int)fmax(1, fmin(SLICE_MS, 1e3 * (until - now_seconds()))); }

/* ---- rank 0 ---------------------------------------------------------------------------------------------------------
 */
typedef struct {
    int fd, rank; /* rank 0: has not said hello */
    double since;
    size_t n; /* bytes of the message that is coming */
    RendezvousTalk talk;
    uint8_t thanks[RENDEZVOUS_TAG];
} Guest;
typedef struct {
    const RendezvousKey *key;
    RendezvousAt at;
    const void *bytes;
    size_t n;
    int fd;
    bool *has;
    int left;
    char refused[100];
    Guest guest[PENDING];
} Host;

static void rendezvous_part(Guest *g) {
    close(g->fd);
    g->fd = -1;
}
static uint64_t value_of(const RendezvousKey *k, RendezvousWhat w) {
    return w == RENDEZVOUS_RESTART                         ? (uint64_t)k->restart
           : w == RENDEZVOUS_WORLD || w == RENDEZVOUS_RANK ? (uint64_t)k->world
           : w == RENDEZVOUS_CONFIG                        ? k->config
           : w == RENDEZVOUS_JOB                           ? k->job
                                                           : RENDEZVOUS_VERSION;
}
static const char *const what_names[] = {"",
                                         "another version of kvsmith",
                                         "another job",
                                         "another start",
                                         "another number of ranks",
                                         "another configuration",
                                         "an unknown rank"};

static void rendezvous_answer(Host *h, Guest *g) {
    RendezvousKey theirs;
    RendezvousWhat what;
    if (!rendezvous_hello_read(&g->talk, h->key, h->at.secret, &theirs, &what)) {
        snprintf(h->refused, sizeof h->refused, "; a caller that does not have the same secret was refused");
        rendezvous_part(g);
        return;
    }
    bool good = what == RENDEZVOUS_OK;
    if (!good && what != RENDEZVOUS_JOB)
        snprintf(h->refused, sizeof h->refused, "; a rank %d with %s was refused", theirs.rank, what_names[what]);
    rendezvous_answer_write(&g->talk, what, value_of(h->key, what), h->bytes, good ? h->n : 0, h->at.secret);
    bool said = rendezvous_say(g->fd, g->talk.answer, RENDEZVOUS_ANSWER, good ? h->fd : -1) &&
                (!good || !h->n || rendezvous_say(g->fd, h->bytes, h->n, -1));
    if (!said || !good)
        rendezvous_part(g);
    else
        g->rank = theirs.rank, g->n = 0;
}
static void rendezvous_serve(Host *h, Guest *g) {
    uint8_t *to = g->rank ? g->thanks : g->talk.hello;
    size_t whole = g->rank ? sizeof g->thanks : sizeof g->talk.hello;
    ssize_t got = rendezvous_hear(g->fd, to + g->n, whole - g->n, NULL);
    if (got > 0) g->n += (size_t)got;
    if (got < 0 || (!g->rank && !rendezvous_begins(g->talk.hello, g->n)))
        rendezvous_part(g);
    else if (g->n == whole && !g->rank)
        rendezvous_answer(h, g);
    else if (g->n == whole) {
        if (rendezvous_thanks_read(&g->talk, h->at.secret, g->thanks) && !h->has[g->rank])
            h->has[g->rank] = true, h->left--;
        rendezvous_part(g);
    }
}
/* A free place, or that of who has been silent longest; one that only has to thank keeps its place. NULL: none. */
static Guest *rendezvous_place(Host *h, bool taken) {
    Guest *at = NULL;
    for (int i = 0; i < PENDING; i++) {
        Guest *g = &h->guest[i];
        if (g->fd < 0 && !taken) return g;
        if (g->fd >= 0 && !g->rank && (!at || g->since < at->since)) at = g;
    }
    if (at) rendezvous_part(at);
    return at;
}
static void rendezvous_welcome(Host *h, int listener) {
    for (int i = 0; i < BATCH; i++) {
        bool full;
        uint8_t nonce[RENDEZVOUS_NONCE];
        int s = rendezvous_accept(listener, h->at.local, &full);
        if (full && !rendezvous_place(h, true)) usleep(10000);
        if (s < 0) return;
        Guest *g = rendezvous_place(h, false);
        if (!g || !rendezvous_random(nonce, sizeof nonce, NULL)) {
            close(s);
            continue;
        }
        *g = (Guest){.fd = s, .since = now_seconds()};
        rendezvous_greeting_write(&g->talk, h->key, nonce);
        if (!rendezvous_say(s, g->talk.greeting, RENDEZVOUS_GREETING, -1)) rendezvous_part(g);
    }
}

/* The sockets of rank 0; names of hosts may come late. 0: none, `e` filled. */
static int rendezvous_listeners(const RendezvousKey *k, RendezvousAt at, double until, int out[RENDEZVOUS_ADDRESSES],
                                Err *e);

static bool rendezvous_host(const RendezvousKey *k, RendezvousAt at, double until, double deadline, const void *bytes,
                            size_t size, int fd, Err *e) {
    int listener[RENDEZVOUS_ADDRESSES], nlisten = rendezvous_listeners(k, at, until, listener, e);
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
        struct pollfd p[RENDEZVOUS_ADDRESSES + PENDING];
        Guest *of[RENDEZVOUS_ADDRESSES + PENDING];
        int n = 0; /* poll refuses more entries than a process may have descriptors */
        for (; n < nlisten; n++) p[n] = (struct pollfd){.fd = listener[n], .events = POLLIN};
        for (int i = 0; i < PENDING; i++)
            if (h->guest[i].fd >= 0) {
                of[n] = &h->guest[i];
                p[n++] = (struct pollfd){.fd = h->guest[i].fd, .events = POLLIN};
            }
        if (poll(p, (nfds_t)n, rendezvous_slice(until)) < 0) continue; /* interrupted */
        for (int i = nlisten; i < n; i++)
            if (p[i].revents) rendezvous_serve(h, of[i]);
        for (int i = 0; i < PENDING; i++)
            if (h->guest[i].fd >= 0 && !h->guest[i].rank && now_seconds() - h->guest[i].since > HEAR_S)
                rendezvous_part(&h->guest[i]);
        for (int i = 0; i < nlisten; i++)
            if (p[i].revents) rendezvous_welcome(h, listener[i]);
    }
    bool ok = !h->left;
    if (!ok && !lost) {
        int first = 1;
        while (h->has[first]) first++;
        err_runtime(e, "rank 0: rank %d%s did not arrive within %g s%s", first, h->left > 1 ? " and others" : "",
                    deadline, h->refused);
    }
    for (int i = 0; i < PENDING; i++)
        if (h->guest[i].fd >= 0) rendezvous_part(&h->guest[i]);
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
    const RendezvousAddress *to;
    int port;
    Phase phase;
    double since; /* when it was begun; idle: when to try again */
    int fd, given;
    size_t n, whole; /* bytes of the message that is coming, and all of it */
    RendezvousTalk talk;
    uint8_t bytes[RENDEZVOUS_BYTES_MAX];
} Call;
typedef struct {
    const RendezvousKey *key;
    RendezvousAt at;
    void *bytes;
    size_t n;
    int *fd;
    const char *seen; /* what somebody there has shown to be, for the line of a deadline */
} Guests;

static Visit rendezvous_refused(const RendezvousKey *k, RendezvousWhat what, uint64_t v, Err *e) {
    unsigned long long u = v;
    switch (what) {
    case RENDEZVOUS_OTHER_VERSION:
        err_input(e,
                  "rank %d: rank 0 uses version %llu of the rendezvous protocol, this rank version %d: start the same "
                  "kvsmith everywhere",
                  k->rank, u, RENDEZVOUS_VERSION);
        return REFUSED;
    case RENDEZVOUS_RESTART:
        if (v < (uint64_t)k->restart) return AGAIN; /* it is the one that should have ended */
        err_input(e, "rank %d: this process belongs to start %d of the job, rank 0 to start %llu", k->rank, k->restart,
                  u);
        return REFUSED;
    case RENDEZVOUS_WORLD:
        err_input(e, "rank %d: this rank was started with %d ranks, rank 0 with %llu", k->rank, k->world, u);
        return REFUSED;
    case RENDEZVOUS_CONFIG:
        err_input(e, "rank %d: configuration %016llx differs from rank 0's %016llx: all ranks need the same", k->rank,
                  (unsigned long long)k->config, u);
        return REFUSED;
    case RENDEZVOUS_RANK: err_input(e, "rank %d: rank 0 has only %llu ranks", k->rank, u); return REFUSED;
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
static void rendezvous_expect(Call *c, Phase p, size_t bytes) {
    c->phase = p;
    c->n = 0;
    c->whole = bytes;
}

/* The greeting has arrived: send a hello to a rank 0 of this job. */
static bool rendezvous_greeted(Guests *g, Call *c) {
    uint64_t job;
    uint8_t nonce[RENDEZVOUS_NONCE];
    if (!rendezvous_greeting_read(&c->talk, &job)) return false;
    if (job != g->key->job) {
        if (!g->seen) g->seen = "; a rank 0 of another job answered";
        return false;
    }
    g->seen = "; a process that claims to be of this job answered with another secret";
    if (!rendezvous_random(nonce, sizeof nonce, NULL)) return false;
    rendezvous_hello_write(&c->talk, g->key, nonce, g->at.secret);
    rendezvous_expect(c, ANSWER, RENDEZVOUS_ANSWER);
    return rendezvous_say(c->fd, c->talk.hello, RENDEZVOUS_HELLO, -1);
}
static Visit rendezvous_answered(Guests *g, Call *c, Err *e) {
    RendezvousWhat what;
    uint64_t value;
    size_t n;
    uint8_t thanks[RENDEZVOUS_TAG];
    if (!rendezvous_answer_bytes(&c->talk, &n) ||
        !rendezvous_answer_read(&c->talk, c->bytes, g->at.secret, &what, &value))
        return AGAIN;
    g->seen = what == RENDEZVOUS_RESTART ? "; a rank 0 of an earlier start answered" : NULL;
    if (what != RENDEZVOUS_OK) return rendezvous_refused(g->key, what, value, e);
    rendezvous_thanks_write(&c->talk, g->at.secret, thanks);
    if (n != g->n || (g->fd && c->given < 0) || !rendezvous_say(c->fd, thanks, sizeof thanks, -1)) return AGAIN;
    if (n) memcpy(g->bytes, c->bytes, n);
    if (g->fd) *g->fd = c->given, c->given = -1;
    return GOT;
}
/* The connection can be read, or, when it is not yet there, written. */
static Visit listen_to(Guests *g, Call *c, Err *e) {
    Visit v = AGAIN;
    bool go = true;
    if (c->phase == CONNECTS) {
        go = rendezvous_connected(c->fd);
        rendezvous_expect(c, GREETING, RENDEZVOUS_GREETING);
    } else {
        uint8_t *to = c->phase == GREETING ? c->talk.greeting : c->phase == ANSWER ? c->talk.answer : c->bytes;
        ssize_t got = rendezvous_hear(c->fd, to + c->n, c->whole - c->n, &c->given);
        go = got >= 0;
        if (got > 0) c->n += (size_t)got;
        if (go && c->n == c->whole) {
            size_t n = 0;
            if (c->phase == GREETING) {
                go = rendezvous_greeted(g, c);
            } else if (c->phase == ANSWER && rendezvous_answer_bytes(&c->talk, &n) && n && n == g->n) {
                rendezvous_expect(c, BYTES, n);
            } else { /* an answer without bytes, or with its bytes; of another length it is none of ours */
                v = c->phase == BYTES || !n ? rendezvous_answered(g, c, e) : AGAIN;
                go = false;
            }
        } else if (go && c->phase == GREETING) { /* does not wait for more after a wrong beginning */
            go = rendezvous_begins(c->talk.greeting, c->n);
        }
    }
    if (!go) hang_up(c);
    return v;
}

static bool rendezvous_guest(const RendezvousKey *k, RendezvousAt at, double until, const RendezvousAddress *to,
                             int addresses, int ports, void *bytes, size_t n, int *fd, const char **seen, Err *e) {
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
                c->fd = rendezvous_connect(c->to, c->port);
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
        if (poll(p, (nfds_t)busy, rendezvous_slice(next)) < 0) continue; /* interrupted */
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
static bool rendezvous_find(const RendezvousKey *k, RendezvousAt at, double until, RendezvousAddresses *all, Err *e) {
    const char *why;
    while ((why = rendezvous_resolve(at.host, all))) {
        if (rank_lost(k, at, e)) return false;
        if (now_seconds() + RESOLVE_MS / 1e3 > until)
            return err_runtime(e, "rank %d: MASTER_ADDR %.100s: %s", k->rank, at.host, why);
        usleep(RESOLVE_MS * 1000);
    }
    if (all->any)
        return err_input(e, "MASTER_ADDR %.100s: expected an address of rank 0's host, got the wildcard address",
                         at.host);
    /* Systems give a host's own name an address of the loopback interface; who names that interface means it. */
    if (!k->rank && all->loopback && all->named && at.several && strcmp(at.host, "localhost"))
        return err_input(e,
                         "MASTER_ADDR %.100s is the loopback interface on this host, which other hosts cannot reach: "
                         "set it to an address that they can reach",
                         at.host);
    if (!all->loopback && !at.secret.n)
        return err_input(e,
                         "ranks that meet at %.80s need a secret: set KVSMITH_SECRET for all to the same 16 random "
                         "characters or more (openssl rand -hex 32), or KVSMITH_SECRET_FILE to a file of mode 0600",
                         at.host);
    return true;
}
static int rendezvous_listeners(const RendezvousKey *k, RendezvousAt at, double until, int out[RENDEZVOUS_ADDRESSES],
                                Err *e) {
    RendezvousAddresses all;
    if (at.local) return rendezvous_listen_local(k, out, e);
    return rendezvous_find(k, at, until, &all, e) ? rendezvous_listen(&all, at.host, at.port, out, e) : 0;
}

bool rendezvous_share(const RendezvousKey *k, RendezvousAt at, double deadline, void *bytes, size_t n, int *fd,
                      Err *e) {
    double until = now_seconds() + deadline;
    CHECK(n <= RENDEZVOUS_BYTES_MAX && (at.local || !fd) && k->world > 1, "%zu bytes", n);
    if (!at.local && (!at.host || !*at.host || at.port < 1))
        return err_input(e, "ranks: MASTER_ADDR and MASTER_PORT are needed to meet over the network");
    if (sodium_init() < 0) return err_runtime(e, "ranks: cannot initialise libsodium");
    if (k->rank == 0) return rendezvous_host(k, at, until, deadline, bytes, n, fd ? *fd : -1, e);
    RendezvousAddresses all = {.n = 1};
    if (at.local)
        rendezvous_local(k, all.address);
    else if (!rendezvous_find(k, at, until, &all, e))
        return false;
    const char *seen;
    if (rendezvous_guest(k, at, until, all.address, all.n, at.local ? 1 : RENDEZVOUS_PORTS, bytes, n, fd, &seen, e))
        return true;
    if (e->status) return false;
    if (at.local)
        return err_runtime(e, "rank %d: rank 0 was not found on this host within %g s%s", k->rank, deadline, seen);
    return err_runtime(e, "rank %d: rank 0 was not found at %.100s, ports %d to %d, within %g s%s", k->rank, at.host,
                       at.port, at.port + RENDEZVOUS_PORTS - 1, deadline, seen);
}
