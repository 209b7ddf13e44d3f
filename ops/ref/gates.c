/* gates.c: what stands around a recurrence: decays, sigmoids, linear attention's feature map and denominator, Mamba-2's
 * step and skip. */
#include "ref.h"

/* The gate of z + bias at rate exp(A), and its derivatives by both. */
typedef struct {
    double g, by_z, by_A;
} GateAt;
static GateAt gate_at(Gate k, Tensor z, Tensor A, Tensor bias, int t, int h, int d) {
    const double a = get3(z, t, h, d) + (present(bias) ? get(bias, (long)h * z.n[2] + d) : 0),
                 rate = present(A) ? exp(get(A, h)) : 1, s = sigmoid_of(rate * a);
    switch (k.kind) {
    case GATE_SOFTPLUS: return (GateAt){-rate * softplus_of(a), -rate * sigmoid_of(a), -rate * softplus_of(a)};
    case GATE_BOUND:
        return (GateAt){k.param * s, k.param * s * sigmoid_of(-rate * a) * rate,
                        k.param * s * sigmoid_of(-rate * a) * rate * a};
    default: return (GateAt){-softplus_of(-a) / k.param, sigmoid_of(-a) / k.param, 0};
    }
}
void ref_decay(Run *r, Tensor g, Tensor z, Tensor A, Tensor bias, Gate gate) {
    for (int t = 0; t < z.n[0]; t++)
        for (int h = 0; h < z.n[1]; h++)
            for (int d = 0; d < z.n[2]; d++) put(g, at3(z, t, h, d), gate_at(gate, z, A, bias, t, h, d).g);
}
void ref_decay_backward(Run *r, Into dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias,
                        Gate gate) {
    double *sum_A = zeros_like(dA), *sum_bias = zeros_like(dbias);
    for (int t = 0; t < z.n[0]; t++)
        for (int h = 0; h < z.n[1]; h++)
            for (int d = 0; d < z.n[2]; d++) {
                const GateAt a = gate_at(gate, z, A, bias, t, h, d);
                const double by = get(dg, at3(z, t, h, d));
                put_into(dz, at3(z, t, h, d), by * a.by_z);
                if (present(dA)) sum_A[h] += by * a.by_A;
                if (present(dbias)) sum_bias[h * z.n[2] + d] += by * a.by_z;
            }
    deposit(add_to(dA), sum_A), deposit(add_to(dbias), sum_bias);
}

void ref_sigmoid(Run *r, Tensor y, Tensor x, double top) {
    for (long i = 0; i < count(x); i++) put(y, i, top * sigmoid_of(get(x, i)));
}
void ref_sigmoid_backward(Run *r, Into dx, Tensor dy, Tensor y, double top) {
    for (long i = 0; i < count(y); i++) put_into(dx, i, get(dy, i) * get(y, i) * (1 - get(y, i) / top));
}

void ref_repeat(Run *r, Tensor y, const double *row) {
    for (long i = 0; i < count(y); i++) put(y, i, row[i % (count(y) / y.n[0])]);
}
void ref_elu1(Run *r, Tensor y, Tensor x) {
    for (long i = 0; i < count(x); i++) put(y, i, get(x, i) > 0 ? get(x, i) + 1 : exp(get(x, i)));
}
void ref_elu1_backward(Run *r, Into dx, Tensor dy, Tensor y) {
    for (long i = 0; i < count(y); i++) put_into(dx, i, get(dy, i) * fmin(1, get(y, i)));
}

