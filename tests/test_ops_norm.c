/* test_ops_norm.c: LayerNorm and GELU against their formulas in a wider type. */
#include "rig.h"

static const double eps = 1e-5;

/* Rows of a common offset, so that the mean matters, one of equal numbers and one of zeros. */
static Tensor rows_of(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, d);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < d; k++) {
            real *v = R(x) + i * d + k;
            *v = i == 1 ? (real)0.5 : i == 2 ? 0 : *v + (real)0.7;
        }
    return x;
}
static wide mean_ref(const real *x, int d) {
    wide s = 0;
    for (int k = 0; k < d; k++) s += x[k];
    return s / d;
}
static wide rstd_ref(const real *x, int d, wide e) {
    wide m = mean_ref(x, d), s = 0;
    for (int k = 0; k < d; k++) s += (x[k] - m) * (x[k] - m);
    return 1 / sqrtl(s / d + e);
}

void case_layernorm(Rig *g, int N, int d) {
    Tensor x = rows_of(g, N, d), w = RANDOM(g, "w", d), b = RANDOM(g, "b", d), y = EMPTY(g, "y", N, d),
           s = EMPTY(g, "s", N);
    Ref *ry = refs((size_t)(N * d)), *rs = refs((size_t)N), *bare = refs((size_t)(N * d));
    for (int i = 0; i < N; i++) {
        const real *xi = R(x) + i * d;
        wide m = mean_ref(xi, d), r = rstd_ref(xi, d, eps);
        ref_add(&rs[i], r);
        for (int k = 0; k < d; k++) {
            Ref *v = &ry[i * d + k];
            ref_add(v, (xi[k] - m) * r * R(w)[k]), ref_add(v, R(b)[k]);
            v->square += powl(m * r * R(w)[k], 2); /* x - mean(x) cancels: its error is that of the mean */
            ref_add(&bare[i * d + k], xi[k] * r * R(w)[k] + R(b)[k]);
        }
    }
    OP(g, layernorm, y, s, x, w, b, eps);
    CHECK_REF(g, "layernorm", "y", y, ry);
    if (d > 1) CHECK_REF(g, "layernorm", "rstd", s, rs);
    if (N && d > 1) CHECK_MISSED("layernorm", "a mean left in", y, bare);
    free(ry), free(rs), free(bare);
}
OP_TEST(layernorm, EXACT)

void case_layernorm_backward(Rig *g, int N, int d) {
    Tensor x = rows_of(g, N, d), w = RANDOM(g, "w", d), dy = RANDOM(g, "dy", N, d), s = EMPTY(g, "s", N),
           dx = RANDOM(g, "dx", N, d), dw = RANDOM(g, "dw", d), db = RANDOM(g, "db", d);
    Ref *rx = refs_of(dx), *rw = refs_of(dw), *rb = refs_of(db);
    for (int i = 0; i < N; i++) {
        const real *xi = R(x) + i * d, *gi = R(dy) + i * d;
        R(s)[i] = (real)rstd_ref(xi, d, eps);
        wide m = mean_ref(xi, d), r = R(s)[i], t = 0, tn = 0, t2 = 0, tn2 = 0;
        for (int k = 0; k < d; k++) {
            wide v = (wide)gi[k] * R(w)[k], n = (xi[k] - m) * r;
            t += v / d, tn += v * n / d, t2 += v * v / d / d, tn2 += v * v * (n * n + m * m * r * r) / d / d;
        }
        for (int k = 0; k < d; k++) {
            wide n = (xi[k] - m) * r;
            Ref *v = &rx[i * d + k];
            ref_add(v, r * gi[k] * R(w)[k]);
            v->want -= r * (t + n * tn);
            v->square += r * r * (t2 + (n * n + m * m * r * r) * tn2 + m * m * r * r * tn * tn);
            v->terms += d;
            ref_add(&rw[k], gi[k] * n);
            rw[k].square += powl(gi[k] * m * r, 2);
            ref_add(&rb[k], gi[k]);
        }
    }
    OP(g, layernorm_backward, dx, dw, db, dy, x, w, s);
    CHECK_REF(g, "layernorm_backward", "dx", dx, rx);
    CHECK_REF(g, "layernorm_backward", "dw", dw, rw);
    CHECK_REF(g, "layernorm_backward", "db", db, rb);
    free(rx), free(rw), free(rb);
}
OP_TEST(layernorm_backward, EXACT)

/* ---- GELU ----------------------------------------------------------------------------------------------------------
 */
