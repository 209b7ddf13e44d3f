#include "comm_nccl.h"
#include "ops/comm_stream.h"
#include "nccl_so.h"
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { FLIGHT = 2, GRACE_S = 2, WATCH_MS = 200 };
typedef struct {
    CommCall call;
    uint64_t number; /* of the call */
} Flight;
/* State shared with the watching thread. */
typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool on, over;
    double since; /* the oldest of what is under way began; 0: nothing is */
    char line[200];
} Watch;
typedef struct {
    Comm comm;
    NcclTable f;
    NcclComm nccl; /* NULL once aborted */
    CommStream *side;
    void *stage; /* on the device, for calls on the host's memory */
    size_t room;
    Flight flight[FLIGHT];
    int first, n; /* under way, the oldest first */
    bool failed;
    Watch watch;
} Nccl;

/* ---- the library ----------------------------------------------------------------------------------------------------
 */

static void *open_at(const char *dir, const char *name, char why[200]) {
    char *path = xformat("%s%s", dir, name);
    /* A name without a folder is the loader's to find. */
    void *so = *dir && access(path, R_OK) ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so && (!*dir || !access(path, R_OK)) && !*why) snprintf(why, 200, "%.190s", dlerror());
    free(path);
    return so;
}
static void *comm_nccl_library(const char *name, Err *e) {
    char exe[PATH_MAX] = "", why[200] = "";
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe, '/'), *home = getenv("CUDA_HOME");
    if (slash) slash[1] = 0;
    char *dirs[] = {xstrdup(exe), xformat("%s../lib/kvsmith/", exe), xstrdup(""),
                    home && *home ? xformat("%s/lib64/", home) : xstrdup("/usr/local/cuda/lib64/"),
                    xstrdup("/usr/local/cuda/lib64/")};
    void *so = NULL;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        if (!so && (*dirs[i] || i == 2)) so = open_at(dirs[i], name, why);
        free(dirs[i]);
    }
    if (!so)
        err_runtime(e,
                    "NCCL: %s was not found next to kvsmith, in the loader's paths, CUDA_HOME/lib64 or "
                    "/usr/local/cuda/lib64 (%.90s); install NCCL 2.17 or later",
                    name, why);
    return so;
}
static bool comm_nccl_table(NcclTable *f, char note[160], Err *e) {
    const char *name = comm_stream_library();
    void *so = comm_nccl_library(name, e);
    if (!so) return false;
    const struct {
        const char *name;
        void *at; /* of a pointer to a function */
    } all[] = {{"ncclGetVersion", &f->version},
               {"ncclGetUniqueId", &f->id},
               {"ncclCommInitRankConfig", &f->init},
               {"ncclCommGetAsyncError", &f->state},
               {"ncclCommFinalize", &f->finalize},
               {"ncclCommDestroy", &f->destroy},
               {"ncclCommAbort", &f->abort},
               {"ncclGetErrorString", &f->text},
               {"ncclGetLastError", &f->last},
               {"ncclAllReduce", &f->reduce},
               {"ncclReduceScatter", &f->reduce_scatter},
               {"ncclAllGather", &f->gather},
               {"ncclBroadcast", &f->broadcast}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *p = dlsym(so, all[i].name);
        if (!p) return err_runtime(e, "NCCL: %s lacks %s; version 2.17 or later is needed", name, all[i].name);
        memcpy(all[i].at, &p, sizeof p);
    }
    int v = 0;
    Dl_info where = {0};
    void *any = dlsym(so, "ncclGetVersion");
    if (f->version(&v) || v < NCCL_LEAST)
        return err_runtime(e, "NCCL: %s is version %d.%d.%d; 2.17 or later is needed", name, v / 10000, v / 100 % 100,
                           v % 100);
    bool known = dladdr(any, &where) && where.dli_fname;
    snprintf(note, 160, "NCCL %d.%d.%d, %.120s", v / 10000, v / 100 % 100, v % 100, known ? where.dli_fname : name);
    return true;
}

/* ---- the watch ------------------------------------------------------------------------------------------------------
 */

