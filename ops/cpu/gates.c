/* gates.c: the ops around a recurrence: L2 norm of heads, decay gates, sigmoids, the gated norm of the output. */
#include "vec.h"

/* Returns 1 / |row| of d elements from `at` on; *t (if t is not NULL) receives x.dy / |row|^2. */
INLINE real l2norm_factor(Tensor x, size_t at, int d, double eps, Tensor dy, real *t) {
    real room[2][RUN], squares = 0, by = 0;
    for (int c = 0, run = run_width(x, d); c < d; c += run) {
        size_t n = (size_t)imin(run, d - c);
        const real *a = run_of(x, at + (size_t)c, n, room[0]);
        squares += dot(a, a, (int)n);
        if (t) by += dot(a, run_of(dy, at + (size_t)c, n, room[1]), (int)n);
    }
    real f = (real)(1 / sqrt((double)squares + eps));
    if (t) *t = by * f * f;
    return f;
}
static void l2norm(Run *r, Tensor y, Tensor x, double eps) {
    CHECK_ALIKE(y, x);
    if (measuring(r)) return;
    int d = x.n[x.rank - 1], M = tensor_rows(x, d).n[0], run = run_width(x, d);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
    for (int i = 0; i < M; i++) {
        size_t row = (size_t)i * (size_t)d;
        real room[2][RUN], f = l2norm_factor(x, row, d, eps, ABSENT, NULL);
        for (int k = 0; k < d; k += run) {
            size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
            const real *a = run_of(x, at, n, room[0]);
            real *o = run_write(y, at, room[1]);
            for (size_t c = 0; c < n; c++) o[c] = a[c] * f;
            run_done(y, at, n, o);
        }
    }
}
static void l2norm_backward(Run *r, Into dx, Tensor dy, Tensor x, double eps) {
    CHECK_ALIKE(dx.t, dy, x);
    if (measuring(r)) return;
    int d = x.n[x.rank - 1], M = tensor_rows(x, d).n[0], run = run_width(x, d);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
    for (int i = 0; i < M; i++) {
        size_t row = (size_t)i * (size_t)d;
        real room[3][RUN], t, f = l2norm_factor(x, row, d, eps, dy, &t);
        for (int k = 0; k < d; k += run) {
            size_t at = row + (size_t)k, n = (size_t)imin(run, d - k);
            const real *a = run_of(x, at, n, room[0]), *g = run_of(dy, at, n, room[1]);
            real *o = run_add(dx, at, n, room[2]);
            for (size_t c = 0; c < n; c++) o[c] += f * (g[c] - a[c] * t);
            run_done(dx.t, at, n, o);
        }
    }
}

INLINE real sigmoid1(real a) { return 1 / (1 + exp_real(-a)); }
/* log(1 + e^a), without overflow and to full precision for a << 0. In float log(1 + e) = 2 atanh(s), s = e/(2 + e) <=
 * 1/3, is s times a polynomial in s^2, fitted to 4e-9 of it: no branch and no call. */
INLINE real softplus1(real a) {
#ifdef KV_DOUBLE
    return (a > 0 ? a : 0) + log1p(exp(-fabs(a)));
#else
    float e = exp_real(a > 0 ? -a : a), s = e / (2.0f + e), u = s * s, p = 0.2815777836f;
    p = p * u + 0.2796515775f;
    p = p * u + 0.4002459523f;
    p = p * u + 0.6666632164f;
    p = p * u + 2.000000008f;
    return (a > 0 ? a : 0) + s * p;
#endif
}

