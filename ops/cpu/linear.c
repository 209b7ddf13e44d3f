/* linear.c: y = x w^T and its backward; embedding. */
#include "vec.h"

#ifndef KV_DOUBLE
enum {
    FEW = 8
}; /* rows up to which w is read once, row by row, at memory speed, instead of being packed by the library */

/* y (N,O), N <= FEW: each output's weights are read once and meet all rows while they are in registers. */
static void linear_few(const Device *dev, real *y, const real *x, const real *w, int N, int O, int I) {
    #pragma omp parallel for schedule(static) num_threads(dev->threads) if ((long)N * O * I > 4 * ALONE)
    for (int o = 0; o < O; o++) {
        const real *wo = w + (size_t)o * (size_t)I;
        int m = 0;
        for (; m + 4 <= N; m += 4) {
            const real *a = x + (size_t)m * (size_t)I, *b = a + I, *c = b + I, *d = c + I;
            real s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    #pragma omp simd reduction(+ : s0, s1, s2, s3)
            for (int i = 0; i < I; i++) {
                s0 += a[i] * wo[i];
                s1 += b[i] * wo[i];
                s2 += c[i] * wo[i];
                s3 += d[i] * wo[i];
            }
            y[(size_t)m * (size_t)O + (size_t)o] = s0;
            y[(size_t)(m + 1) * (size_t)O + (size_t)o] = s1;
            y[(size_t)(m + 2) * (size_t)O + (size_t)o] = s2;
            y[(size_t)(m + 3) * (size_t)O + (size_t)o] = s3;
        }
        for (; m < N; m++) y[(size_t)m * (size_t)O + (size_t)o] = dot(x + (size_t)m * (size_t)I, wo, I);
    }
}
#endif

static void linear(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    int N = y.n[0], O = w.n[0], I = w.n[1];
    x = tensor_rows(x, I), y = tensor_rows(y, O), N = y.n[0];
    CHECK(x.n[0] == N && (!present(bias) || bias.n[0] == O), "x %d rows, y %d, w (%d,%d)", x.n[0], N, O, I);
#ifndef KV_DOUBLE
    if (N <= FEW) {
        if (!measuring(r)) linear_few(r->dev, R(y), R(x), R(w), N, O, I);
    } else
#endif
        gemm(r->dev->gemm, r->scratch, (GemmShape){N, O, I, .lda = I, .ldb = I, .ldc = O, .tb = true}, R(y), R(x),
             R(w));
    if (measuring(r) || !present(bias)) return;
    const real *b = R(bias);
    for (int i = 0; i < N; i++) {
        real *yi = R(y) + (size_t)i * (size_t)O;
        for (int o = 0; o < O; o++) yi[o] += b[o];
    }
}

static void linear_backward(Run *r, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w) {
    int O = w.n[0], I = w.n[1];
    dy = tensor_rows(dy, O), x = tensor_rows(x, I);
    int N = dy.n[0];
    CHECK(x.n[0] == N, "x %d rows, dy %d", x.n[0], N);
    if (present(dx))
        gemm(r->dev->gemm, r->scratch, (GemmShape){N, I, O, .lda = O, .ldb = I, .ldc = I, .accumulate = true}, R(dx),
             R(dy), R(w));
    if (present(dw))
        gemm(r->dev->gemm, r->scratch,
             (GemmShape){O, I, N, .lda = O, .ldb = I, .ldc = I, .ta = true, .accumulate = true}, R(dw), R(dy), R(x));
    if (measuring(r) || !present(dbias)) return;
    for (int i = 0; i < N; i++) {
        const real *g = R(dy) + (size_t)i * (size_t)O;
        for (int o = 0; o < O; o++) R(dbias)[o] += g[o];
    }
}

static void embed(Run *r, Tensor y, Tensor table, const int *tok, double scale) {
    if (measuring(r)) return;
    int d = table.n[1];
    for (int i = 0; i < y.n[0]; i++) {
        CHECK(tok[i] >= 0 && tok[i] < table.n[0], "token %d of vocabulary %d", tok[i], table.n[0]);
        const real *row = R(table) + (size_t)tok[i] * (size_t)d;
        for (int k = 0; k < d; k++) R(y)[(size_t)i * (size_t)d + (size_t)k] = (real)scale * row[k];
    }
}
/* Threads share the columns, so that each sum has one owner and one order. */
static void embed_backward(Run *r, Tensor dtable, Tensor dy, const int *tok, double scale) {
    if (measuring(r)) return;
    int d = dtable.n[1], N = dy.n[0];
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * d > ALONE)
    for (int c = 0; c < d; c += 64) {
        int n = imin(64, d - c);
        for (int i = 0; i < N; i++) {
            real *t = R(dtable) + (size_t)tok[i] * (size_t)d + c;
            const real *g = R(dy) + (size_t)i * (size_t)d + c;
            for (int k = 0; k < n; k++) t[k] += (real)scale * g[k];
        }
    }
}
