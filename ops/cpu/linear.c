/* linear.c: y = x w^T and its backward; embedding. */
#include "vec.h"

/* Few rows of x: w is read once, where it lies, at memory speed, instead of being packed for a product. TILE rows of x
 * and COLS of w are in registers at once; x's RUN_K numbers of every row stay in the first cache. */
#if defined(__AVX512F__) || defined(__aarch64__)
    #define COLS 4 /* 4 x 4 sums + 4 + 1 of 32 registers */
#else
    #define COLS 3 /* 4 x 3 + 3 + 1 of 16 */
#endif
enum { FEW = 32, TILE = 4, RUN_K = 192, LINE = (int)(64 / sizeof(real)) /* of memory */ };

/* Sum of a vector's numbers, halves first. (By its address: GCC 14 for aarch64 does not take such a vector by
 * value.) */
INLINE real total(const Vec *v) {
    real t[VL];
    *(Vec *)t = *v;
#pragma GCC unroll 4
    for (int w = VL / 2; w; w /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}

/* VL numbers of each row. */
INLINE void dots_step(int rows, int cols, Vec sum[TILE][COLS], const real *x, size_t ldx, const real *w, int I) {
    Vec b[COLS];
#pragma GCC unroll 4
    for (int o = 0; o < cols; o++) b[o] = *(const Vec *)(w + (size_t)o * (size_t)I);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        Vec a = *(const Vec *)(x + (size_t)r * ldx);
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) sum[r][o] += a * b[o];
    }
}
/* Numbers k..end-1 of `rows` rows of x, ldx apart, times those of `cols` rows of w, onto the sums kept in `s`; the first
 * of k == 0, the last writes y[r][o] = x_r . w_o. A sum has one order, that of k, whatever stands beside it. Of every
 * `share` lines of memory of w's rows two times COLS further on, line `mine` is asked for (none: -1), as a read of few
 * rows at once is too short for the processor to see ahead. */
INLINE void dots(int rows, int cols, int share, int mine, real *y, size_t ldy, const real *x, size_t ldx, const real *w,
                 int I, int k, int end, Vec *s) {
    Vec sum[TILE][COLS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) sum[r][o] = k ? s[r * COLS + o] : (Vec){0};
    int i = k;
    for (; i + LINE <= end; i += LINE) {
        if ((i / LINE & (share - 1)) == mine)
#pragma GCC unroll 4
            for (int o = 0; o < cols; o++) __builtin_prefetch(w + (size_t)(2 * COLS + o) * (size_t)I + i, 0, 2);
#pragma GCC unroll 4
        for (int n = i; n < i + LINE; n += VL) dots_step(rows, cols, sum, x + n, ldx, w + n, I);
    }
    for (; i + VL <= end; i += VL) dots_step(rows, cols, sum, x + i, ldx, w + i, I);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) {
            if (end < I) {
                s[r * COLS + o] = sum[r][o];
                continue;
            }
            real t = total(&sum[r][o]);
            for (int n = i; n < I; n++) t += x[(size_t)r * ldx + (size_t)n] * w[(size_t)o * (size_t)I + (size_t)n];
            y[(size_t)r * ldy + (size_t)o] = t;
        }
}
/* The loop wants its row count at compile time. */
INLINE void dots_rows(int rows, int cols, int share, int mine, real *y, size_t ldy, const real *x, size_t ldx,
                      const real *w, int I, int k, int end, Vec *s) {
    switch (rows) {
    case 1: dots(1, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s); break;
    case 2: dots(2, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s); break;
    case 3: dots(3, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s); break;
    default: dots(TILE, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s);
    }
}

