/* test_hf.c: model directories: logits of models that transformers saved, settings that must be refused, weights that
 * do not match, and what we write ourselves. The goldens are made by tests/golden/make_llama.py. */
#include "check.h"
#include "../layers/ffn/ffn.h"
#include "../layers/gqa/gqa.h"
#include "../model/hf.h"
#include "../model/safetensors.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN "tests/golden/llama/"
static const char *const names[] = {"llama3-untied", "llama3-tied", "bias",     "bf16",    "mqa-wide",
                                    "linear",        "yarn",        "longrope", "dynamic", "sharded"};
enum { NNAMES = sizeof names / sizeof *names };

static void refused(const char *what, const Err *e, const char *part) {
    cr_expect_eq(e->status, EXIT_INPUT, "%s: status %d: %s", what, e->status, e->msg);
    cr_expect(strstr(e->msg, part), "%s: no '%s' in: %s", what, part, e->msg);
    cr_expect(strlen(e->msg) <= 300 && !strchr(e->msg, '\n'), "%s: %s", what, e->msg);
}

/* ---- logits --------------------------------------------------------------------------------------------------------
 */

/* (N,V) logits of B documents of T tokens each, in one pass. */
static real *logits_of(Model *m, const int *tok, int B, int T) {
    int N = B * T;
    int *of = xcalloc((size_t)N, sizeof *of), *pos = xcalloc((size_t)N, sizeof *pos),
        *first = xcalloc((size_t)N, sizeof *first);
    int *all = xcalloc((size_t)N, sizeof *all), *off = xcalloc((size_t)B + 1, sizeof *off),
        *seq = xcalloc((size_t)B, sizeof *seq);
    uint64_t *id = xcalloc((size_t)B, sizeof *id);
    for (int i = 0; i < N; i++) of[i] = i / T, pos[i] = i % T, first[i] = i / T * T, all[i] = i;
    for (int b = 0; b < B; b++) off[b + 1] = (b + 1) * T, seq[b] = b, id[b] = (uint64_t)b;
    Batch batch = {.B = B, .N = N, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .id = id};
    real *logits = xcalloc((size_t)N * (size_t)m->cfg.vocab, sizeof *logits);
    Cache cache;
    Err e = {0};
    cr_assert(model_cache_open(m, &cache, B, T, N, 0, false, &e), "%s", e.msg);
    cr_assert(model_extend_reserve(m, &cache, N, N, B, &e), "%s", e.msg);
    cr_assert(model_extend(m, &cache, &batch, tok, (Pick){N, all}, TENSOR(logits, REAL, N, m->cfg.vocab), &e), "%s",
              e.msg);
    kv_close(&cache);
    free(of), free(pos), free(first), free(all), free(off), free(seq), free(id);
    return logits;
}

