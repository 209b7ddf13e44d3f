/* comm_mpi_so.h: what comm_mpi.c asks of the shared object that knows MPI: a table found by the name comm_mpi_table. No
 * type of MPI appears, and all functions return 0 or an error number that `text` explains. */
#pragma once
#include <stddef.h>

enum { COMM_MPI_TABLE = 1 };
typedef struct {
    int version; /* COMM_MPI_TABLE */
    int (*open)(int *rank, int *world);
    /* Begin an exchange; one at a time. all_to_all: bytes[q] from send + at[q] to rank q, as many as each sends arrive
     * at recv + recv_at[q] (recv_bytes[q]). gather: `mine` bytes to all. broadcast: bytes from root. */
    int (*all_to_all)(const void *send, const int *bytes, const int *at, void *recv, const int *recv_bytes,
                      const int *recv_at);
    int (*gather)(const void *send, int mine, void *recv, const int *recv_bytes, const int *recv_at);
    int (*broadcast)(void *buf, int bytes, int root);
    int (*barrier)(void);
    int (*test)(int *done); /* of the exchange under way */
    /* Tell all ranks `bytes` (at most 128), hear from as many as answer; `heard[q]` becomes 1, what they said stands at
     * said + 128 q. Called again and again until enough have answered; the first call sends. */
    int (*roll_call)(const void *mine, int bytes, char *said, char *heard);
    void (*text)(int error, char out[200]);
    void (*abort)(int status);
    void (*close)(void);
} CommMpiTable;
