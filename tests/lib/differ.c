/* differ.c: see differ.h. */
#include "differ.h"

static double factor(size_t i) {
    uint64_t bits = rng_mix(5, i);
    return (bits & 1 ? 1 : -1) * (1 + 0.5 * (double)(bits >> 12) / 0x1p52);
}
/* d loss / d step of entries from, from + by, ... below n; one: of the first alone, by a factor of 1. */
static double along(real *x, size_t n, size_t from, size_t by, bool one, DifferLoss *loss, void *ctx) {
    real old[DIFFER_GROUP];
    const double h = DIFFER_STEP;
    double f[4];
    size_t many = one ? 1 : (n - from + by - 1) / by;
    for (size_t k = 0; k < many; k++) old[k] = x[from + k * by];
    for (int s = 0; s < 4; s++) {
        for (size_t k = 0; k < many; k++)
            x[from + k * by] = (real)(old[k] + h * (double[]){-2, -1, 1, 2}[s] * (one ? 1 : factor(from + k * by)));
        f[s] = loss(ctx);
    }
    for (size_t k = 0; k < many; k++) x[from + k * by] = old[k];
    return ((f[0] - f[3]) - 8 * (f[1] - f[2])) / (12 * h);
}

Differ differ_tensor(Tensor t, const real *gradient, double bound, DifferLoss *loss, void *ctx) {
    real *x = R(t);
    size_t n = tensor_count(t), groups = (n + DIFFER_GROUP - 1) / DIFFER_GROUP, worst = 0;
    Differ d = {0};
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)gradient[i]) <= d.largest) && d.largest == d.largest) d.largest = fabs((double)gradient[i]);
    for (size_t g = 0; g < groups; g++) { /* entries far apart, so that a row that is wrong is in many groups */
        double want = along(x, n, g, groups, false, loss, ctx), got = 0;
        for (size_t i = g; i < n; i += groups) got += factor(i) * (double)gradient[i];
        double e = fabs(got - want);
        if (fabs(want) > d.numeric) d.numeric = fabs(want);
        if (!(e <= d.error) && d.error == d.error) d.error = e, worst = g; /* a NaN stays */
    }
    if (d.error <= bound * d.largest) return d;
    double most = -1;
    for (size_t i = worst; i < n; i += groups) {
        double want = along(x, n, i, groups, true, loss, ctx), e = fabs((double)gradient[i] - want);
        if (!(e <= most) && most == most) most = e, d.at = i, d.want = want;
    }
    return d;
}
