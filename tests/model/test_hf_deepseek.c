/* test_hf_deepseek.c: deepseek_v3 directories without experts: settings read, written again, refused. Their logits are
 * in test_mla.c. */
#include "tests/lib/dirs.h"
#include "layers/mla/mla.h"
#include "model/files/safetensors.h"
#include <sys/stat.h>

#define LATENT "../mla/query-latent"

Test(hf_deepseek, settings) {
    ModelCfg c;
    Err e = {0};
    cr_assert(hf_config_read("tests/golden/mla/yarn", &c, &e), "%s", e.msg);
    const MlaCfg *m = c.kind[0].cfg;
    cr_expect(c.d_model == 16 && c.layers == 2 && c.vocab == 19 && c.max_positions == 64 && c.norm_eps == 1e-3 &&
              !c.tied && c.init_std == 0.25);
    cr_expect(m->heads == 3 && m->kv_rank == 5 && m->q_rank == 4 && m->nope_dim == 4 && m->rope_dim == 6 &&
              m->v_dim == 7 && m->rope_heads == 1 && !m->window);
    cr_expect(m->latent_norm && m->q_latent_norm && !m->a_bias && !m->q_bias && !m->o_bias);
    cr_expect(m->rope.type == ROPE_YARN && m->rope.interleaved && m->rope.theta == 50 && m->rope.mscale == 0.7 &&
              m->rope.mscale_all_dim == 1.5 && m->rope.original_max_positions == 8);
    model_cfg_free(&c);
    cr_assert(hf_config_read("tests/golden/mla/half-split", &c, &e), "%s", e.msg);
    m = c.kind[0].cfg;
    cr_expect(!m->rope.interleaved && m->q_rank == 0 && c.tied && c.layers == 1);
    model_cfg_free(&c);
}

/* Absent keys are transformers' defaults, but for those without which no such model is meant. */
Test(hf_deepseek, defaults) {
    static const char *const gone[] = {"num_key_value_heads", "head_dim",          "rms_norm_eps",
                                       "tie_word_embeddings", "rope_parameters",   "max_position_embeddings",
                                       "attention_bias",      "initializer_range", "rope_interleave"};
    json_t *j;
    char *dir = dir_stage("../mla/direct", &j);
    ModelCfg c;
    Err e = {0};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) json_object_del(j, gone[i]);
    dir_config(dir, j);
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    const MlaCfg *m = c.kind[0].cfg;
    cr_expect(c.norm_eps == 1e-6 && !c.tied && c.max_positions == 4096 && c.init_std == 0.02);
    cr_expect(m->rope.interleaved && m->rope.theta == 10000 && !m->a_bias && !m->o_bias && m->q_rank == 0);
    model_cfg_free(&c);
    json_decref(j);
    free(dir);
}