/* `cols` columns of N <= FEW rows of y. */
INLINE void columns_dots(int cols, real *y, size_t ldy, const real *x, size_t ldx, const real *w, int N, int I) {
    Vec s[FEW * COLS];
    int k = 0, share = N > 3 * TILE ? 4 : N > TILE ? 2 : 1; /* a power of two, at most the tiles of x */
    do {
        int end = imin(I, k + RUN_K);
        for (int m = 0; m < N; m += TILE)
            dots_rows(imin(TILE, N - m), cols, share, cols == COLS && m / TILE < share ? m / TILE : -1,
                      y + (size_t)m * ldy, ldy, x + (size_t)m * ldx, ldx, w, I, k, end, s + m * COLS);
        k = end;
    } while (k < I);
}
/* Columns o0..o0+n-1 of N rows of y. */
static void rows_dots(real *y, size_t ldy, const real *x, size_t ldx, const real *w, int N, int o0, int n, int I) {
    for (int m = 0; m < N; m += FEW) {
        int rows = imin(FEW, N - m), o = o0;
        real *to = y + (size_t)m * ldy;
        x += m ? (size_t)FEW * ldx : 0;
        for (; o + COLS <= o0 + n; o += COLS)
            columns_dots(COLS, to + o, ldy, x, ldx, w + (size_t)o * (size_t)I, rows, I);
        for (; o < o0 + n; o++) columns_dots(1, to + o, ldy, x, ldx, w + (size_t)o * (size_t)I, rows, I);
    }
}
static void few_rows(real *y, const real *x, const real *w, int N, int o0, int n, int O, int I) {
    rows_dots(y, (size_t)O, x, (size_t)I, w, N, o0, n, I);
}

/* The numbers of x as `real`s: x itself, or a copy of what is BF16. */
static Tensor in_reals(Run *r, const char *name, Tensor x) {
    if (x.dtype != BF16) return x;
    Tensor wide = scratch_tensor(r, name, REAL, x.rank, x.n);
    if (!measuring(r)) {
        const uint16_t *from = x.p;
        real *to = R(wide);
        size_t n = tensor_count(x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE)
        for (size_t i = 0; i < n; i += ALONE) widened(to + i, from + i, zmin(ALONE, n - i));
    }
    return wide;
}
/* Back: each number rounded to the nearest. */
static void out_of_reals(Run *r, Tensor x, Tensor wide) {
    if (x.dtype != BF16 || measuring(r)) return;
    uint16_t *to = x.p;
    const real *from = R(wide);
    size_t n = tensor_count(x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i += ALONE) narrowed(to + i, from + i, zmin(ALONE, n - i));
}
static void *where(Tensor t) { return t.dtype == BF16 ? t.p : R(t); }
/* Whether a product of rows of this type with w rounds its operands, and takes those that are BF16 where they lie: of
 * rows, or of a matrix, in BF16 however small the matrix. */
static bool rounds_rows(const Run *r, Tensor w, Dtype rows) {
    return REAL == F32 &&
           gemm_rounds(r->dev->gemm, rows == BF16 || w.dtype == BF16 ? INT64_MAX : (int64_t)tensor_count(w));
}

/* A matrix in BF16 where products are in f32: so many of its numbers are widened at once, in whole rows. */
enum { WIDE_NUMBERS = 1 << 23 };
/* y (N,O) = x w^T, a block of rows of w after the other; back: x (N,I) = or += y w. */
static void wide_product(Run *r, real *y, real *x, Tensor w, int N, bool back, bool accumulate) {
    int O = w.n[0], I = w.n[1], rows = imin(O, imax(1, WIDE_NUMBERS / imax(1, I)));
    Mark mark = arena_mark(r->scratch);
    Tensor block = SCRATCH(r, "a matrix widened", rows, I);
    for (int o = 0; o < O; o += rows) {
        int n = imin(rows, O - o);
        real *at = y ? y + o : NULL, *to = block.p;
        GemmShape s = back ? (GemmShape){N, I, n, .lda = O, .ldb = I, .ldc = I, .accumulate = accumulate || o}
                           : (GemmShape){N, n, I, .lda = I, .ldb = I, .ldc = O, .tb = true};
        if (!measuring(r)) {
            const uint16_t *from = (const uint16_t *)w.p + (size_t)o * (size_t)I;
            size_t total = (size_t)n * (size_t)I;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (total > ALONE)
            for (size_t i = 0; i < total; i += ALONE) widened(to + i, from + i, zmin(ALONE, total - i));
        }
        gemm(r->dev->gemm, r->scratch, s, back ? x : at, back ? at : x, to);
    }
    arena_release(r->scratch, mark);
}

