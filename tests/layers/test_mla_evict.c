/* test_mla_evict.c: latents, and published rows, that a projection evicts: against the golden vectors of an independent
 * implementation, against the plain mixers where nothing is evicted, and which settings are refused. The generic suites
 * run on their models in zoo.c. */
#include "layers/cache/codec.h"
#include "layers/dmc/dmc.h"
#include "layers/mla/mla.h"
#include "infer/session.h"
#include "model/inside.h"
#include "tests/lib/dirs.h"
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"

static const double tol = REAL == F64 ? 1e-12 : 2e-5;

/* ---- golden -------------------------------------------------------------------------------------------------------
 */
enum { T = 11, D = 8, FIELDS = 8 };
typedef struct {
    char *text;
    const char *file;
} Golden;
/* The numbers after the line that begins with `name `; n of them. */
static double *golden(const Golden *f, const char *name, size_t n) {
    char line[64];
    snprintf(line, sizeof line, "\n%s ", name);
    char *at = strstr(f->text, line);
    cr_assert(at, "%s has no %s", f->file, name);
    at = strchr(at + 1, '\n');
    double *v = xcalloc(n, sizeof *v);
    for (size_t i = 0; i < n; i++) {
        char *from = at;
        v[i] = strtod(from, &at);
        cr_assert(at != from, "%s, %s: number %zu is missing", f->file, name, i);
    }
    cr_assert(*at == '\n', "%s, %s: more than %zu numbers", f->file, name, n);
    return v;
}
static void fill(Tensor t, const Golden *f, const char *name) {
    double *v = golden(f, name, tensor_count(t));
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)v[i];
    free(v);
}
static void expect(const Golden *f, const char *name, Tensor got, double times) {
    char *what = xformat("%s: %s", f->file, name);
    double *v = golden(f, name, tensor_count(got));
    real *want = xcalloc(tensor_count(got), sizeof *want);
    for (size_t i = 0; i < tensor_count(got); i++) want[i] = (real)v[i];
    CHECK_RELATIVE(what, R(got), want, tensor_count(got), tol * times);
    free(v), free(want), free(what);
}

typedef struct {
    Rig g;
    MlaCfg c;
    void *w, *dw, *s;
    Kv kv, dkv;
    int off[2], seq[1], of[T], pos[T], first[T], idx[T];
    uint64_t id[1];
} Layer1;
static void layer_open(Layer1 *a, MlaCfg c) {
    Err e = {0};
    *a = (Layer1){.c = c, .off = {0, T}};
    cr_assert(mla_mixer.check(&a->c, &e), "%s", e.msg);
    rig_open(&a->g, (Table){"baseline", &ops_cpu_baseline, NULL}, 2, 8 << 20);
    for (int i = 0; i < T; i++) a->pos[i] = a->idx[i] = i;
    a->g.batch = (Batch){
        .B = 1, .N = T, .off = a->off, .seq = a->seq, .of = a->of, .pos = a->pos, .first = a->first, .id = a->id};
    a->g.run.in = a->g.run.out = (RowList){T, a->idx};
    a->g.run.progress = 1;
    a->s = xcalloc(1, mla_mixer.s_size), a->w = xcalloc(1, mla_mixer.w_size), a->dw = xcalloc(1, mla_mixer.w_size);
    Fields place = arena_placer(&a->g.mem), zero = fields_zero();
    KvShape shape;
    mla_mixer.rows(&a->c, &shape);
    mla_mixer.weights(&a->c, a->w, &place), mla_mixer.weights(&a->c, a->dw, &place);
    mla_mixer.weights(&a->c, a->dw, &zero);
    mla_mixer.saved(&a->c, T, a->s, &place);
    kv_pass_fields(&shape, T, &a->kv, &place), kv_pass_fields(&shape, T, &a->dkv, &place);
    kv_fields(&shape, T, &a->dkv, &zero);
}
static void layer_close(Layer1 *a) {
    free(a->s), free(a->w), free(a->dw);
    rig_close(&a->g);
}
static const char *const files_of[FIELDS][2] = {{"q_proj.weight", "wq"},          {"kv_a_proj_with_mqa.weight", "wa"},
                                                {"kv_a_layernorm.weight", "nkv"}, {"kv_b_proj.weight", "wb"},
                                                {"o_proj.weight", "wo"},          {"decide_proj.weight", "wd"},
                                                {"decide_proj.bias", "bd"},       {NULL, NULL}};
