/* test_ops_acts_recur.c: the recurrence and the ops around it on activations that are BF16 in memory, with every op
 * table, as test_ops_acts.c does it. On CUDA a recurrence of long sequences goes by chunks with operands in bf16, whose
 * bound is that of simt/test_cuda_delta.c. */
#include "tests/lib/acts.h"
#include "tests/lib/recur_ref.h"

/* Rows that add up to those of the pass, in documents of 1 to `most` rows, of two sequences and an empty one. */
typedef struct {
    int off[4], seq[3], *of, *first, *pos;
} Packed;
static void packed(Desk *d, Packed *p, int N, int most) {
    *p = (Packed){.off = {0, N / 3, N / 3, N}, .seq = {1, 2, 0}, .of = d->of, .first = d->first};
    p->pos = xcalloc((size_t)N, sizeof *p->pos);
    for (int s = 0; s < 3; s++)
        for (int t = p->off[s], begin = t; t < p->off[s + 1]; t++) {
            if (t - begin == 1 + begin % most) begin = t;
            p->of[t] = s, p->first[t] = begin, p->pos[t] = t - begin;
        }
    d->g.batch = (Batch){.B = 3, .N = N, .off = p->off, .seq = p->seq, .of = p->of, .pos = p->pos, .first = p->first};
}
static void shift(Tensor t) { /* every number becomes its neighbour's */
    memmove(R(t), R(t) + 1, (tensor_count(t) - 1) * sizeof(real));
}
/* The numbers that a gradient is added to, before it is: for those of a mistake. */
static Tensor planted(Desk *d, Sum s) { return tensor_copy(&d->g, s.real); }

/* ---- short convolution ----------------------------------------------------------------------------------------------
 */
/* how: bit 0 overwrite, bit 1 silu, bit 2 bias; from bit 3 on the taps, 0: none but silu. */
static void conv_case(Desk *d, Size s) {
    const int N = s.N, C = s.width, W = s.how >> 3;
    const bool overwrite = s.how & 1, silu = s.how & 2 || !W, biased = W && s.how & 4;
    Rig *g = &d->g;
    Packed p;
    packed(d, &p, N, W > 4 ? 50 : 7);
    Tensor x = RANDOM(g, "x", N, C), dy = RANDOM(g, "dy", N, C), w = W ? RANDOM(g, "w", C, 1, W) : ABSENT,
           bias = biased ? RANDOM(g, "bias", C) : ABSENT, y = empty(d, x), hx = bf16_of_tensor(d, x),
           hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, x);
    REF(d, short_conv, y, x, w, bias, silu, ABSENT, 0);
    BF16_OF(d, short_conv, hy, hx, w, bias, silu, ABSENT, 0);
    exact(d, "short_conv", hy, y);
    REF(d, short_conv, y, x, w, bias, !silu, ABSENT, 0);
    wrong("another activation", hy, y);
    if (W > 1 && N > 1) {
        Tensor last = tensor_copy(g, w);
        for (int i = 0; i < C * W; i++) R(last)[i] = i % W == W - 2 ? 0 : R(w)[i];
        REF(d, short_conv, y, x, last, bias, silu, ABSENT, 0);
        wrong("a tap that is missing", hy, y);
    }
    Sum dx = sum_make(d, x, "dx", overwrite);
    Tensor dw = W ? RANDOM(g, "dw", C, 1, W) : ABSENT, rdw = W ? tensor_copy(g, dw) : ABSENT, before = planted(d, dx),
           db = biased ? RANDOM(g, "dbias", C) : ABSENT, rdb = biased ? tensor_copy(g, db) : ABSENT,
           other = planted(d, dx);
    REF(d, short_conv_backward, add_to(dx.real), rdw, rdb, dy, x, w, bias, silu);
    BF16_OF(d, short_conv_backward, sum_into(dx), dw, db, hdy, hx, w, bias, silu);
    exact(d, "dx", dx.bf16, dx.real);
    if (W) right(d, "dw", dw, rdw);
    if (biased) right(d, "dbias", db, rdb);
    if (N > 1) wrong("no gradient", dx.bf16, before);
    REF(d, short_conv_backward, add_to(other), ABSENT, ABSENT, dy, x, w, bias, !silu);
    if (N > 1) wrong("another slope", dx.bf16, other);
    Sum alone = sum_make(d, x, "dx", overwrite); /* where weights learn nothing */
    BF16_OF(d, short_conv_backward, sum_into(alone), ABSENT, ABSENT, hdy, hx, w, bias, silu);
    cr_assert(!memcmp(alone.bf16.p, dx.bf16.p, tensor_bytes(dx.bf16)), "dx hangs on who else is asked");
    free(p.pos);
}
Test(acts, short_conv, .timeout = 120) {
    static const int sizes[][3] = {{81, 24, 4}, {21, 33, 4}, {7, 13, 2}, {50, 20, 13},
                                   {9, 16, 1},  {11, 35, 0}, {1, 5, 4}};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int how = 0; how < 8; how++)
            everywhere(conv_case, (Size){sizes[z][0], sizes[z][1], sizes[z][2] << 3 | how});
    if (cuda_ops()) return;
    for (int how = 2; how < 8; how += 5) { /* more than a run of columns, more taps than rows at a time */
        everywhere(conv_case, (Size){70, 1041, 4 << 3 | how});
        everywhere(conv_case, (Size){45, 530, 37 << 3 | how});
    }
    fprintf(stderr, "short convolutions in bf16: at most %.2g\n", seen);
}