static const wide pi = 3.14159265358979323846264338327950288L;
/* (1 + tanh u)/2 without what cancels in it. */
static wide half_tanh(wide x) { return 1 / (1 + expl(-2 * sqrtl(2 / pi) * (x + 0.044715L * x * x * x))); }
static wide part(wide x, bool tanh) { return tanh ? half_tanh(x) : erfcl(-x / sqrtl(2)) / 2; }
static wide slope(wide x, bool tanh) {
    wide s = half_tanh(x);
    return tanh ? 2 * s * (1 - s) * sqrtl(2 / pi) * (1 + 3 * 0.044715L * x * x) : expl(-x * x / 2) / sqrtl(2 * pi);
}
static Tensor inputs(Rig *g, int N, int d) {
    const real odd[] = {0, -5, 5, -12, 12, 100, -100, (real)1e-6};
    Tensor x = RANDOM(g, "x", N, d);
    for (int i = 0; i < N * d; i++) R(x)[i] = i % 5 == 4 ? odd[i / 5 % 8] : R(x)[i] * 2;
    return x;
}
/* What cancels where x is far below 0: 1 + erf, whose error is that of 1; the exponent's error grows with it. */
static wide size_of(wide x, wide v, bool tanh) {
    return tanh ? fabsl(v) * (2 + x * x) + 1e-25L : fabsl(v) + fabsl(x) / 4;
}
void case_gelu(Rig *g, int N, int d) {
    for (int tanh = 0; tanh < 2; tanh++) {
        Mark mark = arena_mark(&g->mem);
        Tensor x = inputs(g, N, d), y = EMPTY(g, "y", N, d);
        Ref *want = refs((size_t)(N * d)), *other = refs((size_t)(N * d));
        for (int i = 0; i < N * d; i++) {
            wide v = R(x)[i] * part(R(x)[i], tanh), z = size_of(R(x)[i], v, tanh);
            want[i] = (Ref){v, z * z, 1};
            other[i] = (Ref){R(x)[i] * part(R(x)[i], !tanh), z * z, 1};
        }
        OP(g, gelu, y, x, tanh);
        CHECK_REF(g, "gelu", tanh ? "tanh" : "erf", y, want);
        if (N * d > 40) CHECK_MISSED("gelu", "the other formula", y, other);
        free(want), free(other);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(gelu, EXACT)
void case_gelu_backward(Rig *g, int N, int d) {
    for (int tanh = 0; tanh < 2; tanh++) {
        Mark mark = arena_mark(&g->mem);
        Tensor x = inputs(g, N, d), dy = RANDOM(g, "dy", N, d), dx = RANDOM(g, "dx", N, d);
        Ref *want = refs_of(dx);
        for (int i = 0; i < N * d; i++) {
            wide a = R(x)[i], p = part(a, tanh), s = a * slope(a, tanh), t = R(dy)[i];
            ref_add(&want[i], t * p), ref_add(&want[i], t * s);
            want[i].square += t * t * (powl(s * (2 + a * a), 2) + powl(p * (1 + a * a), 2) * tanh + 0.25L * !tanh);
        }
        OP(g, gelu_backward, dx, dy, x, tanh);
        CHECK_REF(g, "gelu_backward", tanh ? "tanh" : "erf", dx, want);
        free(want);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(gelu_backward, EXACT)

/* The erf form over the whole line, its tails to the last number that is not denormal, infinities and NaN: 12 rounding
 * units of what is wanted itself, where 1 + erf would have lost everything below -4. */
static double tail_error(wide got, wide want, wide size) {
    const wide unit = REAL == F32 ? 0x1p-24L : 0x1p-53L, least = REAL == F32 ? 0x1p-126L : 0x1p-1022L;
    return (double)(fabsl(got - want) / (unit * size + least));
}
Test(ops, gelu_tails) {
    enum { LINE = 84001, POWERS = 275, N = LINE + 2 * POWERS + 2 };
    const double units = 12;
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_missing("gelu") ? 0 : rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 1, 16 << 20);
        Tensor x = EMPTY(&g, "x", N), y = EMPTY(&g, "y", N), dy = EMPTY(&g, "dy", N), dx = EMPTY(&g, "dx", N);
        for (int i = 0; i < N; i++) R(dy)[i] = 1, R(dx)[i] = 0;
        for (int i = 0; i < LINE; i++) R(x)[i] = (real)((i - LINE / 2) * 0.0005000117);
        for (int i = 0; i < 2 * POWERS; i++) R(x)[LINE + i] = (real)ldexp(i % 2 ? -1.37 : 1.37, i / 2 - 149);
        R(x)[N - 2] = (real)NAN, R(x)[N - 1] = (real)-INFINITY, R(x)[N - 3] = (real)INFINITY;
        OP(&g, gelu, y, x, false);
        OP(&g, gelu_backward, dx, dy, x, false);
        /* a library's erfc and exp meet a rounded square, which the own form does not */
        bool own = REAL == F32 && strcmp(tables[k].name, "cuda") != 0;
        double worst = 0;
        int at = 0;
        for (int i = 0; i < N - 3; i++) {
            wide a = R(x)[i], p = part(a, false), s = a * slope(a, false);
            double e = fmax(tail_error(R(y)[i], a * p, fabsl(a * p)), tail_error(R(dx)[i], p + s, p + fabsl(s)));
            if (!own) e /= 1 + (double)(a * a) / 6;
            if (isnan((double)R(y)[i]) || isnan((double)R(dx)[i])) e = INFINITY;
            if (e > worst) worst = e, at = i;
        }
        cr_log_info("gelu, erf, %s: %.2f units at %.9g", g.table, worst, (double)R(x)[at]);
        cr_assert(worst <= units, "%s: %.3g units at %.9g: %.9g and %.9g", g.table, worst, (double)R(x)[at],
                  (double)R(y)[at], (double)R(dx)[at]);
        cr_assert(isinf((double)R(y)[N - 3]) && R(y)[N - 1] == 0 && isnan((double)R(y)[N - 2]), "%s: %g %g %g", g.table,
                  (double)R(y)[N - 3], (double)R(y)[N - 1], (double)R(y)[N - 2]);
        cr_assert(R(dx)[N - 3] == 1 && R(dx)[N - 1] == 0 && isnan((double)R(dx)[N - 2]), "%s: %g %g %g", g.table,
                  (double)R(dx)[N - 3], (double)R(dx)[N - 1], (double)R(dx)[N - 2]);
        rig_close(&g);
    }
}
