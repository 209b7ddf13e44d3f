/* bench_heavy.c: ops that compute more than they move, at the shapes of a training step: see bench_ops.h. */
#include "bench_ops.h"
#include "ops/shadow.h"
#include "ops/host.h"

enum { HEADS = 12, D = 64, WIDTH = HEADS * D, WIDE = 4 * WIDTH, T = 1024, VOCAB = 50304, TAPS = 4 };

typedef struct {
    Run run;
    int N, V, T;
    bool is_bf16;                /* activations are BF16, as layers have them */
    Tensor x, y, dx, dy, q, lse; /* (N,WIDTH), lse (N,HEADS) */
    Tensor stream;               /* (N,WIDTH) REAL: a gradient of the stream */
    Tensor wide;                 /* (N,WIDE) */
    Tensor w, dw;                /* (WIDE,WIDTH) */
    Tensor table, dtable;        /* (V,WIDTH) */
    Tensor w16, table16;         /* their copies in bf16 */
    Tensor taps, dtaps;          /* (WIDTH,TAPS) */
    Tensor nll, g;               /* (N) */
    Tensor decay, ddecay, beta, dbeta, keep;
    Kv kv, dkv;
    int *tok;
} Place;

#define OPS(p, op, ...) (p)->run.ops->op(&(p)->run, __VA_ARGS__)
#define DO(name, op, ...) \
    static void do_##name(Place *p) { OPS(p, op, __VA_ARGS__); }
#define ATTN ((AttnSpec){.heads = HEADS, .scale = (real)0.125})
static Tensor by_heads(const Place *p, Tensor t) { return TENSOR(t.p, t.dtype, p->N, HEADS, D); }
#define BY(t) by_heads(p, t)
/* Gradients in bf16 are written, others are added to. */
#define INTO(t) ((Into){t, p->is_bf16})
#define RULE    ((Recur){.q = BY(p->q), .k = BY(p->kv.k), .v = BY(p->kv.v), .g = BY(p->decay), .beta = p->beta})
DO(linear, linear, p->wide, p->x, p->w, ABSENT)
DO(linear_backward, linear_backward, INTO(p->dx), p->dw, ABSENT, p->wide, p->x, p->w)
DO(attend, attend, BY(p->y), p->lse, BY(p->q), &p->kv, ATTN, false)
DO(attend_backward, attend_backward, INTO(BY(p->dx)), &((KvInto){p->dkv, p->is_bf16}), BY(p->dy), BY(p->q), &p->kv,
   ATTN, BY(p->y), p->lse)
DO(linear_xent, linear_xent, p->nll, NULL, INTO(p->dx), p->dtable, p->x, p->table, LOGITS_PLAIN, p->tok, p->g.p)
DO(embed_backward, embed_backward, p->dtable, p->stream, p->tok, 1)
DO(short_conv, short_conv, p->y, p->x, p->taps, ABSENT, true, ABSENT, 0)
DO(short_conv_backward, short_conv_backward, INTO(p->dx), p->dtaps, ABSENT, p->dy, p->x, p->taps, ABSENT, true)
DO(recur, recur, BY(p->y), p->keep, RULE, 0.125, ABSENT, 0)
static void do_recur_backward(Place *p) {
    const RecurInto d = {.q = INTO(BY(p->dx)),
                         .k = INTO(p->dkv.k),
                         .v = INTO(p->dkv.v),
                         .g = INTO(BY(p->ddecay)),
                         .beta = INTO(p->dbeta)};
    OPS(p, recur_backward, &d, BY(p->dy), RULE, 0.125, p->keep, NULL);
}

/* Rows times elements of a weight; pairs of a causal half; both in multiply-adds. */
static double bench_heavy_matrix(const Place *p, int rows, int columns) { return 2.0 * p->N * rows * columns; }
static double bench_heavy_pairs(const Place *p) { return 0.5 * p->N * (p->T + 1.0) * HEADS; }
enum { LINEAR, LINEAR2, ATTEND, ATTEND2, XENT, EMBED, CONV, CONV2, RECUR, RECUR2, OPS_TIMED };
static double bench_heavy_flops(const Place *p, int i) {
    switch (i) {
    case LINEAR: return bench_heavy_matrix(p, WIDE, WIDTH);
    case LINEAR2: return 2 * bench_heavy_matrix(p, WIDE, WIDTH);
    case ATTEND: return bench_heavy_pairs(p) * 4 * D;
    case ATTEND2: return bench_heavy_pairs(p) * 10 * D; /* scores again, dP, dV, dQ, dK */
    case XENT: return 3 * bench_heavy_matrix(p, p->V, WIDTH);
    case EMBED: return (double)p->N * WIDTH;
    case CONV: return 2.0 * p->N * WIDTH * TAPS;
    case CONV2: return 4.0 * p->N * WIDTH * TAPS;
    case RECUR: return (double)p->N * HEADS * D * D * 7; /* decay, S^T k, rank one, S q */
    default: return (double)p->N * HEADS * D * D * 21;
    }
}
/* Each array once; of the loss the logits stay where they are made, in a floor's eyes. A gradient in f32 is added to,
 * one in bf16 is written. */
