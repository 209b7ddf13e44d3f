/* test_mla.c: latent attention: logits and gradients that transformers computes for DeepSeek-V3's (tests/golden/mla), a
 * grouped-query model held exactly, which form of reading is chosen, what the cache holds, costs, refused settings.
 * That both forms of reading are one function is what the generic suites show: a pass over history is forward. */
#include "tests/lib/dirs.h"
#include "tests/lib/zoo.h"
#include "infer/session.h"
#include "layers/mla/mla.h"
#include "model/inside.h"
#include "model/cost.h"
#include "model/files/safetensors.h"

static const char *const names[] = {"direct", "query-latent", "yarn", "half-split"};
enum { NAMES = 4, ROWS = 48, VOCAB_MAX = 32 };
static char *golden(int i) { return xformat("tests/golden/mla/%s", names[i]); }

/* ---- transformers -------------------------------------------------------------------------------------------------
 */

static const double tol = REAL == F64 ? 1e-9 : 5e-5;

Test(mla, logits_of_transformers) {
    for (int i = 0; i < NAMES; i++) {
        char *dir = golden(i);
        real *want;
        int n;
        Dir o;
        dir_open(&o, dir);
        real *got = dir_golden(&o, dir, &want, &n);
        CHECK_CLOSE(names[i], got, want, (size_t)n, tol);
        cr_expect_eq(hf_notes(dir, stderr), 0);
        free(got), free(want), free(dir);
        dir_close(&o);
    }
}

/* The same token by token, so that all is read absorbed, and with a cache of r + Dr numbers per token and layer. */
Test(mla, logits_of_transformers_decoded) {
    for (int i = 0; i < NAMES; i++) {
        char *dir = golden(i), *path = xformat("%s/golden.safetensors", dir);
        St st;
        Err e = {0};
        Dir o;
        Session s;
        static real want[ROWS * VOCAB_MAX], got[ROWS * VOCAB_MAX];
        dir_open(&o, dir);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        const StEntry *ids = st_find(&st, "input_ids"), *logits = st_find(&st, "logits");
        int B = (int)ids->shape[0], T = (int)ids->shape[1], V = o.cfg.vocab;
        cr_assert(B * T == ROWS && V <= VOCAB_MAX && st_read(&st, logits, TENSOR(want, REAL, B, T, V), &e), "%s",
                  e.msg);
        cr_assert(session_open(&s, &o.model, (SessionOpts){.nseq = 1, .max_tokens = T, .document = -1}, &e), "%s",
                  e.msg);
        for (int b = 0; b < B; b++) {
            session_reset(&s, 0);
            for (int t = 0; t < T; t++) {
                int tok = ids->p[8 * (b * T + t)];
                size_t at = (size_t)(b * T + t) * (size_t)V;
                cr_assert(session_extend(&s, 1, &(Feed){0, 1, &tok}, WANT_LAST, TENSOR(got + at, REAL, 1, V), &e));
                cr_assert_eq(session_bytes(&s, 0), sizeof(real) * (size_t)(t + 1) * 11 * (size_t)o.cfg.layers,
                             "%zu bytes after %d tokens", session_bytes(&s, 0), t + 1); /* r 5 + Dr 6 */
            }
        }
        CHECK_CLOSE(names[i], got, want, (size_t)(ROWS * V), tol);
        session_close(&s);
        st_close(&st);
        dir_close(&o);
        free(dir), free(path);
    }
}

