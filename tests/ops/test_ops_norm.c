/* test_ops_norm.c: GELU's tails against its formula in a wider type. */
#include "tests/lib/rig.h"

static const wide pi = 3.14159265358979323846264338327950288L;
static wide part(wide x) { return erfcl(-x / wide_sqrt(2)) / 2; }
static wide slope(wide x) { return wide_exp(-x * x / 2) / wide_sqrt(2 * pi); }

/* The erf form over the whole line, its tails to the last number that is not denormal, infinities and NaN: 12 rounding
 * units of what is wanted itself, where 1 + erf would have lost everything below -4. */
static double tail_error(wide got, wide want, wide size) {
    const wide unit = REAL == F32 ? 0x1p-24L : 0x1p-53L, least = REAL == F32 ? 0x1p-126L : 0x1p-1022L;
    return (double)(wide_fabs(got - want) / (unit * size + least));
}
Test(ops, gelu_tails) {
    enum { LINE = 84001, POWERS = 275, N = LINE + 2 * POWERS + 2 };
    const double units = 12;
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 1, 16 << 20);
        Tensor x = EMPTY(&g, "x", N), y = EMPTY(&g, "y", N), dy = EMPTY(&g, "dy", N), dx = EMPTY(&g, "dx", N);
        for (int i = 0; i < N; i++) R(dy)[i] = 1, R(dx)[i] = 0;
        for (int i = 0; i < LINE; i++) R(x)[i] = (real)((i - LINE / 2) * 0.0005000117);
        for (int i = 0; i < 2 * POWERS; i++) R(x)[LINE + i] = (real)ldexp(i % 2 ? -1.37 : 1.37, i / 2 - 149);
        R(x)[N - 2] = (real)NAN, R(x)[N - 1] = (real)-INFINITY, R(x)[N - 3] = (real)INFINITY;
        OP(&g, gelu, y, x, false);
        OP(&g, gelu_backward, add_to(dx), dy, x, false);
        /* a library's erfc and exp meet a rounded square, which the own form does not */
        bool own = REAL == F32 && strcmp(tables[k].name, "cuda") != 0;
        double worst = 0;
        int at = 0;
        for (int i = 0; i < N - 3; i++) {
            wide a = R(x)[i], p = part(a), s = a * slope(a);
            double e =
                fmax(tail_error(R(y)[i], a * p, wide_fabs(a * p)), tail_error(R(dx)[i], p + s, p + wide_fabs(s)));
            if (!own) e /= 1 + (double)(a * a) / 6;
            if (isnan((double)R(y)[i]) || isnan((double)R(dx)[i])) e = INFINITY;
            if (e > worst) worst = e, at = i;
        }
        cr_log_info("gelu, erf, %s: %.2f units at %.9g", g.table, worst, (double)R(x)[at]);
        cr_assert(worst <= units, "%s: %.3g units at %.9g: %.9g and %.9g", g.table, worst, (double)R(x)[at],
                  (double)R(y)[at], (double)R(dx)[at]);
        cr_assert(isinf((double)R(y)[N - 3]) && R(y)[N - 1] == 0 && isnan((double)R(y)[N - 2]), "%s: %g %g %g", g.table,
                  (double)R(y)[N - 3], (double)R(y)[N - 1], (double)R(y)[N - 2]);
        cr_assert(R(dx)[N - 3] == 1 && R(dx)[N - 1] == 0 && isnan((double)R(dx)[N - 2]), "%s: %g %g %g", g.table,
                  (double)R(dx)[N - 3], (double)R(dx)[N - 1], (double)R(dx)[N - 2]);
        rig_close(&g);
    }
}