/* One call of the product kernel, and one of the few rows' loop, for all matrices. */
_Static_assert((int)LINEAR_MANY == (int)GEMM_JOBS, "a product for each matrix");
static void linear_many(Run *r, int n, const Projection *p, Tensor x) {
    enum { OUTS = 24 }; /* a multiple of every COLS */
    GemmJob jobs[GEMM_JOBS];
    Tensor y[GEMM_JOBS];
    CHECK(n > 0 && n <= GEMM_JOBS, "%d matrices", n);
    int I = p->w.n[1], few[GEMM_JOBS], nfew = 0, njobs = 0, chunks = 0;
    x = tensor_rows(x, I);
    int N = x.n[0];
    long size = 0;
    bool direct = true;
    for (int j = 0; j < n; j++) direct = direct && rounds_rows(r, p[j].w, BF16);
    Mark mark = arena_mark(r->scratch);
    if (!direct) x = in_reals(r, "x in f32", x);
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        bool narrow = p[j].w.dtype == BF16, rounds = rounds_rows(r, p[j].w, x.dtype);
        CHECK(p[j].w.n[1] == I && tensor_rows(p[j].y, O).n[0] == N && (!present(p[j].bias) || p[j].bias.n[0] == O),
              "x (%d,%d), y %d rows, w (%d,%d)", N, I, tensor_rows(p[j].y, O).n[0], O, p[j].w.n[1]);
        y[j] = p[j].y;
        /* rounded once, with the bias added */
        if (y[j].dtype == BF16 && (!rounds || present(p[j].bias))) y[j] = SCRATCH(r, "y in f32", N, O);
        if (!rounds && N <= FEW && REAL == F32) { /* of double the plain loop is the oracle */
            few[nfew++] = j, chunks += (O + OUTS - 1) / OUTS, size += (long)N * O * I;
            continue;
        }
        if (narrow && !rounds) {
            wide_product(r, R(y[j]), R(x), p[j].w, N, false, false);
            continue;
        }
        GemmShape s = {N, O, I, .lda = I, .ldb = I, .ldc = O, .tb = true, .narrow = narrow, .weights = (int64_t)O * I};
        s.narrow_a = x.dtype == BF16, s.narrow_c = y[j].dtype == BF16;
        jobs[njobs++] = (GemmJob){s, where(y[j]), where(x), where(p[j].w), 0, j, j};
    }
    bool wide_few = false;
    for (int k = 0; k < nfew; k++) wide_few |= p[few[k]].w.dtype == BF16;
    /* Many rows are measured for few as well. */
    for (int j = 0; measuring(r) && REAL == F32 && j < n; j++)
        wide_few |= p[j].w.dtype == BF16 && !rounds_rows(r, p[j].w, x.dtype);
    Tensor rows_of_w = wide_few ? SCRATCH(r, "rows of weights widened", r->dev->threads, OUTS, I) : ABSENT;
    if (!measuring(r) && nfew) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (size > 4 * ALONE)
        for (int i = 0; i < chunks; i++) {
            int k = 0, o = i;
            for (; o >= (p[few[k]].w.n[0] + OUTS - 1) / OUTS; k++) o -= (p[few[k]].w.n[0] + OUTS - 1) / OUTS;
            Tensor w = p[few[k]].w;
            int at = o * OUTS, outs = imin(OUTS, w.n[0] - at);
            if (w.dtype != BF16) {
                few_rows(R(y[few[k]]), R(x), R(w), N, at, outs, w.n[0], I);
                continue;
            }
            real *own = R(rows_of_w) + (size_t)omp_get_thread_num() * OUTS * (size_t)I;
            widened(own, (const uint16_t *)w.p + (size_t)at * (size_t)I, (size_t)outs * (size_t)I);
            few_rows(R(y[few[k]]) + at, R(x), own, N, 0, outs, w.n[0], I);
        }
    }
    gemm_many(r->dev->gemm, r->scratch, njobs, jobs);
    for (int j = 0; j < n; j++) {
        if (!measuring(r) && present(p[j].bias)) {
            int O = p[j].w.n[0];
            const real *b = R(p[j].bias);
            real *to = R(y[j]);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * O > ALONE)
            for (int i = 0; i < N; i++)
                for (int o = 0; o < O; o++) to[(size_t)i * (size_t)O + (size_t)o] += b[o];
        }
        if (y[j].dtype != p[j].y.dtype) out_of_reals(r, p[j].y, y[j]);
    }
    arena_release(r->scratch, mark);
}
static void linear(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    linear_many(r, 1, &(Projection){y, w, bias}, x);
}

