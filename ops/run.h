/* run.h: the nouns of a pass: its rows, the rows of keys and values it makes, and everything an op may need.
 *
 * A training step, a prefill, a chunk of one, a verification and a decoding step are all passes: N rows (tokens) of B
 * sequences, packed one after the other. No padding exists. */
#pragma once
#include "arena.h"

typedef struct {
    int B, N;
    const int *off;   /* (B+1) first row of each sequence; off[B] = N */
    const int *seq;   /* (B) the cache's number of each sequence; unused in training */
    const int *of;    /* (N) the sequence that the row belongs to, 0..B-1 */
    const int *pos;   /* (N) position of the row in its document, from 0 */
    const int *first; /* (N) the row of this pass at which the row's document begins, or -1: in an earlier pass, so that
                         the row continues the cached history of its sequence */
    const uint64_t *id; /* (B) global number of the sample: keys all noise */
    bool history;       /* some first is -1; otherwise no cache is read */
} Batch;

typedef struct {
    int n;
    const int *idx; /* rows of the batch, ascending */
} Pick;

/* What a layer keeps per token. One shape for the K/V of a pass, its gradient, and the lanes of the cache. */
typedef struct {
    int lanes, kdim, vdim; /* rows per token: `lanes` of kdim + vdim numbers; lanes 0: none */
    bool alias;            /* the value of a row is the first vdim numbers of its key (MLA's latent): stored once */
    bool narrow;           /* the cache holds the rows as BF16; states and what is carried are not touched by it */
    int window, sinks; /* retention: rows of age >= window are given back, but for positions < sinks; window 0: all */
    int state;         /* numbers per sequence that are read and written in place (a recurrence's state) */
    bool retire; /* a row may retire its predecessor in the lane, which then stays visible for `delay` positions more */
    int delay;
    int carry, carry_rows; /* per lane: the last carry_rows rows of Kv.carry, what the next pass starts from */
} KvShape;
/* The rows of a pass, or their gradients. bias: the mask of row j, added to the scores of queries more than `delay`
 * positions after it: log(1 - chance that its successor retired it), or 0 and -inf where that is decided. */
typedef struct {
    KvShape s;
    Tensor k, v;  /* (N,lanes,kdim) (N,lanes,vdim), as they are stored (keys rotated); v absent when s.alias */
    Tensor bias;  /* (N,lanes) if s.retire */
    Tensor gone;  /* (N,lanes) if s.retire and for a cache: 1: row j retires its predecessor, 0: it does not */
    Tensor carry; /* (N,lanes,s.carry) for a cache */
} Kv;
/* Numbers of one sequence that are carried from pass to pass. */
static inline size_t carried(const KvShape *s) { return (size_t)s->lanes * (size_t)s->carry_rows * (size_t)s->carry; }
/* Numbers that one row stores. */
static inline int row_width(const KvShape *s) { return s->kdim + (s->alias ? 0 : s->vdim); }
/* Bytes of a number of it in the cache. */
static inline size_t row_number(const KvShape *s) { return s->narrow ? sizeof(uint16_t) : sizeof(real); }
/* The values of lane 0 of the pass's rows; those of the next lane lie *step numbers on, of the next row *ld. */
static inline real *kv_values(const Kv *kv, size_t *step, size_t *ld) {
    *step = (size_t)(kv->s.alias ? kv->s.kdim : kv->s.vdim);
    *ld = *step * (size_t)kv->s.lanes;
    return kv->s.alias ? R(kv->k) : R(kv->v);
}

/* How one reader looks at rows: query head h reads lane h / (heads/lanes). A key j is visible to a query i of the same
 * sequence and document iff j <= i and (window == 0 or pos i - pos j < window or pos j < sinks); a retired one, see
 * KvShape, only while pos i - pos j <= delay. */
typedef struct {
    int heads, window, sinks;
    real scale; /* of the scores, before the softmax */
} Look;

/* The rows of one slot of the cache as the kernels see them. Lane = seq*lanes + h numbers its rows 0,1,2...; row r lies
 * in page table[lane*maxpages + r/P % maxpages] at place r % P. Visible: lo..hi-1, and the sinks
 * s0..min(s0+sinks,lo)-1. A page holds P keys of kdim, then P values of vdim (alias: keys alone). Positions ascend with
 * the rows, but not where rows retire: there a row may lie anywhere. */
