/* test_moe.c: the mixture of experts beside what the generic tests see of it: golden blocks of four published models, a
 * reference in wide arithmetic, identities, choices at ties and at NaN, experts without rows, balancing. */
#include "layers/ffn/ffn.h"
#include "model/files/safetensors.h"
#include "optim/optimizer.h"
#include "ops/device.h"
#include "tests/lib/zoo.h"

static const double tol = REAL == F64 ? 1e-12 : 2e-5;

/* ---- a block alone --------------------------------------------------------------------------------------------------
 */
enum { W, G, M, V, PARTS };
typedef struct {
    const Ffn *ffn;
    const MoeCfg *cfg;
    int N;
    bool half; /* x, dx and what is saved are BF16, dx overwritten (layers/mixer.h) */
    Device *dev;
    Run run;
    Arena mem, scratch;
    void *part[PARTS], *s; /* weights, gradients, two moments; saved */
    Tensor x, y, dy, dx;
} Block;

static void see_fill(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    uint64_t key = rng_name(*(uint64_t *)f->ctx, path);
    for (size_t i = 0; i < tensor_count(*t); i++) R(*t)[i] = (real)(0.4 * rng_normal(key, i));
}
static void fields_of(const Block *b, int part, Fields f) { b->ffn->weights(b->cfg, b->part[part], &f); }
static void place(Block *b) {
    int d = b->cfg->base.d_model;
    Tensor *rows[] = {&b->x, &b->y, &b->dy, &b->dx};
    Fields saved = arena_placer(&b->mem);
    for (int p = 0; p < PARTS; p++) fields_of(b, p, arena_placer(&b->mem));
    saved.acts_bf16 = b->half;
    b->ffn->saved(b->cfg, b->N, b->s, &saved);
    for (int i = 0; i < 4; i++)
        *rows[i] = arena_tensor(&b->mem, "rows", b->half && i % 3 == 0 ? BF16 : REAL, 2, (int[]){b->N, d});
}
static void both_ways(Block *b) {
    b->ffn->forward(&b->run, b->cfg, b->part[W], b->x, b->s, b->y);
    b->ffn->backward(&b->run, b->cfg, b->part[W], b->part[G], b->x, b->s, b->dy, (Into){b->dx, b->half});
}
/* Settings must outlive the block. Weights, x and dy are random; gradients, moments and dx are zero. The scratch is of
 * exactly the bytes that the measured passes took. half: x is the caller's to fill. */
static void open_as(Block *b, const Ffn *ffn, const MoeCfg *cfg, int N, bool half, uint64_t seed) {
    Err e = {0};
    *b = (Block){.ffn = ffn, .cfg = cfg, .N = N, .half = half, .s = xcalloc(1, ffn->s_size)};
    for (int p = 0; p < PARTS; p++) b->part[p] = xcalloc(1, ffn->w_size);
    cr_assert(device_open(&b->dev, "cpu", 2, &e), "%s", e.msg);
    b->run = run_make(b->dev, &b->scratch);
    place(b);
    both_ways(b);
    size_t need = b->scratch.peak;
    cr_assert(arena_open(&b->mem, "block", b->mem.peak, true, &e), "%s", e.msg);
    cr_assert(arena_open(&b->scratch, "scratch", need, true, &e), "%s", e.msg);
    place(b);
    fields_of(b, W, (Fields){.see = see_fill, .ctx = &seed});
    for (int p = G; p < PARTS; p++) fields_of(b, p, fields_zero());
    for (size_t i = 0; i < tensor_count(b->x); i++) {
        R(b->dy)[i] = (real)rng_normal(rng_mix(seed, 2), i);
        if (half) continue;
        R(b->x)[i] = (real)rng_normal(rng_mix(seed, 1), i);
        R(b->dx)[i] = 0;
    }
}
static void open_block(Block *b, MoeCfg *cfg, int N) {
    Err e = {0};
    if (!cfg->alpha) cfg->alpha = 1.702; /* the key's default */
    cr_assert(moe_ffn.check(cfg, &e), "%s", e.msg);
    open_as(b, &moe_ffn, cfg, N, false, 9);
}
static void close_block(Block *b) {
    cr_assert(b->scratch.used == 0 && b->scratch.peak <= b->scratch.size);
    arena_close(&b->mem);
    arena_close(&b->scratch);
    device_close(b->dev);
    for (int p = 0; p < PARTS; p++) free(b->part[p]);
    free(b->s);
}