typedef struct {
    Device *dev;
    ModelCfg cfg;
    Model model;
} Open;
static void open_model(Open *o, const char *dir) {
    Err e = {0};
    cr_assert(device_open(&o->dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(hf_config_read(dir, &o->cfg, &e), "%s", e.msg);
    cr_assert(hf_check(dir, &o->cfg, &e), "%s", e.msg);
    cr_assert(model_open(&o->model, o->dev, &o->cfg, (ModelOpts){.poison = true}, &e), "%s", e.msg);
    cr_assert(hf_load(dir, &o->model, &e), "%s", e.msg);
}
static void close_model(Open *o) {
    model_close(&o->model);
    model_cfg_free(&o->cfg);
    device_close(o->dev);
}

/* Our logits of the golden input of `dir` with the weights of `o`; *want: those of transformers. */
static real *golden_logits(Open *o, const char *dir, real **want, int *n) {
    char *path = xformat("%s/golden.safetensors", dir);
    St st;
    Err e = {0};
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    const StEntry *ids = st_find(&st, "input_ids"), *logits = st_find(&st, "logits");
    int B = (int)ids->shape[0], T = (int)ids->shape[1], V = (int)logits->shape[2], tok[1024];
    cr_assert(!strcmp(ids->dtype, "I64") && B * T <= 1024 && V == o->cfg.vocab);
    for (int i = 0; i < B * T; i++) tok[i] = ids->p[8 * i];
    *n = B * T * V;
    *want = xcalloc((size_t)*n, sizeof **want);
    cr_assert(st_read(&st, logits, TENSOR(*want, REAL, B, T, V), &e), "%s", e.msg);
    st_close(&st);
    free(path);
    return logits_of(&o->model, tok, B, T);
}

ParameterizedTestParameters(hf, logits_of_transformers) {
    static int index[NNAMES];
    for (int i = 0; i < NNAMES; i++) index[i] = i;
    return cr_make_param_array(int, index, NNAMES);
}
ParameterizedTest(int *i, hf, logits_of_transformers) {
    char dir[128];
    real *want;
    int n;
    Open o;
    snprintf(dir, sizeof dir, GOLDEN "%s", names[*i]);
    open_model(&o, dir);
    real *got = golden_logits(&o, dir, &want, &n);
    CHECK_CLOSE(names[*i], got, want, (size_t)n, 1e-4);
    cr_expect_eq(hf_notes(dir, stderr), 0);
    free(got);
    free(want);
    close_model(&o);
}

/* ---- a directory with one thing changed ----------------------------------------------------------------------------
 */

static void link_file(const char *from, const char *dir, const char *name) {
    char *here = realpath(from, NULL), *to = xformat("%s/%s", dir, name);
    if (here) cr_assert_eq(symlink(here, to), 0, "%s", to);
    free(here);
    free(to);
}

/* A copy of a golden directory whose config.json is the test's own. */
static char *stage(const char *golden, json_t **config) {
    static int count;
    char name[32], from[256];
    snprintf(name, sizeof name, "model-%d", count++);
    char *dir = check_path(name);
    cr_assert_eq(mkdir(dir, 0700), 0);
    static const char *const files[] = {"model.safetensors", "generation_config.json", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, GOLDEN "%s/%s", golden, files[i]);
        link_file(from, dir, files[i]);
    }
    snprintf(from, sizeof from, GOLDEN "%s/config.json", golden);
    *config = json_load_file(from, 0, NULL);
    cr_assert(*config);
    return dir;
}
static void put_config(const char *dir, const json_t *j) {
    char *path = xformat("%s/config.json", dir);
    cr_assert_eq(json_dump_file(j, path, 0), 0);
    free(path);
}
/* NULL: remove the key. `key` may be "a/b". */
static void edit(json_t *j, const char *key, const char *value) {
    const char *slash = strchr(key, '/');
    if (slash) {
        char *outer = xstrdup(key);
        outer[slash - key] = 0;
        edit(json_object_get(j, outer), slash + 1, value);
        free(outer);
    } else if (!value) {
        json_object_del(j, key);
    } else {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        cr_assert(v, "%s", value);
        json_object_set_new(j, key, v);
    }
}

static char *settings(const char *dir) {
    ModelCfg c;
    Err e = {0};
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    char *text = model_cfg_json(&c);
    model_cfg_free(&c);
    return text;
}

/* rope_theta and rope_scaling beside each other, `type` for rope_type, absent keys: the same model. */
Test(hf, older_spellings) {
    for (int i = 0; i < NNAMES; i++) {
        json_t *j;
        char *dir = stage(names[i], &j);
        put_config(dir, j);
        char *new = settings(dir);
        json_t *r = json_incref(json_object_get(j, "rope_parameters"));
        json_object_del(j, "rope_parameters");
        json_object_set(j, "rope_theta", json_object_get(r, "rope_theta"));
        json_object_del(r, "rope_theta");
        json_object_set(r, "type", json_object_get(r, "rope_type"));
        json_object_del(r, "rope_type");
        json_object_set_new(j, "rope_scaling", i == 2 || i == 4 ? json_null() : r);
        json_object_set_new(j, "torch_dtype", json_string("float32"));
        static const char *const dropped[] = {"dtype",          "mlp_bias",  "attention_dropout",
                                              "pretraining_tp", "use_cache", "hidden_act"};
        for (size_t k = 0; k < 6; k++) json_object_del(j, dropped[k]);
        if (i != 4) json_object_del(j, "head_dim");
        put_config(dir, j);
        char *old = settings(dir);
        cr_expect_str_eq(old, new, "%s", names[i]);
        free(old), free(new), free(dir);
        json_decref(j);
    }
}

Test(hf, defaults_of_llama) {
    json_t *j;
    char *dir = stage("llama3-untied", &j);
    static const char *const gone[] = {"num_key_value_heads", "head_dim",         "rms_norm_eps",
                                       "tie_word_embeddings", "rope_parameters",  "max_position_embeddings",
                                       "attention_bias",      "initializer_range"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) json_object_del(j, gone[i]);
    put_config(dir, j);
    ModelCfg c;
    Err e = {0};
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    const GqaCfg *g = c.kind[0].cfg;
    cr_expect(c.norm_eps == 1e-6 && !c.tied && c.max_positions == 2048 && c.init_std == 0.02);
    cr_expect(g->heads == 4 && g->kv_heads == 4 && g->head_dim == 8 && !g->qkv_bias && !g->o_bias && !g->window &&
              !g->qk_norm);
    cr_expect(g->rope.type == ROPE_DEFAULT && g->rope.theta == 10000 && !g->rope.interleaved);
    model_cfg_free(&c);
    json_decref(j);
    free(dir);
}

static const struct {
    const char *key, *value, *part;
} bad[] = {
    {"model_type", "\"mistral\"", "expected llama or kvsmith, found mistral"},
    {"model_type", NULL, "found nothing"},
    {"model_type", "7", "found a whole number"},
    {"model_type", "\"kvsmith\"", "\"kvsmith\": expected an object"},
    {"hidden_size", NULL, "\"hidden_size\" is missing"},
    {"hidden_size", "null", "\"hidden_size\" is missing"},
    {"hidden_size", "0", "\"hidden_size\": expected 1"},
    {"hidden_size", "-32", "\"hidden_size\": expected 1"},
    {"hidden_size", "32.0", "found a number"},
    {"hidden_size", "\"32\"", "found text"},
    {"hidden_size", "[32]", "found a list"},
    {"hidden_size", "9223372036854775807", "\"hidden_size\": expected 1"},
    {"hidden_size", "2147483647", "d_model"},
    {"intermediate_size", NULL, "\"intermediate_size\" is missing"},
    {"intermediate_size", "0", "\"intermediate_size\""},
    {"intermediate_size", "2147483647", "hidden"},
    {"num_hidden_layers", "0", "\"num_hidden_layers\""},
    {"num_hidden_layers", "1000000000", "layers"},
    {"num_attention_heads", "0", "\"num_attention_heads\""},
    {"num_attention_heads", "3", "\"num_key_value_heads\": 2 does not divide num_attention_heads 3"},
    {"num_attention_heads", "2000000000", "heads"},
    {"num_key_value_heads", "0", "\"num_key_value_heads\""},
    {"num_key_value_heads", "3", "\"num_key_value_heads\": 3 does not divide"},
    {"num_key_value_heads", "8", "\"num_key_value_heads\": 8 does not divide"},
    {"head_dim", "7", "even"},
    {"head_dim", "0", "\"head_dim\""},
    {"head_dim", "2000000000", "head_dim"},
    {"vocab_size", "0", "\"vocab_size\""},
    {"vocab_size", "2147483647", "vocab"},
    {"max_position_embeddings", "0", "\"max_position_embeddings\""},
    {"max_position_embeddings", "1e3", "found a number"},
    {"rms_norm_eps", "0", "\"rms_norm_eps\": expected more than 0"},
    {"rms_norm_eps", "-1e-5", "\"rms_norm_eps\""},
    {"rms_norm_eps", "\"1e-5\"", "\"rms_norm_eps\": expected a number"},
    {"rms_norm_eps", "1e30", "norm_eps"},
    {"hidden_act", "\"gelu\"", "\"hidden_act\": expected silu, found gelu"},
    {"hidden_act", "3", "\"hidden_act\""},
    {"attention_bias", "1", "\"attention_bias\": expected true or false"},
    {"mlp_bias", "true", "\"mlp_bias\": true is not supported"},
    {"tie_word_embeddings", "\"yes\"", "\"tie_word_embeddings\""},
    {"sliding_window", "16", "\"sliding_window\" is not supported"},
    {"quantization_config", "{\"bits\":4}", "\"quantization_config\" is not supported"},
    {"layer_types", "[\"full_attention\",\"sliding_attention\"]", "\"layer_types\""},
    {"partial_rotary_factor", "0.5", "\"partial_rotary_factor\""},
    {"rope_theta", "-1", "\"rope_theta\""},
    {"rope_parameters", "7", "\"rope_parameters\": expected an object"},
    {"rope_parameters/rope_theta", "\"x\"", "\"rope_theta\""},
    {"rope_parameters/rope_type", "\"su\"", "rope type \"su\" is not known"},
    {"rope_parameters/rope_type", "\"none\"", "rope type \"none\" is not known"},
    {"rope_parameters/rope_type", "3", "is not known"},
    {"rope_parameters/factor", "0", "factor"},
    {"rope_parameters/factor", NULL, "factor"},
    {"rope_parameters/factor", "\"8\"", "factor"},
    {"rope_parameters/factor", "[1]", "factor"},
    {"rope_parameters/low_freq_factor", "5.0", "high_freq_factor"},
    {"rope_parameters/original_max_position_embeddings", "-3", "original_max_positions"},
    {"rope_parameters/original_max_position_embeddings", "32.5", "original_max_positions"},
    {"rope_parameters/partial_rotary_factor", "0.5", "\"partial_rotary_factor\" is not supported"},
    {"rope_parameters/mrope_section", "[1,1,2]", "\"mrope_section\" is not supported"},
    {"rope_parameters/full_attention", "{}", "\"full_attention\" is not supported"},
    {"rope_scaling", "{\"rope_type\":\"linear\",\"factor\":2.0}", "differ"},
    {"rope_scaling", "[]", "\"rope_scaling\": expected an object"},
};

Test(hf, refused_settings) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *j;
        char *dir = stage("llama3-untied", &j);
        ModelCfg c;
        Err e = {0};
        edit(j, bad[i].key, bad[i].value);
        put_config(dir, j);
        cr_expect(!hf_config_read(dir, &c, &e), "%s = %s accepted", bad[i].key,
                  bad[i].value ? bad[i].value : "nothing");
        refused(bad[i].key, &e, bad[i].part);
        cr_expect(strstr(e.msg, "config.json"), "%s", e.msg);
        json_decref(j);
        free(dir);
    }
}

