/* test_dmc.c: DMC and DMS against the golden vectors of an independent implementation, against plain attention, and
 * what they make of the cache. The generic suites run on their models in zoo.c. */
#include "layers/dmc/dmc.h"
#include "layers/mla/mla.h"
#include "model/cost.h"
#include "ops/backend.h"
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"

extern const Mixer dmc_mixer;
static const double tol = REAL == F64 ? 1e-12 : 2e-5;

/* ---- one layer ----------------------------------------------------------------------------------------------------
 */
enum { T_MAX = 512 };
typedef struct {
    Rig g;
    DmcCfg c;
    DmcW w, dw;
    void *s;
    Kv kv, dkv;
    int T, off[2], seq[1], of[T_MAX], pos[T_MAX], first[T_MAX], idx[T_MAX];
    uint64_t id[1];
} Layer1;

static void layer_open(Layer1 *a, DmcCfg c, int T) {
    Err e = {0};
    *a = (Layer1){.c = c, .T = T, .off = {0, T}, .id = {7}};
    cr_assert(dmc_mixer.check(&a->c, &e), "%s", e.msg);
    rig_open(&a->g, (Table){"baseline", &ops_cpu_baseline, NULL}, 2, 8 << 20);
    for (int i = 0; i < T; i++) a->pos[i] = a->idx[i] = i;
    a->g.batch = (Batch){
        .B = 1, .N = T, .off = a->off, .seq = a->seq, .of = a->of, .pos = a->pos, .first = a->first, .id = a->id};
    a->g.run.in = a->g.run.out = (RowList){T, a->idx};
    a->g.run.progress = 1;
    a->s = xcalloc(1, dmc_mixer.s_size);
    Fields place = arena_placer(&a->g.mem), zero = fields_zero();
    KvShape shape;
    dmc_mixer.rows(&a->c, &shape);
    dmc_mixer.weights(&a->c, &a->w, &place);
    dmc_mixer.weights(&a->c, &a->dw, &place);
    dmc_mixer.weights(&a->c, &a->w, &zero);
    dmc_mixer.weights(&a->c, &a->dw, &zero);
    dmc_mixer.saved(&a->c, T, a->s, &place);
    kv_pass_fields(&shape, T, &a->kv, &place);
    kv_pass_fields(&shape, T, &a->dkv, &place);
    kv_fields(&shape, T, &a->dkv, &zero);
}
static void layer_close(Layer1 *a) {
    free(a->s);
    rig_close(&a->g);
}
static void layer_forward(Layer1 *a, unsigned mode, Tensor x, Tensor y) {
    a->g.run.mode = mode;
    CALL(&a->g, (dmc_mixer.forward(&a->g.run, &a->c, &a->w, x, &a->kv, a->s, y), 0));
}

/* ---- golden -------------------------------------------------------------------------------------------------------
 */
typedef struct {
    char *text;
} Golden;
/* The numbers after the line that begins with `name `; n of them. */
static double *golden(const Golden *f, const char *name, size_t n) {
    char line[64];
    snprintf(line, sizeof line, "\n%s ", name);
    char *at = strstr(f->text, line);
    cr_assert(at, "the golden file has no %s", name);
    at = strchr(at + 1, '\n');
    double *v = xcalloc(n, sizeof *v);
    for (size_t i = 0; i < n; i++) {
        char *from = at;
        v[i] = strtod(from, &at);
        cr_assert(at != from, "%s: number %zu is missing", name, i);
    }
    cr_assert(*at == '\n', "%s: more than %zu numbers", name, n);
    return v;
}
static void fill(Tensor t, const Golden *f, const char *name) {
    double *v = golden(f, name, tensor_count(t));
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)v[i];
    free(v);
}
static void expect(const Golden *f, const char *file, const char *name, Tensor got, double times) {
    char what[96];
    double *v = golden(f, name, tensor_count(got));
    real *want = xcalloc(tensor_count(got), sizeof *want);
    for (size_t i = 0; i < tensor_count(got); i++) want[i] = (real)v[i];
    snprintf(what, sizeof what, "%s: %s", file, name);
    CHECK_RELATIVE(what, R(got), want, tensor_count(got), tol * times);
    free(v), free(want);
}

