/* nccl.cpp: the part of NCCL's interface that train/comm/comm_nccl.c uses, between processes that have an emulated
 * device each. A shared object of its own (libnccl-emulated.so), which finds the emulation in the program that opens
 * it.
 *
 * What it is strict about, as the library is or may be: communicators that do not block; nothing is asked while an
 * answer is still ncclInProgress, and what was asked is in the stream only when it no longer is; ranks have different
 * devices; work is done in the stream's order, late, and what it will write is NaN from when it begins until it is
 * over. Sums are taken in the order of ranks, of bf16 in f32 and rounded once. Ranks in different calls are found out.
 *
 * SIMT_NCCL_FAULT=KIND:RANK:CALL breaks a rank in its CALL-th collective (0: the start): error (the library fails),
 * hang (its part never comes), die (killed), stop (stopped by SIGSTOP), stuck (the library does not return). */
#include "tests/simt/include/cuda_runtime.h"
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

extern "C" {
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
}
enum { ncclSuccess, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidArgument = 4, ncclInvalidUsage = 5 };
enum { ncclRemoteError = 6, ncclInProgress = 7 };
struct ncclConfig {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, least, most;
    const char *net;
};

enum { RANKS = 16, TURNS = 2 };
static const size_t HEAD = 1 << 16, AREA = (size_t)256 << 20; /* of each rank and turn; only what is used is there */
enum Kind { REDUCE, SCATTER, GATHER, BROADCAST };
struct Said { /* of a call, which all ranks must make alike */
    int kind, type, root;
    size_t count;
};
struct Place {
    std::atomic<int> pid;
    int device;
    std::atomic<uint32_t> posted, taken; /* calls whose part is there; whose parts have been read */
    Said said[TURNS];
};
struct Shared {
    std::atomic<int> here;
    Place place[RANKS];
};
struct Name { /* what an id holds */
    char magic[8];
    int pid, fd;
    uint64_t random;
};
static const char NAME[8] = "simtncc";

struct Task;
struct ncclComm {
    int rank, world, state, wait; /* wait: how often state is asked before it changes */
    uint32_t calls;
    Shared *shared;
    char *memory;
    std::atomic<bool> aborted;
    std::unique_ptr<Task> next; /* asked for, and not yet in the stream */
    cudaStream_t stream;
    int users;
    char last[200];
    bool closed, hung;
    uint64_t draws;
};
struct Task {
    ncclComm *comm;
    Said said;
    const char *from;
    char *to;
    uint32_t number;
    bool posted, mute; /* mute: never posts */
    int late;
};

static uint64_t drawn(ncclComm *c) { /* splitmix64 */
    uint64_t z = c->draws += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static bool fault(const ncclComm *c, const char *kind, uint32_t call) {
    const char *s = getenv("SIMT_NCCL_FAULT");
    size_t n = strlen(kind);
    int rank = -1;
    unsigned at = 0;
    return s && !strncmp(s, kind, n) && sscanf(s + n, ":%d:%u", &rank, &at) == 2 && rank == c->rank && at == call;
}
static void faults(ncclComm *c, uint32_t call) {
    if (fault(c, "die", call)) raise(SIGKILL);
    if (fault(c, "stop", call)) raise(SIGSTOP);
    while (fault(c, "stuck", call)) pause();
}
static size_t size_of(int type) { return type == 8 ? 8 : type == 7 ? 4 : 2; }
static char *area(ncclComm *c, int rank, uint32_t number) {
    return c->memory + HEAD + ((size_t)rank * TURNS + number % TURNS) * AREA;
}
static int fails(ncclComm *c, int error, const char *why) {
    snprintf(c->last, sizeof c->last, "%s", why);
    return c->state = error;
}
static bool gone(int pid) {
    char path[40], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    const char *state = n > 0 ? strrchr(text, ')') : nullptr;
    return !state || state[2] == 'Z' || state[2] == 'X';
}

/* ---- a collective, when it stands first in its stream --------------------------------------------------------------
 */
static float wide(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static uint16_t is_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
template <class T> static void add_up(ncclComm *c, char *to, uint32_t number, size_t from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        T sum = ((const T *)area(c, 0, number))[from + i];
        for (int q = 1; q < c->world; q++) sum += ((const T *)area(c, q, number))[from + i];
        ((T *)to)[i] = sum;
    }
}
static void add_up_bf16(ncclComm *c, char *to, uint32_t number, size_t from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float sum = wide(((const uint16_t *)area(c, 0, number))[from + i]);
        for (int q = 1; q < c->world; q++) sum += wide(((const uint16_t *)area(c, q, number))[from + i]);
        ((uint16_t *)to)[i] = is_bf16(sum);
    }
}