typedef struct {
    const Golden *f;
    bool gradient;
    int met;
} Filling;
/* Fill a weight from the file, or compare its gradient. */
static void see_weight(Fields *v, Tensor *t, const char *path, unsigned flags) {
    Filling *x = v->ctx;
    (void)flags;
    for (int i = 0; files_of[i][0]; i++) {
        if (strcmp(path, files_of[i][0])) continue;
        char *name = xformat("d%s", files_of[i][1]);
        x->met++;
        if (x->gradient)
            expect(x->f, name, *t, 20);
        else
            fill(*t, x->f, files_of[i][1]);
        free(name);
    }
}
static void weights_see(Layer1 *a, const Golden *f, bool gradient) {
    Filling x = {f, gradient, 0};
    mla_mixer.weights(&a->c, gradient ? a->dw : a->w, &(Fields){.see = see_weight, .ctx = &x});
    cr_assert_eq(x.met, 7, "%d tensors of the layer are in the file", x.met);
}
/* Token by token through a cache: absorbed queries over a lane whose rows leave. */
static void golden_decode(Layer1 *a, const Golden *f, Tensor x) {
    Err e = {0};
    Cache cache;
    Tensor y = EMPTY(&a->g, "decoded", T, D);
    double *lengths = golden(f, "lengths", T);
    cr_assert(kv_open(&cache, &a->kv.s, 1, 1, T, 1, 4, true, false, &e), "%s", e.msg);
    a->g.run.mode = 0;
    for (int t = 0; t < T; t++) {
        Batch *b = &a->g.batch;
        a->off[1] = b->N = 1, a->pos[0] = t, a->first[0] = t ? -1 : 0, b->history = t > 0;
        a->g.run.in = a->g.run.out = (RowList){1, a->idx};
        Tensor xt = TENSOR(R(x) + t * D, REAL, 1, D), yt = TENSOR(R(y) + t * D, REAL, 1, D);
        Kv kv = {0};
        Fields place = arena_placer(&a->g.mem);
        kv_pass_fields(&a->kv.s, 1, &kv, &place);
        cr_assert(kv_begin(&cache, b, &e), "%s", e.msg);
        rig_measure(&a->g); /* both forms of reading, of which one is run */
        mla_mixer.extend(&a->g.run, &a->c, a->w, xt, &kv, kv_slot(&cache, 0), yt);
        rig_place(&a->g);
        mla_mixer.extend(&a->g.run, &a->c, a->w, xt, &kv, kv_slot(&cache, 0), yt);
        rig_done_within(&a->g);
        CALL(&a->g, (kv_append(&a->g.run, kv_slot(&cache, 0), &kv, NULL), 0));
        kv_end(&cache, b, NULL);
        /* the file counts what query t sees, the lane what query t+1 does, itself apart */
        const int later = a->c.delay ? t + 1 : t;
        if (later < T)
            cr_assert_eq(kv_rows(kv_slot(&cache, 0), 0, 0) + (later > t), (int)lengths[later],
                         "%s: the lane holds %d rows after %d tokens", f->file, kv_rows(kv_slot(&cache, 0), 0, 0),
                         t + 1);
    }
    expect(f, "hard", y, 10);
    kv_close(&cache);
    free(lengths);
}
static void check_golden(const char *file) {
    char *path = xformat("tests/golden/dmc/%s.txt", file), *text = check_read(path, NULL);
    Golden f = {xformat("\n%s", text), file};
    double *v = golden(&f, "settings", 11);
    Layer1 a;
    layer_open(&a, (MlaCfg){.base = {.d_model = D, .max_positions = 64, .owner = true},
                            .heads = (int)v[0],
                            .kv_rank = (int)v[1],
                            .nope_dim = (int)v[2],
                            .rope_dim = (int)v[3],
                            .v_dim = (int)v[4],
                            .rope_heads = (int)v[5],
                            .rope = {.theta = v[7]},
                            .latent_norm = true,
                            .evict = true,
                            .delay = (int)v[6],
                            .temperature = v[8],
                            .offset = v[9],
                            .gain = v[10]});
    Rig *g = &a.g;
    Run *r = &g->run;
    Tensor x = EMPTY(g, "x", T, D), y = EMPTY(g, "y", T, D), dy = EMPTY(g, "dy", T, D), dx = EMPTY(g, "dx", T, D),
           dstat = EMPTY(g, "dstat", 1, STATS);
    fill(x, &f, "x"), fill(dy, &f, "dy"), fill(TENSOR(R(dstat) + STAT_MERGED, REAL, 1), &f, "dstat");
    weights_see(&a, &f, false);
    memset(dx.p, 0, tensor_bytes(dx));
    r->dstat = dstat, r->mode = RUN_TRAIN | RUN_STILL;
    CALL(g, (mla_mixer.forward(r, &a.c, a.w, x, &a.kv, a.s, y), 0));
    expect(&f, "y", y, 10);
    CALL(g, (mla_mixer.backward(r, &a.c, a.w, a.dw, x, &a.kv, &(KvInto){a.dkv, false}, a.s, dy, add_to(dx)), 0));
    expect(&f, "dx", dx, 20);
    weights_see(&a, &f, true);
    double *alpha = golden(&f, "alpha", T);
    for (int i = 0; i + 1 < T; i++)
        cr_assert(fabs(exp((double)R(a.kv.bias)[i]) - (1 - alpha[i + 1])) < tol * 10, "%s: mask %d", file, i);
    r->mode = 0;
    CALL(g, (mla_mixer.forward(r, &a.c, a.w, x, &a.kv, a.s, y), 0));
    expect(&f, "hard", y, 10);
    expect(&f, "decisions", a.kv.evicted, 1);
    golden_decode(&a, &f, x);
    free(alpha), free(v), free(f.text), free(text), free(path);
    layer_close(&a);
}
Test(mla_evict, golden) {
    check_golden("latents");
    check_golden("latents-at-once");
}

