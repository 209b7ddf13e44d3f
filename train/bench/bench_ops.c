/* bench_ops.c: what reads and writes memory more than it computes, one row for each op. */
#include "bench_ops.h"
#include "ops/host.h"

enum { HEADS = 12, D = 64, WIDTH = HEADS * D, T = 1024, ARRAYS = 6 };

typedef struct {
    Run run;
    Tensor mem[ARRAYS]; /* (ROWS,WIDTH) REAL */
    Tensor a[ARRAYS];   /* the same memory, as the op's argument; */
    bool over[ARRAYS];  /* one that is overwritten where the op could add to it */
    Tensor v[3];        /* (WIDTH) */
    Tensor s, h;        /* (ROWS) (ROWS,HEADS) */
    Rope rope;
    int *idx, rows;
} Place;
static Tensor by_heads(const Place *p, Tensor t) { return TENSOR(t.p, t.dtype, p->rows, HEADS, D); }
#define heads(t) by_heads(p, t)
#define gains(t) TENSOR((t).p, REAL, D)

#define OPS(p, op, ...) (p)->run.ops->op(&(p)->run, __VA_ARGS__)
#define A(i)            p->a[i]
#define INTO(i)         ((Into){A(i), p->over[i]})
#define INTO_HEADS(i)   ((Into){heads(A(i)), p->over[i]})
#define DO(name, ...) \
    static void name(Place *p) { OPS(p, __VA_ARGS__); }
DO(do_add, add, A(0), A(1))
DO(do_axpby, axpby, A(0), 0.5, A(1), 0.5)
DO(do_copy, copy, A(0), A(1))
DO(do_zero, zero, A(0))
DO(do_round_to_bf16, round_to_bf16, A(0))
DO(do_hadamard, hadamard, heads(A(0)))
DO(do_swiglu, swiglu, A(0), A(1), A(2))
DO(do_swiglu_backward, swiglu_backward, ABSENT, INTO(0), INTO(1), A(2), A(3), A(4))
DO(do_gelu, gelu, A(0), A(1), true)
DO(do_gelu_backward, gelu_backward, INTO(0), A(1), A(2), true)
DO(do_gelu_erf, gelu, A(0), A(1), false)
DO(do_gelu_erf_backward, gelu_backward, INTO(0), A(1), A(2), false)
DO(do_sigmoid, sigmoid, A(0), A(1), 1)
DO(do_sigmoid_backward, sigmoid_backward, INTO(0), A(1), A(2), 1)
DO(do_elu1, elu1, A(0), A(1))
DO(do_elu1_backward, elu1_backward, INTO(0), A(1), A(2))
DO(do_rmsnorm, rmsnorm, A(0), p->s, A(1), p->v[0], 1e-5)
DO(do_add_rmsnorm, add_rmsnorm, A(0), p->s, A(1), A(2), p->v[0], 1e-5)
DO(do_rmsnorm_backward, rmsnorm_backward, INTO(0), p->v[1], A(1), A(2), p->v[0], p->s)
DO(do_layernorm, layernorm, A(0), p->s, A(1), p->v[0], p->v[1], 1e-5)
DO(do_layernorm_backward, layernorm_backward, A(0), p->v[1], p->v[2], A(1), A(2), p->v[0], p->s)
DO(do_l2norm, l2norm, heads(A(0)), heads(A(1)), 1e-6)
DO(do_l2norm_backward, l2norm_backward, INTO_HEADS(0), heads(A(1)), heads(A(2)), 1e-6)
DO(do_rope, rope, heads(A(0)), &p->rope, p->run.in, 1)
DO(do_rmsnorm_rope, rmsnorm_rope, heads(A(0)), p->h, heads(A(1)), gains(p->v[0]), 1e-5, &p->rope, p->run.in)
DO(do_rmsnorm_rope_backward, rmsnorm_rope_backward, INTO_HEADS(0), gains(p->v[1]), heads(A(1)), heads(A(2)),
   gains(p->v[0]), p->h, &p->rope, p->run.in)
