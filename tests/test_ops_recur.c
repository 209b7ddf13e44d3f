/* The ops around a recurrence against wide references: convolution, norms, gates; and the recurrence at the sizes of
 * the sweep (test_recur.c has the rest of it). */
#include "recur_ref.h"

static wide sig(wide x) { return 1 / (1 + expl(-x)); }
static wide soft(wide x) { return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x)); }
static Ref sized(wide want, wide size) { return (Ref){want, size * size, 1}; }
/* N(0,1), with every seventh number large. */
static Tensor wild(Rig *g, const char *name, int a, int b, int c) {
    Tensor t = RANDOM(g, name, a, b, c);
    for (size_t i = 3; i < tensor_count(t); i += 7) R(t)[i] *= 9;
    return t;
}

void case_recur(Rig *g, int N, int d) {
    Batch alone = g->batch;
    int K = 1 + d % 19, V = 1 + d % 23, heads = d >= 300 ? 4 : 1;
    Scene *c = recur_case(3, (int[]){N / 2, 0, N - N / 2}, (int[]){d % 50 + 1, N + 1}, 2, heads, 2 * heads, K, V,
                          d % 3 == 0   ? 0
                          : d % 3 == 1 ? 1
                                       : K,
                          d % 2, N > 8);
    recur_hold(g, c);
    recur_case_free(c);
    g->batch = alone;
}
OP_TEST(recur, EXACT)
/* Wider than a block of a device takes at once, and as wide as it keeps in registers. */
Test(ops, recur_with_wide_heads) {
    static const int shapes[][5] = {{64, 40, 1, 1, 64}, {100, 133, 1, 2, 1}, {128, 128, 1, 1, 128}, {200, 70, 1, 1, 0}};
    if (rig_missing("recur")) return;
    for (int i = 0; i < 4; i++) {
        const int *k = shapes[i];
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)64 << 20);
        Scene *c = recur_case(2, (int[]){3, 70}, (int[]){2, 80}, 2, k[2], k[3], k[0], k[1], k[4], i != 1, true);
        recur_hold(&g, c);
        recur_case_free(c);
        rig_close(&g);
    }
}

/* ---- short convolution --------------------------------------------------------------------------------------------
 */
