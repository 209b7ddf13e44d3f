/* The optimizer's steps on many tensors at once, and with moments in bf16: see rig.h. */
#include "tests/lib/rig.h"

/* Tensors of one call, at any place and of any length, each with its own numbers and one of the rules: the bits of a
 * call for each. A norm on the device clips as one on the host; where it is none nothing changes. */
enum { PARTS = 70, KEPT = 5 };
typedef struct {
    Tensor w, g, m, v, z, x; /* wide, or m and v in bf16 */
    Tensor square;
} Desk;
static void desk_fill(Desk *d) {
    for (int i = 0; i < d->w.n[0]; i++) {
        R(d->w)[i] = (real)check_normal(1, (uint64_t)i), R(d->g)[i] = (real)check_normal(2, (uint64_t)i);
        R(d->z)[i] = (real)check_normal(4, (uint64_t)i), R(d->x)[i] = (real)check_normal(5, (uint64_t)i);
        double m = check_normal(3, (uint64_t)i), v = m * m;
        if (d->m.dtype == BF16)
            ((uint16_t *)d->m.p)[i] = bf16_from((float)m), ((uint16_t *)d->v.p)[i] = bf16_from((float)v);
        else
            R(d->m)[i] = (real)m, R(d->v)[i] = (real)v;
    }
}
static Tensor run_of(Tensor t, int from, int n) {
    return TENSOR((char *)t.p + (size_t)from * dtype_size(t.dtype), t.dtype, n);
}
/* Lengths 1, 2, 3, ... but that some are long, the first, which begins at the very first number, of whole vectors;
 * without numbers between them. */
static int desk_steps(const Desk *d, AdamwStep s[PARTS]) {
    int n = 0;
    for (int at = 0, total = d->w.n[0]; at < total && n < PARTS; n++) {
        int m = n == 0 ? 2 * 8192 + 68 : n % 13 == 4 ? 9001 : n % 5 == 2 ? 64 : n;
        m = imin(m, total - at);
        s[n] = (AdamwStep){.w = run_of(d->w, at, m),
                           .g = run_of(d->g, at, m),
                           .m = run_of(d->m, at, m),
                           .v = run_of(d->v, at, m),
                           .lr = 1e-2 * (n + 1),
                           .b1 = 0.9,
                           .b2 = 0.95,
                           .eps = 1e-8,
                           .decay = n % 2 ? 0.1 : 0,
                           .gscale = 0.5,
                           .t = 1 + n % 3,
                           .rule = (UpdateRule)(n % UPDATE_RULES),
                           .x = run_of(d->x, at, m),
                           .share = 0.125,
                           .round = {(uint64_t)n, (uint64_t)(3 * n)}};
        if (s[n].rule == UPDATE_SCHEDULE_FREE) s[n].m = run_of(d->z, at, m);
        at += m;
    }
    return n;
}
static void desk_keep(const Desk *d, void *to[KEPT]) {
    const Tensor t[] = {d->w, d->m, d->v, d->z, d->x};
    for (int i = 0; i < KEPT; i++) {
        if (!to[i]) to[i] = xcalloc(tensor_bytes(t[i]), 1);
        memcpy(to[i], t[i].p, tensor_bytes(t[i]));
    }
}
static int desk_differs(const Desk *d, void *const want[KEPT]) {
    const Tensor t[] = {d->w, d->m, d->v, d->z, d->x};
    int k = 0;
    for (int i = 0; i < KEPT; i++) k += memcmp(t[i].p, want[i], tensor_bytes(t[i])) != 0;
    return k;
}
static void together(Rig *g, Dtype moments) {
    const int total = 76000;
    Desk d = {arena_tensor(&g->mem, "w", REAL, 1, &total),
              arena_tensor(&g->mem, "g", REAL, 1, &total),
              arena_tensor(&g->mem, "m", moments, 1, &total),
              arena_tensor(&g->mem, "v", moments, 1, &total),
              arena_tensor(&g->mem, "z", REAL, 1, &total),
              arena_tensor(&g->mem, "x", REAL, 1, &total),
              arena_tensor(&g->mem, "square", F64, 1, (const int[]){1})};
    AdamwStep s[PARTS];
    void *want[KEPT] = {NULL}, *begin[KEPT] = {NULL};
    desk_fill(&d);
    desk_keep(&d, begin);
    int n = desk_steps(&d, s);
    cr_assert(n > 40, "%d tensors", n);
    for (int i = 0; i < n; i++) OP(g, adamw, 1, &s[i]);
    desk_keep(&d, want);
    desk_fill(&d);
    OP(g, adamw, n, s);
    cr_assert(!desk_differs(&d, want), "%s: %d tensors at once", g->table, n);
    /* norms above and below `most`, and without one */
    static const double square[] = {9, 0.04, 9}, most[] = {1.5, 1.5, 0}, by[] = {0.5, 1, 1};
    for (int k = 0; k < 3; k++) {
        desk_fill(&d);
        for (int i = 0; i < n; i++) s[i].square = NULL, s[i].gscale = 0.5 * by[k];
        OP(g, adamw, n, s);
        desk_keep(&d, want);
        desk_fill(&d);
        *(double *)d.square.p = square[k];
        for (int i = 0; i < n; i++) s[i].square = d.square.p, s[i].most = most[k], s[i].gscale = 0.5;
        OP(g, adamw, n, s);
        cr_assert(!desk_differs(&d, want), "%s: clipped to %g by a norm of %g", g->table, most[k], sqrt(square[k]));
    }
    static const double none[] = {INFINITY, NAN, -1};
    for (int k = 0; k < 3; k++) {
        desk_fill(&d);
        *(double *)d.square.p = none[k];
        OP(g, adamw, n, s);
        cr_assert(!desk_differs(&d, begin), "%s: a step by a norm that is none, %g", g->table, none[k]);
    }
    *(double *)d.square.p = 1;
    OP(g, adamw, n, s);
    cr_assert(desk_differs(&d, begin) == KEPT, "%s: nothing is changed by a step", g->table);
    for (int i = 0; i < KEPT; i++) free(want[i]), free(begin[i]);
}
Test(ops, adamw_of_many_tensors, .timeout = 120) {
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++)
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Rig g;
            rig_open(&g, tables[k], threads, (size_t)8 << 20);
            together(&g, REAL);
            together(&g, BF16);
            rig_close(&g);
        }
}

