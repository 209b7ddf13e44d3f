/* Losses against another model's logits and rows: see rig.h. tests/train/test_teacher.c has golden values and whole
 * models.
 */
#include "tests/lib/rig.h"

/* ---- linear_distill ------------------------------------------------------------------------------------------------
 */
typedef struct {
    Ref *nll, *kl, *rkl, *dx, *dw;
} Losses;
typedef struct {
    wide top, lse, norm, *l,
        *slope; /* slope: of the logits' map; the others of logits / T; norm: largest sum of a logit's squared terms */
} Side;
static Side side_of(const real *x, Tensor w, wide T, LogitMap map) {
    int V = w.n[0], d = w.n[1];
    Side s = {-INFINITY, 0, 0, xcalloc((size_t)V, sizeof(wide)), xcalloc((size_t)V, sizeof(wide))};
    for (int v = 0; v < V; v++) {
        wide q = 0;
        for (int k = 0; k < d; k++) {
            wide t = (wide)x[k] * R(w)[v * d + k];
            s.l[v] += t, q += t * t;
        }
        s.l[v] = rig_cap(map.scale * s.l[v], map.cap, &s.slope[v]) / T;
        s.slope[v] *= map.scale;
        q *= s.slope[v] * s.slope[v] / (T * T);
        if (!logits_plain(map)) q += 16 * (s.l[v] * s.l[v] + map.scale * map.scale / (T * T));
        s.top = s.l[v] > s.top ? s.l[v] : s.top;
        s.norm = q > s.norm ? q : s.norm;
    }
    wide sum = 0;
    for (int v = 0; v < V; v++) sum += wide_exp(s.l[v] - s.top);
    s.lse = s.top + wide_log(sum);
    return s;
}
static wide log_of(const Side *s, int v) { return s->l[v] - s->lse; }

/* fault 1: no T before the gradient of kl; 2: the reverse gradient without its mean; 3: kl is the reverse form; 4: the
 * slope of the map of logits is left out. */
static Losses losses_ref(Tensor x, Tensor w, Tensor y, Tensor u, const int *tgt, const real *g, Distill c, Tensor dx,
                         Tensor dw, int fault) {
    int N = x.n[0], d = x.n[1], V = w.n[0];
    wide T = c.temperature;
    Losses r = {refs((size_t)N), refs((size_t)N), refs((size_t)N), refs_of(dx), refs_of(dw)};
    for (int i = 0; i < N; i++) {
        if (tgt[i] < 0) continue;
        Side one = side_of(R(x) + i * d, w, 1, c.map), p = side_of(R(x) + i * d, w, T, c.map),
             q = side_of(R(y) + i * y.n[1], u, T, c.teacher_map);
        wide kl = 0, rkl = 0, size = p.norm + q.norm + 1 + p.top * p.top + q.top * q.top;
        for (int v = 0; v < V; v++) {
            wide a = log_of(&p, v), b = log_of(&q, v);
            kl += wide_exp(b) * (b - a), rkl += wide_exp(a) * (a - b);
        }
        r.nll[i] = (Ref){-log_of(&one, tgt[i]), one.norm + 1 + one.top * one.top, d};
        r.kl[i] = (Ref){T * T * (fault == 3 ? rkl : kl), T * T * T * T * size, d};
        r.rkl[i] = (Ref){T * T * rkl, T * T * T * T * size, d};
        for (int v = 0; v < V; v++) {
            wide a = log_of(&p, v), b = log_of(&q, v), P = g[i] * T * wide_exp(a), Q = g[i] * T * wide_exp(b);
            wide F = fault == 1 ? c.kl / T : c.kl;
            wide part[] = {g[i] * c.lm * wide_exp(log_of(&one, v)),
                           v == tgt[i] ? -g[i] * c.lm : 0,
                           F * P,
                           -F * Q,
                           c.rkl * P * (a - b),
                           fault == 2 ? 0 : -c.rkl * P * rkl};
            wide err = part[0] * part[0] * one.norm + (part[2] * part[2] + part[3] * part[3]) * size +
                       c.rkl * c.rkl * P * P * (1 + (a - b) * (a - b)) * size;
            const wide slope = fault == 4 ? 1 : one.slope[v];
            for (int j = 0; j < 6; j++) part[j] *= slope;
            err *= slope * slope;
            if (!logits_plain(c.map)) err += 16 * c.map.scale * c.map.scale * g[i] * g[i] * (1 + (a - b) * (a - b));
            for (int k = 0; k < d; k++) {
                Ref *m = &r.dx[i * d + k], *n = &r.dw[v * d + k];
                wide wk = R(w)[v * d + k], xk = R(x)[i * d + k];
                for (int j = 0; j < 6; j++) ref_term(m, part[j] * wk), ref_term(n, part[j] * xk);
                m->square += err * wk * wk, n->square += err * xk * xk;
            }
        }
        free(one.l), free(p.l), free(q.l), free(one.slope), free(p.slope), free(q.slope);
    }
    return r;
}
static void losses_free(Losses l) { free(l.nll), free(l.kl), free(l.rkl), free(l.dx), free(l.dw); }

