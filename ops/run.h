/* run.h: describes a pass over a model: its rows (Batch), the keys and values that it makes (Kv) and reads (Lanes), and
 * what every op gets as its first argument (Run). Training and sessions make a Batch, the model's workspace a Run;
 * mixers, the cache and ops read them.
 *
 * A training step, a prefill, a chunk of one, a verification and a decoding step are all passes: N rows (tokens) of B
 * sequences, packed one after the other. No padding exists. Shapes are in elements, row-major, the last index
 * contiguous; positions, rows and lanes count from 0. Nothing here owns memory: pointers must stay valid until the pass
 * is over. */
#pragma once
#include "arena.h"
#include "row_basis.h"

/* The rows of a pass, of the host also where the ops are a GPU's. Rows of a sequence follow each other, and so do those
 * of a document; within a document positions ascend by 1. Several documents may follow each other in a sequence: a row
 * never attends to another document's. A sequence of the cache is in a pass once at most. */
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
    const int *rest;    /* (B) tokens that later passes are sure to bring before a prompt can end; NULL: none */
} Batch;

/* Some rows of a batch: those whose results are wanted. A tensor over a list has its n rows, in its order. */
typedef struct {
    int n;
    const int *idx; /* rows of the batch, ascending */
} RowList;

/* How the cache stores a key or a value: an entry of the table in layers/cache/codecs.c, where each function has its
 * contract (docs/add-a-codec.md). Ops that store and read rows get it from KvShape. `as` names the loops that these ops
 * have of their own; rows of ROWS_CODED are decoded one part at a time on the CPU; no GPU kernel reads them. */
typedef enum { ROWS_REAL, ROWS_BF16, ROWS_INT8, ROWS_FP8, ROWS_PACKED, ROWS_CODED } RowsAs;
typedef struct RowCodec RowCodec;
/* What a slot is of a pair whose rows a codec merges (merged.h): its block holds what both share, or its own part. */
typedef enum { PAIR_NONE, PAIR_LOWER, PAIR_UPPER } RowPair;
struct RowCodec {
    const char *name, *meaning;
    RowsAs as;
    /* Bytes of a key or value of `width` values: even, and a multiple of 4 unless ROWS_BF16. */
    size_t (*bytes)(const RowCodec *, int width);
    void (*encode)(const RowCodec *, void *part, const real *from, int width);
    void (*decode)(const RowCodec *, real *to, const void *part, int width);
    int bits, group; /* of ROWS_PACKED: bits of a code, values that share a scale (ops/packed.h) */
    bool rotate;     /* keys are rotated (Ops.hadamard) before they are stored, and so are the queries that meet them */
    /* Rows that are stored together, on the CPU, once there are so many; until then as `real`s; 0: each alone. A block
     * has a piece for each element of the key, of that element in all its rows, then a piece for the value of each. */
    int block;
    bool turned; /* keys of a block are turned back by their places in it (Lanes.turns) before they are stored */
    bool apart;  /* of each group of a piece the number furthest from the others is stored by itself */
    const short *levels; /* (2^bits) of codes that are not whole numbers, in units of 1/256; NULL: they are */
    size_t (*piece_bytes)(const RowCodec *, int width);
    void (*piece_encode)(const RowCodec *, void *piece, const real *from, int width);
    void (*piece_decode)(const RowCodec *, real *to, const void *piece, int width);
    /* Of blocks whose rows differ in their bits (ops/salient.h): `share` of the rows, which get the most attention of
     * `probes` queries of the block, have salient_bits, the others `bits`. salient_bits 0: all have `bits`. Such blocks
     * have no pieces. keys (kdim,block), values (block,vdim); vdim 0: values are part of keys. */
    int salient_bits, probes;
    double share;
    size_t (*block_bytes)(const RowCodec *, int kdim, int vdim);
    void (*block_encode)(const RowCodec *, void *block, const real *keys, const real *values, int kdim, int vdim,
                         const real *score);
    /* keys or values NULL: not wanted. below: PAIR_UPPER: the block of the slot below that holds the same rows. */
    void (*block_decode)(const RowCodec *, real *keys, real *values, const void *block, const void *below, int kdim,
                         int vdim);
    /* Of a codec that merges rows of two layers (merged.h): those of layers from a share `from` of the model on are
     * paired; `share` of a block's rows stay apart; directions are merged at `toward` of the way from the lower layer's
     * to the upper one's. A layer without a pair has pieces. pair_encode writes the blocks of both, lower first, from
     * keys (block,kdim) and values (block,vdim). */
    bool merges;
    RowPair pair;
    double from, toward;
    void (*pair_encode)(const RowCodec *, void *const block[2], const real *const keys[2], const real *const values[2],
                        int kdim, int vdim);
    /* Of rows that are stored as coefficients of a basis (row_basis.h): directions of a key and of a value, as shares
     * of the width; rank 0: rows are stored as they are. encode and decode then store coefficients. basis: the name of
     * the file that has the directions, basis_n characters of it. */
    double rank, value_rank;
    const char *basis;
    int basis_n;
    bool predicts; /* rows are stored as residuals of a prediction, which the file has (layers/cache/aqua.h), */
    bool pairs;    /* two elements to a code (layers/cache/pairs.c), in place of packed codes */
};