typedef struct {
    const char *name;
    Tensor t;
} Named;
static void see_named(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    Named *n = f->ctx;
    if (!strcmp(n->name, path)) n->t = *t;
}
static Tensor named(const Block *b, int part, const char *fmt, int e) {
    char name[64];
    snprintf(name, sizeof name, fmt, e);
    Named n = {name, ABSENT};
    fields_of(b, part, (Fields){.see = see_named, .ctx = &n});
    cr_assert(present(n.t), "no tensor %s", name);
    return n.t;
}

/* ---- golden ---------------------------------------------------------------------------------------------------------
 */
typedef struct {
    Block *b;
    const St *st;
    const char *file;
} Golden;
static void read_tensor(const Golden *g, const char *name, Tensor t) {
    Err e = {0};
    const StEntry *s = st_find(g->st, name);
    cr_assert(s && st_read(g->st, s, t, &e), "%s: %s %s", g->file, name, e.msg);
}
static void compare_tensor(const Golden *g, const char *name, Tensor got) {
    char what[128];
    real *want = xcalloc(tensor_count(got), sizeof *want);
    read_tensor(g, name, TENSOR(want, REAL, got.n[0], got.n[1]));
    snprintf(what, sizeof what, "%s: %s", g->file, name);
    CHECK_RELATIVE(what, R(got), want, tensor_count(got), 3e-6);
    free(want);
}
static void see_golden(Fields *f, Tensor *t, const char *path, unsigned flags) {
    char name[96];
    snprintf(name, sizeof name, "g.%s", path);
    if (!(flags & FIELD_BALANCE)) compare_tensor(f->ctx, name, *t);
}
Test(moe, published_blocks) {
    static const struct {
        const char *file;
        MoeCfg cfg;
    } model[] = {
        {"deepseek-v3",
         {.experts = 8,
          .top_k = 3,
          .shared = 2,
          .router = ROUTER_SIGMOID,
          .groups = 4,
          .top_groups = 2,
          .norm_topk = true,
          .bias_balance = true,
          .scale = 2.5}},
        {"deepseek-v2", {.experts = 6, .top_k = 2, .shared = 2, .groups = 3, .top_groups = 2, .scale = 1.5}},
        {"mixtral", {.experts = 5, .top_k = 2, .groups = 1, .norm_topk = true, .scale = 1}},
        {"qwen3", {.experts = 6, .top_k = 3, .groups = 1, .scale = 1}},
    };
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        char *path = xformat("tests/golden/moe/%s.safetensors", model[i].file);
        Err e = {0};
        St st;
        StLoad load;
        Block b;
        MoeCfg cfg = model[i].cfg;
        cfg.base.d_model = 16, cfg.hidden = 12;
        open_block(&b, &cfg, 21);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        st_load_begin(&load, &st, "w.", &e);
        fields_of(&b, W, st_loader(&load));
        cr_assert(st_load_end(&load, NULL), "%s", e.msg);
        Golden g = {&b, &st, model[i].file};
        read_tensor(&g, "x", b.x);
        read_tensor(&g, "dy", b.dy);
        both_ways(&b);
        compare_tensor(&g, "y", b.y);
        compare_tensor(&g, "dx", b.dx);
        fields_of(&b, G, (Fields){.see = see_golden, .ctx = &g});
        st_close(&st);
        close_block(&b);
        free(path);
    }
}

/* ---- a reference ----------------------------------------------------------------------------------------------------
 */
