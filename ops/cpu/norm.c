/* norm.c: RMSNorm and LayerNorm. */
#include "vec.h"

static void rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps) {
    if (measuring(r)) return;
    int d = w.n[0];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
    CHECK(y.n[0] == N && tensor_count(rstd) == (size_t)N, "%d rows", N);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * d > ALONE)
    for (int i = 0; i < N; i++) {
        const real *xi = R(x) + (size_t)i * (size_t)d, *wi = R(w);
        real *yi = R(y) + (size_t)i * (size_t)d, s = (real)1 / (real)sqrt((double)dot(xi, xi, d) / d + eps);
        R(rstd)[i] = s;
        for (int k = 0; k < d; k++) yi[k] = xi[k] * s * wi[k];
    }
}

static void rmsnorm_backward(Run *r, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    if (measuring(r)) return;
    int d = w.n[0];
    x = tensor_rows(x, d), dx = tensor_rows(dx, d), dy = tensor_rows(dy, d);
    int N = x.n[0];
    const real *wi = R(w);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * d > ALONE)
    for (int i = 0; i < N; i++) {
        const real *xi = R(x) + (size_t)i * (size_t)d, *gi = R(dy) + (size_t)i * (size_t)d;
        real *out = R(dx) + (size_t)i * (size_t)d, s = R(rstd)[i], t = 0;
#pragma omp simd reduction(+ : t)
        for (int k = 0; k < d; k++) t += gi[k] * wi[k] * xi[k];
        t *= s * s * s / (real)d;
        for (int k = 0; k < d; k++) out[k] += s * gi[k] * wi[k] - t * xi[k];
    }
    /* Threads share the columns, so that each sum has one owner and one order. */
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * d > ALONE)
    for (int c = 0; c < d; c += 64) {
        int n = imin(64, d - c);
        for (int i = 0; i < N; i++) {
            const real *xi = R(x) + (size_t)i * (size_t)d + c, *gi = R(dy) + (size_t)i * (size_t)d + c;
            real s = R(rstd)[i];
            for (int k = 0; k < n; k++) R(dw)[c + k] += gi[k] * xi[k] * s;
        }
    }
}

/* Sums in the width of `real`, by vectors; the mean first, so that nothing cancels in the squares. */
static real mean_of(const real *x, int d) {
    real s = 0;
#pragma omp simd reduction(+ : s)
    for (int k = 0; k < d; k++) s += x[k];
    return s / (real)d;
}

static void layernorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps) {
    if (measuring(r)) return;
    int d = w.n[0];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
    CHECK(y.n[0] == N && tensor_count(rstd) == (size_t)N && b.n[0] == d, "%d rows", N);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * d > ALONE)
    for (int i = 0; i < N; i++) {
        const real *xi = R(x) + (size_t)i * (size_t)d, *wi = R(w), *bi = R(b);
        real *yi = R(y) + (size_t)i * (size_t)d, mean = mean_of(xi, d), squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int k = 0; k < d; k++) squares += (xi[k] - mean) * (xi[k] - mean);
        real s = (real)1 / (real)sqrt((double)squares / d + eps);
        R(rstd)[i] = s;
        for (int k = 0; k < d; k++) yi[k] = (xi[k] - mean) * s * wi[k] + bi[k];
    }
}

static void layernorm_backward(Run *r, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0];
    x = tensor_rows(x, d), dx = tensor_rows(dx, d), dy = tensor_rows(dy, d);
    int N = x.n[0];
    Mark mark = arena_mark(r->scratch);
    Tensor means = SCRATCH(r, "means", N);
    if (!measuring(r)) {
        const real *wi = R(w);
        real *mean = R(means);
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * d > ALONE)
        {
#pragma omp for schedule(static)
            for (int i = 0; i < N; i++) {
                const real *xi = R(x) + (size_t)i * (size_t)d, *gi = R(dy) + (size_t)i * (size_t)d;
                real *out = R(dx) + (size_t)i * (size_t)d, s = R(rstd)[i], m = mean[i] = mean_of(xi, d), t = 0, tn = 0;
#pragma omp simd reduction(+ : t, tn)
                for (int k = 0; k < d; k++) t += gi[k] * wi[k], tn += gi[k] * wi[k] * (xi[k] - m);
                t /= (real)d, tn *= s * s / (real)d;
                for (int k = 0; k < d; k++) out[k] += s * (gi[k] * wi[k] - t - (xi[k] - m) * tn);
            }
            /* Threads share the columns, so that each sum has one owner and one order. */
#pragma omp for schedule(static)
            for (int c = 0; c < d; c += 64) {
                int n = imin(64, d - c);
                for (int i = 0; i < N; i++) {
                    const real *xi = R(x) + (size_t)i * (size_t)d + c, *gi = R(dy) + (size_t)i * (size_t)d + c;
                    real s = R(rstd)[i];
                    for (int k = 0; k < n; k++) {
                        R(dw)[c + k] += gi[k] * (xi[k] - mean[i]) * s;
                        R(db)[c + k] += gi[k];
                    }
                }
            }
        }
    }
    arena_release(r->scratch, mark);
}