enum { GOLDEN_T = 11, GOLDEN_D = 6 };
static DmcCfg golden_cfg(const Golden *f, bool zero, double *progress) {
    double *v = golden(f, "settings", 15);
    DmcCfg c = {.g = {.base = {.d_model = GOLDEN_D, .max_positions = 64, .owner = true},
                      .heads = (int)v[0],
                      .kv_heads = (int)v[1],
                      .head_dim = (int)v[2],
                      .rope = {.theta = v[8], .interleaved = v[7] != 0}},
                .phase = zero ? DMC_ZERO : DMC_SOFT,
                .window = (int)v[3],
                .lane = v[4] == 0 ? DMC_LAST : DMC_FIRST,
                .action = v[5] == 0 ? DMC_MERGE : DMC_EVICT,
                .delay = (int)v[6],
                .temperature = v[9],
                .offset = v[10],
                .gain = v[11],
                .governs = v[13] == 0 ? DMC_PREVIOUS : DMC_ITSELF,
                .lane_turned = v[14] != 0};
    *progress = v[12];
    free(v);
    return c;
}
/* Token by token through a cache: outputs of the hard form, lane lengths. */
static void golden_decode(Layer1 *a, const Golden *f, const char *file, Tensor x) {
    Err e = {0};
    Cache cache;
    int G = a->c.g.kv_heads;
    Tensor y = EMPTY(&a->g, "decoded", GOLDEN_T, GOLDEN_D);
    double *lengths = golden(f, "lengths", (size_t)(GOLDEN_T * G));
    cr_assert(kv_open(&cache, &a->kv.s, 1, 1, GOLDEN_T, 1, 4, true, false, &e), "%s", e.msg);
    a->g.run.mode = 0;
    for (int t = 0; t < GOLDEN_T; t++) {
        Batch *b = &a->g.batch;
        a->off[1] = b->N = 1, a->pos[0] = t, a->first[0] = t ? -1 : 0, b->history = t > 0;
        a->g.run.in = a->g.run.out = (RowList){1, a->idx};
        Tensor xt = TENSOR(R(x) + t * GOLDEN_D, REAL, 1, GOLDEN_D), yt = TENSOR(R(y) + t * GOLDEN_D, REAL, 1, GOLDEN_D);
        Kv kv = {0};
        Fields place = arena_placer(&a->g.mem);
        kv_pass_fields(&a->kv.s, 1, &kv, &place);
        cr_assert(kv_begin(&cache, b, &e), "%s", e.msg);
        CALL(&a->g, (dmc_mixer.extend(&a->g.run, &a->c, &a->w, xt, &kv, kv_slot(&cache, 0), yt), 0));
        CALL(&a->g, (kv_append(&a->g.run, kv_slot(&cache, 0), &kv, NULL), 0));
        kv_end(&cache, b, NULL);
        for (int h = 0; h < G;
             h++) { /* the file counts what query t sees, the lane what query t+1 does, itself apart */
            int later = a->c.delay ? t + 1 : t;
            if (later < GOLDEN_T)
                cr_assert_eq(kv_rows(kv_slot(&cache, 0), 0, h) + (later > t), (int)lengths[later * G + h],
                             "%s: lane %d holds %d rows after %d tokens", file, h, kv_rows(kv_slot(&cache, 0), 0, h),
                             t + 1);
        }
    }
    expect(f, file, "hard", y, 10);
    kv_close(&cache);
    free(lengths);
}
static void check_golden(const char *file) {
    char path[96];
    double progress;
    snprintf(path, sizeof path, "tests/golden/dmc/%s.txt", file);
    Golden f = {check_read(path, NULL)};
    char *text = xformat("\n%s", f.text);
    free(f.text), f.text = text;
    bool zero = !strncmp(file, "zero", 4);
    Layer1 a;
    layer_open(&a, golden_cfg(&f, zero, &progress), GOLDEN_T);
    Rig *g = &a.g;
    Tensor x = EMPTY(g, "x", GOLDEN_T, GOLDEN_D), y = EMPTY(g, "y", GOLDEN_T, GOLDEN_D),
           dy = EMPTY(g, "dy", GOLDEN_T, GOLDEN_D), dx = EMPTY(g, "dx", GOLDEN_T, GOLDEN_D),
           dstat = EMPTY(g, "dstat", 1, STATS);
    fill(x, &f, "x"), fill(dy, &f, "dy");
    fill(TENSOR(R(dstat) + STAT_MERGED, REAL, 1), &f, "dstat");
    fill(a.w.g.wq, &f, "wq"), fill(a.w.g.wk, &f, "wk"), fill(a.w.g.wv, &f, "wv"), fill(a.w.g.wo, &f, "wo");
    memset(dx.p, 0, tensor_bytes(dx));
    g->run.progress = progress;
    g->run.dstat = dstat;
    layer_forward(&a, RUN_TRAIN | RUN_STILL, x, y);
    expect(&f, file, "y", y, 10);
    rig_measure(g);
    dmc_mixer.backward(&g->run, &a.c, &a.w, &a.dw, x, &a.kv, &(KvInto){a.dkv, false}, a.s, dy, add_to(dx));
    rig_place(g);
    dmc_mixer.backward(&g->run, &a.c, &a.w, &a.dw, x, &a.kv, &(KvInto){a.dkv, false}, a.s, dy, add_to(dx));
    rig_done(g);
    expect(&f, file, "dx", dx, 20);
    expect(&f, file, "dwq", a.dw.g.wq, 20), expect(&f, file, "dwk", a.dw.g.wk, 20);
    expect(&f, file, "dwv", a.dw.g.wv, 20), expect(&f, file, "dwo", a.dw.g.wo, 20);
    if (!zero) {
        int G = a.c.g.kv_heads;
        double *alpha = golden(&f, "alpha", (size_t)(GOLDEN_T * G));
        for (int i = 0; i + 1 < GOLDEN_T; i++)
            for (int h = 0; h < G; h++)
                cr_assert(fabs(exp((double)R(a.kv.bias)[i * G + h]) - (1 - alpha[(i + 1) * G + h])) < tol * 10);
        layer_forward(&a, 0, x, y);
        expect(&f, file, "hard", y, 10);
        expect(&f, file, "decisions", a.kv.evicted, 1);
        golden_decode(&a, &f, file, x);
        free(alpha);
    }
    layer_close(&a);
    free(f.text);
}
Test(dmc, golden) {
    static const char *const files[] = {"merge",         "window", "first-lane", "alone",        "evict",
                                        "evict-at-once", "zero",   "zero-evict", "evict-itself", "evict-itself-at-once",
                                        "evict-turned"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) check_golden(files[i]);
}