static const struct {
    const char *key, *value, *part;
} bad[] = {
    {"kv_lora_rank", NULL, "\"kv_lora_rank\" is missing"},
    {"kv_lora_rank", "0", "\"kv_lora_rank\": expected 1"},
    {"kv_lora_rank", "17", "kv_rank"},
    {"q_lora_rank", NULL, "\"q_lora_rank\" is missing"},
    {"q_lora_rank", "0", "\"q_lora_rank\": expected 1"},
    {"q_lora_rank", "\"6\"", "\"q_lora_rank\": expected a whole number, found text"},
    {"qk_nope_head_dim", NULL, "\"qk_nope_head_dim\" is missing"},
    {"qk_nope_head_dim", "2000000000", "nope_dim"},
    {"qk_rope_head_dim", NULL, "\"qk_rope_head_dim\" is missing"},
    {"qk_rope_head_dim", "8", "\"head_dim\": expected qk_rope_head_dim (8), found 6"},
    {"head_dim", "10", "\"head_dim\": expected qk_rope_head_dim (6), found 10"},
    {"v_head_dim", NULL, "\"v_head_dim\" is missing"},
    {"num_key_value_heads", "1", "\"num_key_value_heads\": expected num_attention_heads (3), found 1"},
    {"first_k_dense_replace", "1", NULL},  /* the other has experts, as the class defaults */
    {"first_k_dense_replace", NULL, NULL}, /* 3 by default, and there are two layers */
    {"rope_interleave", "1", "\"rope_interleave\": expected true or false"},
    {"rope_interleave", "null", NULL},
    {"attention_bias", "\"no\"", "\"attention_bias\""},
    {"quantization_config", "{\"bits\":8}", "\"quantization_config\" is not supported"},
    {"hidden_act", "\"gelu\"", "\"hidden_act\": expected silu"},
    {"rope_parameters/rope_type", "\"su\"", "rope type \"su\" is not known"},
};
Test(hf_deepseek, refused_settings) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *j;
        char *dir = dir_stage(LATENT, &j);
        ModelCfg c;
        Err e = {0};
        dir_edit(j, bad[i].key, bad[i].value);
        dir_config(dir, j);
        bool ok = hf_config_read(dir, &c, &e);
        cr_expect_eq(ok, !bad[i].part, "%s = %s: %s", bad[i].key, bad[i].value ? bad[i].value : "nothing", e.msg);
        if (!ok) dir_refused(bad[i].key, "config.json", &e, bad[i].part);
        if (ok) model_cfg_free(&c);
        json_decref(j);
        free(dir);
    }
}

/* What is read and written again is the same model; as deepseek_v3, unless vLLM would read it wrongly. */
Test(hf_deepseek, there_and_back) {
    static const char *const name[] = {"direct", "query-latent", "yarn", "half-split"};
    for (int i = 0; i < 4; i++) {
        char *from = xformat("tests/golden/mla/%s", name[i]), *to = check_path(name[i]);
        Dir a, b;
        HfIds ids;
        Err e = {0};
        real *want, *got;
        int n;
        dir_open(&a, from);
        cr_assert(hf_ids_read(from, &ids, &e) && mkdir(to, 0700) == 0, "%s", e.msg);
        cr_assert(hf_save(to, &a.model, &ids, F32, &e), "%s", e.msg);
        char *path = xformat("%s/config.json", to), *one = dir_settings(from), *two = dir_settings(to);
        json_t *file = json_load_file(path, 0, NULL);
        cr_expect_str_eq(json_string_value(json_object_get(file, "model_type")), i < 3 ? "deepseek_v3" : "kvsmith");
        cr_expect_str_eq(one, two, "%s", name[i]);
        dir_open(&b, to);
        got = dir_golden(&b, from, &want, &n);
        CHECK_CLOSE(name[i], got, want, (size_t)n, 5e-5);
        dir_close(&a), dir_close(&b);
        json_decref(file);
        free(got), free(want), free(one), free(two), free(path), free(from), free(to);
    }
}

static const char base[] = "{\"d_model\":32,\"layers\":3,\"vocab\":48,\"max_positions\":128,\"kinds\":{\"latent\":{"
                           "\"mixer\":\"mla\",\"heads\":4,"
                           "\"kv_rank\":16,\"q_rank\":8,\"nope_dim\":8,\"rope_dim\":4,\"v_dim\":8,\"rope\":{\"type\":"
                           "\"default\",\"interleaved\":true}}},"
                           "\"pattern\":[\"latent\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":48}]}";
