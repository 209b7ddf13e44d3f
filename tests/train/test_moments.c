/* test_moments.c: moments stored as bf16 with stochastic rounding: the mean of what is stored, neighbours alone, a
 * function of place and key alone, what training makes of it; and matrices under Muon without second moments. */
#include "tests/lib/check.h"
#include "tests/lib/trial.h"
#include "ops/file.h"
#include "model/files/safetensors.h"
#include "optim/optimizer.h"
#include "train/save/checkpoint.h"

typedef struct {
    Device *dev;
    Arena scratch;
    Run run;
} Bench;
static void bench_open(Bench *b, int threads) {
    Err e = {0};
    cr_assert(device_open(&b->dev, "cpu", threads, &e), "%s", e.msg);
    cr_assert(arena_open(&b->scratch, "scratch", 1 << 20, true, &e), "%s", e.msg);
    b->run = run_make(b->dev, &b->scratch);
}
static void bench_close(Bench *b) {
    arena_close(&b->scratch);
    device_close(b->dev);
}

static double value(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t half(double v) { /* of a number that bf16 has */
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    cr_assert((u & 0xFFFF) == 0, "%g is no bf16", v);
    return (uint16_t)(u >> 16);
}

enum { MANY = 1 << 16 };
static real g[MANY], u[MANY], w[MANY];
static uint16_t m16[MANY], v16[MANY], other[MANY];

/* Store x MANY times; the part that went to the neighbour away from zero. */
static double store(Bench *b, double x, uint64_t key, double *down, double *up) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    *down = value((uint16_t)(bits >> 16)), *up = value((uint16_t)((bits >> 16) + 1));
    for (int i = 0; i < MANY; i++) g[i] = (real)x, m16[i] = 0;
    b->run.ops->momentum(&b->run, TENSOR(u, REAL, MANY), TENSOR(m16, BF16, MANY), TENSOR(g, REAL, MANY), 0, 1, false,
                         (Rounding){key, 0});
    int ups = 0;
    for (int i = 0; i < MANY; i++) {
        cr_assert(value(m16[i]) == *down || value(m16[i]) == *up, "%.9g became %.9g", x, value(m16[i]));
        cr_assert(u[i] == g[i], "the step is to be of the number before rounding");
        ups += value(m16[i]) == *up && *up != *down;
    }
    return (double)ups / MANY;
}

Test(moments, rounding_has_no_bias) {
    Bench b;
    bench_open(&b, 2);
    double worst = 0, at = 0;
    for (int k = 0; k < 60; k++) {
        double x = (k % 2 ? -1 : 1) * exp2(floor(20 * rng_uniform(1, (uint64_t)k) - 10)) *
                   (1 + (k < 20 ? k / 2560.0 : rng_uniform(2, (uint64_t)k)));
        x = (double)(float)x;
        double down, up, part = store(&b, x, (uint64_t)(100 + k), &down, &up), p = (x - down) / (up - down);
        double sigma = sqrt(p * (1 - p) / MANY), off = p > 0 ? fabs(part - p) / sigma : part > 0 ? INFINITY : 0;
        if (!(off <= worst)) worst = off, at = x;
        cr_assert(off <= 5, "%.9g, %.4f of the way to its neighbour, went there %.4f of the times", x, p, part);
    }
    printf("moments: worst deviation %.2f sigma, of %.9g\n", worst, at);
    bench_close(&b);
}