/* ---- noise --------------------------------------------------------------------------------------------------------
 */
/* With all weights 0 a decision is sigmoid(noise), which is uniform when the noise is logistic. */
static void chances(Layer1 *a, double *p) {
    Mark mark = arena_mark(&a->g.mem);
    Tensor x = RANDOM(&a->g, "x", a->T, 4), y = EMPTY(&a->g, "y", a->T, 4);
    layer_forward(a, RUN_TRAIN, x, y);
    for (int i = 0; i + 1 < a->T; i++)
        for (int h = 0; h < 2; h++) p[i * 2 + h] = 1 - exp((double)R(a->kv.bias)[i * 2 + h]);
    arena_release(&a->g.mem, mark);
}
static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
Test(dmc, noise_is_logistic_and_keyed) {
    enum { N = (T_MAX - 1) * 2 };
    static double base[N], other[N];
    Layer1 a;
    layer_open(&a,
               (DmcCfg){.g = {.base = {.d_model = 4, .max_positions = T_MAX, .owner = true},
                              .heads = 2,
                              .kv_heads = 2,
                              .head_dim = 2,
                              .rope = {.theta = 100}},
                        .phase = DMC_SOFT,
                        .temperature = 1},
               T_MAX);
    chances(&a, base);
    for (int what = 0; what < 5; what++) {
        double product = 0;
        Run keep = a.g.run;
        a.g.run.seed += what == 1, a.g.run.step += what == 2, a.g.run.layer += what == 3, a.id[0] += what == 4;
        chances(&a, other);
        a.g.run.seed = keep.seed, a.g.run.step = keep.step, a.g.run.layer = keep.layer, a.id[0] -= what == 4;
        for (int i = 0; i < N; i++) product += 12 * (base[i] - 0.5) * (other[i] - 0.5) / N;
        cr_assert(what ? fabs(product) < 0.15 : !memcmp(base, other, sizeof base), "key %d: correlation %g", what,
                  product);
    }
    double heads = 0, rows = 0;
    for (int i = 0; i + 2 < N; i += 2) {
        heads += 24 * (base[i] - 0.5) * (base[i + 1] - 0.5) / N;
        rows += 24 * (base[i] - 0.5) * (base[i + 2] - 0.5) / N;
    }
    cr_assert(fabs(heads) < 0.2 && fabs(rows) < 0.2, "between heads %g, between rows %g", heads, rows);
    qsort(base, N, sizeof *base, by_size);
    for (int i = 0; i < N; i++) /* Kolmogorov: P(worse) = 1e-4 at 2.2 / sqrt(n) */
        cr_assert(fabs(base[i] - (i + 0.5) / N) < 2.2 / sqrt(N), "%d of %d chances are below %g", i, N, base[i]);
    layer_close(&a);
}

/* ---- against plain attention --------------------------------------------------------------------------------------
 */
typedef struct {
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    Pass p;
    real nll[ZOO_ROWS];
} Whole;
#define WHOLE(mixer, settings)                                                                                         \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}]" \
    ","                                                                                                                \
    "\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"" mixer                                                  \
    "\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4" settings "}},\"pattern\":[\"a\"]}"
