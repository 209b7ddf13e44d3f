/* norm.c: norms of rows, of heads and of gated groups. */
#include "ref.h"

/* (mean of x^2 + eps)^-1/2 of n values. */
static double rstd_of(const double *x, int n, double eps) {
    double squares = 0;
    for (int k = 0; k < n; k++) squares += x[k] * x[k];
    return 1 / sqrt(squares / n + eps);
}
static double mean_of(const double *x, int n) {
    double sum = 0;
    for (int k = 0; k < n; k++) sum += x[k];
    return sum / n;
}
static double dot_of(const double *a, const double *b, int n) {
    double sum = 0;
    for (int k = 0; k < n; k++) sum += a[k] * b[k];
    return sum;
}
static double *row_of(Tensor x, long i, double *to) {
    for (int k = 0; k < x.n[1]; k++) to[k] = get2(x, i, k);
    return to;
}

void ref_rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps) {
    const int d = w.n[0];
    double row[d];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    for (int i = 0; i < x.n[0]; i++) {
        const double s = rstd_of(row_of(x, i, row), d, eps);
        put(rstd, i, s);
        for (int k = 0; k < d; k++) put2(y, i, k, row[k] * s * get(w, k));
    }
}
void ref_add_rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor z, Tensor w, double eps) {
    for (long i = 0; i < count(x); i++) put(x, i, get(x, i) + get(z, i));
    ref_rmsnorm(r, y, rstd, x, w, eps);
}
/* dx = s t - s^3 x (t.x)/d with t = dy w and s = rstd; dw += dy x s. */
static void rmsnorm_row_backward(double *dx, double *dw, const double *dy, const double *x, Tensor w, double s) {
    const int d = w.n[0];
    double t[d];
    for (int k = 0; k < d; k++) t[k] = dy[k] * get(w, k);
    const double dot = dot_of(t, x, d);
    for (int k = 0; k < d; k++) {
        dx[k] = s * t[k] - s * s * s * x[k] * dot / d;
        dw[k] += dy[k] * x[k] * s;
    }
}
void ref_rmsnorm_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    const int d = w.n[0];
    double *sum = zeros_like(dw), row[d], grad[d], out[d];
    x = tensor_rows(x, d), dy = tensor_rows(dy, d);
    for (int i = 0; i < x.n[0]; i++) {
        rmsnorm_row_backward(out, sum, row_of(dy, i, grad), row_of(x, i, row), w, get(rstd, i));
        for (int k = 0; k < d; k++) put_into(dx, at2(x, i, k), out[k]);
    }
    deposit(add_to(dw), sum);
}

void ref_layernorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps) {
    const int d = w.n[0];
    double u[d];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    for (int i = 0; i < x.n[0]; i++) {
        const double mean = mean_of(row_of(x, i, u), d);
        for (int k = 0; k < d; k++) u[k] -= mean;
        const double s = rstd_of(u, d, eps);
        put(rstd, i, s);
        for (int k = 0; k < d; k++) put2(y, i, k, u[k] * s * get(w, k) + get(b, k));
    }
}
void ref_layernorm_backward(Run *r, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    const int d = w.n[0];
    double *sum_w = zeros_like(dw), *sum_b = zeros_like(db), n[d], g[d], t[d];
    x = tensor_rows(x, d), dy = tensor_rows(dy, d);
    for (int i = 0; i < x.n[0]; i++) {
        const double s = get(rstd, i), mean = mean_of(row_of(x, i, n), d);
        row_of(dy, i, g);
        for (int k = 0; k < d; k++) {
            n[k] = (n[k] - mean) * s;
            t[k] = g[k] * get(w, k);
            sum_w[k] += g[k] * n[k];
            sum_b[k] += g[k];
        }
        const double mean_t = mean_of(t, d), mean_tn = dot_of(t, n, d) / d;
        for (int k = 0; k < d; k++) put_into(add_to(dx), at2(x, i, k), s * (t[k] - mean_t - n[k] * mean_tn));
    }
    deposit(add_to(dw), sum_w), deposit(add_to(db), sum_b);
}

/* ---- heads ---- */
void ref_l2norm(Run *r, Tensor y, Tensor x, double eps) {
    const int d = size_of(x, 0);
    for (long i = 0; i < count(x) / d; i++) {
        double squares = 0;
        for (int k = 0; k < d; k++) squares += get2(x, i, k) * get2(x, i, k);
        for (int k = 0; k < d; k++) put2(y, i, k, get2(x, i, k) / sqrt(squares + eps));
    }
}
void ref_l2norm_backward(Run *r, Into dx, Tensor dy, Tensor x, double eps) {
    const int d = size_of(x, 0);
    for (long i = 0; i < count(x) / d; i++) {
        double squares = 0, dot = 0;
        for (int k = 0; k < d; k++) squares += get2(x, i, k) * get2(x, i, k);
        const double f = 1 / sqrt(squares + eps);
        for (int k = 0; k < d; k++) dot += get2(x, i, k) * f * get2(dy, i, k); /* y.dy */
        for (int k = 0; k < d; k++) put_into2(dx, i, k, f * (get2(dy, i, k) - get2(x, i, k) * f * dot));
    }
}

