/* test_cuda_acts.c: ops on activations that are BF16 in memory, against the CPU's, which are held to long double, on the
 * same rounded numbers: what is left is the rounding of what is stored. Planted mistakes miss the bound tenfold. Whole
 * models are in test_cuda_bf16_model.c and test_cuda_acts_model.c, attention in test_cuda_bf16.c. */
#include "../rig.h"

static const double op_rms = 4e-3;
typedef struct {
    Rig g;
    Device *cpu;
    Arena scratch;
    Run ref;
    int off[2], *of, *at;
    uint64_t id;
} Desk;
enum { ROWS_MOST = 64 };
static void desk_open(Desk *d, int N) {
    Err e = {0};
    *d = (Desk){.off = {0, N}, .id = 5};
    rig_open(&d->g, rig_first(), 1, (size_t)8 << 20);
    cr_assert(device_open(&d->cpu, "cpu", 1, &e) && device_bf16(d->g.dev, true, &e), "%s", e.msg);
    d->of = xcalloc((size_t)N, sizeof *d->of), d->at = xcalloc((size_t)N, sizeof *d->at);
    for (int i = 0; i < N; i++) d->at[i] = i;
    d->g.batch = (Batch){.B = 1, .N = N, .off = d->off, .of = d->of, .pos = d->at, .id = &d->id};
    d->ref = run_make(d->cpu, &d->scratch);
    d->ref.batch = &d->g.batch;
    d->g.run.in = d->g.run.out = d->ref.in = d->ref.out = (Pick){N, d->at};
}
static void desk_close(Desk *d) {
    Err e = {0};
    device_bf16(d->g.dev, false, &e);
    rig_close(&d->g);
    device_close(d->cpu);
    free(d->of), free(d->at);
}
/* The same op by the CPU, in f32. */
#define REF(d, op, ...)                                                                               \
    do {                                                                                              \
        Err e_ = {0};                                                                                 \
        (d)->scratch = (Arena){.name = "scratch"};                                                    \
        (d)->ref.ops->op(&(d)->ref, __VA_ARGS__);                                                     \
        size_t peak_ = (d)->scratch.peak;                                                             \
        cr_assert(arena_open(&(d)->scratch, "scratch", peak_ ? peak_ : 64, true, &e_), "%s", e_.msg); \
        (d)->ref.ops->op(&(d)->ref, __VA_ARGS__);                                                     \
        arena_close(&(d)->scratch);                                                                   \
    } while (0)
#define HALF_OF(d, op, ...) OP(&(d)->g, op, __VA_ARGS__)

/* Memory for results in BF16: NaN. */
static Tensor half_empty(Desk *d, Tensor like) { return arena_tensor(&d->g.mem, "in bf16", BF16, like.rank, like.n); }
static Tensor empty(Desk *d, Tensor like) { return arena_tensor(&d->g.mem, "in f32", REAL, like.rank, like.n); }
/* t in BF16; t itself becomes the rounded numbers. */
static Tensor half_of_tensor(Desk *d, Tensor t) {
    Tensor h = half_empty(d, t);
    for (size_t i = 0; i < tensor_count(t); i++) {
        ((uint16_t *)h.p)[i] = bf16_from(R(t)[i]);
        R(t)[i] = bf16_to(((uint16_t *)h.p)[i]);
    }
    return h;
}
static Tensor zeros(Desk *d, Tensor like) {
    Tensor t = empty(d, like);
    memset(t.p, 0, tensor_bytes(t));
    return t;
}
static double error(Tensor got, Tensor want) {
    double e = 0, s = 0;
    for (size_t i = 0; i < tensor_count(want); i++) {
        real x;
        tensor_read(got, i, 1, &x);
        e += ((double)x - (double)R(want)[i]) * ((double)x - (double)R(want)[i]);
        s += (double)R(want)[i] * (double)R(want)[i];
    }
    return sqrt(e / s);
}
static double seen;
static void right(const char *what, Tensor got, Tensor want) {
    double e = error(got, want);
    cr_assert(e <= op_rms, "%s (%d,%d): %.3g", what, want.n[0], want.rank > 1 ? want.n[1] : 0, e);
    seen = fmax(seen, e);
}
static void wrong(const char *what, Tensor got, Tensor other) {
    double e = error(got, other);
    cr_assert(e > 10 * op_rms, "%s goes unnoticed: %.3g", what, e);
}
/* Backward once into what is fresh, whose memory is NaN, and once added to numbers. */
typedef struct {
    Tensor real, before, half;
} Sum;
static Sum sum_make(Desk *d, Tensor like, const char *name, bool fresh) {
    Sum s = {.real = rig_random(empty(d, like), name)};
    if (fresh) {
        memset(s.real.p, 0, tensor_bytes(s.real));
        s.half = as_fresh(half_empty(d, like));
    } else
        s.half = half_of_tensor(d, s.real);
    return s;
}