/* Ops.hadamard: values of a piece of a row of `width`. */
enum { HADAMARD_MOST = 256 };
static inline int hadamard_width(int width) {
    const int n = width & -width;
    return n < HADAMARD_MOST ? n : HADAMARD_MOST;
}

/* What a layer keeps per token. One shape for the K/V of a pass, its gradient, and the lanes of the cache. */
typedef struct {
    int lanes, kdim, vdim; /* rows per token: `lanes` of kdim + vdim values; lanes 0: none */
    bool alias;            /* the value of a row is the first vdim elements of its key (MLA's latent): stored once */
    bool sparse; /* rows may be missing between those that the cache shows: positions of a lane are not consecutive */
    const RowCodec *codec; /* how the cache holds the rows, NULL: as `real`s; states and what is carried stay `real`s */
    int window, sinks; /* retention: rows of age >= window are given back, but for positions < sinks; window 0: all */
    int state;         /* values per sequence that are read and written in place (a recurrence's state) */
    bool evicts; /* a row may evict its predecessor in the lane, which then stays visible for `delay` positions more */
    int delay;
    int carry, carry_rows; /* per lane: the last carry_rows rows of Kv.carry, what the next pass starts from */
    int heads;             /* query heads that see all rows of the slot, whose queries a policy may ask for; 0: none */
    bool coded;            /* the cache's policy stores the rows by a codec of its own, and every step reads all */
    int last; /* values of the row before the head that is kept of each sequence's newest token, in one slot of a cache
                 whose policy asks for novelty; 0: none */
    const RowBasis *basis; /* of a codec that stores coefficients; NULL: rows are stored as they are */
} KvShape;
/* The rows of a pass, or their gradients. bias: the mask of row j, added to the scores of queries more than `delay`
 * positions after it: log(1 - chance that its successor evicted it), or 0 and -inf where that is decided. */
