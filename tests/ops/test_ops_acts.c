/* test_ops_acts.c: ops on activations that are BF16 in memory, with every op table, against the CPU's op in `real`,
 * which is held to long double elsewhere, on the same rounded numbers: what is left is the rounding of what is stored.
 * Planted mistakes miss the bound tenfold. Whole models on CUDA are in simt/test_cuda_bf16_model.c and
 * simt/test_cuda_acts_model.c, attention in simt/test_cuda_bf16.c. */
#include "tests/lib/acts.h"

/* ---- products -------------------------------------------------------------------------------------------------------
 */
static void product_case(Desk *d, Size s) {
    const int N = s.N, I = s.width, O = s.how / 2;
    const bool overwrite = s.how % 2;
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", N, I), w = RANDOM(g, "w", O, I), w2 = RANDOM(g, "w2", O, I), b = RANDOM(g, "b", O),
           dy = RANDOM(g, "dy", N, O), dy2 = RANDOM(g, "dy2", N, O), y = empty(d, dy), y2 = empty(d, dy);
    bf16_of_tensor(d, w), bf16_of_tensor(d, w2); /* products round them: the reference takes them rounded */
    Tensor hx = bf16_of_tensor(d, x), hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, dy), hy2 = bf16_empty(d, dy);
    REF(d, linear_many, 2, ((Projection[]){{y, w, b}, {y2, w2, ABSENT}}), x);
    BF16_OF(d, linear_many, 2, ((Projection[]){{hy, w, b}, {hy2, w2, ABSENT}}), hx);
    right(d, "linear", hy, y), right(d, "linear", hy2, y2);
    REF(d, linear, y2, x, w, ABSENT);
    wrong("a bias", hy, y2);
    BF16_OF(d, linear, hy2, hx, w, ABSENT);
    right(d, "linear of one alone", hy2, y2);
    BF16_OF(d, linear, y2, hx, w, b); /* to f32, as into the stream */
    right(d, "linear to f32", y2, y);
    /* Two gradients that add up; of the second dy is f32. */
    Sum dx = sum_make(d, x, "dx", overwrite);
    Tensor dw = RANDOM(g, "dw", O, I), dw2 = RANDOM(g, "dw2", O, I), db = RANDOM(g, "db", O), rdw = tensor_copy(g, dw),
           rdw2 = tensor_copy(g, dw2), rdb = tensor_copy(g, db), one = zeros(d, x), sum = tensor_copy(g, dw);
    bf16_of_tensor(d, dy2);
    const Projection back[] = {{dy, rdw, rdb}, {dy2, rdw2, ABSENT}}, bf16_back[] = {{hdy, dw, db}, {dy2, dw2, ABSENT}},
                     of[] = {{.w = w}, {.w = w2}};
    REF(d, linear_many_backward, add_to(dx.real), 2, back, x, of);
    rig_measure(g);
    g->run.ops->linear_many_backward(&g->run, sum_into(dx), 2, bf16_back, hx, of);
    rig_place(g);
    g->run.ops->linear_many_backward(&g->run, sum_into(dx), 2, bf16_back, hx, of);
    rig_done(g);
    right(d, "dx", dx.bf16, dx.real), right(d, "dw", dw, rdw), right(d, "dw of f32", dw2, rdw2),
        right(d, "dbias", db, rdb);
    REF(d, linear_backward, add_to(one), ABSENT, ABSENT, dy, x, w);
    wrong("a gradient of one alone", dx.bf16, one);
    Tensor alone = bf16_empty(d, x);
    BF16_OF(d, linear_backward, ((Into){alone, true}), ABSENT, ABSENT, hdy, hx, w);
    right(d, "dx of one alone", alone, one);
    wrong("a gradient that is not there", dw, sum);
}
Test(acts, products, .timeout = 120) {
    /* rows that begin at 16 bytes, and that do not; matrices too small to be rounded elsewhere */
    static const int sizes[][3] = {{33, 64, 48}, {20, 40, 33}, {7, 41, 80}, {1, 24, 16}, {40, 13, 10}};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int overwrite = 0; overwrite < 2; overwrite++)
            everywhere(product_case, (Size){sizes[z][0], sizes[z][1], 2 * sizes[z][2] + overwrite});
    fprintf(stderr, "products of rows in bf16: at most %.2g\n", seen);
}
/* As many projections of one input as layers have: a product of CUDA's rounds what it adds to. */
static void many_case(Desk *d, Size s) {
    enum { MANY = 6 };
    const int N = s.N, I = s.width;
    const bool overwrite = s.how;
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", N, I), hx = bf16_of_tensor(d, x), before = zeros(d, x);
    Projection back[MANY], bf16_back[MANY], of[MANY];
    for (int j = 0; j < MANY; j++) {
        char name[] = {(char)('a' + j), 0};
        int O = 16 + 8 * j;
        Tensor w = RANDOM(g, name, O, I), dy = RANDOM(g, name, N, O);
        bf16_of_tensor(d, w);
        of[j] = (Projection){.w = w}, back[j] = (Projection){.y = dy};
        bf16_back[j] = (Projection){.y = bf16_of_tensor(d, dy)};
    }
    Sum dx = sum_make(d, x, "dx", overwrite);
    if (!overwrite) before = tensor_copy(g, dx.real);
    REF(d, linear_many_backward, add_to(before), MANY - 1, back, x, of);
    REF(d, linear_many_backward, add_to(dx.real), MANY, back, x, of);
    rig_measure(g);
    g->run.ops->linear_many_backward(&g->run, sum_into(dx), MANY, bf16_back, hx, of);
    rig_place(g);
    g->run.ops->linear_many_backward(&g->run, sum_into(dx), MANY, bf16_back, hx, of);
    rig_done(g);
    right(d, "dx of many", dx.bf16, dx.real);
    wrong("one of many missed", dx.bf16, before);
}
Test(acts, many_products) {
    for (int overwrite = 0; overwrite < 2; overwrite++) everywhere(many_case, (Size){33, 64, overwrite});
    everywhere(many_case, (Size){20, 41, 1});
}
static void loss_case(Desk *d, Size s) {
    enum { N = 30, I = 40, V = 203 };
    cr_assert(s.N == N);
    Rig *g = &d->g;
    int tgt[N];
    for (int i = 0; i < N; i++) tgt[i] = i % 9 == 5 ? -1 : i * 37 % V;
    Tensor x = RANDOM(g, "x", N, I), w = RANDOM(g, "w", V, I), G = RANDOM(g, "g", N), nll = EMPTY(g, "nll", N),
           rnll = EMPTY(g, "nll", N), dw = EMPTY(g, "dw", V, I), rdw = zeros(d, w), rdx = zeros(d, x);
    memset(dw.p, 0, tensor_bytes(dw));
    bf16_of_tensor(d, w);
    Tensor hx = bf16_of_tensor(d, x), dx = bf16_empty(d, x);
    REF(d, linear_xent, rnll, NULL, add_to(rdx), rdw, x, w, LOGITS_PLAIN, tgt, R(G));
    BF16_OF(d, linear_xent, nll, NULL, overwrite(dx), dw, hx, w, LOGITS_PLAIN, tgt, R(G));
    right(d, "nll", nll, rnll), right(d, "dx", dx, rdx), right(d, "dw", dw, rdw);
    tgt[3] = 7;
    REF(d, linear_xent, rnll, NULL, add_to(zeros(d, x)), zeros(d, w), x, w, LOGITS_PLAIN, tgt, R(G));
    wrong("another target", tensor_part(nll, 3, 1), tensor_part(rnll, 3, 1));
    /* And from a teacher: rows in f32, products of them rounded. */
    const Distill c = {0.5, 0.3, 0.2, 1.5, LOGITS_PLAIN, LOGITS_PLAIN};
    Tensor kl = EMPTY(g, "kl", N), rkl = EMPTY(g, "rkl", N), wkl = EMPTY(g, "kl", N), wrkl = EMPTY(g, "rkl", N),
           y = RANDOM(g, "y", N, I), u = RANDOM(g, "u", V, I), dx32 = zeros(d, x), dw32 = zeros(d, w);
    rdx = zeros(d, x), rdw = zeros(d, w);
    bf16_of_tensor(d, y), bf16_of_tensor(d, u);
    REF(d, linear_distill, rnll, wkl, wrkl, rdx, rdw, x, w, y, u, tgt, R(G), c);
    BF16_OF(d, linear_distill, nll, kl, rkl, dx32, dw32, x, w, y, u, tgt, R(G), c);
    right(d, "nll beside a teacher", nll, rnll), right(d, "kl", kl, wkl), right(d, "reverse kl", rkl, wrkl);
    right(d, "dx beside a teacher", dx32, rdx), right(d, "dw beside a teacher", dw32, rdw);
    wrong("a gradient without the teacher", dw, rdw);
}
Test(acts, losses) { everywhere(loss_case, (Size){.N = 30}); }