enum { ROWS_MAX = 150, BLOBS = 4, AT = 2 };
typedef struct {
    int off[4], seq[3], of[ROWS_MAX], pos[ROWS_MAX], first[ROWS_MAX];
} Packed;
/* Three sequences, the second empty, with documents of 1 to `most` rows; `history`: the first and last continue one. */
static void packed(Rig *g, Packed *p, int N, int most, bool history) {
    *p = (Packed){.off = {0, N / 3, N / 3, N}, .seq = {2, 3, 0}};
    for (int s = 0; s < 3; s++)
        for (int t = p->off[s], begin = t; t < p->off[s + 1]; t++) {
            bool on = history && begin == p->off[s];
            if (t - begin == 1 + begin % most) begin = t, on = false;
            p->of[t] = s, p->first[t] = on ? -1 : begin, p->pos[t] = on ? 100 + t - begin : t - begin;
        }
    g->batch = (Batch){.B = 3, .N = N, .off = p->off, .seq = p->seq, .of = p->of, .pos = p->pos, .first = p->first};
    g->batch.history = history;
}
/* The input that lies `back` rows before row t. */
static wide input(const Packed *p, Tensor x, Tensor state, int W, int t, int back, int c) {
    int C = x.n[1], s = p->of[t], i = t - back;
    if (back > p->pos[t]) return 0;
    if (i >= p->off[s]) return R(x)[i * C + c];
    return R(state)[p->seq[s] * state.n[1] + AT + (i - p->off[s] + W - 1) * C + c];
}
typedef struct {
    wide sum, squares;
} Sum;
static Sum conv_sum(const Packed *p, Tensor x, Tensor w, Tensor bias, Tensor state, int W, int t, int c) {
    Sum s = {0};
    if (!present(w)) return (Sum){R(x)[t * x.n[1] + c], powl(R(x)[t * x.n[1] + c], 2)};
    for (int j = 0; j < W; j++) {
        wide term = R(w)[c * W + j] * input(p, x, state, W, t, W - 1 - j, c);
        s.sum += term, s.squares += term * term;
    }
    if (present(bias)) s.sum += R(bias)[c], s.squares += powl(R(bias)[c], 2);
    return s;
}
void case_short_conv(Rig *g, int N, int d) {
    Batch alone = g->batch;
    for (int k = 0; k < 12; k++) {
        Mark mark = arena_mark(&g->mem);
        Packed p;
        int W = (int[]){4, 1, 2, cuda_ops() ? 13 : 37}[k % 4];
        bool silu = k & 1, history = k < 8;
        packed(g, &p, N, W > 4 ? 50 : 5, history);
        Tensor x = RANDOM(g, "x", N, d), w = k == 5 ? ABSENT : RANDOM(g, "w", d, 1, W), y = EMPTY(g, "y", N, d),
               bias = k % 3 && k != 5 ? RANDOM(g, "bias", d) : ABSENT,
               state = RANDOM(g, "state", BLOBS, AT + (W - 1) * d + 3), before = tensor_copy(g, state);
        Ref *want = refs((size_t)(N * d)), *tails = refs_of(state);
        for (int t = 0; t < N; t++)
            for (int c = 0; c < d; c++) {
                Sum s = conv_sum(&p, x, w, bias, state, W, t, c);
                want[t * d + c] = (Ref){silu ? s.sum * sig(s.sum) : s.sum, s.squares, W + 1};
                for (int j = 0; t == p.off[p.of[t] + 1] - 1 && j < W - 1; j++) {
                    wide v = input(&p, x, state, W, t, W - 2 - j, c);
                    tails[p.seq[p.of[t]] * state.n[1] + AT + j * d + c] = (Ref){v, v * v, 1};
                }
            }
        g->run.mode = RUN_HOLD;
        OP(g, short_conv, y, x, w, bias, silu, state, AT);
        CHECK_REF(g, "short_conv", "y", y, want);
        CHECK_BYTES("a held pass", state.p, before.p, tensor_bytes(state));
        g->run.mode = 0;
        OP(g, short_conv, y, x, w, bias, silu, history || k & 2 ? state : ABSENT, AT);
        CHECK_REF(g, "short_conv", "y", y, want);
        if (history) CHECK_REF(g, "copy", "tails", state, tails);
        free(want), free(tails);
        arena_release(&g->mem, mark);
    }
    g->batch = alone;
}
OP_TEST(short_conv, EXACT)
void case_short_conv_backward(Rig *g, int N, int d) {
    Batch alone = g->batch;
    for (int k = 0; k < 10; k++) {
        Mark mark = arena_mark(&g->mem);
        Packed p;
        int W = (int[]){4, 1, 3, 6, cuda_ops() ? 16 : 64}[k % 5];
        bool silu = k & 1, bare = k == 7;
        packed(g, &p, N, W > 4 ? 90 : 5, false);
        Tensor x = RANDOM(g, "x", N, d), w = bare ? ABSENT : RANDOM(g, "w", d, W), dy = RANDOM(g, "dy", N, d),
               bias = k & 2 ? RANDOM(g, "bias", d) : ABSENT, dx = RANDOM(g, "dx", N, d),
               dw = bare ? ABSENT : RANDOM(g, "dw", d, W), db = k & 2 && !bare ? RANDOM(g, "dbias", d) : ABSENT;
        Ref *rx = refs_of(dx), *rw = bare ? NULL : refs_of(dw), *rb = present(db) ? refs_of(db) : NULL;
        for (int t = 0; t < N; t++)
            for (int c = 0; c < d; c++) {
                Sum s = conv_sum(&p, x, w, bias, ABSENT, W, t, c);
                wide e = R(dy)[t * d + c], f = silu ? sig(s.sum) * (1 + s.sum * (1 - sig(s.sum))) : 1, a = e * f;
                wide err =
                    silu ? e * e * (1 + s.squares) : 0; /* the slope is as exact as the sum that it is taken at */
                if (rb) ref_add(&rb[c], a), rb[c].square += err;
                if (bare) ref_add(&rx[t * d + c], a), rx[t * d + c].square += err;
                for (int j = 0; !bare && j < W; j++) {
                    int back = W - 1 - j;
                    if (back > p.pos[t]) continue;
                    wide in = R(x)[(t - back) * d + c], tap = R(w)[c * W + j];
                    ref_add(&rx[(t - back) * d + c], a * tap), rx[(t - back) * d + c].square += err * tap * tap;
                    ref_add(&rw[c * W + j], a * in), rw[c * W + j].square += err * in * in;
                }
            }
        OP(g, short_conv_backward, dx, dw, db, dy, x, w, bias, silu);
        CHECK_REF(g, "short_conv_backward", "dx", dx, rx);
        if (rw) CHECK_REF(g, "short_conv_backward", "dw", dw, rw);
        if (rb) CHECK_REF(g, "short_conv_backward", "dbias", db, rb);
        free(rx), free(rw), free(rb);
        arena_release(&g->mem, mark);
    }
    g->batch = alone;
}
OP_TEST(short_conv_backward, EXACT)

