/* loss.c: the linear head with its losses, and the distance from a teacher's rows. */
#include "ref.h"

static double logit_of(LogitMap m, double z) { return m.cap > 0 ? m.cap * tanh(m.scale * z / m.cap) : m.scale * z; }
/* Of a logit by the product that it was made of. */
static double logit_slope(LogitMap m, double logit) {
    return m.scale * (m.cap > 0 ? 1 - logit / m.cap * (logit / m.cap) : 1);
}
void ref_map_logits(Run *r, Tensor x, LogitMap map) {
    for (long i = 0; i < count(x); i++) put(x, i, logit_of(map, get(x, i)));
}

/* z = map(x_i w^T). */
static void logits_of(Tensor x, Tensor w, LogitMap map, int i, double *z) {
    for (int v = 0; v < w.n[0]; v++) {
        z[v] = 0;
        for (int k = 0; k < w.n[1]; k++) z[v] += get2(x, i, k) * get2(w, v, k);
        z[v] = logit_of(map, z[v]);
    }
}
/* log sum_v exp(z_v / T). */
static double log_sum_exp(const double *z, int V, double T) {
    double top = -INFINITY, sum = 0;
    for (int v = 0; v < V; v++) top = fmax(top, z[v] / T);
    for (int v = 0; v < V; v++) sum += exp(z[v] / T - top);
    return top + log(sum);
}
static int first_largest(const double *z, int V) {
    int at = 0;
    for (int v = 1; v < V; v++)
        if (z[v] > z[at]) at = v;
    return at;
}
/* The gradients of x_i and w by z = x_i w^T. */
static void head_backward(double *dx, double *dw, Tensor x, Tensor w, int i, const double *dz) {
    for (int v = 0; v < w.n[0]; v++)
        for (int k = 0; k < w.n[1]; k++) {
            dx[at2(x, i, k)] += dz[v] * get2(w, v, k);
            dw[at2(w, v, k)] += dz[v] * get2(x, i, k);
        }
}

void ref_linear_xent(Run *r, Tensor nll, int *hit, Into dx, Tensor dw, Tensor x, Tensor w, LogitMap map, const int *tgt,
                     const real *g) {
    const int V = w.n[0];
    double *z = xcalloc((size_t)V, sizeof *z), *sum_x = zeros_like(x), *sum_w = zeros_like(w);
    for (int i = 0; i < x.n[0]; i++) {
        logits_of(x, w, map, i, z);
        const double lse = log_sum_exp(z, V, 1);
        put(nll, i, tgt[i] < 0 ? 0 : lse - z[tgt[i]]);
        if (hit) hit[i] = tgt[i] >= 0 && first_largest(z, V) == tgt[i];
        if (!present(dx.t) || tgt[i] < 0) continue;
        for (int v = 0; v < V; v++) z[v] = g[i] * (exp(z[v] - lse) - (v == tgt[i])) * logit_slope(map, z[v]);
        head_backward(sum_x, sum_w, x, w, i, z);
    }
    deposit(dx, sum_x), deposit(add_to(dw), sum_w);
    free(z);
}

void ref_linear_distill(Run *r, Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w, Tensor y,
                        Tensor u, const int *tgt, const real *g, Distill c) {
    const int V = w.n[0];
    const double T = c.temperature;
    double *z = xcalloc(3 * (size_t)V, sizeof *z), *zu = z + V, *dz = zu + V, *sum_x = zeros_like(x),
           *sum_w = zeros_like(w);
    for (int i = 0; i < x.n[0]; i++) {
        double forward = 0, reverse = 0; /* sum q log(q/p), sum p log(p/q) */
        logits_of(x, w, c.map, i, z), logits_of(y, u, c.teacher_map, i, zu);
        const double lse = log_sum_exp(z, V, 1), lse_p = log_sum_exp(z, V, T), lse_q = log_sum_exp(zu, V, T);
        for (int v = 0; v < V; v++) {
            const double log_p = z[v] / T - lse_p, log_q = zu[v] / T - lse_q;
            forward += exp(log_q) * (log_q - log_p);
            reverse += exp(log_p) * (log_p - log_q);
        }
        const bool counts = tgt[i] >= 0;
        put(nll, i, counts ? lse - z[tgt[i]] : 0);
        put(kl, i, counts ? T * T * forward : 0);
        put(rkl, i, counts ? T * T * reverse : 0);
        if (!present(dx) || !counts) continue;
        for (int v = 0; v < V; v++) {
            const double log_p = z[v] / T - lse_p, log_q = zu[v] / T - lse_q, p = exp(log_p), q = exp(log_q);
            dz[v] = g[i] * logit_slope(c.map, z[v]) *
                    (c.lm * (exp(z[v] - lse) - (v == tgt[i])) + c.kl * T * (p - q) +
                     c.rkl * T * p * (log_p - log_q - reverse));
        }
        head_backward(sum_x, sum_w, x, w, i, dz);
    }
    deposit(add_to(dx), sum_x), deposit(add_to(dw), sum_w);
    free(z);
}

void ref_align(Run *r, Tensor err, Tensor dy, Tensor y, Tensor a, const int *tgt, const real *g, double c) {
    const Batch *b = r->batch;
    for (int s = 0; s < b->B; s++) {
        double squares = 0;
        int rows = 0;
        for (int i = b->off[s]; i < b->off[s + 1]; i++) {
            if (tgt[i] < 0) continue;
            rows++;
            for (int k = 0; k < a.n[1]; k++) squares += get2(a, i, k) * get2(a, i, k);
        }
        const double size = squares > 0 ? squares / rows : 1; /* m_s */
        for (int i = b->off[s]; i < b->off[s + 1]; i++) {
            double off = 0;
            if (tgt[i] < 0) continue;
            for (int k = 0; k < a.n[1]; k++) {
                const double t = get2(y, i, k) - get2(a, i, k);
                off += t * t;
                put_into2(add_to(dy), i, k, 2 * c * g[i] * t / size);
            }
            put_into(add_to(err), i, off / size);
        }
    }
}
