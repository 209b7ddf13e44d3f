/* test_hf_family.c: the model types in the list below: logits of transformers, files that come back byte for byte,
 * decoding through the cache, and what is refused. */
#include "tests/lib/dirs.h"
#include "tests/lib/zoo.h"
#include "layers/gqa/gqa.h"
#include "model/files/safetensors.h"
#include <sys/stat.h>

#define FAMILIES "tests/golden/families/"
static const struct {
    const char *name, *type; /* type NULL: written as another */
} family[] = {{"mistral", "mistral"},
              {"qwen2", "qwen2"},
              {"qwen2-window", "qwen2"},
              {"qwen3", "qwen3"},
              {"qwen3-mixed", "qwen3"},
              {"gpt2", "gpt2"},
              {"gpt2-wide", "gpt2"},
              {"gpt_neox", "gpt_neox"},
              {"gpt_neox-serial", "gpt_neox"},
              {"phi3", "phi3"},
              {"phi3-long", "phi3"},
              {"smollm3", "smollm3"},
              {"smollm3-window", "smollm3"},
              {"granite", "granite"},
              {"granite-bias", "granite"},
              {"olmo2", "olmo2"},
              {"olmo2-bias", "olmo2"},
              {"gemma2", "gemma2"},
              {"gemma2-plain", "gemma2"},
              {"gemma3_text", "gemma3_text"},
              {"gemma3_text-cap", "gemma3_text"},
              {"mixtral", "mixtral"},
              {"mixtral-window", "mixtral"},
              {"qwen3_moe", "qwen3_moe"},
              {"qwen3_moe-some", "qwen3_moe"},
              {"qwen2_moe", "qwen2_moe"},
              {"qwen2_moe-step", "qwen2_moe"},
              {"deepseek_v3", "deepseek_v3"},
              {"deepseek_v3-yarn", "deepseek_v3"},
              {"deepseek_v2", "deepseek_v2"},
              {"deepseek_v2-groups", "deepseek_v2"},
              {"olmoe", "olmoe"},
              {"olmoe-biases", "olmoe"},
              {"qwen3_next", "qwen3_next"},
              {"qwen3_next-some", "qwen3_next"},
              {"qwen3_5_text", "qwen3_5_text"},
              {"qwen3_5_text-square", "qwen3_5_text"},
              {"qwen3_5_moe_text", NULL},
              {"kimi_linear", "kimi_linear"},
              {"kimi_linear-groups", "kimi_linear"},
              {"bailing_hybrid", "bailing_hybrid"},
              {"bailing_hybrid-groups", "bailing_hybrid"},
              {"glm4_moe", "glm4_moe"},
              {"glm4_moe-groups", "glm4_moe"},
              {"glm4_moe_lite", "glm4_moe_lite"},
              {"glm4_moe_lite-plain", NULL},
              {"mamba2", "mamba2"},
              {"mamba2-biases", "mamba2"},
              {"granitemoehybrid", "granitemoehybrid"},
              {"granitemoehybrid-dense", "granitemoehybrid"},
              {"kda", "kda"},
              {"kda-hybrid", "kda"},
              {"gated_deltanet", "gated_deltanet"},
              {"gated_deltanet-hybrid", "gated_deltanet"},
              {"delta_net", "delta_net"},
              {"delta_net-hybrid", "delta_net"},
              {"gla", "gla"},
              {"gla-hybrid", "gla"},
              {"retnet", "retnet"},
              {"retnet-hybrid", "retnet"},
              {"mamba2-fla", "mamba2"},
              {"gpt_oss", "gpt_oss"},
              {"gpt_oss-plain", "gpt_oss"},
              {"gpt_oss-mxfp4", NULL}, /* quantised files are not written */
              {"qwen3-fp8", NULL},
              {"deepseek_v3-fp8", NULL},
              {"nemotron_h", "nemotron_h"},
              {"nemotron_h-experts", "nemotron_h"},
              {"nemotron_h-plain", "nemotron_h"}};
enum { FAMILY = sizeof family / sizeof *family };

static char *golden_dir(int i) { return xformat(FAMILIES "%s", family[i].name); }

Test(hf_family, logits) {
    for (int i = 0; i < FAMILY; i++) {
        char *dir = golden_dir(i);
        Dir o;
        real *want;
        int n;
        dir_open(&o, dir);
        real *got = dir_golden(&o, dir, &want, &n);
        CHECK_CLOSE(family[i].name, got, want, (size_t)n, 1e-4);
        free(got), free(want);
        want = NULL;
        got = REAL == F64 ? dir_golden_of(&o, dir, "logits_f64", &want, &n) : NULL; /* in double to the last digits */
        if (got) CHECK_CLOSE(family[i].name, got, want, (size_t)n, 1e-9);
        free(got), free(want), free(dir);
        dir_close(&o);
    }
}