static Tensor is_bf16(Rig *g, const char *name, int n) {
    return arena_tensor(&g->mem, name, BF16, 1, (const int[]){n});
}
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
    Tensor G = RANDOM(g, "g", n), u = EMPTY(g, "u", n), m = is_bf16(g, "m", n);
    wide *want = xcalloc((size_t)n, sizeof *want);
    Ref *ru = refs((size_t)n);
    for (int i = 0; i < n; i++) {
        uint16_t h = ((uint16_t *)m.p)[i] = (uint16_t)(0x3C00 + 37 * i % 0x400);
        want[i] = 0.9L * value(h) + 0.5L * (wide)R(G)[i];
        ref_term(&ru[i], 0.9L * value(h)), ref_term(&ru[i], 0.5L * (wide)R(G)[i]);
    }
    OP(g, momentum, u, m, G, 0.9, 0.5, false, round);
    CHECK_REF(g, "momentum_bf16", "u", u, ru);
    check_stored(g, "m", m, want, round, false);
    free(want), free(ru);
    arena_release(&g->mem, mark);
}
OP_TEST(momentum_bf16, EXACT, 4)

void case_adamw_bf16(Rig *g, int N, int d) {
    Mark mark = arena_mark(&g->mem);
    int n = N * d;
    const double lr = 3e-3, b1 = 0.9, b2 = 0.95, eps = 1e-3, decay = 0.1;
    const Rounding round = {.key = 7, .at = 5};
    Tensor w = RANDOM(g, "w", n), G = RANDOM(g, "g", n), m = is_bf16(g, "m", n), v = is_bf16(g, "v", n);
    wide *wm = xcalloc((size_t)n, sizeof *wm), *wv = xcalloc((size_t)n, sizeof *wv);
    Ref *rw = refs_of(w);
    wide c1 = 1 - powl(b1, 9), c2 = 1 - powl(b2, 9);
    for (int i = 0; i < n; i++) {
        uint16_t a = ((uint16_t *)m.p)[i] = (uint16_t)(0xBC00 + 37 * i % 0x400),
                 b = ((uint16_t *)v.p)[i] = (uint16_t)(0x3C00 + 11 * i % 0x400);
        wide gi = (wide)R(G)[i];
        wm[i] = b1 * (wide)value(a) + (1 - (wide)b1) * gi;
        wv[i] = b2 * (wide)value(b) + (1 - (wide)b2) * gi * gi;
        wide scale = lr / c1 / (wide_sqrt(wv[i] / c2) + eps); /* of the numbers before they are rounded */
        for (int j = 0; j < 2; j++) ref_term(&rw[i], -scale * (j ? (1 - (wide)b1) * gi : b1 * (wide)value(a)));
        ref_term(&rw[i], -lr * decay * (wide)R(w)[i]);
    }
    const AdamwStep step = {w, G, m, v, lr, b1, b2, eps, decay, 1, 9, round, .rule = UPDATE_ADAMW};
    OP(g, adamw, 1, &step);
    CHECK_REF(g, "adamw_bf16", "w", w, rw);
    check_stored(g, "m", m, wm, round, false);
    check_stored(g, "v", v, wv, round, true);
    free(wm), free(wv), free(rw);
    arena_release(&g->mem, mark);
}
OP_TEST(adamw_bf16, EXACT, 8)