Test(hf, unreadable_config) {
    static const char *const text[] = {"",
                                       "{",
                                       "[]",
                                       "\xff",
                                       "{\"a\":1,\"a\":2}",
                                       "{} {}",
                                       "{\"model_type\":\"lla\\u0000ma\"}",
                                       "{\"hidden_size\":99999999999999999999}"};
    char *path = check_path("config.json");
    ModelCfg c;
    Err e = {0};
    cr_assert(!hf_config_read(check_dir(), &c, &e));
    refused("missing", &e, "No such file");
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        check_write(path, text[i], strlen(text[i]));
        e = (Err){0};
        cr_expect(!hf_config_read(check_dir(), &c, &e), "%s accepted", text[i]);
        refused(text[i], &e, "config.json");
    }
    free(path);
}

Test(hf, ids) {
    static const struct {
        const char *config, *generation;
        int bos, neos, last; /* neos -1: refused */
    } k[] = {{"{\"bos_token_id\":1,\"eos_token_id\":2}", NULL, 1, 1, 2},
             {"{\"bos_token_id\":null}", NULL, -1, 0, 0},
             {"{\"eos_token_id\":[2,3]}", NULL, -1, 2, 3},
             {"{\"bos_token_id\":1,\"eos_token_id\":2}", "{\"eos_token_id\":[4,5,6]}", 1, 3, 6},
             {"{\"eos_token_id\":[2,3]}", "{\"bos_token_id\":9,\"eos_token_id\":null}", 9, 2, 3},
             {"{\"eos_token_id\":-1}", NULL, -1, 0, 0},
             {"{\"eos_token_id\":\"2\"}", NULL, 0, -1, 0},
             {"{\"eos_token_id\":[2,\"3\"]}", NULL, 0, -1, 0},
             {"{\"bos_token_id\":99999999999}", NULL, 0, -1, 0},
             {"{\"eos_token_id\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", NULL, 0, -1, 0},
             {"{}", "{\"eos_token_id\":2.5}", 0, -1, 0},
             {"{}", "nonsense", 0, -1, 0}};
    char *config = check_path("config.json"), *gen = check_path("generation_config.json");
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        HfIds ids;
        Err e = {0};
        unlink(gen);
        check_write(config, k[i].config, strlen(k[i].config));
        if (k[i].generation) check_write(gen, k[i].generation, strlen(k[i].generation));
        bool ok = hf_ids_read(check_dir(), &ids, &e);
        cr_expect_eq(ok, k[i].neos >= 0, "case %zu: %s", i, e.msg);
        if (!ok)
            refused(k[i].config, &e, k[i].generation ? "generation_config.json" : "config.json");
        else
            cr_expect(ids.bos == k[i].bos && ids.neos == k[i].neos && (!ids.neos || ids.eos[ids.neos - 1] == k[i].last),
                      "case %zu", i);
    }
    free(config);
    free(gen);
}