/* What bf16 holds stays; nothing finite becomes infinite; NaN and infinity stay what they are. */
Test(moments, corners_of_rounding) {
    Bench b;
    bench_open(&b, 1);
    static const double exact[] = {0, 1, -1, 0.5, 1.0078125, 0x1p-130, -0x1p-133};
    double down, up;
    for (size_t k = 0; k < sizeof exact / sizeof *exact; k++)
        cr_assert(store(&b, exact[k], 7, &down, &up) == 0, "%g moved", exact[k]);
    store(&b, 0x1.8p-134, 7, &down, &up); /* below the smallest: it or nothing */
    cr_assert(down == 0 && up == 0x1p-133);
    static const double wild[] = {3.4028234663852886e38, -3.4028234663852886e38, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 5; i++) g[i] = (real)wild[i], m16[i] = 0;
#ifndef KV_DOUBLE
    static const uint32_t full = 0x7FFFFFFF; /* a NaN that any carry would make a number */
    memcpy(&g[4], &full, sizeof full);
#endif
    for (uint64_t key = 0; key < 200; key++) {
        b.run.ops->momentum(&b.run, TENSOR(u, REAL, 5), TENSOR(m16, BF16, 5), TENSOR(g, REAL, 5), 0, 1, false,
                            (Rounding){key, 0});
        cr_assert(value(m16[0]) == 0x1.FEp127 && value(m16[1]) == -0x1.FEp127, "%g %g", value(m16[0]), value(m16[1]));
        cr_assert(value(m16[2]) == INFINITY && value(m16[3]) == -INFINITY && isnan(value(m16[4])));
        memset(m16, 0, 5 * sizeof *m16); /* 0 times infinity is no number */
    }
    bench_close(&b);
}

static void adamw(Bench *b, Tensor w_, Tensor g_, Tensor m, Tensor v, AdamwStep s) {
    s.w = w_, s.g = g_, s.m = m, s.v = v;
    b->run.ops->adamw(&b->run, 1, &s);
}
/* A mean that moves by less than half a unit a step still moves: to nearest it would stand still. */
Test(moments, slow_means_move) {
    Bench b;
    bench_open(&b, 2);
    enum { N = 4096, STEPS = 700 };
    const double b2 = 0.999, want = 1 - 0.5 * pow(b2, STEPS);
    for (int i = 0; i < N; i++) g[i] = 1, w[i] = 0, m16[i] = half(1), v16[i] = half(0.5);
    for (int t = 1; t <= STEPS; t++)
        adamw(
            &b, TENSOR(w, REAL, N), TENSOR(g, REAL, N), TENSOR(m16, BF16, N), TENSOR(v16, BF16, N),
            (AdamwStep){.b1 = 0.9, .b2 = b2, .eps = 1e-8, .gscale = 1, .t = t, .round = {rng_mix(5, (uint64_t)t), 0}});
    double mean = 0, square = 0;
    for (int i = 0; i < N; i++) mean += value(v16[i]) / N, square += value(v16[i]) * value(v16[i]) / N;
    double sigma = sqrt((square - mean * mean) / N);
    printf("moments: mean %.5f +- %.5f, exact %.5f\n", mean, sigma, want);
    cr_assert(fabs(mean - want) < 5 * sigma && sigma < 1e-3, "mean %.5f +- %.5f, exact %.5f", mean, sigma, want);
    bench_close(&b);
}

/* Elements, both moments of one, and steps draw on their own. */
Test(moments, draws_are_independent) {
    Bench b;
    bench_open(&b, 1);
    const double x = 1 + 0.5 / 128; /* half way */
    for (int i = 0; i < MANY; i++) g[i] = (real)x, w[i] = 0, m16[i] = v16[i] = 0;
    Tensor W = TENSOR(w, REAL, MANY), G = TENSOR(g, REAL, MANY), M = TENSOR(m16, BF16, MANY),
           V = TENSOR(v16, BF16, MANY);
    adamw(&b, W, G, M, V, (AdamwStep){.eps = 1, .gscale = 1, .t = 1, .round = {1, 0}});
    /* v = x^2 is not half way: its chance is another */
    double p = (x * x - value(half(1.0078125))) * 128, pair = 0, next = 0, step = 0, ms = 0, vs = 0;
    memcpy(other, m16, sizeof m16);
    for (int i = 0; i < MANY; i++) m16[i] = v16[i] = 0;
    adamw(&b, W, G, M, V, (AdamwStep){.eps = 1, .gscale = 1, .t = 1, .round = {2, 0}});
    for (int i = 0; i < MANY; i++) {
        double m = (value(m16[i]) > x) - 0.5, v = (value(v16[i]) > x * x) - p;
        ms += m / MANY, vs += v / MANY;
        pair += m * v / MANY, step += m * ((value(other[i]) > x) - 0.5) / MANY;
        next += m * ((value(m16[(i + 1) % MANY]) > x) - 0.5) / MANY;
    }
    double limit = 5 * 0.25 / sqrt(MANY);
    cr_assert(fabs(ms) < 2 * limit && fabs(vs) < 2 * limit, "means %.5f, %.5f", ms, vs);
    cr_assert(fabs(pair) < limit && fabs(next) < limit && fabs(step) < limit,
              "correlation of the moments %.5f, of neighbours %.5f, of steps %.5f; limit %.5f", pair, next, step,
              limit);
    bench_close(&b);
}

