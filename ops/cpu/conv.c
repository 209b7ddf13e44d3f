/* conv.c: the short depthwise convolution before a recurrence, and its backward. */
#include "vec.h"

INLINE real silu(real a) { return a / (1 + exp_real(-a)); }
INLINE real silu_slope(real a) {
    real s = 1 / (1 + exp_real(-a));
    return s * (1 + a * (1 - s));
}

/* Rows of x as `real`s, some columns of them: row i lies at (i - from) ld. */
typedef struct {
    const real *at;
    size_t ld;
    int from;
} Window;
/* Rows from..to-1 (those in the pass), columns c..c+n-1: in place, or expanded into room, whose rows have RUN
 * elements. */
INLINE Window conv_window(Tensor x, int from, int to, size_t c, size_t n, real *room) {
    size_t C = (size_t)x.n[1];
    if (x.dtype != BF16) return (Window){R(x) + c, C, 0};
    from = imax(0, from);
    for (int i = from; i < imin(to, x.n[0]); i++) run_of(x, (size_t)i * C + c, n, room + (size_t)(i - from) * RUN);
    return (Window){room, RUN, from};
}
/* The input `back` rows before row t: from the pass, from the tail in the state (C elements a row), or NULL if it is
 * before the document. */
INLINE const real *conv_row(const Batch *b, Window x, int t, int back, const real *tail, size_t C, int W) {
    int s = b->of[t], first = b->first[t], from = first < 0 ? b->off[s] : first, i = t - back;
    if (i >= from) return x.at + (size_t)(i - x.from) * x.ld;
    if (first >= 0 || i < b->off[s] - (W - 1)) return NULL;
    CHECK(tail, "row %d continues a history that is not there", t);
    return tail + (size_t)(i - b->off[s] + W - 1) * C;
}
static int conv_width(Tensor w) { return present(w) ? w.n[w.rank - 1] : 1; }

/* Taps are processed FOUR at a time: four rows times four taps are one loop without a branch, and missing ones at
 * either end are rows of zeros. Columns are processed in runs of at most RUN. */
enum { FOUR = 4, CONV_ROWS = 8 /* at a time */ };
static int conv_fours(int W) { return (W + FOUR - 1) / FOUR * FOUR; }
/* (C,W) as (conv_fours(W),C), so that loops over channels have unit stride. */
static void conv_taps(real *out, const real *w, int C, int W) {
    memset(out, 0, (size_t)conv_fours(W) * (size_t)C * sizeof *out);
    for (int c = 0; c < C; c++)
        for (int j = 0; j < W; j++) out[(size_t)j * (size_t)C + (size_t)c] = w[(size_t)c * (size_t)W + (size_t)j];
}
/* y = base + the sum of four products of rows, with silu if `act`. y may be base. */
INLINE void conv_four(real *y, const real *base, const real *const a[FOUR], const real *const b[FOUR], size_t n,
                      bool act) {
    const real *a0 = a[0], *a1 = a[1], *a2 = a[2], *a3 = a[3], *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
    if (act) {
#pragma omp simd
        for (size_t c = 0; c < n; c++)
            y[c] = silu(base[c] + a0[c] * b0[c] + a1[c] * b1[c] + a2[c] * b2[c] + a3[c] * b3[c]);
    } else {
#pragma omp simd
        for (size_t c = 0; c < n; c++) y[c] = base[c] + a0[c] * b0[c] + a1[c] * b1[c] + a2[c] * b2[c] + a3[c] * b3[c];
    }
}

/* The same for rows in BF16, from memory to memory. */
INLINE real four_bf16(real base, const real *const a[FOUR], const uint16_t *const b[FOUR], size_t c) {
    return base + a[0][c] * (real)bf16_to(b[0][c]) + a[1][c] * (real)bf16_to(b[1][c]) +
           a[2][c] * (real)bf16_to(b[2][c]) + a[3][c] * (real)bf16_to(b[3][c]);
}
/* Write to `sum` while more taps follow, then to y. */
INLINE void conv_four_bf16(uint16_t *y, real *sum, const real *base, const real *const a[FOUR],
                           const uint16_t *const b[FOUR], size_t n, bool more, bool act) {
    if (more) {
#pragma omp simd
        for (size_t c = 0; c < n; c++) sum[c] = four_bf16(base[c], a, b, c);
    } else if (act) {
#pragma omp simd
        for (size_t c = 0; c < n; c++) y[c] = bf16_from((float)silu(four_bf16(base[c], a, b, c)));
    } else {
#pragma omp simd
        for (size_t c = 0; c < n; c++) y[c] = bf16_from((float)four_bf16(base[c], a, b, c));
    }
}