static void distill(Rig *g, int N, int d, int V, real scale, Distill c) {
    Mark mark = arena_mark(&g->mem);
    Dice dice = {rng_mix((uint64_t)V, (uint64_t)N), 0};
    int e = d > 2 ? d - 2 : d + 1; /* the teacher has a width of its own */
    Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w", V, d), y = RANDOM(g, "y", N, e), u = RANDOM(g, "u", V, e);
    Tensor nll = EMPTY(g, "nll", N), kl = EMPTY(g, "kl", N), rkl = EMPTY(g, "rkl", N), G = RANDOM(g, "g", N);
    Tensor dx = RANDOM(g, "dx", N, d), dw = RANDOM(g, "dw", V, d);
    int *tgt = xcalloc((size_t)N + 1, sizeof *tgt);
    for (size_t i = 0; i < tensor_count(w); i++) R(w)[i] *= scale / (real)sqrt(d);
    for (size_t i = 0; i < tensor_count(u); i++) R(u)[i] *= scale / (real)sqrt(e);
    for (int i = 0; i < N; i++) tgt[i] = i % 9 == 5 ? -1 : roll(&dice, V);
    Losses want = losses_ref(x, w, y, u, tgt, R(G), c, dx, dw, 0), wrong[5] = {{0}};
    bool small = (long)N * V * d < 30000;
    for (int f = 1; small && f < 5; f++) wrong[f] = losses_ref(x, w, y, u, tgt, R(G), c, dx, dw, f);
    OP(g, linear_distill, nll, kl, rkl, ABSENT, ABSENT, x, w, y, u, tgt, NULL, c);
    CHECK_REF(g, "linear_distill", "kl alone", kl, want.kl);
    memset(nll.p, 0xFF, tensor_bytes(nll)), memset(kl.p, 0xFF, tensor_bytes(kl)),
        memset(rkl.p, 0xFF, tensor_bytes(rkl));
    OP(g, linear_distill, nll, kl, rkl, dx, dw, x, w, y, u, tgt, R(G), c);
    CHECK_REF(g, "linear_distill", "nll", nll, want.nll);
    CHECK_REF(g, "linear_distill", "kl", kl, want.kl);
    CHECK_REF(g, "linear_distill", "rkl", rkl, want.rkl);
    CHECK_REF(g, "linear_distill", "dx", dx, want.dx);
    CHECK_REF(g, "linear_distill", "dw", dw, want.dw);
    for (int i = 0; i < N; i++)
        cr_assert(tgt[i] >= 0 || (R(nll)[i] == 0 && R(kl)[i] == 0 && R(rkl)[i] == 0), "row %d has no target", i);
    if (N > 1 && V > 2 && small && scale < 4) {
        if (c.kl > 0 && c.temperature != 1) CHECK_MISSED("linear_distill", "a gradient without T", dw, wrong[1].dw);
        if (c.rkl > 0) CHECK_MISSED("linear_distill", "a reverse gradient without its mean", dx, wrong[2].dx);
        CHECK_MISSED("linear_distill", "the other direction", kl, wrong[3].kl);
        if (c.map.cap > 0) CHECK_MISSED("linear_distill", "a gradient without the map's slope", dw, wrong[4].dw);
    }
    losses_free(want);
    for (int f = 1; f < 5; f++) losses_free(wrong[f]);
    free(tgt);
    arena_release(&g->mem, mark);
}
void case_linear_distill(Rig *g, int N, int d) {
    static const Distill c[] = {{1, 1, 0, 1, {1, 0}, {1, 0}},
                                {0.5, 1, 0, 2, {1, 0}, {0.5, 3}},
                                {0, 0, 1.5, 1, {1, 0}, {1, 0}},
                                {0.25, 0.5, 2, 0.5, {1, 0}, {1, 0}},
                                {0.5, 1, 0.5, 1.5, {0.7, 4}, {1, 0}}};
    int which = (N + d) % 5;
    distill(g, N, d, d > 100 ? 257 : N % 2 ? 3 : 17, d == 16 ? 40 : 2, c[which]);
    if (d == 1) distill(g, N, d, 1, 2, c[which]);
}
OP_TEST(linear_distill, 0, 40)
Test(ops, linear_distill_in_chunks) {
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        int N = (int[]){1025, 513, 511}[k % 3];
        Rig g;
        rig_open(&g, tables[k], 2, (size_t)4 << 20);
        distill(&g, N, 3, 2053, 2, (Distill){1, 1, 0.5, 2, {1, 3}, LOGITS_PLAIN});
        rig_close(&g);
    }
}
/* Against torch's kl_div and autograd: tests/golden/make_distill.py says what a line holds. */
Test(ops, linear_distill_is_what_torch_computes) {
    enum { N = 5, D = 4, E = 3, V = 7 };
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        char *golden = check_read("tests/golden/distill.txt", NULL), *next = golden;
        for (int line = 0; line < 6; line++) {
            Rig g;
            rig_open(&g, tables[k], 1, (size_t)1 << 20);
            Tensor x = EMPTY(&g, "x", N, D), w = EMPTY(&g, "w", V, D), y = EMPTY(&g, "y", N, E),
                   u = EMPTY(&g, "u", V, E), G = EMPTY(&g, "g", N);
            Tensor out[] = {EMPTY(&g, "nll", N), EMPTY(&g, "kl", N), EMPTY(&g, "rkl", N), EMPTY(&g, "dx", N, D),
                            EMPTY(&g, "dw", V, D)};
            const struct {
                Tensor t;
                double a, b;
            } wave[] = {{x, 1.3, 0.2}, {w, 0.9, 1.0}, {y, 1.7, 0.5}, {u, 1.1, 0.3}};
            for (int j = 0; j < 4; j++)
                for (size_t i = 0; i < tensor_count(wave[j].t); i++)
                    R(wave[j].t)[i] = (real)(2 * sin(wave[j].a * (double)i + wave[j].b));
            for (int i = 0; i < N; i++) R(G)[i] = (real)(0.2 + 0.1 * i);
            memset(out[3].p, 0, tensor_bytes(out[3])), memset(out[4].p, 0, tensor_bytes(out[4]));
            double c[4];
            for (int i = 0; i < 4; i++) c[i] = strtod(next, &next);
            OP(&g, linear_distill, out[0], out[1], out[2], out[3], out[4], x, w, y, u, ((int[]){3, 0, -1, 6, 1}), R(G),
               ((Distill){c[0], c[1], c[2], c[3], LOGITS_PLAIN, LOGITS_PLAIN}));
            const double tol = REAL == F64 ? 1e-13 : 2e-5;
            for (int j = 0; j < 5; j++)
                for (size_t i = 0; i < tensor_count(out[j]); i++) {
                    double want = strtod(next, &next), got = (double)R(out[j])[i];
                    cr_assert(fabs(got - want) <= tol * (1 + fabs(want)),
                              "%s line %d, result %d, number %zu: %.17g, torch %.17g", g.table, line, j, i, got, want);
                }
            rig_close(&g);
        }
        cr_assert(!strcmp(next, "\n"), "golden file: more than is expected");
        free(golden);
    }
}
/* A model beside itself: both divergences and their gradients are 0 to the bit. */
Test(ops, linear_distill_of_itself) {
    enum { N = 40, V = 301, D = 24 };
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 2, (size_t)2 << 20);
        Tensor x = RANDOM(&g, "x", N, D), w = RANDOM(&g, "w", V, D), G = RANDOM(&g, "g", N);
        Tensor nll = EMPTY(&g, "nll", N), kl = EMPTY(&g, "kl", N), rkl = EMPTY(&g, "rkl", N);
        Tensor dx = EMPTY(&g, "dx", N, D), dw = EMPTY(&g, "dw", V, D);
        int tgt[N] = {0};
        memset(dx.p, 0, tensor_bytes(dx)), memset(dw.p, 0, tensor_bytes(dw));
        OP(&g, linear_distill, nll, kl, rkl, dx, dw, x, w, x, w, tgt, R(G),
           ((Distill){0, 1, 1, 1.7, LOGITS_PLAIN, LOGITS_PLAIN}));
        for (int i = 0; i < N; i++)
            cr_assert(R(kl)[i] == 0 && R(rkl)[i] == 0 && R(nll)[i] > 0, "%s row %d: %g, %g", g.table, i,
                      (double)R(kl)[i], (double)R(rkl)[i]);
        for (size_t i = 0; i < tensor_count(dw); i++) cr_assert(R(dw)[i] == 0, "%s dw %zu", g.table, i);
        for (size_t i = 0; i < tensor_count(dx); i++) cr_assert(R(dx)[i] == 0, "%s dx %zu", g.table, i);
        rig_close(&g);
    }
}