/* ---- products -------------------------------------------------------------------------------------------------------
 */
static void product_case(int N, int I, int O, bool fresh) {
    Desk d;
    desk_open(&d, N);
    Rig *g = &d.g;
    Tensor x = RANDOM(g, "x", N, I), w = RANDOM(g, "w", O, I), w2 = RANDOM(g, "w2", O, I), b = RANDOM(g, "b", O),
           dy = RANDOM(g, "dy", N, O), dy2 = RANDOM(g, "dy2", N, O), y = empty(&d, dy), y2 = empty(&d, dy);
    half_of_tensor(&d, w), half_of_tensor(&d, w2); /* products round them: the reference takes them rounded */
    Tensor hx = half_of_tensor(&d, x), hdy = half_of_tensor(&d, dy), hy = half_empty(&d, dy), hy2 = half_empty(&d, dy);
    REF(&d, linear_many, 2, ((Projection[]){{y, w, b}, {y2, w2, ABSENT}}), x);
    HALF_OF(&d, linear_many, 2, ((Projection[]){{hy, w, b}, {hy2, w2, ABSENT}}), hx);
    right("linear", hy, y), right("linear", hy2, y2);
    REF(&d, linear, y2, x, w, ABSENT);
    wrong("a bias", hy, y2);
    HALF_OF(&d, linear, y2, hx, w, b); /* to f32, as into the stream */
    right("linear to f32", y2, y);
    /* Two gradients that add up; of the second dy is f32. */
    Sum dx = sum_make(&d, x, "dx", fresh);
    Tensor dw = RANDOM(g, "dw", O, I), dw2 = RANDOM(g, "dw2", O, I), db = RANDOM(g, "db", O), rdw = tensor_copy(g, dw),
           rdw2 = tensor_copy(g, dw2), rdb = tensor_copy(g, db), one = zeros(&d, x), sum = tensor_copy(g, dw);
    half_of_tensor(&d, dy2);
    const Projection back[] = {{dy, rdw, rdb}, {dy2, rdw2, ABSENT}}, half_back[] = {{hdy, dw, db}, {dy2, dw2, ABSENT}},
                     of[] = {{.w = w}, {.w = w2}};
    REF(&d, linear_many_backward, dx.real, 2, back, x, of);
    rig_measure(g);
    g->run.ops->linear_many_backward(&g->run, dx.half, 2, half_back, hx, of);
    rig_place(g);
    g->run.ops->linear_many_backward(&g->run, dx.half, 2, half_back, hx, of);
    rig_done(g);
    right("dx", dx.half, dx.real), right("dw", dw, rdw), right("dw of f32", dw2, rdw2), right("dbias", db, rdb);
    REF(&d, linear_backward, one, ABSENT, ABSENT, dy, x, w);
    wrong("a gradient of one alone", dx.half, one);
    wrong("a gradient that is not there", dw, sum);
    desk_close(&d);
}
Test(cuda_acts, products, .timeout = 120) {
    /* rows that begin at 16 bytes, and that do not; matrices too small to be rounded elsewhere */
    static const int sizes[][3] = {{33, 64, 48}, {20, 40, 33}, {7, 41, 80}, {1, 24, 16}, {40, 13, 10}};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int fresh = 0; fresh < 2; fresh++) product_case(sizes[z][0], sizes[z][1], sizes[z][2], fresh);
    fprintf(stderr, "products of rows in bf16: at most %.2g\n", seen);
}
Test(cuda_acts, losses) {
    enum { N = 30, I = 40, V = 203 };
    Desk d;
    desk_open(&d, N);
    Rig *g = &d.g;
    int tgt[N];
    for (int i = 0; i < N; i++) tgt[i] = i % 9 == 5 ? -1 : i * 37 % V;
    Tensor x = RANDOM(g, "x", N, I), w = RANDOM(g, "w", V, I), G = RANDOM(g, "g", N), nll = EMPTY(g, "nll", N),
           rnll = EMPTY(g, "nll", N), dw = EMPTY(g, "dw", V, I), rdw = zeros(&d, w), rdx = zeros(&d, x);
    memset(dw.p, 0, tensor_bytes(dw));
    half_of_tensor(&d, w);
    Tensor hx = half_of_tensor(&d, x), dx = as_fresh(half_empty(&d, x));
    REF(&d, linear_xent, rnll, NULL, rdx, rdw, x, w, tgt, R(G));
    HALF_OF(&d, linear_xent, nll, NULL, dx, dw, hx, w, tgt, R(G));
    right("nll", nll, rnll), right("dx", dx, rdx), right("dw", dw, rdw);
    tgt[3] = 7;
    REF(&d, linear_xent, rnll, NULL, zeros(&d, x), zeros(&d, w), x, w, tgt, R(G));
    wrong("another target", tensor_part(nll, 3, 1), tensor_part(rnll, 3, 1));
    desk_close(&d);
}

