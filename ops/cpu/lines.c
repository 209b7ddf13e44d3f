/* lines.c: what single members of the family need beside a recurrence: linear attention's feature map, ones and
 * quotient, Mamba-2's step and skip, retention's constant decays. Softplus and sigmoid are those of gates.c. */
#include "vec.h"

static void repeat(Run *r, Tensor y, const double *row) {
    if (measuring(r)) return;
    size_t N = (size_t)y.n[0], w = N ? tensor_count(y) / N : 0;
    real *o = R(y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (N * w > ALONE)
    for (size_t i = 0; i < N; i++)
        for (size_t c = 0; c < w; c++) o[i * w + c] = (real)row[c];
}

static void elu1(Run *r, Tensor y, Tensor x) {
    if (measuring(r)) return;
    size_t n = tensor_count(x);
    real *o = R(y);
    const real *a = R(x);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) o[i] = a[i] > 0 ? a[i] + 1 : exp_real(a[i] > 0 ? 0 : a[i]);
}
static void elu1_backward(Run *r, Tensor dx, Tensor dy, Tensor y) {
    begin_sum(r, dx);
    if (measuring(r)) return;
    size_t n = tensor_count(y);
    real *o = R(dx);
    const real *a = R(y), *g = R(dy);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) o[i] += g[i] * (a[i] < 1 ? a[i] : 1);
}

/* Groups of x.n[rank-1] numbers in x, one more or fewer in y. */
static void widen(Run *r, Tensor y, Tensor x) {
    if (measuring(r)) return;
    size_t V = (size_t)x.n[x.rank - 1], M = tensor_count(x) / V;
    CHECK(tensor_count(y) == M * (V + 1), "%zu groups of %zu", M, V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * V > ALONE)
    for (size_t i = 0; i < M; i++) {
        memcpy(R(y) + i * (V + 1), R(x) + i * V, V * sizeof(real));
        R(y)[i * (V + 1) + V] = 1;
    }
}
static void widen_backward(Run *r, Tensor dx, Tensor dy) {
    begin_sum(r, dx);
    if (measuring(r)) return;
    size_t V = (size_t)dx.n[dx.rank - 1], M = tensor_count(dx) / V;
    CHECK(tensor_count(dy) == M * (V + 1), "%zu groups of %zu", M, V);
    real *o = R(dx);
    const real *g = R(dy);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * V > ALONE)
    for (size_t i = 0; i < M; i++)
#pragma omp simd
        for (size_t c = 0; c < V; c++) o[i * V + c] += g[i * (V + 1) + c];
}
static void quotient(Run *r, Tensor y, Tensor x, double eps) {
    if (measuring(r)) return;
    size_t V = (size_t)y.n[y.rank - 1], M = tensor_count(y) / V;
    CHECK(tensor_count(x) == M * (V + 1), "%zu groups of %zu", M, V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * V > ALONE)
    for (size_t i = 0; i < M; i++) {
        const real *a = R(x) + i * (V + 1);
        real f = 1 / (a[V] + (real)eps), *o = R(y) + i * V;
#pragma omp simd
        for (size_t c = 0; c < V; c++) o[c] = a[c] * f;
    }
}
static void quotient_backward(Run *r, Tensor dx, Tensor dy, Tensor y, Tensor x, double eps) {
    begin_sum(r, dx);
    if (measuring(r)) return;
    size_t V = (size_t)y.n[y.rank - 1], M = tensor_count(y) / V;
    CHECK(tensor_count(x) == M * (V + 1) && tensor_count(dx) == tensor_count(x), "%zu groups of %zu", M, V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * V > ALONE)
    for (size_t i = 0; i < M; i++) {
        real *o = R(dx) + i * (V + 1), f = 1 / (R(x)[i * (V + 1) + V] + (real)eps);
        const real *g = R(dy) + i * V;
#pragma omp simd
        for (size_t c = 0; c < V; c++) o[c] += g[c] * f;
        o[V] -= dot(g, R(y) + i * V, (int)V) * f;
    }
}

