/* comm_nccl.h: collectives between ranks with a device each, by NCCL.
 *
 * The library is opened when it is asked for: a program needs neither it nor its header to be built. The name of
 * side_library is looked for beside the program, in ../lib/kvsmith/ of that, where the loader looks, in
 * $CUDA_HOME/lib64 and in /usr/local/cuda/lib64; Comm.note says which one was found, and its version (2.17 or later).
 *
 * A call on a device's memory (CommCall.at) goes into a queue of its own behind what was computed so far, and runs
 * beside what is computed next; at most two are under way. A call on the host's memory goes through the device and is
 * over when it returns. Communicators are non-blocking: the host looks whether a call has ended, and at NCCL's own
 * state, until the deadline; then, or when NCCL has failed, the communicator is aborted. NCCL does not tell which rank
 * is missing. A thread watches that this rank itself does not hang inside of the library or the driver: after twice the
 * deadline it prints the line and ends the process with EXIT_WORLD.
 *
 * Sums are NCCL's: their order depends on the machine's links; of BF16 they are rounded at every hop. One rank alone
 * goes through the library, too. Source: NCCL's user guide, "Fault Tolerance" and "In-place Operations"; nccl.h 2.28.
 */
#pragma once
#include "comm.h"

enum { NCCL_ID = 128 };
typedef struct {
    int rank, world, local, locals;
    double deadline;
    /* Rank 0's n bytes to all. Not asked where there is one rank. */
    bool (*share)(void *ctx, void *bytes, size_t n, Err *);
    void *ctx;
} CommNcclOpen;
/* The device of number `local` becomes this thread's. EXIT_WORLD: no such device, no library, or no communicator within
 * the deadline. */
bool comm_nccl_open(const CommNcclOpen *, Comm **, Err *);
