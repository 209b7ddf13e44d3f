/* comm_pieces.h: a collective cut into chunks that fit a staging memory, each chunk into a piece per rank; and sums in
 * the order of ranks. What comm_shm and comm_mpi share.
 *
 * In each chunk a rank gives every other rank's piece away (`in`), takes its own piece of every other rank and sums
 * them up, and the result goes to all (`out`). REDUCE has both halves, REDUCE_SCATTER the first, GATHER and BROADCAST
 * the second; a BARRIER is one chunk of nothing. */
#pragma once
#include "comm.h"

typedef struct {
    CommCall call;
    int world;
    size_t size, room; /* bytes of a number; numbers that a chunk of all pieces may have */
    bool in, out;
    size_t chunks;
} Pieces;
/* room: bytes of the staging memory for one chunk, at least 64 * world. */
Pieces pieces_of(const CommCall *, int world, size_t room);
/* Piece of rank p in chunk k: `at` numbers from the beginning of buf, n numbers (0: nothing), and where it lies in the
 * chunk's staging memory, in bytes. */
typedef struct {
    char *p;
    size_t at, n, bytes, stage;
} Piece;
Piece piece(const Pieces *, size_t k, int p);

/* dst = ((src[0] + src[1]) + src[2]) + ..., n numbers; BF16 in f32, rounded once, to even. dst may be one of src. */
void comm_sum(void *dst, const void *const src[], int world, size_t n, Dtype);