/* ---- weights that do not match -------------------------------------------------------------------------------------
 */

/* Rewrite DIR/model.safetensors from the golden one: `name` dropped, or given another shape or name. */
typedef enum { DROP, WIDER, TURNED, RENAMED, ADDED, SAME } Change;
static void rewrite(const char *dir, const char *golden, const char *name, Change how, const char *added) {
    char *path = xformat("%s/model.safetensors", dir), *from = xformat(GOLDEN "%s/model.safetensors", golden);
    static real room[32][2048];
    StList l = {0};
    St st;
    Err e = {0};
    cr_assert(st_open(&st, from, &e), "%s", e.msg);
    cr_assert(st.n < 31);
    for (int i = 0; i < st.n; i++) {
        const StEntry *s = &st.entry[i];
        bool me = !strcmp(s->name, name);
        int n[2] = {(int)s->shape[0], s->rank > 1 ? (int)s->shape[1] : 1};
        cr_assert(s->rank <= 2 && n[0] * n[1] < 2000);
        Tensor t = tensor_make(room[i], REAL, s->rank, n);
        cr_assert(st_read(&st, s, t, &e), "%s", e.msg);
        if (me && how == DROP) continue;
        if (me && how == WIDER) t.n[0]++;
        if (me && how == TURNED) t.n[0] = n[1], t.n[1] = n[0];
        st_add(&l, me && how == RENAMED ? added : s->name, t, F32);
        if (me && how == ADDED) st_add(&l, added, t, F32);
    }
    st_close(&st);
    unlink(path);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    st_list_free(&l);
    free(path);
    free(from);
}

