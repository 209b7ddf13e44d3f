/* ranks.h: the rows of a sequence divided among ranks, processes that run the same passes over the same model. The
 * caller of kv_open_ranks gives a KvRanks; the cache's files call the rest. docs/ranks.md says what it is for.
 *
 * - Rank p mod `world` holds the row of position p, in every slot whose rows all stay. Slots with a window, and states,
 *   are whole on every rank.
 * - A pass attends to the rows that the rank holds, then gathers all ranks' partial outputs with their log-sum-exps and
 *   merges them in the order of ranks, so every rank has the same bits. The pass's own rows are added once, after that.
 * - Every rank must feed the same tokens in the same passes. A gather compares what was fed so far.
 * - A gather that fails is noted: the pass runs to its end and then fails (kv_sound). */
#pragma once
#include "ops/run.h"

typedef struct {
    int rank, world;
    /* Fills buf, `world` parts of `count` reals: the caller gives part `rank`. Every rank makes the same calls in the
     * same order. `name` is for errors. */
    bool (*gather)(void *ctx, const char *name, real *buf, size_t count, Err *);
    void *ctx;
} KvRanks;
/* Whether the rank holds the row of a position; how many rows of a document of n tokens it holds. */
static inline bool ranks_hold(const KvRanks *k, int pos) { return pos % k->world == k->rank; }
static inline int ranks_held(const KvRanks *k, int n) { return (n + k->world - 1 - k->rank) / k->world; }

typedef struct Slot Slot;
typedef struct {
    KvRanks of;
    uint64_t fed; /* hash of all tokens so far, with their sequences and positions */
    bool failed;
    Err why;
} RowRanks;
/* Tokens that a pass feeds. */
void ranks_feed(RowRanks *, const Batch *, const int *tok);
/* Ops.attend_lanes over the rows of all ranks. */
void ranks_attend(Run *, const Slot *, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec);
bool ranks_sound(const RowRanks *, Err *);
