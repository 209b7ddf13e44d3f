/* distill.c: losses against a teacher: of its logits, in chunks of rows, and of rows of its activations. */
#include "vec.h"

typedef struct {
    real nll, kl, rkl;
} Row;

/* One row: its losses, and with `grad` their gradient by z, scaled by g and by `slope` (NULL: 1), written over z. u:
 * the teacher's logits. */
static Row distill_row(real *z, const real *u, const real *slope, int V, int target, real g, Distill c, bool grad) {
    real zt = z[0], ut = u[0], s = 0, sp = 0, sq = 0, kl = 0, rkl = 0;
    const real cool = (real)(1 / c.temperature), T = (real)c.temperature;
    if (target < 0) {
        if (grad) memset(z, 0, (size_t)V * sizeof *z);
        return (Row){0};
    }
#pragma omp simd reduction(max : zt, ut)
    for (int v = 0; v < V; v++) {
        zt = z[v] > zt ? z[v] : zt;
        ut = u[v] > ut ? u[v] : ut;
    }
#pragma omp simd reduction(+ : sp, sq)
    for (int v = 0; v < V; v++) {
        sp += exp_real((z[v] - zt) * cool);
        sq += exp_real((u[v] - ut) * cool);
    }
    s = sp;
    if (T != 1) {
        s = 0;
#pragma omp simd reduction(+ : s)
        for (int v = 0; v < V; v++) s += exp_real(z[v] - zt);
    }
    const real lp = (real)log((double)sp), lq = (real)log((double)sq), at = z[target];
    /* a - b is log p - log q: exactly 0 for equal logits */
#pragma omp simd reduction(+ : kl, rkl)
    for (int v = 0; v < V; v++) {
        real a = (z[v] - zt) * cool - lp, b = (u[v] - ut) * cool - lq;
        kl += exp_real(b) * (b - a);
        rkl += exp_real(a) * (a - b);
    }
    if (grad) {
        const real lm = g * (real)c.lm, forth = g * T * (real)c.kl, back = g * T * (real)c.rkl, inv = lm / s;
#pragma omp simd
        for (int v = 0; v < V; v++) {
            real a = (z[v] - zt) * cool - lp, b = (u[v] - ut) * cool - lq, p = exp_real(a);
            z[v] = exp_real(z[v] - zt) * inv + forth * (p - exp_real(b)) + back * p * (a - b - rkl);
        }
        z[target] -= lm;
        if (slope)
#pragma omp simd
            for (int v = 0; v < V; v++) z[v] *= slope[v];
    }
    return (Row){(real)log((double)s) + zt - at, T * T * kl, T * T * rkl};
}

static void linear_distill(Run *r, Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w,
                           Tensor y, Tensor u, const int *tgt, const real *g, Distill c) {
    int N = x.n[0], V = w.n[0];
    check_linear_distill(dx, dw, x, w, y, u);
    int rows = imin(N, chunk_rows(V));
    Mark mark = arena_mark(r->scratch);
    Tensor own = SCRATCH(r, "logits", rows, V), other = SCRATCH(r, "teacher's logits", rows, V);
    Tensor rounded = bf16_logits(r, present(dx), rows, w), slopes = ABSENT;
    if (present(dx) && !logits_plain(c.map)) slopes = SCRATCH(r, "slopes of logits", r->dev->threads, V);
    for (int from = 0; from < N; from += rows) {
        int n = imin(rows, N - from);
        Tensor z = TENSOR(own.p, REAL, n, V), zu = TENSOR(other.p, REAL, n, V), xs = tensor_part(x, from, n);
        Tensor dz = present(rounded) ? tensor_part(rounded, 0, n) : z;
        linear(r, z, xs, w, ABSENT);
        linear(r, zu, tensor_part(y, from, n), u, ABSENT);
        if (!measuring(r)) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)n * V > ALONE)
            for (int i = 0; i < n; i++) {
                int t = tgt[from + i];
                size_t row = (size_t)i * (size_t)V;
                real *slope = present(slopes) ? R(slopes) + (size_t)omp_get_thread_num() * (size_t)V : NULL;
                check_target(t, V);
                if (!logits_plain(c.map)) logits_of(R(z) + row, (size_t)V, c.map);
                if (!logits_plain(c.teacher_map)) logits_of(R(zu) + row, (size_t)V, c.teacher_map);
                for (int v = 0; slope && v < V; v++)
                    slope[v] = logit_slope(R(z)[row + (size_t)v], (real)c.map.scale, logit_fold(c.map));
                Row l =
                    distill_row(R(z) + row, R(zu) + row, slope, V, t, present(dx) ? g[from + i] : 0, c, present(dx));
                R(nll)[from + i] = l.nll, R(kl)[from + i] = l.kl, R(rkl)[from + i] = l.rkl;
                if (present(rounded)) rounded_to_bf16((uint16_t *)rounded.p + row, R(z) + row, (size_t)V);
            }
        }
        if (present(dx)) linear_backward(r, add_to(tensor_part(dx, from, n)), dw, ABSENT, dz, xs, w);
    }
    arena_release(r->scratch, mark);
}

static double square_of(const real *x, int n) {
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int k = 0; k < n; k++) s += (double)x[k] * (double)x[k];
    return s;
}

static void align(Run *r, Tensor err, Tensor dy, Tensor y, Tensor a, const int *tgt, const real *g, double c) {
    const int d = y.n[1];
    check_align(r, err, dy, y, a);
    if (measuring(r)) return;
    const Batch *b = r->batch;
    real *E = R(err);
    const real *Y = R(y), *A = R(a);
    real *D = present(dy) ? R(dy) : NULL;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)b->N * d > ALONE)
    for (int s = 0; s < b->B; s++) {
        double sum = 0;
        int n = 0;
        for (int i = b->off[s]; i < b->off[s + 1]; i++)
            if (tgt[i] >= 0) sum += square_of(A + (size_t)i * (size_t)d, d), n++;
        const real inv = sum > 0 ? (real)(n / sum) : 1;
        for (int i = b->off[s]; i < b->off[s + 1]; i++) {
            const size_t at = (size_t)i * (size_t)d;
            double off = 0;
            if (tgt[i] < 0) continue;
#pragma omp simd reduction(+ : off)
            for (int k = 0; k < d; k++) {
                double t = (double)Y[at + (size_t)k] - (double)A[at + (size_t)k];
                off += t * t;
            }
            E[i] += (real)off * inv;
            if (!D) continue;
            const real f = (real)(2 * c) * g[i] * inv;
#pragma omp simd
            for (int k = 0; k < d; k++) D[at + (size_t)k] += f * (Y[at + (size_t)k] - A[at + (size_t)k]);
        }
    }
}
