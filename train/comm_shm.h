/* comm_shm.h: collectives between processes of one machine, over memory that they share.
 *
 * The memory is a file without a name (memfd), inherited or handed over; nothing of it is left when the last rank ends,
 * however it ends. A collective goes by chunks that fit the caches; while a chunk is summed up, each rank its own
 * piece, the next is put in. A rank waits by spinning a little, then by a futex, and looks every 50 ms whether those
 * that it waits for live: one that was killed is named at once, one that is stopped or hangs when no chunk has come for
 * Comm.deadline seconds. The first rank that fails says for all who is to blame. */
#pragma once
#include "comm.h"

/* A descriptor of memory for `world` ranks, closed on exec. EXIT_WORLD when there is not enough. */
bool comm_shm_make(int world, int *fd, Err *);
/* Take the place of `rank` in it and wait until all have; fd is closed. Blocks up to the deadline. */
bool comm_shm_open(int fd, int rank, int world, double deadline, Comm **, Err *);
/* For who started the ranks: rank `rank` has ended before its time. Ranks that wait for it, or will, fail now. */
void comm_shm_ended(int fd, int rank);
/* The rank that is to blame for a failure in the memory at fd, -1: there was none (or it is no such memory). */
int comm_shm_lost(int fd);
/* State letter of a process as /proc tells it ('T' stopped, 'Z' ended and not waited for); '-': there is none. */
char comm_shm_process(int pid);
