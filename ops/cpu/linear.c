/* linear.c: y = x w^T and its backward, for one matrix, several, or one per head; embedding. */
#include "vec.h"

/* x as `real`s: x itself, or a copy if it is BF16. */
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
/* Back: each element rounded to nearest. */
static void out_of_reals(Run *r, Tensor x, Tensor wide) {
    if (x.dtype != BF16 || measuring(r)) return;
    uint16_t *to = x.p;
    const real *from = R(wide);
    size_t n = tensor_count(x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i += ALONE) rounded_to_bf16(to + i, from + i, zmin(ALONE, n - i));
}
static void *where(Tensor t) { return t.dtype == BF16 ? t.p : R(t); }
/* True if a product of rows of this type with w rounds its operands and uses BF16 operands in place. It does if rows
 * or matrix are BF16, however small the matrix. */
static bool rounds_rows(const Run *r, Tensor w, Dtype rows) {
    return REAL == F32 &&
           gemm_rounds(r->dev->gemm, rows == BF16 || w.dtype == BF16 ? INT64_MAX : (int64_t)tensor_count(w));
}

/* For a BF16 matrix with f32 products: so many of its elements are expanded at once, in whole rows. */
enum { WIDE_NUMBERS = 1 << 23 };
/* y (N,O) = x w^T, one block of rows of w after the other; back: x (N,I) = or += y w. */
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

static int few_tasks(int O) { return (O + FEW_OUTS - 1) / FEW_OUTS; }
/* Columns o.. of y = x w^T for few rows, at most FEW_OUTS of them, by one thread. turned: x as lanes_pack writes it, or
 * NULL for few enough rows; own: the thread's room for rows of a BF16 w. */