typedef struct {
    KvShape s;
    Tensor k, v;    /* (N,lanes,kdim) (N,lanes,vdim), as they are stored (keys rotated); v absent when s.alias */
    Tensor bias;    /* (N,lanes) if s.evicts */
    Tensor evicted; /* (N,lanes) if s.evicts and for a cache: 1: row j evicts its predecessor, 0: it does not */
    Tensor carry;   /* (N,lanes,s.carry) for a cache */
    Tensor coef[2]; /* (N,lanes,rank) of s.basis: coefficients of keys and values, of which k and v are made */
} Kv;
/* Gradients of rows: k and v are overwritten by the op that gets them, or added to; a bias is added to. */
typedef struct {
    Kv kv;
    bool overwrite;
} KvInto;
static inline Into keys_into(const KvInto *x) { return (Into){x->kv.k, x->overwrite}; }
static inline Into values_into(const KvInto *x) { return (Into){x->kv.v, x->overwrite}; }
/* Values of one sequence that are carried from pass to pass. */
static inline size_t carried(const KvShape *s) { return (size_t)s->lanes * (size_t)s->carry_rows * (size_t)s->carry; }
static inline RowsAs rows_as(const KvShape *s) { return s->codec ? s->codec->as : ROWS_REAL; }
/* Elements of a key and of a value that are stored. */
static inline int key_stored(const KvShape *s) { return s->basis ? s->basis->part[0].rank : s->kdim; }
static inline int value_stored(const KvShape *s) { return s->basis ? s->basis->part[1].rank : s->vdim; }
/* Bytes in the cache: of a part of so many stored elements; of a key; of a value, 0 where it is the key's; of both. */
static inline size_t part_bytes(const KvShape *s, int width) {
    return s->codec ? s->codec->bytes(s->codec, width) : (size_t)width * sizeof(real);
}
static inline size_t key_bytes(const KvShape *s) { return part_bytes(s, key_stored(s)); }
static inline size_t value_bytes(const KvShape *s) { return s->alias ? 0 : part_bytes(s, value_stored(s)); }
/* The key or value of a row that is stored alone, at position `pos` of lane `lane` of its sequence. Of a basis of
 * groups of lanes: row_decode. */
static inline void part_decode(const KvShape *s, real *to, const void *part, bool value, int lane, int pos) {
    const int width = value ? s->vdim : s->kdim;
    if (!s->codec) {
        memcpy(to, part, (size_t)width * sizeof *to);
    } else if (!s->basis) {
        s->codec->decode(s->codec, to, part, width);
    } else {
        real c[BASIS_WIDEST];
        CHECK(!basis_predicts(s->basis), "a residual without its prediction");
        CHECK(s->basis->heads == 1, "a part of %d without the others", s->basis->heads);
        s->codec->decode(s->codec, c, part, value ? value_stored(s) : key_stored(s));
        basis_expand(s->basis, to, c, value, lane, pos);
    }
}
static inline size_t row_bytes(const KvShape *s) { return key_bytes(s) + value_bytes(s); }
/* Rows of a block, 0: there are none. Bytes of its keys, where it has pieces, and of all of it. */
static inline int rows_together(const KvShape *s) { return s->codec && s->lanes ? s->codec->block : 0; }
static inline size_t block_key_bytes(const KvShape *s) {
    return (size_t)s->kdim * s->codec->piece_bytes(s->codec, s->codec->block);
}
static inline size_t block_bytes(const KvShape *s) {
    if (s->codec->block_bytes) return s->codec->block_bytes(s->codec, s->kdim, s->alias ? 0 : s->vdim);
    const size_t values = s->alias ? 0 : (size_t)s->codec->block * s->codec->piece_bytes(s->codec, s->vdim);
    return block_key_bytes(s) + values;
}
/* The values of lane 0 of the pass's rows; those of the next lane are *step values on, of the next row *ld. */
static inline real *kv_values(const Kv *kv, size_t *step, size_t *ld) {
    *step = (size_t)(kv->s.alias ? kv->s.kdim : kv->s.vdim);
    *ld = *step * (size_t)kv->s.lanes;
    return kv->s.alias ? R(kv->k) : R(kv->v);
}

/* The attention spec of one reader. Query head h reads lane h / (heads/lanes), and
 *   o_i = sum over visible j of softmax_j(s_ij) v_j,   lse_i = log sum over visible j of e^s_ij (natural; none: -inf)
 *   s_ij = f(scale q_i.k_j) + bias_j,   f(s) = cap tanh(s / cap), or s where cap is 0
 * A key j is visible to a query i of the same sequence and document iff j <= i and (window == 0 or pos i - pos j <
 * window or pos j < sinks); an evicted one, see KvShape, only while pos i - pos j <= delay. */