#ifdef KV_DOUBLE
/* The same in float64, where transformers' own rounding is out of the way. */
Test(hf_family, logits_in_double) {
    int checked = 0;
    for (int i = 0; i < FAMILY; i++) {
        char *dir = golden_dir(i), *path = xformat("%s/golden.safetensors", dir);
        St st;
        Dir o;
        Err e = {0};
        int n;
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        const StEntry *s = st_find(&st, "logits64");
        if (s) {
            real *unused, *want = xcalloc(s->bytes / 8, sizeof *want);
            cr_assert(st_read(&st, s, TENSOR(want, REAL, (int)s->shape[0], (int)s->shape[1], (int)s->shape[2]), &e),
                      "%s", e.msg);
            dir_open(&o, dir);
            real *got = dir_golden(&o, dir, &unused, &n);
            CHECK_RELATIVE(family[i].name, got, want, (size_t)n, 1e-9);
            dir_close(&o);
            free(got), free(want), free(unused);
            checked++;
        }
        st_close(&st);
        free(dir), free(path);
    }
    cr_assert(checked >= 10, "%d", checked);
}
#endif

/* Rows one at a time and in pieces over a cache are those of one pass. */
Test(hf_family, decoding) {
    enum { T = 20 };
    static const int cut[] = {0, 3, 4, 5, 11, 12, 13, 14, 20};
    for (int i = 0; i < FAMILY; i++) {
        char *dir = golden_dir(i);
        Dir o;
        Cache cache;
        int tok[T];
        dir_open(&o, dir);
        const int V = o.cfg.vocab;
        for (int t = 0; t < T; t++) tok[t] = t * 7 % V;
        real *want = dir_logits(&o.model, tok, 1, T), *got = dir_in_pieces(&o.model, tok, T, cut, &cache);
        model_nudge(&o.model);
        real *nudged = dir_logits(&o.model, tok, 1, T);
        size_t n = (size_t)T * (size_t)V;
        double bound = REAL == F64 ? 1e-12 : check_rounding(CHECK_VIEW(want), CHECK_VIEW(nudged), n);
        CHECK_CLOSE(family[i].name, got, want, n, bound);
        kv_close(&cache);
        free(got), free(want), free(nudged), free(dir);
        dir_close(&o);
    }
}

/* Saved again a model is of the same type and its tensors are the file of transformers, byte for byte; in shards and
 * rounded it is the same model. */
Test(hf_family, there_and_back) {
    for (int i = 0; i < FAMILY; i++) {
        char *dir = golden_dir(i), *to = check_path(family[i].name), *shards = xformat("%s-shards", to);
        Dir o, p;
        HfIds ids;
        Err e = {0};
        size_t na, nb;
        dir_open(&o, dir);
        cr_assert(hf_ids_read(dir, &ids, &e), "%s", e.msg);
        cr_assert(!mkdir(to, 0700) && !mkdir(shards, 0700));
        cr_assert(hf_save(to, &o.model, &ids, F32, &e), "%s", e.msg);
        char *from = xformat("%s/model.safetensors", dir), *file = xformat("%s/model.safetensors", to);
        char *a = check_read(from, &na), *b = check_read(file, &nb);
        char *config = xformat("%s/config.json", to);
        json_t *j = json_load_file(config, 0, NULL);
        if (family[i].type) {
            cr_assert_eq(na, nb, "%s: %zu bytes, want %zu", family[i].name, nb, na);
            CHECK_BYTES(family[i].name, b, a, na);
            cr_expect_str_eq(json_string_value(json_object_get(j, "model_type")), family[i].type);
        }
        char *one = dir_settings(dir), *two = dir_settings(to);
        cr_expect_str_eq(one, two, "%s", family[i].name);
        cr_assert(hf_save_sharded(shards, &o.model, &ids, BF16, 3000, &e), "%s", e.msg);
        dir_open(&p, shards);
        int tok[12];
        for (int t = 0; t < 12; t++) tok[t] = t * 5 % o.cfg.vocab;
        real *x = dir_logits(&o.model, tok, 1, 12), *y = dir_logits(&p.model, tok, 1, 12);
        CHECK_CLOSE(family[i].name, y, x, (size_t)(12 * o.cfg.vocab), 0.5);
        free(x), free(y), free(one), free(two), free(a), free(b), free(from), free(file), free(config);
        free(dir), free(to), free(shards);
        json_decref(j);
        dir_close(&o), dir_close(&p);
    }
}

