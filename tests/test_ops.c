/* Every entry of the op table against a wide reference written here, for every table that the processor can run, at odd
 * sizes: see rig.h for what a call and a comparison are. Attention has its own file, test_ops_attend.c. */
#include "rig.h"
#include <criterion/redirect.h>
#include <signal.h>

typedef void Case(Rig *, int N, int d);
enum { EXACT = 1 }; /* results do not depend on the number of threads, to the bit */

/* The case at every size (rows x width) with the first table and at a third of them with the others. The last two sizes
 * are large enough that the work is shared between threads. */
static void sweep(const char *op, Case *f, unsigned flags) {
    static const int rows[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 150}, widths[] = {1, 3, 8, 15, 16, 17, 64, 100};
    Table tables[TABLES_MAX];
    for (int k = 0, ntables = rig_tables(tables); k < ntables; k++)
        for (int size = 0; size < 82; size++) {
            bool large = size >= 80;
            int N = large ? 150 : rows[size / 8], d = large ? 300 + 41 * (size - 80) : widths[size % 8];
            uint64_t alone = 0;
            if (k > 0 && !large && (size / 8 + size + k) % 3) continue;
            for (int threads = 1; threads <= (large ? 3 : 1); threads++) {
                Rig g;
                rig_open(&g, tables[k], threads, (size_t)(large ? 8 : 2) << 20);
                int *of = xcalloc((size_t)N + 1, sizeof *of), *at = xcalloc((size_t)N + 1, sizeof *at);
                for (int m = 0; m < N; m++) at[m] = m;
                g.batch = (Batch){.B = 1, .N = N, .off = (int[]){0, N}, .of = of, .pos = at, .id = (uint64_t[]){5}};
                g.run.in = g.run.out = (Pick){N, at};
                f(&g, N, d);
                if (threads == 1) alone = g.hash;
                cr_assert(!(flags & EXACT) || g.hash == alone,
                          "%s %s: %d threads give another result for %d rows of %d", g.table, op, threads, N, d);
                rig_close(&g);
                free(of), free(at);
            }
        }
}
#define OP_TEST(op, flags) \
    Test(ops, op) { sweep(#op, case_##op, flags); }

/* ---- linear -------------------------------------------------------------------------------------------------------
 */
static Ref *linear_ref(Tensor x, Tensor w, Tensor bias, int drop) {
    int N = x.n[0], O = w.n[0], I = w.n[1];
    Ref *y = refs((size_t)N * (size_t)O);
    for (int m = 0; m < N; m++)
        for (int o = 0; o < O; o++) {
            Ref *r = &y[m * O + o];
            for (int i = 0; i < I - drop; i++) ref_add(r, (wide)R(x)[m * I + i] * R(w)[o * I + i]);
            if (present(bias)) ref_add(r, R(bias)[o]);
        }
    return y;
}
static void case_linear(Rig *g, int N, int d) {
    const int widths[] = {1, 15, 33};
    for (int k = 0; k < 6; k++) {
        Mark mark = arena_mark(&g->mem);
        int O = widths[k % 3];
        Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w", O, d), y = EMPTY(g, "y", N, O);
        Tensor bias = k < 3 ? RANDOM(g, "bias", O) : ABSENT;
        OP(g, linear, y, x, w, bias);
        CHECK_REF(g, "linear", "y", y, linear_ref(x, w, bias, 0));
        if (N && d > 1) CHECK_MISSED("linear", "a dropped term", y, linear_ref(x, w, bias, 1));
        if (N && k < 3) CHECK_MISSED("linear", "a dropped bias", y, linear_ref(x, w, ABSENT, 0));
        arena_release(&g->mem, mark);
    }
    /* Rows of any rank are seen as (count/d, d): heads of a token. */
    Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w3", 6, d), y = EMPTY(g, "y", N, 3, 2);
    OP(g, linear, y, x, w, ABSENT);
    CHECK_REF(g, "linear", "heads", y, linear_ref(x, w, ABSENT, 0));
}
OP_TEST(linear, 0)

static void case_linear_backward(Rig *g, int N, int d) {
    const int widths[] = {1, 15, 33};
    for (int k = 0; k < 8; k++) { /* every set of wanted gradients */
        Mark mark = arena_mark(&g->mem);
        int O = widths[k % 3];
        Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w", O, d), dy = RANDOM(g, "dy", N, O);
        Tensor dx = RANDOM(g, "dx", N, d), dw = RANDOM(g, "dw", O, d), db = RANDOM(g, "db", O);
        Ref *rx = refs_of(dx), *rw = refs_of(dw), *rb = refs_of(db);
        for (int m = 0; m < N; m++)
            for (int o = 0; o < O; o++) {
                wide t = R(dy)[m * O + o];
                for (int i = 0; i < d; i++) {
                    if (k & 1) ref_add(&rx[m * d + i], t * R(w)[o * d + i]);
                    if (k & 2) ref_add(&rw[o * d + i], t * R(x)[m * d + i]);
                }
                if (k & 4) ref_add(&rb[o], t);
            }
        OP(g, linear_backward, k & 1 ? dx : ABSENT, k & 2 ? dw : ABSENT, k & 4 ? db : ABSENT, dy, x, w);
        CHECK_REF(g, "linear_backward", "dx", dx, rx);
        CHECK_REF(g, "linear_backward", "dw", dw, rw);
        CHECK_REF(g, "linear_backward", "dbias", db, rb);
        free(rx), free(rw), free(rb);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(linear_backward, 0)

/* ---- embedding ----------------------------------------------------------------------------------------------------
 */
static int *tokens(int N, int V) {
    int *t = xcalloc((size_t)N + 1, sizeof *t);
    Dice dice = {rng_mix(77, (uint64_t)N), 0};
    for (int i = 0; i < N; i++) t[i] = roll(&dice, V);
    return t;
}
static void case_embed(Rig *g, int N, int d) {
    enum { V = 11 };
    Tensor table = RANDOM(g, "table", V, d), y = EMPTY(g, "y", N, d);
    int *tok = tokens(N, V);
    Ref *want = refs((size_t)N * (size_t)d);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < d; k++) ref_add(&want[i * d + k], R(table)[tok[i] * d + k]);
    OP(g, embed, y, table, tok);
    CHECK_REF(g, "embed", "y", y, want);
    free(tok), free(want);
}
OP_TEST(embed, EXACT)
static void case_embed_backward(Rig *g, int N, int d) {
    enum { V = 11 };
    Tensor dtable = RANDOM(g, "dtable", V, d), dy = RANDOM(g, "dy", N, d);
    int *tok = tokens(N, V - 1); /* the last row is nobody's */
    Ref *want = refs_of(dtable);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < d; k++) ref_add(&want[tok[i] * d + k], R(dy)[i * d + k]);
    OP(g, embed_backward, dtable, dy, tok);
    CHECK_REF(g, "embed_backward", "dtable", dtable, want);
    free(tok), free(want);
}
OP_TEST(embed_backward, EXACT)
Test(ops, embed_refuses_a_token_outside, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Rig g;
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline}, 1, 1 << 16);
    Tensor table = RANDOM(&g, "table", 3, 4), y = EMPTY(&g, "y", 1, 4);
    g.scratch = (Arena){.base = g.mem.base};
    g.run.ops->embed(&g.run, y, table, (int[]){3});
}