/* ---- norms, rotation ------------------------------------------------------------------------------------------------
 */
static void norm_case(Desk *d, Size s) {
    const int N = s.N, width = s.width;
    const bool x_too = s.how > 0, overwrite = s.how == 2;
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", N, width), w = RANDOM(g, "w", width), b = RANDOM(g, "b", width),
           dy = RANDOM(g, "dy", N, width), y = empty(d, x), rstd = EMPTY(g, "rstd", N), rrstd = EMPTY(g, "rstd", N),
           dw = RANDOM(g, "dw", width), rdw = tensor_copy(g, dw);
    for (int i = 0; i < width; i++) R(w)[i] += 2;
    Tensor hx = x_too ? bf16_of_tensor(d, x) : x, hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, x);
    REF(d, rmsnorm, y, rrstd, x, w, 1e-5);
    BF16_OF(d, rmsnorm, hy, rstd, hx, w, 1e-5);
    right(d, "rmsnorm", hy, y), right(d, "rstd", rstd, rrstd);
    if (!x_too) { /* the stream takes something in first */
        Tensor z = RANDOM(g, "z", N, width), sum = tensor_copy(g, x), hsum = tensor_copy(g, x);
        REF(d, add_rmsnorm, y, rrstd, sum, z, w, 1e-5);
        BF16_OF(d, add_rmsnorm, hy, rstd, hsum, z, w, 1e-5);
        right(d, "add_rmsnorm", hy, y), right(d, "rstd of a sum", rstd, rrstd), right(d, "sum", hsum, sum);
        BF16_OF(d, rmsnorm, hy, rstd, hx, w, 1e-5);
    }
    REF(d, rmsnorm, y, rrstd, x, w, 0.3);
    wrong("another eps", hy, y);
    REF(d, rmsnorm, y, rrstd, x, w, 1e-5);
    Sum dx = {.real = rig_random(empty(d, x), "dx")};
    if (x_too)
        dx = sum_make(d, x, "dx", overwrite);
    else
        dx.bf16 = tensor_copy(g, dx.real);
    Tensor before = tensor_copy(g, dx.real);
    REF(d, rmsnorm_backward, add_to(dx.real), rdw, dy, x, w, rrstd);
    BF16_OF(d, rmsnorm_backward, sum_into(dx), dw, hdy, hx, w, rstd);
    if (dx.bf16.dtype == REAL) /* what was there before is measured, too, unless it is taken off */
        for (int i = 0; i < N * width; i++) R(dx.bf16)[i] -= R(before)[i], R(dx.real)[i] -= R(before)[i];
    right(d, "dx", dx.bf16, dx.real), right(d, "dw", dw, rdw);
    Tensor other = zeros(d, x);
    for (int i = 0; i < N * width; i++) R(other)[i] = R(dy)[i] * R(w)[i % width] * R(rstd)[i / width];
    if (N > 1 && width <= 100 && (overwrite || !x_too)) wrong("no mean taken off", dx.bf16, other);
    if (x_too && cuda_ops()) return; /* layernorm there reads x as f32 alone */
    Tensor db = RANDOM(g, "db", width), rdb = tensor_copy(g, db);
    REF(d, layernorm, y, rrstd, x, w, b, 1e-5);
    BF16_OF(d, layernorm, hy, rstd, hx, w, b, 1e-5);
    right(d, "layernorm", hy, y), right(d, "its rstd", rstd, rrstd);
    wrong("a norm for another", hy, x);
    Tensor want = zeros(d, x), got = zeros(d, hx);
    REF(d, layernorm_backward, want, rdw, rdb, dy, x, w, rrstd);
    BF16_OF(d, layernorm_backward, got, dw, db, hdy, hx, w, rstd);
    right(d, "dx", got, want), right(d, "dw", dw, rdw), right(d, "db", db, rdb);
    if (width <= 100) wrong("the gradient of another norm", got, dx.real);
}
Test(acts, norms, .timeout = 120) {
    static const int sizes[][2] = {{33, 64},  {20, 100}, {9, 30},   {7, 200}, {5, 600},  {3, 1100},
                                   {3, 2100}, {2, 4100}, {2, 8300}, {1, 17},  {50, 1041}};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int how = 0; how < 3; how++)
            if (!cuda_ops() || sizes[z][0] < 50) everywhere(norm_case, (Size){sizes[z][0], sizes[z][1], how});
    fprintf(stderr, "norms of rows in bf16: at most %.2g\n", seen);
}
static void rotation_case(Desk *d, Size s) {
    const int heads = 3, D = s.width, sign = s.how < 2 ? 1 : -1;
    Rope p = {.at = 2, .n = D - 4, .interleaved = s.how % 2, .factor = 1.25};
    for (int i = 0; i < p.n / 2; i++) p.f[i] = pow(0.5, i);
    Tensor x = RANDOM(&d->g, "x", s.N, heads, D), h = bf16_of_tensor(d, x), back = tensor_copy(&d->g, x);
    REF(d, rope, x, &p, d->ref.in, sign);
    BF16_OF(d, rope, h, &p, d->g.run.in, sign);
    exact(d, "rope", h, x);
    REF(d, rope, back, &p, d->ref.in, -sign);
    if (s.N > 1) wrong("the other sign", h, back);
}
Test(acts, rotation) {
    for (int how = 0; how < 4; how++) {
        everywhere(rotation_case, (Size){20, 20, how});
        everywhere(rotation_case, (Size){1, 18, how});
        if (!cuda_ops()) everywhere(rotation_case, (Size){200, 86, how});
    }
}