static void whole_open(Whole *a, const char *json, double progress) {
    zoo_open(&(Animal){"a model", json}, &a->cfg, &a->m, &a->work, &a->dev,
             (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
    zoo_whole(&a->p, a->cfg.vocab);
    a->work.progress = progress;
}
static void whole_close(Whole *a) { zoo_close(&a->cfg, &a->m, &a->work, a->dev); }
static void whole_train(Whole *a) {
    real g[ZOO_ROWS];
    for (int i = 0; i < ZOO_ROWS; i++) g[i] = 1;
    model_zero_grad(&a->m);
    model_train(&a->m, &a->work, &a->p.b, a->p.tok, a->p.tgt, g, a->nll);
}
/* Losses bit for bit; gradients to rounding: (w/z) z is not w. */
static void same(const char *what, Whole *a, Whole *b, bool train) {
    size_t bytes = (size_t)a->p.b.N * sizeof(real);
    if (train) {
        whole_train(a), whole_train(b);
        cr_assert_eq(a->m.ag.size, b->m.ag.size);
        for (int l = 0; l < 2; l++) {
            const GqaW *x = a->m.g.layer[l].mix, *y = b->m.g.layer[l].mix;
            const Tensor ts[][2] = {{x->wq, y->wq}, {x->wk, y->wk}, {x->wv, y->wv}, {x->wo, y->wo}};
            for (int i = 0; i < 4; i++)
                CHECK_RELATIVE(what, R(ts[i][0]), R(ts[i][1]), tensor_count(ts[i][0]), tol / 10);
        }
    } else {
        model_loss(&a->m, &a->work, &a->p.b, a->p.tok, a->p.tgt, a->nll);
        model_loss(&b->m, &b->work, &b->p.b, b->p.tok, b->p.tgt, b->nll);
    }
    CHECK_BYTES(what, a->nll, b->nll, bytes);
}
/* Which never merges, since no decision comes near: in training too, alpha being 0 to the bit. */
#define NEVER ",\"offset\":1000"
Test(dmc, without_merges_is_attention_with_a_dead_lane) {
    static const char *const pairs[][2] = {{WHOLE("dmc", NEVER ",\"window\":0"), WHOLE("dmc", ",\"phase\":\"zero\"")},
                                           {WHOLE("dmc", NEVER), WHOLE("dmc", ",\"phase\":\"zero\"")},
                                           {WHOLE("dmc", NEVER ",\"lane\":\"first\""),
                                            WHOLE("dmc", ",\"phase\":\"zero\",\"lane\":\"first\"")},
                                           {WHOLE("dmc", NEVER ",\"action\":\"evict\",\"gain\":1"),
                                            WHOLE("dmc", ",\"phase\":\"zero\",\"action\":\"evict\"")}};
    for (int i = 0; i < 4; i++) {
        Whole a, b;
        whole_open(&a, pairs[i][0], 1), whole_open(&b, pairs[i][1], 1);
        same("evaluation", &a, &b, false);
        same("training", &a, &b, true);
        whole_close(&a), whole_close(&b);
    }
}
Test(dmc, a_lane_that_has_not_begun_to_fade_is_gqa) {
    Whole a, b;
    whole_open(&a, WHOLE("dmc", ",\"phase\":\"zero\""), 0), whole_open(&b, WHOLE("gqa", ""), 0);
    same("training", &a, &b, true);
    a.work.progress = 0.1;
    whole_train(&a);
    cr_assert(memcmp(a.nll, b.nll, sizeof(real) * (size_t)a.p.b.N), "the lane does not fade");
    whole_close(&a), whole_close(&b);
}
/* An adapter that never decides leaves plain attention, norms and partial rotations included. */
Test(dmc, an_adapter_without_evictions_is_gqa) {
    static const char *const more[] = {"", ",\"qk_norm\":true,\"rope_dims\":2",
                                       ",\"qk_norm_wide\":true,\"qkv_bias\":true"};
    for (int i = 0; i < 3; i++) {
        char *own = xformat(WHOLE("dmc", NEVER ",\"action\":\"evict\",\"decide\":\"adapter\"%s"), more[i]),
             *plain = xformat(WHOLE("gqa", "%s"), more[i]);
        Whole a, b;
        whole_open(&a, own, 1), whole_open(&b, plain, 1);
        for (int l = 0; l < 2; l++) { /* the adapter draws no numbers, so that other weights are the same */
            const GqaW *x = a.m.w.layer[l].mix, *y = b.m.w.layer[l].mix;
            CHECK_BYTES("projections", x->wo.p, y->wo.p, tensor_bytes(y->wo));
        }
        same("evaluation", &a, &b, false);
        whole_train(&a), whole_train(&b);
        CHECK_BYTES("losses in training", a.nll, b.nll, (size_t)a.p.b.N * sizeof(real));
        whole_close(&a), whole_close(&b);
        free(own), free(plain);
    }
}
/* An optimizer's states of a layer: ones, of q, k and v kept; others have none. */
typedef struct {
    int n;
    real of[3][24 * 12];
} Ones;
static void see_ones(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Ones *x = f->ctx;
    (void)flags;
    if (!strstr(path, "q_proj.weight") && !strstr(path, "k_proj.weight") && !strstr(path, "v_proj.weight")) {
        *t = ABSENT;
        return;
    }
    cr_assert(x->n < 3 && tensor_count(*t) <= 24 * 12, "%s", path);
    t->p = x->of[x->n++];
    for (size_t i = 0; i < tensor_count(*t); i++) R(*t)[i] = 1;
}
/* Once the stage has ended plain attention without a rotation, which leaks the lane's partner into it, is the same. */
Test(dmc, after_phase_zero_the_lane_is_gone_from_the_weights) {
    static const char *const nope = ",\"rope\":\"none\"";
    for (int what = 0; what < 3; what++) {
        Whole a, b, c;
        static const char *const zero[] = {WHOLE("dmc", ",\"rope\":\"none\",\"phase\":\"zero\""),
                                           WHOLE("dmc", ",\"rope\":\"none\",\"phase\":\"zero\",\"lane\":\"first\""),
                                           WHOLE("dmc", ",\"rope\":\"none\",\"phase\":\"zero\",\"action\":\"evict\"")};
        cr_assert(strstr(zero[what], nope));
        whole_open(&a, zero[what], 1), whole_open(&b, WHOLE("gqa", ",\"rope\":\"none\""), 1);
        whole_open(&c, zero[what], 1);
        Tensor before[3], after[3];
        whole_train(&a);
        Ones states;
        model_stage_end(&a.m);
        model_stage_end(&b.m); /* plain attention has nothing to do */
        for (int l = 0; l < 2; l++) {
            const GqaW *w = a.m.w.layer[l].mix, *old = c.m.w.layer[l].mix;
            Fields f = {.see = see_ones, .ctx = &states};
            states.n = 0;
            model_layer_stage_end(&a.m, l, &f);
            GqaW *plain = b.m.w.layer[l].mix;
            after[0] = w->wq, after[1] = w->wk, after[2] = w->wv;
            before[0] = old->wq, before[1] = old->wk, before[2] = old->wv;
            for (int t = 0; t < 3; t++)
                for (int row = 0; row < after[t].n[0]; row++) {
                    int lane = what == 1 ? 0 : 3;
                    bool dead = t == 0 ? row % 4 == lane && (what < 2 || row / 4 % 2 == 0)
                                       : t == 1 && what < 2 && row % 4 == lane;
                    for (int k = 0; k < 12; k++) {
                        cr_assert(R(after[t])[row * 12 + k] == (dead ? 0 : R(before[t])[row * 12 + k]),
                                  "weights %d, row %d", t, row);
                        cr_assert((states.of[t][row * 12 + k] == 0) == dead, "states %d, row %d", t, row);
                    }
                }
            memcpy(plain->wq.p, w->wq.p, tensor_bytes(w->wq)), memcpy(plain->wk.p, w->wk.p, tensor_bytes(w->wk));
        }
        same("after the stage", &a, &b, false);
        whole_close(&a), whole_close(&b), whole_close(&c);
    }
    Whole a, b;
    whole_open(&a, WHOLE("dmc", ""), 1), whole_open(&b, WHOLE("dmc", ""), 1);
    model_stage_end(&a.m);
    same("a stage of decisions", &a, &b, false);
    whole_close(&a), whole_close(&b);
}

/* ---- decisions ----------------------------------------------------------------------------------------------------
 */
static void decided(Model *m, Workspace *work, Cache *c, const Pass *p, int l, real *evicted) {
    Err e = {0};
    int idx[ZOO_ROWS];
    real logits[ZOO_ROWS * 16];
    for (int i = 0; i < p->b.N; i++) idx[i] = i;
    cr_assert(model_verify(m, work, c, &p->b, p->tok, (RowList){p->b.N, idx}, TENSOR(logits, REAL, p->b.N, 11), &e),
              "%s", e.msg);
    memcpy(evicted, work->kv[l].evicted.p, tensor_bytes(work->kv[l].evicted));
    model_commit(m, work, c, &p->b, (int[ZOO_SEQS]){0});
}
static double sums[2 * ZOO_SEQS];
static void keep_sums(void *ctx, Tensor stat, Tensor dstat) {
    (void)dstat;
    double *to = ctx;
    for (int b = 0; b < ZOO_SEQS; b++)
        for (int k = 0; k < 2; k++) to[2 * b + k] = (double)R(stat)[(b * STATS + STAT_MERGED) * 2 + k];
}
/* The zoo's models take both decisions, none of them within 1e-3 of the threshold, so that rounding cannot turn one;
 * the statistic is their number, over all rows. */
Test(dmc, decisions_of_the_zoo) {
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        Pass p;
        Cache c;
        Err e = {0};
        real nll[ZOO_ROWS], evicted[ZOO_ROWS * 8], moved[ZOO_ROWS * 8];
        double want[2 * ZOO_SEQS] = {0};
        int taken = 0, all = 0;
        zoo_open(&zoo[i], &cfg, &m, &work, &dev,
                 (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
        zoo_whole(&p, cfg.vocab);
        cr_assert(model_cache_open(&m, &c, ZOO_SEQS, ZOO_ROWS, ZOO_ROWS, 0, false, &e), "%s", e.msg);
        cr_assert(model_extend_reserve(&m, &work, &c, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, &e), "%s", e.msg);
        for (int l = 0; l < m.L; l++) {
            if (!m.layer[l].owner || !m.layer[l].rows.evicts) continue;
            void *own = m.layer[l].cfg;
            double *offset = m.layer[l].kind->mixer == &mla_mixer ? &((MlaCfg *)own)->offset : &((DmcCfg *)own)->offset,
                   at = *offset;
            int K = m.layer[l].rows.lanes;
            decided(&m, &work, &c, &p, l, evicted);
            for (int side = -1; side <= 1; side += 2) {
                *offset = at + side * 1e-3;
                decided(&m, &work, &c, &p, l, moved);
                CHECK_BYTES(zoo[i].name, moved, evicted, (size_t)(p.b.N * K) * sizeof(real));
            }
            *offset = at;
            for (int r = 0; r < p.b.N * K; r++) {
                taken += evicted[r] != 0, all += p.first[r / K] != r / K;
                want[2 * p.of[r / K]] += (double)evicted[r], want[2 * p.of[r / K] + 1]++;
            }
        }
        cr_assert(!all || (taken > all / 8 && taken < all * 7 / 8), "%s: %d of %d rows merged", zoo[i].name, taken,
                  all);
        work.stat_loss = keep_sums, work.stat_ctx = sums;
        model_loss(&m, &work, &p.b, p.tok, p.tgt, nll);
        if (all) CHECK_CLOSE(zoo[i].name, sums, want, 2 * ZOO_SEQS, 0);
        real g[ZOO_ROWS] = {0};
        model_train(&m, &work, &p.b, p.tok, p.tgt, g, nll); /* soft in the gradient, whole in value */
        for (int b = 0; b < ZOO_SEQS && all; b++)
            cr_assert(sums[2 * b] == floor(sums[2 * b]) && sums[2 * b + 1] == want[2 * b + 1], "%g", sums[2 * b]);
        kv_close(&c);
        zoo_close(&cfg, &m, &work, dev);
    }
}

/* ---- what it is for -----------------------------------------------------------------------------------------------
 */
/* A prompt over several pages in chunks, then token by token: logits of the uncut pass, and a cache that is smaller by
 * what was merged. */
static void check_long(const char *json, const char *what) {
    enum { LONG = 230, PROMPT = 150, V = 11 };
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    Cache c;
    Err e = {0};
    int tok[LONG], pos[LONG], of[LONG] = {0}, first[LONG], idx[LONG], off[2] = {0}, seq[1] = {0};
    uint64_t id[1] = {0};
    real *want = xcalloc(LONG * V, sizeof *want), *got = xcalloc(LONG * V, sizeof *got);
    zoo_open(&(Animal){what, json}, &cfg, &m, &work, &dev, (ModelOpts){0});
    cr_assert(model_cache_open(&m, &c, 1, LONG, LONG, 0, false, &e), "%s", e.msg);
    cr_assert(model_extend_reserve(&m, &work, &c, LONG, LONG, 1, &e), "%s", e.msg);
    for (int i = 0; i < LONG; i++) tok[i] = (int)(rng_mix(77, (uint64_t)i) % V), idx[i] = i;
    for (int whole = 1; whole >= 0; whole--)
        for (int at = 0, n; at < LONG; at += n) {
            n = whole ? LONG : at < PROMPT ? 50 : 1;
            for (int i = 0; i < n; i++) pos[i] = at + i, first[i] = at ? -1 : 0;
            off[1] = n;
            Batch b = {.B = 1,
                       .N = n,
                       .off = off,
                       .seq = seq,
                       .of = of,
                       .pos = pos,
                       .first = first,
                       .id = id,
                       .history = at > 0};
            real *to = (whole ? want : got) + at * V;
            cr_assert(model_extend(&m, &work, &c, &b, tok + at, (RowList){n, idx}, TENSOR(to, REAL, n, V), &e), "%s",
                      e.msg);
            if (whole) kv_drop(&c, 0);
        }
    CHECK_CLOSE(what, got, want, LONG * V, tol * 10);
    CacheCost *cost = xcalloc(1, sizeof *cost);
    cost_cache(&m, LONG, cost);
    size_t rows = 0, most = 0, row = row_bytes(&m.layer[0].rows), bytes = 0;
    for (int l = 0; l < m.L; l++)
        for (int h = 0; h < m.layer[l].rows.lanes; h++) rows += (size_t)kv_rows(kv_slot(&c, l), 0, h), most += LONG;
    bytes = rows * row + cost->state_bytes;
    cr_assert(kv_bytes(&c, 0) == bytes && rows < most * 3 / 4, "%s: %zu bytes of %zu rows, %zu expected", what,
              kv_bytes(&c, 0), rows, bytes);
    cr_assert(cost->bytes_at_context == most * row + cost->state_bytes);
    kv_drop(&c, 0);
    for (int l = 0; l < m.L; l++) cr_assert(kv_pages(kv_slot(&c, l)) == 0);
    kv_close(&c);
    free(cost), free(want), free(got);
    zoo_close(&cfg, &m, &work, dev);
}
#define LATE(mixer, settings)                                                                                          \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":512,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}" \
    "],"                                                                                                               \
    "\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"" mixer                                                  \
    "\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4" settings "}},\"pattern\":[\"a\"]}"
#define LATENTS(settings)                                                                                              \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":512,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}" \
    "],\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":3,\"kv_rank\":5,\"nope_dim\":4,"       \
    "\"rope_dim\":2,\"v_dim\":3,\"evict\":true,\"offset\":0.1" settings "}},\"pattern\":[\"a\"]}"
Test(dmc, long_lanes_are_short) {
    check_long(LATE("dmc", ",\"offset\":0.1"), "merged, window 12");
    check_long(LATE("dmc", ",\"offset\":0.1,\"window\":0"), "merged, no window");
    check_long(LATE("dmc", ",\"offset\":0.1,\"action\":\"evict\",\"delay\":16,\"gain\":1"), "evicted after 16");
    check_long(LATE("dmc", ",\"offset\":0.1,\"action\":\"evict\""), "evicted at once");
    check_long(LATENTS(",\"delay\":16,\"gain\":1"), "latents evicted after 16");
    check_long(LATENTS(""), "latents evicted at once");
}

Test(dmc, settings_that_disagree) {
    static const struct {
        const char *json, *part;
    } bad[] = {
        {WHOLE("dmc", ",\"delay\":3"), "delay"},
        {WHOLE("dmc", ",\"lane\":\"middle\""), "lane"},
        {WHOLE("dmc", ",\"phase\":\"hard\""), "phase"},
        {WHOLE("dmc", ",\"action\":\"drop\""), "action"},
        {WHOLE("dmc", ",\"window\":-1"), "window"},
        {WHOLE("dmc", ",\"temperature\":0"), "temperature"},
        {WHOLE("dmc", ",\"qk_norm\":true"), "qk_norm: not where a channel decides"},
        {WHOLE("dmc", ",\"rope_dims\":2,\"action\":\"evict\""), "rope_dims: not where a channel decides"},
        {WHOLE("dmc", ",\"decide\":\"adapter\""), "decide: adapter needs action: evict"},
        {WHOLE("dmc", ",\"window\":4,\"action\":\"evict\""), "window: 4 tokens of a mean"},
        {WHOLE("dmc", ",\"governs\":\"itself\""), "governs: only with action: evict"},
        {WHOLE("dmc", ",\"lane_turned\":true"), "lane_turned: only with action: evict"},
        {WHOLE("dmc", ",\"lane_turned\":true,\"action\":\"evict\",\"phase\":\"zero\""),
         "lane_turned: only with decide: lane"},
        {WHOLE("dmc", ",\"lane\":\"first\",\"action\":\"evict\",\"decide\":\"adapter\""), "lane: no channel decides"},
        {WHOLE("dmc", ",\"lane_turned\":true,\"action\":\"evict\",\"decide\":\"adapter\""),
         "lane_turned: only with decide: lane"},
        {WHOLE("dmc", ",\"qk_norm\":true,\"action\":\"evict\",\"phase\":\"zero\""), "phase: zero removes a channel"},
        {WHOLE("dmc", ",\"qk_norm_wide\":true,\"action\":\"evict\""), "qk_norm_wide: not where a channel decides"},
        {WHOLE("dmc", ",\"decide\":\"adapter\",\"action\":\"evict\",\"phase\":\"zero\""),
         "phase: zero removes a channel"},
        {"{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"layers\":1,\"kinds\":{\"a\":{\"mixer\":\"dmc\",\"heads\":"
         "3,\"kv_heads\":2}},"
         "\"pattern\":[\"a\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":8}]}",
         "kv_heads"},
        {"{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"layers\":1,\"kinds\":{\"a\":{\"mixer\":\"dmc\",\"heads\":"
         "2,\"head_dim\":1,"
         "\"rope\":\"none\"}},"
         "\"pattern\":[\"a\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":8}]}",
         "head_dim"},
        {"{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"layers\":2,\"kinds\":{\"a\":{\"mixer\":\"dmc\",\"heads\":"
         "2}},\"kv_from\":{"
         "\"1\":0},"
         "\"pattern\":[\"a\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":8}]}",
         "kv_from"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Err e = {0};
        ModelCfg cfg;
        Model m = {0};
        Device *dev;
        cr_assert(device_open(&dev, "cpu", 1, &e));
        bool ok = model_cfg_from_json(&cfg, bad[i].json, strlen(bad[i].json), "a model", &e);
        if (ok) {
            ok = model_open(&m, dev, &cfg, (ModelOpts){.dry = true}, &e);
            if (ok) model_close(&m);
            model_cfg_free(&cfg);
        }
        cr_assert(!ok && e.status == EXIT_INPUT && strstr(e.msg, bad[i].part), "%zu: %s", i, e.msg);
        device_close(dev);
    }
}

