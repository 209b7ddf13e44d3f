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

/* Column sums over rows: blocks of rows, whose number N alone gives, each sum theirs apart while the rows are at hand,
 * and are then added in order. So one pass does, and the number of threads changes nothing. */
enum { BLOCKS = 32, BLOCK_ROWS = 16 };
static int rows_of_block(int N) { return imax(BLOCK_ROWS, (N + BLOCKS - 1) / BLOCKS); }
static int blocks_of(int N) {
    return imin(BLOCKS, (N + BLOCK_ROWS - 1) / BLOCK_ROWS);
} /* at least as many as are used */
/* sum[k] += the blocks' k-th. */
static void add_blocks(real *sum, const real *part, int N, int k, int n, int d) {
    for (int b = 0, size = rows_of_block(N); b * size < N; b++) {
        const real *p = part + (size_t)b * (size_t)d;
#pragma omp simd
        for (int c = k; c < k + n; c++) sum[c] += p[c];
    }
}

static void rmsnorm_backward(Run *r, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0];
    begin_sum(r, dx);
    x = tensor_rows(x, d), dx = tensor_rows(dx, d), dy = tensor_rows(dy, d);
    int N = x.n[0], size = rows_of_block(N);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor sums = SCRATCH(r, "sums of blocks", blocks_of(N), d);
    if (!measuring(r)) {
        const real *wi = R(w);
        real *part = R(sums), *total_w = R(dw);
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * d > ALONE)
        {
#pragma omp for schedule(static)
            for (int i0 = 0; i0 < N; i0 += size) {
                real *pw = part + (size_t)(i0 / size) * (size_t)d;
                memset(pw, 0, (size_t)d * sizeof *pw);
                for (int i = i0; i < imin(N, i0 + size); i++) {
                    const real *xi = R(x) + (size_t)i * (size_t)d, *gi = R(dy) + (size_t)i * (size_t)d;
                    real *out = R(dx) + (size_t)i * (size_t)d, s = R(rstd)[i], t = 0;
#pragma omp simd reduction(+ : t)
                    for (int k = 0; k < d; k++) t += gi[k] * wi[k] * xi[k];
                    t *= s * s * s / (real)d;
#pragma omp simd
                    for (int k = 0; k < d; k++) {
                        out[k] += s * gi[k] * wi[k] - t * xi[k];
                        pw[k] += gi[k] * xi[k] * s;
                    }
                }
            }
#pragma omp for schedule(static)
            for (int c = 0; c < d; c += 64) add_blocks(total_w, part, N, c, imin(64, d - c), d);
        }
    }
    arena_release(r->scratch, mark);
}

/* Sums in the width of `real`, by vectors; the mean first, so that nothing cancels in the squares. */
static real mean_of(const real *x, int d) {
    real s = 0;
    for (int from = 0; from < d; from += SUM_RUN) {
        const int end = imin(d, from + SUM_RUN);
        real part = 0;
#pragma omp simd reduction(+ : part)
        for (int k = from; k < end; k++) part += x[k];
        s += part;
    }
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
    int N = x.n[0], size = rows_of_block(N);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor sums = SCRATCH(r, "sums of blocks", 2, blocks_of(N), d);
    if (!measuring(r)) {
        const real *wi = R(w);
        real *part_w = R(sums), *part_b = part_w + (size_t)blocks_of(N) * (size_t)d, *total_w = R(dw), *total_b = R(db);
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * d > ALONE)
        {
#pragma omp for schedule(static)
            for (int i0 = 0; i0 < N; i0 += size) {
                real *pw = part_w + (size_t)(i0 / size) * (size_t)d, *pb = part_b + (size_t)(i0 / size) * (size_t)d;
                memset(pw, 0, (size_t)d * sizeof *pw);
                memset(pb, 0, (size_t)d * sizeof *pb);
                for (int i = i0; i < imin(N, i0 + size); i++) {
                    const real *xi = R(x) + (size_t)i * (size_t)d, *gi = R(dy) + (size_t)i * (size_t)d;
                    real *out = R(dx) + (size_t)i * (size_t)d, s = R(rstd)[i], m = mean_of(xi, d), t = 0, tn = 0;
#pragma omp simd reduction(+ : t, tn)
                    for (int k = 0; k < d; k++) t += gi[k] * wi[k], tn += gi[k] * wi[k] * (xi[k] - m);
                    t /= (real)d, tn *= s * s / (real)d;
#pragma omp simd
                    for (int k = 0; k < d; k++) {
                        out[k] += s * (gi[k] * wi[k] - t - (xi[k] - m) * tn);
                        pw[k] += gi[k] * (xi[k] - m) * s;
                        pb[k] += gi[k];
                    }
                }
            }
#pragma omp for schedule(static)
            for (int c = 0; c < d; c += 64) {
                add_blocks(total_w, part_w, N, c, imin(64, d - c), d);
                add_blocks(total_b, part_b, N, c, imin(64, d - c), d);
            }
        }
    }
    arena_release(r->scratch, mark);
}
