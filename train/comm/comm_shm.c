#include "comm_shm.h"
#include "ops/procs.h"
#include "comm_pieces.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 1, CHUNK = 512 << 10, NAME = 64, SLICE_MS = 50, SHM_RANKS_MAX = 1024 };
static const uint64_t magic = 0x6d68732d76736bu; /* "ksv-shm" */

typedef enum { BLAME_NONE, BLAME_ENDED, BLAME_FAILED, BLAME_LATE, BLAME_OTHER_CALL } Blame;

/* A rank's state in shared memory; each word that others wait for has its own cache line. */
typedef struct {
    _Alignas(64) _Atomic uint32_t ready; /* chunks put in, over all calls */
    _Atomic uint32_t ready_waiters;
    _Alignas(64) _Atomic uint32_t done; /* chunks summed up */
    _Atomic uint32_t done_waiters;
    _Alignas(64) _Atomic uint32_t here;
    int pid;
    uint64_t born; /* start time of the process: a number given again is another process */
    uint64_t calls, log;
    int kind;
    char name[NAME];
} Place;
typedef struct {
    uint64_t magic;
    int version, world, chunk;
    _Alignas(64) _Atomic uint32_t blame; /* who * 8 + Blame of the first failure; 0: none */
    _Alignas(64) Place place[];
} Head;

typedef struct {
    Comm comm;
    Head *h;
    size_t bytes;
    char *in[2], *out[2]; /* W chunks and one chunk each, alternating */
    uint32_t chunks;      /* begun, over all calls */
    bool failed;
    int spins;
    const CommCall *call;
    const void **src;
    bool *watched; /* its process can be seen */
} Shm;

static size_t head_bytes(int world) {
    size_t n = sizeof(Head) + (size_t)world * sizeof(Place);
    return (n + 4095) / 4096 * 4096;
}
static size_t shm_bytes(int world) { return head_bytes(world) + 2 * ((size_t)world + 1) * CHUNK; }

bool comm_shm_make(int world, int *fd, Err *e) {
    if (world > SHM_RANKS_MAX)
        return err_input(e, "shared memory: %d ranks, at most %d on a machine", world, SHM_RANKS_MAX);
    *fd = memfd_create("kvsmith", MFD_CLOEXEC);
    if (*fd < 0) return err_runtime(e, "shared memory: %s", strerror(errno));
    Head h = {.magic = magic, .version = VERSION, .world = world, .chunk = CHUNK};
    if (TEMP_FAILURE_RETRY(ftruncate(*fd, (off_t)shm_bytes(world))) ||
        TEMP_FAILURE_RETRY(pwrite(*fd, &h, sizeof h, 0)) != (ssize_t)sizeof h) {
        err_runtime(e, "shared memory of %zu bytes: %s", shm_bytes(world), strerror(errno));
        close(*fd);
        *fd = -1;
        return false;
    }
    return true;
}

/* State letter and start time of a process; '-' when it is not there. */
static char process(int pid, uint64_t *born) {
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t n = fd < 0 ? -1 : TEMP_FAILURE_RETRY(read(fd, text, sizeof text - 1));
    if (fd >= 0) close(fd);
    if (n <= 0) return '-';
    text[n] = 0;
    char *s = strrchr(text, ')'); /* the name may hold anything */
    if (!s || strlen(s) < 3) return '-';
    char state = s[2];
    s += 2;
    for (int field = 3; field < 22 && s; field++) s = (s = strchr(s, ' ')) ? s + 1 : NULL;
    *born = s ? strtoull(s, NULL, 10) : 0;
    return state;
}
char comm_shm_process(int pid) {
    uint64_t born;
    return process(pid, &born);
}
static char place_state(const Place *p) {
    uint64_t born = 0;
    char c = process(p->pid, &born);
    return c == '-' || c == 'Z' || c == 'X' || born != p->born ? '-' : c;
}

static void comm_shm_nap(_Atomic uint32_t *word, uint32_t was, int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, was, &t, NULL, 0);
}
static void comm_shm_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }
static void wake_all(Head *h) {
    for (int q = 0; q < h->world; q++) {
        comm_shm_wake(&h->place[q].ready);
        comm_shm_wake(&h->place[q].done);
        comm_shm_wake(&h->place[q].here);
    }
}
static bool comm_shm_reached(uint32_t v, uint32_t want) { return (int32_t)(v - want) >= 0; }

