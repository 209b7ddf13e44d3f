/* norm.c: RMSNorm and LayerNorm, and their backward. */
#include "vec.h"

/* ---- n elements of a row, as `real`s ---------------------------------------------------------------------------- */
INLINE real rstd_of(real squares, int d, double eps) { return (real)1 / (real)sqrt((double)squares / d + eps); }
INLINE void rms_scale(real *y, const real *x, const real *w, real s, size_t n) {
#pragma omp simd
    for (size_t c = 0; c < n; c++) y[c] = x[c] * s * w[c];
}
/* For RMSNorm's gradient: (dy w).x; and, with `t` the product of the whole row times s^3 / d, the terms added to dx
 * and dw. */
INLINE real rms_dot(const real *g, const real *w, const real *x, size_t n) {
    real part = 0;
#pragma omp simd reduction(+ : part)
    for (size_t c = 0; c < n; c++) part += g[c] * w[c] * x[c];
    return part;
}
INLINE void rms_add(real *out, real *sum, const real *g, const real *w, const real *x, real s, real t, size_t n) {
#pragma omp simd
    for (size_t c = 0; c < n; c++) {
        out[c] += s * g[c] * w[c] - t * x[c];
        sum[c] += g[c] * x[c] * s;
    }
}

/* z: REAL rows that x takes in first, or ABSENT. */
static void add_rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor z, Tensor w, double eps) {
    int d = w.n[0], run = run_width(y, d);
    check_add_rmsnorm(y, rstd, x, z, w);
    if (measuring(r)) return;
    real *sum = present(z) ? R(x) : NULL;
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * d > ALONE)
    for (int i = 0; i < N; i++) {
        real room[2][RUN], squares = 0;
        size_t row = (size_t)i * (size_t)d;
        for (int k = 0; k < d; k += run) {
            int n = imin(run, d - k);
            if (sum) {
                const real *zi = R(z) + row + k;
#pragma omp simd
                for (int c = 0; c < n; c++) sum[row + (size_t)(k + c)] += zi[c];
            }
            const real *xi = run_of(x, row + (size_t)k, (size_t)n, room[0]);
            squares += dot(xi, xi, n);
        }
        real s = R(rstd)[i] = rstd_of(squares, d, eps);
        for (int k = 0; k < d; k += run) {
            size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
            real *yi = run_write(y, at, room[1]);
            rms_scale(yi, run_of(x, at, n, room[0]), R(w) + k, s, n);
            run_done(y, at, n, yi);
        }
    }
}
static void rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps) {
    add_rmsnorm(r, y, rstd, x, ABSENT, w, eps);
}

/* The inputs of a row's gradient. */
typedef struct {
    Into dx;
    Tensor dy, x, w;
    int d, run; /* elements of a row; elements processed at a time */
} NormBack;

/* Row i, whose rstd is s; pw: its block's sums. */
INLINE void rmsnorm_row(const NormBack *o, int i, real s, real *pw) {
    const int d = o->d, run = o->run;
    const size_t row = (size_t)i * (size_t)d;
    real room[3][RUN], t = 0;
    for (int k = 0; k < d; k += run) {
        size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
        t += rms_dot(run_of(o->dy, at, n, room[1]), R(o->w) + k, run_of(o->x, at, n, room[0]), n);
    }
    t *= s * s * s / (real)d;
    for (int k = 0; k < d; k += run) {
        size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
        const real *xi = run_of(o->x, at, n, room[0]), *gi = run_of(o->dy, at, n, room[1]);
        real *out = run_add(o->dx, at, n, room[2]);
        rms_add(out, pw + k, gi, R(o->w) + k, xi, s, t, n);
        run_done(o->dx.t, at, n, out);
    }
}
static void rmsnorm_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0], N = tensor_rows(x, d).n[0], size = rows_of_block(N);
    const NormBack o = {dx, dy, x, w, d, run_width(dy, d)};
    check_norm_backward(dx.t, dy, x);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor sums = SCRATCH(r, "sums of blocks", blocks_of(N), d);
    if (!measuring(r)) {
        real *part = R(sums), *total_w = R(dw);
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * d > ALONE)
        {
#pragma omp for schedule(static)
            for (int i0 = 0; i0 < N; i0 += size) {
                real *pw = part + (size_t)(i0 / size) * (size_t)d;
                memset(pw, 0, (size_t)d * sizeof *pw);
                for (int i = i0; i < imin(N, i0 + size); i++) rmsnorm_row(&o, i, R(rstd)[i], pw);
            }
#pragma omp for schedule(static)
            for (int c = 0; c < d; c += 64) add_blocks(total_w, part, N, c, imin(64, d - c), d);
        }
    }
    arena_release(r->scratch, mark);
}

