/* comm_mpi_so.h: the interface between comm_mpi.c and the shared object that includes MPI: a table with the name
 * comm_mpi_table. It has no type of MPI, and all functions return 0 or an error number that `text` explains. */
#pragma once
#include <stddef.h>

enum { COMM_MPI_TABLE = 1 };
typedef struct {
    int version; /* COMM_MPI_TABLE */
    int (*open)(int *rank, int *world);
    /* Begin an exchange; one at a time. all_to_all: sends bytes[q] from send + at[q] to rank q and receives
     * recv_bytes[q] from it at recv + recv_at[q]. gather: `mine` bytes to all. broadcast: bytes from root. */
    int (*all_to_all)(const void *send, const int *bytes, const int *at, void *recv, const int *recv_bytes,
                      const int *recv_at);
    int (*gather)(const void *send, int mine, void *recv, const int *recv_bytes, const int *recv_at);
    int (*broadcast)(void *buf, int bytes, int root);
    int (*barrier)(void);
    int (*test)(int *done); /* of the current exchange */
    /* Send `bytes` (at most 128) to all ranks and receive from all that answer: `heard[q]` becomes 1, and the bytes of
     * rank q are at said + 128 q. The caller repeats it until enough have answered; the first call sends. */
    int (*roll_call)(const void *mine, int bytes, char *said, char *heard);
    void (*text)(int error, char out[200]);
    void (*abort)(int status);
    void (*close)(void);
} CommMpiTable;