/* In pieces and by any number of threads: the same bytes; under another key others. The weights' step is the one of
 * moments that are not rounded. */
Test(moments, bits_are_of_place_and_key) {
    static uint16_t m[5][MANY], v[5][MANY];
    static real ws[5][MANY], mr[MANY], vr[MANY];
    const int cut = 12345;
    for (int k = 0; k < 5; k++) { /* 1 thread, 3 threads, two pieces, another key, no rounding */
        Bench b;
        bench_open(&b, k == 1 ? 3 : 1);
        for (int i = 0; i < MANY; i++) {
            g[i] = (real)rng_normal(3, (uint64_t)i), ws[k][i] = (real)rng_normal(4, (uint64_t)i);
            m[k][i] = half((double)((i * 37) % 251) / 128), v[k][i] = half((double)((i * 11) % 127) / 64);
            mr[i] = (real)value(m[k][i]), vr[i] = (real)value(v[k][i]);
        }
        for (int from = 0, n = k == 2 ? cut : MANY; from < MANY; from += n, n = MANY - from) {
            Tensor M = k == 4 ? TENSOR(mr, REAL, n) : TENSOR(m[k] + from, BF16, n);
            Tensor V = k == 4 ? TENSOR(vr, REAL, n) : TENSOR(v[k] + from, BF16, n);
            adamw(&b, TENSOR(ws[k] + from, REAL, n), TENSOR(g + from, REAL, n), M, V,
                  (AdamwStep){.lr = 1e-2,
                              .b1 = 0.9,
                              .b2 = 0.95,
                              .eps = 1e-8,
                              .decay = 0.1,
                              .gscale = 0.5,
                              .t = 9,
                              .round = {k == 3 ? 78 : 77, (uint64_t)from}});
        }
        bench_close(&b);
    }
    for (int k = 1; k < 3; k++) {
        CHECK_BYTES("m", m[k], m[0], sizeof m[0]);
        CHECK_BYTES("v", v[k], v[0], sizeof v[0]);
        CHECK_BYTES("w", ws[k], ws[0], sizeof ws[0]);
    }
    int differ = 0;
    for (int i = 0; i < MANY; i++) differ += m[3][i] != m[0][i];
    cr_assert(differ > MANY / 5, "another key changed %d of %d numbers", differ, MANY);
    CHECK_RELATIVE("w", ws[0], ws[4], MANY, 1e-6);
    for (int i = 0; i < MANY; i++)
        cr_assert(fabs(value(m[0][i]) - (double)mr[i]) <= 0x1p-7 * fabs((double)mr[i]) &&
                      fabs(value(v[0][i]) - (double)vr[i]) <= 0x1p-7 * fabs((double)vr[i]),
                  "number %d", i);
}

/* ---- training -------------------------------------------------------------------------------------------------------
 */