/* One element of the gate: z includes its bias, rate = exp(A). */
INLINE real gate_value(int kind, real param, real z, real rate) {
    if (kind == GATE_SOFTPLUS) return -rate * softplus1(z);
    if (kind == GATE_BOUND) return param * sigmoid1(rate * z);
    return -softplus1(-z) / param;
}
/* Its derivative by z; *by_A receives the derivative by A. */
INLINE real gate_slope(int kind, real param, real z, real rate, real *by_A) {
    if (kind == GATE_SOFTPLUS) {
        *by_A = -rate * softplus1(z);
        return -rate * sigmoid1(z);
    }
    if (kind == GATE_BOUND) {
        real a = rate * z, e = exp_real(a > 0 ? -a : a), f = param * rate * e / ((1 + e) * (1 + e));
        *by_A = f * z;
        return f;
    }
    *by_A = 0;
    return sigmoid1(-z) / param;
}
/* Bias and rate of every column, (2,n): so a row is one loop however its heads are cut. */
static void gate_columns(real *bias, real *rate, Tensor A, Tensor b, int H, int D) {
    for (int h = 0; h < H; h++) {
        real each = present(A) ? (real)exp((double)R(A)[h]) : 1;
        for (int c = h * D; c < (h + 1) * D; c++) bias[c] = present(b) ? R(b)[c] : 0, rate[c] = each;
    }
}
/* A row of n elements; the kind is a compile-time constant. */
INLINE void gate_row(real *g, const real *z, const real *bias, const real *rate, int n, int kind, real param) {
#pragma omp simd
    for (int c = 0; c < n; c++) g[c] = gate_value(kind, param, z[c] + bias[c], rate[c]);
}
/* dz += its gradient; by_bias, by_rate += the gradients of every column's bias and A. */
INLINE void gate_row_backward(real *dz, real *by_bias, real *by_rate, const real *dg, const real *z, const real *bias,
                              const real *rate, int n, int kind, real param) {
#pragma omp simd
    for (int c = 0; c < n; c++) {
        real by_A, f = dg[c] * gate_slope(kind, param, z[c] + bias[c], rate[c], &by_A);
        dz[c] += f, by_bias[c] += f, by_rate[c] += dg[c] * by_A;
    }
}
static void decay(Run *r, Tensor g, Tensor z, Tensor A, Tensor bias, Gate k) {
    int N = z.n[0], H = z.n[1], D = z.n[2], n = H * D, run = run_width(z, n);
    check_decay(z, A, bias, k);
    Mark mark = arena_mark(r->scratch);
    Tensor columns = SCRATCH(r, "bias and rate", 2, n);
    if (!measuring(r)) {
        real *b = R(columns), *rate = b + n, param = (real)k.param;
        gate_columns(b, rate, A, bias, H, D);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * n > ALONE_EXP)
        for (int t = 0; t < N; t++)
            for (int c = 0; c < n; c += run) {
                size_t at = (size_t)t * (size_t)n + (size_t)c;
                int m = imin(run, n - c);
                real room[RUN], *o = R(g) + at;
                const real *a = run_of(z, at, (size_t)m, room), *bc = b + c, *rc = rate + c;
                if (k.kind == GATE_SOFTPLUS) gate_row(o, a, bc, rc, m, GATE_SOFTPLUS, param);
                if (k.kind == GATE_BOUND) gate_row(o, a, bc, rc, m, GATE_BOUND, param);
                if (k.kind == GATE_LOGSIGMOID) gate_row(o, a, bc, rc, m, GATE_LOGSIGMOID, param);
            }
    }
    arena_release(r->scratch, mark);
}
static void decay_backward(Run *r, Into dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias,
                           Gate k) {
    int N = z.n[0], H = z.n[1], D = z.n[2], n = H * D, size = rows_of_block(N), run = run_width(z, n),
        width = (present(dz.t) ? 2 : 3) * n; /* of sums: of dbias, of A, and a dz.t that nobody wants */
    check_decay(z, A, bias, k);
    CHECK_ALIKE(dz.t, z);
    if (N == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor columns = SCRATCH(r, "bias and rate", 2, n), sums = SCRATCH(r, "sums of blocks", blocks_of(N), width);
    if (!measuring(r)) {
        real *b = R(columns), *rate = b + n, *part = R(sums), param = (real)k.param;
        gate_columns(b, rate, A, bias, H, D);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * n > ALONE_EXP)
        for (int i0 = 0; i0 < N; i0 += size) {
            real *own = part + (size_t)(i0 / size) * (size_t)width;
            memset(own, 0, (size_t)width * sizeof *own);
            for (int t = i0; t < imin(N, i0 + size); t++)
                for (int c = 0; c < n; c += run) {
                    size_t at = (size_t)t * (size_t)n + (size_t)c;
                    int m = imin(run, n - c);
                    real room[2][RUN], *to_b = own + c, *to_A = to_b + n,
                                       *d = present(dz.t) ? run_add(dz, at, (size_t)m, room[0]) : to_A + n;
                    const real *g = R(dg) + at, *a = run_of(z, at, (size_t)m, room[1]), *bc = b + c, *rc = rate + c;
                    if (k.kind == GATE_SOFTPLUS)
                        gate_row_backward(d, to_b, to_A, g, a, bc, rc, m, GATE_SOFTPLUS, param);
                    if (k.kind == GATE_BOUND) gate_row_backward(d, to_b, to_A, g, a, bc, rc, m, GATE_BOUND, param);
                    if (k.kind == GATE_LOGSIGMOID)
                        gate_row_backward(d, to_b, to_A, g, a, bc, rc, m, GATE_LOGSIGMOID, param);
                    if (present(dz.t)) run_done(dz.t, at, (size_t)m, d);
                }
        }
        if (present(dbias)) add_blocks(R(dbias), part, N, 0, n, width);
        for (int h = 0; present(dA) && h < H; h++) {
            double sum = 0;
            for (int block = 0; block * size < N; block++)
                for (int c = h * D; c < (h + 1) * D; c++)
                    sum += (double)part[(size_t)block * (size_t)width + (size_t)(n + c)];
            R(dA)[h] += (real)sum;
        }
    }
    arena_release(r->scratch, mark);
}

