/* test_ops_rope.c: rotation, and RMSNorm and rotation of heads in one, against their formulas in a wider type; what is
 * done in one also against one op after the other. */
#include "tests/lib/rig.h"

/* Draw k of N rows in a batch, and a rotation of heads of D numbers. */
typedef struct {
    int *pos, *idx;
    RowList rows;
    Rope p;
} Turns;
static Turns turns_make(Rig *g, int k, int N, int d, int D) {
    Dice dice = {rng_mix((uint64_t)k, (uint64_t)(N * 1000 + d)), 0};
    int batch_rows = N + (k & 1 ? 5 : 0);
    Turns t = {xcalloc((size_t)batch_rows + 1, sizeof(int)), xcalloc((size_t)N + 1, sizeof(int)), {0}, {0}};
    /* neighbours in one document; samples that share positions; anywhere */
    for (int i = 0; i < batch_rows; i++)
        t.pos[i] = k % 3 == 0 ? 1000 + i : k % 3 == 1 ? roll(&dice, 5) : roll(&dice, 1 << 20);
    for (int i = 0; i < N; i++) t.idx[i] = i + (k & 1 ? 2 + (i > N / 2) : 0);
    t.rows = (RowList){N, t.idx};
    g->batch = (Batch){.B = 1, .N = batch_rows, .pos = t.pos};
    t.p = (Rope){.n = k & 2 ? D / 2 * 2 : D / 4 * 2,
                 .interleaved = k & 4,
                 .factor = k & 1 ? 1.25 : 1}; /* all or half of a head */
    if (t.p.n > 2 * ROPE_PAIRS) t.p.n = 2 * ROPE_PAIRS;
    t.p.at = k % 3 == 1 ? D - t.p.n : 0; /* the half that lies behind */
    for (int i = 0; i < t.p.n / 2; i++) t.p.f[i] = pow(10000, -2.0 * i / imax(1, t.p.n));
    return t;
}
static void turns_free(Turns *t) { free(t->pos), free(t->idx); }

/* Number `at` of heads of D, `sign` and positions `late` rows off: its row's cosine and sine, and the number that it
 * turns with, whose sine has that sign: y = x c + partner s. */
typedef struct {
    size_t partner;
    wide c, s;
} Turned;
/* Sine and cosine in the wide type, kept: every instruction set asks for the same angles again. */
static void wide_sincos(wide angle, wide *sine, wide *cosine) {
    enum { N = 1 << 14 };
    static struct {
        bool there;
        wide angle, s, c;
    } kept[N]; /* one test is one process */
    double x = (double)angle;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    size_t at = rng_mix(1, bits) % N;
    if (!kept[at].there || kept[at].angle != angle) {
        kept[at].there = true, kept[at].angle = angle;
        kept[at].s = wide_sin(angle), kept[at].c = wide_cos(angle);
    }
    *sine = kept[at].s, *cosine = kept[at].c;
}
static Turned turned(const Turns *t, int heads, int D, size_t at, int sign, int late) {
    int k = (int)(at % (size_t)D) - t->p.at, half = t->p.n / 2, m = (int)(at / (size_t)D) / heads;
    if (k < 0 || k >= t->p.n) return (Turned){at, 1, 0};
    bool il = t->p.interleaved, second = il ? k % 2 : k >= half;
    int pair = il ? k / 2 : k % half, away = il ? 1 : half;
    wide angle = (t->pos[t->idx[m]] + late) * t->p.f[pair]; /* an angle is a double */
    wide s, c;
    wide_sincos(angle, &s, &c);
    s *= sign * t->p.factor, c *= t->p.factor;
    return (Turned){second ? at - (size_t)away : at + (size_t)away, c, second ? s : -s};
}