/* ---- L2 norm ------------------------------------------------------------------------------------------------------
 */
static Tensor vectors(Rig *g, int N, int d) { /* ordinary, so small that eps rules, zero */
    Tensor x = RANDOM(g, "x", N, 2, d);
    for (int i = 0; i < N * 2 * d; i++) R(x)[i] *= (real)(i / d % 3 == 1 ? 1e-4 : i / d % 7 == 5 ? 0 : 3);
    return x;
}
static wide length(const real *x, int d) {
    wide s = 1e-6L;
    for (int c = 0; c < d; c++) s += (wide)x[c] * x[c];
    return sqrtl(s);
}
void case_l2norm(Rig *g, int N, int d) {
    Tensor x = vectors(g, N, d), y = EMPTY(g, "y", N, 2, d);
    Ref *want = refs((size_t)(N * 2 * d)), *wrong = refs((size_t)(N * 2 * d));
    for (int i = 0; i < N * 2 * d; i++) {
        wide v = R(x)[i] / length(R(x) + i / d * d, d);
        want[i] = sized(v, fabsl(v)), wrong[i] = sized(v * 1.001L, fabsl(v));
    }
    OP(g, l2norm, y, x, 1e-6);
    CHECK_REF(g, "l2norm", "y", y, want);
    if (N) CHECK_MISSED("l2norm", "another length", y, wrong);
    free(want), free(wrong);
}
OP_TEST(l2norm, EXACT)
void case_l2norm_backward(Rig *g, int N, int d) {
    Tensor x = vectors(g, N, d), dy = RANDOM(g, "dy", N, 2, d), dx = RANDOM(g, "dx", N, 2, d);
    Ref *want = refs_of(dx);
    for (int i = 0; i < N * 2 * d; i++) {
        const real *xi = R(x) + i / d * d, *gi = R(dy) + i / d * d;
        wide n = length(xi, d);
        ref_add(&want[i], gi[i % d] / n);
        for (int c = 0; c < d; c++) ref_add(&want[i], -(wide)xi[i % d] * xi[c] * gi[c] / (n * n * n));
    }
    OP(g, l2norm_backward, dx, dy, x, 1e-6);
    CHECK_REF(g, "l2norm_backward", "dx", dx, want);
    free(want);
}
OP_TEST(l2norm_backward, EXACT)

/* ---- decays -------------------------------------------------------------------------------------------------------
 */