/* The share of numbers that are not the nearest to what is wanted: next to none of what is rounded once, whatever the
 * order of its sums. */
static const double beside_most = 0.02;
static double beside(Tensor got, Tensor want) {
    size_t n = tensor_count(got), off = 0;
    for (size_t i = 0; i < n; i++) {
        real x;
        tensor_read(got, i, 1, &x);
        off += x != bf16_to(bf16_from((float)R(want)[i]));
    }
    return (double)off / (double)n;
}
static void norm_rotation_case(Desk *d, Size s) {
    const int heads = 3, D = s.width;
    const bool overwrite = s.how / 2;
    Rope p = {.at = D % 8 ? 2 : 8,
              .n = imin(D % 8 ? D - 4 : D - 8, 2 * ROPE_PAIRS),
              .interleaved = s.how % 2,
              .factor = 1.25};
    for (int i = 0; i < p.n / 2; i++) p.f[i] = pow(0.5, i);
    Rig *g = &d->g;
    Tensor x = RANDOM(g, "x", s.N, heads, D), w = RANDOM(g, "w", D), dy = RANDOM(g, "dy", s.N, heads, D),
           rstd = EMPTY(g, "rstd", s.N, heads), want = EMPTY(g, "rstd", s.N, heads), y = empty(d, x),
           hy = bf16_empty(d, x), twice = bf16_empty(d, x), dw = RANDOM(g, "dw", D), rdw = tensor_copy(g, dw),
           other = zeros(d, x);
    for (int i = 0; i < D; i++) R(w)[i] += 2;
    Tensor hx = bf16_of_tensor(d, x), hdy = bf16_of_tensor(d, dy), kept = tensor_copy(g, hdy);
    REF(d, rmsnorm_rope, y, want, x, w, 1e-5, &p, d->ref.in);
    BF16_OF(d, rmsnorm_rope, hy, rstd, hx, w, 1e-5, &p, g->run.in);
    exact(d, "rmsnorm_rope", hy, y), right(d, "its rstd", rstd, want);
    BF16_OF(d, rmsnorm, twice, rstd, hx, w, 1e-5);
    BF16_OF(d, rope, twice, &p, g->run.in, 1);
    right(d, "beside two ops", twice, y);
    if (s.N > 1 && D > 20 && 3 * p.n > 2 * D) /* most of a head turns */
        cr_assert(beside(hy, y) <= beside_most && beside(twice, y) > 10 * beside_most,
                  "%s: %g of all numbers are not the nearest, %g of those rounded twice", g->table, beside(hy, y),
                  beside(twice, y));
    Sum dx = sum_make(d, x, "dx", overwrite);
    REF(d, rmsnorm_rope_backward, add_to(dx.real), rdw, dy, x, w, want, &p, d->ref.in);
    BF16_OF(d, rmsnorm_rope_backward, sum_into(dx), dw, hdy, hx, w, rstd, &p, g->run.in);
    right(d, "dx", dx.bf16, dx.real), right(d, "dw", dw, rdw);
    cr_assert(!memcmp(hdy.p, kept.p, tensor_bytes(kept)), "%s: dy was changed", g->table);
    REF(d, rmsnorm_backward, add_to(other), rdw, dy, x, w, want);
    if (s.N > 1) wrong("a gradient not turned back", dx.bf16, other), wrong("its gains", dw, rdw);
}
Test(acts, norm_and_rotation) {
    for (int how = 0; how < 4; how++) {
        everywhere(norm_rotation_case,
                   (Size){20, 64, how}); /* four numbers at a time, and one; by teams of all sizes */
        everywhere(norm_rotation_case, (Size){9, 120, how});
        everywhere(norm_rotation_case, (Size){5, 208, how});
        everywhere(norm_rotation_case, (Size){2, 512, how});
        everywhere(norm_rotation_case, (Size){2, HEAD_WIDEST, how});
        everywhere(norm_rotation_case, (Size){2, HEAD_WIDEST - 2, how});
        everywhere(norm_rotation_case, (Size){20, 38, how});
        everywhere(norm_rotation_case, (Size){3, 406, how});
        everywhere(norm_rotation_case, (Size){1, 18, how});
        if (!cuda_ops()) everywhere(norm_rotation_case, (Size){200, 86, how});
    }
}