static void comm_nccl_nap(double waited) {
    if (waited < 2e-4)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, waited < 0.01 ? 20000 : 200000}, NULL);
}
static const char *comm_nccl_call_name(const Nccl *n, const CommCall *call, uint64_t number, char out[160]) {
    snprintf(out, 160, "rank %d on %.40s: %s '%.40s' (call %llu)", n->comm.rank, n->comm.host,
             comm_kind_name(call->kind), call->name, (unsigned long long)number);
    return out;
}
static void watch_set(Nccl *n, const CommCall *call, uint64_t number) { /* call NULL: nothing is under way */
    Watch *w = &n->watch;
    char line[160] = "";
    if (call) comm_nccl_call_name(n, call, number, line);
    pthread_mutex_lock(&w->lock);
    w->since = call ? now_seconds() : 0;
    memcpy(w->line, line, sizeof line);
    pthread_mutex_unlock(&w->lock);
}
static void *comm_nccl_watch(void *p) {
    Nccl *n = p;
    Watch *w = &n->watch;
    const double limit = 2 * n->comm.deadline + GRACE_S;
    pthread_mutex_lock(&w->lock);
    while (!w->over) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += WATCH_MS * 1000000L;
        t.tv_sec += t.tv_nsec / 1000000000L;
        t.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&w->wake, &w->lock, &t);
        if (w->over || !w->since || now_seconds() - w->since < limit) continue;
        /* The thread that should have noticed is stuck in the library or the driver and cannot be asked, so the end of
         * the process ends its part of the communicator. */
        fprintf(stderr, "kvsmith: %s: did not finish within %g s, and this rank is stuck in NCCL or its GPU\n", w->line,
                limit);
        _exit(EXIT_RUNTIME);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}
static bool watch_open(Nccl *n, Err *e) {
    Watch *w = &n->watch;
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, &a);
    pthread_condattr_destroy(&a);
    sigset_t all, before; /* signals are the loop's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&w->thread, NULL, comm_nccl_watch, n);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->on = !why;
    return w->on || err_runtime(e, "NCCL: cannot start a thread: %s", strerror(why));
}
static void watch_close(Nccl *n) {
    Watch *w = &n->watch;
    if (!w->on) return;
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    CHECK(!pthread_join(w->thread, NULL), "a thread of our own");
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    w->on = false;
}

/* ---- failures -------------------------------------------------------------------------------------------------------
 */

/* Ends the current calls now, on this rank. */
static void give_up(Nccl *n) {
    n->failed = true;
    if (n->nccl) n->f.abort(n->nccl);
    n->nccl = NULL;
    n->n = 0;
}
static bool nccl_says(Nccl *n, const Flight *x, int error, Err *e) {
    char where[160], last[100] = "";
    const char *said = n->f.last(n->nccl);
    if (said) snprintf(last, sizeof last, "%.90s", said);
    last[strcspn(last, "\n")] = 0;
    err_runtime(e, "%s: NCCL: %.80s%s%s", comm_nccl_call_name(n, &x->call, x->number, where), n->f.text(error),
                *last ? ": " : "", last);
    give_up(n);
    return false;
}
static bool device_says(Nccl *n, const Flight *x, Err *e) {
    char where[160];
    err_runtime(e, "%s: device cuda: %.100s", comm_nccl_call_name(n, &x->call, x->number, where),
                comm_stream_why(n->side));
    give_up(n);
    return false;
}
static bool comm_nccl_late(Nccl *n, const Flight *x, Err *e) {
    char where[160];
    err_runtime(e, "%s: did not finish within %g s: another rank has exited, hangs or is in another call",
                comm_nccl_call_name(n, &x->call, x->number, where), n->comm.deadline);
    give_up(n);
    return false;
}

/* Until a call that returned `error` has been taken, which a communicator that does not block may do later. */
static bool comm_nccl_settle(Nccl *n, const Flight *x, int error, Err *e) {
    double begun = now_seconds(), now = begun;
    while (error == NCCL_IN_PROGRESS) {
        if (now - begun > n->comm.deadline) return comm_nccl_late(n, x, e);
        comm_nccl_nap(now - begun);
        int state = NCCL_SUCCESS;
        error = n->f.state(n->nccl, &state);
        if (!error) error = state;
        now = now_seconds();
    }
    return !error || nccl_says(n, x, error, e);
}

/* ---- calls ----------------------------------------------------------------------------------------------------------
 */

