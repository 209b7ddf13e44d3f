/* Gradients that nothing was added to yet: what an op writes over memory full of NaN is what it adds to zeros, to the
 * bit, with rounded operands as well. (Every op within its bound: test_ops_ref.c.) */
#include "tests/lib/rig.h"

static Tensor filled(Tensor t, real with) {
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = with;
    return t;
}
static void same(const Rig *g, const char *what, bool bf16, Tensor got, Tensor want) {
    device_sync(g->dev);
    for (size_t i = 0; i < tensor_count(got); i++)
        cr_assert(R(got)[i] == R(want)[i] && R(want)[i] != 0, "%s, %s of %s: number %zu is %g instead of %g", g->table,
                  what, bf16 ? "rounded operands" : "f32", i, (double)R(got)[i], (double)R(want)[i]);
}
#define INTO(t) ((Into){t, over})
static void all_ops(Rig *g, bool bf16) {
    enum { N = 70, I = 96, O = 64, P = 130, KINDS = 13 };
    Tensor x = RANDOM(g, "x", N, I), w[2] = {RANDOM(g, "w", O, I), RANDOM(g, "v", P, I)}, gain = RANDOM(g, "gain", I),
           dy[2] = {RANDOM(g, "dy", N, O), RANDOM(g, "dz", N, P)}, g1 = RANDOM(g, "g", N, I),
           up = RANDOM(g, "up", N, I), y = EMPTY(g, "y", N, I), rstd = EMPTY(g, "rstd", N),
           dgain = EMPTY(g, "dgain", I), s = RANDOM(g, "s", N), d[2][KINDS];
    const Tensor each[] = {w[0], w[0], RANDOM(g, "u", O, I)};
    const Groups three = {3, (const int[]){0, 3, 3, N}};
    int place[2 * N];
    for (int i = 0; i < 2 * N; i++) place[i] = i * 3 % N;
    filled(dgain, 0);
    OP(g, rmsnorm, y, rstd, x, gain, 1e-5);
    for (int over = 0; over < 2; over++) {
        Tensor *t = d[over];
        for (int k = 0; k < KINDS; k++) {
            t[k] = filled(k == 10 ? EMPTY(g, "gradient", N) : EMPTY(g, "gradient", N, I), over ? (real)NAN : 0);
        }
        OP(g, linear_backward, INTO(t[0]), ABSENT, ABSENT, dy[0], x, w[0]);
        OP(g, linear_many_backward, INTO(t[1]), 2, (Projection[]){{.y = dy[0]}, {.y = dy[1]}}, x,
           (Projection[]){{.w = w[0]}, {.w = w[1]}});
        OP(g, swiglu_backward, ABSENT, INTO(t[2]), INTO(t[3]), g1, x, up);
        OP(g, gelu_backward, INTO(t[4]), g1, x, true);
        OP(g, geglu_backward, ABSENT, INTO(t[11]), INTO(t[12]), g1, x, up, true);
        OP(g, rmsnorm_backward, INTO(t[5]), dgain, g1, x, gain, rstd);
        OP_WITHIN(g, linear_groups_backward, INTO(t[6]), NULL, dy[0], x, three, each);
        OP(g, collect, INTO(t[7]), x, place, 2);
        OP(g, swiglu_rows_backward, INTO(t[8]), INTO(t[9]), INTO(t[10]), g1, x, up, s);
    }
    static const char *const name[] = {"linear",     "linear_many",   "swiglu's gate", "swiglu's up",       "gelu",
                                       "rmsnorm",    "linear_groups", "collect",       "swiglu_rows' gate", "its up",
                                       "its factor", "geglu's gate",  "geglu's up"};
    for (int k = 0; k < KINDS; k++) same(g, name[k], bf16, d[1][k], d[0][k]);
}
Test(ops, gradients_are_overwritten) {
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++)
        for (int bf16 = 0; bf16 < (REAL == F32 ? 2 : 1); bf16++) {
            Rig g;
            Err e = {0};
            rig_open(&g, tables[k], 2, (size_t)4 << 20);
            cr_assert(!bf16 || device_bf16(g.dev, true, &e), "%s", e.msg);
            all_ops(&g, bf16);
            if (bf16) cr_assert(device_bf16(g.dev, false, &e), "%s", e.msg);
            rig_close(&g);
        }
}
