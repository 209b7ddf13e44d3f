/* aqua.h: rows that are stored as residuals of what the layer below predicts, for the codec aqua. layers/kv.c settles
 * the rows of a pass by it, attend.c reads those of history. Source: AQUA-KV (arXiv:2501.19392).
 *
 *   key    k' = R (p + H c),  p = W_k R^-1 k'_below + b_k           c: what is stored, in packed codes
 *   value  v' = p + H c,      p = W_v [R^-1 k', v'_below] + b_v     H: Ops.hadamard of a head; R: rotation by position
 *
 * k' and v' are all heads of a row as it is read back; `below` is the slot before in depth that stores rows. The first
 * slot has no row below: p of a key is b_k, p of a value W_v R^-1 k' + b_v. What is predicted from are rows as they are
 * read back, of a pass as of history, and sums have one order (Ops.linear_invariant): so a row has the same bits
 * however a text is cut.
 *
 * With RowCodec.block a query sees the rows of its own block as they were computed, and those of earlier blocks as
 * above. Rows wait in a page as `real`s until it is full; then every slot's becomes a block, which has the codes of its
 * keys and then of its values, row by row: the same codes that the rows would have one by one.
 *
 * History is read from the first slot up. A cache has room for the rows of one slot as `real`s, of all positions, which
 * become those of the next slot in place; attention reads these. */
#pragma once
#include "cache.h"

typedef struct Chain Chain;
/* Slots that predict, of one shape; NULL: there are none. Places and fills its memory; before a pass. */
Chain *chain_make(Slot *slots, int nslots);
void chain_free(Chain *); /* NULL: nothing */
void chain_place(Chain *, Arena *);
void chain_clear(Chain *);
void chain_begin(Chain *);
/* The rows of a slot that the pass's queries see, as `real`s, until the next call. Takes scratch while measuring. */
const Lanes *chain_lanes(Run *, const Slot *);
/* After kv_end: rows that fill a page become a block, of a codec that has blocks. Takes scratch while measuring. */
void chain_store(Run *, Chain *, const Batch *, const int *accept);
/* Bytes of one sequence's rows in that room. */
size_t chain_bytes(const Chain *, int seq);

/* Rows are stored together, so many at a time (RowCodec.block); 0: each alone. */
void codec_aqua_recent(RowCodec *, int rows);
/* The rows of a pass become coefficients, or residuals (Kv.coef). Where they wait for a block they do not yet. */
static inline bool basis_settles(const KvShape *s) { return s->basis && !rows_together(s); }
/* The pass's rows k and v become what the codec leaves of them; Kv.coef what is stored, Run.below the rows. Slots must
 * be settled in their order. */
void aqua_settle(Run *, const Kv *made);
/* What the codec leaves of a residual x of `width` elements; `code`: what is stored of it. */
void aqua_recode(const RowCodec *, real *x, real *code, int width);
/* Bytes of a token's rows as `real`s, over all lanes, in the room that a cache of such rows has once; 0: it has none.
 */
static inline size_t aqua_token_bytes(const KvShape *s) {
    return basis_predicts(s->basis) ? (size_t)s->lanes * (size_t)(s->kdim + s->vdim) * sizeof(real) : 0;
}
