/* Gradients that nothing was added to yet: what an op writes over memory full of NaN is what it adds to zeros. (With
 * numbers in BF16: test_ops_acts.c.) */
#include "rig.h"

static Tensor filled(Tensor t, real with) {
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = with;
    return t;
}
static void same(const Rig *g, const char *what, bool bf16, Tensor got, Tensor want) {
    device_sync(g->dev);
    for (size_t i = 0; i < tensor_count(got); i++)
        cr_assert(R(got)[i] == R(want)[i] && R(want)[i] != 0, "%s, %s of %s: number %zu is %g instead of %g", g->table,
                  what, bf16 ? "rounded operands" : "f32", i, (double)R(got)[i], (double)R(want)[i]);
}
static void all_ops(Rig *g, bool bf16) {
    enum { N = 70, I = 96, O = 64, P = 130, KINDS = 11 };
    Tensor x = RANDOM(g, "x", N, I), w[2] = {RANDOM(g, "w", O, I), RANDOM(g, "v", P, I)}, gain = RANDOM(g, "gain", I),
           dy[2] = {RANDOM(g, "dy", N, O), RANDOM(g, "dz", N, P)}, g1 = RANDOM(g, "g", N, I),
           up = RANDOM(g, "up", N, I), y = EMPTY(g, "y", N, I), rstd = EMPTY(g, "rstd", N),
           dgain = EMPTY(g, "dgain", I), s = RANDOM(g, "s", N), d[2][KINDS];
    const Tensor each[] = {w[0], w[0], RANDOM(g, "u", O, I)};
    const Groups three = {3, (const int[]){0, 3, 3, N}};
    int place[2 * N];
    for (int i = 0; i < 2 * N; i++) place[i] = i * 3 % N;
    filled(dgain, 0);
    OP(g, rmsnorm, y, rstd, x, gain, 1e-5);
    for (int fresh = 0; fresh < 2; fresh++) {
        Tensor *t = d[fresh];
        for (int k = 0; k < KINDS; k++) {
            t[k] = filled(k == 10 ? EMPTY(g, "gradient", N) : EMPTY(g, "gradient", N, I), fresh ? (real)NAN : 0);
            t[k].fresh = fresh;
        }
        OP(g, linear_backward, t[0], ABSENT, ABSENT, dy[0], x, w[0]);
        OP(g, linear_many_backward, t[1], 2, (Projection[]){{.y = dy[0]}, {.y = dy[1]}}, x,
           (Projection[]){{.w = w[0]}, {.w = w[1]}});
        OP(g, swiglu_backward, ABSENT, t[2], t[3], g1, x, up);
        OP(g, gelu_backward, t[4], g1, x, true);
        OP(g, rmsnorm_backward, t[5], dgain, g1, x, gain, rstd);
        OP_WITHIN(g, linear_groups_backward, t[6], NULL, dy[0], x, three, each);
        OP(g, collect, t[7], x, place, 2);
        OP(g, swiglu_rows_backward, t[8], t[9], t[10], g1, x, up, s);
    }
    static const char *const name[] = {"linear",    "linear_many",   "swiglu's gate", "swiglu's up",       "gelu",
                                       "rmsnorm",   "linear_groups", "collect",       "swiglu_rows' gate", "its up",
                                       "its factor"};
    for (int k = 0; k < KINDS; k++) same(g, name[k], bf16, d[1][k], d[0][k]);
}
Test(ops, fresh_gradients_are_written) {
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++)
        for (int bf16 = 0; bf16 < (REAL == F32 ? 2 : 1); bf16++) {
            Rig g;
            Err e = {0};
            rig_open(&g, tables[k], 2, (size_t)4 << 20);
            cr_assert(!bf16 || device_bf16(g.dev, true, &e), "%s", e.msg);
            all_ops(&g, bf16);
            if (bf16) cr_assert(device_bf16(g.dev, false, &e), "%s", e.msg);
            rig_close(&g);
        }
}

/* ---- recurrences and what stands around them ------------------------------------------------------------------------
 */
enum { N = 150, B = 2, H = 2, HV = 4, K = 24, V = 18, C = 40, TAPS = 13, KINDS = 5, CASES = 16 };
typedef struct {
    Rig g;
    int off[B + 1], seq[B], of[N], pos[N], first[N], at[N];
} Place;
/* Two sequences; documents of 90, 30, 1 and 29 rows. */
static void place(Place *p, Table table, int threads) {
    *p = (Place){.off = {0, 120, N}, .seq = {0, 1}};
    rig_open(&p->g, table, threads, (size_t)32 << 20);
    for (int t = 0, begin = 0; t < N; t++) {
        if (t == 90 || t == 120 || t == 121) begin = t;
        p->of[t] = t >= 120, p->first[t] = begin, p->pos[t] = t - begin, p->at[t] = t;
    }
    p->g.batch = (Batch){.B = B, .N = N, .off = p->off, .seq = p->seq, .of = p->of, .pos = p->pos, .first = p->first};
    p->g.run.in = p->g.run.out = (Pick){N, p->at};
}

/* An op's gradients of one way of calling it. */
typedef struct {
    const char *op;
    int n;
    Tensor d[KINDS];
} Grads;
static Tensor grad(Rig *g, bool fresh, Tensor like) {
    Tensor t = arena_tensor(&g->mem, "gradient", REAL, like.rank, like.n); /* NaN */
    if (fresh) return as_fresh(t);
    memset(t.p, 0, tensor_bytes(t));
    return t;
}
#define LIKE(...) \
    { __VA_ARGS__ }
