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
    alike(2, (Tensor[]){y, x});
    if (measuring(r)) return;
    size_t n = tensor_count(x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i += RUN) {
        real room[2][RUN];
        size_t m = zmin(RUN, n - i);
        const real *a = run_of(x, i, m, room[0]);
        real *o = run_write(y, i, room[1]);
#pragma omp simd
        for (size_t k = 0; k < m; k++) o[k] = a[k] > 0 ? a[k] + 1 : exp_real(a[k] > 0 ? 0 : a[k]);
        run_done(y, i, m, o);
    }
}
static void elu1_backward(Run *r, Tensor dx, Tensor dy, Tensor y) {
    alike(3, (Tensor[]){dx, dy, y});
    if (measuring(r)) return;
    size_t n = tensor_count(y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i += RUN) {
        real room[3][RUN];
        size_t m = zmin(RUN, n - i);
        const real *g = run_of(dy, i, m, room[0]), *a = run_of(y, i, m, room[1]);
        real *o = run_add(dx, i, m, room[2]);
#pragma omp simd
        for (size_t k = 0; k < m; k++) o[k] += g[k] * (a[k] < 1 ? a[k] : 1);
        run_done(dx, i, m, o);
    }
}

/* Groups of x.n[rank-1] numbers in x, one more or fewer in y. */
static void widen(Run *r, Tensor y, Tensor x) {
    alike(2, (Tensor[]){y, x});
    if (measuring(r)) return;
    size_t V = (size_t)x.n[x.rank - 1], M = tensor_count(x) / V;
    CHECK(tensor_count(y) == M * (V + 1), "%zu groups of %zu", M, V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * V > ALONE)
    for (size_t i = 0; i < M; i++) {
        size_t last = i * (V + 1) + V;
        real room, *one = run_write(y, last, &room);
        run_copy(y, i * (V + 1), x, i * V, V);
        *one = 1;
        run_done(y, last, 1, one);
    }
}
static void widen_backward(Run *r, Tensor dx, Tensor dy) {
    alike(2, (Tensor[]){dx, dy});
    if (measuring(r)) return;
    int V = dx.n[dx.rank - 1], M = tensor_rows(dx, V).n[0], run = run_width(dx, V);
    CHECK(tensor_count(dy) == (size_t)M * (size_t)(V + 1), "%d groups of %d", M, V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * V > ALONE)
    for (int i = 0; i < M; i++)
        for (int c0 = 0; c0 < V; c0 += run) {
            real room[2][RUN];
            size_t at = (size_t)i * (size_t)V + (size_t)c0, n = (size_t)imin(run, V - c0);
            const real *g = run_of(dy, at + (size_t)i, n, room[0]);
            real *o = run_add(dx, at, n, room[1]);
#pragma omp simd
            for (size_t c = 0; c < n; c++) o[c] += g[c];
            run_done(dx, at, n, o);
        }
}
/* 1 / (x_V + eps) of group i. */
INLINE real quotient_of(Tensor x, int i, int V, double eps) {
    real room;
    return 1 / (*run_of(x, (size_t)i * (size_t)(V + 1) + (size_t)V, 1, &room) + (real)eps);
}
static void quotient(Run *r, Tensor y, Tensor x, double eps) {
    alike(2, (Tensor[]){y, x});
    if (measuring(r)) return;
    int V = y.n[y.rank - 1], M = tensor_rows(y, V).n[0], run = run_width(y, V);
    CHECK(tensor_count(x) == (size_t)M * (size_t)(V + 1), "%d groups of %d", M, V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * V > ALONE)
    for (int i = 0; i < M; i++) {
        real room[2][RUN], f = quotient_of(x, i, V, eps);
        for (int c0 = 0; c0 < V; c0 += run) {
            size_t at = (size_t)i * (size_t)V + (size_t)c0, n = (size_t)imin(run, V - c0);
            const real *a = run_of(x, at + (size_t)i, n, room[0]);
            real *o = run_write(y, at, room[1]);
#pragma omp simd
            for (size_t c = 0; c < n; c++) o[c] = a[c] * f;
            run_done(y, at, n, o);
        }
    }
}
static void quotient_backward(Run *r, Tensor dx, Tensor dy, Tensor y, Tensor x, double eps) {
    alike(4, (Tensor[]){dx, dy, y, x});
    if (measuring(r)) return;
    int V = y.n[y.rank - 1], M = tensor_rows(y, V).n[0], run = run_width(y, V);
    CHECK(tensor_count(x) == (size_t)M * (size_t)(V + 1) && tensor_count(dx) == tensor_count(x), "%d groups of %d", M,
          V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * V > ALONE)
    for (int i = 0; i < M; i++) {
        real room[3][RUN], f = quotient_of(x, i, V, eps), sum = 0;
        for (int c0 = 0; c0 < V; c0 += run) {
            size_t at = (size_t)i * (size_t)V + (size_t)c0, n = (size_t)imin(run, V - c0);
            const real *g = run_of(dy, at, n, room[0]);
            real *o = run_add(dx, at + (size_t)i, n, room[1]);
#pragma omp simd
            for (size_t c = 0; c < n; c++) o[c] += g[c] * f;
            run_done(dx, at + (size_t)i, n, o);
            sum += dot(g, run_of(y, at, n, room[2]), (int)n);
        }
        size_t last = (size_t)i * (size_t)(V + 1) + (size_t)V;
        real *o = run_add(dx, last, 1, room[0]);
        *o -= sum * f;
        run_done(dx, last, 1, o);
    }
}

