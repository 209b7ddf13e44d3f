/* gates.c: what stands around a recurrence: L2 norm of heads, decay gates, sigmoids, the gated norm of the output. */
#include "vec.h"

static void l2norm(Run *r, Tensor y, Tensor x, double eps) {
    if (measuring(r)) return;
    int d = x.n[x.rank - 1];
    Tensor rows = tensor_rows(x, d);
    int M = rows.n[0];
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
    for (int i = 0; i < M; i++) {
        const real *a = R(x) + (size_t)i * (size_t)d;
        real *o = R(y) + (size_t)i * (size_t)d, f = (real)(1 / sqrt((double)dot(a, a, d) + eps));
        for (int c = 0; c < d; c++) o[c] = a[c] * f;
    }
}
static void l2norm_backward(Run *r, Tensor dx, Tensor dy, Tensor x, double eps) {
    if (measuring(r)) return;
    int d = x.n[x.rank - 1];
    Tensor rows = tensor_rows(x, d);
    int M = rows.n[0];
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
    for (int i = 0; i < M; i++) {
        const real *a = R(x) + (size_t)i * (size_t)d, *g = R(dy) + (size_t)i * (size_t)d;
        real *o = R(dx) + (size_t)i * (size_t)d, f = (real)(1 / sqrt((double)dot(a, a, d) + eps)),
             t = dot(a, g, d) * f * f;
        for (int c = 0; c < d; c++) o[c] += f * (g[c] - a[c] * t);
    }
}

INLINE real sigmoid1(real a) { return 1 / (1 + exp_real(-a)); }
/* log(1 + e^a), without overflow and to full precision for a << 0. */
INLINE real softplus1(real a) {
#ifdef KV_DOUBLE
    return (a > 0 ? a : 0) + log1p(exp(-fabs(a)));
#else
    return (a > 0 ? a : 0) + log1pf(expf(-fabsf(a)));
#endif
}

/* One number of the gate: z already with its bias, rate = exp(A). */
INLINE real gate_value(Gate k, real z, real rate) {
    if (k.kind == GATE_SOFTPLUS) return -rate * softplus1(z);
    if (k.kind == GATE_BOUND) return (real)k.param * sigmoid1(rate * z);
    return -softplus1(-z) / (real)k.param;
}
/* Its derivative by z; *by_A that by A. */
INLINE real gate_slope(Gate k, real z, real rate, real *by_A) {
    if (k.kind == GATE_SOFTPLUS) {
        *by_A = -rate * softplus1(z);
        return -rate * sigmoid1(z);
    }
    if (k.kind == GATE_BOUND) {
        real e = exp_real(-(real)fabs((double)(rate * z))), f = (real)k.param * rate * e / ((1 + e) * (1 + e));
        *by_A = f * z;
        return f;
    }
    *by_A = 0;
    return sigmoid1(-z) / (real)k.param;
}
static void gate_check(Tensor z, Tensor A, Tensor bias, Gate k) {
    CHECK(z.rank == 3 && (!present(A) || tensor_count(A) == (size_t)z.n[1]) &&
              (!present(bias) || tensor_count(bias) == (size_t)z.n[1] * (size_t)z.n[2]),
          "z (%d,%d,%d)", z.n[0], z.n[1], z.n[2]);
    CHECK(k.kind != GATE_LOGSIGMOID || !present(A), "this gate has no rate");
}
static void decay(Run *r, Tensor g, Tensor z, Tensor A, Tensor bias, Gate k) {
    int N = z.n[0], H = z.n[1], D = z.n[2];
    gate_check(z, A, bias, k);
    if (measuring(r)) return;
#pragma omp parallel for collapse(2) schedule(static) num_threads(r->dev->threads) if ((long)N * H * D > ALONE)
    for (int t = 0; t < N; t++)
        for (int h = 0; h < H; h++) {
            size_t at = ((size_t)t * (size_t)H + (size_t)h) * (size_t)D;
            real rate = present(A) ? (real)exp((double)R(A)[h]) : 1;
            for (int c = 0; c < D; c++) R(g)
            [at + (size_t) c] = gate_value(k, R(z)[at + (size_t)c] + (present(bias) ? R(bias)[h * D + c] : 0), rate);
        }
}
static void decay_backward(Run *r, Tensor dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias,
                           Gate k) {
    int N = z.n[0], H = z.n[1], D = z.n[2];
    gate_check(z, A, bias, k);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * H * D > ALONE)
    for (int h = 0; h < H; h++) {
        real rate = present(A) ? (real)exp((double)R(A)[h]) : 1;
        double sum = 0; /* over N x D terms of one sign */
        for (int t = 0; t < N; t++) {
            size_t at = ((size_t)t * (size_t)H + (size_t)h) * (size_t)D;
            for (int c = 0; c < D; c++) {
                real by_A,
                    f = gate_slope(k, R(z)[at + (size_t)c] + (present(bias) ? R(bias)[h * D + c] : 0), rate, &by_A),
                    e = R(dg)[at + (size_t)c];
                if (present(dz)) R(dz)[at + (size_t)c] += e * f;
                if (present(dbias)) R(dbias)[h * D + c] += e * f;
                sum += (double)(e * by_A);
            }
        }
        if (present(dA)) R(dA)[h] += (real)sum;
    }
}