static void sigmoid(Run *r, Tensor y, Tensor x, double top) {
    if (measuring(r)) return;
    size_t n = tensor_count(x);
    real *o = R(y), f = (real)top;
    const real *a = R(x);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) o[i] = f / (1 + exp_real(-a[i]));
}
static void sigmoid_backward(Run *r, Into dx, Tensor dy, Tensor y, double top) {
    begin_sum(r, dx);
    if (measuring(r)) return;
    size_t n = tensor_count(y);
    real *o = R(dx.t), f = (real)(1 / top);
    const real *a = R(y), *g = R(dy);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) o[i] += g[i] * a[i] * (1 - a[i] * f);
}

INLINE real gate_of(bool silu, real z) { return silu ? z * sigmoid1(z) : sigmoid1(z); }
static const real *norm_gain(Tensor w, GatedNorm n, int i) {
    if (!present(w)) return NULL;
    return R(w) + (size_t)i % (tensor_count(w) / (size_t)n.width) * (size_t)n.width;
}
INLINE real norm_factor(const real *x, int d, double eps) {
    real s = 0;
    for (int from = 0; from < d; from += SUM_RUN) s += dot(x + from, x + from, imin(d - from, SUM_RUN));
    return (real)(1 / sqrt((double)s / d + eps));
}
/* One group, with the form of the norm as a compile-time constant, so that the loops have no branches. */
INLINE void norm_group(real *y, const real *x, const real *z, const real *gain, int d, double eps, bool silu,
                       bool before) {
    real f = before ? 1 : norm_factor(x, d, eps);
#pragma omp simd
    for (int c = 0; c < d; c++) y[c] = x[c] * f * gate_of(silu, z[c]);
    f = before ? norm_factor(y, d, eps) : 1;
#pragma omp simd
    for (int c = 0; c < (gain ? d : 0); c++) y[c] *= f * gain[c];
#pragma omp simd
    for (int c = 0; c < (before && !gain ? d : 0); c++) y[c] *= f;
}
/* With b the group as it enters the norm and h the gradient of b f: db = f h - f^3 b (b.h)/d. room: for the group's
 * gates, their slopes and h. dw += the gain's gradient; dx, dz, gain and dw may be NULL. */
