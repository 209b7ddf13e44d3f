/* linear.c: y = x w^T and its backward; embedding. */
#include "vec.h"

/* Few rows of x: w is read once, where it lies, at memory speed, instead of being packed for a product. */
enum { FEW = 32, TILE = 4 /* rows of x, and of w, in registers at once */ };

/* Sum of a vector's numbers, halves first. */
INLINE real total(Vec v) {
    real t[VL];
    *(Vec *)t = v;
#pragma GCC unroll 4
    for (int w = VL / 2; w; w /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}

/* y[r][o] = x_r . w_o for `rows` rows of x, ldx apart, and `cols` of w; each sum has one order, whatever stands beside
 * it. */
INLINE void dots(int rows, int cols, real *y, size_t ldy, const real *x, size_t ldx, const real *w, int I) {
    Vec s[TILE][TILE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) s[r][o] = (Vec){0};
    int i = 0;
    for (; i + VL <= I; i += VL) {
        Vec b[TILE];
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) b[o] = *(const Vec *)(w + (size_t)o * (size_t)I + i);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            Vec a = *(const Vec *)(x + (size_t)r * ldx + i);
#pragma GCC unroll 4
            for (int o = 0; o < cols; o++) s[r][o] += a * b[o];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) {
            real sum = total(s[r][o]);
            for (int k = i; k < I; k++) sum += x[(size_t)r * ldx + (size_t)k] * w[(size_t)o * (size_t)I + (size_t)k];
            y[(size_t)r * ldy + (size_t)o] = sum;
        }
}
INLINE void dots_rows(int rows, int cols, real *y, size_t ldy, const real *x, size_t ldx, const real *w, int I) {
    switch (rows) {
    case 1: dots(1, cols, y, ldy, x, ldx, w, I); break;
    case 2: dots(2, cols, y, ldy, x, ldx, w, I); break;
    case 3: dots(3, cols, y, ldy, x, ldx, w, I); break;
    default: dots(TILE, cols, y, ldy, x, ldx, w, I);
    }
}

/* Columns o0..o0+n-1 of N rows of y; rows of w are in the first cache when the second four of x come. */
static void rows_dots(real *y, size_t ldy, const real *x, size_t ldx, const real *w, int N, int o0, int n, int I) {
    for (int o = o0; o < o0 + n; o += TILE) {
        const real *wo = w + (size_t)o * (size_t)I;
        for (int m = 0; m < N; m += TILE) {
            real *to = y + (size_t)m * ldy + o;
            const real *xm = x + (size_t)m * ldx;
            if (o + TILE <= o0 + n)
                dots_rows(imin(TILE, N - m), TILE, to, ldy, xm, ldx, wo, I);
            else
                for (int k = 0; k < o0 + n - o; k++)
                    dots_rows(imin(TILE, N - m), 1, to + k, ldy, xm, ldx, wo + (size_t)k * (size_t)I, I);
        }
    }
}
static void few_rows(real *y, const real *x, const real *w, int N, int o0, int n, int O, int I) {
    rows_dots(y, (size_t)O, x, (size_t)I, w, N, o0, n, I);
}

