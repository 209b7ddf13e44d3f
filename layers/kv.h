/* kv.h: what a mixer may ask about keys and values. A Slot is opaque here: no length, page or past decision can be
 * read. */
#pragma once
#include "../ops/ops.h"

typedef struct Slot Slot;

/* Declare the K/V of N rows of shape s (or their gradients): k (N,lanes,kdim), v (N,lanes,vdim), bias (N,lanes). */
void kv_fields(const KvShape *s, int N, Kv *kv, Fields *);
/* The same and what only a cache asks for: gone, carry. */
void kv_pass_fields(const KvShape *s, int N, Kv *kv, Fields *);
/* What the owner of the rows does when k and v are written and before anyone attends to them: where the cache is narrow
 * they become what it will hold, so that a row looks the same to its own pass and to later ones. */
void kv_settle(Run *, Kv *);
/* Attention of q over the history that the slot held before this pass, whose own rows are `pass`: see
 * Ops.attend_lanes. */
void kv_attend(Run *, const Slot *, const Kv *pass, Tensor o, Tensor lse, Tensor q, Look, bool merge);
/* (nseq, state): the state blobs, indexed by Batch.seq. A sequence whose document begins in the pass starts from zero
 * by the mixer's own doing (first[i] = i), never by the cache's. */
Tensor kv_state(const Slot *);
/* (nseq, lanes, carry_rows, carry), indexed by Batch.seq: the newest row last. Rows from before the document hold
 * anything. Read only: the next pass finds what this one's Kv.carry says. */
Tensor kv_carry(const Slot *);