static void few_columns(Tensor y, Tensor x, Tensor w, int o, const real *turned, real *own) {
    const int N = x.n[0], O = w.n[0], I = w.n[1], n = imin(FEW_OUTS, O - o);
    const bool is_bf16 = w.dtype == BF16;
    const size_t at = (size_t)o * (size_t)I;
    if (is_bf16) widened(own, (const uint16_t *)w.p + at, (size_t)n * (size_t)I);
    if (turned)
        lanes_columns(R(y) + o, (size_t)O, turned, is_bf16 ? own : R(w) + at, N, n, I, !is_bf16);
    else if (is_bf16)
        few_rows(R(y) + o, R(x), own, N, 0, n, O, I);
    else
        few_rows(R(y), R(x), R(w), N, o, n, O, I);
}
/* One call of the product kernel, and one of the loop for few rows, for all matrices. */
_Static_assert((int)LINEAR_MANY == (int)GEMM_JOBS, "a product for each matrix");
static void linear_many(Run *r, int n, const Projection *p, Tensor x) {
    GemmJob jobs[GEMM_JOBS];
    Tensor y[GEMM_JOBS];
    CHECK(n > 0 && n <= GEMM_JOBS, "%d matrices", n);
    int I = p->w.n[1], few[GEMM_JOBS], nfew = 0, njobs = 0, chunks = 0;
    x = tensor_rows(x, I);
    int N = x.n[0];
    long size = 0;
    bool direct = true, some_plain = false, some_wide = false;
    for (int j = 0; j < n; j++) direct = direct && rounds_rows(r, p[j].w, BF16);
    Mark mark = arena_mark(r->scratch);
    if (!direct) x = in_reals(r, "x in f32", x);
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        bool is_bf16 = p[j].w.dtype == BF16, rounds = rounds_rows(r, p[j].w, x.dtype);
        check_linear(N, I, p[j]);
        y[j] = p[j].y;
        /* rounded once, with the bias added */
        if (y[j].dtype == BF16 && (!rounds || present(p[j].bias))) y[j] = SCRATCH(r, "y in f32", N, O);
        /* In double the plain loop is the oracle. Room measured for many rows must do for few, so both take it. */
        bool plain = !rounds && REAL == F32;
        some_plain |= plain, some_wide |= plain && is_bf16;
        if (plain && N <= FEW_MOST) {
            few[nfew++] = j, chunks += few_tasks(O), size += (long)N * O * I;
            continue;
        }
        if (is_bf16 && !rounds) {
            wide_product(r, R(y[j]), R(x), p[j].w, N, false, false);
            continue;
        }
        GemmShape s = {N, O, I, .lda = I, .ldb = I, .ldc = O, .tb = true, .b_bf16 = is_bf16, .weights = (int64_t)O * I};
        s.a_bf16 = x.dtype == BF16, s.c_bf16 = y[j].dtype == BF16;
        jobs[njobs++] = (GemmJob){s, where(y[j]), where(x), where(p[j].w), 0, j, j};
    }
    Tensor rows_of_w = some_wide ? SCRATCH(r, "rows of weights widened", r->dev->threads, FEW_OUTS, I) : ABSENT;
    const int lanes = LANES_LEAST > FEW_MOST || N < LANES_LEAST ? 0 : lanes_width(imin(N, FEW_MOST));
    Tensor turned = some_plain && lanes ? SCRATCH(r, "rows as lanes", lanes, I) : ABSENT;
    if (!measuring(r) && nfew) {
        enum { PACKED = 64 }; /* elements of x that a thread transposes at a time */
#pragma omp parallel num_threads(r->dev->threads) if (size > 4 * ALONE)
        {
            real *own = some_wide ? R(rows_of_w) + (size_t)omp_get_thread_num() * FEW_OUTS * (size_t)I : NULL;
            if (present(turned)) {
#pragma omp for schedule(static)
                for (int i = 0; i < I; i += PACKED) lanes_pack(R(turned), R(x), N, I, i, imin(I, i + PACKED));
            }
#pragma omp for schedule(static)
            for (int i = 0; i < chunks; i++) {
                int k = 0, t = i;
                for (; t >= few_tasks(p[few[k]].w.n[0]); k++) t -= few_tasks(p[few[k]].w.n[0]);
                few_columns(y[few[k]], x, p[few[k]].w, t * FEW_OUTS, present(turned) ? R(turned) : NULL, own);
            }
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

/* sum (O) += the columns' sums. Threads divide the columns, so each sum has one owner and one order. */
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
static void linear_many_backward(Run *r, Into dx, int n, const Projection *d, Tensor x, const Projection *p) {
    GemmJob in[GEMM_JOBS], weights[GEMM_JOBS];
    CHECK(n > 0 && n <= GEMM_JOBS, "%d matrices", n);
    int I = p->w.n[1], nin = 0, nweights = 0;
    x = tensor_rows(x, I);
    int N = x.n[0];
    bool direct = true, any = false;
    for (int j = 0; j < n; j++) direct = direct && rounds_rows(r, p[j].w, BF16), any |= present(d[j].w);
    Mark mark = arena_mark(r->scratch);
    Tensor sum = dx.t;
    bool begun = !dx.overwrite; /* it holds a value to add to */
    if (!direct && dx.t.dtype == BF16)
        sum = dx.overwrite ? SCRATCH(r, "dx in f32", N, I) : in_reals(r, "dx in f32", dx.t);
    if (!direct && any) x = in_reals(r, "x in f32", x);
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        Tensor dy = tensor_rows(d[j].y, O);
        check_linear_backward(N, I, dy, p[j].w);
        if (!direct) dy = in_reals(r, "dy in f32", dy);
        int64_t numbers = (int64_t)O * I;
        GemmShape s = {N, I, O, .lda = O, .ldb = I, .ldc = I, .accumulate = begun, .weights = numbers},
                  t = {O, I, N, .lda = O, .ldb = I, .ldc = I, .ta = true, .accumulate = true, .weights = numbers};
        s.a_bf16 = t.a_bf16 = dy.dtype == BF16, s.c_bf16 = sum.dtype == BF16, t.b_bf16 = x.dtype == BF16;
        s.b_bf16 = p[j].w.dtype == BF16;
        if (present(dx.t) && s.b_bf16 && !rounds_rows(r, p[j].w, dy.dtype)) {
            gemm_many(r->dev->gemm, r->scratch, nin, in), nin = 0;
            wide_product(r, R(dy), R(sum), p[j].w, N, true, begun);
            begun = true;
        } else if (present(dx.t)) {
            in[nin++] = (GemmJob){s, where(sum), where(dy), where(p[j].w), j, j, 0}, begun = true;
        }
        if (present(d[j].w)) weights[nweights++] = (GemmJob){t, R(d[j].w), where(dy), where(x), j, 0, j};
        if (!measuring(r) && present(d[j].bias)) add_columns(r, R(d[j].bias), tensor_rows(d[j].y, O), N, O);
    }
    gemm_many(r->dev->gemm, r->scratch, nin, in);
    gemm_many(r->dev->gemm, r->scratch, nweights, weights);
    if (sum.dtype != dx.t.dtype) out_of_reals(r, dx.t, sum);
    arena_release(r->scratch, mark);
}
static void linear_backward(Run *r, Into dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w) {
    linear_many_backward(r, dx, 1, &(Projection){dy, dw, dbias}, x, &(Projection){.w = w});
}

/* A block of rows of one head; the heads' rows are ldx and ldy apart. wt: room for the transpose of W_h, or NULL. */
static void head_rows(real *y, size_t ldy, const real *x, size_t ldx, const real *w, real *wt, int n, int O, int I,
                      bool turned) {
    int width = turned ? I : O;
    if (!turned && !wt) { /* decoding: W_h is read once, in place */
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
    int M = x.n[0], H = x.n[1], I = w.n[1], each = check_linear_heads(y, x, w, row, O, turned);
    if (M == 0) return;
    Mark mark = arena_mark(r->scratch);
    /* bf16 weights give a row the same bits whatever other rows there are, as in `linear`. */
    bool is_bf16 = w.dtype == BF16, pack = !turned && !is_bf16 && M > FEW_ROWS;
    Tensor wt = pack ? SCRATCH(r, "heads' weights turned", r->dev->threads, I, O) : ABSENT;
    Tensor wide = is_bf16 ? SCRATCH(r, "heads' weights widened", r->dev->threads, O, I) : ABSENT;
    if (!measuring(r)) {
        size_t ldx = (size_t)H * (size_t)x.n[2], ldy = (size_t)H * (size_t)y.n[2];
#pragma omp parallel for collapse(2) schedule(static) num_threads(r->dev->threads) if ((long)M * H * O * I > ALONE)
        for (int h = 0; h < H; h++)
            for (int m = 0; m < M; m += ROWS) {
                size_t own = (size_t)omp_get_thread_num() * (size_t)I * (size_t)O,
                       at = ((size_t)h * (size_t)each + (size_t)row) * (size_t)I;
                if (is_bf16) widened(R(wide) + own, (const uint16_t *)w.p + at, (size_t)O * (size_t)I);
                head_rows(R(y) + (size_t)m * ldy + (size_t)h * (size_t)y.n[2], ldy,
                          R(x) + (size_t)m * ldx + (size_t)h * (size_t)x.n[2], ldx, is_bf16 ? R(wide) + own : R(w) + at,
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
        check_token(tok[i], table);
        real *row = R(y) + (size_t)i * (size_t)d;
        tensor_read(table, (size_t)tok[i] * (size_t)d, (size_t)d, row);
        for (int k = 0; k < d; k++) row[k] *= (real)scale;
    }
}
/* Threads divide the columns, so each sum has one owner and one order. */
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