typedef long double wide;
typedef struct {
    const real *gate, *up, *down, *gate_bias, *up_bias, *down_bias; /* biases NULL: none */
    double limit, alpha;
} Unit;
static void unit_ref(const Unit *u, const real *x, int d, int F, wide by, wide *y) {
    for (int k = 0; u->down_bias && k < d; k++) y[k] += by * u->down_bias[k];
    for (int f = 0; f < F; f++) {
        wide a = u->gate_bias ? u->gate_bias[f] : 0, b = u->up_bias ? u->up_bias[f] : 0;
        for (int k = 0; k < d; k++) a += (wide)u->gate[f * d + k] * x[k], b += (wide)u->up[f * d + k] * x[k];
        if (u->limit > 0) a = fminl(a, u->limit), b = 1 + fmaxl(fminl(b, u->limit), -u->limit);
        wide act = by * a / (1 + expl(-(u->limit > 0 ? u->alpha : 1) * a)) * b;
        for (int k = 0; k < d; k++) y[k] += act * u->down[k * F + f];
    }
}
/* Scores of row i by definition: p, and c = p + bias. */
static void scores_ref(const MoeCfg *c, const real *x, const real *w, const real *add, const real *bias, wide *p,
                       wide *choice) {
    wide sum = 0;
    for (int e = 0; e < c->experts; e++) {
        wide l = add ? add[e] : 0;
        for (int k = 0; k < c->base.d_model; k++) l += (wide)w[e * c->base.d_model + k] * x[k];
        p[e] = c->router == ROUTER_SIGMOID ? 1 / (1 + expl(-l)) : expl(l);
        sum += p[e];
    }
    for (int e = 0; e < c->experts; e++) {
        if (c->router == ROUTER_SOFTMAX) p[e] /= sum;
        choice[e] = p[e] + (bias ? bias[e] : 0);
    }
}
/* How many are strictly better, or equal with a lower number: chosen are those with fewer than k. Also the distance of
 * the last chosen to the best one left out. */
static int better(const wide *s, const bool *may, int n, int e) {
    int count = 0;
    for (int j = 0; j < n; j++) count += may[j] && (s[j] > s[e] || (s[j] == s[e] && j < e));
    return count;
}
static double rows_ref(const wide *s, const bool *may, int n, int k, bool *out) {
    wide last = INFINITY, next = -INFINITY;
    for (int e = 0; e < n; e++) {
        out[e] = may[e] && better(s, may, n, e) < k;
        if (out[e] && s[e] < last) last = s[e];
        if (may[e] && !out[e] && s[e] > next) next = s[e];
    }
    return (double)(last - next);
}
static double choice_ref(const MoeCfg *c, const wide *score, bool *chosen) {
    int G = c->groups, per = c->experts / G;
    wide group[EXPERTS_MAX];
    bool all[EXPERTS_MAX], kept[EXPERTS_MAX], may[EXPERTS_MAX];
    for (int g = 0; g < G; g++) {
        wide first = -INFINITY, second = -INFINITY;
        for (int e = g * per; e < (g + 1) * per; e++) {
            if (score[e] > first)
                second = first, first = score[e];
            else if (score[e] > second)
                second = score[e];
        }
        group[g] = first + (c->router == ROUTER_SIGMOID && per > 1 ? second : 0);
        all[g] = true;
    }
    double a = rows_ref(group, all, G, c->top_groups, kept);
    for (int e = 0; e < c->experts; e++) may[e] = kept[e / per];
    double b = rows_ref(score, may, c->experts, c->top_k, chosen);
    return fmin(a, b);
}
static void block_ref(const Block *b, int i, wide *y) {
    const MoeCfg *c = b->cfg;
    int d = c->base.d_model, F = c->hidden;
    const real *x = R(b->x) + i * d;
    wide p[EXPERTS_MAX], score[EXPERTS_MAX], sum = 0;
    bool chosen[EXPERTS_MAX];
    scores_ref(c, x, R(named(b, W, "gate.weight", 0)), c->router_bias ? R(named(b, W, "gate.bias", 0)) : NULL,
               c->bias_balance ? R(named(b, W, "gate.e_score_correction_bias", 0)) : NULL, p, score);
    double margin = choice_ref(c, score, chosen);
    cr_assert(margin > 1e-5, "row %d: choices %g apart: take another seed", i, margin);
    for (int e = 0; e < c->experts; e++) sum += chosen[e] ? p[e] : 0;
    for (int k = 0; k < d; k++) y[k] = 0;
    for (int e = 0; e < c->experts; e++)
        if (chosen[e]) {
            Unit u = {R(named(b, W, "experts.%d.gate_proj.weight", e)), R(named(b, W, "experts.%d.up_proj.weight", e)),
                      R(named(b, W, "experts.%d.down_proj.weight", e)), .limit = c->limit, .alpha = c->alpha};
            if (c->expert_bias) {
                u.gate_bias = R(named(b, W, "experts.%d.gate_proj.bias", e));
                u.up_bias = R(named(b, W, "experts.%d.up_proj.bias", e));
                u.down_bias = R(named(b, W, "experts.%d.down_proj.bias", e));
            }
            unit_ref(&u, x, d, F, p[e] * c->scale / (c->norm_topk ? sum : 1), y);
        }
    if (!c->shared) return;
    const Unit shared = {R(named(b, W, "shared_experts.gate_proj.weight", 0)),
                         R(named(b, W, "shared_experts.up_proj.weight", 0)),
                         R(named(b, W, "shared_experts.down_proj.weight", 0)), .limit = 0};
    unit_ref(&shared, x, d, F * c->shared, 1, y);
}
/* Every setting that takes another path; top_k = experts is a dense mixture. */
static const MoeCfg forms[] = {
    {.experts = 5, .top_k = 2, .hidden = 7, .groups = 1, .norm_topk = true, .scale = 1},
    {.experts = 5, .top_k = 1, .hidden = 3, .groups = 1, .norm_topk = false, .scale = 1},
    {.experts = 6, .top_k = 6, .hidden = 4, .groups = 1, .norm_topk = true, .scale = 1},
    {.experts = 6, .top_k = 6, .hidden = 4, .groups = 3, .router = ROUTER_SIGMOID, .norm_topk = false, .scale = 0.5},
    {.experts = 6, .top_k = 2, .hidden = 4, .groups = 6, .top_groups = 3, .router = ROUTER_SIGMOID, .scale = 2},
    {.experts = 12,
     .top_k = 4,
     .hidden = 5,
     .groups = 3,
     .top_groups = 2,
     .router = ROUTER_SIGMOID,
     .norm_topk = true,
     .bias_balance = true,
     .shared = 1,
     .scale = 2.5},
    {.experts = 12,
     .top_k = 3,
     .hidden = 5,
     .groups = 4,
     .top_groups = 2,
     .bias_balance = true,
     .shared = 3,
     .scale = 3},
    {.experts = 1, .top_k = 1, .hidden = 9, .groups = 1, .router = ROUTER_SIGMOID, .scale = 1},
    {.experts = 64, .top_k = 3, .hidden = 2, .groups = 1, .router = ROUTER_SIGMOID, .scale = 1},
    {.experts = 6,
     .top_k = 2,
     .hidden = 9,
     .groups = 1,
     .norm_topk = true,
     .scale = 1,
     .router_bias = true,
     .expert_bias = true,
     .limit = 0.8,
     .alpha = 1.702},
    {.experts = 4,
     .top_k = 2,
     .hidden = 5,
     .groups = 1,
     .router = ROUTER_SIGMOID,
     .scale = 2,
     .shared = 1,
     .expert_bias = true},
};
enum { FORMS = sizeof forms / sizeof *forms, D = 10 };
static MoeCfg form(int i) {
    MoeCfg c = forms[i];
    c.base.d_model = D;
    return c;
}
Test(moe, forward_is_its_formula) {
    const int sizes[] = {0, 1, 2, 7, 90};
    for (int i = 0; i < FORMS; i++)
        for (int k = 0; k < 5; k++) {
            Block b;
            MoeCfg c = form(i);
            open_block(&b, &c, sizes[k]);
            b.ffn->forward(&b.run, b.cfg, b.part[W], b.x, b.s, b.y);
            for (int r = 0; r < b.N; r++) {
                wide y[D];
                real want[D];
                char what[64];
                block_ref(&b, r, y);
                for (int j = 0; j < D; j++) want[j] = (real)y[j];
                snprintf(what, sizeof what, "form %d, row %d of %d", i, r, b.N);
                CHECK_RELATIVE(what, R(b.y) + r * D, want, D, tol);
            }
            close_block(&b);
        }
}