static void step(Run *r, Tensor y, Tensor x, Tensor z, Tensor bias) {
    size_t H = (size_t)x.n[1], M = (size_t)x.n[0] * H, P = (size_t)x.n[2];
    CHECK(tensor_count(z) == M && tensor_count(bias) == H, "%zu rows of heads, %zu heads", M, H);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * P > ALONE)
    for (size_t i = 0; i < M; i++) {
        real f = softplus1(R(z)[i] + R(bias)[i % H]), *o = R(y) + i * P;
        const real *a = R(x) + i * P;
#pragma omp simd
        for (size_t c = 0; c < P; c++) o[c] = f * a[c];
    }
}
static void step_backward(Run *r, Tensor dx, Tensor dz, Tensor dbias, Tensor dy, Tensor x, Tensor z, Tensor bias) {
    int N = x.n[0], H = x.n[1], P = x.n[2], size = rows_of_block(N);
    if (N == 0) return;
    begin_sum(r, dz);
    Mark mark = arena_mark(r->scratch);
    Tensor sums = SCRATCH(r, "sums of blocks", blocks_of(N), H);
    if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * H * P > ALONE)
        for (int i0 = 0; i0 < N; i0 += size) {
            real *own = R(sums) + (size_t)(i0 / size) * (size_t)H;
            memset(own, 0, (size_t)H * sizeof *own);
            for (size_t i = (size_t)i0 * (size_t)H; i < (size_t)imin(N, i0 + size) * (size_t)H; i++) {
                size_t h = i % (size_t)H;
                const real *g = R(dy) + i * (size_t)P, *a = R(x) + i * (size_t)P;
                real *o = run_add(dx, i * (size_t)P, (size_t)P, NULL), at = R(z)[i] + R(bias)[h], f = softplus1(at),
                     df = dot(g, a, P) * sigmoid1(at);
#pragma omp simd
                for (int c = 0; c < P; c++) o[c] += f * g[c];
                R(dz)[i] += df;
                own[h] += df;
            }
        }
        add_blocks(R(dbias), R(sums), N, 0, H, H);
    }
    arena_release(r->scratch, mark);
}
static void skip(Run *r, Tensor y, Tensor x, Tensor w) {
    size_t H = (size_t)x.n[1], M = (size_t)x.n[0] * H, P = (size_t)x.n[2];
    CHECK(tensor_count(y) == tensor_count(x) && tensor_count(w) == H, "%zu heads", H);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * P > ALONE)
    for (size_t i = 0; i < M; i++) {
        real f = R(w)[i % H], *o = R(y) + i * P;
        const real *a = R(x) + i * P;
#pragma omp simd
        for (size_t c = 0; c < P; c++) o[c] += f * a[c];
    }
}
static void skip_backward(Run *r, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    int N = x.n[0], H = x.n[1], P = x.n[2], size = rows_of_block(N);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor sums = SCRATCH(r, "sums of blocks", blocks_of(N), H);
    if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * H * P > ALONE)
        for (int i0 = 0; i0 < N; i0 += size) {
            real *own = R(sums) + (size_t)(i0 / size) * (size_t)H;
            memset(own, 0, (size_t)H * sizeof *own);
            for (size_t i = (size_t)i0 * (size_t)H; i < (size_t)imin(N, i0 + size) * (size_t)H; i++) {
                size_t h = i % (size_t)H;
                const real *g = R(dy) + i * (size_t)P, *a = R(x) + i * (size_t)P;
                real *o = run_add(dx, i * (size_t)P, (size_t)P, NULL), f = R(w)[h];
#pragma omp simd
                for (int c = 0; c < P; c++) o[c] += f * g[c];
                own[h] += dot(g, a, P);
            }
        }
        add_blocks(R(dw), R(sums), N, 0, H, H);
    }
    arena_release(r->scratch, mark);
}