static void comm_shm_blame(Head *h, int who, Blame b) {
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&h->blame, &none, (uint32_t)who * 8 + b)) wake_all(h);
}
static void comm_shm_accuse(Shm *s, int who, Blame b) { comm_shm_blame(s->h, who, b); }

void comm_shm_ended(int fd, int rank) {
    Head head, *h;
    if (TEMP_FAILURE_RETRY(pread(fd, &head, sizeof head, 0)) != (ssize_t)sizeof head || head.magic != magic) return;
    size_t n = head_bytes(head.world);
    if (rank >= head.world || (h = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) return;
    comm_shm_blame(h, rank, BLAME_ENDED);
    munmap(h, n);
}
int comm_shm_lost(int fd) {
    Head head;
    if (TEMP_FAILURE_RETRY(pread(fd, &head, sizeof head, 0)) != (ssize_t)sizeof head || head.magic != magic) return -1;
    uint32_t b = atomic_load(&head.blame);
    return b ? (int)(b / 8) : -1;
}

/* The line of a failure: whom the first one that saw it blames. */
static bool comm_shm_say(Shm *s, Err *e) {
    uint32_t b = atomic_load(&s->h->blame);
    int who = (int)(b / 8);
    const Place *p = &s->h->place[who];
    Comm *c = &s->comm;
    char what[160], where[64];
    s->failed = true;
    if (who == c->rank && b % 8 == BLAME_OTHER_CALL) who = 0, p = s->h->place;
    if (who == c->rank)
        return err_runtime(e, "rank %d on %s: the others gave up on this rank: it did not arrive within %g s", who,
                           c->host, c->deadline);
    if (p->pid)
        snprintf(where, sizeof where, "rank %d (process %d)", who, p->pid);
    else
        snprintf(where, sizeof where, "rank %d", who);
    switch ((Blame)(b % 8)) {
    case BLAME_ENDED: snprintf(what, sizeof what, "%s has ended", where); break;
    case BLAME_FAILED: snprintf(what, sizeof what, "%s stopped with an error", where); break;
    case BLAME_OTHER_CALL:
        snprintf(what, sizeof what, "%s is in another call, %s '%.40s' (call %llu)", where,
                 comm_kind_name((CommKind)p->kind), p->name, (unsigned long long)p->calls);
        break;
    default:
        snprintf(what, sizeof what, "%s did not arrive within %g s%s", where, c->deadline,
                 p->pid && place_state(p) == 'T' ? ", it is stopped (state T)" : "");
    }
    return err_runtime(e, "rank %d on %s: %s '%.40s' (call %llu): %s", c->rank, c->host,
                       s->call ? comm_kind_name(s->call->kind) : "start", s->call ? s->call->name : "shared memory",
                       (unsigned long long)c->calls, what);
}

typedef enum { READY, DONE, HERE } Word;
static _Atomic uint32_t *comm_shm_word_of(Shm *s, int q, Word w) {
    Place *p = &s->h->place[q];
    return w == READY ? &p->ready : w == DONE ? &p->done : &p->here;
}

/* Checks whether one of the ranks that are late has died. */
static bool all_live(Shm *s, Word w, uint32_t want) {
    for (int q = 0; q < s->comm.world; q++) {
        _Atomic uint32_t *word = comm_shm_word_of(s, q, w);
        if (q == s->comm.rank || !s->watched[q] || comm_shm_reached(atomic_load(word), want)) continue;
        if (place_state(&s->h->place[q]) != '-' || comm_shm_reached(atomic_load(word), want)) continue;
        comm_shm_accuse(s, q, BLAME_ENDED);
        return false;
    }
    return true;
}

static bool comm_shm_await(Shm *s, Word w, uint32_t want, Err *e) {
    double until = 0, look = 0;
    for (int q = 0; q < s->comm.world; q++) {
        _Atomic uint32_t *word = comm_shm_word_of(s, q, w);
        Place *p = &s->h->place[q];
        _Atomic uint32_t *waiters = w == READY ? &p->ready_waiters : &p->done_waiters;
        for (int i = 0; i < s->spins && !comm_shm_reached(atomic_load_explicit(word, memory_order_acquire), want); i++)
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield" ::: "memory");
#else
            atomic_signal_fence(memory_order_seq_cst);
#endif
        for (;;) {
            uint32_t v = atomic_load(word);
            if (comm_shm_reached(v, want)) break;
            double now = now_seconds();
            if (!until) until = now + s->comm.deadline, look = now + SLICE_MS / 1e3;
            if (atomic_load(&s->h->blame)) { /* by a rank that stopped after this call, perhaps: v is older */
                if (comm_shm_reached(atomic_load(word), want)) break;
                return comm_shm_say(s, e);
            }
            if (now >= look) {
                if (!all_live(s, w, want)) return comm_shm_say(s, e);
                look = now + SLICE_MS / 1e3;
            }
            if (now >= until) {
                if (comm_shm_reached(atomic_load(word), want)) break;
                comm_shm_accuse(s, q, BLAME_LATE);
                return comm_shm_say(s, e);
            }
            atomic_fetch_add(waiters, 1);
            if (atomic_load(word) == v && !atomic_load(&s->h->blame))
                comm_shm_nap(word, v, imax(1, imin(SLICE_MS, (int)((until - now) * 1e3))));
            atomic_fetch_sub(waiters, 1);
        }
    }
    return true;
}
static void comm_shm_tell(_Atomic uint32_t *word, _Atomic uint32_t *waiters, uint32_t v) {
    atomic_store(word, v);
    if (atomic_load(waiters)) comm_shm_wake(word);
}

/* ---- a call ---------------------------------------------------------------------------------------------------------
 * Staging is used by turns: what chunk k-2 left in it has been read when all ranks have put chunk k in, since each does
 * that after it has taken k-2 out. */
static void put_in(Shm *s, const Pieces *all, size_t k, uint32_t n) {
    if (all->in)
        for (int p = 0; p < s->comm.world; p++) {
            Piece t = piece(all, k, p);
            if (p != s->comm.rank && t.n) memcpy(s->in[n & 1] + (size_t)s->comm.rank * CHUNK + t.stage, t.p, t.bytes);
        }
    Place *me = &s->h->place[s->comm.rank];
    comm_shm_tell(&me->ready, &me->ready_waiters, n + 1);
}
static void sum_up(Shm *s, const Pieces *all, size_t k, uint32_t n) {
    int W = s->comm.world, r = s->comm.rank;
    Piece t = piece(all, k, r);
    if (all->in && t.n) {
        for (int q = 0; q < W; q++) s->src[q] = q == r ? t.p : s->in[n & 1] + (size_t)q * CHUNK + t.stage;
        comm_sum(t.p, s->src, W, t.n, all->call.dtype);
    }
    if (all->out && t.n) memcpy(s->out[n & 1] + t.stage, t.p, t.bytes);
    comm_shm_tell(&s->h->place[r].done, &s->h->place[r].done_waiters, n + 1);
}
static void take_out(Shm *s, const Pieces *all, size_t k, uint32_t n) {
    for (int p = 0; all->out && p < s->comm.world; p++) {
        Piece t = piece(all, k, p);
        if (p != s->comm.rank && t.n) memcpy(t.p, s->out[n & 1] + t.stage, t.bytes);
    }
}

/* Each rank's call stays in its place until all have done its first chunk. A rank that differs from rank 0 is to
 * blame. */
static bool comm_shm_same_call(Shm *s) {
    const Place *first = s->h->place;
    for (int q = 1; q < s->comm.world; q++) {
        const Place *p = &first[q];
        if (p->log == first->log && p->calls == first->calls) continue;
        comm_shm_accuse(s, q, BLAME_OTHER_CALL);
        return false;
    }
    return true;
}

static bool shm_start(Comm *c, const CommCall *call, Err *e) {
    Shm *s = c->ctx;
    CHECK(!s->failed, "a call after a failure");
    Pieces all = pieces_of(call, c->world, CHUNK);
    Place *me = &s->h->place[c->rank];
    s->call = call;
    me->calls = c->calls;
    me->log = c->log;
    me->kind = (int)call->kind;
    snprintf(me->name, NAME, "%s", call->name);
    uint32_t n = s->chunks;
    put_in(s, &all, 0, n);
    for (size_t k = 0; k < all.chunks; k++, n++) {
        if (k + 1 < all.chunks && k) put_in(s, &all, k + 1, n + 1);
        if (!comm_shm_await(s, READY, n + 1, e)) return false;
        if (!k && !comm_shm_same_call(s)) return comm_shm_say(s, e);
        /* Nothing of the second chunk moves before all are known to be in the same call. */
        if (!k && all.chunks > 1) put_in(s, &all, 1, n + 1);
        sum_up(s, &all, k, n);
        if (!comm_shm_await(s, DONE, n + 1, e)) return false;
        take_out(s, &all, k, n);
    }
    s->chunks = n;
    s->call = NULL;
    return true;
}
static bool shm_wait(Comm *c, Err *e) {
    (void)c, (void)e;
    return true;
}
static void shm_stop(Comm *c) {
    Shm *s = c->ctx;
    comm_shm_accuse(s, c->rank, BLAME_FAILED);
}
static void shm_close(Comm *c) {
    Shm *s = c->ctx;
    munmap(s->h, s->bytes);
    free(s->src);
    free(s->watched);
    free(s);
}
static const CommOps shm_ops = {"shm", shm_start, shm_wait, shm_stop, shm_close};

static bool comm_shm_attach(Shm *s, int fd, int rank, int world, Err *e) {
    struct stat st;
    s->bytes = shm_bytes(world);
    const bool there = !fstat(fd, &st);
    if (!there && errno != EBADF) return err_runtime(e, "shared memory: descriptor %d: %s", fd, strerror(errno));
    if (world > SHM_RANKS_MAX || !there || st.st_size != (off_t)s->bytes)
        return err_input(e, "shared memory: descriptor %d was not made for %d ranks", fd, world);
    s->h = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s->h == MAP_FAILED) {
        s->h = NULL;
        return err_runtime(e, "shared memory of %zu bytes: %s", s->bytes, strerror(errno));
    }
    Head *h = s->h;
    if (h->magic != magic || h->version != VERSION || h->world != world || h->chunk != CHUNK)
        return err_input(e,
                         "shared memory: made by version %d of the protocol for %d ranks, this rank is of version %d, "
                         "%d ranks",
                         h->version, h->world, VERSION, world);
    Place *me = &h->place[rank];
    char *stage = (char *)h + head_bytes(world);
    for (int i = 0; i < 2; i++) {
        s->in[i] = stage + (size_t)i * (size_t)(world + 1) * CHUNK;
        s->out[i] = s->in[i] + (size_t)world * CHUNK;
    }
    me->pid = (int)getpid();
    process(me->pid, &me->born);
    if (atomic_exchange(&me->here, 1)) return err_input(e, "shared memory: two processes are rank %d", rank);
    comm_shm_wake(&me->here);
    return true;
}

