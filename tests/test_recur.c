/* test_recur.c: the gated delta rule and its special cases against a reference in wide numbers. */
#include "recur_ref.h"

/* ---- the reference itself, against five-point differences ---------------------------------------------------------
 */
static wide inner(const wide *a, const wide *b, size_t n) {
    wide s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
static wide *weights(size_t n, int salt) {
    wide *w = xcalloc(n + 1, sizeof *w);
    for (size_t i = 0; i < n; i++) w[i] = (real)rng_normal(77 + (uint64_t)salt, i);
    return w;
}
static void reference_gradient(int gwidth, bool delta) {
    Scene *c = recur_case(3, (int[]){5, 4, 3}, (int[]){3, 4, 1, 2}, 4, 2, 4, 3, 2, gwidth, delta, true);
    size_t N = (size_t)c->N, no = N * (size_t)(c->HV * c->V), nS = (size_t)(c->nseq * c->HV * c->K * c->V);
    wide *dout = weights(no, 1), *dend = weights(nS, 2);
    for (int s = 0; s < c->nseq; s++) /* sequences without rows keep their state, which is not the op's business */
        if (s < 2) memset(dend + (size_t)s * (nS / (size_t)c->nseq), 0, nS / (size_t)c->nseq * sizeof(wide));
    Result r = recur_ref(c, dout, dend);
    struct {
        const char *name;
        wide *x, *d;
        size_t n;
    } in[] = {{"q", c->q, r.dq, N * (size_t)(c->H * c->K)},
              {"k", c->k, r.dk, N * (size_t)(c->H * c->K)},
              {"v", c->v, r.dv, no},
              {"g", c->g, r.dg, N * (size_t)(c->HV * gwidth)},
              {"beta", c->beta, r.dbeta, N * (size_t)(delta ? c->HV : 0)},
              {"start", c->start, r.dstart, nS}};
    for (size_t k = 0; k < sizeof in / sizeof *in; k++)
        for (size_t i = 0; i < in[k].n; i++) {
            const wide h = 1e-3L, old = in[k].x[i];
            wide f[4];
            for (int s = 0; s < 4; s++) {
                in[k].x[i] = old + h * (wide[]){-2, -1, 1, 2}[s];
                Result e = recur_ref(c, NULL, NULL);
                f[s] = inner(dout, e.o, no) + inner(dend, e.end, nS);
                result_free(&e);
            }
            in[k].x[i] = old;
            wide want = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h), err = fabsl(in[k].d[i] - want);
            cr_assert(err <= 1e-10L * (1 + fabsl(want)), "d%s[%zu] = %.12Lg, differences say %.12Lg", in[k].name, i,
                      in[k].d[i], want);
        }
    result_free(&r), recur_case_free(c), free(dout), free(dend);
}
Test(recur, reference_gradient) {
    for (int k = 0; k < 6; k++) reference_gradient((int[]){0, 1, 3}[k % 3], k < 3);
}

/* ---- the ops ------------------------------------------------------------------------------------------------------
 */
static Tensor narrowed(Rig *g, const char *name, const wide *x, int a, int b, int c) {
    Tensor t = EMPTY(g, name, a, b, c);
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)x[i];
    return t;
}
/* Root of the mean square error, by the root of the mean square wanted. */
static void close_to(const char *what, const char *table, Tensor got, const wide *want, double tol, double *worst) {
    wide e = 0, all = 0, w = 0;
    size_t n = tensor_count(got), at = 0;
    for (size_t i = 0; i < n; i++) {
        wide d = R(got)[i] - want[i];
        e += d * d, all += want[i] * want[i];
        if (!(fabsl(d) <= w)) w = fabsl(d), at = i;
    }
    double err = (double)(e == 0 ? 0 : sqrtl(e / all));
    cr_assert(err <= tol, "%s, %s: error %.3g (bound %g), worst at %zu: got %.9g, want %.9Lg", table, what, err, tol,
              at, (double)R(got)[at], want[at]);
    if (err > *worst) *worst = err;
}
static const double tolerance = REAL == F64 ? 1e-12 : 1e-4;