INLINE void norm_group_backward(real *dx, real *dz, real *dw, real *room, const real *dy, const real *x, const real *z,
                                const real *gain, int d, double eps, bool silu, bool before) {
    real *gate = room, *slope = room + d, *h = room + 2 * d, squares = 0, t = 0;
#pragma omp simd
    for (int c = 0; c < d; c++) {
        real s = sigmoid1(z[c]);
        gate[c] = silu ? z[c] * s : s;
        slope[c] = silu ? s * (1 + z[c] * (1 - s)) : s * (1 - s);
        h[c] = dy[c];
    }
#pragma omp simd
    for (int c = 0; c < (gain ? d : 0); c++) h[c] *= gain[c];
    for (int from = 0; from < d; from += SUM_RUN) {
        const int end = imin(d, from + SUM_RUN);
        real part = 0, part_h = 0;
#pragma omp simd reduction(+ : part, part_h)
        for (int c = from; c < end; c++) {
            real b = before ? x[c] * gate[c] : x[c];
            part += b * b, part_h += x[c] * h[c] * gate[c];
        }
        squares += part, t += part_h;
    }
    real f = (real)(1 / sqrt((double)squares / d + eps));
    t *= f * f * f / (real)d;
#pragma omp simd
    for (int c = 0; c < (dx ? d : 0); c++)
        dx[c] += before ? (f * h[c] - t * x[c] * gate[c]) * gate[c] : f * h[c] * gate[c] - t * x[c];
#pragma omp simd
    for (int c = 0; c < (dz ? d : 0); c++)
        dz[c] += (before ? f * h[c] - t * x[c] * gate[c] : f * h[c]) * x[c] * slope[c];
#pragma omp simd
    for (int c = 0; c < (dw ? d : 0); c++) dw[c] += dy[c] * x[c] * f * gate[c];
}
/* For each thread: room for k whole groups of d elements, if x is BF16. */
static Tensor norm_room(Run *r, Tensor x, int k, int d) {
    return x.dtype == BF16 ? SCRATCH(r, "groups", r->dev->threads, k * d) : ABSENT;
}
static real *norm_own(Tensor room, int at) {
    return present(room) ? R(room) + (size_t)omp_get_thread_num() * (size_t)room.n[1] + at : NULL;
}
static void gated_norm(Run *r, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n) {
    int M = (int)check_gated_norm(x, w, n), d = n.width;
    CHECK_ALIKE(y, x, z);
    Mark mark = arena_mark(r->scratch);
    Tensor room = norm_room(r, x, 3, d);
    if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
        for (int i = 0; i < M; i++) {
            size_t at = (size_t)i * (size_t)d, m = (size_t)d;
            real *o = run_write(y, at, norm_own(room, 0));
            const real *a = run_of(x, at, m, norm_own(room, d)), *g = run_of(z, at, m, norm_own(room, 2 * d)),
                       *gain = norm_gain(w, n, i);
            if (n.silu && n.before) norm_group(o, a, g, gain, d, n.eps, true, true);
            if (n.silu && !n.before) norm_group(o, a, g, gain, d, n.eps, true, false);
            if (!n.silu && n.before) norm_group(o, a, g, gain, d, n.eps, false, true);
            if (!n.silu && !n.before) norm_group(o, a, g, gain, d, n.eps, false, false);
            run_done(y, at, m, o);
        }
    }
    arena_release(r->scratch, mark);
}
static void gated_norm_backward(Run *r, Into dx, Into dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w,
                                GatedNorm n) {
    int M = (int)check_gated_norm(x, w, n), d = n.width, period = present(w) ? (int)(tensor_count(w) / (size_t)d) : 1,
        N = M / period, size = rows_of_block(N); /* rows of `period` groups, each with gains of its own */
    CHECK_ALIKE(dx.t, dz.t, dy, x, z);
    if (M == 0) return;
    Mark mark = arena_mark(r->scratch);
    Tensor wide = norm_room(r, x, 5, d), room = SCRATCH(r, "gates of a group", r->dev->threads, 3, d),
           sums = present(dw) ? SCRATCH(r, "sums of blocks", blocks_of(N), period, d) : ABSENT;
    if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE_EXP)
        for (int i0 = 0; i0 < N; i0 += size) {
            real *own = R(room) + (size_t)omp_get_thread_num() * (size_t)(3 * d), *part = NULL;
            if (present(dw)) {
                part = R(sums) + (size_t)(i0 / size) * (size_t)period * (size_t)d;
                memset(part, 0, (size_t)period * (size_t)d * sizeof *part);
            }
            for (int i = i0 * period; i < imin(N, i0 + size) * period; i++) {
                size_t at = (size_t)i * (size_t)d, m = (size_t)d;
                const real *a = run_of(x, at, m, norm_own(wide, 0)), *g = run_of(z, at, m, norm_own(wide, d)),
                           *e = run_of(dy, at, m, norm_own(wide, 2 * d)), *gain = norm_gain(w, n, i);
                real *o = present(dx.t) ? run_add(dx, at, m, norm_own(wide, 3 * d)) : NULL,
                     *q = present(dz.t) ? run_add(dz, at, m, norm_own(wide, 4 * d)) : NULL,
                     *p = part ? part + (size_t)(i % period) * (size_t)d : NULL;
                if (n.silu && n.before) norm_group_backward(o, q, p, own, e, a, g, gain, d, n.eps, true, true);
                if (n.silu && !n.before) norm_group_backward(o, q, p, own, e, a, g, gain, d, n.eps, true, false);
                if (!n.silu && n.before) norm_group_backward(o, q, p, own, e, a, g, gain, d, n.eps, false, true);
                if (!n.silu && !n.before) norm_group_backward(o, q, p, own, e, a, g, gain, d, n.eps, false, false);
                if (o) run_done(dx.t, at, m, o);
                if (q) run_done(dz.t, at, m, q);
            }
        }
        if (present(dw)) add_blocks(R(dw), R(sums), N, 0, period * d, period * d);
    }
    arena_release(r->scratch, mark);
}
