/* Every entry of the op table against a wide reference written here, for every table that the processor can run, at odd
 * sizes: see rig.h for what a call and a comparison are. The loss and the optimizer are in test_ops_loss.c, attention
 * in test_ops_attend.c and test_ops_lanes.c. */
#include "rig.h"
#include "../ops/isa_table.h"
#include <criterion/redirect.h>
#include <signal.h>

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
void case_linear(Rig *g, int N, int d) {
    const int widths[] = {1, 15, 33};
    for (int k = 0; k < 6; k++) {
        Mark mark = arena_mark(&g->mem);
        int O = widths[k % 3];
        Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w", O, d), y = EMPTY(g, "y", N, O);
        Tensor bias = k < 3 ? RANDOM(g, "bias", O) : ABSENT;
        Ref *want = linear_ref(x, w, bias, 0), *less = linear_ref(x, w, bias, 1), *bare = linear_ref(x, w, ABSENT, 0);
        OP(g, linear, y, x, w, bias);
        CHECK_REF(g, "linear", "y", y, want);
        if (N && d > 1) CHECK_MISSED("linear", "a dropped term", y, less);
        if (N && k < 3) CHECK_MISSED("linear", "a dropped bias", y, bare);
        free(want), free(less), free(bare);
        arena_release(&g->mem, mark);
    }
    /* Rows of any rank are seen as (count/d, d): heads of a token. */
    Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w3", 6, d), y = EMPTY(g, "y", N, 3, 2);
    Ref *want = linear_ref(x, w, ABSENT, 0);
    OP(g, linear, y, x, w, ABSENT);
    CHECK_REF(g, "linear", "heads", y, want);
    free(want);
}
OP_TEST(linear, 0)

