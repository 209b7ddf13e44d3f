/* kv.h: the functions with which a mixer declares keys and values and attends to the cached history, in its passes. A
 * Slot is opaque here: a mixer cannot read lengths, pages or past decisions. */
#pragma once
#include "ops/ops.h"

typedef struct Slot Slot;

/* Declare the K/V of N rows of shape s (or their gradients): k (N,lanes,kdim), v (N,lanes,vdim), bias (N,lanes). */
void kv_fields(const KvShape *s, int N, Kv *kv, Fields *);
/* The same, with the parts that only a cache needs: evicted, carry. */
void kv_pass_fields(const KvShape *s, int N, Kv *kv, Fields *);
/* The rows of kv that the owner writes, those of Run.in: a view. All of them, but where ranks divide the pass. */
Kv kv_made(const Run *, const Kv *kv);
/* The owner of the rows must call this after writing k and v (kv_made) and before attention: it rounds them as the
 * cache will store them (KvShape.codec), so a row looks the same to its own pass and to later ones. Where ranks divide
 * the pass the rows of the others come to kv. */
void kv_settle(Run *, Kv *);
/* Queries that meet the keys of kv become what those of a codec that rotates keys need: after their own rotation by
 * position, before attention. */
void kv_turn_queries(Run *, const Kv *, Tensor q);
/* Attention of q over the history that the slot had before this pass, whose own rows are `pass`: see
 * Ops.attend_lanes. */
void kv_attend(Run *, const Slot *, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec, bool merge);
/* The queries of Run.out that a policy will select by when the slot is attended to next are known: pages that they
 * select are read ahead, where the slot's rows lie in a slower tier. */
void kv_expect(Run *, const Slot *, Tensor q, AttnSpec);
/* A mixer calls this when its attention is complete, with the queries q (r->out.n, heads, kdim) as its scores used
 * them, the lse of all rows that they saw, and the scale of the scores. Keeps those that a policy asks for (Run.probe);
 * else nothing. */
void kv_probe(Run *, Tensor q, Tensor lse, AttnSpec);
/* (nseq, state): the states, indexed by Batch.seq. The mixer itself, not the cache, must start a sequence from zero if
 * its document begins in the pass (first[i] = i). */
Tensor kv_state(const Slot *);
/* (nseq, lanes, carry_rows, carry), indexed by Batch.seq: the newest row last. Rows from before the document are
 * undefined. Read only: the next pass finds this pass's Kv.carry. */
Tensor kv_carry(const Slot *);