/* ---- one number at a time -------------------------------------------------------------------------------------------
 */
static void activations_case(Desk *d, Size s) {
    const int N = s.N, F = s.width;
    const bool overwrite = s.how;
    Rig *g = &d->g;
    Tensor gate = RANDOM(g, "gate", N, F), up = RANDOM(g, "up", N, F), dy = RANDOM(g, "dy", N, F), y = empty(d, up);
    Tensor hgate = bf16_of_tensor(d, gate), hup = bf16_of_tensor(d, up), hdy = bf16_of_tensor(d, dy),
           hy = bf16_empty(d, up);
    REF(d, swiglu, y, gate, up);
    BF16_OF(d, swiglu, hy, hgate, hup);
    exact(d, "swiglu", hy, y);
    REF(d, swiglu, y, up, gate);
    wrong("gate for up", hy, y);
    Sum a = sum_make(d, up, "dgate", overwrite), b = sum_make(d, up, "dup", overwrite);
    REF(d, swiglu, y, gate, up);
    REF(d, swiglu_backward, ABSENT, add_to(a.real), add_to(b.real), dy, gate, up);
    BF16_OF(d, swiglu_backward, hy, sum_into(a), sum_into(b), hdy, hgate, hup);
    exact(d, "act", hy, y);
    exact(d, "dgate", a.bf16, a.real), exact(d, "dup", b.bf16, b.real);
    wrong("dup for dgate", a.bf16, b.real);
    for (int tanh = 0; tanh < 2; tanh++) {
        Sum c = sum_make(d, up, "dx", overwrite);
        Tensor other = tensor_copy(g, c.real);
        REF(d, gelu, y, up, tanh);
        BF16_OF(d, gelu, hy, hup, tanh);
        exact(d, "gelu", hy, y);
        wrong("no gelu", hy, up);
        REF(d, gelu_backward, add_to(c.real), dy, up, tanh);
        BF16_OF(d, gelu_backward, sum_into(c), hdy, hup, tanh);
        exact(d, "dx", c.bf16, c.real);
        REF(d, gelu_backward, add_to(other), dy, dy, tanh);
        wrong("a slope elsewhere", c.bf16, other);
        Sum m = sum_make(d, up, "dgate", overwrite), n = sum_make(d, up, "dup", overwrite);
        REF(d, geglu, y, gate, up, tanh);
        BF16_OF(d, geglu, hy, hgate, hup, tanh);
        exact(d, "geglu", hy, y);
        REF(d, geglu_backward, ABSENT, add_to(m.real), add_to(n.real), dy, gate, up, tanh);
        BF16_OF(d, geglu_backward, hy, sum_into(m), sum_into(n), hdy, hgate, hup, tanh);
        exact(d, "geglu made again", hy, y);
        exact(d, "dgate of geglu", m.bf16, m.real), exact(d, "dup of geglu", n.bf16, n.real);
        wrong("dup for dgate", m.bf16, n.real);
    }
}
Test(acts, activations, .timeout = 120) {
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        everywhere(activations_case, (Size){24, 80, overwrite});
        everywhere(activations_case, (Size){5, 33, overwrite});
        everywhere(activations_case, (Size){1, 7, overwrite});
        if (!cuda_ops()) everywhere(activations_case, (Size){37, 701, overwrite});
    }
    fprintf(stderr, "activations in bf16: at most %.2g\n", seen);
}
static void sums_case(Desk *d, Size s) {
    const int N = s.N, width = s.width, to[] = {1, 4, N - 1};
    Tensor y = RANDOM(&d->g, "y", N, width), x = RANDOM(&d->g, "x", N, width), hx = bf16_of_tensor(d, x),
           f = tensor_copy(&d->g, x), h = bf16_empty(d, x);
    for (int pair = 0; pair < 3; pair++) { /* BF16 and f32, f32 and BF16, both BF16 */
        Tensor want = tensor_copy(&d->g, y), to_y = pair == 1 ? tensor_copy(&d->g, y) : bf16_of_tensor(d, want);
        Tensor before = tensor_copy(&d->g, want);
        REF(d, add, want, x);
        BF16_OF(d, add, to_y, pair ? hx : f);
        exact(d, "add", to_y, want);
        wrong("no sum", to_y, before);
    }
    BF16_OF(d, copy, h, y); /* rounded, not cut */
    for (int i = 0; i < N * width; i++)
        cr_assert(((uint16_t *)h.p)[i] == bf16_from((float)R(y)[i]), "number %d is not the nearest", i);
    BF16_OF(d, copy, h, hx);
    cr_assert(!memcmp(h.p, hx.p, tensor_bytes(h)));
    memset(f.p, 0xFF, tensor_bytes(f));
    BF16_OF(d, copy, f, hx);
    cr_assert(!memcmp(f.p, x.p, tensor_bytes(f)));
    Tensor rows = arena_tensor(&d->g.mem, "rows", BF16, 2, (int[]){3, width});
    BF16_OF(d, gather, rows, hx, d->g.run.in, ((RowList){3, to}));
    for (int i = 0; i < 3; i++)
        cr_assert(!memcmp((uint16_t *)rows.p + i * width, (uint16_t *)hx.p + to[i] * width, (size_t)width * 2));
    memset(h.p, 0xFF, tensor_bytes(h));
    BF16_OF(d, gather, h, hx, d->g.run.in, d->g.run.in);
    cr_assert(!memcmp(h.p, hx.p, tensor_bytes(h)));
    memset(h.p, 0xFF, tensor_bytes(h));
    CALL(&d->g, begin_sum(&d->g.run, overwrite(h)));
    for (int i = 0; i < N * width; i++) cr_assert(((uint16_t *)h.p)[i] == 0, "number %d is not cleared", i);
}
Test(acts, sums_copies_rows) {
    everywhere(sums_case, (Size){11, 64, 0});
    everywhere(sums_case, (Size){11, 37, 0});
    if (!cuda_ops()) everywhere(sums_case, (Size){67, 1053, 0});
}