typedef struct {
    const St *st;
    const char *name;
} Grads;
static void see_gradient(Fields *f, Tensor *t, const char *path, unsigned flags) {
    const Grads *g = f->ctx;
    char name[256], what[320];
    Err e = {0};
    (void)flags;
    snprintf(name, sizeof name, "d %s", path);
    snprintf(what, sizeof what, "%s: %s", g->name, name);
    const StEntry *s = st_find(g->st, name);
    cr_assert(s && st_fits(g->st, s, *t, &e), "%s: %s", what, e.msg);
    real *want = xcalloc(tensor_count(*t), sizeof *want);
    Tensor w = *t;
    w.p = want;
    cr_assert(st_read(g->st, s, w, &e), "%s", e.msg);
    CHECK_RELATIVE(what, R(*t), want, tensor_count(*t), tol * 10);
    free(want);
}
/* Of the summed cross-entropy of every next token, by every weight. */
Test(mla, gradients_of_transformers) {
    for (int i = 0; i < NAMES; i++) {
        char *dir = golden(i), *path = xformat("%s/golden.safetensors", dir);
        St st;
        Err e = {0};
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        cr_assert(device_open(&dev, "cpu", 2, &e) && hf_config_read(dir, &cfg, &e), "%s", e.msg);
        cr_assert(zoo_model(&m, &work, dev, &cfg,
                            (ModelOpts){
                                .train = true, .max_rows = ROWS, .max_samples = 2, .recompute = i % 2, .poison = true},
                            &e) &&
                      hf_load(dir, &m, &e),
                  "%s", e.msg);
        const StEntry *ids = st_find(&st, "input_ids");
        int T = ROWS / 2, off[] = {0, T, ROWS}, of[ROWS], pos[ROWS], first[ROWS], tok[ROWS], tgt[ROWS];
        real g[ROWS], nll[ROWS];
        for (int r = 0; r < ROWS; r++) {
            of[r] = r / T, pos[r] = r % T, first[r] = r / T * T, tok[r] = ids->p[8 * r], g[r] = 1;
            tgt[r] = pos[r] == T - 1 ? -1 : ids->p[8 * r + 8];
        }
        Batch b = {.B = 2, .N = ROWS, .off = off, .of = of, .pos = pos, .first = first, .id = (uint64_t[]){0, 1}};
        model_zero_grad(&m);
        model_train(&m, &work, &b, tok, tgt, g, nll);
        Fields f = {.see = see_gradient, .ctx = &(Grads){&st, names[i]}};
        model_fields(&m, &m.g, &f);
        st_close(&st);
        workspace_close(&work);
        model_close(&m);
        model_cfg_free(&cfg);
        device_close(dev);
        free(dir), free(path);
    }
}

/* ---- a grouped-query model as latent attention --------------------------------------------------------------------
 */

enum { D = 12, H = 4, G = 2, HD = 4, L = 2, V = 11 };
static Tensor *field_of(Model *m, Weights *w, const char *name);
typedef struct {
    const char *name;
    Tensor *found;
} Find;
static void see_find(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Find *x = f->ctx;
    (void)flags;
    if (!strcmp(path, x->name)) x->found = t;
}
static Tensor *field_of(Model *m, Weights *w, const char *name) {
    Find x = {name, NULL};
    Fields f = {.see = see_find, .ctx = &x};
    model_fields(m, w, &f);
    cr_assert(x.found, "%s", name);
    return x.found;
}
static real *weight(Model *m, Weights *w, int l, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "model.layers.%d.self_attn.%s", l, name);
    return R(*field_of(m, w, path));
}
static void put(real *to, const real *from, int n) { memcpy(to, from, (size_t)n * sizeof(real)); }

