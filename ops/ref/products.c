/* products.c: y = x w^T in all its forms, and the lookup of rows of a table. */
#include "ref.h"

static double bias_of(Tensor bias, int o) { return present(bias) ? get(bias, o) : 0; }

void ref_linear(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    const int O = w.n[0], I = w.n[1];
    y = tensor_rows(y, O), x = tensor_rows(x, I);
    for (int m = 0; m < x.n[0]; m++)
        for (int o = 0; o < O; o++) {
            double sum = bias_of(bias, o);
            for (int i = 0; i < I; i++) sum += get2(x, m, i) * get2(w, o, i);
            put2(y, m, o, sum);
        }
}
void ref_linear_invariant(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) { ref_linear(r, y, x, w, bias); }
void ref_linear_many(Run *r, int n, const Projection *p, Tensor x) {
    for (int j = 0; j < n; j++) ref_linear(r, p[j].y, x, p[j].w, p[j].bias);
}

/* dw += dy^T x, dbias += the columns' sums of dy, over rows from..to-1. */
static void add_weights(Tensor dw, Tensor dbias, Tensor dy, Tensor x, int from, int to) {
    for (int o = 0; o < dy.n[1]; o++) {
        double all = 0;
        for (int m = from; m < to; m++) all += get2(dy, m, o);
        put_into(add_to(dbias), o, all);
        for (int i = 0; present(dw) && i < dw.n[1]; i++) {
            double sum = 0;
            for (int m = from; m < to; m++) sum += get2(dy, m, o) * get2(x, m, i);
            put_into2(add_to(dw), o, i, sum);
        }
    }
}
void ref_linear_backward(Run *r, Into dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w) {
    ref_linear_many_backward(r, dx, 1, &(Projection){dy, dw, dbias}, x, &(Projection){.w = w});
}
void ref_linear_many_backward(Run *r, Into dx, int n, const Projection *d, Tensor x, const Projection *p) {
    const int I = p[0].w.n[1];
    double *sum = present(dx.t) ? zeros_like(dx.t) : NULL;
    x = tensor_rows(x, I);
    for (int j = 0; j < n; j++) {
        const int O = p[j].w.n[0];
        Tensor dy = tensor_rows(d[j].y, O);
        for (int m = 0; sum && m < x.n[0]; m++)
            for (int i = 0; i < I; i++)
                for (int o = 0; o < O; o++) sum[at2(x, m, i)] += get2(dy, m, o) * get2(p[j].w, o, i);
        add_weights(d[j].w, d[j].bias, dy, x, 0, x.n[0]);
    }
    if (sum) deposit(dx, sum);
}

void ref_linear_heads(Run *r, Tensor y, Tensor x, Tensor w, int row, int O, bool turned) {
    const int M = x.n[0], H = x.n[1], I = w.n[1], R = w.n[0] / H;
    for (int m = 0; m < M; m++)
        for (int h = 0; h < H; h++)
            for (int a = 0; a < (turned ? I : O); a++) {
                double sum = 0;
                for (int b = 0; b < (turned ? O : I); b++) {
                    const int o = turned ? b : a, i = turned ? a : b;
                    sum += get2(w, h * R + row + o, i) * get3(x, m, h, b);
                }
                put3(y, m, h, a, sum);
            }
}

void ref_linear_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    for (int e = 0; e < g.n; e++)
        for (int m = g.off[e]; m < g.off[e + 1]; m++)
            for (int o = 0; o < y.n[1]; o++) {
                double sum = 0;
                for (int i = 0; i < x.n[1]; i++) sum += get2(x, m, i) * get2(w[e], o, i);
                put2(y, m, o, sum);
            }
}
void ref_linear_groups_backward(Run *r, Into dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w) {
    for (int e = 0; e < g.n; e++) {
        for (int m = g.off[e]; present(dx.t) && m < g.off[e + 1]; m++)
            for (int i = 0; i < dx.t.n[1]; i++) {
                double sum = 0;
                for (int o = 0; o < dy.n[1]; o++) sum += get2(dy, m, o) * get2(w[e], o, i);
                put_into2(dx, m, i, sum);
            }
        if (dw) add_weights(dw[e], ABSENT, dy, x, g.off[e], g.off[e + 1]);
    }
}

void ref_embed(Run *r, Tensor y, Tensor table, const int *tok, double scale) {
    for (int i = 0; i < y.n[0]; i++)
        for (int k = 0; k < y.n[1]; k++) put2(y, i, k, scale * get2(table, tok[i], k));
}
void ref_embed_backward(Run *r, Tensor dtable, Tensor dy, const int *tok, double scale) {
    double *sum = zeros_like(dtable);
    for (int i = 0; i < dy.n[0]; i++)
        for (int k = 0; k < dy.n[1]; k++) sum[at2(dtable, tok[i], k)] += scale * get2(dy, i, k);
    deposit(add_to(dtable), sum);
}