/* Rows do not see each other: alone, in any company, each gets the same output and input gradient; the gradients of the
 * weights add up. */
Test(moe, a_batch_is_the_sum_of_its_rows) {
    for (int i = 0; i < FORMS; i++) {
        Block all, one;
        MoeCfg c = form(i);
        open_block(&all, &c, 40);
        open_block(&one, &c, 1);
        both_ways(&all);
        for (int r = 0; r < all.N; r++) {
            memcpy(one.x.p, R(all.x) + r * D, D * sizeof(real));
            memcpy(one.dy.p, R(all.dy) + r * D, D * sizeof(real));
            memset(one.dx.p, 0, D * sizeof(real));
            both_ways(&one);
            CHECK_RELATIVE("y", R(one.y), R(all.y) + r * D, D, tol);
            CHECK_RELATIVE("dx", R(one.dx), R(all.dx) + r * D, D, tol * 10);
        }
        const char *names[] = {
            "gate.weight", "experts.%d.gate_proj.weight", "experts.%d.down_proj.weight", "gate.e_score_correction_bias",
            "gate.bias",   "experts.%d.up_proj.bias",     "experts.%d.down_proj.bias"};
        const bool has[] = {true, true, true, c.bias_balance, c.router_bias, c.expert_bias, c.expert_bias};
        for (size_t k = 0; k < sizeof has / sizeof *has; k++) {
            if (!has[k]) continue;
            Tensor got = named(&one, G, names[k], c.experts / 2), want = named(&all, G, names[k], c.experts / 2);
            CHECK_RELATIVE(names[k], R(got), R(want), tensor_count(got), tol * 10);
        }
        close_block(&one);
        close_block(&all);
    }
}