/* Values are the latent, each key head a rope head, Wb picks the value of the query's group. Works on gradients too. */
static void as_mla(Model *from, Weights *a, Model *to, Weights *b, bool weights) {
    static const char *const same[] = {"model.embed_tokens.weight", "model.norm.weight", NULL};
    for (int i = 0; same[i]; i++) {
        Tensor *s = field_of(from, a, same[i]), *t = field_of(to, b, same[i]);
        put(R(*t), R(*s), (int)tensor_count(*s));
    }
    for (int l = 0; l < L; l++) {
        static const char *const layer[] = {"input_layernorm.weight", "post_attention_layernorm.weight",
                                            "mlp.gate_proj.weight",   "mlp.up_proj.weight",
                                            "mlp.down_proj.weight",   "self_attn.q_proj.weight",
                                            "self_attn.q_proj.bias",  "self_attn.o_proj.weight",
                                            "self_attn.o_proj.bias",  NULL};
        for (int i = 0; layer[i]; i++) {
            char path[128];
            snprintf(path, sizeof path, "model.layers.%d.%s", l, layer[i]);
            Tensor *s = field_of(from, a, path), *t = field_of(to, b, path);
            put(R(*t), R(*s), (int)tensor_count(*s));
        }
        real *wa = weight(to, b, l, "kv_a_proj_with_mqa.weight"), *ba = weight(to, b, l, "kv_a_proj_with_mqa.bias");
        put(wa, weight(from, a, l, "v_proj.weight"), G * HD * D);
        put(wa + G * HD * D, weight(from, a, l, "k_proj.weight"), G * HD * D);
        put(ba, weight(from, a, l, "v_proj.bias"), G * HD);
        put(ba + G * HD, weight(from, a, l, "k_proj.bias"), G * HD);
        real *wb = weight(to, b, l, "kv_b_proj.weight");
        for (int h = 0; weights && h < H; h++)
            for (int i = 0; i < HD; i++)
                for (int j = 0; j < G * HD; j++) wb[(h * HD + i) * G * HD + j] = j == h / (H / G) * HD + i;
    }
}

#define SHARED                                                                                      \
    "\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"layers\":2,\"tied\":true," \
    "\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}],\"pattern\":[\"a\"],\"kinds\":{\"a\":{"
#define GQA "\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"qkv_bias\":true,\"o_bias\":true"
#define STAGED                                                                                                       \
    "\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":8,\"rope_dim\":4,\"rope_heads\":2,\"v_dim\":4,\"latent_norm\":false," \
    "\"a_bias\":true,\"q_bias\":true,\"o_bias\":true"