typedef struct {
    Tensor z, A, bias;
    Gate gate;
    int H, D;
} Decay;
enum { DECAYS = 6 };
static Decay decay_case(Rig *g, int k, int N, int d) {
    Decay c = {.H = 1 + k % 3, .D = k & 1 ? 1 : d};
    c.gate = (Gate){(GateKind[]){GATE_SOFTPLUS, GATE_BOUND, GATE_LOGSIGMOID}[k / 2], k / 2 == 1 ? -5 : 16};
    c.z = wild(g, "z", N, c.H, c.D);
    if (c.gate.kind != GATE_LOGSIGMOID) c.A = RANDOM(g, "A", c.H);
    if (k != 4) c.bias = RANDOM(g, "bias", c.H, c.D);
    return c;
}
/* g, and its derivatives by z and A, of number i; `size` of the argument's rounding. */
static void decay_ref(const Decay *c, int i, wide *v, wide *by_z, wide *by_A, wide *size) {
    int h = i / c->D % c->H;
    wide z = R(c->z)[i], b = present(c->bias) ? R(c->bias)[h * c->D + i % c->D] : 0, u = z + b,
         rate = present(c->A) ? expl(R(c->A)[h]) : 1;
    *size = fabsl(z) + fabsl(b);
    *by_A = 0;
    if (c->gate.kind == GATE_SOFTPLUS)
        *v = -rate * soft(u), *by_z = -rate * sig(u), *by_A = *v;
    else if (c->gate.kind == GATE_BOUND) {
        wide y = sig(rate * u);
        *v = c->gate.param * y, *by_z = c->gate.param * y * (1 - y) * rate, *by_A = *by_z * u, *size *= 1 + rate;
    } else
        *v = -soft(-u) / c->gate.param, *by_z = sig(-u) / c->gate.param;
}
void case_decay(Rig *g, int N, int d) {
    for (int k = 0; k < DECAYS; k++) {
        Mark mark = arena_mark(&g->mem);
        Decay c = decay_case(g, k, N, d);
        Tensor y = EMPTY(g, "g", N, c.H, c.D);
        int n = N * c.H * c.D;
        Ref *want = refs((size_t)n), *wrong = refs((size_t)n);
        for (int i = 0; i < n; i++) {
            wide v, z, A, size;
            decay_ref(&c, i, &v, &z, &A, &size);
            want[i] = sized(v, 2 * fabsl(v) + fabsl(z) * size + 1e-30L); /* below which there is no float */
            wrong[i] = sized(v + (z + A) * 1e-3L, want[i].want == 0 ? 1 : sqrtl(want[i].square));
        }
        OP(g, decay, y, c.z, c.A, c.bias, c.gate);
        CHECK_REF(g, "decay", "g", y, want);
        if (n > 20) CHECK_MISSED("decay", "another argument", y, wrong);
        free(want), free(wrong);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(decay, EXACT)
void case_decay_backward(Rig *g, int N, int d) {
    for (int k = 0; k < DECAYS; k++) {
        Mark mark = arena_mark(&g->mem);
        Decay c = decay_case(g, k, N, d);
        Tensor dg = RANDOM(g, "dg", N, c.H, c.D), dz = RANDOM(g, "dz", N, c.H, c.D),
               dA = present(c.A) ? RANDOM(g, "dA", c.H) : ABSENT,
               db = present(c.bias) ? RANDOM(g, "dbias", c.H, c.D) : ABSENT;
        Ref *rz = refs_of(dz), *rA = present(dA) ? refs_of(dA) : NULL, *rb = present(db) ? refs_of(db) : NULL;
        for (int i = 0; i < N * c.H * c.D; i++) {
            wide v, z, A, size, e = R(dg)[i];
            int h = i / c.D % c.H;
            decay_ref(&c, i, &v, &z, &A, &size);
            wide err = powl(e * (size + 1) * z, 2);
            ref_add(&rz[i], e * z), rz[i].square += err;
            if (rb) ref_add(&rb[h * c.D + i % c.D], e * z), rb[h * c.D + i % c.D].square += err;
            if (rA) ref_add(&rA[h], e * A), rA[h].square += err * size * size;
        }
        OP(g, decay_backward, dz, dA, db, dg, c.z, c.A, c.bias, c.gate);
        CHECK_REF(g, "decay_backward", "dz", dz, rz);
        if (rA) CHECK_REF(g, "decay_backward", "dA", dA, rA);
        if (rb) CHECK_REF(g, "decay_backward", "dbias", db, rb);
        free(rz), free(rA), free(rb);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(decay_backward, EXACT)

void case_sigmoid(Rig *g, int N, int d) {
    Tensor x = wild(g, "x", N, d, 1), y = EMPTY(g, "y", N, d, 1);
    Ref *want = refs((size_t)(N * d));
    for (int i = 0; i < N * d; i++) want[i] = sized(2 * sig(R(x)[i]), 2 * sig(R(x)[i]) * (1 + fabsl(R(x)[i]) / 8));
    OP(g, sigmoid, y, x, 2);
    CHECK_REF(g, "sigmoid", "y", y, want);
    free(want);
}
OP_TEST(sigmoid, EXACT)
void case_sigmoid_backward(Rig *g, int N, int d) {
    Tensor y = RANDOM(g, "y", N, d), dy = RANDOM(g, "dy", N, d), dx = RANDOM(g, "dx", N, d);
    for (int i = 0; i < N * d; i++) R(y)[i] = (real)(2 * sig(R(y)[i]));
    Ref *want = refs_of(dx);
    for (int i = 0; i < N * d; i++)
        ref_add(&want[i], (wide)R(dy)[i] * R(y)[i]), ref_add(&want[i], -(wide)R(dy)[i] * R(y)[i] * R(y)[i] / 2);
    OP(g, sigmoid_backward, dx, dy, y, 2);
    CHECK_REF(g, "sigmoid_backward", "dx", dx, want);
    free(want);
}
OP_TEST(sigmoid_backward, EXACT)

/* ---- gated norm ---------------------------------------------------------------------------------------------------
 */
/* Kind k: bit 0 silu, bit 1 gate before the norm; gains of one group, of all groups, none. */
typedef struct {
    GatedNorm n;
    Tensor x, z, w;
} Normed;
static Normed normed(Rig *g, int k, int N, int d) {
    Normed c = {.n = {.width = d, .silu = k & 1, .before = k & 2, .eps = 1e-5}};
    c.x = RANDOM(g, "x", N, 3, d), c.z = RANDOM(g, "z", N, 3, d);
    for (int i = 0; i < N * 3 * d; i++) R(c.x)[i] *= (real)(i / d % 4 == 1 ? 1e-3 : i / d % 7 == 5 ? 0 : 2);
    if (k % 3 == 0) c.w = RANDOM(g, "w", d);
    if (k % 3 == 1) c.w = RANDOM(g, "w", 3, d);
    return c;
}
static wide gate_at(const Normed *c, int i) {
    wide z = R(c->z)[i];
    return c->n.silu ? z * sig(z) : sig(z);
}
static wide gain_at(const Normed *c, int i) { return present(c->w) ? R(c->w)[(size_t)i % tensor_count(c->w)] : 1; }
static wide enters(const Normed *c, int i) { return c->n.before ? R(c->x)[i] * gate_at(c, i) : R(c->x)[i]; }
static wide factor_at(const Normed *c, int i) { /* 1/rms of the group of number i */
    wide s = 0;
    int d = c->n.width;
    for (int e = i / d * d; e < i / d * d + d; e++) s += enters(c, e) * enters(c, e);
    return 1 / sqrtl(s / d + (wide)c->n.eps);
}
void case_gated_norm(Rig *g, int N, int d) {
    for (int k = 0; k < 6; k++) {
        Mark mark = arena_mark(&g->mem);
        Normed c = normed(g, k, N, d);
        Tensor y = EMPTY(g, "y", N, 3, d);
        Ref *want = refs((size_t)(N * 3 * d));
        wide f = 0;
        for (int i = 0; i < N * 3 * d; i++) {
            if (i % d == 0) f = factor_at(&c, i);
            wide v = R(c.x)[i] * gate_at(&c, i) * gain_at(&c, i) * f;
            want[i] = sized(v, 2 * fabsl(v));
        }
        OP(g, gated_norm, y, c.x, c.z, c.w, c.n);
        CHECK_REF(g, "gated_norm", "y", y, want);
        free(want);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(gated_norm, EXACT)
void case_gated_norm_backward(Rig *g, int N, int d) {
    for (int k = 0; k < 6; k++) {
        Mark mark = arena_mark(&g->mem);
        Normed c = normed(g, k, N, d);
        Tensor dy = RANDOM(g, "dy", N, 3, d), dx = RANDOM(g, "dx", N, 3, d), dz = RANDOM(g, "dz", N, 3, d),
               dw = present(c.w) ? RANDOM(g, "dw", c.w.n[0], c.w.rank > 1 ? d : 1) : ABSENT;
        Ref *rx = refs_of(dx), *rz = refs_of(dz), *rw = present(dw) ? refs_of(dw) : NULL;
        for (int i0 = 0; i0 < N * 3 * d; i0 += d) {
            wide f = factor_at(&c, i0), dot = 0, squares = 0;
            for (int e = i0; e < i0 + d; e++) {
                wide t = enters(&c, e) * R(dy)[e] * gain_at(&c, e) * (c.n.before ? 1 : gate_at(&c, e));
                dot += t, squares += t * t;
            }
            for (int i = i0; i < i0 + d; i++) {
                wide z = R(c.z)[i], gate = gate_at(&c, i), h = R(dy)[i] * gain_at(&c, i),
                     slope = c.n.silu ? sig(z) * (1 + z * (1 - sig(z))) : sig(z) * (1 - sig(z)),
                     a = f * h * (c.n.before ? 1 : gate), b = f * f * f * enters(&c, i) / d,
                     sa = fabsl(a) * (1 + fabsl(z)), sb = fabsl(b) * sqrtl(squares * d);
                wide fx = c.n.before ? gate : 1, fz = c.n.before ? R(c.x)[i] * slope : 0;
                rx[i].want += (a - b * dot) * fx, rx[i].square += (sa * sa + sb * sb) * fx * fx;
                if (c.n.before)
                    rz[i].want += (a - b * dot) * fz, rz[i].square += (sa * sa + sb * sb) * R(c.x)[i] * R(c.x)[i];
                else
                    ref_add(&rz[i], h * R(c.x)[i] * f * slope), rz[i].square += powl(h * R(c.x)[i] * f, 2);
                if (rw) ref_add(&rw[(size_t)i % tensor_count(c.w)], R(dy)[i] * R(c.x)[i] * f * gate);
            }
        }
        OP(g, gated_norm_backward, dx, dz, dw, dy, c.x, c.z, c.w, c.n);
        CHECK_REF(g, "gated_norm_backward", "dx", dx, rx);
        CHECK_REF(g, "gated_norm_backward", "dz", dz, rz);
        if (rw) CHECK_REF(g, "gated_norm_backward", "dw", dw, rw);
        free(rx), free(rz), free(rw);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(gated_norm_backward, EXACT)