/* With rows in bf16 beside `real` (double, where it is the double build's), on the same rounded rows: the same scores
 * to the bit and so the same choices, then numbers that differ by the rounding of what is stored; an expert that was
 * left out shows tenfold. */
static double apart(Tensor got, Tensor want) {
    double e = 0, size = 0;
    for (size_t i = 0; i < tensor_count(want); i++) {
        real x;
        tensor_read(got, i, 1, &x);
        e += pow((double)x - (double)R(want)[i], 2), size += pow((double)R(want)[i], 2);
    }
    return size > 0 ? sqrt(e / size) : sqrt(e);
}
Test(moe, rows_in_bf16) {
    const double y_rms = 1e-2;
    double y = 0, dx = 0, weights = 0;
    for (int i = 0; i < FORMS; i++) {
        Block half, wide, less;
        MoeCfg c = form(i), k = form(i);
        /* An element within a rounding of the limit, one in 500 or so, has its gradient or has none: the root of
         * that. */
        const double gradient_rms = c.limit > 0 ? 3e-2 : 1.5e-2;
        k.top_k = imax(1, c.top_k / 2);
        open_block(&wide, &c, 90), open_block(&less, &k, 90);
        open_as(&half, &moe_ffn, &c, 90, true, 9);
        for (size_t n = 0; n < tensor_count(wide.x); n++) {
            ((uint16_t *)half.x.p)[n] = bf16_from((float)R(wide.x)[n]);
            R(wide.x)[n] = R(less.x)[n] = bf16_to(((uint16_t *)half.x.p)[n]);
        }
        both_ways(&half), both_ways(&wide), both_ways(&less);
        const Tensor *p = half.s, *q = wide.s; /* scores are the first of what is saved */
        CHECK_BYTES("scores", R(*p), R(*q), tensor_bytes(*q));
        const double own_y = apart(half.y, wide.y), own_dx = apart(half.dx, wide.dx);
        cr_assert(own_y <= y_rms && own_dx <= gradient_rms, "form %d: y %.3g, dx %.3g", i, own_y, own_dx);
        y = fmax(y, own_y), dx = fmax(dx, own_dx);
        if (k.top_k < c.top_k && c.top_k < c.experts)
            cr_assert(apart(half.y, less.y) > 10 * y_rms && apart(half.dx, less.dx) > 10 * gradient_rms,
                      "form %d: half of the experts are not missed: y %.3g, dx %.3g", i, apart(half.y, less.y),
                      apart(half.dx, less.dx));
        const char *names[] = {"experts.%d.gate_proj.weight", "experts.%d.up_proj.weight",
                               "experts.%d.down_proj.weight", "gate.weight", "shared_experts.up_proj.weight"};
        for (int n = 0; n < (c.shared ? 5 : 4); n++) {
            const int e = c.experts / 2;
            double off = apart(named(&half, G, names[n], e), named(&wide, G, names[n], e));
            weights = fmax(weights, off);
            cr_assert(off <= gradient_rms, "form %d: %s %.3g", i, names[n], off);
        }
        close_block(&half), close_block(&wide), close_block(&less);
    }
    printf("a mixture of rows in bf16: y at most %.2g apart, dx %.2g, gradients of weights %.2g\n", y, dx, weights);
}