/* A model of another kind takes the tensors of a directory by the names of that directory. */
Test(hf_family, another_model_of_the_same_tensors) {
    static const char *const from[] = {"gpt2", "gpt_neox"};
    for (int i = 0; i < 2; i++) {
        char *dir = xformat(FAMILIES "%s", from[i]);
        ModelCfg c;
        Model m;
        Err e = {0};
        Dir o;
        dir_open(&o, dir);
        char *text = dir_settings(dir);
        json_t *j = json_loads(text, 0, NULL);
        dir_edit(j, "kinds/full/window", "5");
        dir_edit(j, "pattern", "[\"full\"]");
        char *changed = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, changed, strlen(changed), "changed", &e), "%s", e.msg);
        cr_assert(hf_check(dir, &c, &e), "%s", e.msg);
        cr_assert(model_open(&m, o.dev, &c, (ModelOpts){0}, &e) && hf_load(dir, &m, &e), "%s", e.msg);
        StList a = {.as = F32}, b = {.as = F32};
        Fields f = st_lister(&a), g = st_lister(&b);
        model_fields(&o.model, &o.model.w, &f), model_fields(&m, &m.w, &g);
        for (int k = 0; k < a.n; k++)
            CHECK_BYTES(a.item[k].name, b.item[k].t.p, a.item[k].t.p, tensor_bytes(a.item[k].t));
        st_list_free(&a), st_list_free(&b);
        model_close(&m), model_cfg_free(&c);
        dir_edit(j, "kinds/full/window", "0");
        dir_edit(j, "kinds/full/qk_norm", "true"); /* a tensor that the type has no name for */
        free(changed);
        changed = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, changed, strlen(changed), "changed", &e), "%s", e.msg);
        cr_assert(!hf_check(dir, &c, &e));
        dir_refused("qk_norm", NULL, &e, "q_norm.weight\" is missing");
        model_cfg_free(&c);
        json_decref(j);
        free(text), free(changed), free(dir);
        dir_close(&o);
    }
}

/* ---- tensors -------------------------------------------------------------------------------------------------------
 */

static char *staged(const char *name, const char *key, const char *value);

/* Write DIR/model.safetensors again with one tensor renamed, dropped or of another shape, and `also` added. */
static void rewrite(const char *dir, const char *name, const char *to, bool wider, const char *also, bool bare) {
    char *path = xformat("%s/model.safetensors", dir);
    static real room[64][2048];
    StList l = {0};
    St st;
    Err e = {0};
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    for (int i = 0; i < st.n; i++) {
        const StEntry *s = &st.entry[i];
        int n[2] = {(int)s->shape[0], s->rank > 1 ? (int)s->shape[1] : 1};
        cr_assert(n[0] * n[1] < 2000 && i < 64);
        Tensor t = tensor_make(room[i], REAL, s->rank, n);
        cr_assert(st_read(&st, s, t, &e), "%s", e.msg);
        bool me = name && !strcmp(s->name, name);
        if (me && wider) t.n[0]++;
        const char *as = me && !wider ? to : s->name;
        if (as) st_add(&l, bare && !strncmp(as, "transformer.", 12) ? as + 12 : as, t, F32);
    }
    real mask[4] = {1, 0, 1, 1};
    if (also) st_add(&l, also, TENSOR(mask, REAL, 1, 1, 2, 2), F32);
    st_close(&st);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    st_list_free(&l);
    free(path);
}

Test(hf_family, tensors_must_match) {
    static const struct {
        const char *family, *name, *to, *also, *part; /* part NULL: the same model */
        bool wider, bare;
    } k[] = {
        {"gpt2", NULL, NULL, NULL, NULL, false, true},
        {"gpt2", NULL, NULL, "h.1.attn.bias", NULL, false, true},
        {"gpt2", NULL, NULL, "transformer.h.0.attn.masked_bias", NULL, false, false},
        {"gpt2", NULL, NULL, "lm_head.weight", NULL, false, false}, /* tied: not read */
        {"gpt2", "transformer.h.1.attn.c_attn.weight", NULL, NULL, "\"transformer.h.1.attn.c_attn.weight\" is missing",
         false, false},
        {"gpt2", "transformer.h.1.attn.c_attn.bias", "transformer.h.1.attn.bias", NULL,
         "\"transformer.h.1.attn.c_attn.bias\" is missing", false, false},
        {"gpt2", "transformer.h.0.attn.c_attn.weight", NULL, NULL, "expected shape (16,48), found (17,48)", true,
         false},
        {"gpt2", "transformer.h.0.mlp.c_fc.weight", NULL, NULL, "expected shape (16,64), found (17,64)", true, false},
        {"gpt2", "transformer.h.0.ln_1.bias", NULL, NULL, "\"transformer.h.0.ln_1.bias\": expected shape (16)", true,
         false},
        {"gpt2", "transformer.wpe.weight", NULL, NULL, "expected shape (32,16), found (33,16)", true, false},
        {"gpt2", NULL, NULL, "transformer.h.0.attn.c_attn.scale", "c_attn.scale\" has no place in this model", false,
         false},
        {"gpt2-wide", "lm_head.weight", NULL, NULL, "\"tie_word_embeddings\": true", false, false},
        {"gpt_neox", NULL, NULL, "gpt_neox.layers.0.attention.bias", NULL, false, false},
        {"gpt_neox", NULL, NULL, "gpt_neox.layers.1.attention.rotary_emb.inv_freq", NULL, false, false},
        {"gpt_neox", "embed_out.weight", NULL, NULL, "\"embed_out.weight\" is missing; if the head is", false, false},
        {"gpt_neox", "gpt_neox.layers.0.attention.query_key_value.bias", NULL, NULL, "expected shape (48), found (49)",
         true, false},
        {"gpt_neox", "gpt_neox.final_layer_norm.bias", NULL, NULL, "\"gpt_neox.final_layer_norm.bias\" is missing",
         false, false},
        {"qwen2", "model.layers.0.self_attn.k_proj.bias", NULL, NULL, "k_proj.bias\" is missing", false, false},
        {"qwen3", "model.layers.1.self_attn.q_norm.weight", NULL, NULL, "q_norm.weight\" is missing", false, false},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char *dir = staged(k[i].family, NULL, NULL);
        Dir o;
        Err e = {0}, f = {0};
        rewrite(dir, k[i].name, k[i].to, k[i].wider, k[i].also, k[i].bare);
        cr_assert(device_open(&o.dev, "cpu", 1, &e) && hf_config_read(dir, &o.cfg, &e) &&
                      model_open(&o.model, o.dev, &o.cfg, (ModelOpts){.poison = true}, &e),
                  "%s", e.msg);
        bool ok = hf_check(dir, &o.cfg, &e);
        cr_expect_eq(ok, !k[i].part, "%zu %s: %s", i, k[i].family, e.msg);
        cr_expect_eq(hf_load(dir, &o.model, &f), ok, "%zu: %s", i, f.msg);
        if (k[i].part) {
            dir_refused(k[i].family, NULL, &e, k[i].part);
            dir_refused(k[i].family, NULL, &f, k[i].part);
        } else {
            char *golden = xformat(FAMILIES "%s", k[i].family);
            real *want;
            int n;
            real *got = dir_golden(&o, golden, &want, &n);
            CHECK_CLOSE(k[i].family, got, want, (size_t)n, 1e-4);
            free(got), free(want), free(golden);
        }
        dir_close(&o);
        free(dir);
    }
}

