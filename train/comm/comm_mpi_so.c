/* comm_mpi_so.c: the only file that includes mpi.h; built as kvsmith-mpi.so, see comm_mpi_so.h. */
#include "comm_mpi_so.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 7717, SAID = 128 };
/* A process has one MPI; what belongs to it is here. */
static struct {
    MPI_Comm comm;
    MPI_Request request;
    MPI_Request *rolls; /* receives, then sends */
    int rank, world;
} mpi;

static int mpi_open(int *rank, int *world) {
    int given, error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given);
    if (!error) error = MPI_Comm_dup(MPI_COMM_WORLD, &mpi.comm);
    if (!error) error = MPI_Comm_set_errhandler(mpi.comm, MPI_ERRORS_RETURN);
    if (!error) error = MPI_Comm_rank(mpi.comm, &mpi.rank);
    if (!error) error = MPI_Comm_size(mpi.comm, &mpi.world);
    *rank = mpi.rank;
    *world = mpi.world;
    return error;
}
static int mpi_all_to_all(const void *send, const int *bytes, const int *at, void *recv, const int *recv_bytes,
                          const int *recv_at) {
    return MPI_Ialltoallv(send, bytes, at, MPI_BYTE, recv, recv_bytes, recv_at, MPI_BYTE, mpi.comm, &mpi.request);
}
static int mpi_gather(const void *send, int mine, void *recv, const int *recv_bytes, const int *recv_at) {
    return MPI_Iallgatherv(send, mine, MPI_BYTE, recv, recv_bytes, recv_at, MPI_BYTE, mpi.comm, &mpi.request);
}
static int mpi_broadcast(void *buf, int bytes, int root) {
    return MPI_Ibcast(buf, bytes, MPI_BYTE, root, mpi.comm, &mpi.request);
}
static int mpi_barrier(void) { return MPI_Ibarrier(mpi.comm, &mpi.request); }
static int mpi_test(int *done) { return MPI_Test(&mpi.request, done, MPI_STATUS_IGNORE); }

static int mpi_roll_call(const void *mine, int bytes, char *said, char *heard) {
    int W = mpi.world, error = 0;
    if (!mpi.rolls) {
        mpi.rolls = malloc(2 * (size_t)W * sizeof *mpi.rolls);
        if (!mpi.rolls) return MPI_ERR_NO_MEM;
        for (int q = 0; q < 2 * W; q++) mpi.rolls[q] = MPI_REQUEST_NULL;
        for (int q = 0; q < W && !error; q++) {
            if (q == mpi.rank) continue;
            error = MPI_Irecv(said + SAID * q, SAID, MPI_BYTE, q, TAG, mpi.comm, &mpi.rolls[q]);
            if (!error) error = MPI_Isend(mine, bytes, MPI_BYTE, q, TAG, mpi.comm, &mpi.rolls[W + q]);
        }
    }
    for (int q = 0; q < W && !error; q++) {
        int done = 0;
        if (q == mpi.rank || heard[q]) continue;
        error = MPI_Test(&mpi.rolls[q], &done, MPI_STATUS_IGNORE);
        heard[q] = (char)done;
    }
    return error;
}
static void mpi_text(int error, char out[200]) {
    char all[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (MPI_Error_string(error, all, &n)) n = 0;
    if (n > 199) n = 199;
    memcpy(out, all, (size_t)n);
    out[n] = 0;
}
static void mpi_abort(int status) { MPI_Abort(MPI_COMM_WORLD, status); }
static void mpi_close(void) {
    MPI_Comm_free(&mpi.comm);
    MPI_Finalize();
}

const CommMpiTable comm_mpi_table = {COMM_MPI_TABLE, mpi_open,    mpi_all_to_all, mpi_gather,
                                     mpi_broadcast,  mpi_barrier, mpi_test,       mpi_roll_call,
                                     mpi_text,       mpi_abort,   mpi_close};