/* ---- evicted rows are not read ------------------------------------------------------------------------------------
 */
enum { LONG = 700, EARLY = 320, DELAY = 16, LONG_D = 16 };
static void long_draw(Rig *g, int kept_of, int *pos, int *first, int *of, int *idx, Batch *b, const int *off, int *seq,
                      uint64_t *id, Kv *kv) {
    for (int i = 0; i < LONG; i++) pos[i] = 40 + i, first[i] = -1, of[i] = 0, idx[i] = i;
    *b = (Batch){.B = 1, .N = LONG, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .id = id};
    g->run.batch = b;
    g->run.in = g->run.out = (RowList){LONG, idx};
    *kv = (Kv){.s = {.lanes = 2, .kdim = LONG_D, .vdim = LONG_D, .evicts = true, .delay = DELAY},
               .k = RANDOM(g, "k", LONG, 2, LONG_D),
               .v = RANDOM(g, "v", LONG, 2, LONG_D),
               .bias = RANDOM(g, "bias", LONG, 2)};
    for (size_t i = 0; i < LONG * 2; i++) R(kv->bias)[i] = rng_mix(5, i) % (uint64_t)kept_of ? -INFINITY : 0;
}
/* A prompt reads of what lies more than the delay behind only the rows that are left: others may be anything. The sums
 * are those of masks, in another order. */
