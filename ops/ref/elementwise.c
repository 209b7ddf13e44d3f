/* elementwise.c: what every element does for itself: gated units, sums, copies, dropout. */
#include "ref.h"

void ref_swiglu(Run *r, Tensor y, Tensor gate, Tensor up) {
    for (long i = 0; i < count(y); i++) put(y, i, silu_of(get(gate, i)) * get(up, i));
}
void ref_swiglu_backward(Run *r, Tensor y, Into dgate, Into dup, Tensor dy, Tensor gate, Tensor up) {
    for (long i = 0; i < count(dy); i++) {
        put_into(dgate, i, get(dy, i) * get(up, i) * silu_slope_of(get(gate, i)));
        put_into(dup, i, get(dy, i) * silu_of(get(gate, i)));
    }
    if (present(y)) ref_swiglu(r, y, gate, up);
}
void ref_swiglu_rows(Run *r, Tensor y, Tensor gate, Tensor up, Tensor s) {
    for (int j = 0; j < y.n[0]; j++)
        for (int c = 0; c < y.n[1]; c++) put2(y, j, c, get(s, j) * silu_of(get2(gate, j, c)) * get2(up, j, c));
}
void ref_swiglu_rows_backward(Run *r, Into dgate, Into dup, Into ds, Tensor dy, Tensor gate, Tensor up, Tensor s) {
    for (int j = 0; j < dy.n[0]; j++) {
        double sum = 0;
        for (int c = 0; c < dy.n[1]; c++) {
            const double g = get2(dy, j, c), a = get2(gate, j, c), b = get2(up, j, c);
            put_into2(dgate, j, c, get(s, j) * g * b * silu_slope_of(a));
            put_into2(dup, j, c, get(s, j) * g * silu_of(a));
            sum += g * silu_of(a) * b;
        }
        put_into(ds, j, sum);
    }
}

void ref_relu2(Run *r, Tensor y, Tensor x, Tensor s) {
    for (int j = 0; j < y.n[0]; j++)
        for (int c = 0; c < y.n[1]; c++) put2(y, j, c, (present(s) ? get(s, j) : 1) * pow(fmax(0, get2(x, j, c)), 2));
}
void ref_relu2_backward(Run *r, Into dx, Into ds, Tensor dy, Tensor x, Tensor s) {
    for (int j = 0; j < dy.n[0]; j++) {
        double sum = 0;
        for (int c = 0; c < dy.n[1]; c++) {
            const double a = fmax(0, get2(x, j, c));
            put_into2(dx, j, c, (present(s) ? get(s, j) : 1) * get2(dy, j, c) * 2 * a);
            sum += get2(dy, j, c) * a * a;
        }
        if (present(ds.t)) put_into(ds, j, sum);
    }
}