/* One call of the product kernel, and one of the few rows' loop, for all matrices. */
_Static_assert((int)LINEAR_MANY == (int)GEMM_JOBS, "a product for each matrix");
static void linear_many(Run *r, int n, const Projection *p, Tensor x) {
    enum { OUTS = 16 };
    GemmJob jobs[GEMM_JOBS];
    CHECK(n > 0 && n <= GEMM_JOBS, "%d matrices", n);
    int I = p->w.n[1], few[GEMM_JOBS], nfew = 0, njobs = 0, chunks = 0;
    x = tensor_rows(x, I);
    int N = x.n[0];
    long size = 0;
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        bool narrow = p[j].w.dtype == BF16, rounds = narrow || gemm_rounds(r->dev->gemm, (int64_t)O * I);
        CHECK(p[j].w.n[1] == I && tensor_rows(p[j].y, O).n[0] == N && (!present(p[j].bias) || p[j].bias.n[0] == O),
              "x (%d,%d), y %d rows, w (%d,%d)", N, I, tensor_rows(p[j].y, O).n[0], O, p[j].w.n[1]);
        if (!rounds && N <= FEW && REAL == F32) { /* of double the plain loop is the oracle */
            few[nfew++] = j, chunks += (O + OUTS - 1) / OUTS, size += (long)N * O * I;
            continue;
        }
        GemmShape s = {N, O, I, .lda = I, .ldb = I, .ldc = O, .tb = true, .narrow = narrow, .weights = (int64_t)O * I};
        jobs[njobs++] = (GemmJob){s, R(p[j].y), R(x), narrow ? p[j].w.p : R(p[j].w), 0, j, j};
    }
    if (!measuring(r) && nfew) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (size > 4 * ALONE)
        for (int i = 0; i < chunks; i++) {
            int k = 0, o = i;
            for (; o >= (p[few[k]].w.n[0] + OUTS - 1) / OUTS; k++) o -= (p[few[k]].w.n[0] + OUTS - 1) / OUTS;
            Tensor w = p[few[k]].w;
            few_rows(R(p[few[k]].y), R(x), R(w), N, o * OUTS, imin(OUTS, w.n[0] - o * OUTS), w.n[0], I);
        }
    }
    gemm_many(r->dev->gemm, r->scratch, njobs, jobs);
    for (int j = 0; j < n; j++) {
        if (measuring(r) || !present(p[j].bias)) continue;
        int O = p[j].w.n[0];
        const real *b = R(p[j].bias);
        real *y = R(p[j].y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * O > ALONE)
        for (int i = 0; i < N; i++)
            for (int o = 0; o < O; o++) y[(size_t)i * (size_t)O + (size_t)o] += b[o];
    }
}
static void linear(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    linear_many(r, 1, &(Projection){y, w, bias}, x);
}

static void linear_many_backward(Run *r, Tensor dx, int n, const Projection *d, Tensor x, const Projection *p) {
    GemmJob in[GEMM_JOBS], weights[GEMM_JOBS];
    CHECK(n > 0 && n <= GEMM_JOBS, "%d matrices", n);
    int I = p->w.n[1], nin = 0, nweights = 0;
    x = tensor_rows(x, I);
    int N = x.n[0];
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        Tensor dy = tensor_rows(d[j].y, O);
        CHECK(p[j].w.n[1] == I && dy.n[0] == N, "x (%d,%d), dy %d rows, w (%d,%d)", N, I, dy.n[0], O, p[j].w.n[1]);
        int64_t numbers = (int64_t)O * I;
        GemmShape s = {N, I, O, .lda = O, .ldb = I, .ldc = I, .accumulate = nin || !dx.fresh, .weights = numbers},
                  t = {O, I, N, .lda = O, .ldb = I, .ldc = I, .ta = true, .accumulate = true, .weights = numbers};
        if (present(dx)) in[nin++] = (GemmJob){s, R(dx), R(dy), R(p[j].w), j, j, 0};
        if (present(d[j].w)) weights[nweights++] = (GemmJob){t, R(d[j].w), R(dy), R(x), j, 0, j};
    }
    gemm_many(r->dev->gemm, r->scratch, nin, in);
    gemm_many(r->dev->gemm, r->scratch, nweights, weights);
    for (int j = 0; j < n; j++) {
        if (measuring(r) || !present(d[j].bias)) continue;
        int O = p[j].w.n[0];
        const real *dy = R(d[j].y);
        real *sum = R(d[j].bias);
        /* Threads share the columns, so that each sum has one owner and one order. */
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * O > ALONE)
        for (int c = 0; c < O; c += 64)
            for (int i = 0; i < N; i++)
#pragma omp simd
                for (int o = c; o < imin(O, c + 64); o++) sum[o] += dy[(size_t)i * (size_t)O + (size_t)o];
    }
}
static void linear_backward(Run *r, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w) {
    linear_many_backward(r, dx, 1, &(Projection){dy, dw, dbias}, x, &(Projection){.w = w});
}