/* ---- nothing is evicted -------------------------------------------------------------------------------------------
 */
typedef struct {
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    Pass p;
    real nll[ZOO_ROWS], evaluated[ZOO_ROWS], logits[ZOO_ROWS * 11];
} Whole;
/* A training step, losses in evaluation, and logits of two passes, the second over a history. */
static void whole_run(Whole *a, const char *json) {
    Err e = {0};
    Cache c;
    real g[ZOO_ROWS];
    int all[ZOO_ROWS], done = 0;
    for (int i = 0; i < ZOO_ROWS; i++) all[i] = i, g[i] = (real)(0.3 + 0.1 * (i % 4));
    zoo_open(&(Animal){"a model", json}, &a->cfg, &a->m, &a->work, &a->dev,
             (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
    zoo_whole(&a->p, a->cfg.vocab);
    model_zero_grad(&a->m);
    model_train(&a->m, &a->work, &a->p.b, a->p.tok, a->p.tgt, g, a->nll);
    model_loss(&a->m, &a->work, &a->p.b, a->p.tok, a->p.tgt, a->evaluated);
    cr_assert(model_cache_open(&a->m, &c, ZOO_SEQS, ZOO_ROWS, ZOO_ROWS, 4, false, &e), "%s", e.msg);
    cr_assert(model_extend_reserve(&a->m, &a->work, &c, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, &e), "%s", e.msg);
    for (int half = 0; half < 2; half++) {
        Pass part;
        int from[ZOO_SEQS], n[ZOO_SEQS];
        for (int s = 0; s < ZOO_SEQS; s++) from[s] = half ? 3 : 0, n[s] = half ? a->p.off[s + 1] - a->p.off[s] - 3 : 3;
        zoo_part(&part, &a->p, from, n, NULL);
        cr_assert(model_extend(&a->m, &a->work, &c, &part.b, part.tok, (RowList){part.b.N, all},
                               TENSOR(a->logits + done * 11, REAL, part.b.N, 11), &e),
                  "%s", e.msg);
        done += part.b.N;
    }
    kv_close(&c);
}
typedef struct {
    Model *m;
    int met;
    const char *name;
} Against;
typedef struct {
    const char *path;
    Tensor found;
} Find;
static void see_find(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Find *x = f->ctx;
    (void)flags;
    if (!strcmp(path, x->path)) x->found = *t;
}
/* Each gradient of the plain model is the other's; what decides has one more. */
static void see_same(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Against *x = f->ctx;
    Find find = {path, ABSENT};
    (void)flags;
    model_fields(x->m, &x->m->g, &(Fields){.see = see_find, .ctx = &find});
    cr_assert(present(find.found), "%s: no %s", x->name, path);
    char *what = xformat("%s: d %s", x->name, path);
    CHECK_BYTES(what, find.found.p, t->p, tensor_bytes(*t));
    free(what);
    x->met++;
}
static void check_same(const char *name, const char *evicts, const char *plain) {
    Whole *a = xcalloc(1, sizeof *a), *b = xcalloc(1, sizeof *b);
    whole_run(a, evicts), whole_run(b, plain);
    const size_t n = (size_t)a->p.b.N;
    CHECK_BYTES(name, a->nll, b->nll, n * sizeof(real));
    CHECK_BYTES(name, a->evaluated, b->evaluated, n * sizeof(real));
    CHECK_BYTES(name, a->logits, b->logits, n * 11 * sizeof(real));
    Against x = {&a->m, 0, name};
    model_fields(&b->m, &b->m.g, &(Fields){.see = see_same, .ctx = &x});
    cr_assert(x.met > 10, "%s: %d gradients", name, x.met);
    zoo_close(&a->cfg, &a->m, &a->work, a->dev), zoo_close(&b->cfg, &b->m, &b->work, b->dev);
    free(a), free(b);
}
#define SHAPE                                                                                                          \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}]" \
    ","
#define LATENT(more)                                                                                                 \
    SHAPE "\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":6,\"nope_dim\":2," \
          "\"rope_dim\":2,\"v_dim\":3" more "}},\"pattern\":[\"a\"]}"
#define SHARED(more)                                                                                                   \
    SHAPE "\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":6,\"nope_dim\":2,"   \
          "\"rope_dim\":2,\"v_dim\":3" more "},\"p\":{\"mixer\":\"mla\",\"heads\":0,\"kv_rank\":6,\"rope_dim\":2" more \
          "},\"b\":{\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":6,\"nope_dim\":3,\"rope_dim\":2}},"                      \
          "\"pattern\":[\"a\",\"b\",\"p\",\"b\"],\"kv_from\":{\"1\":0,\"3\":2}}"
#define PUBLISHED(mixer, more)                                                                                         \
    SHAPE "\"layers\":3,\"tied\":true,\"kinds\":{\"p\":{\"mixer\":\"" mixer                                            \
          "\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4" more "},\"r\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2," \
          "\"head_dim\":4},\"w\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":3}},"         \
          "\"pattern\":[\"p\",\"r\",\"w\"],\"kv_from\":{\"1\":0,\"2\":0}}"