static double bench_heavy_bytes(const Place *p, int i) {
    const double one = sizeof(real), h = p->is_bf16 ? sizeof(uint16_t) : one, grad = p->is_bf16 ? h : 2 * one;
    const double row = (double)p->N * WIDTH, w = (double)WIDE * WIDTH, table = (double)p->V * WIDTH;
    switch (i) {
    case LINEAR: return (row + 4 * row + w) * h;
    case LINEAR2: return (4 * row + row + w) * h + row * grad + w * 2 * one;
    case ATTEND: return 4 * row * h;
    case ATTEND2: return 5 * row * h + 3 * row * grad;
    case XENT: return (row + table) * h + row * grad + table * 2 * one;
    case EMBED: return row * one + row * 2 * one;
    case CONV: return 2 * row * h;
    case CONV2: return 2 * row * h + row * grad;
    case RECUR: return 4 * row * h + row * one;
    default: return 4 * row * h + row * one + 3 * row * grad + row * (p->is_bf16 ? one : 2 * one);
    }
}
static const struct {
    const char *name;
    void (*run)(Place *);
} rows[OPS_TIMED] = {
    [LINEAR] = {"linear 768 to 3072", do_linear},
    [LINEAR2] = {"linear_backward 768 to 3072", do_linear_backward},
    [ATTEND] = {"attend", do_attend},
    [ATTEND2] = {"attend_backward", do_attend_backward},
    [XENT] = {"linear_xent with gradient", do_linear_xent},
    [EMBED] = {"embed_backward", do_embed_backward},
    [CONV] = {"short_conv", do_short_conv},
    [CONV2] = {"short_conv_backward", do_short_conv_backward},
    [RECUR] = {"recur, kda", do_recur},
    [RECUR2] = {"recur_backward, kda", do_recur_backward},
};

static void bench_heavy_place(Place *p, Arena *a) {
    const int N = p->N;
    const Dtype rows_of = p->is_bf16 ? BF16 : REAL;
#define TAKE_AS(dtype, name, ...) \
    arena_tensor(a, name, dtype, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
#define TAKE(name, ...) TAKE_AS(REAL, name, __VA_ARGS__)
    Tensor *row[] = {&p->x, &p->y, &p->dx, &p->dy, &p->q};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) *row[i] = TAKE_AS(rows_of, "rows", N, WIDTH);
    p->stream = TAKE("rows", N, WIDTH), p->decay = TAKE("rows", N, WIDTH), p->ddecay = TAKE("rows", N, WIDTH);
    p->lse = TAKE("lse", N, HEADS), p->beta = TAKE("beta", N, HEADS), p->dbeta = TAKE("dbeta", N, HEADS);
    p->wide = TAKE_AS(rows_of, "wide", N, WIDE), p->w = TAKE("w", WIDE, WIDTH), p->dw = TAKE("dw", WIDE, WIDTH);
    p->table = TAKE("table", p->V, WIDTH), p->dtable = TAKE("dtable", p->V, WIDTH);
    p->taps = TAKE("taps", WIDTH, TAPS), p->dtaps = TAKE("dtaps", WIDTH, TAPS);
    p->nll = TAKE("nll", N), p->g = TAKE("g", N), p->keep = TAKE("keep", recur_keep(N), HEADS, D, D);
    KvShape s = {.lanes = HEADS, .kdim = D, .vdim = D};
    p->kv = (Kv){.s = s, .k = TAKE_AS(rows_of, "k", N, HEADS, D), .v = TAKE_AS(rows_of, "v", N, HEADS, D)};
    p->dkv = (Kv){.s = s, .k = TAKE_AS(rows_of, "dk", N, HEADS, D), .v = TAKE_AS(rows_of, "dv", N, HEADS, D)};
    p->w.has_shadow = p->is_bf16 && shadow_wanted(p->run.dev, p->w, 0);
    p->table.has_shadow = p->is_bf16 && shadow_wanted(p->run.dev, p->table, 0);
    if (p->w.has_shadow) p->w16 = TAKE_AS(BF16, "w in bf16", WIDE, WIDTH);
    if (p->table.has_shadow) p->table16 = TAKE_AS(BF16, "table in bf16", p->V, WIDTH);
#undef TAKE
}
static void bench_heavy_fill(Place *p, Device *dev) {
    const double unit = 0.2; /* keys and queries of a length near 1, as mixers' norms make them */
    Tensor *small[] = {&p->x,    &p->y, &p->dy,    &p->q,    &p->kv.k,  &p->kv.v,
                       &p->wide, &p->w, &p->table, &p->taps, &p->stream};
    Tensor *sums[] = {&p->dx, &p->dw, &p->dtable, &p->dtaps, &p->ddecay, &p->dbeta, &p->dkv.k, &p->dkv.v};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) bench_fill(dev, *small[i], 1 + i, -unit, unit);
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) device_zero(dev, sums[i]->p, tensor_bytes(*sums[i]));
    bench_fill(dev, p->decay, 30, -0.1, 0);
    bench_fill(dev, p->beta, 31, 0, 1);
    bench_fill(dev, p->g, 32, 1e-5, 1e-4);
    if (p->w.has_shadow) shadow_keep(dev, p->w, p->w16);
    if (p->table.has_shadow) shadow_keep(dev, p->table, p->table16);
    shadow_refresh(dev);
}
static void bench_heavy_forget(Place *p, Device *dev) {
    if (p->w.has_shadow) shadow_drop(dev, p->w.p, tensor_bytes(p->w));
    if (p->table.has_shadow) shadow_drop(dev, p->table.p, tensor_bytes(p->table));
}