/* ---- norms, gates ---------------------------------------------------------------------------------------------------
 */
static void l2norm_case(Desk *d, Size s) {
    const int N = s.N, D = s.width;
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", N, 3, D), dy = RANDOM(g, "dy", N, 3, D), y = empty(d, x), hx = bf16_of_tensor(d, x),
           hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, x);
    REF(d, l2norm, y, x, 1e-6);
    BF16_OF(d, l2norm, hy, hx, 1e-6);
    right(d, "l2norm", hy, y);
    REF(d, l2norm, y, x, D);
    wrong("another eps", hy, y);
    Sum dx = sum_make(d, x, "dx", s.how);
    Tensor other = planted(d, dx), before = planted(d, dx);
    REF(d, l2norm_backward, add_to(dx.real), dy, x, 1e-6);
    BF16_OF(d, l2norm_backward, sum_into(dx), hdy, hx, 1e-6);
    if (s.how) {
        right(d, "overwrite dx", dx.bf16, dx.real);
        REF(d, l2norm_backward, add_to(other), dy, x, D);
        wrong("the slope of another eps", dx.bf16, other);
        return;
    }
    right(d, "dx", dx.bf16, dx.real);
    if (D < 50) wrong("no gradient", dx.bf16, before); /* of wide rows it is small beside what was there */
}
Test(acts, l2norm) {
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        everywhere(l2norm_case, (Size){20, 16, overwrite});
        everywhere(l2norm_case, (Size){9, 33, overwrite});
        everywhere(l2norm_case, (Size){5, 128, overwrite});
        everywhere(l2norm_case, (Size){1, 7, overwrite});
        if (!cuda_ops()) everywhere(l2norm_case, (Size){30, 1301, overwrite});
    }
    fprintf(stderr, "l2norm in bf16: at most %.2g\n", seen);
}
/* how: bit 0 overwrite, bit 1 with a bias, then the kind. */
static void decay_case(Desk *d, Size s) {
    const int N = s.N, H = 3, D = s.width;
    const Gate gate = {(GateKind)(s.how >> 2), s.how >> 2 == GATE_BOUND ? -5 : 16};
    const bool overwrite = s.how & 1, biased = s.how & 2, rated = gate.kind != GATE_LOGSIGMOID;
    Rig *g = &d->g;
    Tensor z = RANDOM(g, "z", N, H, D), dg = RANDOM(g, "dg", N, H, D), A = rated ? RANDOM(g, "A", H) : ABSENT,
           bias = biased ? RANDOM(g, "bias", H, D) : ABSENT, y = empty(d, z), got = empty(d, z),
           hz = bf16_of_tensor(d, z);
    REF(d, decay, y, z, A, bias, gate);
    BF16_OF(d, decay, got, hz, A, bias, gate);
    exact(d, "decay", got, y);
    Sum dz = sum_make(d, z, "dz", overwrite);
    Tensor dA = rated ? RANDOM(g, "dA", H) : ABSENT, rdA = rated ? tensor_copy(g, dA) : ABSENT,
           db = biased ? RANDOM(g, "db", H, D) : ABSENT, rdb = biased ? tensor_copy(g, db) : ABSENT,
           other = planted(d, dz), none = EMPTY(g, "dA", H);
    REF(d, decay_backward, add_to(dz.real), rdA, rdb, dg, z, A, bias, gate);
    BF16_OF(d, decay_backward, sum_into(dz), dA, db, dg, hz, A, bias, gate);
    exact(d, "dz", dz.bf16, dz.real);
    if (rated) right(d, "dA", dA, rdA);
    if (biased) right(d, "dbias", db, rdb);
    if (rated) { /* where z is no gradient's */
        memset(none.p, 0, tensor_bytes(none)), memset(rdA.p, 0, tensor_bytes(rdA));
        REF(d, decay_backward, NOWHERE, rdA, ABSENT, dg, z, A, bias, gate);
        BF16_OF(d, decay_backward, NOWHERE, none, ABSENT, dg, hz, A, bias, gate);
        right(d, "dA alone", none, rdA);
    }
    shift(z);
    REF(d, decay, y, z, A, bias, gate);
    if (N > 1) wrong("a neighbour's decay", got, y);
    shift(dg);
    REF(d, decay_backward, add_to(other), ABSENT, ABSENT, dg, z, A, bias, gate);
    if (N > 1 && (overwrite || gate.kind != GATE_LOGSIGMOID)) wrong("a neighbour's gradient", dz.bf16, other);
}
Test(acts, decay) {
    for (int how = 0; how < 12; how++) {
        everywhere(decay_case, (Size){20, 16, how});
        everywhere(decay_case, (Size){17, 1, how});
        everywhere(decay_case, (Size){5, 33, how});
        everywhere(decay_case, (Size){1, 2, how});
        if (!cuda_ops()) everywhere(decay_case, (Size){40, 301, how});
    }
    fprintf(stderr, "decays from bf16: at most %.2g\n", seen);
}
/* how: bit 0 overwrite, 1 silu, 2 the gate first; then no gains, those of one group, of all. */
static void gated_norm_case(Desk *d, Size s) {
    const int N = s.N, H = 3, V = s.width, gains = s.how >> 3;
    const GatedNorm n = {V, s.how & 2, s.how & 4, 1e-5}, not = {V, !n.silu, n.before, 1e-5};
    const bool overwrite = s.how & 1;
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", N, H, V), z = RANDOM(g, "z", N, H, V), dy = RANDOM(g, "dy", N, H, V), y = empty(d, x),
           w = gains == 0   ? ABSENT
               : gains == 1 ? RANDOM(g, "w", V)
                            : RANDOM(g, "w", H, V),
           hx = bf16_of_tensor(d, x), hz = bf16_of_tensor(d, z), hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, x);
    REF(d, gated_norm, y, x, z, w, n);
    BF16_OF(d, gated_norm, hy, hx, hz, w, n);
    right(d, "gated_norm", hy, y);
    REF(d, gated_norm, y, x, z, w, not );
    wrong("another gate", hy, y);
    Sum dx = sum_make(d, x, "dx", overwrite), dz = sum_make(d, z, "dz", overwrite);
    Tensor dw = gains ? rig_random(empty(d, w), "dw") : ABSENT, rdw = gains ? tensor_copy(g, dw) : ABSENT,
           other = planted(d, dx), no_dz = planted(d, dz);
    REF(d, gated_norm_backward, add_to(dx.real), add_to(dz.real), rdw, dy, x, z, w, n);
    BF16_OF(d, gated_norm_backward, sum_into(dx), sum_into(dz), dw, hdy, hx, hz, w, n);
    right(d, "dx", dx.bf16, dx.real), right(d, "dz", dz.bf16, dz.real);
    if (gains) right(d, "dw", dw, rdw);
    REF(d, gated_norm_backward, add_to(other), add_to(no_dz), ABSENT, dy, x, z, w, not );
    if (N > 1) wrong("the slope of another gate", dx.bf16, other), wrong("that of its z", dz.bf16, no_dz);
    Sum one = sum_make(d, x, "dx", overwrite), two = sum_make(d, z, "dz", overwrite);
    BF16_OF(d, gated_norm_backward, sum_into(one), NOWHERE, ABSENT, hdy, hx, hz, w, n);
    BF16_OF(d, gated_norm_backward, NOWHERE, sum_into(two), ABSENT, hdy, hx, hz, w, n);
    cr_assert(!memcmp(one.bf16.p, dx.bf16.p, tensor_bytes(dx.bf16)), "dx hangs on who else is asked");
    cr_assert(!memcmp(two.bf16.p, dz.bf16.p, tensor_bytes(dz.bf16)), "dz hangs on who else is asked");
}
Test(acts, gated_norm, .timeout = 120) {
    for (int how = 0; how < 24; how++) {
        everywhere(gated_norm_case, (Size){20, 16, how});
        everywhere(gated_norm_case, (Size){6, 33, how});
        everywhere(gated_norm_case, (Size){1, 9, how});
        if (how % 5 == 0) everywhere(gated_norm_case, (Size){3, 200, how});
        if (!cuda_ops() && how % 5 == 0) everywhere(gated_norm_case, (Size){37, 643, how});
    }
    fprintf(stderr, "gated norms in bf16: at most %.2g\n", seen);
}

