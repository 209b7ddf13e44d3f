/* linear.c: y = x w^T and its backward; embedding. */
#include "vec.h"

/* Few rows of x: w is read once, where it lies, at memory speed, instead of being packed for a product. */
enum { FEW = 32, TILE = 4 /* rows of x, and of w, in registers at once */ };

#ifndef KV_DOUBLE
typedef uint32_t Bits __attribute__((vector_size(VBYTES), aligned(sizeof(uint32_t)), may_alias));
#endif
/* To bf16 and back, to the nearest, ties to even; NaN stays NaN. */
INLINE Vec rounded(Vec x) {
#ifdef KV_DOUBLE
    return x;
#else
    Bits u = (Bits)x, near = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000;
    Bits nan = (Bits)((u & 0x7FFFFFFF) > 0x7F800000);
    return (Vec)((near & ~nan) | (u & nan));
#endif
}
INLINE real rounded_one(real x) {
    Vec v = {x};
    return rounded(v)[0];
}

/* y[r][o] = x_r . w_o for `rows` rows of x and `cols` of w; each sum has one order, whatever stands beside it. round:
 * w is rounded to bf16 as it is read. */
INLINE void dots(int rows, int cols, bool round, real *y, size_t ldy, const real *x, const real *w, int I) {
    Vec s[TILE][TILE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) s[r][o] = (Vec){0};
    int i = 0;
    for (; i + VL <= I; i += VL) {
        Vec b[TILE];
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) {
            b[o] = *(const Vec *)(w + (size_t)o * (size_t)I + i);
            if (round) b[o] = rounded(b[o]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            Vec a = *(const Vec *)(x + (size_t)r * (size_t)I + i);
#pragma GCC unroll 4
            for (int o = 0; o < cols; o++) s[r][o] += a * b[o];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < cols; o++) {
            real sum = 0;
            for (int k = i; k < I; k++) {
                real b = w[(size_t)o * (size_t)I + (size_t)k];
                sum += x[(size_t)r * (size_t)I + (size_t)k] * (round ? rounded_one(b) : b);
            }
            for (int v = 0; v < VL; v++) sum += s[r][o][v];
            y[(size_t)r * ldy + (size_t)o] = sum;
        }
}
INLINE void dots_rows(int rows, int cols, bool round, real *y, size_t ldy, const real *x, const real *w, int I) {
    switch (rows) {
    case 1: dots(1, cols, round, y, ldy, x, w, I); break;
    case 2: dots(2, cols, round, y, ldy, x, w, I); break;
    case 3: dots(3, cols, round, y, ldy, x, w, I); break;
    default: dots(TILE, cols, round, y, ldy, x, w, I);
    }
}

/* Columns o0..o0+n-1 of y (N,O); rows of w are in the first cache when the second four of x come. */
INLINE void few_columns(bool round, real *y, const real *x, const real *w, int N, int o0, int n, int O, int I) {
    for (int o = o0; o < o0 + n; o += TILE) {
        const real *wo = w + (size_t)o * (size_t)I;
        for (int m = 0; m < N; m += TILE) {
            real *to = y + (size_t)m * (size_t)O + o;
            const real *xm = x + (size_t)m * (size_t)I;
            if (o + TILE <= o0 + n)
                dots_rows(imin(TILE, N - m), TILE, round, to, (size_t)O, xm, wo, I);
            else
                for (int k = 0; k < o0 + n - o; k++)
                    dots_rows(imin(TILE, N - m), 1, round, to + k, (size_t)O, xm, wo + (size_t)k * (size_t)I, I);
        }
    }
}
static void few_rows(real *y, const real *x, const real *w, int N, int o0, int n, int O, int I) {
    few_columns(false, y, x, w, N, o0, n, O, I);
}

#ifndef KV_DOUBLE
static void linear_few(Run *r, real *y, const real *x, const real *w, int N, int O, int I) {
    enum { OUTS = 16 };
    bool round = gemm_rounds(r->dev->gemm, (int64_t)O * I);
    Mark mark = arena_mark(r->scratch);
    Tensor xr = round ? SCRATCH(r, "rounded rows", N, I) : ABSENT;
    if (!measuring(r)) {
        for (int i = 0; round && i < N * I; i++) R(xr)[i] = rounded_one(x[i]);
        if (round) x = R(xr);
    #pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * O * I > 4 * ALONE)
        for (int o = 0; o < O; o += OUTS)
            if (round)
                few_columns(true, y, x, w, N, o, imin(OUTS, O - o), O, I);
            else
                few_rows(y, x, w, N, o, imin(OUTS, O - o), O, I);
    }
    arena_release(r->scratch, mark);
}
#endif

static void linear(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    int N = y.n[0], O = w.n[0], I = w.n[1];
    x = tensor_rows(x, I), y = tensor_rows(y, O), N = y.n[0];
    CHECK(x.n[0] == N && (!present(bias) || bias.n[0] == O), "x %d rows, y %d, w (%d,%d)", x.n[0], N, O, I);
#ifndef KV_DOUBLE
    if (N <= FEW) {
        linear_few(r, R(y), R(x), R(w), N, O, I);
    } else
#endif
        gemm(r->dev->gemm, r->scratch,
             (GemmShape){N, O, I, .lda = I, .ldb = I, .ldc = O, .tb = true, .weights = (int64_t)O * I}, R(y), R(x),
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
        gemm(r->dev->gemm, r->scratch,
             (GemmShape){N, I, O, .lda = O, .ldb = I, .ldc = I, .accumulate = true, .weights = (int64_t)O * I}, R(dx),
             R(dy), R(w));
    if (present(dw))
        gemm(r->dev->gemm, r->scratch,
             (GemmShape){O, I, N, .lda = O, .ldb = I, .ldc = I, .ta = true, .accumulate = true,
                         .weights = (int64_t)O * I},
             R(dw), R(dy), R(x));
    if (measuring(r) || !present(dbias)) return;
    for (int i = 0; i < N; i++) {
        const real *g = R(dy) + (size_t)i * (size_t)O;
        for (int o = 0; o < O; o++) R(dbias)[o] += g[o];
    }
}

/* A block of rows of one head; the heads' rows lie ldx and ldy apart. wt: room for W_h turned, or NULL. */
static void head_rows(real *y, size_t ldy, const real *x, size_t ldx, const real *w, real *wt, int n, int O, int I,
                      bool turned) {
    int width = turned ? I : O;
    if (!turned && !wt) { /* decoding: W_h is read once, where it lies */
        for (int o = 0; o < O; o++)
            for (int m = 0; m < n; m++)
                y[(size_t)m * ldy + (size_t)o] = dot(x + (size_t)m * ldx, w + (size_t)o * (size_t)I, I);
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
    bool pack = !turned && M > FEW_ROWS;
    Tensor wt = pack ? SCRATCH(r, "heads' weights turned", r->dev->threads, I, O) : ABSENT;
    if (!measuring(r)) {
        size_t ldx = (size_t)H * (size_t)x.n[2], ldy = (size_t)H * (size_t)y.n[2];
#pragma omp parallel for collapse(2) schedule(static) num_threads(r->dev->threads) if ((long)M * H * O * I > ALONE)
        for (int h = 0; h < H; h++)
            for (int m = 0; m < M; m += ROWS)
                head_rows(R(y) + (size_t)m * ldy + (size_t)h * (size_t)y.n[2], ldy,
                          R(x) + (size_t)m * ldx + (size_t)h * (size_t)x.n[2], ldx,
                          R(w) + ((size_t)h * (size_t)each + (size_t)row) * (size_t)I,
                          pack ? R(wt) + (size_t)omp_get_thread_num() * (size_t)I * (size_t)O : NULL, imin(ROWS, M - m),
                          O, I, turned);
    }
    arena_release(r->scratch, mark);
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