/* hf_check and hf_load agree. */
static void both(const char *what, const char *dir, const char *part) {
    Open o;
    Err e = {0}, f = {0};
    cr_assert(device_open(&o.dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(hf_config_read(dir, &o.cfg, &e), "%s", e.msg);
    cr_assert(model_open(&o.model, o.dev, &o.cfg, (ModelOpts){0}, &e), "%s", e.msg);
    bool ok = hf_check(dir, &o.cfg, &e);
    cr_expect_eq(hf_load(dir, &o.model, &f), ok, "%s: %s | %s", what, e.msg, f.msg);
    cr_expect_eq(ok, !part, "%s: %s", what, e.msg);
    if (part) {
        refused(what, &e, part);
        refused(what, &f, part);
    }
    close_model(&o);
}

Test(hf, weights_must_match) {
    static const struct {
        const char *name;
        Change how;
        const char *added, *part;
    } k[] = {
        {"model.layers.1.self_attn.q_proj.weight", DROP, NULL, "\"model.layers.1.self_attn.q_proj.weight\" is missing"},
        {"model.norm.weight", DROP, NULL, "\"model.norm.weight\" is missing"},
        {"lm_head.weight", DROP, NULL, "tie_word_embeddings"},
        {"model.layers.0.mlp.up_proj.weight", WIDER, NULL,
         "\"model.layers.0.mlp.up_proj.weight\": expected shape (48,32), found (49,32)"},
        {"model.layers.0.mlp.down_proj.weight", TURNED, NULL, "expected shape (32,48), found (48,32)"},
        {"model.layers.0.self_attn.k_proj.weight", RENAMED, "model.layers.0.self_attn.K_proj.weight",
         "\"model.layers.0.self_attn.k_proj.weight\" is missing"},
        {"model.norm.weight", ADDED, "model.norm.bias", "\"model.norm.bias\" has no place"},
        {"model.layers.1.mlp.up_proj.weight", ADDED, "model.layers.2.mlp.up_proj.weight",
         "\"model.layers.2.mlp.up_proj.weight\" has no place"},
        {"model.norm.weight", ADDED, "model.layers.0.self_attn.q_proj.bias", "q_proj.bias\" has no place"},
        {"model.norm.weight", ADDED, "model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
        {"model.norm.weight", SAME, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j;
        char *dir = stage("llama3-untied", &j);
        put_config(dir, j);
        rewrite(dir, "llama3-untied", k[i].name, k[i].how, k[i].added);
        both(k[i].name, dir, k[i].part);
        json_decref(j);
        free(dir);
    }
}

Test(hf, wrong_dtype) {
    json_t *j;
    char *dir = stage("llama3-tied", &j), *path = xformat("%s/model.safetensors", dir);
    size_t n;
    put_config(dir, j);
    char *all = check_read(GOLDEN "llama3-tied/model.safetensors", &n), *at = memmem(all, n, "F32", 3);
    cr_assert(at);
    memcpy(at, "I32", 3);
    unlink(path);
    check_write(path, all, n);
    both("I32", dir, "expected dtype F64, F32, F16 or BF16, found I32");
    free(all), free(dir), free(path);
    json_decref(j);
}

Test(hf, truncated) {
    static const char *const of[] = {"llama3-untied", "sharded", "sharded"}, *const file[] = {
                                                                                 "model.safetensors",
                                                                                 "model-00002-of-00002.safetensors",
                                                                                 "model.safetensors.index.json"};
    for (int k = 0; k < 3; k++) {
        json_t *j;
        char *dir = stage(of[k], &j), *path = xformat("%s/%s", dir, file[k]),
             *from = xformat(GOLDEN "%s/%s", of[k], file[k]);
        size_t n;
        char *all = check_read(from, &n);
        const size_t cut[] = {0, 7, 8, 100, n / 2, n - 1};
        put_config(dir, j);
        for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
            /* The index without the newline at its end is the same index. */
            bool whole = k == 2 && cut[i] == n - 1;
            unlink(path);
            check_write(path, all, cut[i]);
            both(file[k], dir, whole ? NULL : file[k]);
        }
        unlink(path);
        both(file[k], dir, k == 0 ? "neither model.safetensors nor" : file[k][5] == '-' ? "No such file" : "neither");
        json_decref(j);
        free(all), free(dir), free(path), free(from);
    }
}

/* A tied model may carry a copy of its head; transformers ignores it, equal or not. */
Test(hf, tied_copy) {
    json_t *j;
    char *dir = stage("llama3-tied", &j), *path = check_path("notes");
    put_config(dir, j);
    FILE *f = fopen(path, "w+");
    rewrite(dir, "llama3-tied", "model.embed_tokens.weight", ADDED, "lm_head.weight");
    both("equal copy", dir, NULL);
    cr_expect_eq(hf_notes(dir, f), 0);
    rewrite(dir, "llama3-tied", "model.layers.0.mlp.up_proj.weight", ADDED, "lm_head.weight");
    both("another head", dir, NULL);
    cr_expect_eq(hf_notes(dir, f), 1);
    Open o;
    real *want;
    int n;
    open_model(&o, dir);
    real *got = golden_logits(&o, GOLDEN "llama3-tied", &want, &n);
    CHECK_CLOSE("tied", got, want, (size_t)n, 1e-4);
    close_model(&o);
    fclose(f);
    json_decref(j);
    free(got), free(want), free(dir), free(path);
}

/* ---- writing -------------------------------------------------------------------------------------------------------
 */

static void see_weights(Fields *f, Tensor *t, const char *path, unsigned flags) {
    StList *l = f->ctx;
    (void)flags;
    st_add(l, path, *t, REAL);
}

/* What was read and written again is the same model: settings, ids, and every bit of every weight. */
Test(hf, there_and_back) {
    for (int i = 0; i < NNAMES; i++) {
        char from[128], *to = check_path(names[i]);
        snprintf(from, sizeof from, GOLDEN "%s", names[i]);
        Open a, b;
        HfIds ids, back;
        Err e = {0};
        open_model(&a, from);
        cr_assert(hf_ids_read(from, &ids, &e), "%s", e.msg);
        cr_assert_eq(mkdir(to, 0700), 0);
        cr_assert(hf_save(to, &a.model, &ids, i % 2 ? BF16 : F32, &e), "%s", e.msg);
        cr_expect_eq(check_entries(to), 3);
        open_model(&b, to);
        cr_assert(hf_ids_read(to, &back, &e), "%s", e.msg);
        cr_expect(!memcmp(&ids, &back, sizeof ids), "%s", names[i]);
        char *one = settings(from), *two = settings(to);
        cr_expect_str_eq(one, two, "%s", names[i]);
        StList w[2] = {{0}, {0}};
        for (int k = 0; k < 2; k++) {
            Model *m = k ? &b.model : &a.model;
            Fields f = {.see = see_weights, .ctx = &w[k]};
            model_fields(m, &m->w, &f);
        }
        cr_assert_eq(w[0].n, w[1].n);
        for (int k = 0; k < w[0].n; k++) {
            char msg[512];
            /* The bf16 golden holds numbers that BF16 holds; others are rounded by at most half a unit. */
            bool exact = i % 2 == 0 || !strcmp(names[i], "bf16");
            if (exact)
                cr_assert(check_bytes(msg, w[0].item[k].name, w[1].item[k].t.p, w[0].item[k].t.p,
                                      tensor_bytes(w[0].item[k].t)),
                          "%s", msg);
            else
                cr_assert(check_tensor(msg, w[0].item[k].name, w[1].item[k].t, w[0].item[k].t, 0x1p-8), "%s", msg);
        }
        st_list_free(&w[0]), st_list_free(&w[1]);
        close_model(&a), close_model(&b);
        free(one), free(two), free(to);
    }
}

static const char base[] =
    "{\"d_model\":32,\"layers\":4,\"vocab\":48,\"max_positions\":128,\"norm_eps\":1e-5,\"init_std\":0.02,\"tied\":true,"
    "\"kinds\":{\"full\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":8,\"rope\":{\"type\":\"default\"}}}"
    ","
    "\"pattern\":[\"full\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":48}]}";
