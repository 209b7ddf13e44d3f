/* comm_pieces.h: cuts a collective into chunks that fit a staging memory, and each chunk into a piece per rank; also
 * sums in the order of ranks. comm_shm and comm_mpi use it.
 *
 * In each chunk a rank gives away every other rank's piece (`in`), receives its own piece from every other rank and
 * sums them, and the result goes to all (`out`). REDUCE has both halves, REDUCE_SCATTER the first, GATHER and BROADCAST
 * the second; a BARRIER is one empty chunk. */
#pragma once
#include "comm.h"

typedef struct {
    CommCall call;
    int world;
    size_t size, room; /* bytes of an element; elements that a chunk of all pieces may have */
    bool in, out;
    size_t chunks;
} Pieces;
/* room: bytes of the staging memory for one chunk, at least 64 * world. */
Pieces pieces_of(const CommCall *, int world, size_t room);
/* Piece of rank p in chunk k: n elements from element `at` of buf (0: nothing), and its offset in the chunk's staging
 * memory, in bytes. */
typedef struct {
    char *p;
    size_t at, n, bytes, stage;
} Piece;
Piece piece(const Pieces *, size_t k, int p);

/* dst = ((src[0] + src[1]) + src[2]) + ..., n elements; BF16 in f32, rounded once, to even. dst may be one of src. */
void comm_sum(void *dst, const void *const src[], int world, size_t n, Dtype);