/* Per head of P numbers: y = f x, or y += f x; dx += f dy, which returns dy.x. Rows of P from number `at` on. */
INLINE void head_times(Tensor y, Tensor x, real f, size_t at, int P, bool adds) {
    for (int c0 = 0, run = run_width(y, P); c0 < P; c0 += run, at += (size_t)run) {
        real room[2][RUN];
        size_t n = (size_t)imin(run, P - c0);
        const real *a = run_of(x, at, n, room[0]);
        real *o = adds ? run_of(y, at, n, room[1]) : run_write(y, at, room[1]);
        if (adds)
#pragma omp simd
            for (size_t c = 0; c < n; c++) o[c] += f * a[c];
        else
#pragma omp simd
            for (size_t c = 0; c < n; c++) o[c] = f * a[c];
        run_done(y, at, n, o);
    }
}
INLINE real head_times_backward(Tensor dx, Tensor dy, Tensor x, real f, size_t at, int P) {
    real sum = 0;
    for (int c0 = 0, run = run_width(dx, P); c0 < P; c0 += run, at += (size_t)run) {
        real room[3][RUN];
        size_t n = (size_t)imin(run, P - c0);
        const real *g = run_of(dy, at, n, room[0]);
        real *o = run_add(dx, at, n, room[1]);
#pragma omp simd
        for (size_t c = 0; c < n; c++) o[c] += f * g[c];
        run_done(dx, at, n, o);
        sum += dot(g, run_of(x, at, n, room[2]), (int)n);
    }
    return sum;
}
static void step(Run *r, Tensor y, Tensor x, Tensor z, Tensor bias) {
    size_t H = (size_t)x.n[1], M = (size_t)x.n[0] * H, P = (size_t)x.n[2];
    CHECK(tensor_count(z) == M && tensor_count(bias) == H, "%zu rows of heads, %zu heads", M, H);
    alike(2, (Tensor[]){y, x});
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * P > ALONE)
    for (size_t i = 0; i < M; i++) head_times(y, x, softplus1(R(z)[i] + R(bias)[i % H]), i * P, (int)P, false);
}
static void step_backward(Run *r, Tensor dx, Tensor dz, Tensor dbias, Tensor dy, Tensor x, Tensor z, Tensor bias) {
    int N = x.n[0], H = x.n[1], P = x.n[2], size = rows_of_block(N);
    alike(3, (Tensor[]){dx, dy, x});
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
                real at = R(z)[i] + R(bias)[h],
                     df = head_times_backward(dx, dy, x, softplus1(at), i * (size_t)P, P) * sigmoid1(at);
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
    alike(2, (Tensor[]){y, x});
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * P > ALONE)
    for (size_t i = 0; i < M; i++) head_times(y, x, R(w)[i % H], i * P, (int)P, true);
}
static void skip_backward(Run *r, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    int N = x.n[0], H = x.n[1], P = x.n[2], size = rows_of_block(N);
    alike(3, (Tensor[]){dx, dy, x});
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
                own[h] += head_times_backward(dx, dy, x, R(w)[h], i * (size_t)P, P);
            }
        }
        add_blocks(R(dw), R(sums), N, 0, H, H);
    }
    arena_release(r->scratch, mark);
}