static const struct {
    const char *key, *value;
    bool llama;
} shapes[] = {
    {"layers", "4", true},
    {"tied", "false", true},
    {"kinds/full/kv_heads", "0", true},
    {"kinds/full/head_dim", "0", true},
    {"kinds/full/head_dim", "10", true},
    {"kinds/full/window", "16", false},
    {"kinds/full/qk_norm", "true", false},
    {"kinds/full/qkv_bias", "true", false},
    {"kinds/full/o_bias", "true", false},
    {"kinds/full/rope", "{\"type\":\"none\"}", false},
    {"kinds/full/rope/interleaved", "true", false},
    {"kinds/full/rope", "{\"type\":\"linear\",\"factor\":2}", true},
    {"kinds/full/rope", "{\"type\":\"dynamic\",\"factor\":2}", true},
    {"kinds/full/rope", "{\"type\":\"dynamic\",\"factor\":2,\"length\":256}", false},
    {"kinds/full/rope", "{\"type\":\"yarn\",\"factor\":4,\"original_max_positions\":32}", true},
    {"kinds/full/rope", "{\"type\":\"yarn\",\"factor\":2,\"original_max_positions\":32}", false},
    {"kinds/full/rope",
     "{\"type\":\"longrope\",\"short_factor\":[1,1,2,2],\"long_factor\":[1,1,2,2],\"original_max_positions\":32}",
     true},
    {"kinds/full/rope",
     "{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,2,2],\"original_max_positions\":32}",
     false},
    {"kinds/local", "{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":8,\"window\":8}",
     true}, /* declared, not used */
    {"kv_from", "{\"3\":1}", false},
    {"ffn", "[{\"kind\":\"swiglu\",\"hidden\":48},{\"kind\":\"swiglu\",\"hidden\":32}]", false},
};

