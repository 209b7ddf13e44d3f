/* comm_nccl.h: the transport `nccl` of comm.h: collectives between ranks with a GPU each. ranks_open opens it.
 *
 * The library is opened on demand: a program needs neither it nor its header to be built. comm_stream_library's name is
 * looked for next to the program, in ../lib/kvsmith/ of that, in the loader's paths, in $CUDA_HOME/lib64 and in
 * /usr/local/cuda/lib64; Comm.note has the path that was found and its version (2.17 or later).
 *
 * A call on GPU memory (CommCall.at) goes into a queue of its own after everything computed so far, and runs at the
 * same time as later computations; at most two are active. A call on host memory goes through the GPU and is complete
 * when it returns. Communicators are non-blocking: the host polls the call and NCCL's own state until the deadline;
 * then, or if NCCL has failed, it aborts the communicator. NCCL does not report which rank is missing. A thread watches
 * that this rank itself does not hang in the library or the driver: after twice the deadline it prints the line and
 * ends the process with EXIT_RUNTIME.
 *
 * Sums are NCCL's: their order depends on the machine's links, and BF16 is rounded at every hop. A single rank uses the
 * library, too. Source: NCCL's user guide, "Fault Tolerance" and "In-place Operations"; nccl.h 2.28. */
#pragma once
#include "comm.h"

enum { NCCL_ID = 128 };
typedef struct {
    int rank, world, local, locals;
    double deadline;
    /* Sends rank 0's n bytes to all. Not called for a single rank. */
    bool (*share)(void *ctx, void *bytes, size_t n, Err *);
    void *ctx;
} CommNcclOpen;
/* Makes the device with index `local` this thread's. EXIT_RUNTIME: no such device, no library, or no communicator
 * within the deadline. */
bool comm_nccl_open(const CommNcclOpen *, Comm **, Err *);
