/* conv.c: the short depthwise convolution before a recurrence. */
#include "vec.h"

INLINE real silu(real a) { return a / (1 + exp_real(-a)); }
INLINE real silu_slope(real a) {
    real s = 1 / (1 + exp_real(-a));
    return s * (1 + a * (1 - s));
}

/* The input of channel 0 that lies `back` rows before row t: in the pass, in the tail that the state holds, or NULL:
 * before the document. */
static const real *conv_row(const Batch *b, const real *x, size_t C, int t, int back, const real *tail, int W) {
    int s = b->of[t], first = b->first[t], from = first < 0 ? b->off[s] : first, i = t - back;
    if (i >= from) return x + (size_t)i * C;
    if (first >= 0 || i < b->off[s] - (W - 1)) return NULL;
    CHECK(tail, "row %d continues a history that is not there", t);
    return tail + (size_t)(i - b->off[s] + W - 1) * C;
}
/* (C,W) as (W,C), so that loops over channels have unit stride. */
static void conv_taps(real *out, const real *w, int C, int W) {
    for (int c = 0; c < C; c++)
        for (int j = 0; j < W; j++) out[(size_t)j * (size_t)C + (size_t)c] = w[(size_t)c * (size_t)W + (size_t)j];
}
static int conv_width(Tensor w) { return present(w) ? w.n[w.rank - 1] : 1; }

/* y before its activation, row t. */
static void conv_at(real *y, const Batch *b, const real *x, size_t C, int t, const real *taps, int W, const real *bias,
                    const real *tail) {
    if (bias)
        memcpy(y, bias, C * sizeof(real));
    else
        memset(y, 0, C * sizeof(real));
    for (int j = 0; j < W; j++) {
        const real *row = conv_row(b, x, C, t, W - 1 - j, tail, W), *w = taps + (size_t)j * C;
        if (!row) continue;
#pragma omp simd
        for (size_t c = 0; c < C; c++) y[c] += w[c] * row[c];
    }
}

static void conv_store(const Run *r, Tensor x, int W, Tensor state, int at) {
    const Batch *b = r->batch;
    size_t C = (size_t)x.n[1], bytes = C * sizeof(real);
    for (int s = 0; s < b->B; s++) {
        int end = b->off[s + 1];
        if (end == b->off[s]) continue;
        real *tail = R(state) + (size_t)b->seq[s] * (size_t)state.n[1] + at;
        for (int j = 0; j < W - 1; j++) { /* oldest first: what is still read lies behind what is written */
            const real *row = conv_row(b, R(x), C, end - 1, W - 2 - j, tail, W);
            if (row)
                memcpy(tail + (size_t)j * C, row, bytes);
            else
                memset(tail + (size_t)j * C, 0, bytes);
        }
    }
}

static void short_conv(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias, bool act, Tensor state, int at) {
    const Batch *b = r->batch;
    int N = x.n[0], C = x.n[1], W = conv_width(w);
    CHECK(tensor_count(y) == tensor_count(x) && (!present(w) || w.n[0] == C), "x (%d,%d)", N, C);
    Mark mark = arena_mark(r->scratch);
    Tensor taps = SCRATCH(r, "taps", W, C);
    if (!measuring(r)) {
        CHECK(N == b->N, "%d of %d rows", N, b->N);
        if (present(w)) conv_taps(R(taps), R(w), C, W);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * C * W > ALONE)
        for (int t = 0; t < N; t++) {
            real *yt = R(y) + (size_t)t * (size_t)C;
            const real *tail =
                present(state) ? R(state) + (size_t)b->seq[b->of[t]] * (size_t)state.n[1] + (size_t)at : NULL;
            if (present(w))
                conv_at(yt, b, R(x), (size_t)C, t, R(taps), W, present(bias) ? R(bias) : NULL, tail);
            else
                memcpy(yt, R(x) + (size_t)t * (size_t)C, (size_t)C * sizeof(real));
            if (act)
#pragma omp simd
                for (int c = 0; c < C; c++) yt[c] = silu(yt[c]);
        }
        if (present(state) && W > 1 && !(r->mode & RUN_HOLD)) conv_store(r, x, W, state, at);
    }
    arena_release(r->scratch, mark);
}

static void short_conv_backward(Run *r, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias,
                                bool act) {
    const Batch *b = r->batch;
    int N = x.n[0], C = x.n[1], W = conv_width(w);
    Mark mark = arena_mark(r->scratch);
    Tensor taps = SCRATCH(r, "taps", W, C), da = SCRATCH(r, "d sums", N, C);
    if (!measuring(r)) {
        CHECK(!b->history && N == b->N, "a convolution is trained on whole documents");
        if (present(w)) conv_taps(R(taps), R(w), C, W);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * C * W > ALONE)
        for (int t = 0; t < N; t++) { /* by the sums before the activation */
            real *a = R(da) + (size_t)t * (size_t)C;
            const real *g = R(dy) + (size_t)t * (size_t)C;
            if (!act) {
                memcpy(a, g, (size_t)C * sizeof(real));
                continue;
            }
            if (present(w))
                conv_at(a, b, R(x), (size_t)C, t, R(taps), W, present(bias) ? R(bias) : NULL, NULL);
            else
                memcpy(a, R(x) + (size_t)t * (size_t)C, (size_t)C * sizeof(real));
#pragma omp simd
            for (int c = 0; c < C; c++) a[c] = g[c] * silu_slope(a[c]);
        }
        if (present(dx))
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * C * W > ALONE)
            for (int t = 0; t < N; t++) {
                real *out = R(dx) + (size_t)t * (size_t)C;
                for (int j = W - 1; j >= 0; j--) {
                    int to = t + W - 1 - j; /* the row that took in x_t with tap j */
                    if (to >= b->off[b->of[t] + 1] || b->first[to] != b->first[t]) break;
                    const real *a = R(da) + (size_t)to * (size_t)C, *tap = R(taps) + (size_t)j * (size_t)C;
                    for (int c = 0; c < C; c++) out[c] += present(w) ? a[c] * tap[c] : a[c];
                }
            }
            /* Threads share the channels, so that each sum has one owner and one order. */
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * C * W > ALONE)
        for (int c0 = 0; c0 < C; c0 += 64) {
            int n = imin(64, C - c0);
            for (int t = 0; t < N; t++) {
                const real *a = R(da) + (size_t)t * (size_t)C + c0;
                for (int c = 0; present(dbias) && c < n; c++) R(dbias)[c0 + c] += a[c];
                for (int j = 0; present(dw) && j < W; j++) {
                    const real *row = conv_row(b, R(x), (size_t)C, t, W - 1 - j, NULL, W);
                    for (int c = 0; row && c < n; c++) R(dw)[(c0 + c) * W + j] += a[c] * row[c0 + c];
                }
            }
        }
    }
    arena_release(r->scratch, mark);
}
