/* test_recur.c: the gated delta rule and its special cases against a reference in wide numbers. */
#include "tests/lib/recur_ref.h"
#include <criterion/redirect.h>
#include <signal.h>

/* ---- the reference itself, against five-point differences ---------------------------------------------------------
 */
static wide inner(const wide *a, const wide *b, size_t n) {
    wide s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
static void reference_gradient(int gwidth, bool delta, bool erase) {
    Scene *c = recur_case(3, (int[]){5, 4, 3}, (int[]){3, 4, 1, 2}, 4, 2, 4, 3, 2, gwidth, delta, true);
    if (erase) recur_erase(c);
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
              {"e", c->e, r.de, N * (size_t)(erase ? c->H * c->K : 0)},
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
            wide want = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h), err = wide_fabs(in[k].d[i] - want);
            cr_assert(err <= 1e-10L * (1 + wide_fabs(want)), "d%s[%zu] = %.12g, differences say %.12g", in[k].name, i,
                      (double)in[k].d[i], (double)want);
        }
    result_free(&r), recur_case_free(c), free(dout), free(dend);
}
Test(recur, reference_gradient) {
    for (int k = 0; k < 12; k++) reference_gradient((int[]){0, 1, 3}[k % 3], k / 3 & 1, k >= 6);
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
    for (int k = 0; k < 24; k++) { /* without and with erase keys */
        char what[96];
        bool delta = k & 1;
        int gwidth = (int[]){0, 1, 6}[k / 2 % 3];
        Scene *c = recur_case(4, (int[]){150, 0, 70, 200}, (int[]){64, 1, 20, 65, 3, 130}, 6, 2, k % 12 < 6 ? 2 : 4, 6,
                              5, gwidth, delta, true);
        if (k >= 12) recur_erase(c);
        snprintf(what, sizeof what, "delta %d, decay %d, %d value heads, erase %d", delta, gwidth, c->HV, k >= 12);
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
/* rounded: bound in bf16. Of one key nearly everything is taken out again that was put in: what is left, of o and of
 * the decays' gradients, is small next to the operands that are rounded. */
static const struct {
    const char *name;
    Spoil *spoil;
    double rounded;
} hard[] = {{"one key", one_key, 1e-1},
            {"one key exactly", one_key_exactly, 1e-1},
            {"beta up to 2", overshooting, 8e-3},
            {"decay of -5", at_the_bound, 8e-3},
            {"decay of -100", strong, 8e-3},
            {"strong then weak", strong_then_weak, 8e-3},
            {"channels apart", now_and_then, 8e-3},
            {"beta 0", no_step, 8e-3},
            {"zero keys", no_key, 8e-3}};
Test(recur, hard_inputs, .timeout = 120) {
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
        for (int k = 0; k < 6; k++) { /* the last two with erase keys and without beta */
            char what[96];
            Scene *c = recur_case(3, (int[]){130, 17, 150}, (int[]){200, 3, 64, 80}, 4, 2, 4, 9, 7, k % 2 ? 9 : 1,
                                  k < 2 || hard[i].spoil == overshooting, true);
            hard[i].spoil(c);
            if (k >= 4) recur_erase(c);
            snprintf(what, sizeof what, "%s, delta %d, decay %d", hard[i].name, c->delta, c->gwidth);
            check_tables(c, what);
            recur_case_free(c);
        }
}
#ifndef KV_DOUBLE /* the bounds of bf16 are no tighter in double */
Test(recur, hard_inputs_in_bf16, .timeout = 120) {
    if (cuda_ops()) return; /* tests/simt */
    for (int k = 0; k < 2 * (int)(sizeof hard / sizeof *hard); k++) {
        Table tables[TABLES_MAX];
        double err[RECUR_RESULTS];
        Worst at[RECUR_RESULTS];
        Rig g;
        Scene *c =
            recur_case(3, (int[]){70, 17, 66}, (int[]){100, 3, 40, 80}, 4, 1, 2, 32, 32, k % 2 ? 32 : 1, true, true);
        hard[k / 2].spoil(c);
        if (k / 2 % 2) recur_erase(c);
        rig_open(&g, tables[rig_pairs(tables) - 1], 1, (size_t)64 << 20); /* ops/recur_in_bf16 has all */
        g.dev->pairs = true;
        recur_apart(&g, c, c, err, at);
        for (int r = 0; r < RECUR_RESULTS; r++)
            cr_assert(err[r] <= hard[k / 2].rounded,
                      "%s, %s, decay %d, %s: %.3g off (bound %g), worst at %zu: got %.9g, want %.9g", g.table,
                      hard[k / 2].name, c->gwidth, recur_results[r], err[r], hard[k / 2].rounded, at[r].i, at[r].got,
                      at[r].want);
        rig_close(&g);
        recur_case_free(c);
    }
}
#endif
/* Every length around the sizes of blocks and chunks, alone and behind a history; widths around those of vectors. */
Test(recur, every_length, .timeout = 120) {
    for (int n = 1; n <= 150; n += n < 36 || (n > 60 && n < 70) ? 1 : 13)
        for (int k = 0; k < 8; k++) {
            bool history = k & 1;
            int K = 5 + n % 3, gwidth = (int[]){K, 1, 0, K}[k / 2];
            Scene *c = recur_case(2, (int[]){history ? 0 : n, n}, (int[]){n}, 1, 1, 2, K, 3 + n % 17, gwidth,
                                  k < 2 || n % 2, history);
            if (k >= 6) recur_erase(c);
            check_tables(c, "lengths");
            recur_case_free(c);
        }
}
Test(recur, every_width, .timeout = 120) {
    static const int widths[] = {1, 2, 8, 15, 16, 17, 33, 64, 128};
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 9; j++) { /* a decay for each channel, or one */
            int gwidth = (i + j) % 2 ? 1 : widths[i];
            Scene *c = recur_case(1, (int[]){67}, (int[]){67}, 1, 1, 1, widths[i], widths[j], gwidth, true, false);
            if (i % 2) recur_erase(c);
            check_tables(c, "widths");
            recur_case_free(c);
        }
}

/* ---- identities between the rules ---------------------------------------------------------------------------------
 */
/* What an op makes of a scene, forward and backward, in one row of numbers. */
typedef struct {
    Rig g;
    Recur x, d;
    Tensor o, dout;
} Made;
static void make(Made *m, const Scene *c) {
    Table tables[TABLES_MAX];
    int N = c->N, last = rig_tables(tables) - 1, *idx = xcalloc((size_t)N + 1, sizeof *idx);
    Rig *g = &m->g;
    rig_open(g, tables[last], 1, (size_t)16 << 20);
    g->batch = recur_batch(c);
    for (int i = 0; i < N; i++) idx[i] = i;
    g->run.in = g->run.out = (RowList){N, idx};
    const int at[6][3] = {{N, c->H, c->K},       {N, c->H, c->K}, {N, c->HV, c->V},
                          {N, c->HV, c->gwidth}, {N, c->HV, 1},   {N, c->H, c->K}};
    const wide *from[] = {c->q, c->k, c->v, c->g, c->beta, c->e};
    Tensor x[6], d[6];
    for (int i = 0; i < 6; i++) {
        x[i] = d[i] = ABSENT;
        if ((i == 3 && !c->gwidth) || (i == 4 && !c->delta) || (i == 5 && !c->e)) continue;
        x[i] = EMPTY(g, "x", at[i][0], at[i][1], at[i][2]), d[i] = EMPTY(g, "d", at[i][0], at[i][1], at[i][2]);
        memset(d[i].p, 0, tensor_bytes(d[i]));
        for (size_t k = 0; k < tensor_count(x[i]); k++) R(x[i])[k] = (real)from[i][k];
    }
    m->x = (Recur){x[0], x[1], x[2], x[3], x[4], x[5]}, m->d = (Recur){d[0], d[1], d[2], d[3], d[4], d[5]};
    m->o = EMPTY(g, "o", N, c->HV, c->V), m->dout = RANDOM(g, "dout", N, c->HV, c->V);
    Tensor keep = EMPTY(g, "keep", recur_keep(N), c->HV, c->K, c->V);
    OP(g, recur, m->o, keep, m->x, c->scale, ABSENT, 0);
    OP(g, recur_backward, (RecurInto[]){recur_add_to(m->d)}, m->dout, m->x, c->scale, keep, NULL);
    free(idx);
}
static void same(const Made *a, const Made *b, const char *what) {
    const double tol = REAL == F64 ? 1e-12 : 1e-5;
    CHECK_RELATIVE(what, R(a->o), R(b->o), tensor_count(a->o), tol);
    CHECK_RELATIVE(what, R(a->d.q), R(b->d.q), tensor_count(a->d.q), tol);
    CHECK_RELATIVE(what, R(a->d.k), R(b->d.k), tensor_count(a->d.k), tol);
    CHECK_RELATIVE(what, R(a->d.v), R(b->d.v), tensor_count(a->d.v), tol);
}
static Scene *scene_of(int gwidth, bool delta, int HV) {
    return recur_case(2, (int[]){140, 90}, (int[]){100, 30}, 2, 2, HV, 8, 6, gwidth, delta, false);
}
static Scene *scene(int gwidth, bool delta) { return scene_of(gwidth, delta, 4); }
/* Kimi Delta Attention whose channels decay alike is the gated delta rule, and the gates' gradients sum to its own. */
Test(recur, alike_channels_are_one_gate) {
    Scene *kda = scene(8, true), *gdn = scene(1, true);
    int gates = gdn->N * gdn->HV;
    for (int i = 0; i < gates * 8; i++) kda->g[i] = gdn->g[i / 8];
    Made a, b;
    make(&a, kda), make(&b, gdn);
    same(&a, &b, "kda and gated delta rule");
    real *sum = xcalloc((size_t)gates, sizeof *sum);
    for (int i = 0; i < gates * 8; i++) sum[i / 8] += R(a.d.g)[i];
    CHECK_RELATIVE("d g", sum, R(b.d.g), (size_t)gates, REAL == F64 ? 1e-12 : 1e-4);
    CHECK_RELATIVE("d beta", R(a.d.beta), R(b.d.beta), (size_t)gates, REAL == F64 ? 1e-12 : 1e-5);
    free(sum), rig_close(&a.g), rig_close(&b.g), recur_case_free(kda), recur_case_free(gdn);
}
/* Gated DeltaNet-2 with equal gates, e = beta k and v = beta v, is Kimi Delta Attention; with one decay per head, the
 * gated delta rule. The gradients of both are connected by the chain rule: dk gains beta de, and dv is beta dv'. */
Test(recur, equal_gates_are_one_step) {
    for (int gwidth = 1; gwidth <= 8; gwidth += 7) {
        Scene *two = scene_of(gwidth, false, 2), *one = scene_of(gwidth, true, 2);
        two->e = xcalloc((size_t)(two->N * two->H * two->K), sizeof *two->e);
        for (int i = 0; i < two->N * two->H * two->K; i++) two->e[i] = one->beta[i / two->K] * one->k[i];
        for (int i = 0; i < two->N * two->HV * two->V; i++) two->v[i] = one->beta[i / two->V] * one->v[i];
        Made a, b;
        make(&a, two), make(&b, one);
        for (size_t i = 0; i < tensor_count(a.d.k); i++) R(a.d.k)[i] += (real)one->beta[i / 8] * R(a.d.e)[i];
        for (size_t i = 0; i < tensor_count(a.d.v); i++) R(a.d.v)[i] *= (real)one->beta[i / 6];
        same(&a, &b, "equal gates");
        CHECK_RELATIVE("d g", R(a.d.g), R(b.d.g), tensor_count(a.d.g), REAL == F64 ? 1e-12 : 1e-4);
        rig_close(&a.g), rig_close(&b.g), recur_case_free(two), recur_case_free(one);
    }
}
/* An erase key that is k changes nothing; the two gradients of k, as it is written and as it erases, add up to one. */
Test(recur, erasing_by_the_key_is_the_delta_rule) {
    for (int k = 0; k < 3; k++) {
        const int gwidth = (int[]){0, 1, 8}[k];
        Scene *with = scene(gwidth, true), *without = scene(gwidth, true);
        with->e = xcalloc((size_t)(with->N * with->H * with->K), sizeof *with->e);
        memcpy(with->e, with->k, (size_t)(with->N * with->H * with->K) * sizeof *with->e);
        Made a, b;
        make(&a, with), make(&b, without);
        for (size_t i = 0; i < tensor_count(a.d.k); i++) R(a.d.k)[i] += R(a.d.e)[i];
        same(&a, &b, "an erase key that is k");
        rig_close(&a.g), rig_close(&b.g), recur_case_free(with), recur_case_free(without);
    }
}
Test(recur, a_decay_of_zero_is_none) {
    for (int delta = 0; delta < 2; delta++) {
        Scene *with = scene(8, delta), *without = scene(0, delta);
        set(with->g, gates_of(with), 0);
        Made a, b;
        make(&a, with), make(&b, without);
        same(&a, &b, "no decay");
        rig_close(&a.g), rig_close(&b.g), recur_case_free(with), recur_case_free(without);
    }
}
/* Orthogonal keys: nothing is there to correct, and a whole step of the delta rule is plain accumulation. */
Test(recur, orthogonal_keys_need_no_correction) {
    int rows[] = {8, 8};
    Scene *delta = recur_case(2, rows, rows, 1, 1, 1, 8, 6, 0, true, false),
          *plain = recur_case(2, rows, rows, 1, 1, 1, 8, 6, 0, false, false);
    for (int i = 0; i < 16 * 8; i++) delta->k[i] = plain->k[i] = i % 8 == i / 8 % 8;
    set(delta->beta, 16, 1);
    Made a, b;
    make(&a, delta), make(&b, plain);
    CHECK_RELATIVE("o", R(a.o), R(b.o), tensor_count(a.o), 1e-6);
    rig_close(&a.g), rig_close(&b.g), recur_case_free(delta), recur_case_free(plain);
}
/* A row that continues a history without a state is our own mistake. */
Test(recur, history_without_a_state, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Scene *c = recur_case(2, (int[]){3, 9}, (int[]){9}, 1, 1, 1, 4, 4, 4, true, true);
    Made a;
    make(&a, c);
}