/* Pieces of any place and width, between all types. */
static void pieces_case(Desk *d, Size s) {
    const int N = s.N, w = s.width, wide = w + 5, n = 3;
    Tensor x = RANDOM(&d->g, "x", N, wide), hx = bf16_of_tensor(d, x), f = RANDOM(&d->g, "f", N, wide);
    size_t to[] = {(size_t)(2 * wide + 3), 1, (size_t)(wide + 2)}, from[] = {7, (size_t)(wide + 4), 7};
    for (int how = 0; how < 4; how++) { /* x, then y, BF16; f32 has numbers that are to be rounded */
        Tensor in = how % 2 ? x : f, y = RANDOM(&d->g, "y", N, wide), hy = bf16_of_tensor(d, y),
               to_y = how / 2 ? hy : tensor_copy(&d->g, y), before = tensor_copy(&d->g, y),
               left = tensor_copy(&d->g, y);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < w; k++) R(y)[to[i] + (size_t)k] = R(in)[from[i] + (size_t)k];
        BF16_OF(d, move, to_y, to, how % 2 ? hx : f, from, n, w);
        nearest(d, "move", to_y, y);
        wrong("nothing moved", to_y, before);
        for (int k = 0; k < w; k++) R(left)[to[0] + (size_t)k] = R(in)[from[0] + (size_t)k + 1];
        wrong("a piece one number off", to_y, left);
    }
}
Test(acts, pieces) {
    everywhere(pieces_case, (Size){4, 16, 0});
    everywhere(pieces_case, (Size){5, 37, 0});
    if (!cuda_ops()) everywhere(pieces_case, (Size){4, 1300, 0});
}