/* Every shape of model keeps its settings through config.json, as llama where it is one. */
Test(hf, settings_there_and_back) {
    char *path = check_path("config.json");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ModelCfg c;
        Err e = {0};
        const char *why = NULL;
        json_t *j = json_loads(base, 0, NULL);
        cr_assert(j);
        edit(j, shapes[i].key, shapes[i].value);
        char *text = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, text, strlen(text), "test", &e), "%s", e.msg);
        cr_expect_eq(hf_is_llama(&c, &why), shapes[i].llama, "%s %s: %s", shapes[i].key, shapes[i].value,
                     why ? why : "is llama");
        cr_assert(hf_config_write(path, &c, &(HfIds){.bos = 5, .neos = 1, .eos = {6}}, F32, &e), "%s", e.msg);
        json_t *file = json_load_file(path, 0, NULL);
        cr_expect_str_eq(json_string_value(json_object_get(file, "model_type")), shapes[i].llama ? "llama" : "kvsmith");
        cr_expect_eq(json_integer_value(json_object_get(file, "bos_token_id")), 5);
        ModelCfg d;
        cr_assert(hf_config_read(check_dir(), &d, &e), "%s", e.msg);
        char *a = model_cfg_json(&c), *b = model_cfg_json(&d);
        /* llama resolves defaults and keeps no name of a kind: compare what the layers become. */
        if (!shapes[i].llama) {
            cr_expect_str_eq(a, b);
        } else {
            Model m = {0}, n = {0};
            cr_assert(model_map(&m, &c, &e) && model_map(&n, &d, &e), "%s", e.msg);
            cr_expect(c.tied == d.tied && c.norm_eps == d.norm_eps && c.vocab == d.vocab && m.L == n.L);
            const GqaCfg *x = m.layer[1].cfg, *y = n.layer[1].cfg;
            cr_expect(x->heads == y->heads && x->kv_heads == y->kv_heads && x->head_dim == y->head_dim &&
                      x->qkv_bias == y->qkv_bias && x->o_bias == y->o_bias);
            CHECK_BYTES(shapes[i].value, &y->table, &x->table, sizeof x->table);
        }
        free(a), free(b), free(text);
        model_cfg_free(&c);
        model_cfg_free(&d);
        json_decref(j);
        json_decref(file);
    }
    free(path);
}