/* With softmax the weight of the only expert is one. */
Test(moe, one_expert_is_swiglu) {
    const SwigluCfg plain = {.base = {.d_model = D}, .hidden = 9};
    Block b;
    MoeCfg c = {.base = {.d_model = D}, .experts = 1, .top_k = 1, .hidden = 9, .groups = 1, .scale = 1};
    const char *names[] = {"experts.0.gate_proj.weight", "experts.0.up_proj.weight", "experts.0.down_proj.weight"};
    open_block(&b, &c, 33);
    Block s; /* SwigluCfg and MoeCfg begin with the same LayerCfg, which is all that a block reads of its settings */
    open_as(&s, &swiglu_ffn, (const MoeCfg *)(const void *)&plain, 33, false, 9);
    for (int k = 0; k < 3; k++)
        memcpy(named(&s, W, names[k] + 10, 0).p, named(&b, W, names[k], 0).p, tensor_bytes(named(&b, W, names[k], 0)));
    both_ways(&b);
    both_ways(&s);
    CHECK_RELATIVE("y", R(b.y), R(s.y), 33 * D, tol);
    CHECK_RELATIVE("dx", R(b.dx), R(s.dx), 33 * D, tol);
    for (int k = 0; k < 3; k++) {
        Tensor got = named(&b, G, names[k], 0);
        CHECK_RELATIVE(names[k], R(got), R(named(&s, G, names[k] + 10, 0)), tensor_count(got), tol);
    }
    Tensor router = named(&b, G, "gate.weight", 0);
    for (int k = 0; k < D; k++)
        cr_assert(fabs((double)R(router)[k]) < 10 * tol, "router %d: %g", k, (double)R(router)[k]);
    close_block(&b);
    close_block(&s);
}

/* ---- choices --------------------------------------------------------------------------------------------------------
 */
/* The choice for one row of scores, and that the order of the pairs is one. */
static void expect_choice(const MoeCfg *settings, const real *p, const real *bias, const int *want, const char *what) {
    real scores[EXPERTS_MAX], b[EXPERTS_MAX];
    Err e = {0};
    Device *dev;
    Arena scratch = {0};
    MoeCfg c = *settings;
    c.base.d_model = 1, c.hidden = 1, c.scale = 1, c.alpha = 1.702;
    cr_assert(moe_ffn.check(&c, &e), "%s", e.msg);
    cr_assert(device_open(&dev, "cpu", 1, &e) && arena_open(&scratch, "scratch", 1 << 16, true, &e), "%s", e.msg);
    Run run = run_make(dev, &scratch);
    for (int i = 0; i < c.experts; i++) scores[i] = p[i], b[i] = bias ? bias[i] : 0;
    Route t = route_choose(&run, &c, TENSOR(scores, REAL, 1, c.experts), bias ? TENSOR(b, REAL, c.experts) : ABSENT);
    for (int j = 0; j < c.top_k; j++)
        cr_assert(t.expert[j] == want[j] && t.row[j] == 0 && t.place[j] == j, "%s: choice %d is %d, expected %d", what,
                  j, t.expert[j], want[j]);
    cr_assert(t.off[0] == 0 && t.off[c.experts] == c.top_k);
    arena_release(&scratch, (Mark){0, 0});
    arena_close(&scratch);
    device_close(dev);
}
#define REALS(...) ((const real[]){__VA_ARGS__})
#define INTS(...)  ((const int[]){__VA_ARGS__})
Test(moe, choices) {
    const MoeCfg two = {.experts = 4, .top_k = 2, .groups = 1},
                 v3 = {.experts = 6, .top_k = 2, .groups = 3, .top_groups = 1, .router = ROUTER_SIGMOID},
                 v2 = {.experts = 6, .top_k = 2, .groups = 3, .top_groups = 1, .router = ROUTER_SOFTMAX};
    const real n = (real)NAN, f = (real)INFINITY;
    expect_choice(&two, REALS(1, 4, 3, 2), NULL, INTS(1, 2), "highest");
    expect_choice(&two, REALS(5, 5, 5, 5), NULL, INTS(0, 1), "all equal");
    expect_choice(&two, REALS(1, 2, 3, 2), NULL, INTS(1, 2), "equal for the last place");
    expect_choice(&two, REALS(0, 0, 0, 0), NULL, INTS(0, 1), "zero");
    expect_choice(&two, REALS(n, n, n, n), NULL, INTS(0, 1), "nothing but NaN");
    expect_choice(&two, REALS(1, n, 3, n), NULL, INTS(0, 2), "NaN after a number");
    expect_choice(&two, REALS(n, 1, 3, 2), NULL, INTS(0, 2), "NaN before a number");
    expect_choice(&two, REALS(-f, f, -f, -f), NULL, INTS(0, 1), "infinities");
    expect_choice(&two, REALS(1, 4, 3, 2), REALS(9, 0, 0, 5), INTS(0, 3), "bias decides");
    expect_choice(&v3, REALS(5, 0, 3, (real)2.5, 4, 1), NULL, INTS(2, 3), "group of the highest pair");
    expect_choice(&v2, REALS(5, 0, 3, (real)2.5, 4, 1), NULL, INTS(0, 1), "group of the highest expert");
    expect_choice(&v3, REALS(1, 2, 2, 1, (real)0.5, (real)2.5), NULL, INTS(0, 1), "equal groups");
    expect_choice(&v3, REALS(5, 5, 1, 1, 1, 1), REALS(0, 0, 0, 0, 6, 6), INTS(4, 5), "bias moves the group");
    expect_choice(&v3, REALS(-5, -5, -1, -1, -3, -1), NULL, INTS(2, 3), "below zero");
    expect_choice(&v3, REALS(n, n, n, n, n, n), NULL, INTS(0, 1), "NaN in groups");
}