/* Columns of one row to those of three, between all types, and back; what lies beside them stays. The sum of three
 * shares is rounded once, and so is the nearest. */
static void columns_case(Desk *d, Size s) {
    const int N = s.N, n = s.width, k = 3, from = s.how ? 8 : 2, to = s.how ? 16 : 5;
    Rig *g = &d->g;
    for (int types = 0; types < 4; types++) { /* x and dx, then y and dy, BF16 */
        const bool x_bf16 = types % 2, y_bf16 = types / 2;
        Mark mark = arena_mark(&g->mem);
        Tensor x = RANDOM(g, "x", N, n + 16), y = RANDOM(g, "y", N * k, n + 24), hx = bf16_of_tensor(d, x),
               hy = bf16_of_tensor(d, y), wide = RANDOM(g, "wide", N, n + 16), other = tensor_copy(g, y);
        Tensor in = x_bf16 ? x : wide, out = y_bf16 ? hy : tensor_copy(g, y);
        REF(d, columns, y, to, in, from, n);
        REF(d, columns, other, to, in, from + 1, n);
        BF16_OF(d, columns, out, to, x_bf16 ? hx : wide, from, n);
        nearest(d, "columns", out, y);
        wrong("columns one number off", out, other);
        for (int overwrite = 0; overwrite < 2; overwrite++) {
            Tensor dy = RANDOM(g, "dy", N * k, n + 24), hdy = bf16_of_tensor(d, dy), dx = RANDOM(g, "dx", N, n + 16),
                   hdx = bf16_of_tensor(d, dx), real = tensor_copy(g, dx), added = tensor_copy(g, dx);
            Tensor sum = x_bf16 ? hdx : real;
            REF(d, columns_backward, add_to(added), from, dy, to, n);
            for (int i = 0; i < N && overwrite; i++)
                for (int c = from; c < from + n; c++) {
                    size_t at = (size_t)i * (size_t)(n + 16) + (size_t)c;
                    R(dx)[at] = 0;
                    memset((char *)sum.p + at * dtype_size(sum.dtype), 0xFF, dtype_size(sum.dtype));
                }
            REF(d, columns_backward, add_to(dx), from, dy, to, n);
            BF16_OF(d, columns_backward, ((Into){sum, overwrite}), from, y_bf16 ? hdy : dy, to, n);
            nearest(d, overwrite ? "overwrite columns" : "columns added to", sum, dx);
            if (overwrite) wrong("what was there", sum, added);
            for (int i = 0; i < N; i++) /* of every row the last of three */
                for (int c = 0; c < n; c++) R(dx)
            [(size_t)i * (size_t)(n + 16) + (size_t)(from + c)] -=
                R(dy)[(size_t)(i * k + k - 1) * (size_t)(n + 24) + (size_t)(to + c)];
            wrong("a share that is missing", sum, dx);
        }
        arena_release(&g->mem, mark);
    }
}
Test(acts, columns) {
    everywhere(columns_case, (Size){5, 16, 1}); /* eight at a time, and one */
    everywhere(columns_case, (Size){5, 16, 0});
    everywhere(columns_case, (Size){3, 13, 1});
    everywhere(columns_case, (Size){1, 1, 0});
    if (!cuda_ops()) everywhere(columns_case, (Size){15, 1041, 0});
}

