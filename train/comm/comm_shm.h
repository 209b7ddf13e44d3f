/* comm_shm.h: the transport `shm` of comm.h: collectives between processes of one machine, over shared memory. `launch`
 * makes the memory, ranks_open joins it.
 *
 * The memory is a file without a name (memfd), inherited or passed on; nothing of it is left when the last rank ends,
 * however it ends. A collective works in chunks that fit the caches; while each rank sums its piece of a chunk, the
 * next chunk is copied in. A rank waits by spinning briefly, then by a futex, and checks every 50 ms whether the ranks
 * it waits for live: a killed rank is named at once, a stopped or hanging one when no chunk has come for Comm.deadline
 * seconds. The first rank that fails names the rank to blame for all. */
#pragma once
#include "comm.h"

/* A descriptor of memory for `world` ranks, closed on exec. EXIT_RUNTIME when there is not enough. */
bool comm_shm_make(int world, int *fd, Err *);
/* Join it as rank `rank` and wait until all have joined; closes fd. Blocks up to the deadline. */
bool comm_shm_open(int fd, int rank, int world, double deadline, Comm **, Err *);
/* For the process that started the ranks: rank `rank` exited early. Ranks that wait for it, now or later, fail at
 * once. */
void comm_shm_ended(int fd, int rank);
/* The rank to blame for a failure in the memory at fd, -1: there was none (or it is no such memory). */
int comm_shm_lost(int fd);
/* State letter of a process in /proc ('T' stopped, 'Z' exited and not waited for); '-': no such process. */
char comm_shm_process(int pid);