static size_t gives(const Task *t) { /* numbers */
    const Said *s = &t->said;
    if (s->kind == BROADCAST && s->root != t->comm->rank) return 0;
    return s->kind == SCATTER ? s->count * (size_t)t->comm->world : s->count;
}
static size_t gets(const Task *t) {
    return t->said.kind == GATHER ? t->said.count * (size_t)t->comm->world : t->said.count;
}
static void post(Task *t) {
    ncclComm *c = t->comm;
    size_t size = size_of(t->said.type), n = gives(t) * size;
    simt_library_touches(t->from, n, false);
    memcpy(area(c, c->rank, t->number), t->from, n);
    /* Whoever reads the result before it is there, reads NaN. */
    simt_library_touches(t->to, gets(t) * size, true);
    memset(t->to, 0xFF, gets(t) * size);
    Place *p = &c->shared->place[c->rank];
    p->said[t->number % TURNS] = t->said;
    p->posted.store(t->number + 1);
    t->posted = true;
    t->late = (int)(drawn(c) % 4);
}
static bool can(void *arg) {
    Task *t = (Task *)arg;
    ncclComm *c = t->comm;
    if (c->aborted) return true;
    if (t->mute || c->state > ncclSuccess) return false;
    if (!t->posted) {
        for (int q = 0; q < c->world; q++) /* the turn's area has been read */
            if (t->number >= TURNS && c->shared->place[q].taken.load() < t->number - TURNS + 1) return false;
        post(t);
    }
    if (t->late) return t->late--, false;
    for (int q = 0; q < c->world; q++)
        if (c->shared->place[q].posted.load() < t->number + 1) return false;
    return true;
}
static void run(void *arg) {
    Task *t = (Task *)arg;
    ncclComm *c = t->comm;
    const Said *s = &t->said;
    size_t size = size_of(s->type);
    if (c->aborted) return;
    for (int q = 0; q < c->world; q++) {
        const Said *o = &c->shared->place[q].said[t->number % TURNS];
        if (o->kind == s->kind && o->type == s->type && o->root == s->root && o->count == s->count) continue;
        fails(c, ncclInvalidUsage, "ranks are in different calls");
        return;
    }
    switch (s->kind) {
    case REDUCE:
    case SCATTER: {
        size_t from = s->kind == SCATTER ? (size_t)c->rank * s->count : 0;
        if (s->type == 8)
            add_up<double>(c, t->to, t->number, from, s->count);
        else if (s->type == 7)
            add_up<float>(c, t->to, t->number, from, s->count);
        else
            add_up_bf16(c, t->to, t->number, from, s->count);
        break;
    }
    case GATHER:
        for (int q = 0; q < c->world; q++)
            memcpy(t->to + (size_t)q * s->count * size, area(c, q, t->number), s->count * size);
        break;
    case BROADCAST: memcpy(t->to, area(c, s->root, t->number), s->count * size); break;
    }
    c->shared->place[c->rank].taken.store(t->number + 1);
}
static void leave(ncclComm *c) {
    if (--c->users) return;
    munmap(c->memory, HEAD + (size_t)c->world * TURNS * AREA);
    delete c;
}
static void drop(void *arg) {
    ncclComm *c = ((Task *)arg)->comm;
    delete (Task *)arg;
    leave(c);
}
static void hand_over(ncclComm *c) {
    if (c->next) simt_enqueue_when(c->stream, can, run, c->next.release(), drop);
}

static int ask(ncclComm *c, Kind kind, const void *from, void *to, size_t n, int type, int root, cudaStream_t stream) {
    if (c->state == ncclInProgress) return fails(c, ncclInvalidUsage, "asked before the last call was taken");
    if (c->state) return c->state;
    if (type < 7 || type > 9) return fails(c, ncclInvalidArgument, "a type of numbers");
    if (root < 0 || root >= c->world) return fails(c, ncclInvalidArgument, "a root");
    size_t most = n * size_of(type) * (kind == SCATTER ? (size_t)c->world : 1);
    if (most > AREA) return fails(c, ncclInternalError, "more than the emulation has room for");
    c->users++;
    c->stream = stream;
    c->next.reset(new Task{c, {kind, type, root, n}, (const char *)from, (char *)to, c->calls++, false, false, 0});
    faults(c, c->calls);
    if (fault(c, "error", c->calls)) return fails(c, ncclSystemError, "a planted error");
    if (fault(c, "hang", c->calls)) c->next->mute = true;
    if (drawn(c) % 2) {
        hand_over(c);
        return ncclSuccess;
    }
    c->wait = 1 + (int)(drawn(c) % 3);
    return c->state = ncclInProgress;
}

/* ---- the interface --------------------------------------------------------------------------------------------------
 */