/* A block of rows of one head; the heads' rows lie ldx and ldy apart. wt: room for W_h turned, or NULL. */
static void head_rows(real *y, size_t ldy, const real *x, size_t ldx, const real *w, real *wt, int n, int O, int I,
                      bool turned) {
    int width = turned ? I : O;
    if (!turned && !wt) { /* decoding: W_h is read once, where it lies */
        rows_dots(y, ldy, x, ldx, w, n, 0, O, I);
        return;
    }
    for (int m = 0; m < n; m++) memset(y + (size_t)m * ldy, 0, (size_t)width * sizeof(real));
    for (int o = 0; !turned && o < O; o++)
        for (int i = 0; i < I; i++) wt[(size_t)i * (size_t)O + (size_t)o] = w[(size_t)o * (size_t)I + (size_t)i];
    tile_mm(y, ldy, x, ldx, 1, turned ? w : wt, (size_t)width, n, turned ? O : I, width);
}
static void linear_heads(Run *r, Tensor y, Tensor x, Tensor w, int row, int O, bool turned) {
    enum { ROWS = 128, FEW_ROWS = 8 };
    int M = x.n[0], H = x.n[1], I = w.n[1], each = w.n[0] / imax(1, H);
    CHECK(w.n[0] == H * each && row >= 0 && row + O <= each && y.n[0] == M && y.n[1] == H, "w (%d,%d), %d heads, y %d",
          w.n[0], I, H, y.n[1]);
    CHECK(x.n[2] >= (turned ? O : I) && y.n[2] >= (turned ? I : O), "x %d, y %d, W (%d,%d)", x.n[2], y.n[2], O, I);
    if (M == 0) return;
    Mark mark = arena_mark(r->scratch);
    /* Weights in bf16 give a row the same bits whatever stands beside it, as they do in `linear`. */
    bool narrow = w.dtype == BF16, pack = !turned && !narrow && M > FEW_ROWS;
    Tensor wt = pack ? SCRATCH(r, "heads' weights turned", r->dev->threads, I, O) : ABSENT;
    Tensor wide = narrow ? SCRATCH(r, "heads' weights widened", r->dev->threads, O, I) : ABSENT;
    if (!measuring(r)) {
        size_t ldx = (size_t)H * (size_t)x.n[2], ldy = (size_t)H * (size_t)y.n[2];
#pragma omp parallel for collapse(2) schedule(static) num_threads(r->dev->threads) if ((long)M * H * O * I > ALONE)
        for (int h = 0; h < H; h++)
            for (int m = 0; m < M; m += ROWS) {
                size_t own = (size_t)omp_get_thread_num() * (size_t)I * (size_t)O,
                       at = ((size_t)h * (size_t)each + (size_t)row) * (size_t)I;
                if (narrow) widened(R(wide) + own, (const uint16_t *)w.p + at, (size_t)O * (size_t)I);
                head_rows(R(y) + (size_t)m * ldy + (size_t)h * (size_t)y.n[2], ldy,
                          R(x) + (size_t)m * ldx + (size_t)h * (size_t)x.n[2], ldx, narrow ? R(wide) + own : R(w) + at,
                          pack ? R(wt) + own : NULL, imin(ROWS, M - m), O, I, turned);
            }
    }
    arena_release(r->scratch, mark);
}

static void embed(Run *r, Tensor y, Tensor table, const int *tok, double scale) {
    if (measuring(r)) return;
    int d = table.n[1];
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)y.n[0] * d > ALONE)
    for (int i = 0; i < y.n[0]; i++) {
        CHECK(tok[i] >= 0 && tok[i] < table.n[0], "token %d of vocabulary %d", tok[i], table.n[0]);
        real *row = R(y) + (size_t)i * (size_t)d;
        tensor_read(table, (size_t)tok[i] * (size_t)d, (size_t)d, row);
        for (int k = 0; k < d; k++) row[k] *= (real)scale;
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