typedef struct {
    Place *p;
    void (*run)(Place *);
} Once;
static void bench_heavy_once(void *ctx) {
    Once *o = ctx;
    o->run(o->p);
}

bool bench_heavy(Device *dev, int N, double seconds, double bytes_per_s, OpTime *out, int *n, Err *e) {
    Arena mem = {.name = "bench ops"}, scratch = {.name = "bench scratch"};
    Place p = {.run = run_make(dev, &scratch),
               .N = N,
               .V = N < BENCH_ROWS ? 4 * N : VOCAB,
               .T = imin(N, T),
               .is_bf16 = bench_bf16(dev)};
    const int B = (N + p.T - 1) / p.T;
    int *ints = xcalloc(6 * (size_t)N + 2, sizeof *ints), layer;
    int *off = ints + N, *of = off + N + 1, *pos = of + N, *first = pos + N;
    uint64_t *id = xcalloc((size_t)B, sizeof *id);
    bool has[OPS_TIMED];
    p.tok = first + N;
    for (int i = 0; i < N; i++) {
        ints[i] = i, of[i] = i / p.T, pos[i] = i % p.T, first[i] = i / p.T * p.T;
        p.tok[i] = (int)(rng_uniform(9, (uint64_t)i) * p.V);
    }
    for (int b = 0; b <= B; b++) off[b] = imin(b * p.T, N);
    Batch batch = {.B = B, .N = N, .off = off, .seq = off, .of = of, .pos = pos, .first = first, .id = id};
    p.run.batch = &batch, p.run.mode = RUN_TRAIN;
    p.run.in = p.run.out = (RowList){N, ints};
    bench_heavy_place(&p, &mem);
    for (int i = 0; i < OPS_TIMED; i++) {
        rows[i].run(&p); /* measures its scratch */
        has[i] = !device_lack(dev, &layer);
    }
    const Memory *home = device_memory(dev, false);
    bool ok = arena_open_at(&mem, home, "bench ops", mem.peak, false, e) &&
              arena_open_at(&scratch, home, "bench scratch", scratch.peak, false, e);
    if (ok) bench_heavy_place(&p, &mem);
    *n = 0;
    if (ok) bench_heavy_fill(&p, dev);
    for (int i = 0; ok && i < OPS_TIMED; i++) {
        if (!has[i]) continue;
        if (i == ATTEND2 || i == RECUR2) rows[i - 1].run(&p); /* whose o and lse, whose states it reads */
        Once o = {&p, rows[i].run};
        Timing t = bench_time(dev, bench_heavy_once, &o, seconds);
        double b = bench_heavy_bytes(&p, i);
        out[(*n)++] = (OpTime){rows[i].name,
                               t,
                               b,
                               100 * b / t.median / bytes_per_s,
                               bench_heavy_flops(&p, i),
                               p.is_bf16 && i != EMBED ? BF16 : REAL};
    }
    if (ok) bench_heavy_forget(&p, dev);
    arena_close(&mem);
    arena_close(&scratch);
    free(ints);
    free(id);
    return ok;
}