/* Sums in the precision of `real`, by vectors. The mean comes first, so that nothing cancels in the squares. */
INLINE real mean_of(Tensor x, size_t row, int d, real *room) {
    real s = 0;
    for (int from = 0; from < d; from += SUM_RUN) {
        int n = imin(SUM_RUN, d - from);
        const real *xi = run_of(x, row + (size_t)from, (size_t)n, room);
        real part = 0;
#pragma omp simd reduction(+ : part)
        for (int k = 0; k < n; k++) part += xi[k];
        s += part;
    }
    return s / (real)d;
}

static void layernorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps) {
    int d = w.n[0], run = run_width(y, d);
    check_norm(y, rstd, x, w, b);
    if (measuring(r)) return;
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * d > ALONE)
    for (int i = 0; i < N; i++) {
        size_t row = (size_t)i * (size_t)d;
        real room[2][RUN], mean = mean_of(x, row, d, room[0]), squares = 0;
        for (int k = 0; k < d; k += run) {
            size_t n = (size_t)imin(run, d - k);
            const real *xi = run_of(x, row + (size_t)k, n, room[0]);
            real part = 0;
#pragma omp simd reduction(+ : part)
            for (size_t c = 0; c < n; c++) part += (xi[c] - mean) * (xi[c] - mean);
            squares += part;
        }
        real s = R(rstd)[i] = rstd_of(squares, d, eps);
        for (int k = 0; k < d; k += run) {
            size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
            const real *xi = run_of(x, at, n, room[0]), *wi = R(w) + k, *bi = R(b) + k;
            real *yi = run_write(y, at, room[1]);
#pragma omp simd
            for (size_t c = 0; c < n; c++) yi[c] = (xi[c] - mean) * s * wi[c] + bi[c];
            run_done(y, at, n, yi);
        }
    }
}

INLINE void layernorm_row(const NormBack *o, int i, real s, real *pw, real *pb) {
    const int d = o->d, run = o->run;
    const size_t row = (size_t)i * (size_t)d;
    real room[3][RUN], m = mean_of(o->x, row, d, room[0]), t = 0, tn = 0;
    for (int k = 0; k < d; k += run) {
        size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
        const real *xi = run_of(o->x, at, n, room[0]), *gi = run_of(o->dy, at, n, room[1]), *wi = R(o->w) + k;
        real part = 0, part_n = 0;
#pragma omp simd reduction(+ : part, part_n)
        for (size_t c = 0; c < n; c++) part += gi[c] * wi[c], part_n += gi[c] * wi[c] * (xi[c] - m);
        t += part, tn += part_n;
    }
    t /= (real)d, tn *= s * s / (real)d;
    for (int k = 0; k < d; k += run) {
        size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
        const real *xi = run_of(o->x, at, n, room[0]), *gi = run_of(o->dy, at, n, room[1]), *wi = R(o->w) + k;
        real *out = run_add(o->dx, at, n, room[2]), *sum_w = pw + k, *sum_b = pb + k;
#pragma omp simd
        for (size_t c = 0; c < n; c++) {
            out[c] += s * (gi[c] * wi[c] - t - (xi[c] - m) * tn);
            sum_w[c] += gi[c] * (xi[c] - m) * s;
            sum_b[c] += gi[c];
        }
        run_done(o->dx.t, at, n, out);
    }
}
static void layernorm_backward(Run *r, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0], N = tensor_rows(x, d).n[0], size = rows_of_block(N);
    const NormBack o = {add_to(tensor_rows(dx, d)), dy, x, w, d, run_width(dy, d)};
    check_norm_backward(dx, dy, x);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor sums = SCRATCH(r, "sums of blocks", 2, blocks_of(N), d);
    if (!measuring(r)) {
        real *part_w = R(sums), *part_b = part_w + (size_t)blocks_of(N) * (size_t)d, *total_w = R(dw), *total_b = R(db);
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * d > ALONE)
        {
#pragma omp for schedule(static)
            for (int i0 = 0; i0 < N; i0 += size) {
                real *pw = part_w + (size_t)(i0 / size) * (size_t)d, *pb = part_b + (size_t)(i0 / size) * (size_t)d;
                memset(pw, 0, (size_t)d * sizeof *pw);
                memset(pb, 0, (size_t)d * sizeof *pb);
                for (int i = i0; i < imin(N, i0 + size); i++) layernorm_row(&o, i, R(rstd)[i], pw, pb);
            }
#pragma omp for schedule(static)
            for (int c = 0; c < d; c += 64) {
                add_blocks(total_w, part_w, N, c, imin(64, d - c), d);
                add_blocks(total_b, part_b, N, c, imin(64, d - c), d);
            }
        }
    }
    arena_release(r->scratch, mark);
}