/* ---- linear attention, Mamba-2 --------------------------------------------------------------------------------------
 */
static void linear_case(Desk *d, Size s) {
    const int N = s.N, H = 3, V = s.width;
    const bool overwrite = s.how;
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", N, H, V), dy = RANDOM(g, "dy", N, H, V), wide = RANDOM(g, "wide", N, H, V + 1),
           dwide = RANDOM(g, "d wide", N, H, V + 1), y = empty(d, x), wy = empty(d, wide), hx = bf16_of_tensor(d, x),
           hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, x), hwy = bf16_empty(d, wide);
    for (int i = V; i < N * H * (V + 1); i += V + 1) R(wide)[i] = (real)(1 + fabs((double)R(wide)[i]));
    Tensor hwide = bf16_of_tensor(d, wide), hdwide = bf16_of_tensor(d, dwide);
    Sum a = sum_make(d, x, "by elu1", overwrite), b = sum_make(d, x, "by append_ones", overwrite),
        c = sum_make(d, wide, "by divide_by_last", overwrite);
    Tensor no_a = planted(d, a), no_b = planted(d, b), no_c = planted(d, c), by_last;
    REF(d, elu1, y, x);
    BF16_OF(d, elu1, hy, hx);
    exact(d, "elu1", hy, y);
    wrong("no elu1", hy, x);
    tensor_read(hy, 0, tensor_count(y), R(y)); /* the way back reads it as it is stored */
    REF(d, elu1_backward, add_to(a.real), dy, y);
    BF16_OF(d, elu1_backward, sum_into(a), hdy, hy);
    exact(d, "dx of elu1", a.bf16, a.real);
    REF(d, elu1_backward, add_to(no_a), dy, x);
    wrong("a slope by x", a.bf16, no_a);

    REF(d, append_ones, wy, x);
    BF16_OF(d, append_ones, hwy, hx);
    nearest(d, "append_ones", hwy, wy);
    for (int i = V; i < N * H * (V + 1); i += V + 1) cr_assert(R(wy)[i] == 1);
    shift(wy);
    wrong("groups one number off", hwy, wy);
    REF(d, append_ones_backward, add_to(b.real), dwide);
    BF16_OF(d, append_ones_backward, sum_into(b), hdwide);
    exact(d, "dx of append_ones", b.bf16, b.real);
    shift(dwide);
    REF(d, append_ones_backward, add_to(no_b), dwide);
    wrong("gradients one number off", b.bf16, no_b);

    REF(d, divide_by_last, y, wide, 0.01);
    BF16_OF(d, divide_by_last, hy, hwide, 0.01);
    exact(d, "divide_by_last", hy, y);
    tensor_read(hy, 0, tensor_count(y), R(y));
    REF(d, divide_by_last_backward, add_to(c.real), dy, y, wide, 0.01);
    BF16_OF(d, divide_by_last_backward, sum_into(c), hdy, hy, hwide, 0.01);
    right(d, "dx of divide_by_last", c.bf16, c.real);
    by_last = tensor_copy(g, c.real);
    for (int i = V; i < N * H * (V + 1); i += V + 1) R(by_last)[i] = R(no_c)[i];
    wrong("nothing by the divisor", c.bf16, by_last);
    REF(d, divide_by_last_backward, add_to(no_c), dy, y, wide, 1);
    wrong("a slope of another eps", c.bf16, no_c);
    REF(d, divide_by_last, y, wide, 1);
    wrong("another eps", hy, y);
}
Test(acts, linear_attention) {
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        everywhere(linear_case, (Size){20, 16, overwrite});
        everywhere(linear_case, (Size){7, 33, overwrite});
        everywhere(linear_case, (Size){3, 128, overwrite});
        everywhere(linear_case, (Size){5, 1, overwrite});
        everywhere(linear_case, (Size){1, 2, overwrite});
        if (!cuda_ops()) everywhere(linear_case, (Size){31, 701, overwrite});
    }
    fprintf(stderr, "linear attention in bf16: at most %.2g\n", seen);
}
static void mamba_case(Desk *d, Size s) {
    const int N = s.N, H = 3, P = s.width;
    const bool overwrite = s.how;
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", N, H, P), dy = RANDOM(g, "dy", N, H, P), z = RANDOM(g, "z", N, H),
           bias = RANDOM(g, "bias", H), w = RANDOM(g, "w", H), y = empty(d, x), hx = bf16_of_tensor(d, x),
           hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, x), dz = RANDOM(g, "dz", N, H), rdz = tensor_copy(g, dz),
           db = RANDOM(g, "db", H), rdb = tensor_copy(g, db), dw = RANDOM(g, "dw", H), rdw = tensor_copy(g, dw);
    Sum a = sum_make(d, x, "by step", overwrite), b = sum_make(d, x, "by skip", overwrite);
    Tensor no_a = planted(d, a), no_b = planted(d, b);
    for (int h = 0; h < H; h++) R(w)[h] += 2, R(bias)[h] += 1;
    if (overwrite) memset(rdz.p, 0, tensor_bytes(rdz)), memset(dz.p, 0xFF, tensor_bytes(dz));
    REF(d, step, y, x, z, bias);
    BF16_OF(d, step, hy, hx, z, bias);
    exact(d, "step", hy, y);
    REF(d, step_backward, add_to(a.real), add_to(rdz), rdb, dy, x, z, bias);
    BF16_OF(d, step_backward, sum_into(a), ((Into){dz, overwrite}), db, hdy, hx, z, bias);
    exact(d, "dx of step", a.bf16, a.real);
    right(d, "dz", dz, rdz), right(d, "dbias", db, rdb);
    for (int i = 0; i < N * H; i++) R(z)[i] += 1;
    REF(d, step, y, x, z, bias);
    wrong("another step", hy, y);
    REF(d, step_backward, add_to(no_a), add_to(rdz), rdb, dy, x, z, bias);
    wrong("the slope of another step", a.bf16, no_a), wrong("the gradient of another step", dz, rdz);

    Tensor sum = RANDOM(g, "y", N, H, P), hsum = bf16_of_tensor(d, sum), before = tensor_copy(g, sum);
    REF(d, skip, sum, x, w);
    BF16_OF(d, skip, hsum, hx, w);
    exact(d, "skip", hsum, sum);
    wrong("no skip", hsum, before);
    REF(d, skip_backward, add_to(b.real), rdw, dy, x, w);
    BF16_OF(d, skip_backward, sum_into(b), dw, hdy, hx, w);
    exact(d, "dx of skip", b.bf16, b.real);
    right(d, "dw", dw, rdw);
    wrong("no gradient", b.bf16, no_b);
}
Test(acts, mamba) {
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        everywhere(mamba_case, (Size){20, 16, overwrite});
        everywhere(mamba_case, (Size){7, 33, overwrite});
        everywhere(mamba_case, (Size){3, 128, overwrite});
        everywhere(mamba_case, (Size){40, 1, overwrite});
        if (!cuda_ops()) everywhere(mamba_case, (Size){31, 701, overwrite});
    }
    fprintf(stderr, "steps and skips in bf16: at most %.2g\n", seen);
}

