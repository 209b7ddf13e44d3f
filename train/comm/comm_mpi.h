/* comm_mpi.h: the transport `mpi` of comm.h: collectives between processes of any machines. ranks_open opens it.
 *
 * MPI itself is in a small shared object (comm_mpi_so.c, built if MPI's development files are installed) that is opened
 * on demand: a program that never uses it needs no MPI. All calls are non-blocking and polled, so a rank that hangs is
 * noticed after Comm.deadline seconds; the ranks that notice it tell each other, and the silent rank is named. After
 * comm_stop or a failure, comm_close ends this process and all ranks of the job (MPI_Abort, status 1), so print first.
 * Sums are taken in the order of ranks: each rank receives all ranks' pieces of its part, adds them and sends the sum,
 * which costs as many bytes as a ring. */
#pragma once
#include "comm.h"

/* MPI_Init_thread and a communicator of this run. EXIT_RUNTIME: no shared object, or MPI reports another rank or
 * size. */
bool comm_mpi_open(int rank, int world, int local, int locals, double deadline, Comm **, Err *);
