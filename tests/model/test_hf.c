/* test_hf.c: model directories: logits of models that transformers saved, settings that must be refused, weights that
 * do not match. The goldens are made by tests/golden/make_llama.py. */
#include "tests/lib/dirs.h"
#include "layers/gqa/gqa.h"
#include <unistd.h>

ParameterizedTestParameters(hf, logits_of_transformers) {
    static int index[DIR_NAMES];
    for (int i = 0; i < DIR_NAMES; i++) index[i] = i;
    return cr_make_param_array(int, index, DIR_NAMES);
}
ParameterizedTest(int *i, hf, logits_of_transformers) {
    char dir[128];
    real *want;
    int n;
    Dir o;
    snprintf(dir, sizeof dir, GOLDEN "%s", dir_names[*i]);
    dir_open(&o, dir);
    real *got = dir_golden(&o, dir, &want, &n);
    CHECK_CLOSE(dir_names[*i], got, want, (size_t)n, 1e-4);
    cr_expect_eq(hf_notes(dir, stderr), 0);
    free(got);
    free(want);
    dir_close(&o);
}

/* rope_theta and rope_scaling beside each other, `type` for rope_type, absent keys: the same model. */
Test(hf, older_spellings) {
    for (int i = 0; i < DIR_NAMES; i++) {
        json_t *j;
        char *dir = dir_stage(dir_names[i], &j);
        dir_config(dir, j);
        char *new = dir_settings(dir);
        json_t *r = json_incref(json_object_get(j, "rope_parameters"));
        json_object_del(j, "rope_parameters");
        json_object_set(j, "rope_theta", json_object_get(r, "rope_theta"));
        json_object_del(r, "rope_theta");
        json_object_set(r, "type", json_object_get(r, "rope_type"));
        json_object_del(r, "rope_type");
        json_object_set_new(j, "rope_scaling", i == 2 || i == 4 ? json_null() : json_incref(r));
        json_decref(r);
        json_object_set_new(j, "torch_dtype", json_string("float32"));
        static const char *const dropped[] = {"dtype",          "mlp_bias",  "attention_dropout",
                                              "pretraining_tp", "use_cache", "hidden_act"};
        for (size_t k = 0; k < 6; k++) json_object_del(j, dropped[k]);
        if (i != 4) json_object_del(j, "head_dim");
        dir_config(dir, j);
        char *old = dir_settings(dir);
        cr_expect_str_eq(old, new, "%s", dir_names[i]);
        free(old), free(new), free(dir);
        json_decref(j);
    }
}

/* The length before scaling counts for llama3, yarn and longrope alone; beside rope_parameters it comes first. */
Test(hf, original_length) {
    static const struct {
        const char *golden, *key, *same;
    } k[] = {{"dynamic", "rope_parameters/original_max_position_embeddings", NULL},
             {"linear", "rope_parameters/original_max_position_embeddings", NULL},
             {"linear", "original_max_position_embeddings", NULL},
             {"llama3-untied", "original_max_position_embeddings", "rope_parameters/original_max_position_embeddings"},
             {"yarn", "original_max_position_embeddings", "rope_parameters/original_max_position_embeddings"}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j;
        char *dir = dir_stage(k[i].golden, &j);
        json_t *plain = json_deep_copy(j);
        if (k[i].same) dir_edit(plain, k[i].same, "16");
        dir_config(dir, plain);
        char *want = dir_settings(dir);
        dir_edit(j, k[i].key, "16");
        dir_config(dir, j);
        char *got = dir_settings(dir);
        cr_expect_str_eq(got, want, "%s %s", k[i].golden, k[i].key);
        free(got), free(want), free(dir);
        json_decref(j);
        json_decref(plain);
    }
}

