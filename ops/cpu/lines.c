/* lines.c: ops that only some linear mixers need: linear attention's feature map, ones and division, Mamba-2's step
 * and skip, retention's constant decays. Softplus and sigmoid are in gates.c. */
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
    CHECK_ALIKE(y, x);
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
static void elu1_backward(Run *r, Into dx, Tensor dy, Tensor y) {
    CHECK_ALIKE(dx.t, dy, y);
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
        run_done(dx.t, i, m, o);
    }
}

/* Groups of x.n[rank-1] elements in x, one more or one fewer in y. */
static void append_ones(Run *r, Tensor y, Tensor x) {
    CHECK_ALIKE(y, x);
    if (measuring(r)) return;
    size_t V = (size_t)check_last(x), M = check_widened(x, y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * V > ALONE)
    for (size_t i = 0; i < M; i++) {
        size_t last = i * (V + 1) + V;
        real room, *one = run_write(y, last, &room);
        run_copy(y, i * (V + 1), x, i * V, V);
        *one = 1;
        run_done(y, last, 1, one);
    }
}
static void append_ones_backward(Run *r, Into dx, Tensor dy) {
    CHECK_ALIKE(dx.t, dy);
    if (measuring(r)) return;
    int V = check_last(dx.t), M = (int)check_widened(dx.t, dy), run = run_width(dx.t, V);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * V > ALONE)
    for (int i = 0; i < M; i++)
        for (int c0 = 0; c0 < V; c0 += run) {
            real room[2][RUN];
            size_t at = (size_t)i * (size_t)V + (size_t)c0, n = (size_t)imin(run, V - c0);
            const real *g = run_of(dy, at + (size_t)i, n, room[0]);
            real *o = run_add(dx, at, n, room[1]);
#pragma omp simd
            for (size_t c = 0; c < n; c++) o[c] += g[c];
            run_done(dx.t, at, n, o);
        }
}
/* 1 / (x_V + eps) of group i. */
INLINE real quotient_of(Tensor x, int i, int V, double eps) {
    real room;
    return 1 / (*run_of(x, (size_t)i * (size_t)(V + 1) + (size_t)V, 1, &room) + (real)eps);
}
static void divide_by_last(Run *r, Tensor y, Tensor x, double eps) {
    CHECK_ALIKE(y, x);
    if (measuring(r)) return;
    int V = check_last(y), M = (int)check_widened(y, x), run = run_width(y, V);
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
static void divide_by_last_backward(Run *r, Into dx, Tensor dy, Tensor y, Tensor x, double eps) {
    CHECK_ALIKE(dx.t, dy, y, x);
    if (measuring(r)) return;
    int V = check_last(y), M = (int)check_widened(y, x), run = run_width(y, V);
    CHECK_SAME_COUNT(dx.t, x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * V > ALONE)
    for (int i = 0; i < M; i++) {
        real room[3][RUN], f = quotient_of(x, i, V, eps), sum = 0;
        for (int c0 = 0; c0 < V; c0 += run) {
            size_t at = (size_t)i * (size_t)V + (size_t)c0, n = (size_t)imin(run, V - c0);
            const real *g = run_of(dy, at, n, room[0]);
            real *o = run_add(dx, at + (size_t)i, n, room[1]);
#pragma omp simd
            for (size_t c = 0; c < n; c++) o[c] += g[c] * f;
            run_done(dx.t, at + (size_t)i, n, o);
            sum += dot(g, run_of(y, at, n, room[2]), (int)n);
        }
        size_t last = (size_t)i * (size_t)(V + 1) + (size_t)V;
        real *o = run_add(dx, last, 1, room[0]);
        *o -= sum * f;
        run_done(dx.t, last, 1, o);
    }
}

/* For a head of P elements: y = f x, or y += f x; or dx += f dy, with dy.x returned. Rows of P from element `at` on. */
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
INLINE real head_times_backward(Into dx, Tensor dy, Tensor x, real f, size_t at, int P) {
    real sum = 0;
    for (int c0 = 0, run = run_width(dx.t, P); c0 < P; c0 += run, at += (size_t)run) {
        real room[3][RUN];
        size_t n = (size_t)imin(run, P - c0);
        const real *g = run_of(dy, at, n, room[0]);
        real *o = run_add(dx, at, n, room[1]);
#pragma omp simd
        for (size_t c = 0; c < n; c++) o[c] += f * g[c];
        run_done(dx.t, at, n, o);
        sum += dot(g, run_of(x, at, n, room[2]), (int)n);
    }
    return sum;
}
static void step(Run *r, Tensor y, Tensor x, Tensor z, Tensor bias) {
    size_t H = (size_t)x.n[1], M = (size_t)x.n[0] * H, P = (size_t)x.n[2];
    check_step(x, z, bias);
    CHECK_ALIKE(y, x);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * P > ALONE)
    for (size_t i = 0; i < M; i++) head_times(y, x, softplus1(R(z)[i] + R(bias)[i % H]), i * P, (int)P, false);
}
static void step_backward(Run *r, Into dx, Into dz, Tensor dbias, Tensor dy, Tensor x, Tensor z, Tensor bias) {
    int N = x.n[0], H = x.n[1], P = x.n[2], size = rows_of_block(N);
    CHECK_ALIKE(dx.t, dy, x);
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
                R(dz.t)[i] += df;
                own[h] += df;
            }
        }
        add_blocks(R(dbias), R(sums), N, 0, H, H);
    }
    arena_release(r->scratch, mark);
}
static void skip(Run *r, Tensor y, Tensor x, Tensor w) {
    size_t H = (size_t)x.n[1], M = (size_t)x.n[0] * H, P = (size_t)x.n[2];
    check_skip(y, x, w);
    CHECK_ALIKE(y, x);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * P > ALONE)
    for (size_t i = 0; i < M; i++) head_times(y, x, R(w)[i % H], i * P, (int)P, true);
}
static void skip_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    int N = x.n[0], H = x.n[1], P = x.n[2], size = rows_of_block(N);
    CHECK_ALIKE(dx.t, dy, x);
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