static Ref *rope_ref(Tensor x, const Turns *t, int sign, int late) {
    Ref *want = refs(tensor_count(x));
    for (size_t i = 0; i < tensor_count(x); i++) {
        Turned u = turned(t, x.n[1], x.n[2], i, sign, late);
        if (u.partner == i)
            ref_term(&want[i], R(x)[i]);
        else
            ref_term(&want[i], R(x)[i] * u.c), ref_term(&want[i], R(x)[u.partner] * u.s);
    }
    return want;
}
void case_rope(Rig *g, int N, int d) {
    for (int k = 0; k < 8; k++) {
        Mark mark = arena_mark(&g->mem);
        Turns t = turns_make(g, k, N, d, d + (d & 1));
        int sign = k == 2 || k == 5 || k == 7 ? -1 : 1;
        Tensor x = RANDOM(g, "x", N, 1 + k % 3, d + (d & 1));
        const bool tell = N < 10 && t.p.n;
        Ref *want = rope_ref(x, &t, sign, 0), *late = tell && N ? rope_ref(x, &t, sign, 1) : NULL,
            *back = tell && N > 2 ? rope_ref(x, &t, -sign, 0) : NULL;
        OP(g, rope, x, &t.p, t.rows, sign);
        CHECK_REF(g, "rope", "x", x, want);
        if (late) CHECK_MISSED("rope", "a position off by one", x, late);
        if (back) CHECK_MISSED("rope", "the other direction", x, back);
        free(want), free(late), free(back);
        turns_free(&t);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(rope, EXACT, 4)

/* ---- behind RMSNorm -------------------------------------------------------------------------------------------------
 */
static const double eps = 1e-5;
/* Heads that are asked for four numbers at a time, and others, of odd widths, too. The widest are in the suite acts. */
static int width_of(int k, int d) { return k < 4 ? d : (d + 7) / 8 * 8 * (k == 7 ? 2 : 1); }
static int heads_of(int k) { return k == 7 ? 1 : 1 + k % 3; }
static wide rstd_ref(const real *x, int D) {
    wide s = 0;
    for (int k = 0; k < D; k++) s += (wide)x[k] * x[k];
    return 1 / wide_sqrt(s / D + eps);
}
/* Rows of three magnitudes: ordinary, so small that eps rules, zero. */
static Tensor heads_input(Rig *g, int N, int heads, int D) {
    Tensor x = RANDOM(g, "x", N, heads, D);
    for (int i = 0; i < N * heads * D; i++) R(x)[i] *= (real)(i / D % 3 == 1 ? 1e-4 : i / D % 7 == 5 ? 0 : 3);
    return x;
}
typedef enum { RIGHT, LATE, BACK, GAINS_BEHIND, NEIGHBOUR } Mistake;
static Ref *norm_rope_ref(Tensor x, Tensor w, const Turns *t, Mistake m) {
    int heads = x.n[1], D = x.n[2];
    size_t n = tensor_count(x);
    Ref *want = refs(n);
    wide r = 0;
    for (size_t i = 0; i < n; i++) {
        size_t of = i / (size_t)D;
        if (m == NEIGHBOUR) of = of ? of - 1 : n / (size_t)D - 1;
        Turned u = turned(t, heads, D, i, m == BACK ? -1 : 1, m == LATE);
        if (i % (size_t)D == 0) r = rstd_ref(R(x) + of * (size_t)D, D);
        wide gain = R(w)[i % (size_t)D], other = R(w)[m == GAINS_BEHIND ? i % (size_t)D : u.partner % (size_t)D];
        ref_term(&want[i], r * R(x)[i] * gain * u.c);
        if (u.partner != i) ref_term(&want[i], r * R(x)[u.partner] * other * u.s);
    }
    return want;
}
static void numbers_for(Ref *want, Tensor got) {
    for (size_t i = 0; i < tensor_count(got); i++) want[i].want = R(got)[i];
}
void case_rmsnorm_rope(Rig *g, int N, int d) {
    static const char *const mistakes[] = {"", "a position off by one", "the other direction",
                                           "gains behind the rotation", "another head's norm"};
    for (int k = 0; k < 8; k++) {
        Mark mark = arena_mark(&g->mem);
        int D = width_of(k, d), heads = heads_of(k);
        Turns t = turns_make(g, k, N, d, D);
        Tensor x = heads_input(g, N, heads, D), w = RANDOM(g, "w", D), y = EMPTY(g, "y", N, heads, D),
               z = EMPTY(g, "z", N, heads, D), s = EMPTY(g, "s", N, heads), s2 = EMPTY(g, "s2", N, heads);
        Ref *want = norm_rope_ref(x, w, &t, RIGHT), *rs = refs((size_t)(N * heads));
        for (int i = 0; i < N * heads; i++) ref_term(&rs[i], rstd_ref(R(x) + i * D, D));
        OP(g, rmsnorm_rope, y, s, x, w, eps, &t.p, t.rows);
        CHECK_REF(g, "rmsnorm_rope", "y", y, want);
        CHECK_REF(g, "rmsnorm_rope", "rstd", s, rs);
        for (Mistake m = LATE; m <= NEIGHBOUR; m++) {
            if (N <= 2 || N >= 10 || (m != NEIGHBOUR && t.p.n < 4)) continue;
            Ref *wrong = norm_rope_ref(x, w, &t, m);
            CHECK_MISSED("rmsnorm_rope", mistakes[m], y, wrong);
            free(wrong);
        }
        OP(g, rmsnorm, z, s2, x, w, eps);
        OP(g, rope, z, &t.p, t.rows, 1);
        numbers_for(want, z), numbers_for(rs, s2);
        CHECK_REF(g, "rmsnorm_rope", "y beside two ops", y, want);
        CHECK_REF(g, "rmsnorm_rope", "rstd beside two ops", s, rs);
        free(want), free(rs);
        turns_free(&t);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(rmsnorm_rope, EXACT, 12)

/* Adds to rx and rw (D), which are the numbers that are there, by rstd s. */
static void back_ref(Ref *rx, Ref *rw, Tensor dy, Tensor x, Tensor w, Tensor s, const Turns *t, Mistake m) {
    int heads = x.n[1], D = x.n[2], n = x.n[0] * heads;
    wide *g = xcalloc((size_t)D + 1, sizeof *g), *square = xcalloc((size_t)D + 1, sizeof *square);
    for (int i = 0; i < n; i++) {
        const real *xi = R(x) + i * D;
        wide r = R(s)[m != NEIGHBOUR ? i : i ? i - 1 : n - 1], all = 0, squares = 0;
        for (int k = 0; k < D; k++) {
            size_t at = (size_t)(i * D + k);
            Turned u = turned(t, heads, D, at, m == BACK ? 1 : -1, m == LATE);
            wide a = R(dy)[at] * u.c, b = u.partner == at ? 0 : R(dy)[u.partner] * u.s;
            if (m == GAINS_BEHIND) { /* dy meets the gains of its own place, and turns then */
                a *= R(w)[k], b *= R(w)[u.partner % (size_t)D];
                g[k] = a + b, square[k] = a * a + b * b;
            } else
                g[k] = (a + b) * R(w)[k], square[k] = (a * a + b * b) * R(w)[k] * R(w)[k];
            all += g[k] * xi[k], squares += square[k] * xi[k] * xi[k];
            rw[k].want += r * (a + b) * xi[k], rw[k].square += r * r * (a * a + b * b) * xi[k] * xi[k],
                rw[k].terms += 2;
        }
        for (int k = 0; k < D; k++) {
            Ref *v = &rx[i * D + k];
            v->want += r * g[k] - r * r * r * xi[k] * all / D;
            v->square += r * r * square[k] + r * r * r * r * r * r * xi[k] * xi[k] * squares / D / D;
            v->terms += D + 2;
        }
    }
    free(g), free(square);
}
void case_rmsnorm_rope_backward(Rig *g, int N, int d) {
    static const char *const mistakes[] = {"", "a position off by one", "the other direction",
                                           "gains before the rotation", "another head's norm"};
    for (int k = 0; k < 8; k++) {
        Mark mark = arena_mark(&g->mem);
        int D = width_of(k, d), heads = heads_of(k);
        Turns t = turns_make(g, k, N, d, D);
        Tensor x = heads_input(g, N, heads, D), w = RANDOM(g, "w", D), dy = RANDOM(g, "dy", N, heads, D),
               s = EMPTY(g, "s", N, heads), dx = RANDOM(g, "dx", N, heads, D), dw = RANDOM(g, "dw", D),
               two = tensor_copy(g, dx), dw2 = tensor_copy(g, dw), before = tensor_copy(g, dw);
        for (int i = 0; i < N * heads; i++) R(s)[i] = (real)rstd_ref(R(x) + i * D, D);
        Ref *rx = refs_of(dx), *rw = refs_of(dw), *wx[NEIGHBOUR + 1] = {0}, *ww[NEIGHBOUR + 1] = {0};
        const bool tell = N > 2 && N < 10 && t.p.n >= 4 && D > 3;
        for (Mistake m = LATE; tell && m <= NEIGHBOUR; m++)
            wx[m] = refs_of(dx), ww[m] = refs_of(dw), back_ref(wx[m], ww[m], dy, x, w, s, &t, m);
        back_ref(rx, rw, dy, x, w, s, &t, RIGHT);
        Tensor kept = tensor_copy(g, dy);
        OP(g, rmsnorm_rope_backward, add_to(dx), dw, dy, x, w, s, &t.p, t.rows);
        cr_assert(!memcmp(dy.p, kept.p, tensor_bytes(dy)), "%s: dy was changed", g->table);
        CHECK_REF(g, "rmsnorm_rope_backward", "dx", dx, rx);
        CHECK_REF(g, "rmsnorm_rope_backward", "dw", dw, rw);
        for (Mistake m = LATE; m <= NEIGHBOUR; m++) {
            if (tell) {
                CHECK_MISSED("rmsnorm_rope_backward", mistakes[m], dx, wx[m]);
                if (m != GAINS_BEHIND) CHECK_MISSED("rmsnorm_rope_backward", mistakes[m], dw, ww[m]);
            }
            free(wx[m]), free(ww[m]);
        }
        OP(g, rope, dy, &t.p, t.rows, -1);
        OP(g, rmsnorm_backward, add_to(two), dw2, dy, x, w, s);
        numbers_for(rx, two), numbers_for(rw, dw2);
        CHECK_REF(g, "rmsnorm_rope_backward", "dx beside two ops", dx, rx);
        CHECK_REF(g, "rmsnorm_rope_backward", "dw beside two ops", dw, rw);
        /* What nothing was added to yet is written over, whatever its memory holds. */
        Tensor dw3 = tensor_copy(g, before);
        memset(dx.p, 0xFF, tensor_bytes(dx));
        memset(two.p, 0, tensor_bytes(two));
        OP(g, rmsnorm_rope_backward, overwrite(dx), before, kept, x, w, s, &t.p, t.rows);
        OP(g, rmsnorm_rope_backward, add_to(two), dw3, kept, x, w, s, &t.p, t.rows);
        CHECK_BYTES("overwrite dx", dx.p, two.p, tensor_bytes(dx));
        CHECK_BYTES("dw", before.p, dw.p, tensor_bytes(dw));
        free(rx), free(rw);
        turns_free(&t);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(rmsnorm_rope_backward, EXACT, 6)
