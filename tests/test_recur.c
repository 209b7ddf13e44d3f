/* test_recur.c: the gated delta rule and its special cases against a reference in wide numbers. */
#include "recur_ref.h"

/* ---- the reference itself, against five-point differences ---------------------------------------------------------
 */
static wide inner(const wide *a, const wide *b, size_t n) {
    wide s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
static void reference_gradient(int gwidth, bool delta) {
    Scene *c = recur_case(3, (int[]){5, 4, 3}, (int[]){3, 4, 1, 2}, 4, 2, 4, 3, 2, gwidth, delta, true);
    size_t N = (size_t)c->N, no = N * (size_t)(c->HV * c->V), nS = (size_t)(c->nseq * c->HV * c->K * c->V);
    wide *dout = recur_weights(no, 1), *dend = recur_weights(nS, 2);
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
static void check_tables(const Scene *c, const char *what) {
    Table tables[TABLES_MAX];
    double worst = 0;
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 1 + k % 3, (size_t)64 << 20);
        worst = fmax(worst, recur_hold(&g, c));
        rig_close(&g);
    }
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

/* ---- inputs that break careless forms -----------------------------------------------------------------------------
 */
typedef void Spoil(Scene *);
static void set(wide *x, size_t n, wide v) {
    for (size_t i = 0; i < n; i++) x[i] = (real)v;
}
static size_t gates_of(const Scene *c) { return (size_t)(c->N * c->HV * c->gwidth); }
static size_t steps_of(const Scene *c) { return (size_t)(c->N * c->HV); }
/* One key for all tokens, whole steps, no decay: powers of L explode, its inverse does not. */
static void one_key(Scene *c) {
    for (int i = 0; i < c->N * c->H; i++)
        for (int d = 0; d < c->K; d++) c->k[i * c->K + d] = c->k[d];
    set(c->beta, steps_of(c), 0.999);
    set(c->g, gates_of(c), -1e-4);
}
static void one_key_exactly(Scene *c) {
    one_key(c);
    set(c->beta, steps_of(c), 1);
    set(c->g, gates_of(c), 0);
}
static void overshooting(Scene *c) { /* negative eigenvalues */
    for (size_t i = 0; i < steps_of(c); i++) c->beta[i] = (real)(2 * c->beta[i]);
}
static void at_the_bound(Scene *c) { set(c->g, gates_of(c), -5); }
static void strong(Scene *c) { set(c->g, gates_of(c), -100); }
/* Strong decays before weak ones: differences of their sums have lost the weak. */
static void strong_then_weak(Scene *c) {
    for (size_t i = 0; i < gates_of(c); i++) c->g[i] = (real)(i / (size_t)(c->HV * c->gwidth) % 23 < 5 ? -90 : -0.01);
}
static void now_and_then(Scene *c) { /* channels that forget all beside channels that forget nothing */
    for (size_t i = 0; i < gates_of(c); i++) c->g[i] = i % 7 == 3 ? -80 : i % 2 ? 0 : (real)-1e-3;
}
static void no_step(Scene *c) {
    for (size_t i = 0; i < steps_of(c); i += 3) c->beta[i] = 0;
}
static void no_key(Scene *c) {
    for (int i = 0; i < c->N * c->H; i += 3) set(c->k + i * c->K, (size_t)c->K, 0);
}
Test(recur, hard_inputs, .timeout = 120) {
    static const struct {
        const char *name;
        Spoil *spoil;
    } hard[] = {{"one key", one_key},
                {"one key exactly", one_key_exactly},
                {"beta up to 2", overshooting},
                {"decay of -5", at_the_bound},
                {"decay of -100", strong},
                {"strong then weak", strong_then_weak},
                {"channels apart", now_and_then},
                {"beta 0", no_step},
                {"zero keys", no_key}};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
        for (int k = 0; k < 4; k++) {
            char what[96];
            Scene *c = recur_case(3, (int[]){130, 17, 150}, (int[]){200, 3, 64, 80}, 4, 2, 4, 9, 7, k % 2 ? 9 : 1,
                                  k < 2 || hard[i].spoil == overshooting, true);
            hard[i].spoil(c);
            snprintf(what, sizeof what, "%s, delta %d, decay %d", hard[i].name, c->delta, c->gwidth);
            check_tables(c, what);
            recur_case_free(c);
        }
}
/* Every length around the sizes of blocks and chunks, alone and behind a history; widths around those of vectors. */
Test(recur, every_length, .timeout = 120) {
    for (int n = 1; n <= 150; n += n < 36 || (n > 60 && n < 70) ? 1 : 13)
        for (int history = 0; history < 2; history++) {
            Scene *c = recur_case(2, (int[]){history ? 0 : n, n}, (int[]){n}, 1, 1, 2, 5 + n % 3, 3 + n % 17, 5 + n % 3,
                                  true, history);
            check_tables(c, "lengths");
            recur_case_free(c);
        }
}
Test(recur, every_width, .timeout = 120) {
    static const int widths[] = {1, 2, 8, 15, 16, 17, 33, 64, 128};
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 9; j += 1 + (i + j) % 2) {
            Scene *c = recur_case(1, (int[]){67}, (int[]){67}, 1, 1, 1, widths[i], widths[j], widths[i], true, false);
            check_tables(c, "widths");
            recur_case_free(c);
        }
}