DO(do_dropout, dropout, A(0), DROP_FFN, 0.1)
DO(do_gather, gather, A(0), A(1), p->run.in, p->run.in)
DO(do_columns, columns, A(0), 0, A(1), 0, WIDTH)
DO(do_columns_backward, columns_backward, INTO(0), 0, A(1), 0, WIDTH)
DO(do_spread, spread, A(0), A(1), p->idx)
DO(do_embed, embed, A(0), A(1), p->idx, 1)
DO(do_step, step, heads(A(0)), heads(A(1)), TENSOR(p->a[2].p, REAL, p->rows, HEADS), TENSOR(p->v[0].p, REAL, HEADS))
DO(do_skip, skip, heads(A(0)), heads(A(1)), TENSOR(p->v[0].p, REAL, HEADS))
DO(do_swiglu_rows, swiglu_rows, A(0), A(1), A(2), p->s)
static void do_adamw(Place *p) {
    const AdamwStep s = {A(0), A(1), A(2), A(3), 1e-9, 0.9, 0.95, 1e-8, 0, 1, 1000, {0}, .rule = UPDATE_ADAMW};
    p->run.ops->adamw(&p->run, 1, &s);
}
DO(do_momentum, momentum, A(0), A(1), A(2), 0.95, 1, true, (Rounding){0})
DO(do_sumsq, sumsq, A(0))

static const struct {
    const char *name;
    void (*run)(Place *);
    int read, written,
        updated; /* arrays: those that are written come first, then updated ones; small ones do not count */
    const char
        *dtypes; /* of a device in bf16, a letter for each array: h bf16, f a bf16 gradient that is written and not
                         added to, . f32; NULL: all f32 */
} rows[] = {
    {"add", do_add, 1, 0, 1, NULL},
    {"axpby", do_axpby, 1, 0, 1, NULL},
    {"copy", do_copy, 1, 1, 0, NULL},
    {"zero", do_zero, 0, 1, 0, NULL},
    {"round_to_bf16", do_round_to_bf16, 0, 0, 1, NULL},
    {"hadamard", do_hadamard, 0, 0, 1, NULL},
    {"swiglu", do_swiglu, 2, 1, 0, "hhh"},
    {"swiglu_backward", do_swiglu_backward, 3, 0, 2, "ffhhh"},
    {"gelu, tanh", do_gelu, 1, 1, 0, "hh"},
    {"gelu_backward, tanh", do_gelu_backward, 2, 0, 1, "fhh"},
    {"gelu", do_gelu_erf, 1, 1, 0, "hh"},
    {"gelu_backward", do_gelu_erf_backward, 2, 0, 1, "fhh"},
    {"sigmoid", do_sigmoid, 1, 1, 0, NULL},
    {"sigmoid_backward", do_sigmoid_backward, 2, 0, 1, NULL},
    {"elu1", do_elu1, 1, 1, 0, "hh"},
    {"elu1_backward", do_elu1_backward, 2, 0, 1, "fhh"},
    {"rmsnorm", do_rmsnorm, 1, 1, 0, "h."},
    {"add_rmsnorm", do_add_rmsnorm, 1, 1, 1, "h.."},
    {"rmsnorm_backward", do_rmsnorm_backward, 2, 0, 1, ".h."},
    {"layernorm", do_layernorm, 1, 1, 0, "h."},
    {"layernorm_backward", do_layernorm_backward, 2, 0, 1, ".h."},
    {"l2norm", do_l2norm, 1, 1, 0, "hh"},
    {"l2norm_backward", do_l2norm_backward, 2, 0, 1, "fhh"},
    {"rope", do_rope, 0, 0, 1, "h"},
    {"rmsnorm_rope", do_rmsnorm_rope, 1, 1, 0, "hh"},
    {"rmsnorm_rope_backward", do_rmsnorm_rope_backward, 2, 0, 1, "fhh"},
    {"dropout", do_dropout, 0, 0, 1, NULL},
    {"gather", do_gather, 1, 1, 0, "hh"},
    {"columns", do_columns, 1, 1, 0, "hh"},
    {"columns_backward", do_columns_backward, 1, 0, 1, "fh"},
    {"spread", do_spread, 1, 1, 0, "hh"},
    {"embed", do_embed, 1, 1, 0, NULL},
    {"step", do_step, 1, 1, 0, "hh"},
    {"skip", do_skip, 1, 0, 1, "hh"},
    {"swiglu_rows", do_swiglu_rows, 2, 1, 0, "hhh"},
    {"adamw", do_adamw, 1, 0, 3, NULL},
    {"momentum", do_momentum, 1, 1, 1, NULL},
    {"sumsq", do_sumsq, 1, 0, 0, NULL},
};
enum { OPS_TIMED = sizeof rows / sizeof *rows };