/* What lies beside the weights comes along unchanged. */
Test(hf_family, files_copied) {
    static const char *const all[] = {
        "generation_config.json",  "tokenizer.json",      "tokenizer_config.json", "vocab.json", "merges.txt",
        "special_tokens_map.json", "chat_template.jinja", "tokenizer.model",       "LICENSE",    "vocab.bpe"};
    static const char *const left[] = {"README.md",
                                       "config.json",
                                       "model.safetensors",
                                       "pytorch_model.bin",
                                       "model.safetensors.index.json",
                                       ".gitattributes",
                                       "trainer_state.json",
                                       "readme.txt"};
    char *from = check_path("from"), *to = check_path("to"), *folder = check_path("from/original.json");
    Err e = {0};
    cr_assert(!mkdir(from, 0700) && !mkdir(to, 0700) && !mkdir(folder, 0700));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[64], *path = xformat("%s/%s", from, all[i]), *old = xformat("%s/%s", to, all[i]);
        int n = snprintf(text, sizeof text, "{\"file\": \"%s\", \"x\": 0.10}\r\n\xff", all[i]);
        check_write(path, i == 4 ? "" : text, i == 4 ? 0 : (size_t)n); /* one is empty */
        if (i % 2) check_write(old, "old", 3);
        free(path), free(old);
    }
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char *path = xformat("%s/%s", from, left[i]);
        check_write(path, "left", 4);
        free(path);
    }
    cr_assert(hf_copy(from, to, &e), "%s", e.msg);
    cr_expect_eq(check_entries(to), (int)(sizeof all / sizeof *all), "%d", check_entries(to));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *a = xformat("%s/%s", from, all[i]), *b = xformat("%s/%s", to, all[i]);
        size_t na, nb;
        char *x = check_read(a, &na), *y = check_read(b, &nb);
        cr_assert_eq(na, nb, "%s", all[i]);
        cr_expect(!memcmp(x, y, na), "%s", all[i]);
        free(a), free(b), free(x), free(y);
    }
    cr_assert(hf_copy(to, to, &e), "%s", e.msg); /* onto itself: nothing to do */
    cr_expect_eq(check_entries(to), (int)(sizeof all / sizeof *all));
    cr_assert(!hf_copy("no/such/dir", to, &e));
    dir_refused("no source", NULL, &e, "no/such/dir");
    char *gone = check_path("gone");
    e = (Err){0};
    cr_assert(!hf_copy(from, gone, &e));
    dir_refused("no target", NULL, &e, "/gone");
    free(from), free(to), free(folder), free(gone);
}

/* A model saved from a directory keeps all that its generation_config.json says. */
Test(hf_family, generation_config) {
    Dir o;
    HfIds ids;
    Err e = {0};
    size_t na, nb;
    dir_open(&o, FAMILIES "gpt2");
    cr_assert(hf_ids_read(FAMILIES "gpt2", &ids, &e), "%s", e.msg);
    cr_assert(hf_save(check_dir(), &o.model, &ids, F32, &e) && hf_copy(FAMILIES "gpt2", check_dir(), &e), "%s", e.msg);
    char *to = check_path("generation_config.json"), *a = check_read(FAMILIES "gpt2/generation_config.json", &na),
         *b = check_read(to, &nb);
    cr_assert(na == nb && !memcmp(a, b, na) && strstr(a, "_from_model_config"));
    cr_expect_eq(check_entries(check_dir()), 3); /* golden.safetensors stays where it is */
    free(a), free(b), free(to);
    dir_close(&o);
}

/* ---- settings ------------------------------------------------------------------------------------------------------
 */