bool comm_shm_open(int fd, int rank, int world, double deadline, Comm **out, Err *e) {
    Shm *s = xcalloc(1, sizeof *s);
    s->comm = (Comm){
        .ops = &shm_ops, .rank = rank, .world = world, .local = rank, .locals = world, .deadline = deadline, .ctx = s};
    if (gethostname(s->comm.host, sizeof s->comm.host)) strcpy(s->comm.host, "?");
    s->comm.host[sizeof s->comm.host - 1] = 0;
    s->src = xcalloc((size_t)world, sizeof *s->src);
    s->watched = xcalloc((size_t)world, sizeof *s->watched);
    /* With fewer processors than ranks, a spinning rank keeps another from arriving. */
    s->spins = procs() >= world ? 4000 : 50;
    bool ok = comm_shm_attach(s, fd, rank, world, e) && comm_shm_await(s, HERE, 1, e);
    close(fd);
    for (int q = 0; ok && q < world;
         q++) /* false if the process is in another name space: then only deadlines detect its end */
        s->watched[q] = place_state(&s->h->place[q]) != '-';
    if (!ok) {
        if (s->h) munmap(s->h, s->bytes);
        free(s->src);
        free(s->watched);
        free(s);
        return false;
    }
    *out = &s->comm;
    return true;
}
