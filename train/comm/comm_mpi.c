#include "comm_mpi.h"
#include "comm_mpi_so.h"
#include "comm_pieces.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 4 << 20, SAID = 128 };
typedef struct {
    uint64_t calls, log;
    int kind;
    char name[64];
} Said;

typedef struct {
    Comm comm;
    const CommMpiTable *mpi;
    size_t room;
    char *send, *recv;
    int *bytes, *at, *recv_bytes, *recv_at;
    const void **src;
    const CommCall *call;
    bool failed;
} Mpi;

static const char *comm_mpi_call_name(const Mpi *m, char out[160]) {
    snprintf(out, 160, "rank %d on %.40s: %s '%.40s' (call %llu)", m->comm.rank, m->comm.host,
             comm_kind_name(m->call->kind), m->call->name, (unsigned long long)m->comm.calls);
    return out;
}
static bool mpi_says(Mpi *m, int error, Err *e) {
    char text[200], where[160];
    m->failed = true;
    m->mpi->text(error, text);
    return err_runtime(e, "%s: MPI: %.100s", comm_mpi_call_name(m, where), text);
}

/* Finds the missing ranks by asking: all ranks stuck in the same call ask at about the same time. */
static bool comm_mpi_late(Mpi *m, Err *e) {
    Comm *c = &m->comm;
    int W = c->world;
    char *said = xcalloc((size_t)W, SAID), *heard = xcalloc((size_t)W, 1), where[160];
    Said *mine = xcalloc(1, sizeof *mine);
    *mine = (Said){.calls = c->calls, .log = c->log, .kind = (int)m->call->kind};
    snprintf(mine->name, sizeof mine->name, "%s", m->call->name);
    double until = now_seconds() + fmax(0.5, fmin(3, c->deadline));
    int missing = -1, other = -1, nmissing = W;
    heard[c->rank] = 1;
    while (nmissing && now_seconds() < until && !m->mpi->roll_call(mine, sizeof *mine, said, heard)) {
        nmissing = 0;
        for (int q = 0; q < W; q++) nmissing += !heard[q];
        usleep(1000);
    }
    for (int q = W - 1; q >= 0; q--) {
        Said s;
        memcpy(&s, said + q * SAID, sizeof s);
        if (!heard[q])
            missing = q;
        else if (q != c->rank && (s.calls != mine->calls || s.log != mine->log))
            other = q;
    }
    m->failed = true;
    comm_mpi_call_name(m, where);
    if (missing >= 0) {
        err_runtime(e, "%s: rank %d did not arrive within %g s%s", where, missing, c->deadline,
                    nmissing > 1 ? ", others neither" : "");
    } else if (other >= 0) {
        Said s;
        memcpy(&s, said + other * SAID, sizeof s);
        err_runtime(e, "%s: rank %d is in another call, %s '%.40s' (call %llu)", where, other,
                    s.kind >= 0 && s.kind <= COMM_BARRIER ? comm_kind_name((CommKind)s.kind) : "?", s.name,
                    (unsigned long long)s.calls);
    } else {
        err_runtime(e, "%s: did not finish within %g s, though every rank answers", where, c->deadline);
    }
    /* `said` and `mine` may still be written and read by what is under way: the process ends soon, they stay. */
    return false;
}

/* Ends the current call with `error`. */
static bool comm_mpi_finish(Mpi *m, int error, Err *e) {
    double begun = now_seconds(), now = begun;
    for (int done = 0;;) {
        if (!error) error = m->mpi->test(&done);
        if (error) return mpi_says(m, error, e);
        if (done) return true;
        now = now_seconds();
        if (now - begun > m->comm.deadline) return comm_mpi_late(m, e);
        if (now - begun < 2e-4)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, now - begun < 0.01 ? 50000 : 500000}, NULL);
    }
}

static bool reduce_chunk(Mpi *m, const Pieces *all, size_t k, Err *e) {
    int W = m->comm.world, r = m->comm.rank;
    Piece own = piece(all, k, r);
    size_t from = 0, to = 0;
    for (int q = 0; q < W; q++) {
        Piece t = piece(all, k, q);
        bool other = q != r;
        m->at[q] = (int)from;
        m->bytes[q] = other ? (int)t.bytes : 0;
        if (m->bytes[q]) memcpy(m->send + from, t.p, t.bytes);
        from += (size_t)m->bytes[q];
        m->recv_at[q] = (int)to;
        m->recv_bytes[q] = other ? (int)own.bytes : 0;
        m->src[q] = other ? m->recv + to : own.p;
        to += (size_t)m->recv_bytes[q];
    }
    if (!comm_mpi_finish(m, m->mpi->all_to_all(m->send, m->bytes, m->at, m->recv, m->recv_bytes, m->recv_at), e))
        return false;
    if (own.n) comm_sum(own.p, m->src, W, own.n, all->call.dtype);
    return true;
}
static bool gather_chunk(Mpi *m, const Pieces *all, size_t k, Err *e) {
    int W = m->comm.world, r = m->comm.rank;
    Piece own = piece(all, k, r);
    size_t to = 0;
    for (int q = 0; q < W; q++) {
        m->recv_at[q] = (int)to;
        m->recv_bytes[q] = (int)piece(all, k, q).bytes;
        to += (size_t)m->recv_bytes[q];
    }
    if (!comm_mpi_finish(m, m->mpi->gather(own.p, (int)own.bytes, m->recv, m->recv_bytes, m->recv_at), e)) return false;
    for (int q = 0; q < W; q++) {
        Piece t = piece(all, k, q);
        if (q != r && t.n) memcpy(t.p, m->recv + m->recv_at[q], t.bytes);
    }
    return true;
}