Test(hf, defaults_of_llama) {
    json_t *j;
    char *dir = dir_stage("llama3-untied", &j);
    static const char *const gone[] = {"num_key_value_heads", "head_dim",         "rms_norm_eps",
                                       "tie_word_embeddings", "rope_parameters",  "max_position_embeddings",
                                       "attention_bias",      "initializer_range"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) json_object_del(j, gone[i]);
    dir_config(dir, j);
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
    {"model_type", "\"llama4\"", "expected kvsmith or a type that `kvsmith info --families` lists, found llama4"},
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
    {"initializer_range", "-0.1", "\"initializer_range\": expected 0 or more"},
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
        char *dir = dir_stage("llama3-untied", &j);
        ModelCfg c;
        Err e = {0};
        dir_edit(j, bad[i].key, bad[i].value);
        dir_config(dir, j);
        cr_expect(!hf_config_read(dir, &c, &e), "%s = %s accepted", bad[i].key,
                  bad[i].value ? bad[i].value : "nothing");
        dir_refused(bad[i].key, NULL, &e, bad[i].part);
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
    dir_refused("missing", NULL, &e, "No such file");
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        check_write(path, text[i], strlen(text[i]));
        e = (Err){0};
        cr_expect(!hf_config_read(check_dir(), &c, &e), "%s accepted", text[i]);
        dir_refused(text[i], NULL, &e, "config.json");
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
            dir_refused(k[i].config, NULL, &e, k[i].generation ? "generation_config.json" : "config.json");
        else
            cr_expect(ids.bos == k[i].bos && ids.neos == k[i].neos && (!ids.neos || ids.eos[ids.neos - 1] == k[i].last),
                      "case %zu", i);
    }
    free(config);
    free(gen);
}

/* ---- weights that do not match -------------------------------------------------------------------------------------
 */

