/* saved.h: what the cache holds of one sequence, as named parts that a file can keep (infer/saved.h writes them).
 *
 * Part "slot.I.NAME" is of slot I; R is the number of resident rows of all its lanes, lane by lane, in each first the
 * sinks that a window has left behind and then the others; A that of rows outside of blocks:
 *
 *   NAME        dtype     elements            of slots with
 *   lanes       I32       lanes, 4            lanes: s0, lo, hi, tail of each (ops/run.h), s0 as in the first page
 *   pos         I32       R                   lanes: positions
 *   keys        U8        A, key_bytes        lanes: keys as the codec stored them
 *   values      U8        A, value_bytes      lanes, unless values are part of keys
 *   blocks      U8        blocks, block_bytes lanes of a codec that stores rows together
 *   evicted     U8        R                   a mixer that evicts
 *   score, kept real      R                   a policy that keeps them
 *   asked       real      queries,heads,kdim  a policy that asks queries
 *   asked_lse   real      queries, heads      the same
 *   state       real      state               a recurrence
 *   carry       real      lanes,rows,width    rows that are carried on
 *
 * and "cache" (I32, 2): the length at which a policy that asks all queries did so last, and the position from which
 * queries select what they read. real is F32, F64 in a build in double. A part without elements and what follows
 * from other parts are not kept. */
#pragma once
#include "cache.h"

typedef struct {
    char name[48];
    const char *dtype;
    size_t n, bytes; /* elements, bytes in all */
    const void *p;   /* not aligned */
} KvPart;
typedef struct {
    int n, cap;
    KvPart *part;
} KvParts;

/* The parts of sequence seq, which is not empty. False (EXIT_RUNTIME): a disk that rows are on has failed. */
bool kv_save(const Cache *, int seq, KvParts *, Err *);
void kv_parts_free(KvParts *);
/* Sequence seq becomes what the parts say, a document of `length` tokens with the same rows in the same places of
 * pages of the same size. `parts` may hold others than "slot.*". False (EXIT_INPUT): a part is missing, has another
 * size or dtype, is of no slot, or says what no sequence of this cache could be; then nothing has changed. False
 * (EXIT_RUNTIME): a disk that rows are on has failed. */
bool kv_restore(Cache *, int seq, int length, const KvParts *, Err *);