/* One row at a time gives the same bits. */
void case_linear_steady(Rig *g, int N, int d) {
    for (int O = 1; O < 40; O += 16) {
        Mark mark = arena_mark(&g->mem);
        Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w", O, d), y = EMPTY(g, "y", N, O), one = EMPTY(g, "one", 1, O);
        Tensor bias = O > 1 ? RANDOM(g, "bias", O) : ABSENT;
        Ref *want = linear_ref(x, w, bias, 0), *less = linear_ref(x, w, bias, 1);
        OP(g, linear_steady, y, x, w, bias);
        CHECK_REF(g, "linear_steady", "y", y, want);
        if (N && d > 1) CHECK_MISSED("linear_steady", "a dropped term", y, less);
        for (int m = 0; m < N; m += 1 + N / 5) {
            OP(g, linear_steady, one, TENSOR(R(x) + m * d, REAL, 1, d), w, bias);
            CHECK_BYTES("a row alone", one.p, R(y) + m * O, (size_t)O * sizeof(real));
        }
        free(want), free(less);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(linear_steady, EXACT)

void case_linear_backward(Rig *g, int N, int d) {
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

/* Several matrices of one input: to the bit what one call for each gives. Their widths are unlike, the last small. */
enum { MANY = 3 };
typedef struct {
    Tensor x, dx;
    Projection p[MANY], d[MANY];
} Several;
static Several several(Rig *g, int N, int d) {
    Several t = {.x = RANDOM(g, "x", N, d), .dx = RANDOM(g, "dx", N, d)};
    const int O[MANY] = {d / 2 + 5, d, 1};
    static const char *names[MANY] = {"one", "two", "three"};
    for (int j = 0; j < MANY; j++) {
        t.p[j] = (Projection){EMPTY(g, names[j], N, O[j]), RANDOM(g, names[j], O[j], d),
                              j == 1 ? ABSENT : RANDOM(g, names[j], O[j])};
        t.d[j] = (Projection){RANDOM(g, names[j], N, O[j]), j == 2 ? ABSENT : RANDOM(g, names[j], O[j], d),
                              j == 0 ? RANDOM(g, names[j], O[j]) : ABSENT};
    }
    return t;
}
static void same(Rig *g, const char *what, Tensor got, Tensor want) {
    if (!present(got)) return;
    rig_result(g, got);
    CHECK_BYTES(what, got.p, want.p, tensor_bytes(got));
}
void case_linear_many(Rig *g, int N, int d) {
    Several t = several(g, N, d);
    OP(g, linear_many, MANY, t.p, t.x);
    for (int j = 0; j < MANY; j++) {
        Tensor y = EMPTY(g, "alone", N, t.p[j].w.n[0]);
        Ref *want = linear_ref(t.x, t.p[j].w, t.p[j].bias, 0);
        CHECK_REF(g, "linear", "one of many", t.p[j].y, want);
        OP(g, linear, y, t.x, t.p[j].w, t.p[j].bias);
        same(g, "y", t.p[j].y, y);
        free(want);
    }
}
OP_TEST(linear_many, 0)
void case_linear_many_backward(Rig *g, int N, int d) {
    Several t = several(g, N, d);
    Tensor dx = tensor_copy(g, t.dx);
    Projection alone[MANY];
    for (int j = 0; j < MANY; j++) {
        alone[j] = (Projection){t.d[j].y, present(t.d[j].w) ? tensor_copy(g, t.d[j].w) : ABSENT,
                                present(t.d[j].bias) ? tensor_copy(g, t.d[j].bias) : ABSENT};
        OP(g, linear_backward, dx, alone[j].w, alone[j].bias, alone[j].y, t.x, t.p[j].w);
    }
    OP(g, linear_many_backward, t.dx, MANY, t.d, t.x, t.p);
    same(g, "dx", t.dx, dx);
    for (int j = 0; j < MANY; j++) same(g, "dw", t.d[j].w, alone[j].w), same(g, "dbias", t.d[j].bias, alone[j].bias);
}
OP_TEST(linear_many_backward, 0)

/* ---- embedding ----------------------------------------------------------------------------------------------------
 */
static int *tokens(int N, int V) {
    int *t = xcalloc((size_t)N + 1, sizeof *t);
    Dice dice = {rng_mix(77, (uint64_t)N), 0};
    for (int i = 0; i < N; i++) t[i] = roll(&dice, V);
    return t;
}
void case_embed(Rig *g, int N, int d) {
    enum { V = 11 };
    Tensor table = RANDOM(g, "table", V, d), y = EMPTY(g, "y", N, d);
    int *tok = tokens(N, V);
    Ref *want = refs((size_t)N * (size_t)d);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < d; k++) ref_add(&want[i * d + k], 0.5 * R(table)[tok[i] * d + k]);
    OP(g, embed, y, table, tok, 0.5);
    CHECK_REF(g, "embed", "y", y, want);
    free(tok), free(want);
}
OP_TEST(embed, EXACT)
void case_embed_backward(Rig *g, int N, int d) {
    enum { V = 11 };
    Tensor dtable = RANDOM(g, "dtable", V, d), dy = RANDOM(g, "dy", N, d);
    int *tok = tokens(N, V - 1); /* the last row is nobody's */
    Ref *want = refs_of(dtable);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < d; k++) ref_add(&want[tok[i] * d + k], 2 * R(dy)[i * d + k]);
    OP(g, embed_backward, dtable, dy, tok, 2);
    CHECK_REF(g, "embed_backward", "dtable", dtable, want);
    free(tok), free(want);
}
OP_TEST(embed_backward, EXACT)
Test(ops, embed_refuses_a_token_outside, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Rig g;
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline}, 1, 1 << 16);
    Tensor table = RANDOM(&g, "table", 3, 4), y = EMPTY(&g, "y", 1, 4);
    g.scratch = (Arena){.base = g.mem.base};
    g.run.ops->embed(&g.run, y, table, (int[]){3}, 1);
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
void case_rmsnorm(Rig *g, int N, int d) {
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
void case_add_rmsnorm(Rig *g, int N, int d) {
    Tensor x = norm_input(g, N, 1, d), z = RANDOM(g, "z", N, 1, d), w = RANDOM(g, "w", d), y = EMPTY(g, "y", N, 1, d),
           s = EMPTY(g, "s", N, 1);
    const double eps = 1e-5;
    Ref *rx = refs_of(x), *ry = refs((size_t)(N * d)), *rs = refs((size_t)N), *wrong = refs((size_t)N);
    real *sum = xcalloc((size_t)d + 1, sizeof *sum);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < d; k++)
            sum[k] = R(x)[i * d + k] + R(z)[i * d + k], ref_add(&rx[i * d + k], R(z)[i * d + k]);
        wide r = rstd_ref(sum, d, eps);
        ref_add(&rs[i], r);
        ref_add(&wrong[i], rstd_ref(R(x) + i * d, d, eps));
        for (int k = 0; k < d; k++) ref_add(&ry[i * d + k], r * sum[k] * R(w)[k]);
    }
    OP(g, add_rmsnorm, y, s, x, z, w, eps);
    CHECK_REF(g, "add", "x", x, rx);
    CHECK_REF(g, "add_rmsnorm", "y", y, ry);
    CHECK_REF(g, "add_rmsnorm", "rstd", s, rs);
    if (N && d > 1) CHECK_MISSED("add_rmsnorm", "a norm of x alone", s, wrong);
    free(rx), free(ry), free(rs), free(wrong), free(sum);
}
OP_TEST(add_rmsnorm, EXACT)
void case_rmsnorm_backward(Rig *g, int N, int d) {
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
            wide dot = 0, squares = 0;
            for (int k = 0; k < d; k++) {
                wide t = (wide)gi[k] * R(w)[k] * xi[k];
                dot += t, squares += t * t;
            }
            for (int k = 0; k < d; k++) {
                ref_add(&rx[i * d + k], r * gi[k] * R(w)[k]);
                rx[i * d + k].want -= r * r * r * xi[k] * dot / d;
                rx[i * d + k].square += r * r * r * r * r * r * xi[k] * xi[k] * squares / d / d;
                rx[i * d + k].terms += d;
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
static Ref *swiglu_refs(Tensor a, Tensor b) {
    size_t n = tensor_count(a);
    Ref *want = refs(n);
    for (size_t i = 0; i < n; i++) {
        wide ai = R(a)[i], bi = R(b)[i], v = ai * sigmoid(ai) * bi;
        want[i] = sized(v, fabsl(v) * 2 + fabsl(ai * bi) * 1e-25L);
    }
    return want;
}
void case_swiglu(Rig *g, int N, int d) {
    Tensor a = gates(g, N, d), b = RANDOM(g, "up", N, d), y = EMPTY(g, "y", N, d);
    Ref *want = swiglu_refs(a, b);
    OP(g, swiglu, y, a, b);
    CHECK_REF(g, "swiglu", "y", y, want);
    free(want);
}
OP_TEST(swiglu, EXACT)
void case_swiglu_backward(Rig *g, int N, int d) {
    Tensor a = gates(g, N, d), b = RANDOM(g, "up", N, d), dy = RANDOM(g, "dy", N, d);
    Tensor da = RANDOM(g, "dgate", N, d), db = RANDOM(g, "dup", N, d);
    Ref *ra = refs_of(da), *rb = refs_of(db);
    for (int i = 0; i < N * d; i++) {
        wide ai = R(a)[i], s = sigmoid(ai), t = R(dy)[i];
        ref_add(&ra[i], t * R(b)[i] * s), ref_add(&ra[i], t * R(b)[i] * ai * s * (1 - s));
        ref_add(&rb[i], t * ai * s);
        ra[i].square += powl(t * R(b)[i] * ai * s, 2) * 1e-2L; /* 1 - s cancels where s is 1: its error is that of 1 */
    }
    Tensor y = EMPTY(g, "y", N, d), with[2] = {tensor_copy(g, da), tensor_copy(g, db)};
    Ref *ry = swiglu_refs(a, b);
    OP(g, swiglu_backward, ABSENT, da, db, dy, a, b);
    OP(g, swiglu_backward, y, with[0], with[1], dy, a, b);
    CHECK_REF(g, "swiglu_backward", "dgate", da, ra);
    CHECK_REF(g, "swiglu_backward", "dup", db, rb);
    CHECK_REF(g, "swiglu", "y made again", y, ry);
    CHECK_REF(g, "swiglu_backward", "dgate beside y", with[0], ra);
    CHECK_REF(g, "swiglu_backward", "dup beside y", with[1], rb);
    free(ra), free(rb), free(ry);
}
OP_TEST(swiglu_backward, EXACT)

/* ---- sums, copies, rows -------------------------------------------------------------------------------------------
 */
void case_add(Rig *g, int N, int d) {
    Tensor y = RANDOM(g, "y", N, d), x = RANDOM(g, "x", N, d);
    Ref *want = refs_of(y);
    for (int i = 0; i < N * d; i++) ref_add(&want[i], R(x)[i]);
    OP(g, add, y, x);
    CHECK_REF(g, "add", "y", y, want);
    free(want);
}
OP_TEST(add, EXACT)
void case_axpby(Rig *g, int N, int d) {
    Tensor y = RANDOM(g, "y", N, d), x = RANDOM(g, "x", N, d);
    Ref *want = refs((size_t)N * (size_t)d);
    for (int i = 0; i < N * d; i++) {
        ref_add(&want[i], (wide)(real)0.3 * R(x)[i]);
        ref_add(&want[i], (wide)(real)-1.7 * R(y)[i]);
    }
    OP(g, axpby, y, 0.3, x, -1.7);
    CHECK_REF(g, "axpby", "y", y, want);
    free(want);
}
OP_TEST(axpby, EXACT)
void case_copy(Rig *g, int N, int d) {
    Tensor y = EMPTY(g, "y", N, d), x = RANDOM(g, "x", N, d);
    Ref *want = refs_of(x);
    OP(g, copy, y, x);
    CHECK_REF(g, "copy", "y", y, want);
    free(want);
}
OP_TEST(copy, EXACT)
void case_zero(Rig *g, int N, int d) {
    Tensor y = EMPTY(g, "y", N, d);
    Ref *want = refs((size_t)(N * d));
    OP(g, zero, y);
    CHECK_REF(g, "zero", "y", y, want);
    OP(g, zero, ABSENT);
    free(want);
}
OP_TEST(zero, EXACT)
/* By the definition: the nearest of the numbers of 8 bits, the even one of equals. */
void case_narrow(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, d);
    size_t n = tensor_count(x);
    Ref *want = refs(n);
    for (size_t i = 0; i < n; i++) {
        if (i % 7 == 0) R(x)[i] = (real)(1 + (double)(2 * (i % 64) + 1) * 0x1p-8); /* halfway between two */
        int e;
        wide m = frexpl((wide)(float)R(x)[i], &e) * 256, down = floorl(m), rest = m - down;
        ref_add(&want[i], ldexpl(down + (rest > 0.5L || (rest == 0.5L && fmodl(down, 2) != 0)), e - 8));
    }
    if (n > 2) {
        real last = R(x)[n - 1];
        R(x)[n - 1] = NAN, R(x)[n - 2] = -INFINITY;
        Tensor y = tensor_copy(g, x);
        OP(g, narrow, y);
        cr_assert(isnan((double)R(y)[n - 1]) && R(y)[n - 2] == -INFINITY);
        R(x)[n - 1] = R(x)[n - 2] = last;
        want[n - 2] = want[n - 1];
    }
    OP(g, narrow, x);
    CHECK_REF(g, "narrow", "x", x, want);
    free(want);
}
OP_TEST(narrow, EXACT)
void case_gather(Rig *g, int N, int d) {
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
void case_dropout(Rig *g, int N, int d) {
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

/* ---- the table is complete ----------------------------------------------------------------------------------------
 */
/* Every entry of the table beside the case that tests it. A new entry has no line here and fails the count. */
#define ENTRY(op) \
    { #op, offsetof(Ops, op), case_##op }
static const struct {
    const char *op;
    size_t at;
    Case *test;
} covered[] = {
    ENTRY(linear),
    ENTRY(linear_backward),
    ENTRY(linear_many),
    ENTRY(linear_many_backward),
    ENTRY(linear_heads),
    ENTRY(linear_steady),
    ENTRY(embed),
    ENTRY(embed_backward),
    ENTRY(rmsnorm),
    ENTRY(add_rmsnorm),
    ENTRY(rmsnorm_backward),
    ENTRY(layernorm),
    ENTRY(layernorm_backward),
    ENTRY(rope),
    ENTRY(rmsnorm_rope),
    ENTRY(rmsnorm_rope_backward),
    ENTRY(attend),
    ENTRY(attend_backward),
    ENTRY(attend_lanes),
    ENTRY(repeat),
    ENTRY(elu1),
    ENTRY(elu1_backward),
    ENTRY(widen),
    ENTRY(widen_backward),
    ENTRY(quotient),
    ENTRY(quotient_backward),
    ENTRY(step),
    ENTRY(step_backward),
    ENTRY(skip),
    ENTRY(skip_backward),
    {"recur", offsetof(Ops, recur), case_recur},
    {"recur_backward", offsetof(Ops, recur_backward), case_recur}, /* one case holds both */
    ENTRY(short_conv),
    ENTRY(short_conv_backward),
    ENTRY(l2norm),
    ENTRY(l2norm_backward),
    ENTRY(decay),
    ENTRY(decay_backward),
    ENTRY(sigmoid),
    ENTRY(sigmoid_backward),
    ENTRY(gated_norm),
    ENTRY(gated_norm_backward),
    ENTRY(merge),
    ENTRY(merge_backward),
    ENTRY(decide),
    ENTRY(decide_backward),
    ENTRY(mean_rows),
    ENTRY(scale_column),
    ENTRY(swiglu),
    ENTRY(swiglu_backward),
    ENTRY(gelu),
    ENTRY(gelu_backward),
    ENTRY(linear_groups),
    ENTRY(linear_groups_backward),
    ENTRY(spread),
    ENTRY(move),
    ENTRY(collect),
    ENTRY(swiglu_rows),
    ENTRY(swiglu_rows_backward),
    ENTRY(add),
    ENTRY(axpby),
    ENTRY(copy),
    ENTRY(zero),
    ENTRY(narrow),
    ENTRY(gather),
    ENTRY(columns),
    ENTRY(columns_backward),
    ENTRY(dropout),
    ENTRY(linear_xent),
    ENTRY(linear_distill),
    ENTRY(align),
    ENTRY(adamw),
    ENTRY(momentum),
    ENTRY(sumsq),
    ENTRY(normalise),
    ENTRY(sumsqs),
    ENTRY(sumsqs_there),
};
Test(ops, the_table_is_complete) {
    enum { N = sizeof covered / sizeof *covered };
    const size_t first = offsetof(Ops, linear), one = sizeof(void (*)(void));
    bool seen[sizeof(Ops) / sizeof(void (*)(void))] = {0};
    Table tables[TABLES_MAX];
    int ntables = rig_tables(tables);
    cr_assert(ntables >= 1);
    for (int k = 0; k < ntables; k++) {
        cr_assert(!strcmp(tables[k].ops->name, cuda_ops() ? "cuda" : "cpu"));
        for (int i = 0; i < N; i++) {
            void (*f)(void);
            memcpy(&f, (const char *)tables[k].ops + covered[i].at, sizeof f);
            cr_assert((f == NULL) == rig_missing(covered[i].op), "%s has no %s, which no ledger says", tables[k].name,
                      covered[i].op);
            cr_assert(covered[i].test != NULL && rig_limit(covered[i].op) >= 0);
            seen[covered[i].at / one] = true;
            for (int j = 0; j < k; j++)
                cr_assert(memcmp(&f, (const char *)tables[j].ops + covered[i].at, sizeof f),
                          "%s: %s and %s share one function", covered[i].op, tables[j].name, tables[k].name);
        }
    }
    for (size_t at = first; at < sizeof(Ops); at += one)
        cr_assert(seen[at / one], "entry %zu of the table has no test", at / one);
    cr_assert((sizeof(Ops) - first) / one == N, "%zu entries, %d tests", (sizeof(Ops) - first) / one, N);
}
Test(ops, device_chooses_the_best_table) {
    if (cuda_ops() || getenv("TEST_ISA"))
        return; /* of the CPU's tables; tests/simt/test_cuda.c opens the other device */
    Table tables[TABLES_MAX];
    int n = rig_tables(tables);
    Device *d;
    Err e = {0};
    cr_assert(device_open(&d, "cpu", 0, &e), "%s", e.msg);
    const char *best = tables[n - 1].name, *isa = device_isa(d);
    cr_assert(device_ops(d) == tables[n - 1].ops && !strncmp(isa, best, strlen(best)), "chose %s", isa);
    isa += strlen(best);
    cr_assert(!*isa || (!strcmp(isa, "+amx") && !strcmp(best, "avx512bf16")), "%s", isa);
    cr_assert(device_threads(d) >= 1);
    device_close(d);
    cr_assert(device_open(&d, "cpu", 3, &e) && device_threads(d) == 3);
    device_close(d);
    device_close(NULL);
    const int bad[] = {-1, 1025, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        e = (Err){0};
        cr_assert(!device_open(&d, "cpu", bad[i], &e) && e.status == EXIT_INPUT && strstr(e.msg, "threads"), "%s",
                  e.msg);
    }
    e = (Err){0};
    cr_assert(!device_open(&d, "tpu", 1, &e) && e.status == EXIT_INPUT && strstr(e.msg, "tpu"), "%s", e.msg);
}
/* An instruction set by name is the one that a device has, and the only one of its process; others are refused with
 * what there is. */
Test(ops, device_takes_an_instruction_set_by_name) {
    if (cuda_ops() || getenv("TEST_ISA")) return;
    Device *d, *other;
    Err e = {0};
    char name[DEVICE_NAME_MAX];
    int n, found = -1;
    const Isa *isa = isa_table(&n);
    for (int i = n - 1; i >= 0; i--)
        if (!isa[i].there || isa[i].there(&e)) found = imax(found, i);
    const char *refused[] = {"avx9", "", "AVX2", found < n - 1 ? isa[n - 1].name : "mmx"};
    for (int i = 0; i < 4; i++) {
        char list[60];
        e = (Err){0};
        snprintf(list, sizeof list, "expected one of: auto, %s", isa[0].name);
        cr_assert(!device_isa_there(refused[i], &e) && e.status == EXIT_INPUT && strstr(e.msg, list), "%s: %s",
                  refused[i], e.msg);
        cr_assert(strstr(e.msg, isa[found].name) && strlen(e.msg) < 280, "%s", e.msg);
    }
    e = (Err){0};
    cr_assert(!device_bind(name, "cuda:1", isa[0].name, &e) && e.status == EXIT_INPUT, "%s", e.msg);
    cr_assert(device_bind(name, "cpu", NULL, &e) && !strcmp(name, "cpu"));
    cr_assert(device_bind(name, "cuda", "auto", &e) && !strcmp(name, "cuda"));
    cr_assert(device_isa_there("auto", &e) && device_bind(name, "cpu", isa[0].name, &e));
    cr_assert(device_open(&d, name, 1, &e) && !strcmp(device_isa(d), isa[0].label), "%s", e.msg);
    cr_assert(device_ops(d) == isa[0].ops && d->gemm_bf16 == isa[0].gemm_bf16);
    if (isa[found].library != isa[0].library) {
        cr_assert(device_bind(name, "cpu", isa[found].name, &e));
        cr_assert(!device_open(&other, name, 1, &e) && e.status == EXIT_WORLD && strstr(e.msg, "another"), "%s", e.msg);
    }
    device_close(d);
}