static const struct {
    const char *key, *value, *why; /* why NULL: deepseek_v3 */
} shapes[] = {
    {"tied", "false", NULL},
    {"kinds/latent/v_dim", "5", NULL},
    {"kinds/latent/q_rank", "0", NULL},
    {"kinds/latent/rope_dim", "8", NULL},
    {"kinds/latent/rope_heads", "2", "rope_heads"},
    {"kinds/latent/nope_dim", "0", "keys of one part alone"},
    {"kinds/latent/window", "9", "a window"},
    {"kinds/latent/latent_norm", "false", "without its norm"},
    {"kinds/latent/q_latent_norm", "false", "without its norm"},
    {"kinds/latent/a_bias", "true", "a_bias without o_bias"},
    {"kinds/latent/o_bias", "true", "a_bias without o_bias"},
    {"kinds/latent/q_bias", "true", "q_bias"},
    {"kinds/latent/rope/interleaved", "false", "not interleaved"},
    {"kinds/latent/rope/inclusive", "true", "inclusive"},
    {"kinds/latent/rope", "{\"type\":\"none\",\"interleaved\":true}", "no rotation"},
    {"kinds/latent/rope", "{\"type\":\"linear\",\"factor\":2,\"interleaved\":true}", NULL},
    {"kinds/latent/rope", "{\"type\":\"linear\",\"factor\":2,\"mscale_all_dim\":1,\"interleaved\":true}",
     "mscale_all_dim"},
    {"kinds/latent/rope",
     "{\"type\":\"yarn\",\"factor\":4,\"original_max_positions\":32,\"mscale\":1,\"mscale_all_dim\":1,\"interleaved\":"
     "true}",
     NULL},
    {"kinds/latent/rope", "{\"type\":\"yarn\",\"factor\":2,\"original_max_positions\":32,\"interleaved\":true}",
     "yarn"},
    {"kv_from", "{\"2\":0}", "kv_from"},
    {"embed_scale", "2", "embed_scale"},
};
/* Every shape of model keeps its settings through config.json. */
Test(hf_deepseek, shapes) {
    char *path = check_path("config.json");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ModelCfg c, d;
        Err e = {0};
        const char *why = NULL;
        json_t *j = json_loads(base, 0, NULL);
        dir_edit(j, shapes[i].key, shapes[i].value);
        char *text = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, text, strlen(text), "test", &e), "%s", e.msg);
        bool is = hf_is_deepseek(&c, &why);
        cr_expect(is == !shapes[i].why && (is || strstr(why, shapes[i].why)), "%s %s: %s", shapes[i].key,
                  shapes[i].value, why ? why : "is deepseek_v3");
        cr_expect(!hf_is_llama(&c, &why));
        cr_assert(hf_config_write(path, &c, NULL, F32, &e), "%s", e.msg);
        json_t *file = json_load_file(path, 0, NULL);
        cr_expect_str_eq(json_string_value(json_object_get(file, "model_type")), is ? "deepseek_v3" : "kvsmith");
        cr_assert(hf_config_read(check_dir(), &d, &e), "%s: %s", shapes[i].value, e.msg);
        char *a = model_cfg_json(&c), *b = model_cfg_json(&d);
        cr_expect_str_eq(a, b);
        model_cfg_free(&c), model_cfg_free(&d);
        json_decref(j), json_decref(file);
        free(text), free(a), free(b);
    }
    free(path);
}

/* Weights that do not match are named as transformers names them. */
Test(hf_deepseek, weights_must_match) {
    static const struct {
        const char *name;
        Change how;
        const char *added, *part;
    } k[] = {
        {"model.layers.1.self_attn.kv_a_proj_with_mqa.bias", DROP, NULL, "kv_a_proj_with_mqa.bias\" is missing"},
        {"model.layers.0.self_attn.kv_b_proj.weight", WIDER, NULL, "expected shape (33,5), found (34,5)"},
        {"model.layers.0.self_attn.q_a_layernorm.weight", RENAMED, "model.layers.0.self_attn.q_norm.weight",
         "q_a_layernorm.weight\" is missing"},
        {"model.norm.weight", ADDED, "model.layers.0.mlp.gate.weight", "mlp.gate.weight\" has no place"},
        {"model.norm.weight", SAME, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j;
        char *dir = dir_stage(LATENT, &j);
        ModelCfg c;
        Err e = {0};
        dir_config(dir, j);
        dir_rewrite(dir, LATENT, k[i].name, k[i].how, k[i].added);
        cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
        bool ok = hf_check(dir, &c, &e);
        cr_expect_eq(ok, !k[i].part, "%s: %s", k[i].name, e.msg);
        if (!ok) dir_refused(k[i].name, NULL, &e, k[i].part);
        model_cfg_free(&c);
        json_decref(j);
        free(dir);
    }
}