typedef struct {
    int heads, window, sinks;
    real scale; /* of the scores, before the softmax */
    real cap;   /* > 0: a scaled score s becomes cap tanh(s/cap), before biases; 0: it stays */
} AttnSpec;

/* How the rows of a block are turned: of row j elements pair[i] by an angle of j times the pair's, with these cosines
 * and sines. */
typedef struct {
    int pairs, rows;
    int (*pair)[2];  /* (pairs) */
    real *cos, *sin; /* (pairs,rows) */
} RowTurns;
/* keys (elements,rows), turned; `by` -1: turned back. */
static inline void rows_turn(const RowTurns *t, real *keys, int by) {
    const size_t n = (size_t)t->rows;
    for (size_t i = 0; i < (size_t)t->pairs; i++) {
        real *a = keys + (size_t)t->pair[i][0] * n, *b = keys + (size_t)t->pair[i][1] * n;
        const real *c = t->cos + i * n, *s = t->sin + i * n;
        for (size_t j = 0; j < n; j++) {
            const real x = a[j], y = b[j], sin = (real)by * s[j];
            a[j] = c[j] * x - sin * y, b[j] = sin * x + c[j] * y;
        }
    }
}

/* The rows of one slot of the cache as kernels read them; the cache owns it (layers/cache/slot.h). Lane = seq*lanes + h
 * numbers its rows 0,1,2...; row r lies in page table[lane*maxpages + r/P % maxpages] at place r % P. Visible:
 * lo..hi-1, and the sinks s0..min(s0+sinks,lo)-1. A page holds P keys (key_bytes), then P values (value_bytes; alias:
 * keys alone). Positions ascend with the rows, but not where rows are evicted or are sparse: there a row may lie
 * anywhere. Page npages + i is block i of a codec that stores P rows together: its bytes lie in `blocks`. A row of a
 * block that a policy evicted has the position ROW_GONE: nobody sees it. */
enum { ROW_GONE = -1 };
typedef struct Lanes Lanes;
struct Lanes {
    KvShape s;
    int nseq, P, maxpages, npages, nblocks;
    int *s0, *lo, *hi; /* (nseq*lanes) */
    int *table;        /* (nseq*lanes, maxpages); -1 = no page */
    int *pos;          /* (npages + nblocks, P) position of each row in its document */
    bool *evicted;     /* (npages, P) evicted; NULL unless s.evicts */
    int *tail;         /* (nseq*lanes) number of the newest row; NULL unless s.evicts */
    Tensor data;       /* (npages, P*row_bytes) in bytes: of REAL or BF16 by rows_as, else of words of 4 bytes */
    Tensor blocks;     /* (nblocks, block_bytes), in words of 4 bytes */
    /* Of a codec that turns keys back; NULL: they are stored as they are. */
    const RowTurns *turns;
    const Lanes *below; /* PAIR_UPPER: the lanes that it is paired with; else NULL */
    int *merged;        /* (nblocks) the page of theirs that holds what block i shares with it */
};
static inline char *lanes_block(const Lanes *t, int page) {
    return (char *)t->blocks.p + (size_t)(page - t->npages) * block_bytes(&t->s);
}
/* The block of the slot below that block `page` is merged with; NULL: the slot has none below. */
static inline const char *lanes_below(const Lanes *t, int page) {
    return t->below ? lanes_block(t->below, t->merged[page - t->npages]) : NULL;
}