static const char yaml[] = "run: {dir: '%s', seed: 3, threads: 1}\n"
                           "model:\n"
                           "  d_model: 16\n"
                           "  layers: 2\n"
                           "  kinds: {full: {mixer: %s}}\n"
                           "  ffn: {kind: swiglu, hidden: 24}\n"
                           "data: {train: '%s', val_fraction: 0.2, seq_len: 16}\n"
                           "train: {dtype: f32, steps: 60, batch: 6, micro_batch: 6}\n"
                           "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0.5, weight_decay: 0.3}\n";

static Trainer *open_trainer(Config *cfg, const char *mixer, bool dry, int n, const char *const over[]) {
    char *text = check_path("text.txt"), *dir = check_path("run");
    char body[4000];
    for (size_t i = 0; i < sizeof body; i++) body[i] = (char)("etaoin shrdlu\n"[rng_mix(7, i / 2 % 40) % 14]);
    check_write(text, body, sizeof body);
    char *all = xformat(yaml, dir, mixer, text);
    Trainer *t = xcalloc(1, sizeof *t);
    Err e = {0};
    cr_assert(config_parse(cfg, all, strlen(all), "yaml", n, (char *const *)over, &e), "%s", e.msg);
    cr_assert(trial_trainer(t, cfg, 0, dry, &e), "%s", e.msg);
    if (!dry) model_init(&t->model, 3);
    free(all), free(text), free(dir);
    return t;
}
#define GQA    "gqa, heads: 2, kv_heads: 1, head_dim: 8"
#define MAMBA  "mamba2, head_dim: 8, state_size: 8"
#define BF16_1 "optim.state_dtype=bf16"

static double curve(const char *mixer, int n, const char *const over[], double *at) {
    Config cfg;
    Trainer *t = open_trainer(&cfg, mixer, false, n, over);
    double tail = 0;
    Err e = {0};
    for (int i = 0; i < 60; i++) {
        TrainRecord r = {0};
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        at[i] = r.loss;
        if (i >= 50) tail += r.loss / 10;
    }
    trial_close(t, &cfg);
    return tail;
}

Test(moments, training_is_as_good) {
    static const char *const kinds[] = {"optim.kind=adamw", "optim.kind=muon"};
    for (int k = 0; k < 2; k++) {
        double a[60], b[60], x = curve(GQA, 1, (const char *[]){kinds[k]}, a);
        double y = curve(GQA, 2, (const char *[]){kinds[k], BF16_1}, b), worst = 0;
        for (int i = 0; i < 60; i++) worst = fmax(worst, fabs(a[i] - b[i]));
        printf("moments: %s: last ten losses %.4f in f32, %.4f in bf16; worst step %.4f apart\n", kinds[k], x, y,
               worst);
        cr_assert(x < 0.7 * a[0], "nothing was learned: %.4f from %.4f", x, a[0]);
        cr_assert(fabs(x - y) < 0.05 * x && worst < 0.15, "%s: %.4f and %.4f, %.4f apart", kinds[k], x, y, worst);
        cr_assert(a[0] == b[0] && a[5] != b[5], "nothing was rounded");
    }
}

/* The second half from a checkpoint, with other numbers of threads and of samples at once for the rounding to ignore:
 * the same bytes where only threads differ. */
