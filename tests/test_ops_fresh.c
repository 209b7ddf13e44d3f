/* test_ops_fresh.c: gradients of the ops around a recurrence and of itself, once added to zeros and once `fresh` in
 * memory of NaN: the same numbers. (Ops of activations that may be BF16 have theirs in test_ops_acts.c.) */
#include "rig.h"

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
    for (int k = 0; k < 4; k++) {
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