static int comm_nccl_type_of(Dtype t) { return t == F64 ? NCCL_F64 : t == F32 ? NCCL_F32 : NCCL_BF16; }

/* Into the queue: on buf, of the device. */
static bool comm_nccl_enqueue(Nccl *n, const Flight *x, void *buf, Err *e) {
    const CommCall *c = &x->call;
    const NcclTable *f = &n->f;
    void *stream = comm_stream_native(n->side);
    char *own = (char *)buf + (size_t)n->comm.rank * c->count * dtype_size(c->dtype);
    int type = comm_nccl_type_of(c->dtype), error = 0;
    CHECK(c->dtype == F64 || c->dtype == F32 || c->dtype == BF16, "%s", dtype_name(c->dtype));
    switch (c->kind) {
    case COMM_REDUCE:
    case COMM_BARRIER: error = f->reduce(buf, buf, c->count, type, NCCL_SUM, n->nccl, stream); break;
    case COMM_REDUCE_SCATTER: error = f->reduce_scatter(buf, own, c->count, type, NCCL_SUM, n->nccl, stream); break;
    case COMM_GATHER: error = f->gather(own, buf, c->count, type, n->nccl, stream); break;
    case COMM_BROADCAST: error = f->broadcast(buf, buf, c->count, type, c->root, n->nccl, stream); break;
    }
    return comm_nccl_settle(n, x, error, e);
}

/* The queue has reached the mark of this call. */
static bool comm_nccl_await(Nccl *n, const Flight *x, int slot, Err *e) {
    double begun = now_seconds(), now = begun;
    for (;;) {
        int state = NCCL_SUCCESS, done = comm_stream_done(n->side, slot);
        if (done < 0) return device_says(n, x, e);
        if (done) return true;
        int error = n->f.state(n->nccl, &state);
        if (!error && state != NCCL_IN_PROGRESS) error = state;
        if (error) return nccl_says(n, x, error, e);
        if (now - begun > n->comm.deadline) return comm_nccl_late(n, x, e);
        comm_nccl_nap(now - begun);
        now = now_seconds();
    }
}
static bool wait_oldest(Nccl *n, Err *e) {
    const Flight *x = &n->flight[n->first];
    if (!comm_nccl_await(n, x, n->first, e)) return false;
    n->first = (n->first + 1) % FLIGHT;
    n->n--;
    x = &n->flight[n->first];
    watch_set(n, n->n ? &x->call : NULL, x->number);
    return true;
}
static bool nccl_wait(Comm *c, Err *e) {
    Nccl *n = c->ctx;
    while (n->n)
        if (!wait_oldest(n, e)) return false;
    return true;
}

/* A call on the host's memory, through the device. */
static bool host_call(Nccl *n, const Flight *x, Err *e) {
    CommCall c = x->call;
    static const float nothing = 0;
    if (c.kind == COMM_BARRIER) c.buf = (void *)(uintptr_t)&nothing, c.count = 1, c.dtype = F32;
    size_t size = dtype_size(c.dtype), part = c.count * size, W = (size_t)n->comm.world, rank = (size_t)n->comm.rank,
           all = c.kind == COMM_GATHER || c.kind == COMM_REDUCE_SCATTER ? W * part : part;
    Flight y = *x;
    y.call.count = c.count, y.call.dtype = c.dtype;
    if (n->room < all) {
        if (n->stage) comm_stream_give(n->side, n->stage);
        n->room = zmax(all, 1 << 16);
        n->stage = comm_stream_take(n->side, n->room);
        char where[160];
        if (!n->stage) {
            n->room = 0;
            err_runtime(e, "%s: cannot allocate %zu bytes of device memory",
                        comm_nccl_call_name(n, &c, x->number, where), all);
            give_up(n);
            return false;
        }
    }
    char *stage = n->stage, *buf = c.buf;
    bool up = c.kind != COMM_BROADCAST || c.root == n->comm.rank;
    size_t from = c.kind == COMM_GATHER ? rank * part : 0, back = c.kind == COMM_REDUCE_SCATTER ? rank * part : 0;
    if (up && !comm_stream_upload(n->side, stage + from, buf + from, c.kind == COMM_GATHER ? part : all))
        return device_says(n, x, e);
    if (!comm_nccl_enqueue(n, &y, stage, e)) return false;
    if (!comm_stream_mark(n->side, FLIGHT)) return device_says(n, x, e);
    if (!comm_nccl_await(n, x, FLIGHT, e)) return false;
    if (c.kind == COMM_BARRIER) return true;
    return comm_stream_download(n->side, buf + back, stage + back, c.kind == COMM_REDUCE_SCATTER ? part : all) ||
           device_says(n, x, e);
}