/* A directory with the weights of a golden one and its config.json changed. */
static char *staged(const char *name, const char *key, const char *value) {
    static int count;
    char label[64];
    snprintf(label, sizeof label, "staged-%d", count++);
    char *dir = check_path(label), *from = xformat(FAMILIES "%s/config.json", name),
         *weights = xformat(FAMILIES "%s/model.safetensors", name), *to = xformat("%s/model.safetensors", dir);
    json_t *j = json_load_file(from, 0, NULL);
    size_t n;
    cr_assert(j && !mkdir(dir, 0700));
    if (key) dir_edit(j, key, value);
    dir_config(dir, j);
    char *all = check_read(weights, &n);
    check_write(to, all, n);
    json_decref(j);
    free(from), free(weights), free(to), free(all);
    return dir;
}

static const struct {
    const char *name, *key, *value, *part; /* part NULL: accepted */
} edits[] = {
    {"mistral", "num_key_value_heads", NULL, "\"num_key_value_heads\" is missing"},
    {"mistral", "sliding_window", "0", "\"sliding_window\": expected 1"},
    {"mistral", "sliding_window", "\"7\"", "\"sliding_window\": expected a whole number, found text"},
    {"mistral", "layer_types", "[\"full_attention\"]", "are all alike, found full_attention"},
    {"mistral", "layer_types", "[\"sliding_attention\",\"sliding_attention\"]", NULL},
    {"mistral", "attention_bias", "true", "\"attention_bias\" is not supported"},
    {"mistral", "attention_bias", "false", NULL},
    {"mistral", "attention_dropout", "0.1", NULL},
    {"mistral", "hidden_act", "\"gelu\"", "\"hidden_act\": expected silu"},
    {"mistral", "quantization_config", "{\"bits\":4}", "\"quantization_config\" is not supported"},
    {"mistral", "quantization_config", "{}", NULL},
    {"mistral", "some_new_scale", "2.5", "\"some_new_scale\" is not supported of model_type mistral"},
    {"mistral", "some_new_scale", "null", NULL},
    {"mistral", "some_new_scale", "false", NULL},
    {"mistral", "num_local_experts", "8", "\"num_local_experts\" is not supported"},
    {"qwen2", "num_key_value_heads", NULL, "\"num_key_value_heads\" is missing"},
    {"qwen2", "use_sliding_window", "1", "\"use_sliding_window\": expected true or false"},
    {"qwen2", "layer_types", "[\"full_attention\"]", "expected a list of num_hidden_layers (2)"},
    {"qwen2", "layer_types", "\"full_attention\"", "expected a list of num_hidden_layers (2)"},
    {"qwen2", "layer_types", "[\"full_attention\",\"sliding_attention\"]", "\"use_sliding_window\" is not true"},
    {"qwen2", "layer_types", "[\"full_attention\",\"chunked_attention\"]", "found chunked_attention"},
    {"qwen2", "layer_types", "[\"full_attention\",7]", "found a whole number"},
    {"qwen2", "max_window_layers", "-1", "\"max_window_layers\": expected 0"},
    {"qwen2", "mrope_section", "[1,2]", "\"mrope_section\" is not supported"},
    {"qwen2", "num_hidden_layers", "300", "expected at most 256 layers, found 300"},
    {"qwen2-window", "sliding_window", "null", "\"sliding_window\" is null"},
    {"qwen3", "head_dim", "7", "\"head_dim\": expected an even number"},
    {"qwen3", "attention_bias", "\"no\"", "\"attention_bias\": expected true or false"},
    {"qwen3", "num_experts", "8", "\"num_experts\" is not supported of model_type qwen3"},
    {"gpt2", "n_embd", NULL, "\"n_embd\" is missing"},
    {"gpt2", "n_layer", "0", "\"n_layer\": expected 1"},
    {"gpt2", "n_head", "3", "\"n_head\": 3 does not divide n_embd, which is 16"},
    {"gpt2", "n_inner", "0", "\"n_inner\": expected 1"},
    {"gpt2", "n_embd", "2000000000", "d_model"},
    {"gpt2", "activation_function", "\"relu\"", "\"activation_function\": expected gelu, gelu_new"},
    {"gpt2", "activation_function", "7", "found a whole number"},
    {"gpt2", "activation_function", "\"gelu_pytorch_tanh\"", NULL},
    {"gpt2", "scale_attn_weights", "false", "\"scale_attn_weights\": false is not supported"},
    {"gpt2", "scale_attn_by_inverse_layer_idx", "true", "\"scale_attn_by_inverse_layer_idx\": true is not supported"},
    {"gpt2", "add_cross_attention", "true", "\"add_cross_attention\": true is not supported"},
    {"gpt2", "layer_norm_epsilon", "0", "\"layer_norm_epsilon\": expected more than 0"},
    {"gpt2", "rope_theta", "1e4", "\"rope_theta\" is not supported of model_type gpt2"},
    {"gpt2", "tie_word_embeddings", "null", NULL},
    {"gpt_neox", "num_attention_heads", "5", "\"num_attention_heads\": 5 does not divide hidden_size, which is 16"},
    {"gpt_neox", "hidden_act", "\"silu\"", "\"hidden_act\": expected gelu"},
    {"gpt_neox", "rope_parameters/partial_rotary_factor", "0.4", "is 3 elements; expected an even number"},
    {"gpt_neox", "rope_parameters/partial_rotary_factor", "1.5", "expected at most 1, found 1.5"},
    {"gpt_neox", "rope_parameters/partial_rotary_factor", "0", "\"partial_rotary_factor\": expected more than 0"},
    {"gpt_neox", "rope_parameters/partial_rotary_factor", "0.1", "is 0 elements"},
    {"gpt_neox", "rope_parameters/rope_type", "\"su\"", "rope type \"su\" is not known"},
    {"gpt_neox", "rope_parameters", "7", "\"rope_parameters\": expected an object"},
    {"gpt_neox", "rotary_pct", "\"x\"", "\"rotary_pct\": expected a number"},
    {"gpt_neox", "use_parallel_residual", "3", "\"use_parallel_residual\": expected true or false"},
    {"gpt_neox", "layer_norm_eps", "-1", "\"layer_norm_eps\": expected more than 0"},
    {"gpt_neox", "num_key_value_heads", "1", "\"num_key_value_heads\" is not supported of model_type gpt_neox"},
    {"phi3", "rope_parameters/partial_rotary_factor", "0.5", "expected an even number"},
    {"phi3", "rope_parameters/partial_rotary_factor", "2", "\"partial_rotary_factor\" 2 of head_dim 6"},
    {"phi3", "rope_parameters/partial_rotary_factor", "\"x\"", "\"partial_rotary_factor\": expected a number"},
    {"phi3", "partial_rotary_factor", "0.9", NULL}, /* that in the rotation counts */
    {"phi3", "rope_parameters/rope_type", "\"su\"", "short_factor"},
    {"phi3", "resid_pdrop", "0.1", NULL},
    {"phi3", "full_attn_mod", "2", "\"full_attn_mod\": expected 1, found 2"},
    {"phi3", "attention_bias", "true", "\"attention_bias\" is not supported of model_type phi3"},
    {"smollm3", "no_rope_layers", "[1,1]", "\"no_rope_layers\": expected a list of num_hidden_layers (3)"},
    {"smollm3", "no_rope_layers", "[1,2,1]", "\"no_rope_layers\": expected 0 or 1 for layer 1"},
    {"smollm3", "no_rope_layers", "[1,true,1]", "\"no_rope_layers\": expected 0 or 1 for layer 1"},
    {"smollm3", "no_rope_layers", "null", NULL},
    {"smollm3", "layer_types", "[\"sliding_attention\",\"full_attention\",\"full_attention\"]", "is not true"},
    {"smollm3", "mlp_bias", "true", "\"mlp_bias\": true is not supported"},
    {"granite", "residual_multiplier", "0", "\"residual_multiplier\": expected more than 0"},
    {"granite", "attention_multiplier", "\"1\"", "\"attention_multiplier\": expected a number"},
    {"granite", "logits_scaling", "-2", "\"logits_scaling\": expected more than 0"},
    {"granite", "layer_types", "[\"sliding_attention\"]", "\"layer_types\": expected full_attention"},
    {"olmo2", "clip_qkv", "8", "\"clip_qkv\" is not supported of model_type olmo2"},
    {"olmo2", "hidden_act", "\"gelu\"", "\"hidden_act\": expected silu"},
    {"gemma2", "hidden_activation", "\"gelu\"", "\"hidden_activation\": expected gelu_pytorch_tanh, found gelu"},
    {"gemma2", "hidden_act", "\"gelu\"", NULL}, /* the class does not read it */
    {"gemma2", "query_pre_attn_scalar", "0", "\"query_pre_attn_scalar\": expected 1"},
    {"gemma2", "attn_logit_softcapping", "0", "\"attn_logit_softcapping\": expected more than 0"},
    {"gemma2", "sliding_window", "null", "\"sliding_window\": null, but layer 0 is sliding_attention"},
    {"gemma2", "layer_types", "[\"full_attention\"]", "\"layer_types\": expected a list of num_hidden_layers (3)"},
    {"gemma2", "use_bidirectional_attention", "true", "\"use_bidirectional_attention\": expected false, found true"},
    {"gemma3_text", "attn_logit_softcapping", "50.0", "\"attn_logit_softcapping\": expected null, found 50.0"},
    {"gemma3_text", "layer_types", "[\"chunked_attention\",\"full_attention\",\"full_attention\"]",
     "found chunked_attention"},
    {"gemma3_text", "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":8.0}", "\"rope_scaling\" next to"},
    {"gemma3_text", "rope_parameters", "{\"rope_type\":\"linear\",\"factor\":8.0}", "expected full_attention and"},
    {"gemma3_text", "rope_parameters/full_attention/rope_type", "\"su\"", "rope type \"su\" is not known"},
    {"gemma3_text", "rope_parameters/sliding_attention/beta", "2", "rope setting \"beta\" is not supported"},
};