/* No decision comes near: alpha is 0 to the bit, in training too. */
#define NEVER   ",\"offset\":1000,\"delay\":1"
#define ADAPTER ",\"action\":\"evict\",\"decide\":\"adapter\""
Test(mla_evict, nothing_evicted_is_the_plain_mixer) {
    check_same("mla", LATENT(NEVER ",\"evict\":true"), LATENT(""));
    check_same("mla, query latent, gate", LATENT(NEVER ",\"evict\":true,\"q_rank\":5,\"out_gate\":true"),
               LATENT(",\"q_rank\":5,\"out_gate\":true"));
    check_same("mla read by others", SHARED(NEVER ",\"evict\":true"), SHARED(""));
    check_same("published rows", PUBLISHED("dmc", NEVER ADAPTER), PUBLISHED("gqa", ""));
    check_same("published rows, norms", PUBLISHED("dmc", NEVER ADAPTER ",\"qk_norm\":true,\"qkv_bias\":true"),
               PUBLISHED("gqa", ",\"qk_norm\":true,\"qkv_bias\":true"));
}

/* ---- long prompts -------------------------------------------------------------------------------------------------
 */
enum { LONG = 640, V = 11 };
/* A prompt in passes of `chunk`: logits of all tokens, or of the last alone; rows that the cache then holds. */
static void prompt(Model *m, int chunk, bool all, const int *tok, real *logits, int rows[2]) {
    Session s;
    Err e = {0};
    SessionOpts o = {.nseq = 1, .max_tokens = LONG, .chunk = chunk, .document = -1, .want_all = all};
    cr_assert(session_open(&s, m, o, &e), "%s", e.msg);
    cr_assert(session_extend(&s, 1, &(Feed){0, LONG, tok}, all ? WANT_ALL : WANT_LAST,
                             TENSOR(logits, REAL, all ? LONG : 1, V), &e),
              "%s", e.msg);
    for (int l = 0; l < 2; l++) rows[l] = kv_rows(kv_slot(&s.cache, l), 0, 0);
    session_close(&s);
}
#define LATE(more)                                                                                                   \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":1024,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":" \
    "10}],"                                                                                                          \
    "\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":3,\"kv_rank\":5,\"nope_dim\":4,"       \
    "\"rope_dim\":2,\"v_dim\":3,\"evict\":true,\"gain\":1.5,\"offset\":-0.6" more "}},\"pattern\":[\"a\"]}"
/* A long pass packs what is left of its own rows anew: expanded, or absorbed where one row is wanted. Passes of 50 read
 * the same of a lane whose rows leave. */
