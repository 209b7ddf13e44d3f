/* comm_threads.h: the transport `threads` of comm.h: W ranks in one process, a thread each. Tests use it to do what
 * several processes do, with all ranks in sight and with planted faults.
 *
 * Sums are taken in the order of ranks. A call does its work when its rank waits for it, so a buffer touched too early
 * shows. Names, kinds, counts, types and roots of all ranks' calls are compared: a difference fails on every rank, with
 * both calls in the line. */
#pragma once
#include "comm.h"

enum { COMM_THREADS_MAX = 64 };
typedef enum {
    FAULT_DELAY,   /* the call begins `seconds` late */
    FAULT_DIE,     /* the rank's call fails at once, and the others are not informed */
    FAULT_HANG,    /* the rank returns when all others have given up */
    FAULT_CORRUPT, /* one bit of this rank's buffer is flipped when the call is done */
} CommFaultKind;
typedef struct {
    CommFaultKind kind;
    int rank;
    uint64_t call; /* the rank's Comm.calls: 1 is its first */
    double seconds;
    size_t bit; /* bit in the buffer, from the lowest of its first byte; beyond the buffer: modulo its size */
} CommFault;

/* One rank's part, in a thread of its own. When it returns false the rank is dead: others continue until they miss it,
 * as they would with a killed process; to inform them it calls comm_stop. */
typedef bool CommRank(Comm *, void *ctx, Err *);
/* Runs all ranks to their ends: true if every one returned true; err (world) has each rank's own. EXIT_RUNTIME in
 * err[0] if threads cannot be started. */
bool comm_threads_run(int world, double deadline, const CommFault *, int faults, CommRank *, void *ctx, Err *err);