static bool mpi_start(Comm *c, const CommCall *call, Err *e) {
    Mpi *m = c->ctx;
    CHECK(!m->failed, "a call after a failure");
    m->call = call;
    Pieces all = pieces_of(call, c->world, m->room);
    if (call->kind == COMM_BARRIER) return comm_mpi_finish(m, m->mpi->barrier(), e);
    for (size_t k = 0; k < all.chunks; k++) {
        if (call->kind == COMM_BROADCAST) {
            Piece t = piece(&all, k, call->root);
            if (!comm_mpi_finish(m, m->mpi->broadcast(t.p, (int)t.bytes, call->root), e)) return false;
            continue;
        }
        if (all.in && !reduce_chunk(m, &all, k, e)) return false;
        if (all.out && !gather_chunk(m, &all, k, e)) return false;
    }
    return true;
}
static bool mpi_wait(Comm *c, Err *e) {
    (void)c, (void)e;
    return true;
}
static void mpi_stop(Comm *c) { ((Mpi *)c->ctx)->failed = true; }
static void mpi_close(Comm *c) {
    Mpi *m = c->ctx;
    if (!m->failed) {
        m->mpi->close();
    } else { /* ends this process, too, so it is the last that is done: why has been printed */
        fflush(NULL);
        m->mpi->abort(EXIT_RUNTIME);
    }
    free(m->send);
    free(m->recv);
    free(m->bytes);
    free(m->src);
    free(m);
}
static const CommOps mpi_ops = {"mpi", mpi_start, mpi_wait, mpi_stop, mpi_close};

/* Beside the program, or where an installed one has its libraries. */
static const CommMpiTable *table(Err *e) {
    static const char *const places[] = {"", "../lib/kvsmith/"};
    char dir[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/'), why[160] = "";
    if (slash) slash[1] = 0;
    for (int i = 0; i < 2; i++) {
        char *path = xformat("%s%skvsmith-mpi.so", dir, places[i]);
        bool there = !access(path, R_OK);
        /* Open MPI's own parts look for its names among all. */
        void *so = there ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
        if (there && !so) snprintf(why, sizeof why, "%.150s", dlerror());
        free(path);
        const CommMpiTable *t = so ? dlsym(so, "comm_mpi_table") : NULL;
        if (t && t->version == COMM_MPI_TABLE) return t;
        if (so) snprintf(why, sizeof why, "kvsmith-mpi.so belongs to another version of kvsmith; run make");
    }
    if (*why)
        err_runtime(e, "MPI: %s", why);
    else
        err_runtime(e, "MPI: this program was built without it: install libopenmpi-dev (./setup mpi), run make, and "
                       "start kvsmith with the mpirun of the same MPI");
    return NULL;
}

bool comm_mpi_open(int rank, int world, int local, int locals, double deadline, Comm **out, Err *e) {
    const CommMpiTable *t = table(e);
    if (!t) return false;
    int is_rank = 0, is_world = 0, error = t->open(&is_rank, &is_world);
    if (error) {
        char text[200];
        t->text(error, text);
        return err_runtime(e, "MPI: %s", text);
    }
    if (is_rank != rank || is_world != world)
        return err_runtime(e,
                           "MPI reports rank %d of %d, the environment rank %d of %d; use the mpirun of the MPI that "
                           "kvsmith-mpi.so was built with",
                           is_rank, is_world, rank, world);
    Mpi *m = xcalloc(1, sizeof *m);
    size_t W = (size_t)world;
    m->comm = (Comm){.ops = &mpi_ops,
                     .rank = rank,
                     .world = world,
                     .local = local,
                     .locals = locals,
                     .deadline = deadline,
                     .ctx = m};
    if (gethostname(m->comm.host, sizeof m->comm.host)) strcpy(m->comm.host, "?");
    m->comm.host[sizeof m->comm.host - 1] = 0;
    m->mpi = t;
    m->room = zmax(CHUNK, 64 * W);
    m->send = xcalloc(m->room, 1);
    m->recv = xcalloc(m->room, 1);
    m->bytes = xcalloc(4 * W, sizeof *m->bytes);
    m->at = m->bytes + W;
    m->recv_bytes = m->at + W;
    m->recv_at = m->recv_bytes + W;
    m->src = xcalloc(W, sizeof *m->src);
    *out = &m->comm;
    return true;
}
