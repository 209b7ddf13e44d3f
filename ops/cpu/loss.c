/* loss.c: the linear head with cross-entropy, in chunks of rows; sums of squares. */
#include "vec.h"

/* Number of logits that exist at once: so many, or so many rows, because w is packed and read and dw is read and
 * written for each chunk. At most MAX, 512 MB in f32. Their rounded gradient takes half as much in addition, and a
 * teacher's logits the same. */
enum { CHUNK_NUMBERS = 1 << 20, CHUNK_ROWS = 1024, CHUNK_NUMBERS_MAX = 1 << 27 };
static int chunk_rows(int V) { return imax(CHUNK_NUMBERS / V, imax(1, imin(CHUNK_ROWS, CHUNK_NUMBERS_MAX / V))); }

/* True if no id has a larger logit than the target, and no lower id has an equal one. */
static int first_largest(const real *l, int V, int target) {
    if (target < 0) return 0;
    real t = l[target];
    int above = 0;
#pragma omp simd reduction(+ : above)
    for (int v = 0; v < V; v++) above += v < target ? !(l[v] < t) : !(l[v] <= t); /* NaN counts as larger */
    return above == 0;
}

/* n products of the head become logits, as LogitMap says. */
INLINE void logits_of(real *x, size_t n, LogitMap m) {
    const real scale = (real)m.scale, cap = (real)m.cap, inner = (real)(m.cap > 0 ? m.scale / m.cap : 0);
    if (m.cap > 0) {
#pragma omp simd
        for (size_t i = 0; i < n; i++) x[i] = cap * tanh_real(inner * x[i]);
    } else {
#pragma omp simd
        for (size_t i = 0; i < n; i++) x[i] *= scale;
    }
}
/* The derivative of a logit z by its product; fold = 1/cap^2, or 0 where there is no cap. */
INLINE real logit_slope(real z, real scale, real fold) { return scale * (1 - z * z * fold); }
static real logit_fold(LogitMap m) { return (real)(m.cap > 0 ? 1 / (m.cap * m.cap) : 0); }
static void map_logits(Run *r, Tensor x, LogitMap m) {
    size_t n = tensor_count(x);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) logits_of(R(x) + i, zmin(RUN, n - i), m);
}

/* One row of logits: its loss, and with `grad` the derivatives by the products, (p - onehot) times g times the map's
 * slope, written over the logits. */
static real xent_row(real *l, int V, LogitMap map, int target, real g, bool grad) {
    real top = l[0], sum = 0, at = target >= 0 ? l[target] : 0;
#pragma omp simd reduction(max : top)
    for (int v = 0; v < V; v++) top = l[v] > top ? l[v] : top;
    if (target < 0) {
        if (grad) memset(l, 0, (size_t)V * sizeof *l);
        return 0;
    }
#pragma omp simd reduction(+ : sum)
    for (int v = 0; v < V; v++) sum += exp_real(l[v] - top);
    if (grad) {
        real inv = g / sum;
        if (logits_plain(map)) {
#pragma omp simd
            for (int v = 0; v < V; v++) l[v] = exp_real(l[v] - top) * inv;
            l[target] -= g;
        } else {
            const real scale = (real)map.scale, fold = logit_fold(map);
#pragma omp simd
            for (int v = 0; v < V; v++) l[v] = exp_real(l[v] - top) * inv * logit_slope(l[v], scale, fold);
            l[target] -= g * logit_slope(at, scale, fold);
        }
    }
    return (real)log((double)sum) + top - at;
}

/* If both products of the logits' gradient would round it, it is rounded once, while its row is in the caches. */
static Tensor bf16_logits(Run *r, bool gradient, int rows, Tensor w) {
    return gradient && rounds_rows(r, w, REAL) ? scratch_tensor(r, "their gradient", BF16, 2, (int[]){rows, w.n[0]})
                                               : ABSENT;
}
static void linear_xent(Run *r, Tensor nll, int *hit, Into dx, Tensor dw, Tensor x, Tensor w, LogitMap map,
                        const int *tgt, const real *g) {
    int N = x.n[0], V = w.n[0];
    check_linear_xent(dx.t, dw, x, w);
    int rows = imin(N, chunk_rows(V));
    Mark mark = arena_mark(r->scratch);
    Tensor chunk = SCRATCH(r, "logits", rows, V), rounded = bf16_logits(r, present(dx.t), rows, w);
    for (int from = 0; from < N; from += rows) {
        int n = imin(rows, N - from);
        Tensor l = TENSOR(chunk.p, REAL, n, V), xs = tensor_part(x, from, n);
        Tensor dl = present(rounded) ? tensor_part(rounded, 0, n) : l;
        linear(r, l, xs, w, ABSENT);
        if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)n * V > ALONE)
            for (int i = 0; i < n; i++) {
                int t = tgt[from + i];
                real *row = R(l) + (size_t)i * (size_t)V;
                check_target(t, V);
                if (!logits_plain(map)) logits_of(row, (size_t)V, map);
                if (hit) hit[from + i] = first_largest(row, V, t);
                R(nll)[from + i] = xent_row(row, V, map, t, present(dx.t) ? g[from + i] : 0, present(dx.t));
                if (present(rounded)) rounded_to_bf16((uint16_t *)rounded.p + (row - R(l)), row, (size_t)V);
            }
        }
        if (present(dx.t)) linear_backward(r, into_part(dx, from, n), dw, ABSENT, dl, xs, w);
    }
    arena_release(r->scratch, mark);
}

enum { SUMSQ_LEAF = 256 };
/* A tree of fixed shape over leaves of 256. It splits at the largest leaf times a power of two below n. So an aligned
 * part of a piece whose length is such a power is a branch of the tree. */
static double sumsq_tree(const real *x, size_t n) {
    if (n <= SUMSQ_LEAF) {
        double s = 0;
#pragma omp simd reduction(+ : s)
        for (size_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
        return s;
    }
    size_t half = SUMSQ_LEAF;
    while (2 * half < n) half *= 2;
    return sumsq_tree(x, half) + sumsq_tree(x + half, n - half);
}
/* Pieces of 65,536 added in order: the number of threads changes nothing. */
static double sumsq(Run *r, Tensor x) {
    enum { PIECE = 65536 };
    size_t n = tensor_count(x), pieces = (n + PIECE - 1) / PIECE;
    if (!n) return 0;
    Mark mark = arena_mark(r->scratch);
    double *part = arena_take(r->scratch, pieces * sizeof *part, "sumsq");
    double sum = 0;
    if (!measuring(r)) {
        const real *X = R(x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE)
        for (size_t p = 0; p < pieces; p++) { part[p] = sumsq_tree(X + p * PIECE, zmin(PIECE, n - p * PIECE)); }
        for (size_t p = 0; p < pieces; p++) sum += part[p];
    }
    arena_release(r->scratch, mark);
    return sum;
}
static void normalise(Run *r, Tensor x, double eps) {
    double norm = sqrt(sumsq(r, x));
    axpby(r, x, 0, x, 1 / (norm + eps));
}
static double sumsqs(Run *r, double sum, int n, const Tensor *x) {
    for (int i = 0; i < n; i++) sum += sumsq(r, x[i]);
    return sum;
}
static void sumsqs_there(Run *r, double *sum, bool more, int n, const Tensor *x) {
    double all = sumsqs(r, more && !measuring(r) ? *sum : 0, n, x);
    if (!measuring(r)) *sum = all;
}