extern "C" {
int ncclGetVersion(int *v) {
    *v = 22809;
    return ncclSuccess;
}
const char *ncclGetErrorString(int e) {
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "operation in progress"};
    return e >= 0 && e <= ncclInProgress ? text[e] : "unknown result code";
}
const char *ncclGetLastError(ncclComm_t c) { return c ? c->last : ""; }

/* The memory has no name on the disk: others open it through its maker, and nothing of it is left behind. */
int ncclGetUniqueId(ncclUniqueId *id) {
    Name n = {};
    memcpy(n.magic, NAME, 8);
    n.pid = (int)getpid();
    n.fd = memfd_create("nccl-emulated", MFD_CLOEXEC);
    if (n.fd < 0 || ftruncate(n.fd, (off_t)(HEAD + RANKS * TURNS * AREA))) return ncclSystemError;
    if (getrandom(&n.random, sizeof n.random, 0) < 0) return ncclSystemError;
    memset(id, 0, sizeof *id);
    memcpy(id, &n, sizeof n);
    return ncclSuccess;
}
int ncclCommInitRankConfig(ncclComm_t *out, int world, ncclUniqueId id, int rank, ncclConfig *how) {
    Name n;
    char path[64];
    memcpy(&n, &id, sizeof n);
    if (memcmp(n.magic, NAME, 8) || world < 1 || world > RANKS || rank < 0 || rank >= world) return ncclInvalidArgument;
    if (!how || how->magic != 0xcafebeef || how->size < sizeof *how || how->version < 21700 || how->blocking)
        return ncclInvalidArgument; /* one that blocks cannot be aborted */
    snprintf(path, sizeof path, "/proc/%d/fd/%d", n.pid, n.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    size_t bytes = HEAD + (size_t)world * TURNS * AREA;
    void *p = fd < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (fd >= 0) close(fd);
    if (p == MAP_FAILED) return ncclSystemError;
    ncclComm *c = *out = new ncclComm{};
    c->rank = rank, c->world = world;
    c->memory = (char *)p;
    c->shared = (Shared *)p;
    c->users = 1;
    c->draws = n.random + (uint64_t)rank;
    Place *me = &c->shared->place[rank];
    cudaGetDevice(&me->device);
    me->pid.store((int)getpid());
    /* Who died before the others have met is missed by their meeting, and not by NCCL. */
    for (int q = 0; q < world && fault(c, "die", 0);)
        if (c->shared->place[q].pid.load())
            q++;
        else
            usleep(1000);
    faults(c, 0);
    if (!fault(c, "hang", 0)) c->shared->here++;
    return c->state = ncclInProgress;
}
int ncclCommGetAsyncError(ncclComm_t c, int *state) {
    if (c->state == ncclInProgress && c->shared->here.load() < c->world) {
        *state = ncclInProgress; /* not all have come */
        return ncclSuccess;
    }
    for (int q = 0; q < c->world && c->state != ncclInvalidUsage; q++) {
        const Place *p = &c->shared->place[q];
        if (q != c->rank && p->device == c->shared->place[c->rank].device)
            fails(c, ncclInvalidUsage, "two ranks have one device");
        else if (!c->closed && q != c->rank && gone(p->pid.load()))
            fails(c, ncclRemoteError, "a rank's process has ended");
    }
    if (c->state == ncclInProgress && --c->wait <= 0) {
        c->state = ncclSuccess;
        hand_over(c);
    }
    *state = c->state;
    return ncclSuccess;
}
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, ncclComm_t c, cudaStream_t s) {
    return op ? fails(c, ncclInvalidArgument, "sums alone") : ask(c, REDUCE, from, to, n, type, 0, s);
}
int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, ncclComm_t c, cudaStream_t s) {
    return op ? fails(c, ncclInvalidArgument, "sums alone") : ask(c, SCATTER, from, to, n, type, 0, s);
}
int ncclAllGather(const void *from, void *to, size_t n, int type, ncclComm_t c, cudaStream_t s) {
    return ask(c, GATHER, from, to, n, type, 0, s);
}
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, ncclComm_t c, cudaStream_t s) {
    return ask(c, BROADCAST, from, to, n, type, root, s);
}
int ncclCommFinalize(ncclComm_t c) {
    if (c->state) return c->state;
    c->closed = true; /* others may end before this one */
    c->wait = 2;
    return c->state = ncclInProgress;
}
int ncclCommDestroy(ncclComm_t c) {
    leave(c);
    return ncclSuccess;
}
int ncclCommAbort(ncclComm_t c) {
    c->aborted = true;
    if (c->next) c->users--;
    c->next.reset();
    leave(c);
    return ncclSuccess;
}
}