/* ---- the recurrence -------------------------------------------------------------------------------------------------
 */
static double recur_rms(void) { return cuda_ops() ? 6e-3 : op_rms; }
static const struct {
    int rows[3], H, HV, K, V;
} shapes[] = {
    {{3, 145, 70}, 1, 1, 16, 16}, /* chunks, and documents that end inside of them */
    {{0, 130, 12}, 2, 4, 20, 9},  {{5, 0, 20}, 1, 2, 33, 17},   {{67, 0, 2}, 2, 2, 9, 34},
    {{1, 0, 0}, 1, 1, 2, 3},      {{70, 140, 3}, 2, 6, 64, 70}, {{0, 0, 200}, 1, 1, 32, 48}, /* whole vectors */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static int shape_rows(int i) { return shapes[i].rows[0] + shapes[i].rows[1] + shapes[i].rows[2]; }
static Tensor of_scene(Desk *d, const char *name, const wide *from, int a, int b, int c) {
    Tensor t = EMPTY(&d->g, name, a, b, c);
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)from[i];
    return t;
}
/* On the CPU every number is the nearest to the op's own in f32. */
static void recurred(Desk *d, const char *what, Tensor got, Tensor want) {
    right_within(d, what, got, want, recur_rms());
    if (!cuda_ops()) nearest(d, what, got, want);
}
/* width: which shape; how: bit 0 overwrite, bit 1 delta, bit 2 sequences that continue a history; then two of
 * the decay: none, one for all channels, each its own; then whether there are erase keys. */