/* ---- norms, rotation ------------------------------------------------------------------------------------------------
 */
static void norm_case(int N, int width, bool x_too, bool fresh) {
    Desk d;
    desk_open(&d, N);
    Rig *g = &d.g;
    Tensor x = RANDOM(g, "x", N, width), w = RANDOM(g, "w", width), b = RANDOM(g, "b", width),
           dy = RANDOM(g, "dy", N, width), y = empty(&d, x), rstd = EMPTY(g, "rstd", N), rrstd = EMPTY(g, "rstd", N),
           dw = RANDOM(g, "dw", width), rdw = tensor_copy(g, dw);
    for (int i = 0; i < width; i++) R(w)[i] += 2;
    Tensor hx = x_too ? half_of_tensor(&d, x) : x, hdy = half_of_tensor(&d, dy), hy = half_empty(&d, x);
    REF(&d, rmsnorm, y, rrstd, x, w, 1e-5);
    HALF_OF(&d, rmsnorm, hy, rstd, hx, w, 1e-5);
    right("rmsnorm", hy, y), right("rstd", rstd, rrstd);
    REF(&d, rmsnorm, y, rrstd, x, w, 0.3);
    wrong("another eps", hy, y);
    REF(&d, rmsnorm, y, rrstd, x, w, 1e-5);
    Sum dx = {.real = rig_random(empty(&d, x), "dx")};
    if (x_too)
        dx = sum_make(&d, x, "dx", fresh);
    else
        dx.half = tensor_copy(g, dx.real);
    Tensor before = tensor_copy(g, dx.real);
    REF(&d, rmsnorm_backward, dx.real, rdw, dy, x, w, rrstd);
    HALF_OF(&d, rmsnorm_backward, dx.half, dw, hdy, hx, w, rstd);
    if (dx.half.dtype == REAL) /* what was there before is measured, too, unless it is taken off */
        for (int i = 0; i < N * width; i++) R(dx.half)[i] -= R(before)[i], R(dx.real)[i] -= R(before)[i];
    right("dx", dx.half, dx.real), right("dw", dw, rdw);
    Tensor other = zeros(&d, x);
    for (int i = 0; i < N * width; i++) R(other)[i] = R(dy)[i] * R(w)[i % width] * R(rstd)[i / width];
    if (width <= 100 && (fresh || !x_too)) wrong("no mean taken off", dx.half, other);
    if (!x_too) {
        Tensor db = RANDOM(g, "db", width), rdb = tensor_copy(g, db);
        REF(&d, layernorm, y, rrstd, x, w, b, 1e-5);
        HALF_OF(&d, layernorm, hy, rstd, x, w, b, 1e-5);
        right("layernorm", hy, y);
        wrong("a norm for another", hy, x);
        Tensor got = zeros(&d, x), want = zeros(&d, x);
        REF(&d, layernorm_backward, want, rdw, rdb, dy, x, w, rrstd);
        HALF_OF(&d, layernorm_backward, got, dw, db, hdy, x, w, rstd);
        right("dx", got, want), right("dw", dw, rdw), right("db", db, rdb);
        if (width <= 100) wrong("the gradient of another norm", got, dx.real);
    }
    desk_close(&d);
}
Test(cuda_acts, norms, .timeout = 120) {
    static const int sizes[][2] = {{33, 64}, {20, 100}, {9, 30}, {5, 600}, {3, 1100}, {3, 2100}, {2, 4100}, {2, 8300}};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int how = 0; how < 3; how++) norm_case(sizes[z][0], sizes[z][1], how > 0, how == 2);
    fprintf(stderr, "norms of rows in bf16: at most %.2g\n", seen);
}
Test(cuda_acts, rotation) {
    enum { N = 20, H = 3, D = 20 };
    for (int k = 0; k < 4; k++) {
        Desk d;
        desk_open(&d, N);
        Rope p = {.at = 2, .n = 16, .interleaved = k % 2, .factor = 1.25};
        for (int i = 0; i < 8; i++) p.f[i] = pow(0.5, i);
        Tensor x = RANDOM(&d.g, "x", N, H, D), h = half_of_tensor(&d, x), back = tensor_copy(&d.g, x);
        int sign = k < 2 ? 1 : -1;
        REF(&d, rope, x, &p, d.ref.in, sign);
        HALF_OF(&d, rope, h, &p, d.g.run.in, sign);
        right("rope", h, x);
        REF(&d, rope, back, &p, d.ref.in, -sign);
        wrong("the other sign", h, back);
        desk_close(&d);
    }
}