static void attend_sink(Run *r, Tensor o, Tensor lse, Tensor w) {
    size_t H = (size_t)o.n[1], M = (size_t)o.n[0] * H, D = (size_t)o.n[2];
    check_sink(o, lse, w);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (M * D > ALONE)
    for (size_t i = 0; i < M; i++) {
        const real above = R(lse)[i] - R(w)[i % H];
        head_times(o, o, sigmoid1(above), i * D, (int)D, false);
        R(lse)[i] = R(w)[i % H] + softplus1(above);
    }
}
/* dout.o of a head of D elements from `at` on. */
INLINE real head_dot(Tensor dout, Tensor o, size_t at, int D) {
    real sum = 0;
    for (int c0 = 0, run = run_width(o, D); c0 < D; c0 += run, at += (size_t)run) {
        real room[2][RUN];
        size_t n = (size_t)imin(run, D - c0);
        sum += dot(run_of(dout, at, n, room[0]), run_of(o, at, n, room[1]), (int)n);
    }
    return sum;
}
static void attend_sink_backward(Run *r, Tensor dw, Tensor dout, Tensor o, Tensor lse, Tensor w) {
    int N = o.n[0], H = o.n[1], D = o.n[2], size = rows_of_block(N);
    CHECK_ALIKE(dout, o);
    check_sink(o, lse, w);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor sums = SCRATCH(r, "sums of blocks", blocks_of(N), H);
    if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * H * D > ALONE)
        for (int i0 = 0; i0 < N; i0 += size) {
            real *own = R(sums) + (size_t)(i0 / size) * (size_t)H;
            memset(own, 0, (size_t)H * sizeof *own);
            for (size_t i = (size_t)i0 * (size_t)H; i < (size_t)imin(N, i0 + size) * (size_t)H; i++) {
                size_t h = i % (size_t)H;
                own[h] -= exp_real(R(w)[h] - R(lse)[i]) * head_dot(dout, o, i * (size_t)D, D);
            }
        }
        add_blocks(R(dw), R(sums), N, 0, H, H);
    }
    arena_release(r->scratch, mark);
}
static void sigmoid_gate(Run *r, Tensor y, Tensor x, Tensor z) {
    CHECK_ALIKE(y, x, z);
    check_gate(y, x, z);
    if (measuring(r)) return;
    size_t n = tensor_count(y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[3][RUN];
        size_t m = zmin(RUN, n - i);
        const real *a = run_of(x, i, m, room[0]), *b = run_of(z, i, m, room[1]);
        real *o = run_write(y, i, room[2]);
#pragma omp simd
        for (size_t k = 0; k < m; k++) o[k] = a[k] / (1 + exp_real(-b[k]));
        run_done(y, i, m, o);
    }
}
static void sigmoid_gate_backward(Run *r, Into dx, Into dz, Tensor dy, Tensor x, Tensor z) {
    CHECK_ALIKE(dx.t, dz.t, dy, x, z);
    check_gate(dy, x, z);
    if (measuring(r)) return;
    size_t n = tensor_count(dy);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[5][RUN];
        size_t m = zmin(RUN, n - i);
        const real *g = run_of(dy, i, m, room[0]), *a = run_of(x, i, m, room[1]), *b = run_of(z, i, m, room[2]);
        real *da = run_add(dx, i, m, room[3]), *db = run_add(dz, i, m, room[4]);
#pragma omp simd
        for (size_t k = 0; k < m; k++) {
            const real s = 1 / (1 + exp_real(-b[k])), other = 1 / (1 + exp_real(b[k])); /* 1 - s, with all digits */
            da[k] += g[k] * s, db[k] += g[k] * a[k] * s * other;
        }
        run_done(dx.t, i, m, da), run_done(dz.t, i, m, db);
    }
}