/* The key or value of row `row` of a lane, which is in no block. A group of lanes (row_basis.h) has the same rows. */
static inline void row_decode(const Lanes *t, real *to, bool value, int lane, int row) {
    const KvShape *s = &t->s;
    const int heads = s->basis ? s->basis->heads : 1, h = lane % s->lanes,
              stored = value ? value_stored(s) : key_stored(s);
    const size_t P = (size_t)t->P, place = (size_t)(row % t->P), kb = key_bytes(s),
                 at = value ? P * kb + place * value_bytes(s) : place * kb;
    real c[BASIS_WIDEST];
    int pos = 0;
    for (int i = 0, l = lane - h % heads; i < heads; i++, l++) {
        const size_t page = (size_t)t->table[(size_t)l * (size_t)t->maxpages + (size_t)(row / t->P % t->maxpages)];
        const char *part = (const char *)t->data.p + page * P * row_bytes(s) + at;
        CHECK(!i || t->pos[page * P + place] == pos, "row %d of lane %d at %d, not %d", row, l,
              t->pos[page * P + place], pos);
        pos = t->pos[page * P + place];
        if (heads == 1)
            part_decode(s, to, part, value, h, pos);
        else
            s->codec->decode(s->codec, c + i * stored, part, stored);
    }
    if (heads > 1) basis_expand(s->basis, to, c, value, h, pos);
}

/* Run.mode, by or. A pass of inference that writes its history has none. */
enum {
    RUN_TRAIN = 1,       /* dropout and noise are on */
    RUN_HOLD = 2,        /* nothing may become history: a state is read, never written */
    RUN_SMOOTH = 4,      /* straight-through values are their smooth twins: what a gradient check can difference */
    RUN_STILL = 8,       /* decisions without noise: what does not depend on a row's place in its sample */
    RUN_COUNT_STILL = 16 /* decisions are reported (STAT_MERGED) as they would be without noise */
};

/* What mixers report in addition to their output, per sequence: a sum and the count of what was summed. The loss on
 * them is a function of all layers together; train/compression.h makes it. */
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

/* Queries of a layer that a policy of the cache keeps (layers/cache/policy.h): the mixer gives them to kv_probe. */
typedef struct {
    RowList rows; /* of the batch; among Run.out */
    Tensor q;     /* (rows.n, heads, kdim) times the scale of the scores; absent: nobody asks */
    Tensor lse;   /* (rows.n, heads) */
} Probe;

typedef struct Ops Ops;
typedef struct Device Device;
/* What every op and mixer of a pass gets. workspace_run and run_make make one; the model sets batch, in, out, mode and
 * layer as the pass continues. One thread at a time may use a Run and its arenas. */
typedef struct {
    const Ops *ops;
    Device *dev;    /* the backend's own: cached primitives, threads, streams */
    Arena *scratch; /* a stack; base NULL: the pass is only measured, ops take scratch and compute nothing */
    Arena *host;    /* the same for what the host itself reads and writes: `scratch`, but where that is a device's */
    const Batch *batch;
    RowList in, out; /* x of a layer has in.n rows, y has out.n; they differ in one layer of an extend only */
    unsigned mode;
    int layer;
    uint64_t seed, step;
    double progress; /* of the training stage: steps done / steps, 0 to 1; 1 outside of training */
    Tensor stat;     /* (B,STATS,2) sum, count: forward adds; absent in a replayed forward and outside of training */
    Tensor dstat;    /* (B,STATS) derivative of the loss by the sums: backward reads; absent: none */
    GivenAll given;
    Probe probe;     /* of the layer that runs */
    Tensor guess;    /* (out.n, heads, kdim) the layer's queries as the layer before guessed them (Mixer.queries) */
    Tensor novelty;  /* (N) -log P of each row's token by the rows before it, 0 of a document's first; absent: no policy
                       asks for it */
    Tensor below[2]; /* (N,lanes,kdim) (N,lanes,vdim) keys and values of the slot that was settled last, of a codec that
                        predicts rows from them; absent: another codec */
    struct RowRanks *share; /* the ranks that make the pass's rows together; NULL: this one makes all. Of them `in` and
                               `out` are this rank's own (layers/cache/row_ranks.h) */
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