/* ---- one number at a time -------------------------------------------------------------------------------------------
 */
static void activations_case(int N, int F, bool fresh) {
    Desk d;
    desk_open(&d, N);
    Rig *g = &d.g;
    Tensor gate = RANDOM(g, "gate", N, F), up = RANDOM(g, "up", N, F), dy = RANDOM(g, "dy", N, F), y = empty(&d, up);
    Tensor hgate = half_of_tensor(&d, gate), hup = half_of_tensor(&d, up), hdy = half_of_tensor(&d, dy),
           hy = half_empty(&d, up);
    REF(&d, swiglu, y, gate, up);
    HALF_OF(&d, swiglu, hy, hgate, hup);
    right("swiglu", hy, y);
    REF(&d, swiglu, y, up, gate);
    wrong("gate for up", hy, y);
    Sum a = sum_make(&d, up, "dgate", fresh), b = sum_make(&d, up, "dup", fresh);
    REF(&d, swiglu_backward, a.real, b.real, dy, gate, up);
    HALF_OF(&d, swiglu_backward, a.half, b.half, hdy, hgate, hup);
    right("dgate", a.half, a.real), right("dup", b.half, b.real);
    wrong("dup for dgate", a.half, b.real);
    for (int tanh = 0; tanh < 2; tanh++) {
        Sum c = sum_make(&d, up, "dx", fresh);
        Tensor other = tensor_copy(g, c.real);
        REF(&d, gelu, y, up, tanh);
        HALF_OF(&d, gelu, hy, hup, tanh);
        right("gelu", hy, y);
        wrong("no gelu", hy, up);
        REF(&d, gelu_backward, c.real, dy, up, tanh);
        HALF_OF(&d, gelu_backward, c.half, hdy, hup, tanh);
        right("dx", c.half, c.real);
        REF(&d, gelu_backward, other, dy, dy, tanh);
        wrong("a slope elsewhere", c.half, other);
    }
    desk_close(&d);
}
Test(cuda_acts, activations, .timeout = 120) {
    for (int fresh = 0; fresh < 2; fresh++) {
        activations_case(24, 80, fresh);
        activations_case(5, 33, fresh);
    }
    fprintf(stderr, "activations in bf16: at most %.2g\n", seen);
}
Test(cuda_acts, sums_copies_rows) {
    static const int widths[] = {64, 37};
    for (int k = 0; k < 2; k++) {
        enum { N = 11 };
        Desk d;
        desk_open(&d, N);
        int to[] = {1, 4, 10};
        Tensor y = RANDOM(&d.g, "y", N, widths[k]), x = RANDOM(&d.g, "x", N, widths[k]), before = tensor_copy(&d.g, y),
               hx = half_of_tensor(&d, x), f = tensor_copy(&d.g, x), h = half_empty(&d, x);
        for (int pair = 0; pair < 3; pair++) { /* BF16 and f32, f32 and BF16, both BF16 */
            Tensor want = tensor_copy(&d.g, y), to_y = pair == 1 ? tensor_copy(&d.g, y) : half_of_tensor(&d, want);
            before = tensor_copy(&d.g, want);
            REF(&d, add, want, x);
            HALF_OF(&d, add, to_y, pair ? hx : f);
            right("add", to_y, want);
            wrong("no sum", to_y, before);
        }
        HALF_OF(&d, copy, h, f);
        cr_assert(!memcmp(h.p, hx.p, tensor_bytes(h)));
        memset(f.p, 0xFF, tensor_bytes(f));
        HALF_OF(&d, copy, f, hx);
        cr_assert(!memcmp(f.p, x.p, tensor_bytes(f)));
        Tensor rows = arena_tensor(&d.g.mem, "rows", BF16, 2, (int[]){3, widths[k]});
        HALF_OF(&d, gather, rows, hx, d.g.run.in, ((Pick){3, to}));
        for (int i = 0; i < 3; i++)
            cr_assert(!memcmp((uint16_t *)rows.p + i * widths[k], (uint16_t *)hx.p + to[i] * widths[k],
                              (size_t)widths[k] * 2));
        desk_close(&d);
    }
}