static double check_case(const Scene *c, Table table, int threads) {
    Rig g;
    double worst = 0;
    int N = c->N, H = c->H, HV = c->HV, K = c->K, V = c->V, KV = K * V;
    size_t no = (size_t)(N * HV * V), nS = (size_t)(c->nseq * HV * KV);
    wide *dout = weights(no, 1), *dend = weights(nS, 2);
    Result want = recur_ref(c, dout, dend);
    rig_open(&g, table, threads, (size_t)64 << 20);
    g.batch = recur_batch(c);
    int *idx = xcalloc((size_t)N + 1, sizeof *idx);
    for (int i = 0; i < N; i++) idx[i] = i;
    g.run.in = g.run.out = (Pick){N, idx};
    Recur x = {narrowed(&g, "q", c->q, N, H, K), narrowed(&g, "k", c->k, N, H, K), narrowed(&g, "v", c->v, N, HV, V),
               c->gwidth ? narrowed(&g, "g", c->g, N, HV, c->gwidth) : ABSENT,
               c->delta ? narrowed(&g, "beta", c->beta, N, HV, 1) : ABSENT};
    Tensor o = EMPTY(&g, "o", N, HV, V), keep = EMPTY(&g, "keep", recur_keep(N), HV, K, V),
           state = EMPTY(&g, "state", c->nseq, 3 + HV * KV + 2), again = EMPTY(&g, "o again", N, HV, V);
    for (int s = 0; s < c->nseq; s++)
        for (int i = 0; i < HV * KV; i++) R(state)[s * state.n[1] + 3 + i] = (real)c->start[s * HV * KV + i];
    g.run.mode = RUN_HOLD;
    OP(&g, recur, again, ABSENT, x, c->scale, state, 3);
    Tensor copy = tensor_copy(&g, state);
    g.run.mode = 0;
    OP(&g, recur, o, keep, x, c->scale, state, 3);
    CHECK_BYTES("o of a held pass", again.p, o.p, tensor_bytes(o));
    close_to("o", table.name, o, want.o, tolerance, &worst);
    Tensor end = EMPTY(&g, "end", c->nseq, HV, KV);
    for (int s = 0; s < c->nseq; s++) {
        CHECK_BYTES("state that is not ours", R(state) + s * state.n[1], R(copy) + s * state.n[1], 3 * sizeof(real));
        CHECK_BYTES("state that is not ours", R(state) + s * state.n[1] + 3 + HV * KV,
                    R(copy) + s * state.n[1] + 3 + HV * KV, 2 * sizeof(real));
        for (int i = 0; i < HV * KV; i++) {
            R(end)[s * HV * KV + i] = R(state)[s * state.n[1] + 3 + i];
            cr_assert(R(copy)[s * state.n[1] + 3 + i] == (real)c->start[s * HV * KV + i], "a held pass wrote a state");
        }
    }
    close_to("final state", table.name, end, want.end, tolerance, &worst);
    rig_result(&g, o), rig_result(&g, end);

    Recur d = {EMPTY(&g, "dq", N, H, K), EMPTY(&g, "dk", N, H, K), EMPTY(&g, "dv", N, HV, V),
               c->gwidth ? EMPTY(&g, "dg", N, HV, c->gwidth) : ABSENT, c->delta ? EMPTY(&g, "dbeta", N, HV) : ABSENT};
    Tensor dstart = EMPTY(&g, "dstart", c->nseq, HV, K, V), all[] = {d.q, d.k, d.v, d.g, d.beta, dstart};
    for (int i = 0; i < 6; i++)
        if (present(all[i])) memset(all[i].p, 0, tensor_bytes(all[i]));
    RecurEnds ends = {TENSOR(NULL, REAL, c->nseq, HV, K, V), dstart, TENSOR(NULL, REAL, c->nseq, HV, K, V)};
    ends.start = narrowed(&g, "start", c->start, c->nseq, HV, KV);
    ends.dend = narrowed(&g, "dend", dend, c->nseq, HV, KV);
    Tensor go = narrowed(&g, "dout", dout, N, HV, V);
    OP(&g, recur_backward, &d, go, x, c->scale, keep, &ends);
    const wide *wanted[] = {want.dq, want.dk, want.dv, want.dg, want.dbeta, want.dstart};
    const char *names[] = {"dq", "dk", "dv", "dg", "dbeta", "dstart"};
    for (int i = 0; i < 6; i++)
        if (present(all[i]))
            close_to(names[i], table.name, all[i], wanted[i], tolerance, &worst), rig_result(&g, all[i]);
    result_free(&want), free(dout), free(dend), free(idx);
    rig_close(&g);
    return worst;
}
static void check_tables(const Scene *c, const char *what) {
    Table tables[TABLES_MAX];
    double worst = 0;
    for (int k = 0, n = rig_tables(tables); k < n; k++) worst = fmax(worst, check_case(c, tables[k], 1 + k % 3));
    if (getenv("CHECK_VERBOSE")) fprintf(stderr, "recur %s: worst %.3g\n", what, worst);
}
Test(recur, every_rule, .timeout = 120) {
    for (int k = 0; k < 12; k++) {
        char what[96];
        bool delta = k & 1;
        int gwidth = (int[]){0, 1, 6}[k / 2 % 3];
        Scene *c = recur_case(4, (int[]){150, 0, 70, 200}, (int[]){64, 1, 20, 65, 3, 130}, 6, 2, k < 6 ? 2 : 4, 6, 5,
                              gwidth, delta, true);
        snprintf(what, sizeof what, "delta %d, decay %d, %d value heads", delta, gwidth, c->HV);
        check_tables(c, what);
        recur_case_free(c);
    }
}