static void recur_acts_case(Desk *d, Size s) {
    const bool overwrite = s.how & 1, delta = s.how & 2;
    const int decay = s.how >> 3 & 3, H = shapes[s.width].H, HV = shapes[s.width].HV, K = shapes[s.width].K,
              V = shapes[s.width].V, N = s.N, G = (int[]){0, 1, K}[decay];
    Rig *g = &d->g;
    Scene *c = recur_case(3, shapes[s.width].rows, (int[]){64, 1, 25, 15, 130}, 5, H, HV, K, V, G, delta, s.how & 4);
    const bool history = c->history;
    g->batch = recur_batch(c);
    const bool erase = s.how >> 5;
    if (erase) recur_erase(c);
    const Recur x = {of_scene(d, "q", c->q, N, H, K),
                     of_scene(d, "k", c->k, N, H, K),
                     of_scene(d, "v", c->v, N, HV, V),
                     G ? of_scene(d, "g", c->g, N, HV, G) : ABSENT,
                     delta ? of_scene(d, "beta", c->beta, N, HV, 1) : ABSENT,
                     erase ? of_scene(d, "e", c->e, N, H, K) : ABSENT},
                hx = {bf16_of_tensor(d, x.q),
                      bf16_of_tensor(d, x.k),
                      bf16_of_tensor(d, x.v),
                      x.g,
                      x.beta,
                      erase ? bf16_of_tensor(d, x.e) : ABSENT};
    Tensor o = empty(d, x.v), ho = bf16_empty(d, x.v), dout = RANDOM(g, "do", N, HV, V),
           hdout = bf16_of_tensor(d, dout), keep = EMPTY(g, "keep", recur_keep(N), HV, K, V),
           rkeep = tensor_copy(g, keep), state = of_scene(d, "state", c->start, c->nseq, HV, K * V),
           rstate = tensor_copy(g, state), start = of_scene(d, "start", c->start, c->nseq, HV, K * V),
           dend = RANDOM(g, "dend", c->nseq, HV, K * V), dstart = zeros(d, dend), rdstart = zeros(d, dend),
           none = {.p = NULL};
    state.rank = rstate.rank = 2, state.n[1] = rstate.n[1] = HV * K * V;
    if (!history) state = rstate = none;
    REF(d, recur, o, rkeep, x, c->scale, rstate, 0);
    BF16_OF(d, recur, ho, keep, hx, c->scale, state, 0);
    recurred(d, "o", ho, o);
    if (history) recurred(d, "state", state, rstate);

    Sum q = sum_make(d, x.q, "dq", overwrite), k = sum_make(d, x.k, "dk", overwrite),
        v = sum_make(d, x.v, "dv", overwrite), e = {0};
    if (erase) e = sum_make(d, x.e, "de", overwrite);
    Tensor other_q = planted(d, q), other_k = planted(d, k), other_v = planted(d, v),
           dg = G ? rig_random(empty(d, x.g), "dg") : ABSENT, rdg = G ? tensor_copy(g, dg) : ABSENT,
           dbeta = delta ? rig_random(empty(d, x.beta), "dbeta") : ABSENT,
           rdbeta = delta ? tensor_copy(g, dbeta) : ABSENT;
    const Recur want = {q.real, k.real, v.real, rdg, rdbeta, e.real},
                other = {.q = other_q, .k = other_k, .v = other_v};
    const RecurInto got = {sum_into(q), sum_into(k), sum_into(v), add_to(dg), add_to(dbeta), sum_into(e)};
    const RecurEnds ends = {start, dstart, dend}, rends = {start, rdstart, dend};
    REF(d, recur_backward, (RecurInto[]){recur_add_to(want)}, dout, x, c->scale, rkeep, history ? &rends : NULL);
    BF16_OF(d, recur_backward, &got, hdout, hx, c->scale, keep, history ? &ends : NULL);
    recurred(d, "dq", q.bf16, q.real), recurred(d, "dk", k.bf16, k.real), recurred(d, "dv", v.bf16, v.real);
    if (G) recurred(d, "dg", dg, rdg);
    if (delta) recurred(d, "dbeta", dbeta, rdbeta);
    if (erase && (N > 1 || history)) recurred(d, "de", e.bf16, e.real); /* else 0: there is nothing to erase */
    if (history) recurred(d, "dstart", dstart, rdstart);
    if (N > 1) { /* rows of another head, or of the next row */
        Recur y = x;
        y.k = tensor_copy(g, x.k), y.v = tensor_copy(g, x.v);
        memmove(R(y.k), R(y.k) + K, (tensor_count(y.k) - (size_t)K) * sizeof(real));
        memmove(R(y.v), R(y.v) + V, (tensor_count(y.v) - (size_t)V) * sizeof(real));
        REF(d, recur, o, ABSENT, y, c->scale, rstate, 0);
        wrong_within("keys and values of others", ho, o, recur_rms());
        REF(d, recur_backward, (RecurInto[]){recur_add_to(other)}, dout, y, c->scale, rkeep, history ? &rends : NULL);
        wrong_within("dq by others", q.bf16, other_q, recur_rms());
        wrong_within("dk by others", k.bf16, other_k, recur_rms());
        wrong_within("dv by others", v.bf16, other_v, recur_rms());
    }
    recur_case_free(c);
}
/* Each decay with and without the delta rule, in every shape. */
static void recur_kind(int decay, bool delta, bool erase) {
    for (int i = 0; i < SHAPES; i++)
        for (int how = cuda_ops() ? i & 1 : 0; how < 4; how += cuda_ops() ? 2 : 1) /* an emulation is slow */
            everywhere(recur_acts_case,
                       (Size){shape_rows(i), i, erase << 5 | decay << 3 | (how & 2) << 1 | delta << 1 | (how & 1)});
    fprintf(stderr, "recurrence in bf16, decay %d, delta %d, erase %d: at most %.2g\n", decay, delta, erase, seen);
}
Test(acts, recur_delta, .timeout = 300) { recur_kind(0, true, false); }
Test(acts, recur_gated_delta, .timeout = 300) { recur_kind(1, true, false); }
Test(acts, recur_kimi_delta, .timeout = 300) { recur_kind(2, true, false); }
Test(acts, recur_linear, .timeout = 300) { recur_kind(0, false, false); }
Test(acts, recur_scalar_decay, .timeout = 300) { recur_kind(1, false, false); }
Test(acts, recur_gated_linear, .timeout = 300) { recur_kind(2, false, false); }
Test(acts, recur_comba, .timeout = 300) { recur_kind(1, true, true); }
Test(acts, recur_gated_delta_2, .timeout = 300) { recur_kind(2, false, true); }
