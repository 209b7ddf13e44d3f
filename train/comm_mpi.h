/* comm_mpi.h: collectives between processes of any machines, by MPI.
 *
 * MPI itself is behind a small shared object (comm_mpi_so.c, built where MPI's development files are), opened when it
 * is asked for: a program that never does needs no MPI. All calls are non-blocking and polled, so that a rank that
 * hangs is noticed after Comm.deadline seconds; those that notice tell each other, and who was not heard of is named.
 * After comm_stop or a failure comm_close ends this process and all ranks of the job (MPI_Abort, status 1): print
 * first. Sums are taken in the order of ranks: each rank is sent all ranks'
 * pieces of its part, adds them up itself and sends the sum, which costs what a ring costs in bytes. */
#pragma once
#include "comm.h"

/* MPI_Init_thread and a communicator of this run. EXIT_WORLD: no shared object, or MPI says another rank or size. */
bool comm_mpi_open(int rank, int world, int local, int locals, double deadline, Comm **, Err *);