static void bench_ops_arrays(Place *p, Arena *a) {
    for (int i = 0; i < ARRAYS; i++) p->a[i] = p->mem[i] = arena_tensor(a, "array", REAL, 2, (int[]){p->rows, WIDTH});
    for (int i = 0; i < 3; i++) p->v[i] = arena_tensor(a, "vector", REAL, 1, (int[]){WIDTH});
    p->s = arena_tensor(a, "rows", REAL, 1, (int[]){p->rows});
    p->h = arena_tensor(a, "heads", REAL, 2, (int[]){p->rows, HEADS});
}
/* The arrays as arguments of op `row`. */
static bool arrays_for(Place *p, int row) {
    const char *dtypes = bench_bf16(p->run.dev) ? rows[row].dtypes : NULL;
    bool some = false;
    for (int i = 0; i < ARRAYS; i++) {
        char as = dtypes && i < (int)strlen(dtypes) ? dtypes[i] : '.';
        p->a[i] = TENSOR(p->mem[i].p, as == '.' ? REAL : BF16, p->rows, WIDTH);
        p->over[i] = as == 'f';
        some |= as != '.';
    }
    return some;
}
static double bytes_of(const Place *p, int row, bool apart) {
    double bytes = 0;
    const int out = rows[row].written, both = out + rows[row].updated, all = both + rows[row].read;
    for (int i = 0; i < all; i++) {
        int times = i < out ? (apart ? 1 : 2) : i < both && !p->over[i] ? 2 : 1;
        bytes += times * (double)tensor_bytes(p->a[i]);
    }
    return bytes;
}

typedef struct {
    Place *p;
    void (*run)(Place *);
} Once;
static void bench_ops_once(void *ctx) {
    Once *o = ctx;
    o->run(o->p);
}

bool bench_elementwise(Device *dev, int N, double seconds, double bytes_per_s, OpTime *out, int *n, Err *e) {
    Arena mem = {.name = "bench ops"}, scratch = {.name = "bench scratch"};
    Place p = {.run = run_make(dev, &scratch), .rows = N};
    RopeCfg cfg = {.type = ROPE_DEFAULT, .theta = 10000};
    const int per = imin(N, T), B = (N + per - 1) / per; /* sequences of `per` rows; the last one may be shorter */
    int *ints = xcalloc(5 * (size_t)N + 2, sizeof *ints);
    int *off = ints + N, *of = off + N + 1, *pos = of + N, *first = pos + N;
    uint64_t *id = xcalloc((size_t)B, sizeof *id);
    bool ok = rope_make(&p.rope, &cfg, D, T, e), has[OPS_TIMED], apart = device_apart(dev);
    p.idx = ints;
    for (int i = 0; i < N; i++) p.idx[i] = i, of[i] = i / per, pos[i] = i % per, first[i] = i / per * per;
    for (int b = 0; b <= B; b++) off[b] = imin(b * per, N);
    Batch batch = {.B = B, .N = N, .off = off, .seq = off, .of = of, .pos = pos, .first = first, .id = id};
    p.run.batch = &batch;
    p.run.in = p.run.out = (RowList){N, p.idx};
    bench_ops_arrays(&p, &mem);
    for (int i = 0; i < OPS_TIMED; i++) {
        int layer;
        arrays_for(&p, i);
        rows[i].run(&p); /* measures its scratch */
        has[i] = !device_lack(dev, &layer);
    }
    const Memory *home = device_memory(dev, false);
    ok = ok && arena_open_at(&mem, home, "bench ops", mem.peak, false, e) &&
         arena_open_at(&scratch, home, "bench scratch", scratch.peak, false, e);
    if (ok) bench_ops_arrays(&p, &mem);
    *n = 0;
    for (int i = 0; ok && i < OPS_TIMED; i++) {
        if (!has[i]) continue;
        const bool dtypes = arrays_for(&p, i);
        for (int k = 0; k < ARRAYS; k++)
            bench_fill(dev, p.a[k], (uint64_t)k, 0.1, 1.1); /* what a row made would grow beyond all bounds */
        for (int k = 0; k < 3; k++) bench_fill(dev, p.v[k], (uint64_t)(10 + k), 0.1, 1.1);
        bench_fill(dev, p.s, 20, 0.1, 1.1), bench_fill(dev, p.h, 21, 0.1, 1.1);
        Once o = {&p, rows[i].run};
        Timing t = bench_time(dev, bench_ops_once, &o, seconds);
        double bytes = bytes_of(&p, i, apart);
        out[(*n)++] = (OpTime){rows[i].name, t, bytes, 100 * bytes / t.median / bytes_per_s, 0, dtypes ? BF16 : REAL};
    }
    arena_close(&mem);
    arena_close(&scratch);
    free(ints);
    free(id);
    return ok;
}