/* hf_check and hf_load agree. */
static void both(const char *what, const char *dir, const char *part) {
    Dir o;
    Err e = {0}, f = {0};
    cr_assert(device_open(&o.dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(hf_config_read(dir, &o.cfg, &e), "%s", e.msg);
    cr_assert(model_open(&o.model, o.dev, &o.cfg, (ModelOpts){0}, &e), "%s", e.msg);
    bool ok = hf_check(dir, &o.cfg, &e);
    cr_expect_eq(hf_load(dir, &o.model, &f), ok, "%s: %s | %s", what, e.msg, f.msg);
    cr_expect_eq(ok, !part, "%s: %s", what, e.msg);
    if (part) {
        dir_refused(what, NULL, &e, part);
        dir_refused(what, NULL, &f, part);
    }
    dir_close(&o);
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
        char *dir = dir_stage("llama3-untied", &j);
        dir_config(dir, j);
        dir_rewrite(dir, "llama3-untied", k[i].name, k[i].how, k[i].added);
        both(k[i].name, dir, k[i].part);
        json_decref(j);
        free(dir);
    }
}

Test(hf, wrong_dtype) {
    json_t *j;
    char *dir = dir_stage("llama3-tied", &j), *path = xformat("%s/model.safetensors", dir);
    size_t n;
    dir_config(dir, j);
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
        char *dir = dir_stage(of[k], &j), *path = xformat("%s/%s", dir, file[k]),
             *from = xformat(GOLDEN "%s/%s", of[k], file[k]);
        size_t n;
        char *all = check_read(from, &n);
        const size_t cut[] = {0, 7, 8, 100, n / 2, n - 1};
        dir_config(dir, j);
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

/* The same through the program: exit status 2, one line, no output left behind. */
Test(hf, program_refuses) {
    static const struct {
        const char *golden, *key, *value, *name;
        Change how;
        const char *part;
    } k[] = {
        {"llama3-untied", "hidden_size", "0", NULL, SAME, "hidden_size"},
        {"llama3-untied", "model_type", "\"gpt2\"", NULL, SAME, "gpt2"},
        {"llama3-untied", "vocab_size", "49", NULL, SAME, "found (48,32)"},
        {"llama3-untied", "vocab_size", "1000000000", NULL, SAME, "vocab"},
        {"llama3-untied", "num_hidden_layers", "256", NULL, SAME, "is missing"},
        {"llama3-untied", "num_hidden_layers", "1", NULL, SAME, "has no place"},
        {"llama3-untied", "bos_token_id", "1", "model.norm.weight", DROP, "\"model.norm.weight\" is missing"},
        {"llama3-untied", "bos_token_id", "1", "lm_head.weight", WIDER, "found (49,32)"},
        {"sharded", "bos_token_id", "1", NULL, SAME, NULL},
    };
    char *ids = check_path("ids"), *out = check_path("out.safetensors");
    check_write(ids, "1 2 3\n", 6);
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j;
        char *dir = dir_stage(k[i].golden, &j);
        dir_edit(j, k[i].key, k[i].value);
        dir_config(dir, j);
        if (k[i].name) dir_rewrite(dir, k[i].golden, k[i].name, k[i].how, NULL);
        if (!k[i].part) { /* a shard cut short */
            char *shard = xformat("%s/model-00001-of-00002.safetensors", dir);
            unlink(shard);
            check_write(shard, "0123456789", 10);
            free(shard);
        }
        Ran r = RUN("logits", dir, "--tokens", ids, "--out", out);
        CHECK_REFUSED(r, EXIT_INPUT, k[i].part ? k[i].part : "model-00001-of-00002.safetensors");
        cr_expect(!check_exists(out));
        free(r.out), free(r.err), free(dir);
        json_decref(j);
    }
    free(ids), free(out);
}

/* A tied model may carry a copy of its head; transformers ignores it, equal or not. */
Test(hf, tied_copy) {
    json_t *j;
    char *dir = dir_stage("llama3-tied", &j), *path = check_path("notes");
    dir_config(dir, j);
    FILE *f = fopen(path, "w+");
    dir_rewrite(dir, "llama3-tied", "model.embed_tokens.weight", ADDED, "lm_head.weight");
    both("equal copy", dir, NULL);
    cr_expect_eq(hf_notes(dir, f), 0);
    dir_rewrite(dir, "llama3-tied", "model.layers.0.mlp.up_proj.weight", ADDED, "lm_head.weight");
    both("another head", dir, NULL);
    cr_expect_eq(hf_notes(dir, f), 1);
    Dir o;
    real *want;
    int n;
    dir_open(&o, dir);
    real *got = dir_golden(&o, GOLDEN "llama3-tied", &want, &n);
    CHECK_CLOSE("tied", got, want, (size_t)n, 1e-4);
    dir_close(&o);
    fclose(f);
    json_decref(j);
    free(got), free(want), free(dir), free(path);
}

/* A position beyond those learned is refused, and the cache continues from where it was. */
Test(hf, learned_positions_end) {
    Dir o;
    Err e = {0};
    Cache cache;
    Workspace work;
    int tok[40], pos[40], of[40] = {0}, first[40], all[40], off[2] = {0, 33}, seq = 0;
    uint64_t id = 0;
    dir_open(&o, "tests/golden/families/gpt2");
    real *out = xcalloc(40 * (size_t)o.cfg.vocab, sizeof *out);
    for (int i = 0; i < 40; i++) tok[i] = i % o.cfg.vocab, pos[i] = all[i] = i, first[i] = 0;
    workspace_empty(&work, &o.model, o.dev);
    cr_assert(model_cache_open(&o.model, &cache, 1, 40, 40, 0, false, &e), "%s", e.msg);
    cr_assert(model_extend_reserve(&o.model, &work, &cache, 40, 40, 1, &e), "%s", e.msg);
    Batch b = {.B = 1, .N = 33, .off = off, .seq = &seq, .of = of, .pos = pos, .first = first, .id = &id};
    cr_assert(
        !model_extend(&o.model, &work, &cache, &b, tok, (RowList){33, all}, TENSOR(out, REAL, 33, o.cfg.vocab), &e));
    dir_refused("positions", NULL, &e, "position 32 is beyond the 32 positions that the model has");
    b.N = off[1] = 32;
    e = (Err){0};
    cr_assert(model_extend(&o.model, &work, &cache, &b, tok, (RowList){32, all}, TENSOR(out, REAL, 32, o.cfg.vocab),
                           &e),
              "%s", e.msg);
    kv_close(&cache);
    workspace_close(&work);
    free(out);
    dir_close(&o);
}
