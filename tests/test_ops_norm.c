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