/* A model that is no llama: kinds, window, shared K/V, qk_norm; weights and settings come back. */
Test(hf, own_format) {
    static const char mixed[] =
        "{\"d_model\":16,\"layers\":4,\"vocab\":20,\"max_positions\":64,\"norm_eps\":1e-5,\"init_std\":0.3,\"tied\":"
        "false,\"kinds\":{"
        "\"local\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":8,\"qk_norm\":true},"
        "\"full\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"rope\":{\"type\":\"none\"},\"qkv_"
        "bias\":true}},"
        "\"pattern\":[\"local\",\"full\"],\"kv_from\":{\"3\":1},\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":24}]}";
    Open a, b;
    Err e = {0};
    cr_assert(device_open(&a.dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&a.cfg, mixed, strlen(mixed), "mixed", &e), "%s", e.msg);
    cr_assert(model_open(&a.model, a.dev, &a.cfg, (ModelOpts){0}, &e), "%s", e.msg);
    model_init(&a.model, 3);
    cr_assert(hf_save(check_dir(), &a.model, NULL, F32, &e), "%s", e.msg);
    open_model(&b, check_dir());
    int tok[24];
    for (int i = 0; i < 24; i++) tok[i] = i * 7 % 20;
    real *x = logits_of(&a.model, tok, 2, 12), *y = logits_of(&b.model, tok, 2, 12);
    CHECK_CLOSE("logits", y, x, 24 * 20, REAL == F64 ? 1e-5 : 0); /* the double build's weights were rounded to F32 */
    cr_expect(fabs((double)x[0]) > 1e-3);
    free(x);
    free(y);
    close_model(&a);
    close_model(&b);
}

Test(hf, full_disk) {
    Open o;
    Err e = {0};
    struct rlimit all, some;
    open_model(&o, GOLDEN "llama3-untied");
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &all);
    for (int i = 0; i < 3; i++) {
        static const rlim_t room[] = {10, 2000, 50000};
        char name[8] = {(char)('a' + i), 0}, *dir = check_path(name);
        cr_assert_eq(mkdir(dir, 0700), 0);
        some = (struct rlimit){room[i], all.rlim_max};
        setrlimit(RLIMIT_FSIZE, &some);
        e = (Err){0};
        bool ok = hf_save(dir, &o.model, NULL, F32, &e);
        setrlimit(RLIMIT_FSIZE, &all);
        cr_assert(!ok && e.status == EXIT_WORLD && strstr(e.msg, dir), "%s", e.msg);
        cr_expect_eq(check_entries(dir), i ? 2 : 0, "%d",
                     check_entries(dir)); /* whole files or none, no temporary one */
        free(dir);
    }
    char *gone = check_path("gone/dir");
    cr_assert(!hf_save(gone, &o.model, NULL, F32, &e));
    refused("no directory", &e, "gone/dir");
    free(gone);
    close_model(&o);
}