/* ---- RMSNorm ------------------------------------------------------------------------------------------------------
 */
static wide rstd_ref(const real *x, int d, double eps) {
    wide s = 0;
    for (int k = 0; k < d; k++) s += (wide)x[k] * x[k];
    return 1 / sqrtl(s / d + eps);
}
/* Rows of three magnitudes: ordinary, so small that eps rules, zero. */
static Tensor norm_input(Rig *g, int N, int heads, int d) {
    Tensor x = RANDOM(g, "x", N, heads, d);
    for (int i = 0; i < N * heads * d; i++) R(x)[i] *= (real)(i / d % 3 == 1 ? 1e-4 : i / d % 7 == 5 ? 0 : 3);
    return x;
}
static void case_rmsnorm(Rig *g, int N, int d) {
    for (int heads = 1; heads <= 3; heads += 2) {
        Mark mark = arena_mark(&g->mem);
        Tensor x = norm_input(g, N, heads, d), w = RANDOM(g, "w", d), y = EMPTY(g, "y", N, heads, d),
               s = EMPTY(g, "s", N, heads);
        const double eps = 1e-5;
        Ref *ry = refs((size_t)(N * heads * d)), *rs = refs((size_t)(N * heads)), *wrong = refs((size_t)(N * heads));
        for (int i = 0; i < N * heads; i++) {
            wide r = rstd_ref(R(x) + i * d, d, eps);
            ref_add(&rs[i], r);
            ref_add(&wrong[i], rstd_ref(R(x) + i * d, d, eps * 1.01));
            for (int k = 0; k < d; k++) ref_add(&ry[i * d + k], r * R(x)[i * d + k] * R(w)[k]);
        }
        OP(g, rmsnorm, y, s, x, w, eps);
        CHECK_REF(g, "rmsnorm", "y", y, ry);
        CHECK_REF(g, "rmsnorm", "rstd", s, rs);
        if (N * heads > 1) CHECK_MISSED("rmsnorm", "an eps of 1% more", s, wrong);
        free(ry), free(rs), free(wrong);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(rmsnorm, EXACT)
static void case_rmsnorm_backward(Rig *g, int N, int d) {
    for (int heads = 1; heads <= 3; heads += 2) {
        Mark mark = arena_mark(&g->mem);
        int n = N * heads;
        Tensor x = norm_input(g, N, heads, d), w = RANDOM(g, "w", d), dy = RANDOM(g, "dy", N, heads, d),
               s = EMPTY(g, "s", N, heads);
        Tensor dx = RANDOM(g, "dx", N, heads, d), dw = RANDOM(g, "dw", d);
        for (int i = 0; i < n; i++) R(s)[i] = (real)rstd_ref(R(x) + i * d, d, 1e-5);
        Ref *rx = refs_of(dx), *rw = refs_of(dw);
        for (int i = 0; i < n; i++) {
            const real *xi = R(x) + i * d, *gi = R(dy) + i * d;
            wide r = R(s)[i];
            for (int k = 0; k < d; k++) {
                ref_add(&rx[i * d + k], r * gi[k] * R(w)[k]);
                for (int j = 0; j < d; j++) ref_add(&rx[i * d + k], -r * r * r * xi[k] * gi[j] * R(w)[j] * xi[j] / d);
                ref_add(&rw[k], r * gi[k] * xi[k]);
            }
        }
        OP(g, rmsnorm_backward, dx, dw, dy, x, w, s);
        CHECK_REF(g, "rmsnorm_backward", "dx", dx, rx);
        CHECK_REF(g, "rmsnorm_backward", "dw", dw, rw);
        free(rx), free(rw);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(rmsnorm_backward, EXACT)

/* ---- rotary embedding ---------------------------------------------------------------------------------------------
 */
/* `late`: off by so many positions. */
static Ref *rope_ref(Tensor x, const Rope *p, Pick rows, const int *pos, int sign, int late) {
    int H = x.n[1], D = x.n[2], half = p->n / 2;
    Ref *want = refs_of(x);
    for (int m = 0; m < rows.n; m++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < half; i++) {
                int ia = p->interleaved ? 2 * i : i, ib = p->interleaved ? 2 * i + 1 : i + half;
                size_t at = (size_t)((m * H + h) * D);
                wide a = R(x)[at + (size_t)ia], b = R(x)[at + (size_t)ib];
                wide angle = (pos[rows.idx[m]] + late) * p->f[i]; /* an angle is a double */
                wide c = cosl(angle) * p->factor, s = sign * sinl(angle) * p->factor;
                Ref *ra = &want[at + (size_t)ia], *rb = &want[at + (size_t)ib];
                *ra = *rb = (Ref){0};
                ref_add(ra, a * c), ref_add(ra, -b * s);
                ref_add(rb, a * s), ref_add(rb, b * c);
            }
    return want;
}
static void case_rope(Rig *g, int N, int d) {
    for (int k = 0; k < 8; k++) {
        Mark mark = arena_mark(&g->mem);
        Dice dice = {rng_mix((uint64_t)k, (uint64_t)(N * 1000 + d)), 0};
        int batch_rows = N + (k & 1 ? 5 : 0), D = d + (d & 1);
        int *pos = xcalloc((size_t)batch_rows + 1, sizeof *pos), *idx = xcalloc((size_t)N + 1, sizeof *idx);
        /* neighbours in one document; samples that share positions; anywhere */
        for (int i = 0; i < batch_rows; i++)
            pos[i] = k % 3 == 0 ? 1000 + i : k % 3 == 1 ? roll(&dice, 5) : roll(&dice, 1 << 20);
        for (int i = 0; i < N; i++) idx[i] = i + (k & 1 ? 2 + (i > N / 2) : 0);
        g->batch = (Batch){.B = 1, .N = batch_rows, .pos = pos};
        Rope p = {.n = k & 2 ? D : D / 4 * 2,
                  .interleaved = k & 4,
                  .factor = k & 1 ? 1.25 : 1}; /* all or half of a head */
        for (int i = 0; i < p.n / 2; i++) p.f[i] = pow(10000, -2.0 * i / imax(1, p.n));
        int sign = k == 2 || k == 5 || k == 7 ? -1 : 1;
        Tensor x = RANDOM(g, "x", N, 1 + k % 3, D);
        Ref *want = rope_ref(x, &p, (Pick){N, idx}, pos, sign, 0);
        Ref *late = rope_ref(x, &p, (Pick){N, idx}, pos, sign, 1),
            *back = rope_ref(x, &p, (Pick){N, idx}, pos, -sign, 0);
        OP(g, rope, x, &p, (Pick){N, idx}, sign);
        CHECK_REF(g, "rope", "x", x, want);
        if (N && p.n) CHECK_MISSED("rope", "a position off by one", x, late);
        if (N > 2 && p.n) CHECK_MISSED("rope", "the other direction", x, back);
        free(pos), free(idx), free(want), free(late), free(back);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(rope, EXACT)

/* ---- SwiGLU -------------------------------------------------------------------------------------------------------
 */
static wide sigmoid(wide a) { return 1 / (1 + expl(-a)); }
/* Ordinary gates and those at which exp overflows, underflows or is 1. */
static Tensor gates(Rig *g, int N, int d) {
    const real odd[] = {0, -20, 20, -87, 88, -104, 1000, -1000, (real)1e-6};
    Tensor a = RANDOM(g, "gate", N, d);
    for (int i = 0; i < N * d; i++) R(a)[i] = i % 5 == 4 ? odd[i / 5 % 9] : R(a)[i] * 4;
    return a;
}
/* Errors are those of exp, 2 units, and of the clamp at e^88: all relative to |a b|, times what the result keeps of it.
 */
static Ref sized(wide want, wide size) { return (Ref){want, size * size, 1}; }
static void case_swiglu(Rig *g, int N, int d) {
    Tensor a = gates(g, N, d), b = RANDOM(g, "up", N, d), y = EMPTY(g, "y", N, d);
    Ref *want = refs((size_t)(N * d));
    for (int i = 0; i < N * d; i++) {
        wide ai = R(a)[i], bi = R(b)[i], v = ai * sigmoid(ai) * bi;
        want[i] = sized(v, fabsl(v) * 2 + fabsl(ai * bi) * 1e-25L);
    }
    OP(g, swiglu, y, a, b);
    CHECK_REF(g, "swiglu", "y", y, want);
    free(want);
}
OP_TEST(swiglu, EXACT)
static void case_swiglu_backward(Rig *g, int N, int d) {
    Tensor a = gates(g, N, d), b = RANDOM(g, "up", N, d), dy = RANDOM(g, "dy", N, d);
    Tensor da = RANDOM(g, "dgate", N, d), db = RANDOM(g, "dup", N, d);
    Ref *ra = refs_of(da), *rb = refs_of(db);
    for (int i = 0; i < N * d; i++) {
        wide ai = R(a)[i], s = sigmoid(ai), t = R(dy)[i];
        ref_add(&ra[i], t * R(b)[i] * s), ref_add(&ra[i], t * R(b)[i] * ai * s * (1 - s));
        ref_add(&rb[i], t * ai * s);
        ra[i].square += powl(t * R(b)[i] * ai * s, 2) * 1e-2L; /* 1 - s cancels where s is 1: its error is that of 1 */
    }
    OP(g, swiglu_backward, da, db, dy, a, b);
    CHECK_REF(g, "swiglu_backward", "dgate", da, ra);
    CHECK_REF(g, "swiglu_backward", "dup", db, rb);
    free(ra), free(rb);
}
OP_TEST(swiglu_backward, EXACT)

/* ---- sums, copies, rows -------------------------------------------------------------------------------------------
 */
static void case_add(Rig *g, int N, int d) {
    Tensor y = RANDOM(g, "y", N, d), x = RANDOM(g, "x", N, d);
    Ref *want = refs_of(y);
    for (int i = 0; i < N * d; i++) ref_add(&want[i], R(x)[i]);
    OP(g, add, y, x);
    CHECK_REF(g, "add", "y", y, want);
    free(want);
}
OP_TEST(add, EXACT)
static void case_copy(Rig *g, int N, int d) {
    Tensor y = EMPTY(g, "y", N, d), x = RANDOM(g, "x", N, d);
    Ref *want = refs_of(x);
    OP(g, copy, y, x);
    CHECK_REF(g, "copy", "y", y, want);
    free(want);
}
OP_TEST(copy, EXACT)
static void case_zero(Rig *g, int N, int d) {
    Tensor y = EMPTY(g, "y", N, d);
    Ref *want = refs((size_t)(N * d));
    OP(g, zero, y);
    CHECK_REF(g, "zero", "y", y, want);
    OP(g, zero, ABSENT);
    free(want);
}
OP_TEST(zero, EXACT)
static void case_gather(Rig *g, int N, int d) {
    for (int k = 0; k < 5; k++) { /* all, none, the last, some of all, some of some */
        Mark mark = arena_mark(&g->mem);
        Dice dice = {rng_mix((uint64_t)k, (uint64_t)N), 0};
        int *from = xcalloc((size_t)N + 1, sizeof *from), *to = xcalloc((size_t)N + 1, sizeof *to), nf = 0, nt = 0;
        for (int i = 0; i < N; i++) {
            if (k == 4 && roll(&dice, 3) == 0) continue;
            from[nf++] = 3 * i;
            if (k == 0 || (k == 2 && i == N - 1) || (k >= 3 && roll(&dice, 2))) to[nt++] = 3 * i;
        }
        Tensor x = RANDOM(g, "x", nf, d), y = EMPTY(g, "y", nt, d);
        Ref *want = refs((size_t)(nt * d));
        for (int m = 0; m < nt; m++)
            for (int f = 0; f < nf; f++)
                for (int c = 0; from[f] == to[m] && c < d; c++) ref_add(&want[m * d + c], R(x)[f * d + c]);
        OP(g, gather, y, x, (Pick){nf, from}, (Pick){nt, to});
        CHECK_REF(g, "gather", "y", y, want);
        free(from), free(to), free(want);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(gather, EXACT)

/* ---- dropout ------------------------------------------------------------------------------------------------------
 */
static void case_dropout(Rig *g, int N, int d) {
    const double p = 0.3;
    Tensor x = RANDOM(g, "x", N, d), again = tensor_copy(g, x), none = tensor_copy(g, x);
    Ref *want = refs_of(x);
    OP(g, dropout, x, DROP_FFN, p);
    int kept = 0;
    for (int i = 0; i < N * d; i++) {
        bool keep = R(x)[i] != 0;
        want[i].want *= keep / (1 - p);
        kept += keep;
    }
    CHECK_REF(g, "dropout", "x", x, want);
    if (N * d > 500)
        cr_assert(fabs(kept / (double)(N * d) - 0.7) < 5 * sqrt(0.21 / (N * d)), "kept %d of %d", kept, N * d);
    OP(g, dropout, again, DROP_FFN, p);
    cr_assert(!memcmp(again.p, x.p, tensor_bytes(x)), "a second call draws anew");
    Tensor before = tensor_copy(g, none);
    OP(g, dropout, none, DROP_FFN, 0);
    cr_assert(!memcmp(none.p, before.p, tensor_bytes(none)), "p = 0 changes x");
    free(want);
}
OP_TEST(dropout, EXACT)

/* The mask of each row, one bit a column, as a key. */
static uint64_t mask_of(Rig *g, int rows, const int *idx, int m, DropSite site, double p) {
    Mark mark = arena_mark(&g->mem);
    Tensor x = EMPTY(g, "x", rows, 64);
    for (int i = 0; i < rows * 64; i++) R(x)[i] = 1;
    g->run.out = (Pick){rows, idx};
    OP(g, dropout, x, site, p);
    uint64_t bits = 0;
    for (int k = 0; k < 64; k++) bits |= (uint64_t)(R(x)[m * 64 + k] != 0) << k;
    arena_release(&g->mem, mark);
    return bits;
}
Test(ops, dropout_depends_on_what_it_says_only) {
    Table tables[TABLES_MAX];
    uint64_t first = 0;
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 1, 1 << 20);
        g.batch = (Batch){
            .B = 2, .N = 7, .off = (int[]){0, 3, 7}, .of = (int[]){0, 0, 0, 1, 1, 1, 1}, .id = (uint64_t[]){8, 9}};
        g.run.seed = 1, g.run.step = 2, g.run.layer = 3;
        const int all[] = {0, 1, 2, 3, 4, 5, 6}, some[] = {2, 5, 6};
        uint64_t base = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5); /* sample 9, row 2 of it */
        if (k == 0) first = base;
        cr_assert(base == first, "tables draw different masks");
        cr_assert(base == mask_of(&g, 3, some, 1, DROP_MIXER, 0.5), "depends on which rows are wanted");
        uint64_t other[9];
        int m = 0;
        other[m++] = mask_of(&g, 7, all, 4, DROP_MIXER, 0.5);
        other[m++] = mask_of(&g, 7, all, 2, DROP_MIXER, 0.5); /* the same row of another sample */
        other[m++] = mask_of(&g, 7, all, 5, DROP_FFN, 0.5);
        other[m++] = mask_of(&g, 7, all, 5, DROP_EMBED, 0.5);
        g.run.seed++, other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5), g.run.seed--;
        g.run.step++, other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5), g.run.step--;
        g.run.layer++, other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5), g.run.layer--;
        g.batch.id = (uint64_t[]){8, 10};
        other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5);
        /* the sample alone in another batch, as another rank or micro-batch would have it */
        g.batch = (Batch){.B = 1, .N = 4, .off = (int[]){0, 4}, .of = (int[]){0, 0, 0, 0}, .id = (uint64_t[]){9}};
        cr_assert(base == mask_of(&g, 4, all, 2, DROP_MIXER, 0.5), "depends on the other samples of the batch");
        for (int i = 0; i < m; i++) {
            int same = __builtin_popcountll(~(base ^ other[i]));
            cr_assert(same > 10 && same < 54, "mask %d shares %d of 64 columns with the first", i, same);
        }
        rig_close(&g);
    }
}

/* ---- AdamW, norms -------------------------------------------------------------------------------------------------
 */
static void case_adamw(Rig *g, int N, int d) {
    for (int k = 0; k < 4; k++) {
        Mark mark = arena_mark(&g->mem);
        const double lr = 3e-3, b1 = 0.9, b2 = 0.95, eps = k & 1 ? 1e-8 : 1e-3, decay = k & 2 ? 0.1 : 0,
                     gscale = k == 3 ? 0.37 : 1;
        int64_t t = (int64_t[]){1, 2, 1000, 100000}[k];
        Tensor w = RANDOM(g, "w", N, d), G = RANDOM(g, "g", N, d), m = RANDOM(g, "m", N, d), v = RANDOM(g, "v", N, d);
        for (int i = 0; i < N * d; i++) R(v)[i] *= R(v)[i];
        Ref *rw = refs_of(w), *rm = refs((size_t)(N * d)), *rv = refs((size_t)(N * d));
        for (int i = 0; i < N * d; i++) {
            wide gi = (wide)R(G)[i] * gscale;
            ref_add(&rm[i], b1 * (wide)R(m)[i]), ref_add(&rm[i], (1 - (wide)b1) * gi);
            ref_add(&rv[i], b2 * (wide)R(v)[i]), ref_add(&rv[i], (1 - (wide)b2) * gi * gi);
            wide scale = lr / (1 - powl(b1, t)) / (sqrtl(rv[i].want / (1 - powl(b2, t))) + eps);
            for (int j = 0; j < 2; j++) ref_add(&rw[i], -scale * (j ? (1 - (wide)b1) * gi : b1 * (wide)R(m)[i]));
            ref_add(&rw[i], -lr * decay * (wide)R(w)[i]);
        }
        OP(g, adamw, w, G, m, v, lr, b1, b2, eps, decay, gscale, t);
        CHECK_REF(g, "adamw", "w", w, rw);
        CHECK_REF(g, "adamw", "m", m, rm);
        CHECK_REF(g, "adamw", "v", v, rv);
        free(rw), free(rm), free(rv);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(adamw, EXACT)

static void case_sumsq(Rig *g, int N, int d) {
    Tensor x = N == 150 && d > 100 ? RANDOM(g, "long", 3, 100001) : RANDOM(g, "x", N, d);
    wide want = 0;
    double got = 0;
    for (size_t i = 0; i < tensor_count(x); i++) want += (wide)R(x)[i] * R(x)[i];
    CALL(g, got = g->run.ops->sumsq(&g->run, x));
    /* summed in double whatever the type */
    cr_assert(fabsl(got - want) <= rig_limit("sumsq") * 0x1p-53 * sqrtl((wide)imax(1, (int)tensor_count(x))) * want,
              "%s sumsq of %zu: got %.17g, want %.17Lg", g->table, tensor_count(x), got, want);
    rig_result(g, TENSOR(&got, F64, 1));
}
OP_TEST(sumsq, EXACT)
Test(ops, sumsq_of_nothing) {
    Rig g;
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline}, 1, 0);
    cr_assert(g.run.ops->sumsq(&g.run, ABSENT) == 0);
    rig_close(&g);
}