static void sigmoid(Run *r, Tensor y, Tensor x, double top) {
    if (measuring(r)) return;
    size_t n = tensor_count(x);
    real *o = R(y), f = (real)top;
    const real *a = R(x);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) o[i] = f / (1 + exp_real(-a[i]));
}
static void sigmoid_backward(Run *r, Tensor dx, Tensor dy, Tensor y, double top) {
    if (measuring(r)) return;
    size_t n = tensor_count(y);
    real *o = R(dx), f = (real)(1 / top);
    const real *a = R(y), *g = R(dy);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) o[i] += g[i] * a[i] * (1 - a[i] * f);
}

INLINE real gate_of(bool silu, real z) { return silu ? z * sigmoid1(z) : sigmoid1(z); }
INLINE real gate_of_slope(bool silu, real z) {
    real s = sigmoid1(z);
    return silu ? s * (1 + z * (1 - s)) : s * (1 - s);
}
static int norm_groups(Tensor x, Tensor w, GatedNorm n) {
    size_t M = tensor_count(x) / (size_t)n.width;
    CHECK(M * (size_t)n.width == tensor_count(x), "groups of %d", n.width);
    CHECK(!present(w) || tensor_count(w) % (size_t)n.width == 0, "%zu gains, groups of %d", tensor_count(w), n.width);
    return (int)M;
}
static const real *norm_gain(Tensor w, GatedNorm n, int i) {
    if (!present(w)) return NULL;
    return R(w) + (size_t)i % (tensor_count(w) / (size_t)n.width) * (size_t)n.width;
}
/* 1 / rms of a group as it enters the norm. */
INLINE real norm_factor(const real *x, const real *z, GatedNorm n) {
    real s = 0;
    for (int c = 0; c < n.width; c++) {
        real a = n.before ? x[c] * gate_of(n.silu, z[c]) : x[c];
        s += a * a;
    }
    return (real)(1 / sqrt((double)s / n.width + n.eps));
}
static void gated_norm(Run *r, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n) {
    int M = norm_groups(x, w, n), d = n.width;
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
    for (int i = 0; i < M; i++) {
        size_t at = (size_t)i * (size_t)d;
        const real *a = R(x) + at, *g = R(z) + at, *gain = norm_gain(w, n, i);
        real f = norm_factor(a, g, n);
        for (int c = 0; c < d; c++) R(y)[at + (size_t)c] = a[c] * f * gate_of(n.silu, g[c]) * (gain ? gain[c] : 1);
    }
}
static void gated_norm_backward(Run *r, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w,
                                GatedNorm n) {
    int M = norm_groups(x, w, n), d = n.width;
    Mark mark = arena_mark(r->scratch);
    Tensor factor = SCRATCH(r, "norm factors", M);
    if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
        for (int i = 0; i < M; i++) {
            size_t at = (size_t)i * (size_t)d;
            const real *a = R(x) + at, *g = R(z) + at, *e = R(dy) + at, *gain = norm_gain(w, n, i);
            real f = norm_factor(a, g, n), t = 0;
            R(factor)[i] = f;
            /* With b the group as it enters the norm and h the gradient of b f: db = f h - f^3 b (b.h)/d. */
            for (int c = 0; c < d; c++) {
                real gate = gate_of(n.silu, g[c]), b = n.before ? a[c] * gate : a[c];
                t += b * e[c] * (gain ? gain[c] : 1) * (n.before ? 1 : gate);
            }
            t *= f * f * f / (real)d;
            for (int c = 0; c < d; c++) {
                real gate = gate_of(n.silu, g[c]), b = n.before ? a[c] * gate : a[c], h = e[c] * (gain ? gain[c] : 1),
                     db = f * h * (n.before ? 1 : gate) - t * b;
                if (present(dx)) R(dx)[at + (size_t)c] += n.before ? db * gate : db;
                if (present(dz))
                    R(dz)[at + (size_t)c] += (n.before ? db * a[c] : h * a[c] * f) * gate_of_slope(n.silu, g[c]);
            }
        }
        if (present(dw)) {
            int period = (int)(tensor_count(w) / (size_t)d);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
            for (int c = 0; c < period * d; c++)
                for (int i = c / d; i < M; i += period) {
                    size_t at = (size_t)i * (size_t)d + (size_t)(c % d);
                    R(dw)[c] += R(dy)[at] * R(x)[at] * R(factor)[i] * gate_of(n.silu, R(z)[at]);
                }
        }
    }
    arena_release(r->scratch, mark);
}
