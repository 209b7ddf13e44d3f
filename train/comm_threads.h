/* comm_threads.h: W ranks in one process, a thread each: what several processes do, where a test can see all of them
 * and break any of them.
 *
 * Sums are taken in the order of ranks. The work of a call is done when its rank waits for it, so that a buffer touched
 * too early shows. Names, kinds, counts, types and roots of all ranks' calls are compared: a difference fails on every
 * rank, with both calls in the line. */
#pragma once
#include "comm.h"

enum { COMM_THREADS_MAX = 64 };
typedef enum {
    FAULT_DELAY,   /* the call begins `seconds` late */
    FAULT_DIE,     /* the rank's call fails at once, and the others hear nothing */
    FAULT_HANG,    /* the rank comes back when all others have given up */
    FAULT_CORRUPT, /* a bit of this rank's buffer is another when the call is done */
} CommFaultKind;
typedef struct {
    CommFaultKind kind;
    int rank;
    uint64_t call; /* the rank's Comm.calls: 1 is its first */
    double seconds;
    size_t bit; /* number in the buffer, from the lowest of its first byte; beyond the buffer: modulo its size */
} CommFault;

/* One rank's part, in a thread of its own. When it returns false the rank is gone: others go on until they miss it, as
 * they would a process that was killed; to tell them it calls comm_stop. */
typedef bool CommRank(Comm *, void *ctx, Err *);
/* All ranks to their ends: true when every one returned true; err (world), each rank's own. EXIT_WORLD in err[0] where
 * threads cannot be had. */
bool comm_threads_run(int world, double deadline, const CommFault *, int faults, CommRank *, void *ctx, Err *err);
