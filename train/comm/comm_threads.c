/* comm_threads.c: see comm_threads.h. */
#include "comm_threads.h"
#include <errno.h>
#include <pthread.h>
#include <time.h>

typedef struct {
    CommCall c;
    char name[96];
    uint64_t number;
} Call;
/* State that all ranks see. `arrived` and `round` make a barrier that can give up. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int world, arrived;
    uint64_t round;
    bool here[COMM_THREADS_MAX]; /* arrived in this round */
    Call call[COMM_THREADS_MAX];
    int stopped; /* rank that stopped the others, -1: none */
    bool broken; /* a rank gave up */
    int left;    /* ranks that have returned */
    const CommFault *fault;
    int faults;
} Shared;
typedef struct {
    Shared *s;
    Call *pending;
    int n, cap;
} Mine;

static struct timespec comm_threads_after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double whole = floor(seconds);
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((seconds - whole) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

static bool comm_threads_missing(Comm *c, const Call *k, Err *e) {
    Shared *s = ((Mine *)c->ctx)->s;
    char who[64] = "";
    for (int r = 0, at = 0; r < s->world && at < 48; r++)
        if (!s->here[r]) at += snprintf(who + at, sizeof who - (size_t)at, "%s%d", at ? ", " : "", r);
    s->broken = true;
    pthread_cond_broadcast(&s->moved);
    if (!*who)
        return err_runtime(e, "rank %d on %s: %s \"%s\" (call %llu): the others gave up on this rank", c->rank, c->host,
                           comm_kind_name(k->c.kind), k->name, (unsigned long long)k->number);
    return err_runtime(e, "rank %d on %s: %s \"%s\" (call %llu): rank %s is missing after %g s", c->rank, c->host,
                       comm_kind_name(k->c.kind), k->name, (unsigned long long)k->number, who, c->deadline);
}

/* All ranks are here. */
static bool comm_threads_meet(Comm *c, const Call *k, Err *e) {
    Shared *s = ((Mine *)c->ctx)->s;
    struct timespec until = comm_threads_after(c->deadline);
    uint64_t round = s->round;
    bool ok = true;
    s->here[c->rank] = true;
    /* Ranks that gave up have counted themselves as arrived, and their buffers may no longer exist. */
    if (++s->arrived == s->world && !s->broken && s->stopped < 0) {
        s->arrived = 0;
        s->round++;
        memset(s->here, 0, sizeof s->here);
        pthread_cond_broadcast(&s->moved);
    }
    while (ok && s->round == round) {
        if (s->stopped >= 0)
            ok = err_runtime(e, "rank %d on %s: %s \"%s\" (call %llu): rank %d stopped with an error", c->rank, c->host,
                             comm_kind_name(k->c.kind), k->name, (unsigned long long)k->number, s->stopped);
        else if (s->broken || pthread_cond_timedwait(&s->moved, &s->lock, &until) == ETIMEDOUT)
            ok = s->round != round || comm_threads_missing(c, k, e);
    }
    return ok;
}

static bool comm_threads_same_call(Comm *c, const Call *all, int world, Err *e) {
    for (int r = 1; r < world; r++) {
        const Call *a = &all[0], *b = &all[r];
        if (a->c.kind == b->c.kind && a->c.count == b->c.count && a->c.dtype == b->c.dtype && a->c.root == b->c.root &&
            a->number == b->number && !strcmp(a->name, b->name))
            continue;
        return err_runtime(
            e,
            "rank %d on %s: rank 0 calls %s \"%s\" (call %llu, %zu %s, root %d), rank %d %s \"%s\" (call "
            "%llu, %zu %s, root %d)",
            c->rank, c->host, comm_kind_name(a->c.kind), a->name, (unsigned long long)a->number, a->c.count,
            dtype_name(a->c.dtype), a->c.root, r, comm_kind_name(b->c.kind), b->name, (unsigned long long)b->number,
            b->c.count, dtype_name(b->c.dtype), b->c.root);
    }
    return true;
}

/* Numbers from..to-1 of every rank's buffer, added in the order of ranks, into those of ranks first..last. */
static void comm_threads_add(const Call *all, int world, size_t from, size_t to, int first, int last) {
#define SUM(type, acc, get, put)                                                   \
    for (size_t i = from; i < to; i++) {                                           \
        acc x = get(((const type *)all[0].c.buf)[i]);                              \
        for (int r = 1; r < world; r++) x += get(((const type *)all[r].c.buf)[i]); \
        for (int r = first; r <= last; r++) ((type *)all[r].c.buf)[i] = put(x);    \
    }
    switch (all[0].c.dtype) {
    case F64: SUM(double, double, , ) break;
    case F32: SUM(float, float, , ) break;
    case BF16: SUM(uint16_t, float, bf16_to, bf16_from) break;
    case F16: CHECK(false, "sums of F16"); break;
    }
#undef SUM
}

static void comm_threads_work(const Call *all, int world, int rank) {
    const CommCall *c = &all[rank].c;
    size_t part = c->count * dtype_size(c->dtype);
    char *mine = c->buf;
    if (c->kind == COMM_REDUCE)
        comm_threads_add(all, world, c->count * (size_t)rank / (size_t)world,
                         c->count * ((size_t)rank + 1) / (size_t)world, 0, world - 1);
    if (c->kind == COMM_REDUCE_SCATTER)
        comm_threads_add(all, world, c->count * (size_t)rank, c->count * ((size_t)rank + 1), rank, rank);
    for (int r = 0; c->kind == COMM_GATHER && r < world; r++)
        if (r != rank) memcpy(mine + part * (size_t)r, (char *)all[r].c.buf + part * (size_t)r, part);
    if (c->kind == COMM_BROADCAST && rank != c->root) memcpy(mine, all[c->root].c.buf, part);
}

static const CommFault *fault_of(const Shared *s, int rank, uint64_t call) {
    for (int i = 0; i < s->faults; i++)
        if (s->fault[i].rank == rank && s->fault[i].call == call) return &s->fault[i];
    return NULL;
}
static void comm_threads_corrupt(const Call *k, int world, size_t bit) {
    bool parts = k->c.kind == COMM_REDUCE_SCATTER || k->c.kind == COMM_GATHER;
    size_t bytes = k->c.count * dtype_size(k->c.dtype) * (parts ? (size_t)world : 1);
    if (!bytes) return;
    bit %= 8 * bytes;
    ((unsigned char *)k->c.buf)[bit / 8] ^= (unsigned char)(1u << bit % 8);
}

static bool comm_threads_one(Comm *c, const Call *k, Err *e) {
    Shared *s = ((Mine *)c->ctx)->s;
    const CommFault *f = fault_of(s, c->rank, k->number);
    if (f && f->kind == FAULT_DIE) return err_runtime(e, "rank %d was told to die", c->rank);
    if (f && f->kind == FAULT_DELAY) {
        struct timespec until = comm_threads_after(f->seconds);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
    }
    pthread_mutex_lock(&s->lock);
    while (f && f->kind == FAULT_HANG && s->left < s->world - 1) pthread_cond_wait(&s->moved, &s->lock);
    s->call[c->rank] = *k;
    bool ok = comm_threads_meet(c, k, e) && comm_threads_same_call(c, s->call, s->world, e);
    pthread_mutex_unlock(&s->lock);
    if (ok) comm_threads_work(s->call, s->world, c->rank);
    pthread_mutex_lock(&s->lock);
    ok = ok && comm_threads_meet(c, k, e);
    pthread_mutex_unlock(&s->lock);
    if (ok && f && f->kind == FAULT_CORRUPT) comm_threads_corrupt(k, s->world, f->bit);
    return ok;
}

static bool threads_start(Comm *c, const CommCall *call, Err *e) {
    Mine *m = c->ctx;
    (void)e;
    if (m->n == m->cap) m->pending = xrealloc(m->pending, (size_t)(m->cap = imax(8, 2 * m->cap)), sizeof *m->pending);
    Call *k = &m->pending[m->n++];
    *k = (Call){.c = *call, .number = c->calls};
    snprintf(k->name, sizeof k->name, "%s", call->name);
    return true;
}
static bool threads_wait(Comm *c, Err *e) {
    Mine *m = c->ctx;
    bool ok = true;
    for (int i = 0; ok && i < m->n; i++) ok = comm_threads_one(c, &m->pending[i], e);
    m->n = 0;
    return ok;
}
static void threads_stop(Comm *c) {
    Shared *s = ((Mine *)c->ctx)->s;
    pthread_mutex_lock(&s->lock);
    if (s->stopped < 0 && !s->broken) s->stopped = c->rank;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}
static const CommOps ops = {.name = "threads", .start = threads_start, .wait = threads_wait, .stop = threads_stop};

typedef struct {
    Shared *s;
    Comm comm;
    Mine mine;
    CommRank *rank;
    void *ctx;
    Err *e;
    bool ok;
    pthread_t thread;
} Thread;

static void *run(void *p) {
    Thread *t = p;
    t->ok = t->rank(&t->comm, t->ctx, t->e);
    pthread_mutex_lock(&t->s->lock);
    t->s->left++;
    pthread_cond_broadcast(&t->s->moved);
    pthread_mutex_unlock(&t->s->lock);
    return NULL;
}

bool comm_threads_run(int world, double deadline, const CommFault *fault, int faults, CommRank *rank, void *ctx,
                      Err *err) {
    CHECK(world >= 1 && world <= COMM_THREADS_MAX, "%d ranks", world);
    Shared *s = xcalloc(1, sizeof *s);
    Thread *t = xcalloc((size_t)world, sizeof *t);
    pthread_condattr_t clock;
    int started = 0, why = 0;
    bool ok = true;
    *s = (Shared){.world = world, .stopped = -1, .fault = fault, .faults = faults};
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->moved, &clock);
    for (; started < world && !why; started += !why) {
        Thread *x = &t[started];
        *x = (Thread){.s = s, .mine = {.s = s}, .rank = rank, .ctx = ctx, .e = &err[started]};
        err[started] = (Err){0};
        x->comm = (Comm){.ops = &ops,
                         .rank = started,
                         .world = world,
                         .local = started,
                         .locals = world,
                         .deadline = deadline,
                         .ctx = &x->mine};
        snprintf(x->comm.host, sizeof x->comm.host, "thread-%d", started);
        why = pthread_create(&x->thread, NULL, run, x);
    }
    if (why) {
        pthread_mutex_lock(&s->lock);
        s->broken = true;
        s->left += world - started;
        pthread_cond_broadcast(&s->moved);
        pthread_mutex_unlock(&s->lock);
    }
    for (int i = 0; i < started; i++) {
        CHECK(!pthread_join(t[i].thread, NULL), "a thread of our own");
        ok = ok && t[i].ok;
        free(t[i].mine.pending);
    }
    if (why) ok = err_runtime(&err[0], "cannot start thread %d of %d: %s", started, world, strerror(why));
    pthread_cond_destroy(&s->moved);
    pthread_condattr_destroy(&clock);
    pthread_mutex_destroy(&s->lock);
    free(t);
    free(s);
    return ok;
}