static void check_staged(const char *more) {
    char text[2][1024];
    snprintf(text[0], sizeof text[0], "{%s%s%s}}}", SHARED, GQA, more);
    snprintf(text[1], sizeof text[1], "{%s%s%s}}}", SHARED, STAGED, more);
    ModelCfg cfg[2];
    Model m[2];
    Workspace work[2];
    Device *dev[2];
    Pass p;
    static real nll[2][ZOO_ROWS], g[ZOO_ROWS], logits[2][ZOO_ROWS * V];
    const double exact = REAL == F64 ? 1e-13 : 1e-5;
    for (int i = 0; i < 2; i++)
        zoo_open(&(Animal){"staged", text[i]}, &cfg[i], &m[i], &work[i], &dev[i],
                 (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
    for (int l = 0; l < L; l++) {
        static const char *const bias[] = {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"};
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < (i % 3 ? G * HD : 12); k++)
                weight(&m[0], &m[0].w, l, bias[i])[k] = (real)rng_normal((uint64_t)(5 + i), (uint64_t)(k + 99 * l));
    }
    zoo_whole(&p, V);
    as_mla(&m[0], &m[0].w, &m[1], &m[1].w, true);
    for (int i = 0; i < ZOO_ROWS; i++) g[i] = (real)(0.3 + 0.1 * (i % 4));
    for (int i = 0; i < 2; i++) {
        model_zero_grad(&m[i]);
        model_train(&m[i], &work[i], &p.b, p.tok, p.tgt, g, nll[i]);
    }
    CHECK_CLOSE("loss", nll[1], nll[0], (size_t)p.b.N, exact);
    /* the gradient by every weight that both have; those of Wb, which the other lacks, are skipped */
    Model copy = m[1];
    Arena mem = {0}; /* a place of the same shape */
    Err err = {0};
    weights_new(&m[1], &copy.w);
    Fields place = arena_placer(&mem);
    model_fields(&m[1], &copy.w, &place);
    cr_assert(arena_open(&mem, "a copy", mem.peak, false, &err), "%s", err.msg);
    model_fields(&m[1], &copy.w, &place);
    as_mla(&m[0], &m[0].g, &copy, &copy.w, false);
    for (int l = 0; l < L; l++) {
        static const char *const look[] = {"kv_a_proj_with_mqa.weight", "kv_a_proj_with_mqa.bias", "q_proj.weight",
                                           "q_proj.bias", "o_proj.weight"};
        for (int i = 0; i < 5; i++) {
            static const int n[] = {2 * G * HD * D, 2 * G * HD, H * HD * D, H * HD, H * HD * D};
            CHECK_RELATIVE(look[i], weight(&m[1], &m[1].g, l, look[i]), weight(&copy, &copy.w, l, look[i]),
                           (size_t)n[i], 10 * exact);
        }
    }
    arena_close(&mem);
    weights_free(&m[1], &copy.w);
    /* decoded in two passes, the second over a history */
    for (int i = 0; i < 2; i++) {
        Err e = {0};
        Cache c;
        int all[ZOO_ROWS], from[ZOO_SEQS] = {0}, n[ZOO_SEQS], done = 0;
        for (int k = 0; k < ZOO_ROWS; k++) all[k] = k;
        cr_assert(model_cache_open(&m[i], &c, ZOO_SEQS, ZOO_ROWS, ZOO_ROWS, 4, false, &e), "%s", e.msg);
        cr_assert(model_extend_reserve(&m[i], &work[i], &c, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, &e), "%s", e.msg);
        for (int half = 0; half < 2; half++) {
            Pass part;
            for (int s = 0; s < ZOO_SEQS; s++) {
                from[s] = half ? 3 : 0;
                n[s] = half ? p.off[s + 1] - p.off[s] - 3 : 3;
            }
            zoo_part(&part, &p, from, n, NULL);
            cr_assert(model_extend(&m[i], &work[i], &c, &part.b, part.tok, (RowList){part.b.N, all},
                                   TENSOR(logits[i] + done * V, REAL, part.b.N, V), &e),
                      "%s", e.msg);
            done += part.b.N;
        }
        cr_expect_eq(kv_bytes(&c, 0), sizeof(real) * L * 2 * G * HD * (size_t)kv_rows(kv_slot(&c, 0), 0, 0));
        for (int s = 0; s < ZOO_SEQS; s++) kv_drop(&c, s);
        kv_close(&c);
    }
    CHECK_CLOSE("decoded", logits[1], logits[0], (size_t)(p.b.N * V), exact * 10);
    for (int i = 0; i < 2; i++) zoo_close(&cfg[i], &m[i], &work[i], dev[i]);
}
Test(mla, holds_a_grouped_query_model) {
    check_staged("");
    check_staged(
        ",\"rope\":{\"type\":\"llama3\",\"theta\":50,\"factor\":4,\"original_max_positions\":16,\"interleaved\":true}");
    check_staged(",\"window\":3,\"sinks\":1");
}

/* ---- the form of reading ------------------------------------------------------------------------------------------
 */

static MlaCfg sizes(int heads, int r, int dn, int dr, int groups, int dv) {
    MlaCfg c = {.heads = heads, .kv_rank = r, .nope_dim = dn, .rope_dim = dr, .rope_heads = groups, .v_dim = dv};
    return c;
}
static bool expands(const MlaCfg *c, int n, int wanted, bool history) {
    enum { MOST = 512 };
    static int first[MOST], of[MOST], idx[MOST];
    cr_assert(n <= MOST);
    for (int i = 0; i < n; i++) first[i] = history ? -1 : 0, idx[i] = n - wanted + i;
    Batch b = {.B = 1, .N = n, .off = (int[]){0, n}, .of = of, .first = first, .history = history};
    return mla_expands(c, &b, (RowList){wanted, idx});
}
/* By hand from the counts in mla.h. */
Test(mla, chooses_the_cheaper_form) {
    MlaCfg v3 = sizes(128, 512, 128, 64, 1, 128), wide = sizes(1, 4, 16, 8, 1, 16);
    cr_expect(expands(&v3, 1, 1, false)); /* nothing is paid for twice */
    cr_expect(!expands(&v3, 1, 1, true));
    cr_expect(!expands(&v3, 340, 340, true)); /* n/2 (n+1) 768 = n 131072 at n = 340.3 */
    cr_expect(expands(&v3, 341, 341, true));
    cr_expect(!expands(&v3, 512, 1, false)); /* one row wanted: 512 pairs of 768 more against 511 rows expanded */
    cr_expect(expands(&v3, 512, 512, false));
    v3.window = 100; /* fewer pairs: never worth while over a history */
    cr_expect(!expands(&v3, 512, 512, true));
    for (int n = 1; n < 500; n += 83) cr_expect(!expands(&wide, n, n, false) && !expands(&wide, n, n, true));
    for (int i = 0; i < 2; i++) cr_expect(!expands(&v3, i, 0, true));
}

/* All four passes, with and without history, expanded and absorbed, are met by the generic suites. */
Test(mla, zoo_reads_in_both_forms) {
    int met[2][2] = {{0}};
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        Pass whole, p;
        int all[ZOO_ROWS];
        for (int k = 0; k < ZOO_ROWS; k++) all[k] = k;
        zoo_open(&zoo[i], &cfg, &m, &work, &dev, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
        zoo_whole(&whole, cfg.vocab);
        for (int l = 0; l < m.L; l++)
            for (int cut = 0; cut < 6; cut++) {
                int from[ZOO_SEQS] = {cut, cut, cut}, n[ZOO_SEQS] = {7 - cut, 8 - cut, 6 - cut};
                const MlaCfg *c = m.layer[l].cfg;
                if (m.layer[l].kind->mixer != &mla_mixer || !c->heads) continue;
                zoo_part(&p, &whole, from, n, NULL);
                met[p.b.history][mla_expands(c, &p.b, (RowList){p.b.N, all})]++;
            }
        zoo_close(&cfg, &m, &work, dev);
    }
    for (int h = 0; h < 2; h++)
        for (int x = 0; x < 2; x++) cr_expect(met[h][x] > 0, "history %d expanded %d: never", h, x);
}

/* ---- cache and costs ----------------------------------------------------------------------------------------------
 */

/* DeepSeek-V3's published figures: 576 numbers per token and layer; 81,920 FLOPs per visible token expanded, 278,528
 * absorbed. */
Test(mla, costs_of_deepseek_v3) {
    MlaCfg v3 = sizes(128, 512, 128, 64, 1, 128);
    KvShape s;
    mla_mixer.rows(&v3, &s);
    cr_expect(s.lanes == 1 && s.alias && s.kdim == 576 && s.vdim == 512 && row_bytes(&s) == 576 * sizeof(real) &&
              s.state == 0);
    cr_expect_eq(mla_mixer.flops(&v3, 1), 81920);
    cr_expect_eq(mla_mixer.decode_flops(&v3, 10), 2785280);
    v3.window = 6, v3.sinks = 2;
    cr_expect_eq(mla_mixer.flops(&v3, 100), 8 * 81920);
    v3.rope_heads = 4;
    mla_mixer.rows(&v3, &s);
    cr_expect(s.kdim == 512 + 4 * 64 && s.window == 6 && s.sinks == 2);
}
/* The model's cost model counts what a session holds, and decoding by the absorbed sum. */
Test(mla, cost_model_and_cache) {
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        CacheCost c;
        if (!strstr(zoo[i].json, "\"mla\"")) continue;
        zoo_open(&zoo[i], &cfg, &m, &work, &dev, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
        double sum = 0;
        size_t bytes = 0;
        for (int l = 0; l < m.L; l++) {
            const MlaCfg *k = m.layer[l].cfg;
            const Mixer *x = m.layer[l].kind->mixer;
            if (x == &mla_mixer && m.layer[l].owner)
                bytes += sizeof(real) * (size_t)(k->kv_rank + k->rope_heads * k->rope_dim);
            else if (m.layer[l].owner)
                bytes += sizeof(real) * 2 * 12; /* gqa of two heads of 6 */
            sum += x == &mla_mixer ? x->decode_flops(m.layer[l].cfg, 9) : x->flops(m.layer[l].cfg, 9);
        }
        cost_cache(&m, 9, &c);
        cr_expect_eq(c.bytes_per_token, bytes, "%s: %zu, %zu", zoo[i].name, c.bytes_per_token, bytes);
        Cost k = cost_model(&m, 9);
        cr_expect_float_eq(k.decode, 2.0 * (double)k.matmul + sum, 1e-6, "%s", zoo[i].name);
        zoo_close(&cfg, &m, &work, dev);
    }
}

/* ---- settings -----------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *settings, *part;
} bad[] = {
    {"\"heads\":2,\"kv_rank\":13,\"nope_dim\":2,\"rope_dim\":2", "kv_rank: expected at most d_model (12), got 13"},
    {"\"heads\":2,\"kv_rank\":0,\"nope_dim\":2,\"rope_dim\":2", "kv_rank"},
    {"\"heads\":2,\"nope_dim\":2,\"rope_dim\":2", "kv_rank: required"},
    {"\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2", "heads: required"},
    {"\"heads\":2,\"kv_rank\":4,\"q_rank\":13,\"nope_dim\":2,\"rope_dim\":2", "q_rank: expected at most d_model (12)"},
    {"\"heads\":2,\"kv_rank\":4,\"q_rank\":-1,\"nope_dim\":2,\"rope_dim\":2", "q_rank"},
    {"\"heads\":2,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":3", "rope_dim: rope turns pairs"},
    {"\"heads\":2,\"kv_rank\":4,\"nope_dim\":2", "rope_dim: 0 leaves nothing to rotate"},
    {"\"heads\":2,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":514", "rope_dim"},
    {"\"heads\":2,\"kv_rank\":4,\"rope_dim\":2", "v_dim: must be given"},
    {"\"heads\":2,\"kv_rank\":4,\"v_dim\":2,\"rope\":\"none\"", "nope_dim: keys have no elements"},
    {"\"heads\":4,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2,\"rope_heads\":3",
     "rope_heads: expected a divisor of heads (4)"},
    {"\"heads\":4,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2,\"rope_heads\":8", "rope_heads"},
    {"\"heads\":4,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2,\"rope_heads\":0", "rope_heads"},
    {"\"heads\":4,\"kv_rank\":4,\"nope_dim\":2,\"rope\":\"none\",\"rope_heads\":2",
     "rope_heads: 2 rotated keys, but rope_dim is 0"},
    {"\"heads\":1024,\"kv_rank\":4,\"nope_dim\":1024,\"rope_dim\":2", "heads: 1024 heads of 1026 + 1024"},
    {"\"heads\":2,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2,\"sinks\":1", "sinks: 1 without a window"},
    {"\"heads\":2,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2,\"rope\":{\"type\":\"yarn\"}", "rope.factor"},
    {"\"heads\":2,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2,\"kv_heads\":2", "kv_heads"},
};
static void refused(const char *json, const char *part) {
    ModelCfg c;
    Model m = {0};
    Err e = {0};
    bool ok = model_cfg_from_json(&c, json, strlen(json), "test", &e);
    if (ok) { /* a layer map is refused later */
        ok = model_map(&m, &c, &e);
        model_unmap(&m);
        model_cfg_free(&c);
    }
    cr_expect(!ok, "accepted: %s", json);
    if (!ok) dir_refused(json, NULL, &e, part);
}
Test(mla, refused_settings) {
    char json[1024];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(json, sizeof json, "{%s\"mixer\":\"mla\",%s}}}", SHARED, bad[i].settings);
        refused(json, bad[i].part);
    }
}
#define MAP(b)                                                                                                       \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"layers\":2,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}],"  \
    "\"pattern\":[\"a\",\"b\"],\"kv_from\":{\"1\":0},\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":4," \
    "\"nope_dim\":2,\"rope_dim\":2},\"b\":{" b "}}}"
Test(mla, refused_readers) {
    refused(MAP("\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":1,\"head_dim\":6"),
            "cannot read the rows of layer 0 (mla)");
    refused(MAP("\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":6,\"nope_dim\":2,\"rope_dim\":2"),
            "expects latents of 6 + 2 elements, layer 0 stores 4 + 2");
    refused(MAP("\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2,\"rope_heads\":2"), "4 + 4");
    refused(MAP("\"mixer\":\"mla\",\"heads\":0,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":2"), "heads: 0 publishes");
}
