/* comm.h: a Comm is the group of a run's ranks, with the collectives between them. Data-parallel training (train/dist)
 * and `bench comm` call it; ranks_open (ranks.h) opens it. There is one table of functions per transport:
 *
 *   threads  W ranks in one process, a thread each (comm_threads.h): for tests, with delays, failures and corruption
 *   shm      W processes of one machine, over shared memory (comm_shm.h)
 *   mpi      W processes of any machines (comm_mpi.h)
 *   nccl     W processes with a GPU each (comm_nccl.h)
 *
 * Every rank must make the same calls in the same order. Each call has a number (Comm.calls) and a name, and the ranks'
 * calls are compared if the transport can. `threads` and `shm` take a sum in the order of ranks, ((x0 + x1) + x2) +
 * ..., whatever its length; the others promise 1e-6 norm-wise.
 *
 * A call that cannot finish fails with EXIT_RUNTIME within Comm.deadline seconds. Its line names this rank and host,
 * the collective, its number, and the missing rank if it is known. After a failure a Comm can only be closed. */
#pragma once
#include "ops/tensor.h"

typedef struct Comm Comm;
typedef enum { COMM_REDUCE, COMM_REDUCE_SCATTER, COMM_GATHER, COMM_BROADCAST, COMM_BARRIER } CommKind;
typedef struct {
    CommKind kind;
    const char *name; /* "gradients of layer 3": for logs and errors */
    void *buf;
    size_t count;      /* elements: of all of buf (REDUCE, BROADCAST), of one rank's part (REDUCE_SCATTER, GATHER) */
    Dtype dtype;       /* F64, F32 or BF16; sums of BF16 are computed in f32 and rounded once */
    int root;          /* of a BROADCAST */
    struct Device *at; /* the device whose memory buf is in; NULL: host memory. Only nccl supports devices */
} CommCall;
/* In place. REDUCE: buf becomes the sum. REDUCE_SCATTER: buf has world parts, part `rank` becomes its sum, the others
 * are scratch. GATHER: the caller gives part `rank`, and all parts are filled in. */
typedef struct {
    const char *name;
    /* Begin; buf belongs to the call until the wait. May do all of the work at once. */
    bool (*start)(Comm *, const CommCall *, Err *);
    /* Wait until all calls that were begun are complete. */
    bool (*wait)(Comm *, Err *);
    void (*stop)(
        Comm *); /* make other ranks' calls fail now, not at their deadline: call before a rank exits with an error */
    void (*close)(Comm *);
} CommOps;
struct Comm {
    const CommOps *ops;
    int rank, world;
    int local, locals;        /* rank among those of this host, their number */
    bool device;              /* calls may name a device, and a single rank makes them, too */
    char host[64], note[160]; /* note: what else the log should print about the transport */
    double deadline;          /* seconds */
    uint64_t calls;           /* begun so far */
    uint64_t log; /* hash of kind, name, count, dtype and root of all of them, in order: equal on every rank */
    size_t sent;  /* bytes that this rank sent, counted for a ring: see comm_bytes */
    bool agreed;  /* the run ends by a failure with the same line on every rank (dist_all): rank 0 prints it */
    void *ctx;    /* the transport's */
};

/* True if ranks have to communicate: there are several, or one that is made to. NULL: false. */
static inline bool comm_live(const Comm *c) { return c && (c->world > 1 || c->device); }
/* Begin and wait. Does nothing if the comm is not live. */
bool comm_do(Comm *, CommCall, Err *);
bool comm_start(Comm *, CommCall, Err *);
bool comm_wait(Comm *, Err *);
bool comm_barrier(Comm *, const char *name, Err *);
void comm_stop(Comm *);
void comm_close(Comm *);
/* Bytes that each rank sends in a call, counted for a ring: REDUCE 2 (W-1)/W of buf, REDUCE_SCATTER and GATHER (W-1)/W
 * of all parts, BROADCAST all of buf. */
size_t comm_bytes(const CommCall *, int world);
const char *comm_kind_name(CommKind); /* "reduce-scatter" */