/* What has no neighbours, and ties: the definition's number, in every lane of a vector. */
static void rounding_case(Desk *d, Size s) {
    static const uint32_t bits[] = {0,          0x80000000, 1,          0x80000001, 0x00007FFF, 0x00008000,
                                    0x00008001, 0x007FFFFF, 0x00800000, 0x3F808000, 0x3F818000, 0x3F807FFF,
                                    0xBF818001, 0x7F7FFFFF, 0x7F7F7FFF, 0xFF7F8000, 0x7F800000, 0xFF800000,
                                    0x7FC00000, 0xFFC00000, 0x7FBFFFFF, 0x7FFFFFFF, 0xFFFF8000};
    enum { KINDS = sizeof bits / sizeof *bits };
    Tensor x = EMPTY(&d->g, "x", s.N, s.width), h = bf16_empty(d, x);
    for (size_t i = 0; i < tensor_count(x); i++) {
        float f;
        memcpy(&f, &bits[i * 7 % KINDS], sizeof f);
        R(x)[i] = (real)f;
    }
    BF16_OF(d, copy, h, x);
    for (size_t i = 0; i < tensor_count(x); i++) {
        uint16_t got = ((uint16_t *)h.p)[i], want = bf16_from((float)R(x)[i]);
        cr_assert(isnan(R(x)[i]) ? isnan(bf16_to(got)) : got == want, "%s: %08x becomes %04x instead of %04x",
                  d->g.table, bits[i * 7 % KINDS], got, want);
    }
}
Test(acts, roundings) { everywhere(rounding_case, (Size){3, 83, 0}); }