static bool nccl_start(Comm *c, const CommCall *call, Err *e) {
    Nccl *n = c->ctx;
    Flight x = {*call, c->calls};
    CHECK(!n->failed, "a call after a failure");
    if (!call->at) {
        if (!nccl_wait(c, e)) return false;
        watch_set(n, call, c->calls);
        bool ok = !call->count && call->kind != COMM_BARRIER ? true : host_call(n, &x, e);
        watch_set(n, NULL, 0);
        return ok;
    }
    if (n->n == FLIGHT && !wait_oldest(n, e)) return false;
    int slot = (n->first + n->n) % FLIGHT;
    if (!n->n) watch_set(n, call, c->calls);
    if (!comm_stream_follow(n->side, call->at)) return device_says(n, &x, e);
    if (call->count && !comm_nccl_enqueue(n, &x, call->buf, e)) return false;
    if (!comm_stream_mark(n->side, slot)) return device_says(n, &x, e);
    n->flight[slot] = x;
    n->n++;
    return true;
}
static void nccl_stop(Comm *c) { give_up(c->ctx); }
static void nccl_close(Comm *c) {
    Nccl *n = c->ctx;
    if (n->nccl) {
        Err e = {0};
        Flight end = {{.kind = COMM_BARRIER, .name = "the end"}, c->calls + 1};
        watch_set(n, &end.call, end.number);
        if (nccl_wait(c, &e) && comm_nccl_settle(n, &end, n->f.finalize(n->nccl), &e)) n->f.destroy(n->nccl);
        /* The results of the run are complete; a library that does not shut down only deserves a note. */
        if (e.status) fprintf(stderr, "kvsmith: %s\n", e.msg);
        watch_set(n, NULL, 0);
    }
    watch_close(n);
    if (n->stage) comm_stream_give(n->side, n->stage);
    comm_stream_close(n->side);
    free(n);
}
static const CommOps nccl_ops = {"nccl", nccl_start, nccl_wait, nccl_stop, nccl_close};

bool comm_nccl_open(const CommNcclOpen *o, Comm **out, Err *e) {
    Nccl *n = xcalloc(1, sizeof *n);
    Comm *c = &n->comm;
    *c = (Comm){.ops = &nccl_ops,
                .rank = o->rank,
                .world = o->world,
                .local = o->local,
                .locals = o->locals,
                .device = true,
                .deadline = o->deadline,
                .ctx = n};
    if (gethostname(c->host, sizeof c->host)) strcpy(c->host, "?");
    c->host[sizeof c->host - 1] = 0;
    NcclId id = {{0}};
    _Static_assert(sizeof id == NCCL_ID, "NCCL's name of a communicator");
    Flight start = {{.kind = COMM_BARRIER, .name = "start of NCCL"}, 0};
    NcclConfig how = {.size = sizeof how,
                      .magic = NCCL_MAGIC,
                      .version = NCCL_LEAST,
                      .blocking = 0,
                      .cluster = NCCL_UNSET,
                      .least_blocks = NCCL_UNSET,
                      .most_blocks = NCCL_UNSET};
    bool ok = comm_stream_open(o->local, imax(1, o->locals), &n->side, e) && comm_nccl_table(&n->f, c->note, e);
    int error = ok && !o->rank ? n->f.id(&id) : 0;
    if (error) ok = err_runtime(e, "rank %d on %s: NCCL: %.100s", o->rank, c->host, n->f.text(error));
    ok = ok && (o->world == 1 || o->share(o->ctx, &id, sizeof id, e)) && watch_open(n, e);
    if (ok) {
        watch_set(n, &start.call, 0);
        ok = comm_nccl_settle(n, &start, n->f.init(&n->nccl, o->world, id, o->rank, &how), e);
        watch_set(n, NULL, 0);
    }
    if (ok) {
        *out = c;
        return true;
    }
    c->ops = NULL;
    give_up(n);
    nccl_close(c);
    return false;
}