/* sum (O) += the columns' sums. Threads share the columns, so that each sum has one owner and one order. */
static void add_columns(const Run *r, real *sum, Tensor dy, int N, int O) {
    enum { COLUMNS = 64 };
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * O > ALONE)
    for (int c = 0; c < O; c += COLUMNS)
        for (int i = 0; i < N; i++) {
            real mem[COLUMNS];
            const int n = imin(COLUMNS, O - c);
            const size_t at = (size_t)i * (size_t)O + (size_t)c;
            const real *g = dy.dtype == BF16 ? mem : R(dy) + at;
            if (dy.dtype == BF16) widened(mem, (const uint16_t *)dy.p + at, (size_t)n);
#pragma omp simd
            for (int o = 0; o < n; o++) sum[c + o] += g[o];
        }
}
static void linear_many_backward(Run *r, Tensor dx, int n, const Projection *d, Tensor x, const Projection *p) {
    GemmJob in[GEMM_JOBS], weights[GEMM_JOBS];
    CHECK(n > 0 && n <= GEMM_JOBS, "%d matrices", n);
    int I = p->w.n[1], nin = 0, nweights = 0;
    x = tensor_rows(x, I);
    int N = x.n[0];
    bool direct = true, any = false;
    for (int j = 0; j < n; j++) direct = direct && rounds_rows(r, p[j].w, BF16), any |= present(d[j].w);
    Mark mark = arena_mark(r->scratch);
    Tensor sum = dx;
    bool begun = !dx.fresh; /* something is in it that is added to */
    if (!direct && dx.dtype == BF16)
        sum = dx.fresh ? as_fresh(SCRATCH(r, "dx in f32", N, I)) : in_reals(r, "dx in f32", dx);
    if (!direct && any) x = in_reals(r, "x in f32", x);
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        Tensor dy = tensor_rows(d[j].y, O);
        CHECK(p[j].w.n[1] == I && dy.n[0] == N, "x (%d,%d), dy %d rows, w (%d,%d)", N, I, dy.n[0], O, p[j].w.n[1]);
        if (!direct) dy = in_reals(r, "dy in f32", dy);
        int64_t numbers = (int64_t)O * I;
        GemmShape s = {N, I, O, .lda = O, .ldb = I, .ldc = I, .accumulate = begun, .weights = numbers},
                  t = {O, I, N, .lda = O, .ldb = I, .ldc = I, .ta = true, .accumulate = true, .weights = numbers};
        s.narrow_a = t.narrow_a = dy.dtype == BF16, s.narrow_c = sum.dtype == BF16, t.narrow = x.dtype == BF16;
        s.narrow = p[j].w.dtype == BF16;
        if (present(dx) && s.narrow && !rounds_rows(r, p[j].w, dy.dtype)) {
            gemm_many(r->dev->gemm, r->scratch, nin, in), nin = 0;
            wide_product(r, R(dy), R(sum), p[j].w, N, true, begun);
            begun = true;
        } else if (present(dx)) {
            in[nin++] = (GemmJob){s, where(sum), where(dy), where(p[j].w), j, j, 0}, begun = true;
        }
        if (present(d[j].w)) weights[nweights++] = (GemmJob){t, R(d[j].w), where(dy), where(x), j, 0, j};
        if (!measuring(r) && present(d[j].bias)) add_columns(r, R(d[j].bias), tensor_rows(d[j].y, O), N, O);
    }
    gemm_many(r->dev->gemm, r->scratch, nin, in);
    gemm_many(r->dev->gemm, r->scratch, nweights, weights);
    if (sum.dtype != dx.dtype) out_of_reals(r, dx, sum);
    arena_release(r->scratch, mark);
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