/* P(x) of gelu = x P(x), and P'(x). */
static double gelu_share(double x, bool tanh_form) {
    if (!tanh_form) return erfc(-x / sqrt(2)) / 2;
    return sigmoid_of(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); /* (1 + tanh u)/2 */
}
static double gelu_share_slope(double x, bool tanh_form) {
    if (!tanh_form) return exp(-x * x / 2) / sqrt(2 * M_PI);
    const double u = 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    return sigmoid_of(u) * sigmoid_of(-u) * 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
void ref_gelu(Run *r, Tensor y, Tensor x, bool tanh_form) {
    for (long i = 0; i < count(x); i++) put(y, i, get(x, i) * gelu_share(get(x, i), tanh_form));
}
void ref_gelu_backward(Run *r, Into dx, Tensor dy, Tensor x, bool tanh_form) {
    for (long i = 0; i < count(x); i++) {
        const double a = get(x, i);
        put_into(dx, i, get(dy, i) * (gelu_share(a, tanh_form) + a * gelu_share_slope(a, tanh_form)));
    }
}

void ref_geglu(Run *r, Tensor y, Tensor gate, Tensor up, bool tanh_form) {
    for (long i = 0; i < count(y); i++) put(y, i, get(gate, i) * gelu_share(get(gate, i), tanh_form) * get(up, i));
}
void ref_geglu_backward(Run *r, Tensor y, Into dgate, Into dup, Tensor dy, Tensor gate, Tensor up, bool tanh_form) {
    for (long i = 0; i < count(dy); i++) {
        const double a = get(gate, i), share = gelu_share(a, tanh_form);
        put_into(dgate, i, get(dy, i) * get(up, i) * (share + a * gelu_share_slope(a, tanh_form)));
        put_into(dup, i, get(dy, i) * a * share);
    }
    if (present(y)) ref_geglu(r, y, gate, up, tanh_form);
}

void ref_add(Run *r, Tensor y, Tensor x) {
    for (long i = 0; i < count(y); i++) put(y, i, get(y, i) + get(x, i));
}
void ref_axpby(Run *r, Tensor y, double a, Tensor x, double b) {
    for (long i = 0; i < count(y); i++) put(y, i, a * get(x, i) + b * get(y, i));
}
void ref_copy(Run *r, Tensor y, Tensor x) {
    for (long i = 0; i < count(y); i++) put(y, i, get(x, i));
}
void ref_zero(Run *r, Tensor y) {
    for (long i = 0; i < count(y); i++) put(y, i, 0);
}
void ref_round_to_bf16(Run *r, Tensor x) {
    for (long i = 0; i < count(x); i++) put(x, i, bf16_to(bf16_from((float)get(x, i))));
}
void ref_hadamard(Run *r, Tensor x) {
    const int n = hadamard_width(size_of(x, 0));
    double y[HADAMARD_MOST];
    for (long i = 0; i < count(x); i += n) {
        for (int j = 0; j < n; j++) {
            y[j] = 0;
            for (int k = 0; k < n; k++) y[j] += (__builtin_parity((unsigned)(j & k)) ? -1 : 1) * get(x, i + k);
        }
        for (int j = 0; j < n; j++) put(x, i + j, y[j] / sqrt((double)n));
    }
}
void ref_scale_column(Run *r, Tensor x, int c, double m) {
    for (long i = 0; i < count(x) / size_of(x, 0); i++) put2(x, i, c, m * get2(x, i, c));
}

/* An element is kept if its 32 random bits, as a fraction, are at least p. One draw serves two columns. */
void ref_dropout(Run *r, Tensor x, DropSite site, double p) {
    const long d = x.n[0] ? count(x) / x.n[0] : 0;
    for (int m = 0; p > 0 && m < x.n[0]; m++)
        for (long k = 0; k < d; k++) {
            const uint64_t draw = rng_mix(noise_row(r, noise_key(r, site), r->out.idx[m]), (uint64_t)(k & ~1L)),
                           bits = k % 2 ? draw >> 32 : draw & 0xFFFFFFFF;
            const bool kept = bits >= (uint64_t)(p * 0x1p32);
            put(x, m * d + k, kept ? get(x, m * d + k) / (1 - p) : 0);
        }
}

void ref_sigmoid_gate(Run *r, Tensor y, Tensor x, Tensor z) {
    for (long i = 0; i < count(y); i++) put(y, i, get(x, i) * sigmoid_of(get(z, i)));
}
void ref_sigmoid_gate_backward(Run *r, Into dx, Into dz, Tensor dy, Tensor x, Tensor z) {
    for (long i = 0; i < count(dy); i++) {
        const double share = sigmoid_of(get(z, i));
        put_into(dx, i, get(dy, i) * share);
        put_into(dz, i, get(dy, i) * get(x, i) * share * sigmoid_of(-get(z, i)));
    }
}

void ref_swiglu_limit(Run *r, Tensor y, Tensor gate, Tensor up, Tensor s, double alpha, double limit) {
    for (int j = 0; j < y.n[0]; j++)
        for (int c = 0; c < y.n[1]; c++) {
            const double a = fmin(get2(gate, j, c), limit), u = fmax(fmin(get2(up, j, c), limit), -limit);
            put2(y, j, c, get(s, j) * (u + 1) * a * sigmoid_of(alpha * a));
        }
}
void ref_swiglu_limit_backward(Run *r, Into dgate, Into dup, Into ds, Tensor dy, Tensor gate, Tensor up, Tensor s,
                               double alpha, double limit) {
    for (int j = 0; j < dy.n[0]; j++) {
        double sum = 0;
        for (int c = 0; c < dy.n[1]; c++) {
            const double g = get2(dy, j, c), a = fmin(get2(gate, j, c), limit),
                         u = fmax(fmin(get2(up, j, c), limit), -limit), share = sigmoid_of(alpha * a);
            const bool through_a = get2(gate, j, c) <= limit, through_u = fabs(get2(up, j, c)) <= limit;
            const double slope = share * (1 + alpha * a * (1 - share));
            put_into2(dgate, j, c, through_a ? get(s, j) * g * (u + 1) * slope : 0);
            put_into2(dup, j, c, through_u ? get(s, j) * g * a * share : 0);
            sum += g * (u + 1) * a * share;
        }
        put_into(ds, j, sum);
    }
}
