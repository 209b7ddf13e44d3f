/* row_ranks.h: the rows of a sequence divided among ranks, processes that run the same passes over the same model. The
 * caller of kv_open_ranks gives a KvRanks; the cache and the model's extend call the rest. docs/cache-ranks.md says
 * what it is for.
 *
 * - Rank p mod `world` holds the row of position p, in every slot whose rows all stay. Slots with a window, and states,
 *   are whole on every rank.
 * - A pass attends to the rows that the rank holds, then gathers all ranks' partial outputs with their log-sum-exps and
 *   merges them in the order of ranks, so every rank has the same bits. The pass's own rows are added once, after that.
 * - With `prompts` a pass of many rows is divided, too: each rank computes a contiguous part of its rows. Layers gather
 *   the keys and values that the others made, and the queries that are to meet the rows each rank holds.
 * - Every rank must feed the same tokens in the same passes. A gather compares what was fed so far.
 * - A gather that fails is noted: the pass runs to its end and then fails (kv_sound). */
#pragma once
#include "ops/run.h"

enum { ROW_RANKS_LEAST = 8 }; /* rows for each rank: passes with fewer are not divided */
typedef struct {
    int rank, world;
    bool prompts; /* passes of ROW_RANKS_LEAST rows a rank and more are divided */
    /* Fills buf, `world` parts of `count` reals: the caller gives part `rank`. Every rank makes the same calls in the
     * same order. `name` is for errors. */
    bool (*gather)(void *ctx, const char *name, real *buf, size_t count, Err *);
    void *ctx;
} KvRanks;
/* Whether the rank holds the row of a position; how many rows of a document of n tokens it holds. */
static inline bool row_ranks_hold(const KvRanks *k, int pos) { return pos % k->world == k->rank; }
static inline int row_ranks_held(const KvRanks *k, int n) { return (n + k->world - 1 - k->rank) / k->world; }

/* The cache's part in it. */
typedef struct RowRanks {
    KvRanks of;
    uint64_t fed; /* hash of all tokens so far, with their sequences and positions */
    bool failed;
    Err why;
    /* Of the pass that runs, if it is divided: rank w makes rows at[w]..at[w+1]-1 of the batch. Of the layer that runs
     * `out` are the rows that continue, on all ranks, of which rank w has numbers out_at[w]..out_at[w+1]-1. */
    int *at, *out_at; /* (world+1) */
    RowList out;
    double row;   /* the model's (model/divide.h): FLOPs of a row besides attention, */
    double *cost; /* (rows of a pass + 1) and what the rows before each cost together */
} RowRanks;
RowRanks *row_ranks_open(const KvRanks *, int max_rows);
void row_ranks_close(RowRanks *); /* NULL: nothing */
/* Tokens that a pass feeds. */
void row_ranks_feed(RowRanks *, const Batch *, const int *tok);
bool row_ranks_sound(const RowRanks *, Err *);
/* Whether a pass of N rows is divided. Then row_ranks_divide cuts it by RowRanks.cost: rank w's part begins at the
 * first row before which there is w/world of the cost of all, but every rank has a row. */
bool row_ranks_divides(const RowRanks *, int N);
void row_ranks_divide(RowRanks *, int N);

/* Ops.attend_lanes over the rows of all ranks. */
void row_ranks_attend(Run *, RowRanks *, const Lanes *, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec);

/* ---- of passes that are divided (Run.share) ----------------------------------------------------------------------*/

/* The rank's own of these rows, which continue; `all` must stay until the layer has run. */
RowList row_ranks_out(const Run *, RowList all);
/* A view of the rows of the pass that this rank makes. */
Kv row_ranks_made(const Run *, const Kv *);
/* The others' rows come to kv. */
void row_ranks_rows(Run *, const Kv *);
/* x (Run.out.n, d): the same of all rows that continued, in scratch. */
Tensor row_ranks_join(Run *, Tensor x);