/* ---- align ---------------------------------------------------------------------------------------------------------
 */
/* fault 1: the size is of the row alone; 2: it counts rows without a target. */
static void align_ref(const Batch *b, Tensor y, Tensor a, const int *tgt, const real *g, double c, Ref *err, Ref *dy,
                      int fault) {
    int d = y.n[1];
    for (int s = 0; s < b->B; s++) {
        wide m = 0;
        int n = 0;
        for (int i = b->off[s]; i < b->off[s + 1]; i++)
            for (int k = 0; k < d && (tgt[i] >= 0 || fault == 2); k++)
                m += (wide)R(a)[i * d + k] * R(a)[i * d + k], n += !k;
        for (int i = b->off[s]; i < b->off[s + 1]; i++) {
            wide own = 0, size = m > 0 ? m / n : 1, sum = 0;
            if (tgt[i] < 0) continue;
            for (int k = 0; k < d; k++) own += (wide)R(a)[i * d + k] * R(a)[i * d + k];
            if (fault == 1) size = own;
            for (int k = 0; k < d; k++) {
                wide t = (wide)R(y)[i * d + k] - R(a)[i * d + k], w = 2 * c * g[i] / size;
                sum += t * t / size;
                ref_term(&dy[i * d + k], w * R(y)[i * d + k]), ref_term(&dy[i * d + k], -w * R(a)[i * d + k]);
            }
            ref_term(&err[i], sum);
        }
    }
}
void case_align(Rig *g, int N, int d) {
    Tensor y = RANDOM(g, "y", N, d), a = RANDOM(g, "a", N, d), err = RANDOM(g, "err", N), dy = RANDOM(g, "dy", N, d),
           G = RANDOM(g, "g", N);
    Batch whole = g->batch, two = whole;
    int off[] = {0, N / 3, N}, *tgt = xcalloc((size_t)N + 1, sizeof *tgt);
    two.B = 2, two.off = off;
    g->batch = two;
    for (int i = 0; i < N; i++) tgt[i] = i % 4 == 2 ? -1 : 0;
    Ref *want[3][2];
    for (int f = 0; f < 3; f++) {
        want[f][0] = refs_of(err), want[f][1] = refs_of(dy);
        align_ref(&g->batch, y, a, tgt, R(G), 0.7, want[f][0], want[f][1], f);
    }
    OP(g, align, err, dy, y, a, tgt, R(G), 0.7);
    CHECK_REF(g, "align", "err", err, want[0][0]);
    CHECK_REF(g, "align", "dy", dy, want[0][1]);
    if (N > 8 && d < 100 && N < 100) {
        CHECK_MISSED("align", "a size of the row alone", err, want[1][0]);
        CHECK_MISSED("align", "a size of rows without target", dy, want[2][1]);
    }
    for (int f = 0; f < 3; f++) free(want[f][0]), free(want[f][1]);
    memset(R(a), 0, tensor_bytes(a)); /* a teacher that says nothing: its size counts as 1 */
    Ref *zero[2] = {refs_of(err), refs_of(dy)};
    align_ref(&g->batch, y, a, tgt, R(G), 0.7, zero[0], zero[1], 0);
    OP(g, align, err, dy, y, a, tgt, R(G), 0.7);
    CHECK_REF(g, "align", "err against nothing", err, zero[0]);
    OP(g, align, err, ABSENT, y, y, tgt, R(G), 0.7);
    free(zero[0]), free(zero[1]);
    g->batch = whole;
    free(tgt);
}
OP_TEST(align, EXACT, 8)