typedef struct {
    KvShape s;
    int nseq, P, maxpages, npages;
    int *s0, *lo, *hi; /* (nseq*lanes) */
    int *table;        /* (nseq*lanes, maxpages); -1 = no page */
    int *pos;          /* (npages, P) position of each row in its document */
    bool *gone;        /* (npages, P) retired; NULL unless s.retire */
    int *tail;         /* (nseq*lanes) number of the newest row; NULL unless s.retire */
    Tensor data;       /* (npages, P*row_width) of `real`s, or BF16 if s.narrow */
} Lanes;

enum {
    RUN_TRAIN = 1,  /* dropout and noise are on */
    RUN_HOLD = 2,   /* nothing may become history: a state is read, never written */
    RUN_SMOOTH = 4, /* straight-through values are their smooth twins: what a gradient check can difference */
    RUN_STILL = 8   /* decisions without noise: what does not depend on a row's place in its sample */
};

/* What mixers report beside their output, per sequence: a sum and the count of what was summed. The loss on them is a
 * function of all layers together and is made in train/. */
enum { STAT_MERGED /* hard decisions to merge or evict a row, over lanes and rows */, STATS };

/* What a device's ops read of the host's memory in one pass, and where it lies on the device: run_give, host.h. */
enum { GIVEN_MOST = 12 };
typedef struct {
    int n;
    struct {
        const void *host;
        void *there;
        size_t bytes;
    } at[GIVEN_MOST];
} GivenAll;

typedef struct Ops Ops;
typedef struct Device Device;
typedef struct {
    const Ops *ops;
    Device *dev;    /* the backend's own: cached primitives, threads, streams */
    Arena *scratch; /* a stack; base NULL: the pass is only measured, ops take scratch and compute nothing */
    Arena *host;    /* the same for what the host itself reads and writes: `scratch`, but where that is a device's */
    const Batch *batch;
    Pick in, out; /* x of a layer has in.n rows, y has out.n; they differ in one layer of an extend only */
    unsigned mode;
    int layer;
    uint64_t seed, step;
    double progress; /* of the training stage: steps done / steps, 0 to 1; 1 outside of training */
    Tensor stat;     /* (B,STATS,2) sum, count: forward adds; absent in a replayed forward and outside of training */
    Tensor dstat;    /* (B,STATS) derivative of the loss by the sums: backward reads; absent: none */
    GivenAll given;
} Run;
/* Key of the noise of row i of the batch at a site (DropSite, ops.h): a function of seed, step, layer, sample and row
 * in the sample, so that recomputation, resumption, micro-batches and ranks all see the same. The draws of a row:
 * counters of rng_uniform. */
static inline uint64_t noise_key(const Run *r, unsigned site) {
    return rng_mix(rng_mix(rng_mix(rng_mix(r->seed, 0xD20), r->step), (uint64_t)r->layer), (uint64_t)site);
}
static inline uint64_t noise_row(const Run *r, uint64_t key, int i) {
    int s = r->batch->of[i];
    return rng_mix(rng_mix(key, r->batch->id[s]), (uint64_t)(i - r->batch->off[s]));
}
static inline bool measuring(const Run *r) { return !r->scratch->base; }
/* Scratch for the rest of the enclosing mark/release. */
static inline Tensor scratch_tensor(Run *r, const char *name, Dtype dtype, int rank, const int n[]) {
    return arena_tensor(r->scratch, name, dtype, rank, n);
}
#define SCRATCH_OF(r, name, dtype, ...) \
    scratch_tensor(r, name, dtype, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
#define SCRATCH(r, name, ...) SCRATCH_OF(r, name, REAL, __VA_ARGS__)
/* The same for a gradient that is fresh: whoever is first to add to it, an op that knows fresh ones (ops.h), writes. */
static inline Tensor as_fresh(Tensor t) {
    t.fresh = true;
    return t;
}
#define FRESH_OF(r, name, dtype, ...) as_fresh(SCRATCH_OF(r, name, dtype, __VA_ARGS__))
