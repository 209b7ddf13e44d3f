/* comm.h: the ranks of a run and what they tell each other. One table of functions per transport:
 *
 *   threads  W ranks in one process, a thread each (comm_threads.h): for tests, with delays, failures and corruption
 *   shm      W processes of one machine, over memory that they share (comm_shm.h)
 *   mpi      W processes of any machines (comm_mpi.h)
 *   nccl     W processes with a device each (comm_nccl.h)
 *
 * Every rank makes the same calls in the same order; each call has a number (Comm.calls) and a name, and those of all
 * ranks are compared where the transport can. A sum is taken in the order of ranks, ((x0 + x1) + x2) + ..., whatever
 * its length, by `threads` and `shm`; the others promise 1e-6 norm-wise.
 *
 * A call that cannot end fails with EXIT_WORLD within Comm.deadline seconds, and its line names this rank and host, the
 * collective, its number, and the rank that is missing where that is known. After a failure a Comm can only be closed.
 */
#pragma once
#include "../ops/tensor.h"

typedef struct Comm Comm;
typedef enum { COMM_REDUCE, COMM_REDUCE_SCATTER, COMM_GATHER, COMM_BROADCAST, COMM_BARRIER } CommKind;
typedef struct {
    CommKind kind;
    const char *name; /* "gradients of layer 3": for logs and errors */
    void *buf;
    size_t count;      /* numbers: of all of buf (REDUCE, BROADCAST), of one rank's part (REDUCE_SCATTER, GATHER) */
    Dtype dtype;       /* F64, F32 or BF16; sums of BF16 are taken in f32 and rounded once */
    int root;          /* of a BROADCAST */
    struct Device *at; /* whose memory buf is in; NULL: the host's. nccl alone knows devices */
} CommCall;
/* In place. REDUCE: buf becomes the sum. REDUCE_SCATTER: buf has world parts, part `rank` becomes its sum, the others
 * are scratch. GATHER: part `rank` is given, all become known. */
typedef struct {
    const char *name;
    /* Begin; buf is the call's until the wait. May do all of the work at once. */
    bool (*start)(Comm *, const CommCall *, Err *);
    /* All that was begun has ended. */
    bool (*wait)(Comm *, Err *);
    void (*stop)(Comm *); /* other ranks' calls fail now, not at their deadline: before a rank ends with an error */
    void (*close)(Comm *);
} CommOps;
struct Comm {
    const CommOps *ops;
    int rank, world;
    int local, locals;        /* rank among those of this host, their number */
    bool device;              /* calls may name a device, and one rank alone makes them, too */
    char host[64], note[160]; /* note: what else the log should say of the transport */
    double deadline;          /* seconds */
    uint64_t calls;           /* begun so far */
    uint64_t log; /* hash of kind, name, count, dtype and root of all of them, in order: equal on every rank */
    size_t sent;  /* bytes that this rank gave to others by the theory of rings: see comm_bytes */
    bool agreed;  /* the run ends by a failure that every rank tells in the same words (dist_all): rank 0 says it */
    void *ctx;    /* the transport's */
};

/* Whether ranks have to talk; NULL, or one rank that is not made to: they do not. */
static inline bool comm_live(const Comm *c) { return c && (c->world > 1 || c->device); }
/* Begin and wait. A comm that is not live: nothing is to be done. */
bool comm_do(Comm *, CommCall, Err *);
bool comm_start(Comm *, CommCall, Err *);
bool comm_wait(Comm *, Err *);
bool comm_barrier(Comm *, const char *name, Err *);
void comm_stop(Comm *);
void comm_close(Comm *);
/* Bytes that each rank sends for a call, by the ring's theory: REDUCE 2 (W-1)/W of buf, REDUCE_SCATTER and GATHER
 * (W-1)/W of all parts, BROADCAST all of buf. */
size_t comm_bytes(const CommCall *, int world);
const char *comm_kind_name(CommKind); /* "reduce-scatter" */