Test(mla_evict, long_prompts_at_once_and_in_pieces) {
    static const char *const json[] = {LATE(",\"delay\":16"), LATE("")};
    static int tok[LONG];
    static real want[LONG * V], got[LONG * V];
    for (int i = 0; i < LONG; i++) tok[i] = (int)(rng_mix(77, (uint64_t)i) % V);
    for (int k = 0; k < 2; k++) {
        ModelCfg cfg;
        Model m;
        Device *dev;
        int rows[3][2];
        zoo_open(&(Animal){"late", json[k]}, &cfg, &m, NULL, &dev, (ModelOpts){0});
        prompt(&m, 50, true, tok, want, rows[0]);
        prompt(&m, LONG, true, tok, got, rows[1]);
        CHECK_CLOSE("at once", got, want, LONG * V, tol * 10);
        prompt(&m, LONG, false, tok, got, rows[2]);
        CHECK_CLOSE("the last alone", got, want + (LONG - 1) * V, V, tol * 10);
        for (int l = 0; l < 2; l++) {
            cr_assert(rows[1][l] == rows[0][l] && rows[2][l] == rows[0][l], "layer %d: %d, %d, %d rows", l, rows[0][l],
                      rows[1][l], rows[2][l]);
            cr_assert(rows[0][l] < LONG * 3 / 4 && rows[0][l] > LONG / 8, "layer %d: %d rows", l, rows[0][l]);
        }
        zoo_close(&cfg, &m, NULL, dev);
    }
}

/* ---- settings -----------------------------------------------------------------------------------------------------
 */
static const struct {
    const char *json, *part;
} bad[] = {
    {LATENT(",\"delay\":3"), "delay: 3 positions, but no latent is removed"},
    {LATENT(",\"evict\":true,\"window\":4"), "evict: not together with a window (4)"},
    {LATENT(",\"evict\":true,\"temperature\":0"), "temperature"},
    {LATENT(",\"evict\":true,\"delay\":-1"), "delay"},
    {SHAPE "\"layers\":2,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":6,\"nope_dim\":2,\"rope_dim\":2,"
           "\"evict\":true}},\"pattern\":[\"a\"],\"kv_from\":{\"1\":0}}",
     "evict: this layer reads another's latents"},
    {PUBLISHED("dmc", ",\"action\":\"evict\""), "heads: 0 publishes rows, but without queries no channel can decide"},
    {PUBLISHED("dmc", ""), "heads: 0 publishes rows"},
    {PUBLISHED("dmc", ",\"decide\":\"adapter\""), "decide: adapter needs action: evict"},
    {SHAPE "\"layers\":2,\"kinds\":{\"p\":{\"mixer\":\"dmc\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4" ADAPTER "},"
           "\"r\":{\"mixer\":\"gqa\",\"heads\":2}},\"pattern\":[\"p\",\"r\"]}",
     "only publishes K/V, and no later layer reads it"},
};
Test(mla_evict, settings_that_disagree) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ModelCfg c;
        Model m = {0};
        Err e = {0};
        bool ok = model_cfg_from_json(&c, bad[i].json, strlen(bad[i].json), "test", &e);
        if (ok) { /* a layer map is refused later */
            ok = model_map(&m, &c, &e);
            model_unmap(&m);
            model_cfg_free(&c);
        }
        cr_expect(!ok, "accepted: %s", bad[i].json);
        if (!ok) dir_refused(bad[i].json, NULL, &e, bad[i].part);
    }
}
/* As for dmc: a policy or a codec of blocks that finds no rows to choose from or to store is refused in one line. */
Test(mla_evict, policies_and_blocks_are_refused) {
    static const struct {
        const char *policy, *codec, *part;
    } cases[] = {{"snapkv", NULL, "--policy snapkv"}, {NULL, "kivi2", "--cache-dtype kivi2: layer 0 merges or evicts"}};
    static const char *const json[] = {LATENT(",\"evict\":true"), PUBLISHED("dmc", ADAPTER)};
    for (int i = 0; i < 4; i++) {
        ModelCfg cfg;
        Model m;
        Device *dev;
        Err e = {0};
        PolicyCfg p = {0};
        const RowCodec *codec = cases[i % 2].codec ? codec_find(cases[i % 2].codec) : NULL;
        cr_assert(!cases[i % 2].policy || policy_parse(cases[i % 2].policy, &p, &e), "%s", e.msg);
        cr_assert(model_cfg_from_json(&cfg, json[i / 2], strlen(json[i / 2]), "test", &e), "%s", e.msg);
        cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
        bool ok = model_open(&m, dev, &cfg, (ModelOpts){.codec = codec, .policy = p.of ? &p : NULL, .dry = true}, &e);
        cr_expect(!ok, "%s", cases[i % 2].part);
        if (ok)
            model_close(&m);
        else
            dir_refused(json[i / 2], NULL, &e, cases[i % 2].part);
        model_cfg_free(&cfg);
        device_close(dev);
    }
}