void ref_append_ones(Run *r, Tensor y, Tensor x) {
    const int V = size_of(x, 0);
    for (long i = 0; i < count(x) / V; i++)
        for (int c = 0; c <= V; c++) put2(y, i, c, c < V ? get2(x, i, c) : 1);
}
void ref_append_ones_backward(Run *r, Into dx, Tensor dy) {
    const int V = size_of(dx.t, 0);
    for (long i = 0; i < count(dx.t) / V; i++)
        for (int c = 0; c < V; c++) put_into2(dx, i, c, get2(dy, i, c));
}
void ref_divide_by_last(Run *r, Tensor y, Tensor x, double eps) {
    const int V = size_of(y, 0);
    for (long i = 0; i < count(y) / V; i++)
        for (int c = 0; c < V; c++) put2(y, i, c, get2(x, i, c) / (get2(x, i, V) + eps));
}
void ref_divide_by_last_backward(Run *r, Into dx, Tensor dy, Tensor y, Tensor x, double eps) {
    const int V = size_of(y, 0);
    for (long i = 0; i < count(y) / V; i++) {
        const double by = get2(x, i, V) + eps;
        double sum = 0;
        for (int c = 0; c < V; c++) {
            put_into2(dx, i, c, get2(dy, i, c) / by);
            sum += get2(dy, i, c) * get2(y, i, c);
        }
        put_into2(dx, i, V, -sum / by);
    }
}

void ref_step(Run *r, Tensor y, Tensor x, Tensor z, Tensor bias) {
    for (int t = 0; t < x.n[0]; t++)
        for (int h = 0; h < x.n[1]; h++)
            for (int p = 0; p < x.n[2]; p++)
                put3(y, t, h, p, softplus_of(get2(z, t, h) + get(bias, h)) * get3(x, t, h, p));
}
void ref_step_backward(Run *r, Into dx, Into dz, Tensor dbias, Tensor dy, Tensor x, Tensor z, Tensor bias) {
    double *sum_bias = zeros_like(dbias);
    for (int t = 0; t < x.n[0]; t++)
        for (int h = 0; h < x.n[1]; h++) {
            const double a = get2(z, t, h) + get(bias, h);
            double dot = 0;
            for (int p = 0; p < x.n[2]; p++) {
                put_into3(dx, t, h, p, softplus_of(a) * get3(dy, t, h, p));
                dot += get3(dy, t, h, p) * get3(x, t, h, p);
            }
            put_into2(dz, t, h, dot * sigmoid_of(a));
            sum_bias[h] += dot * sigmoid_of(a);
        }
    deposit(add_to(dbias), sum_bias);
}
void ref_skip(Run *r, Tensor y, Tensor x, Tensor w) {
    for (int t = 0; t < x.n[0]; t++)
        for (int h = 0; h < x.n[1]; h++)
            for (int p = 0; p < x.n[2]; p++) put_into3(add_to(y), t, h, p, get(w, h) * get3(x, t, h, p));
}
void ref_skip_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    double *sum = zeros_like(dw);
    for (int t = 0; t < x.n[0]; t++)
        for (int h = 0; h < x.n[1]; h++)
            for (int p = 0; p < x.n[2]; p++) {
                put_into3(dx, t, h, p, get(w, h) * get3(dy, t, h, p));
                sum[h] += get3(dy, t, h, p) * get3(x, t, h, p);
            }
    deposit(add_to(dw), sum);
}

void ref_attend_sink(Run *r, Tensor o, Tensor lse, Tensor w) {
    for (int t = 0; t < o.n[0]; t++)
        for (int h = 0; h < o.n[1]; h++) {
            const double above = get2(lse, t, h) - get(w, h);
            for (int d = 0; d < o.n[2]; d++) put3(o, t, h, d, get3(o, t, h, d) * sigmoid_of(above));
            put2(lse, t, h, get(w, h) + softplus_of(above));
        }
}
void ref_attend_sink_backward(Run *r, Tensor dw, Tensor dout, Tensor o, Tensor lse, Tensor w) {
    double *sum = zeros_like(dw);
    for (int t = 0; t < o.n[0]; t++)
        for (int h = 0; h < o.n[1]; h++)
            for (int d = 0; d < o.n[2]; d++)
                sum[h] -= exp(get(w, h) - get2(lse, t, h)) * get3(dout, t, h, d) * get3(o, t, h, d);
    deposit(add_to(dw), sum);
}
