/* The optimizer's steps on one tensor, with moments as wide as the arithmetic and as bf16: see rig.h. */
#include "rig.h"

void case_adamw(Rig *g, int N, int d) {
    for (int k = 0; k < 4; k++) {
        Mark mark = arena_mark(&g->mem);
        const double lr = 3e-3, b1 = 0.9, b2 = 0.95, eps = k & 1 ? 1e-8 : 1e-3, decay = k & 2 ? 0.1 : 0,
                     gscale = k == 3 ? 0.37 : 1;
        int64_t t = (int64_t[]){1, 2, 1000, 100000}[k];
        Tensor w = RANDOM(g, "w", N, d), G = RANDOM(g, "g", N, d), m = RANDOM(g, "m", N, d), v = RANDOM(g, "v", N, d);
        for (int i = 0; i < N * d; i++) R(v)[i] *= R(v)[i];
        Ref *rw = refs_of(w), *rm = refs((size_t)(N * d)), *rv = refs((size_t)(N * d));
        wide c1 = 1 - powl(b1, t), c2 = 1 - powl(b2, t);
        for (int i = 0; i < N * d; i++) {
            wide gi = (wide)R(G)[i] * gscale;
            ref_add(&rm[i], b1 * (wide)R(m)[i]), ref_add(&rm[i], (1 - (wide)b1) * gi);
            ref_add(&rv[i], b2 * (wide)R(v)[i]), ref_add(&rv[i], (1 - (wide)b2) * gi * gi);
            wide scale = lr / c1 / (sqrtl(rv[i].want / c2) + eps);
            for (int j = 0; j < 2; j++) ref_add(&rw[i], -scale * (j ? (1 - (wide)b1) * gi : b1 * (wide)R(m)[i]));
            ref_add(&rw[i], -lr * decay * (wide)R(w)[i]);
        }
        OP(g, adamw, w, G, m, v, lr, b1, b2, eps, decay, gscale, t, (Rounding){0});
        CHECK_REF(g, "adamw", "w", w, rw);
        CHECK_REF(g, "adamw", "m", m, rm);
        CHECK_REF(g, "adamw", "v", v, rv);
        free(rw), free(rm), free(rv);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(adamw, EXACT)

void case_momentum(Rig *g, int N, int d) {
    for (int k = 0; k < 2; k++) {
        Mark mark = arena_mark(&g->mem);
        const double mu = 0.95, gscale = k ? 0.37 : 1;
        Tensor G = RANDOM(g, "g", N, d), m = RANDOM(g, "m", N, d), u = EMPTY(g, "u", N, d);
        Ref *rm = refs((size_t)(N * d)), *ru = refs((size_t)(N * d)), *wrong = refs((size_t)(N * d));
        for (int i = 0; i < N * d; i++) {
            wide gi = gscale * (wide)R(G)[i];
            ref_add(&rm[i], mu * (wide)R(m)[i]), ref_add(&rm[i], gi);
            wide ahead = k ? mu : 1; /* each term for itself: what cancels within m has its error too */
            ref_add(&ru[i], ahead * mu * (wide)R(m)[i]), ref_add(&ru[i], ahead * gi);
            if (k) ref_add(&ru[i], gi);
            wrong[i] = ru[i], wrong[i].want += (k ? -1 : 0.1) * gi; /* no look ahead; too much of it */
        }
        OP(g, momentum, u, m, G, mu, gscale, k, (Rounding){0});
        CHECK_REF(g, "momentum", "m", m, rm);
        CHECK_REF(g, "momentum", "u", u, ru);
        if (N * d > 1) CHECK_MISSED("momentum", "another look ahead", u, wrong);
        free(rm), free(ru), free(wrong);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(momentum, EXACT)

static Tensor narrow(Rig *g, const char *name, int n) { return arena_tensor(&g->mem, name, BF16, 1, (const int[]){n}); }
static double value(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Stored numbers against x rounded by the published draw. The last bit of x may be another one where a kernel fuses
 * what the reference does in steps: then a draw in 65,536 decides otherwise. `next`: the draw's bits 16 to 31. */
static void check_stored(Rig *g, const char *what, Tensor got, const wide *x, Rounding round, bool next) {
    int n = got.n[0], other = 0;
    rig_result(g, got);
    for (int i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t u;
        memcpy(&u, &f, 4);
        uint64_t draw = rng_mix(round.key, round.at + (uint64_t)i) >> (next ? 16 : 0) & 0xFFFF;
        uint16_t want = (uint16_t)((u >> 16) + ((u & 0xFFFF) + draw > 0xFFFF)), stored = ((uint16_t *)got.p)[i];
        other += stored != want;
        cr_assert(fabs(value(stored) - (double)x[i]) <= 0x1.01p-7 * fabs((double)x[i]) + 1e-6, "%s %s %d: %g became %g",
                  g->table, what, i, (double)x[i], value(stored));
    }
    cr_assert(other <= 2 + n / 1000, "%s %s: %d of %d draws differ", g->table, what, other, n);
}

void case_momentum_bf16(Rig *g, int N, int d) {
    Mark mark = arena_mark(&g->mem);
    int n = N * d;
    const Rounding round = {.key = 99, .at = 1000};
    Tensor G = RANDOM(g, "g", n), u = EMPTY(g, "u", n), m = narrow(g, "m", n);
    wide *want = xcalloc((size_t)n, sizeof *want);
    Ref *ru = refs((size_t)n);
    for (int i = 0; i < n; i++) {
        uint16_t h = ((uint16_t *)m.p)[i] = (uint16_t)(0x3C00 + 37 * i % 0x400);
        want[i] = 0.9L * value(h) + 0.5L * (wide)R(G)[i];
        ref_add(&ru[i], 0.9L * value(h)), ref_add(&ru[i], 0.5L * (wide)R(G)[i]);
    }
    OP(g, momentum, u, m, G, 0.9, 0.5, false, round);
    CHECK_REF(g, "momentum_bf16", "u", u, ru);
    check_stored(g, "m", m, want, round, false);
    free(want), free(ru);
    arena_release(&g->mem, mark);
}
OP_TEST(momentum_bf16, EXACT)

void case_adamw_bf16(Rig *g, int N, int d) {
    Mark mark = arena_mark(&g->mem);
    int n = N * d;
    const double lr = 3e-3, b1 = 0.9, b2 = 0.95, eps = 1e-3, decay = 0.1;
    const Rounding round = {.key = 7, .at = 5};
    Tensor w = RANDOM(g, "w", n), G = RANDOM(g, "g", n), m = narrow(g, "m", n), v = narrow(g, "v", n);
    wide *wm = xcalloc((size_t)n, sizeof *wm), *wv = xcalloc((size_t)n, sizeof *wv);
    Ref *rw = refs_of(w);
    wide c1 = 1 - powl(b1, 9), c2 = 1 - powl(b2, 9);
    for (int i = 0; i < n; i++) {
        uint16_t a = ((uint16_t *)m.p)[i] = (uint16_t)(0xBC00 + 37 * i % 0x400),
                 b = ((uint16_t *)v.p)[i] = (uint16_t)(0x3C00 + 11 * i % 0x400);
        wide gi = (wide)R(G)[i];
        wm[i] = b1 * (wide)value(a) + (1 - (wide)b1) * gi;
        wv[i] = b2 * (wide)value(b) + (1 - (wide)b2) * gi * gi;
        wide scale = lr / c1 / (sqrtl(wv[i] / c2) + eps); /* of the numbers before they are rounded */
        for (int j = 0; j < 2; j++) ref_add(&rw[i], -scale * (j ? (1 - (wide)b1) * gi : b1 * (wide)value(a)));
        ref_add(&rw[i], -lr * decay * (wide)R(w)[i]);
    }
    OP(g, adamw, w, G, m, v, lr, b1, b2, eps, decay, 1, 9, round);
    CHECK_REF(g, "adamw_bf16", "w", w, rw);
    check_stored(g, "m", m, wm, round, false);
    check_stored(g, "v", v, wv, round, true);
    free(wm), free(wv), free(rw);
    arena_release(&g->mem, mark);
}
OP_TEST(adamw_bf16, EXACT)