Test(hf_family, settings_refused) {
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *dir = staged(edits[i].name, edits[i].key, edits[i].value);
        ModelCfg c = {0};
        Err e = {0};
        bool ok = hf_config_read(dir, &c, &e);
        cr_expect_eq(ok, !edits[i].part, "%s %s %s: %s", edits[i].name, edits[i].key,
                     edits[i].value ? edits[i].value : "nothing", ok ? "accepted" : e.msg);
        if (!ok && edits[i].part) dir_refused(edits[i].key, "config.json", &e, edits[i].part);
        if (ok) model_cfg_free(&c);
        free(dir);
    }
}

/* What a key means where it is left out, and where it says that there is none. */
Test(hf_family, defaults) {
    static const struct {
        const char *name, *key, *value;
        int first, last; /* windows of the first and the last layer */
    } k[] = {{"mistral", "sliding_window", NULL, 4096, 4096},
             {"mistral", "sliding_window", "null", 0, 0},
             {"mistral", "sliding_window", "9", 9, 9},
             {"qwen2", "sliding_window", "9", 0, 0},
             {"qwen2-window", "max_window_layers", "2", 0, 6}, /* layer_types counts */
             {"qwen2-window", "layer_types", NULL, 0, 6},
             {"qwen2-window", "layer_types", "[\"sliding_attention\",\"full_attention\",\"full_attention\"]", 6, 0},
             {"qwen2-window", "use_sliding_window", "true", 0, 6},
             {"phi3", "sliding_window", NULL, 0, 0},
             {"smollm3-window", "layer_types", NULL, 0, 0}, /* where rotations are not: layer 1 */
             {"gemma2", "layer_types", NULL, 6, 6},
             {"gemma2", "sliding_window", NULL, 4096, 4096},
             {"gemma3_text", "layer_types", NULL, 6, 6}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char *dir = staged(k[i].name, k[i].key, k[i].value);
        ModelCfg c;
        Err e = {0};
        cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
        const GqaCfg *a = c.kind[c.pattern[0]].cfg, *b = c.kind[c.pattern[c.layers - 1]].cfg;
        cr_expect(a->window == k[i].first && b->window == k[i].last, "case %zu: %d, %d", i, a->window, b->window);
        model_cfg_free(&c);
        free(dir);
    }
    ModelCfg c;
    Err e = {0};
    /* longrope of phi3 was trained at 4096 where nothing says otherwise, whatever max_position_embeddings is */
    char *dir = staged("phi3-long", "rope_parameters",
                       "{\"rope_type\":\"longrope\",\"long_factor\":[1.2,3.5],\"short_factor\":[1.0,1.3],"
                       "\"partial_rotary_factor\":0.75,\"rope_theta\":50.0}");
    char *path = xformat("%s/config.json", dir);
    json_t *j = json_load_file(path, 0, NULL);
    dir_edit(j, "original_max_position_embeddings", NULL);
    dir_config(dir, j);
    json_decref(j), free(path);
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    const GqaCfg *g = c.kind[0].cfg;
    cr_expect(g->rope.original_max_positions == 4096 && c.max_positions == 32, "%d, %d", g->rope.original_max_positions,
              c.max_positions);
    model_cfg_free(&c);
    free(dir);
    dir = staged("gpt_neox", "rope_parameters", NULL);
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    g = c.kind[0].cfg;
    cr_expect(g->rope_dims == 2 && g->rope.theta == 10000 && c.parallel, "%d", g->rope_dims); /* 0.25 of 8 */
    model_cfg_free(&c);
    free(dir);
    dir = staged("gemma2", "attn_logit_softcapping", NULL);
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    g = c.kind[0].cfg;
    cr_expect(g->soft_cap == 50 && c.logits_cap == 6 && c.norm_plus_one && c.norm_place == NORM_BOTH);
    model_cfg_free(&c);
    free(dir);
    dir = staged("granite", "attention_multiplier", NULL);
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    g = c.kind[0].cfg;
    cr_expect(g->scale == 1 && c.residual_scale == 0.6 && c.logits_divisor == 1.7 && c.embed_scale == 3.5);
    model_cfg_free(&c);
    free(dir);
    dir = staged("smollm3", "tie_word_embeddings", NULL);
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    cr_expect(c.tied);
    model_cfg_free(&c);
    free(dir);
    dir = staged("gpt2", "n_positions", NULL);
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    cr_expect(c.max_positions == 1024 && c.tied);
    model_cfg_free(&c);
    free(dir);
}