/* The inputs of a convolution. */
typedef struct {
    const Batch *b;
    Tensor x;
    const real *taps, *bias, *zeros; /* taps as conv_taps makes them; bias may be zeros */
    size_t C;
    int W;
} Conv;
/* Columns c..c+n-1 of row t of y, with the activation if `act`. x and tail begin at column c. */
INLINE void conv_at(real *y, const Conv *v, Window x, int t, size_t c, size_t n, const real *tail, bool act) {
    const real *base = v->bias == v->zeros ? v->zeros : v->bias + c;
    for (int j = 0; j < v->W; j += FOUR) {
        const real *rows[FOUR], *taps[FOUR];
        for (int k = 0; k < FOUR; k++) {
            const real *row = j + k < v->W ? conv_row(v->b, x, t, v->W - 1 - j - k, tail, v->C, v->W) : NULL;
            rows[k] = row ? row : v->zeros;
            taps[k] = v->taps + (size_t)(j + k) * v->C + c;
        }
        conv_four(y, base, taps, rows, n, act && j + FOUR >= v->W);
        base = y;
    }
}

static void conv_store(const Run *r, Tensor x, int W, Tensor state, int at) {
    const Batch *b = r->batch;
    size_t C = (size_t)x.n[1], bytes = C * sizeof(real);
    for (int s = 0; s < b->B; s++) {
        int end = b->off[s + 1];
        if (end == b->off[s]) continue;
        real *tail = R(state) + (size_t)b->seq[s] * (size_t)state.n[1] + at;
        for (int j = 0; j < W - 1; j++) { /* oldest first: rows still to be read lie after the one written */
            const real *row = conv_row(b, (Window){R(x), C, 0}, end - 1, W - 2 - j, tail, C, W);
            if (row)
                memcpy(tail + (size_t)j * C, row, bytes);
            else
                memset(tail + (size_t)j * C, 0, bytes);
        }
    }
}

/* Rows t..end-1 of y. */
INLINE void conv_rows(const Conv *v, Tensor y, int t, int end, bool act, Tensor state, int at) {
    const Batch *b = v->b;
    for (size_t c = 0; c < v->C; c += RUN)
        for (int i = t; i < end; i++) {
            const real *tail = NULL;
            if (present(state)) tail = R(state) + (size_t)b->seq[b->of[i]] * (size_t)state.n[1] + (size_t)at + c;
            conv_at(R(y) + (size_t)i * v->C + c, v, (Window){R(v->x) + c, v->C, 0}, i, c, zmin(RUN, v->C - c), tail,
                    act);
        }
}
/* The same for BF16, without a state. */
INLINE void conv_rows_bf16(const Conv *v, Tensor y, int t, int end, bool act) {
    const Batch *b = v->b;
    const uint16_t *x = v->x.p, *none = (const uint16_t *)v->zeros;
    for (size_t c = 0; c < v->C; c += RUN)
        for (int i = t; i < end; i++) {
            int s = b->of[i], from = imax(b->off[s], b->first[i]);
            real sum[RUN];
            const real *base = v->bias == v->zeros ? v->zeros : v->bias + c;
            for (int j = 0; j < v->W; j += FOUR) {
                const uint16_t *rows[FOUR];
                const real *taps[FOUR];
                for (int k = 0; k < FOUR; k++) {
                    int row = i - (v->W - 1 - j - k);
                    rows[k] = j + k < v->W && row >= from ? x + (size_t)row * v->C + c : none;
                    taps[k] = v->taps + (size_t)(j + k) * v->C + c;
                }
                conv_four_bf16((uint16_t *)y.p + (size_t)i * v->C + c, sum, base, taps, rows, zmin(RUN, v->C - c),
                               j + FOUR < v->W, act);
                base = sum;
            }
        }
}
/* The convolution without taps. */
static void act_rows(Tensor y, Tensor x, size_t at, size_t end, bool act) {
    for (; at < end; at += RUN) {
        real room[2][RUN];
        size_t n = zmin(RUN, end - at);
        const real *a = run_of(x, at, n, room[0]);
        real *o = run_write(y, at, room[1]);
        for (size_t c = 0; c < n; c++) o[c] = act ? silu(a[c]) : a[c];
        run_done(y, at, n, o);
    }
}
static void short_conv(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias, bool act, Tensor state, int at) {
    const Batch *b = r->batch;
    int N = x.n[0], C = x.n[1], W = conv_width(w);
    bool is_bf16 = x.dtype == BF16;
    int rows = N >= CONV_ROWS * CONV_ROWS ? CONV_ROWS : 1; /* at a time; of few every thread takes some */
    check_short_conv(y, x, w, state);
    Mark mark = arena_mark(r->scratch);
    Tensor taps = SCRATCH(r, "taps", conv_fours(W), C), zeros = SCRATCH(r, "zeros", RUN);
    if (!measuring(r)) {
        CHECK(N == b->N && (!is_bf16 || !b->history), "%d of %d rows", N, b->N);
        memset(zeros.p, 0, tensor_bytes(zeros));
        if (present(w)) conv_taps(R(taps), R(w), C, W);
        const Conv v = {b, x, R(taps), present(w) && present(bias) ? R(bias) : R(zeros), R(zeros), (size_t)C, W};
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * C * W > ALONE)
        for (int t = 0; t < N; t += rows) {
            int end = imin(t + rows, N);
            if (present(w) && is_bf16)
                conv_rows_bf16(&v, y, t, end, act);
            else if (present(w))
                conv_rows(&v, y, t, end, act, state, at);
            else
                act_rows(y, x, (size_t)t * v.C, (size_t)end * v.C, act);
        }
        if (present(state) && W > 1 && !(r->mode & RUN_HOLD)) conv_store(r, x, W, state, at);
    }
    arena_release(r->scratch, mark);
}