ParameterizedTestParameters(moments, resume_is_bitwise) {
    static int which[] = {0, 1, 2, 3};
    return cr_make_param_array(int, which, 4);
}
ParameterizedTest(int *which, moments, resume_is_bitwise) {
    const char *mixer = *which & 2 ? MAMBA : GQA, *over[] = {BF16_1, *which & 1 ? "optim.kind=muon" : "run.seed=3"};
    Config a, b;
    Trainer *t = open_trainer(&a, mixer, false, 2, over), *s = open_trainer(&b, mixer, false, 2, over);
    Err e = {0};
    TrainRecord r;
    cr_assert(run_dir_open(&t->run->dir, a.run.dir, false, &e), "%s", e.msg);
    for (int i = 0; i < 6; i++) {
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        if (i == 2) cr_assert(checkpoint_save(t, &e), "%s", e.msg);
    }
    char *dir = run_dir_step(&t->run->dir, 3), *path = xformat("%s/trainer/optimizer.safetensors", dir);
    cr_assert(checkpoint_load(s, dir, &e), "%s", e.msg);
    for (int i = 0; i < 3; i++) cr_assert(trainer_step(s, &r, &e), "%s", e.msg);
    int is_bf16 = 0, absent = 0, wide = 0;
    for (int i = 0; i < t->params.n; i++) {
        const Param *p = &t->params.p[i], *q = &s->params.p[i];
        CHECK_BYTES(p->name, q->t[PARAM_WEIGHT].p, p->t[PARAM_WEIGHT].p, tensor_bytes(p->t[PARAM_WEIGHT]));
        for (int k = 0; k < 2; k++) {
            Tensor x = p->state[k].t, y = q->state[k].t;
            absent += !present(x), is_bf16 += x.dtype == BF16, wide += present(x) && x.dtype == REAL;
            if (present(x)) CHECK_BYTES(p->name, y.p, x.p, tensor_bytes(x));
        }
    }
    cr_assert(is_bf16 > 10 && (absent > 0) == (*which & 1) && (wide > 0) == (*which >> 1), "%d, %d, %d", is_bf16,
              absent, wide);
    St st;
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    const StEntry *x = st_find(&st, "exp_avg.model.embed_tokens.weight");
    cr_assert(x && !strcmp(x->dtype, "BF16") && x->bytes == 2 * 257 * 16);
    cr_assert((st_find(&st, "exp_avg_sq.model.layers.0.mlp.up_proj.weight") == NULL) == (*which & 1));
    st_close(&st);
    /* Moments of another dtype than the settings say are no moments of this run. */
    char *cmd = xformat("sed -i 's/\"BF16\"/\"F16\" /' '%s'", path);
    cr_assert_eq(system(cmd), 0);
    cr_assert(!checkpoint_load(s, dir, &e) && e.status == EXIT_INPUT && strstr(e.msg, "expected dtype BF16, found F16"),
              "%s", e.msg);
    free(cmd), free(path), free(dir);
    run_dir_close(&t->run->dir);
    trial_close(s, &b);
    trial_close(t, &a);
}

/* The plan is the sum of what each tensor takes: its bytes up to a multiple of 64, and 64 of guard. */
Test(moments, plan_is_exact) {
    static const char *const over[] = {"optim.kind=adamw", "optim.kind=muon", BF16_1};
    for (int k = 0; k < 4; k++) {
        Config cfg;
        const char *with[] = {over[k & 1], k & 2 ? over[2] : over[k & 1]};
        Trainer *t = open_trainer(&cfg, MAMBA, true, 2, with);
        Regions r;
        trainer_regions(t, false, &r);
        Params p = {0};
        Fields f = params_visitor(&p, PARAM_WEIGHT);
        model_fields(&t->model, &t->model.w, &f);
        optimizer_declare(&p, &cfg.optim);
        size_t first = 0, second = 0, w = 0;
        for (int i = 0; i < p.n; i++) {
            size_t n = tensor_count(p.p[i].t[0]), size = k & 2 && !(p.p[i].flags & FIELD_F32) ? 2 : sizeof(real);
            size_t bytes = (n * size + 63) / 64 * 64 + 64;
            w += (n * sizeof(real) + 63) / 64 * 64 + 64;
            first += bytes;
            if (p.p[i].by == &adamw_optimizer) second += bytes;
        }
        cr_assert_str_eq(r.region[2].name, "first_moments");
        cr_assert_str_eq(r.region[3].name, "second_moments");
        cr_assert(r.region[0].bytes == w && r.region[2].bytes == first && r.region[3].bytes == second,
                  "%d: %zu and %zu, expected %zu and %zu", k, r.region[2].bytes, r.region[3].bytes, first, second);
        cr_assert((k & 1) == (second < first / 2), "%zu of %zu", second, first);
        params_free(&p);
        regions_free(&r);
        trial_close(t, &cfg);
    }
}