/* Which type a model is written as. */
Test(hf_family, type_of_a_model) {
    static const char base[] = "{\"d_model\":16,\"layers\":2,\"vocab\":20,\"max_positions\":32,\"kinds\":{\"a\":{"
                               "\"mixer\":\"gqa\",\"heads\":2},"
                               "\"b\":{\"mixer\":\"gqa\",\"heads\":2,\"window\":4},"
                               "\"n\":{\"mixer\":\"gqa\",\"heads\":2,\"rope\":\"none\"}},\"pattern\":[\"a\"],\"ffn\":{"
                               "\"kind\":\"swiglu\",\"hidden\":8}}";
    static const char gelu[] = "{\"kind\":\"gelu\",\"hidden\":8}", geglu[] = "{\"kind\":\"geglu\",\"hidden\":8}";
    static const struct {
        const char *set[12], *type;
    } k[] = {
        {{"tied", "true"}, "llama"},
        {{"pattern", "[\"b\"]"}, "mistral"},
        {{"pattern", "[\"a\",\"b\"]"}, "kvsmith"},
        {{"kinds/a/qkv_bias", "true"}, "qwen2"},
        {{"kinds/a/qkv_bias", "true", "kinds/b/qkv_bias", "true", "pattern", "[\"a\",\"b\"]"}, "qwen2"},
        {{"kinds/a/qkv_bias", "true", "pattern", "[\"a\",\"b\"]"}, "kvsmith"},
        {{"kinds/a/qk_norm", "true"}, "qwen3"},
        {{"kinds/a/qk_norm", "true", "kinds/a/qkv_bias", "true"}, "kvsmith"},
        {{"kinds/a/qk_norm", "true", "kinds/a/sinks", "1", "kinds/a/window", "3"}, "kvsmith"},
        {{"kinds/a/rope_dims", "4"}, "phi3"},
        {{"kinds/a/rope_dims", "4", "kinds/a/qkv_bias", "true"}, "kvsmith"},
        {{"kinds/a/scale", "0.25"}, "granite"},
        {{"kinds/a/scale", "0.35355339059327373"}, "llama"}, /* 1/sqrt(8) */
        {{"embed_scale", "3", "logits_divisor", "2", "residual_scale", "0.5"}, "granite"},
        {{"embed_scale", "3", "logits_cap", "20"}, "kvsmith"},
        {{"kinds/a/soft_cap", "20"}, "kvsmith"},
        {{"kinds/a/qk_norm_wide", "true"}, "kvsmith"},
        {{"kinds/a/qk_norm_wide", "true", "norm_place", "\"post\""}, "olmo2"},
        {{"norm_place", "\"post\""}, "kvsmith"},
        {{"norm_place", "\"both\"", "norm_plus_one", "true", "embed_scale", "4", "ffn", geglu}, "gemma2"},
        {{"norm_place", "\"both\"", "norm_plus_one", "true", "embed_scale", "5", "ffn", geglu}, "kvsmith"},
        {{"norm_place", "\"both\"", "norm_plus_one", "true", "embed_scale", "4", "ffn", geglu, "kinds/a/scale", "0.3"},
         "kvsmith"},
        {{"norm_place", "\"both\"", "norm_plus_one", "true", "embed_scale", "4", "ffn", geglu, "kinds/a/qk_norm",
          "true"},
         "gemma3_text"},
        {{"norm_place", "\"both\"", "norm_plus_one", "true", "embed_scale", "4"}, "kvsmith"},
        {{"pattern", "[\"a\",\"n\"]"}, "smollm3"},
        {{"pattern", "[\"n\"]"}, "smollm3"},
        {{"pattern", "[\"n\"]", "kinds/n/head_dim", "7"}, "kvsmith"},
        {{"kinds/a/rope_dims", "8"}, "llama"},
        {{"norm", "\"layer\""}, "kvsmith"},
        {{"positions", "\"learned\""}, "kvsmith"},
        {{"parallel", "true"}, "kvsmith"},
        {{"norm", "\"layer\"", "ffn", gelu}, "gpt_neox"},
        {{"norm", "\"layer\"", "ffn", gelu, "kinds/a/kv_heads", "2"}, "gpt_neox"},
        {{"norm", "\"layer\"", "ffn", gelu, "kinds/a/rope_dims", "6", "parallel", "true"}, "gpt_neox"},
        {{"norm", "\"layer\"", "ffn", gelu, "kinds/a/kv_heads", "1"}, "kvsmith"},
        {{"norm", "\"layer\"", "ffn", "{\"kind\":\"gelu\",\"hidden\":8,\"bias\":false}"}, "kvsmith"},
        {{"norm", "\"layer\"", "ffn", gelu, "kinds/a/head_dim", "6"}, "kvsmith"},
        {{"norm", "\"layer\"", "ffn", gelu, "positions", "\"learned\"", "kinds/a/rope", "\"none\""}, "kvsmith"},
    };
    char *path = check_path("config.json");
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j = json_loads(base, 0, NULL);
        ModelCfg c, back;
        Err e = {0};
        for (int s = 0; k[i].set[s]; s += 2) dir_edit(j, k[i].set[s], k[i].set[s + 1]);
        char *text = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, text, strlen(text), "test", &e), "%s", e.msg);
        cr_assert(hf_config_write(path, &c, NULL, F32, &e), "%s", e.msg);
        json_t *file = json_load_file(path, 0, NULL);
        const char *type = json_string_value(json_object_get(file, "model_type"));
        cr_expect_str_eq(type, k[i].type, "case %zu (%s): %s", i, k[i].set[0], type);
        cr_expect(hf_config_read(check_dir(), &back, &e), "%s", e.msg);
        model_cfg_free(&c), model_cfg_free(&back);
        json_decref(j), json_decref(file);
        free(text);
    }
    free(path);
}