/* GRADS(op, (tensors it is the gradient of), arguments, in which D(i) is the i-th). */
#define D(i) (x->d[i])
#define GRADS(name, likes, ...)                                             \
    do {                                                                    \
        Tensor like_[] = LIKE likes;                                        \
        Grads *x = &out[n++];                                               \
        *x = (Grads){#name, (int)(sizeof like_ / sizeof *like_), {ABSENT}}; \
        for (int i = 0; i < x->n; i++) D(i) = grad(g, fresh, like_[i]);     \
        OP(g, name, __VA_ARGS__);                                           \
    } while (0)
static int all_grads(Rig *g, bool fresh, Grads out[CASES]) {
    int n = 0;
    Tensor x2 = RANDOM(g, "x", N, C), dy2 = RANDOM(g, "dy", N, C), taps = RANDOM(g, "taps", C, TAPS),
           x3 = RANDOM(g, "heads", N, HV, V), dy3 = RANDOM(g, "d heads", N, HV, V), z3 = RANDOM(g, "gate", N, HV, V),
           wide3 = RANDOM(g, "widened", N, HV, V + 1), row = RANDOM(g, "row", N, HV), bias = RANDOM(g, "bias", HV, V),
           rate = RANDOM(g, "rate", HV), gain = RANDOM(g, "gain", V), dtaps = grad(g, false, taps),
           dbias = grad(g, false, bias), drate = grad(g, false, rate),
           dgain = grad(g, false, gain); /* of weights: never fresh */
    for (int silu = 0; silu < 2; silu++)
        GRADS(short_conv_backward, (x2), D(0), dtaps, ABSENT, dy2, x2, taps, ABSENT, silu);
    GRADS(short_conv_backward, (x2), D(0), ABSENT, ABSENT, dy2, x2, ABSENT, ABSENT, true);
    GRADS(l2norm_backward, (x3), D(0), dy3, x3, 1e-6);
    for (int kind = GATE_SOFTPLUS; kind <= GATE_LOGSIGMOID; kind++)
        GRADS(decay_backward, (x3), D(0), ABSENT, dbias, dy3, x3, kind == GATE_LOGSIGMOID ? ABSENT : rate, bias,
              (Gate){(GateKind)kind, kind == GATE_BOUND ? -5 : 16});
    GRADS(sigmoid_backward, (x3), D(0), dy3, x3, 2);
    for (int before = 0; before < 2; before++)
        GRADS(gated_norm_backward, (x3, z3), D(0), D(1), dgain, dy3, x3, z3, gain,
              (GatedNorm){V, !before, before, 1e-5});
    GRADS(elu1_backward, (x3), D(0), dy3, x3);
    GRADS(widen_backward, (x3), D(0), wide3);
    GRADS(quotient_backward, (wide3), D(0), dy3, x3, wide3, 1e-2);
    GRADS(step_backward, (x3, row), D(0), D(1), drate, dy3, x3, row, rate);
    GRADS(skip_backward, (x3), D(0), drate, dy3, x3, rate);
    cr_assert(n == CASES - 1);
    return n;
}
/* The recurrence with fewer keys than values' heads, and as many. */
static int recur_grads(Rig *g, bool fresh, Grads out[CASES]) {
    int n = 0;
    for (int k = 0; k < 4; k += cuda_ops() ? 3 : 1) { /* an emulation is slow: each way once */
        Recur x = {RANDOM(g, "q", N, k & 1 ? HV : H, K), RANDOM(g, "k", N, k & 1 ? HV : H, K), RANDOM(g, "v", N, HV, V),
                   RANDOM(g, "g", N, HV, k & 2 ? K : 1), RANDOM(g, "beta", N, HV)};
        for (size_t i = 0; i < tensor_count(x.g); i++) R(x.g)[i] = (real)-fabs((double)R(x.g)[i]);
        for (size_t i = 0; i < tensor_count(x.k); i++) R(x.k)[i] *= (real)0.2; /* so that the correction stays one */
        Tensor o = EMPTY(g, "o", N, HV, V), keep = EMPTY(g, "keep", recur_keep(N), HV, K, V),
               dout = RANDOM(g, "do", N, HV, V);
        OP(g, recur, o, keep, x, 0.3, ABSENT, 0);
        Tensor no_beta = {.p = NULL};
        if (k == 3) x.beta = no_beta;
        Tensor like[] = {x.q, x.k, x.v, x.g, x.beta};
        Grads *to = &out[n++];
        *to = (Grads){"recur_backward", k == 3 ? 4 : 5, {ABSENT}};
        for (int i = 0; i < to->n; i++) to->d[i] = grad(g, fresh, like[i]);
        const Recur d = {to->d[0], to->d[1], to->d[2], to->d[3], to->d[4]};
        OP(g, recur_backward, &d, dout, x, 0.3, keep, NULL);
    }
    return n;
}
static void compare(int (*make)(Rig *, bool, Grads *)) {
    Table tables[TABLES_MAX];
    for (int k = 0, count = rig_tables(tables); k < count; k++)
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Place p;
            place(&p, tables[k], threads);
            Grads sum[CASES], fresh[CASES];
            int n = make(&p.g, false, sum), m = make(&p.g, true, fresh);
            cr_assert(n == m && n > 0);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < sum[i].n; j++)
                    for (size_t e = 0; e < tensor_count(sum[i].d[j]); e++) {
                        real want = R(sum[i].d[j])[e], got = R(fresh[i].d[j])[e];
                        cr_assert(got == want,
                                  "%s, %d threads: %s (case %d), gradient %d, number %zu: %g instead of %g", p.g.table,
                                  threads, sum[i].op, i, j, e, (double)got, (double)want);
                    }
            rig_close(&p.g);
        }
}
Test(ops, fresh_gradients_around_a_recurrence) { compare(all_grads); }
Test(ops, fresh_gradients_of_a_recurrence) { compare(recur_grads); }
