/* test_muon.c: Muon's step against the same written as plain loops in double, and what it is for: a step whose singular
 * values are all near one. */
#include "tests/lib/check.h"
#include "optim/optimizer.h"

extern const Optimizer muon_optimizer;
static int muon_kind(void) {
    int k = 0;
    while (optimizers[k] != &muon_optimizer) k++;
    return k;
}

enum { MOST = 40 * 40 };
typedef struct {
    int rows, cols;
    double w[MOST], g[MOST], m[MOST], x[MOST];
} Ref;

static void product(double *out, const double *a, bool ta, const double *b, bool tb, int n, int k, int m, int lda,
                    int ldb) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            double s = 0;
            for (int t = 0; t < k; t++)
                s += (ta ? a[t * lda + i] : a[i * lda + t]) * (tb ? b[j * ldb + t] : b[t * ldb + j]);
            out[i * m + j] = s;
        }
}
/* Always from the left, A = X X^T, whatever the shape: the iteration is the same polynomial in X. */
static void reference(Ref *r, const OptimCfg *c, double lr, double gscale) {
    int R_ = r->rows, C = r->cols, n = R_ * C;
    double norm = 0, s[MOST], q[MOST], qx[MOST];
    for (int i = 0; i < n; i++) {
        r->m[i] = c->muon_momentum * r->m[i] + gscale * r->g[i];
        r->x[i] = c->muon_nesterov ? gscale * r->g[i] + c->muon_momentum * r->m[i] : r->m[i];
        norm += r->x[i] * r->x[i];
    }
    for (int i = 0; i < n; i++) r->x[i] /= sqrt(norm) + 1e-7;
    for (int k = 0; k < c->muon_steps; k++) {
        product(s, r->x, false, r->x, true, R_, C, R_, C, C);
        product(q, s, false, s, false, R_, R_, R_, R_, R_);
        for (int i = 0; i < R_ * R_; i++) q[i] = -4.7750 * s[i] + 2.0315 * q[i];
        product(qx, q, false, r->x, false, R_, R_, C, R_, C);
        for (int i = 0; i < n; i++) r->x[i] = 3.4445 * r->x[i] + qx[i];
    }
    double most = R_ > C ? R_ : C;
    for (int i = 0; i < n; i++)
        r->w[i] = r->w[i] * (1 - lr * c->weight_decay) - lr * c->muon_scale * sqrt(most) * r->x[i];
}

/* Largest and smallest singular value of X by Jacobi rotations of the smaller Gram matrix. */
static void singular(const double *x, int rows, int cols, double *least, double *most) {
    int n = rows < cols ? rows : cols;
    double a[MOST];
    product(a, x, rows > cols, x, rows <= cols, n, rows > cols ? rows : cols, n, cols, cols);
    for (int sweep = 0; sweep < 30; sweep++)
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                if (fabs(a[p * n + q]) < 1e-14) continue;
                double t = 0.5 * atan2(2 * a[p * n + q], a[q * n + q] - a[p * n + p]), c = cos(t), s = sin(t);
                for (int k = 0; k < n; k++) {
                    double u = a[k * n + p], v = a[k * n + q];
                    a[k * n + p] = c * u - s * v, a[k * n + q] = s * u + c * v;
                }
                for (int k = 0; k < n; k++) {
                    double u = a[p * n + k], v = a[q * n + k];
                    a[p * n + k] = c * u - s * v, a[q * n + k] = s * u + c * v;
                }
            }
    *least = INFINITY, *most = 0;
    for (int i = 0; i < n; i++)
        *least = fmin(*least, sqrt(fabs(a[i * n + i]))), *most = fmax(*most, sqrt(fabs(a[i * n + i])));
}

static void random_fill(real *p, double *q, int n, uint64_t key) {
    for (int i = 0; i < n; i++) p[i] = (real)rng_normal(key, (uint64_t)i), q[i] = p[i];
}

Test(muon, steps_of_every_shape) {
    static const int shapes[][2] = {{16, 16}, {12, 33}, {33, 12}, {1, 9}, {40, 40}, {7, 1}};
    const double tol = REAL == F64 ? 1e-11 : 2e-4;
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cpu", 2, &e), "%s", e.msg);
    for (int k = 0; k < 12; k++) {
        int R_ = shapes[k / 2][0], C = shapes[k / 2][1], n = R_ * C;
        const OptimCfg c = {.kind = muon_kind(),
                            .muon_momentum = 0.95,
                            .weight_decay = 0.1,
                            .muon_scale = 0.2,
                            .muon_nesterov = k % 2,
                            .muon_steps = 5};
        const OptimizerCfg how = {.set = &c};
        static Ref ref;
        static real w[MOST], g[MOST], m[MOST];
        char what[64];
        Arena dry = {.name = "scratch"}, scratch = {0};
        Param p = {.lr_scale = 1, .t = {TENSOR(w, REAL, R_, C), TENSOR(g, REAL, R_, C)}};
        Params all = {.n = 1, .p = &p};
        optimizer_declare(&all, &c);
        cr_assert(p.by == &muon_optimizer && !present(p.state[1].t));
        p.state[0].t.p = m;
        Run run = run_make(dev, &dry);
        optimizer_step(&run, &all, &how, 0.02, 0.7, 1); /* measures */
        cr_assert(arena_open(&scratch, "scratch", dry.peak, true, &e), "%s", e.msg);
        run = run_make(dev, &scratch);
        ref.rows = R_, ref.cols = C;
        random_fill(w, ref.w, n, 1), random_fill(m, ref.m, n, 3);
        for (int step = 0; step < 3; step++) {
            random_fill(g, ref.g, n, (uint64_t)(10 + step));
            optimizer_step(&run, &all, &how, 0.02, 0.7, 1);
            reference(&ref, &c, 0.02, 0.7);
        }
        real want[MOST];
        snprintf(what, sizeof what, "%d x %d, nesterov %d", R_, C, k % 2);
        for (int i = 0; i < n; i++) want[i] = (real)ref.w[i];
        CHECK_CLOSE(what, w, want, (size_t)n, tol);
        for (int i = 0; i < n; i++) want[i] = (real)ref.m[i];
        CHECK_CLOSE(what, m, want, (size_t)n, tol);
        double least, most;
        singular(ref.x, R_, C, &least, &most);
        cr_expect(least > 0.3 && most < 1.3, "%s: singular values %.3f to %.3f", what, least, most);
        arena_close(&scratch);
    }
    device_close(dev);
}

Test(muon, leaves_tables_and_vectors_alone) {
    const OptimCfg c = {.kind = muon_kind()};
    Param p[] = {{.flags = FIELD_TABLE, .t = {TENSOR(NULL, REAL, 4, 4)}},
                 {.t = {TENSOR(NULL, REAL, 4)}},
                 {.t = {TENSOR(NULL, REAL, 4, 1, 3)}},
                 {.flags = FIELD_NODECAY, .t = {TENSOR(NULL, REAL, 4, 3)}},
                 {.flags = FIELD_BALANCE, .t = {TENSOR(NULL, REAL, 4, 3)}}};
    Params all = {.n = 5, .p = p};
    optimizer_declare(&all, &c);
    for (int i = 0; i < all.n; i++) cr_assert(p[i].by == &adamw_optimizer && present(p[i].state[1].t), "%d", i);
}
