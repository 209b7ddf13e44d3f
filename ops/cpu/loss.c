/* loss.c: the linear head with cross-entropy, in chunks of rows; sums of squares. */
#include "vec.h"

/* Logits that exist at once: so many, or so many rows, since w is packed and read and dw is read and written for each
 * chunk; at most MAX, 512 MB in f32, beside which their rounded gradient takes half as much, and a teacher's the
 * same. */
enum { CHUNK_NUMBERS = 1 << 20, CHUNK_ROWS = 1024, CHUNK_NUMBERS_MAX = 1 << 27 };
static int chunk_rows(int V) { return imax(CHUNK_NUMBERS / V, imax(1, imin(CHUNK_ROWS, CHUNK_NUMBERS_MAX / V))); }

/* Whether no id has a larger logit than the target, and none before it as large a one. */
static int first_largest(const real *l, int V, int target) {
    if (target < 0) return 0;
    real t = l[target];
    int above = 0;
#pragma omp simd reduction(+ : above)
    for (int v = 0; v < V; v++) above += v < target ? !(l[v] < t) : !(l[v] <= t); /* NaN is above */
    return above == 0;
}

/* One row: its loss, and with `grad` p - onehot scaled by g in place of the logits. */
static real xent_row(real *l, int V, int target, real g, bool grad) {
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
#pragma omp simd
        for (int v = 0; v < V; v++) l[v] = exp_real(l[v] - top) * inv;
        l[target] -= g;
    }
    return (real)log((double)sum) + top - at;
}

/* Where both products of the logits' gradient would round it, it is rounded once, while its row is in the caches. */
static Tensor narrow_logits(Run *r, bool gradient, int rows, Tensor w) {
    return gradient && rounds_rows(r, w, REAL) ? scratch_tensor(r, "their gradient", BF16, 2, (int[]){rows, w.n[0]})
                                               : ABSENT;
}
static void linear_xent(Run *r, Tensor nll, int *hit, Tensor dx, Tensor dw, Tensor x, Tensor w, const int *tgt,
                        const real *g) {
    int N = x.n[0], V = w.n[0], d = w.n[1];
    CHECK(x.n[1] == d && (present(dx) || !present(dw)), "x (%d,%d), w (%d,%d)", N, x.n[1], V, d);
    int rows = imin(N, chunk_rows(V));
    Mark mark = arena_mark(r->scratch);
    Tensor chunk = SCRATCH(r, "logits", rows, V), narrow = narrow_logits(r, present(dx), rows, w);
    for (int from = 0; from < N; from += rows) {
        int n = imin(rows, N - from);
        Tensor l = TENSOR(chunk.p, REAL, n, V), xs = tensor_part(x, from, n);
        Tensor dl = present(narrow) ? tensor_part(narrow, 0, n) : l;
        linear(r, l, xs, w, ABSENT);
        if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)n * V > ALONE)
            for (int i = 0; i < n; i++) {
                int t = tgt[from + i];
                real *row = R(l) + (size_t)i * (size_t)V;
                CHECK(t < V, "target %d of vocabulary %d", t, V);
                if (hit) hit[from + i] = first_largest(row, V, t);
                R(nll)[from + i] = xent_row(row, V, t, present(dx) ? g[from + i] : 0, present(dx));
                if (present(narrow)) narrowed((uint16_t *)narrow.p + (row - R(l)), row, (size_t)V);
            }
        }
        if (present(dx)) linear_backward(r, tensor_part(dx, from, n), dw, ABSENT, dl, xs, w);
    }
    arena_release(r->scratch, mark);
}

enum { SUMSQ_LEAF = 256 };
/* A tree of fixed shape over leaves of 256: what is left of the middle, the largest leaf times a power of two below n,
 * and the rest. So an aligned part of a piece, whose length is such a power, is a branch of it. */
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
/* Pieces of 65,536 added in order: the same whatever the number of threads. */
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