/* A row of NaN is NaN, and nobody else's business in the forward; sizes and memory hold. */
Test(moe, nan_stays_in_its_row) {
    for (int i = 0; i < FORMS; i++) {
        Block b, clean;
        MoeCfg c = form(i);
        open_block(&b, &c, 20);
        open_block(&clean, &c, 20);
        R(b.x)[7 * D + 2] = (real)NAN;
        both_ways(&b);
        both_ways(&clean);
        for (int r = 0; r < 20; r++)
            if (r == 7)
                cr_assert(isnan(R(b.y)[r * D]), "form %d", i);
            else
                CHECK_RELATIVE("y", R(b.y) + r * D, R(clean.y) + r * D, D, tol);
        close_block(&b);
        close_block(&clean);
    }
}

/* All rows to one expert, none to the others: gradients of those stay exactly what they were. */
Test(moe, experts_without_rows) {
    const int sizes[] = {1, 3, 300};
    for (int k = 0; k < 3; k++) {
        Block b;
        MoeCfg c = {.base = {.d_model = D},
                    .experts = 4,
                    .top_k = 1,
                    .hidden = 6,
                    .groups = 1,
                    .scale = 1,
                    .bias_balance = true};
        open_block(&b, &c, sizes[k]);
        Tensor bias = named(&b, W, "gate.e_score_correction_bias", 0),
               load = named(&b, G, "gate.e_score_correction_bias", 0);
        for (int e = 0; e < 4; e++) R(bias)[e] = e == 2 ? 3 : 0;
        R(named(&b, G, "experts.%d.up_proj.weight", 1))[5] = 8;
        both_ways(&b);
        for (int r = 0; r < b.N; r++) {
            wide y[D];
            real want[D];
            block_ref(&b, r, y);
            for (int j = 0; j < D; j++) want[j] = (real)y[j];
            CHECK_RELATIVE("y", R(b.y) + r * D, want, D, tol);
        }
        for (int e = 0; e < 4; e++) {
            cr_assert(R(load)[e] == (e == 2 ? 3 * b.N : -b.N), "load of %d: %g", e, (double)R(load)[e]);
            Tensor g = named(&b, G, "experts.%d.up_proj.weight", e);
            double top = 0;
            for (size_t j = 0; j < tensor_count(g); j++) top = fmax(top, fabs((double)R(g)[j]));
            cr_assert(e == 2 ? top > 0 : top == (e == 1 ? 8 : 0), "expert %d: %g", e, top);
        }
        close_block(&b);
    }
}

Test(moe, repetition_changes_no_bit) {
    for (int i = 0; i < FORMS; i++) {
        Block b, c;
        MoeCfg cfg = form(i);
        open_block(&b, &cfg, 70);
        open_block(&c, &cfg, 70);
        both_ways(&b);
        both_ways(&c);
        CHECK_BYTES("y", b.y.p, c.y.p, tensor_bytes(b.y));
        CHECK_BYTES("dx", b.dx.p, c.dx.p, tensor_bytes(b.dx));
        for (int e = 0; e < cfg.experts; e++) {
            Tensor g = named(&b, G, "experts.%d.down_proj.weight", e);
            CHECK_BYTES("down", g.p, named(&c, G, "experts.%d.down_proj.weight", e).p, tensor_bytes(g));
        }
        close_block(&b);
        close_block(&c);
    }
}

/* ---- in models ------------------------------------------------------------------------------------------------------
 */
/* What the generic tests rest on: no choice in their models is so close that a difference of 1e-3 in a score turns it.
 * The real feed-forward runs behind a spy that looks at its input. */