/* ---- gated groups: y = w rms(x gate(z)) or w rms(x) gate(z) ---- */
static double gate_of(GatedNorm n, double z) { return n.silu ? silu_of(z) : sigmoid_of(z); }
static double gate_slope_of(GatedNorm n, double z) {
    return n.silu ? silu_slope_of(z) : sigmoid_of(z) * (1 - sigmoid_of(z));
}
/* The place in w of element c of group i. */
static long gain_at(Tensor w, GatedNorm n, long i, int c) { return (i * n.width + c) % count(w); }
static double gain_of(Tensor w, GatedNorm n, long i, int c) { return present(w) ? get(w, gain_at(w, n, i, c)) : 1; }

void ref_gated_norm(Run *r, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n) {
    const int d = n.width;
    double in[d], gate[d];
    for (long i = 0; i < count(x) / d; i++) {
        for (int c = 0; c < d; c++) {
            gate[c] = gate_of(n, get(z, i * d + c));
            in[c] = get(x, i * d + c) * (n.before ? gate[c] : 1);
        }
        const double s = rstd_of(in, d, n.eps);
        for (int c = 0; c < d; c++) put(y, i * d + c, gain_of(w, n, i, c) * in[c] * s * (n.before ? 1 : gate[c]));
    }
}
void ref_gated_norm_backward(Run *r, Into dx, Into dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w,
                             GatedNorm n) {
    const int d = n.width;
    double *sum = zeros_like(dw), in[d], gate[d], h[d];
    for (long i = 0; i < count(x) / d; i++) {
        for (int c = 0; c < d; c++) {
            gate[c] = gate_of(n, get(z, i * d + c));
            in[c] = get(x, i * d + c) * (n.before ? gate[c] : 1);
            h[c] = get(dy, i * d + c) * gain_of(w, n, i, c) * (n.before ? 1 : gate[c]); /* the gradient of in s */
        }
        const double s = rstd_of(in, d, n.eps), dot = dot_of(in, h, d);
        for (int c = 0; c < d; c++) {
            const long at = i * d + c;
            const double din = s * h[c] - s * s * s * in[c] * dot / d, g = get(dy, at) * gain_of(w, n, i, c);
            const double dgate = n.before ? din * get(x, at) : g * in[c] * s;
            put_into(dx, at, din * (n.before ? gate[c] : 1));
            put_into(dz, at, dgate * gate_slope_of(n, get(z, at)));
            if (present(dw)) sum[gain_at(dw, n, i, c)] += get(dy, at) * in[c] * s * (n.before ? 1 : gate[c]);
        }
    }
    deposit(add_to(dw), sum);
}

/* ---- rotation ---- */
/* In place: a head at a position. */
static void rotate(double *head, const Rope *p, double pos, int sign) {
    for (int i = 0; i < p->n / 2; i++) {
        double *a = head + p->at + (p->interleaved ? 2 * i : i), *b = a + (p->interleaved ? 1 : p->n / 2);
        const double c = p->factor * cos(pos * p->f[i]), s = p->factor * sin(sign * pos * p->f[i]), x = *a, y = *b;
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}
/* Row i of x seen as heads belongs to this position. */
static double position_of(const Run *r, RowList rows, int heads, long i) { return r->batch->pos[rows.idx[i / heads]]; }
void ref_rope(Run *r, Tensor x, const Rope *rope, RowList rows, int sign) {
    const int heads = x.n[1], D = x.n[2];
    double head[D];
    x = tensor_rows(x, D);
    for (int i = 0; i < x.n[0]; i++) {
        rotate(row_of(x, i, head), rope, position_of(r, rows, heads, i), sign);
        for (int k = rope->at; k < rope->at + rope->n; k++) put2(x, i, k, head[k]);
    }
}
void ref_rmsnorm_rope(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps, const Rope *rope, RowList rows) {
    const int heads = x.n[1], D = x.n[2];
    double head[D];
    x = tensor_rows(x, D), y = tensor_rows(y, D);
    for (int i = 0; i < x.n[0]; i++) {
        const double s = rstd_of(row_of(x, i, head), D, eps);
        put(rstd, i, s);
        for (int k = 0; k < D; k++) head[k] *= s * get(w, k);
        rotate(head, rope, position_of(r, rows, heads, i), 1);
        for (int k = 0; k < D; k++) put2(y, i, k, head[k]);
    }
}
void ref_rmsnorm_rope_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd, const Rope *rope,
                               RowList rows) {
    const int heads = x.n[1], D = x.n[2];
    double *sum = zeros_like(dw), head[D], grad[D], out[D];
    x = tensor_rows(x, D), dy = tensor_rows(dy, D);
    for (int i = 0; i < x.n[0]; i++) {
        rotate(row_of(dy, i, grad), rope, position_of(r, rows, heads, i), -1);
        rmsnorm_row_backward(out, sum, grad, row_of(x, i, head), w, get(rstd, i));
        for (int k = 0; k < D; k++) put_into(dx, at2(x, i, k), out[k]);
    }
    deposit(add_to(dw), sum);
}