/* The backward pass of one convolution. */
typedef struct {
    Conv v;
    Tensor dy;
    Into dx; /* may be absent */
    bool act, weighs;
} ConvBack;
/* da, the gradient before the activation, of row t, columns from c on; x begins at column c. */
INLINE void conv_da(real *da, const ConvBack *o, Window x, int t, size_t c, size_t n) {
    real room[RUN];
    const real *g = run_of(o->dy, (size_t)t * o->v.C + c, n, room);
    if (!o->act) {
        memcpy(da, g, n * sizeof *da);
        return;
    }
    conv_at(da, &o->v, x, t, c, n, NULL, false);
#pragma omp simd
    for (size_t i = 0; i < n; i++) da[i] = g[i] * silu_slope(da[i]);
}
/* Rows t..end-1, at most CONV_ROWS, of dx from da. `da` holds its rows from t on, RUN elements each. */
INLINE void conv_dx(const ConvBack *o, int t, int end, size_t c, size_t n, const real *da) {
    const Conv *v = &o->v;
    const Batch *b = v->b;
    for (int i = t; i < end; i++) {
        size_t at = (size_t)i * v->C + c;
        real room[RUN], *out = o->dx.overwrite ? run_write(o->dx.t, at, room) : run_of(o->dx.t, at, n, room);
        for (int j = 0; j < v->W; j += FOUR) {
            const real *rows[FOUR], *taps[FOUR];
            for (int k = 0; k < FOUR; k++) {
                int to = i + v->W - 1 - j - k; /* the row that used x_i with tap j + k */
                bool took = j + k < v->W && to < b->off[b->of[i] + 1] && b->first[to] == b->first[i];
                rows[k] = took ? da + (size_t)(to - t) * RUN : v->zeros;
                taps[k] = v->taps + (size_t)(j + k) * v->C + c;
            }
            conv_four(out, j || !o->dx.overwrite ? out : v->zeros, taps, rows, n, false);
        }
        run_done(o->dx.t, at, n, out);
    }
}
/* Add their parts to the block's sums. */
INLINE void conv_dw(const ConvBack *o, Window x, int t, int end, size_t c, size_t n, const real *da, real *sums) {
    const Conv *v = &o->v;
    for (int i = t; i < end; i += FOUR) {
        const real *grads[FOUR], *rows[FOUR];
        for (int k = 0; k < FOUR; k++) grads[k] = i + k < end ? da + (size_t)(i + k - t) * RUN : v->zeros;
        for (int j = 0; j < v->W; j++) {
            for (int k = 0; k < FOUR; k++) {
                const real *row = i + k < end ? conv_row(v->b, x, i + k, v->W - 1 - j, NULL, v->C, v->W) : NULL;
                rows[k] = row ? row : v->zeros;
            }
            real *sum = sums + (size_t)j * v->C + c;
            conv_four(sum, sum, grads, rows, n, false);
        }
        real *sum = sums + (size_t)v->W * v->C + c;
#pragma omp simd
        for (size_t q = 0; q < n; q++) sum[q] += grads[0][q] + grads[1][q] + grads[2][q] + grads[3][q];
    }
}
/* Rows of RUN elements that a block needs: those of da, then those of x, where it is BF16. */
static int conv_room(Tensor x, int W) { return CONV_ROWS + W - 1 + (x.dtype == BF16 ? CONV_ROWS + 2 * (W - 1) : 0); }
/* Process rows i0..i1-1. sums: over these rows, of dw as (W,C), then of dbias. */
static void conv_block(const ConvBack *o, int i0, int i1, real *sums, real *room) {
    const Conv *v = &o->v;
    real *wide = room + (size_t)(CONV_ROWS + v->W - 1) * RUN;
    int ahead = v->W - 1; /* later rows whose da a row's dx needs */
    memset(sums, 0, (size_t)(v->W + 1) * v->C * sizeof *sums);
    for (size_t c = 0; c < v->C; c += RUN) {
        size_t n = zmin(RUN, v->C - c);
        for (int t = i0, known = i0; t < i1; t += CONV_ROWS) {
            int end = imin(t + CONV_ROWS, i1), last = imin(end + ahead, v->b->N);
            Window x = conv_window(v->x, t - ahead, last, c, n, wide);
            for (; known < last; known++) conv_da(room + (size_t)(known - t) * RUN, o, x, known, c, n);
            if (present(o->dx.t)) conv_dx(o, t, end, c, n, room);
            if (o->weighs) conv_dw(o, x, t, end, c, n, room, sums);
            if (known > end) memmove(room, room + (size_t)CONV_ROWS * RUN, (size_t)(known - end) * RUN * sizeof *room);
        }
    }
}
static void short_conv_backward(Run *r, Into dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias,
                                bool act) {
    const Batch *b = r->batch;
    int N = x.n[0], C = x.n[1], W = conv_width(w), size = rows_of_block(N), width = (W + 1) * C;
    CHECK_ALIKE(dx.t, dy, x);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor taps = SCRATCH(r, "taps", conv_fours(W), C), zeros = SCRATCH(r, "zeros", RUN),
           sums = SCRATCH(r, "sums of blocks", blocks_of(N) + 1, W + 1, C),
           room = SCRATCH(r, "d sums", r->dev->threads, conv_room(x, W), RUN);
    if (!measuring(r)) {
        CHECK(!b->history && N == b->N, "a convolution is trained on whole documents");
        memset(zeros.p, 0, tensor_bytes(zeros));
        if (present(w))
            conv_taps(R(taps), R(w), C, W);
        else
            for (int c = 0; c < FOUR * C; c++) R(taps)[c] = c < C;
        const ConvBack o = {{b, x, R(taps), present(w) && present(bias) ? R(bias) : R(zeros), R(zeros), (size_t)C, W},
                            dy,
                            dx,
                            act,
                            present(dw) || present(dbias)};
        real *total = R(sums), *part = total + width;
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * C * W > ALONE)
        {
            real *own = R(room) + (size_t)omp_get_thread_num() * (tensor_count(room) / (size_t)room.n[0]);
#pragma omp for schedule(static)
            for (int i0 = 0; i0 < N; i0 += size)
                conv_block(&o, i0, imin(N, i0 + size), part + (size_t)(i0 / size) * (size_t)width, own);
#pragma omp for schedule(static)
            for (int c = 0; c < width; c += 64) {
                int n = imin(64, width - c);
                memset(total + c, 0, (size_t)n * sizeof *total);
                add_blocks(total, part, N, c, n, width);
            }
        }
        for (int c = 0; c < C; c++) {
            for (int j = 0; present(dw) && j < W; j++) R(dw)[c * W + j] += total[j * C + c];
            if (present(dbias)) R(dbias)[c] += total[W * C + c];
        }
    }
    arena_release(r->scratch, mark);
}