Test(dmc, evicted_rows_are_skipped) {
    Table t[TABLES_MAX];
    static int pos[LONG], first[LONG], of[LONG], idx[LONG], off[2] = {0, LONG}, seq[1];
    static uint64_t id[1];
    for (int n = rig_tables(t), i = 0; i < n; i++)
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Rig g;
            Batch b;
            Kv kv;
            AttnSpec spec = {.heads = 4, .scale = (real)0.25};
            rig_open(&g, t[i], threads, 16 << 20);
            long_draw(&g, 8, pos, first, of, idx, &b, off, seq, id, &kv);
            Tensor q = RANDOM(&g, "q", LONG, 4, LONG_D), o = EMPTY(&g, "o", LONG, 4, LONG_D),
                   lse = EMPTY(&g, "lse", LONG, 4), o2 = EMPTY(&g, "o2", LONG, 4, LONG_D),
                   lse2 = EMPTY(&g, "lse2", LONG, 4);
            OP(&g, attend, o, lse, q, &kv, spec, false);
            /* as soft decisions, which are read: exp(-1e30) is 0 too */
            for (size_t k = 0; k < LONG * 2; k++)
                if (R(kv.bias)[k] != 0) R(kv.bias)[k] = (real)-1e30;
            OP(&g, attend, o2, lse2, q, &kv, spec, false);
            CHECK_RELATIVE("skipped", R(o), R(o2), tensor_count(o), REAL == F64 ? 1e-14 : 2e-6);
            CHECK_RELATIVE("skipped, lse", R(lse), R(lse2), tensor_count(lse), REAL == F64 ? 1e-14 : 2e-6);
            if (cuda_ops()) { /* its kernel masks */
                rig_close(&g);
                continue;
            }
            for (size_t k = 0; k < LONG * 2; k++) {
                if (R(kv.bias)[k] == 0) continue;
                R(kv.bias)[k] = -INFINITY;
                for (int c = 0; c < LONG_D && k < EARLY * 2; c++)
                    R(kv.k)[k * LONG_D + (size_t)c] = R(kv.v)[k * LONG_D + (size_t)c] = NAN;
            }
            OP(&g, attend, o2, lse2, q, &kv, spec, false);
            const size_t late = (size_t)(EARLY + DELAY + 64) * 4;
            CHECK_BYTES("rows that are gone", R(o2) + late * LONG_D, R(o) + late * LONG_D,
                        (LONG * 4 - late) * LONG_D * sizeof(real));
            rig_close(&g);
        }
}