static double closest;
static void spy_forward(Run *r, const void *cfg, const void *w, Tensor x, void *s, Tensor y) {
    const MoeCfg *c = cfg;
    moe_ffn.forward(r, cfg, w, x, s, y);
    Block b = {.ffn = &moe_ffn, .cfg = c};
    b.part[W] = (void *)w;
    for (int i = 0; i < x.n[0]; i++) {
        wide p[EXPERTS_MAX], score[EXPERTS_MAX];
        bool chosen[EXPERTS_MAX];
        scores_ref(c, R(x) + i * x.n[1], R(named(&b, W, "gate.weight", 0)),
                   c->router_bias ? R(named(&b, W, "gate.bias", 0)) : NULL,
                   c->bias_balance ? R(named(&b, W, "gate.e_score_correction_bias", 0)) : NULL, p, score);
        closest = fmin(closest, choice_ref(c, score, chosen));
    }
}
Test(moe, choices_of_the_zoo_are_not_close) {
    int seen = 0;
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        Pass p;
        real nll[ZOO_ROWS];
        if (!strstr(zoo[i].json, "\"moe\"")) continue;
        zoo_open(&zoo[i], &cfg, &m, &work, &dev, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
        zoo_whole(&p, cfg.vocab);
        Ffn spy = moe_ffn;
        spy.forward = spy_forward;
        FfnKind kind = {.ffn = &spy};
        for (int l = 0; l < m.L; l++)
            if (m.layer[l].ffn->ffn == &moe_ffn) m.layer[l].ffn = &kind, seen++;
        closest = INFINITY;
        model_loss(&m, &work, &p.b, p.tok, p.tgt, nll);
        printf("%s: closest choice %.3g\n", zoo[i].name, closest);
        cr_assert(closest > 1e-3, "%s: two choices are %g apart", zoo[i].name, closest);
        zoo_close(&cfg, &m, &work, dev);
    }
    cr_assert(seen >= 8);
}

/* ---- balancing ------------------------------------------------------------------------------------------------------
 */
static double overload(const Block *b) {
    Tensor load = named(b, G, "gate.e_score_correction_bias", 0);
    double top = 0, mean = (double)b->N * b->cfg->top_k;
    for (int e = 0; e < b->cfg->experts; e++) top = fmax(top, (double)R(load)[e] / mean + 1);
    return top; /* largest load / mean load */
}
static double balanced(double rate, double first[1]) {
    Block b;
    MoeCfg c = {.base = {.d_model = D},
                .experts = 8,
                .top_k = 2,
                .hidden = 3,
                .groups = 1,
                .router = ROUTER_SIGMOID,
                .norm_topk = true,
                .bias_balance = true,
                .scale = 1};
    open_block(&b, &c, 400);
    for (int r = 0; r < b.N; r++) R(b.x)[r * D] = 1;
    for (int e = 0; e < 8; e++) {
        R(named(&b, W, "gate.weight", 0))[e * D] = (real)(0.3 * e); /* a router that likes some experts */
        R(named(&b, W, "gate.e_score_correction_bias", 0))[e] = 0;
    }
    Params s = {0};
    const OptimCfg set = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .balance_rate = rate};
    for (int p = 0; p < PARAM_ROLES; p++) fields_of(&b, p, params_visitor(&s, (ParamRole)p));
    Params moment[2] = {{0}};
    for (int k = 0; k < 2; k++) fields_of(&b, M + k, params_visitor(&moment[k], PARAM_WEIGHT));
    optimizer_declare(&s, &set);
    for (int i = 0; i < s.n; i++)
        for (int k = 0; k < 2; k++) s.p[i].state[k].t.p = moment[k].p[i].t[0].p;
    for (int step = 1; step <= 300; step++) {
        fields_of(&b, G, fields_zero());
        both_ways(&b);
        if (step == 1) *first = overload(&b);
        optimizer_step(&b.run, &s, &(OptimizerCfg){.set = &set}, 0, 1, step);
    }
    double last = overload(&b);
    params_free(&s), params_free(&moment[0]), params_free(&moment[1]);
    close_block(&b);
    return last;
}
Test(moe, a_skewed_router_is_balanced) {
    double first, still, last = balanced(3e-3, &first), stays = balanced(0, &still);
    printf("largest load: %.3g of the mean at first, %.3g after 300 steps\n", first, last);
    cr_assert(first > 1.8 && last < 1.15, "%g at first, then %g", first, last);
    cr_assert(still == first && stays == first, "%g without a rate", stays);
}
