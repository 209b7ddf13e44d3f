/* test_hf_fla.c: the model types of flash-linear-attention: what of their config.json is refused, what absent keys
 * mean, and which models are written as one of them. Logits and files: test_hf_family.c. */
#include "layers/ffn/ffn.h"
#include "layers/kda/kda.h"
#include "model/files/hf_file.h"
#include "tests/lib/dirs.h"

static const struct {
    const char *name, *key, *value, *part; /* part NULL: accepted */
} edits[] = {
    {"kda", "hidden_size", NULL, "\"hidden_size\" is missing"},
    {"kda", "hidden_act", "\"powlu\"", "\"hidden_act\": expected \"swish\", found \"powlu\""},
    {"kda", "attnres_block_size", "4", "\"attnres_block_size\": expected null, found 4"},
    {"kda", "num_hidden_layers", "100000", "\"num_hidden_layers\": expected at most 256 layers"},
    {"kda", "num_v_heads", "3", "\"num_v_heads\": expected a multiple of num_heads (2), found 3"},
    {"kda", "num_heads", "0", "\"num_heads\": expected 1"},
    {"kda", "expand_v", "0.3", "\"expand_v\": expected 5 x 0.3 to be a whole number in each of 1 heads, found 1.5"},
    {"kda", "expand_v", "1e300", "\"expand_v\": expected 5 x 1e+300"},
    {"kda", "expand_v", "-1", "\"expand_v\": expected more than 0, found -1"},
    {"kda", "safe_gate", "true", "\"lower_bound\" is missing, but \"safe_gate\" is true"},
    {"kda", "lower_bound", "0.5", "\"lower_bound\": expected a number below 0, found another"},
    {"kda", "lower_bound", "\"-5\"", "\"lower_bound\": expected a number below 0, found text"},
    {"kda", "lower_bound", "-200.0", "bound"},
    {"kda", "use_short_conv", "1", "\"use_short_conv\": expected true or false"},
    {"kda", "use_short_conv", "null", NULL}, /* none */
    {"kda", "conv_size", "0", "\"conv_size\": expected 1"},
    {"kda", "conv_size", "100", "conv"},
    {"kda", "feature_map", "\"relu\"", "\"feature_map\" is not supported of model_type kda"},
    {"kda", "use_gate", "true", "\"use_gate\" is not supported of model_type kda"},
    {"kda", "attn_mode", "\"fused_recurrent\"", NULL},
    {"kda", "fuse_norm", "false", NULL},
    {"kda", "attn", "[]", NULL},
    {"kda", "attn", "3", "\"attn\": expected {layers: a list, num_heads, ...} or a list of such, found a whole number"},
    {"kda", "attn", "{\"num_heads\":2}", "found no list of layers"},
    {"kda", "attn", "{\"layers\":[0]}", "\"attn\": \"num_heads\" is missing"},
    {"kda", "attn", "{\"layers\":[0],\"num_heads\":2}", NULL},
    {"kda", "attn", "{\"layers\":[],\"num_heads\":2}", NULL},
    {"kda", "attn", "{\"layers\":[0],\"num_heads\":2,\"num_kv_heads\":null,\"window_size\":null}", NULL},
    {"kda", "attn", "{\"layers\":[2],\"num_heads\":2}", "expected layers from 0 to 1, each once, found 2"},
    {"kda", "attn", "{\"layers\":[-1],\"num_heads\":2}", "expected layers from 0 to 1, each once, found -1"},
    {"kda", "attn", "{\"layers\":[1,1],\"num_heads\":2}", "expected layers from 0 to 1, each once, found 1"},
    {"kda", "attn", "{\"layers\":[0,1.5],\"num_heads\":2}", "found no whole number at place 1"},
    {"kda", "attn", "[{\"layers\":[0],\"num_heads\":2},{\"layers\":[0],\"num_heads\":1}]", "each once, found 0"},
    {"kda", "attn", "{\"layers\":[0],\"num_heads\":4}", "heads of an even width in hidden_size (12), found 4 heads"},
    {"kda", "attn", "{\"layers\":[0],\"num_heads\":6,\"num_kv_heads\":4}",
     "\"attn\": \"num_kv_heads\": expected a divisor of num_heads (6), found 4"},
    {"kda", "attn", "{\"layers\":[0],\"num_heads\":2,\"qk_norm\":true}", "\"attn\": \"qk_norm\" is not supported"},
    {"kda", "attn", "{\"layers\":[0],\"num_heads\":2,\"window_size\":0}", "\"window_size\": expected 1"},
    {"kda", "attn", "{\"layers\":[0],\"num_heads\":2,\"rope_theta\":0}", "\"rope_theta\": expected more than 0"},
    {"gated_deltanet", "num_v_heads", "5", "\"num_v_heads\": expected a multiple of num_heads (2), found 5"},
    {"gated_deltanet", "num_v_heads", "null", NULL},
    {"gated_deltanet", "output_gate_activation", "\"relu\"", "expected swish, silu or sigmoid, found relu"},
    {"gated_deltanet", "output_gate_activation", "\"silu\"", NULL},
    {"gated_deltanet", "lower_bound", "-5", "\"lower_bound\" is not supported of model_type gated_deltanet"},
    {"delta_net", "use_beta", "false", "\"use_beta\": expected true, found false"},
    {"delta_net", "qk_norm", "\"sum\"", "\"qk_norm\": expected \"l2\", found \"sum\""},
    {"delta_net", "qk_activation", "\"elu\"", "\"qk_activation\": expected \"silu\", found \"elu\""},
    {"delta_net", "expand_k", "0.3",
     "\"expand_k\": expected 12 x 0.3 to be a whole number in each of 3 heads, found 1.2"},
    {"delta_net", "use_output_norm", "false", NULL}, /* its class passes it by */
    {"gla", "feature_map", "\"relu\"", "\"feature_map\": expected null, found \"relu\""},
    {"gla", "clamp_min", "-1", "\"clamp_min\": expected null, found -1"},
    {"gla", "num_kv_heads", "1", NULL},
    {"gla-hybrid", "num_kv_heads", "4", "\"num_kv_heads\": expected a divisor of num_heads (6), found 4"},
    {"gla", "elementwise_affine", "false", "\"elementwise_affine\": expected true, found false"},
    {"gla", "elementwise_affine", "null", "\"elementwise_affine\": expected true, found null"},
    {"gla", "use_gv", "true", NULL}, /* its class passes it by */
    {"retnet", "num_kv_heads", "1", "heads of different decays cannot share a state"},
    {"retnet", "use_short_conv", "true", "\"use_short_conv\": expected false, found true"},
    {"retnet", "num_heads", "12", "to be a whole number in each of 12 heads"},
    {"mamba2-fla", "rmsnorm", "false", "\"rmsnorm\": expected true, found false"},
    {"mamba2-fla", "D_has_hdim", "true", "\"D_has_hdim\": expected false, found true"},
    {"mamba2-fla", "norm_before_gate", "true", "\"norm_before_gate\": expected false, found true"},
    {"mamba2-fla", "dt_limit", "[0.0, 0.5]", "\"dt_limit\": expected [0.0, Infinity]"},
    {"mamba2-fla", "layer_norm_epsilon", "0.5", "\"layer_norm_epsilon\" and \"norm_eps\" differ"},
    {"mamba2-fla", "layer_norm_epsilon", "0.001", NULL},
    {"mamba2-fla", "num_heads", NULL, NULL},
};
static ModelCfg staged(const char *name, const char *key, const char *value, Err *e) {
    char *from = xformat("../families/%s", name);
    json_t *j;
    ModelCfg c = {0};
    char *dir = dir_stage(from, &j);
    dir_edit(j, key, value);
    dir_config(dir, j);
    hf_config_read(dir, &c, e);
    json_decref(j);
    free(dir), free(from);
    return c;
}

Test(hf_fla, settings_refused) {
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        Err e = {0};
        ModelCfg c = staged(edits[i].name, edits[i].key, edits[i].value, &e);
        cr_expect_eq(!e.status, !edits[i].part, "%s %s %s: %s", edits[i].name, edits[i].key,
                     edits[i].value ? edits[i].value : "nothing", e.status ? e.msg : "accepted");
        if (e.status && edits[i].part) dir_refused(edits[i].key, "config.json", &e, edits[i].part);
        model_cfg_free(&c);
    }
}

/* Absent keys have the values of fla's configuration classes. */
Test(hf_fla, defaults) {
    static const struct {
        const char *type;
        int d, heads, head_dim, v_dim, conv, gate, beta_max, hidden;
    } k[] = {{"kda", 48, 16, 128, 128, 4, 0, 1, 256},
             {"gated_deltanet", 120, 6, 256, 512, 4, LINE_GATE_SILU, 1, 512},
             {"delta_net", 160, 16, 10, 10, 4, LINE_GATE_NONE, 1, 512},
             {"gla", 160, 4, 20, 40, 0, LINE_GATE_SILU, 0, 512},
             {"retnet", 160, 8, 20, 40, 0, LINE_GATE_SILU, 0, 256}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        ModelCfg c;
        Err e = {0};
        json_t *j = json_pack("{ss si si si}", "model_type", k[i].type, "hidden_size", k[i].d, "num_hidden_layers", 2,
                              "vocab_size", 9);
        dir_config(check_dir(), j);
        cr_assert(hf_config_read(check_dir(), &c, &e), "%s", e.msg);
        const LineCfg *y = c.kind[c.pattern[0]].cfg;
        const KdaCfg *q = c.kind[c.pattern[0]].cfg;
        const bool kda = !i;
        const char *type = k[i].type;
        cr_expect_eq(kda ? q->heads : y->heads, k[i].heads, "%s", type);
        cr_expect_eq(kda ? q->head_dim : y->head_dim, k[i].head_dim, "%s", type);
        cr_expect_eq(kda ? q->v_dim : y->v_dim, k[i].v_dim, "%s", type);
        cr_expect_eq(kda ? q->conv : y->conv, k[i].conv, "%s", type);
        cr_expect_eq(kda ? q->beta_max : y->beta_max, k[i].beta_max, "%s", type);
        cr_expect(kda ? q->gate == KDA_STANDARD && q->out_bias : y->gate == k[i].gate, "%s", type);
        cr_expect_eq(((const SwigluCfg *)c.ffn[0].cfg)->hidden, k[i].hidden, "%s", type);
        cr_expect(!c.tied && c.norm_eps == 1e-6 && c.max_positions == 2048 && c.library == LIBRARY_FLA, "%s", type);
        model_cfg_free(&c);
        json_decref(j);
    }
}

/* The settings ask for it, and every part must be one that the type has. */
Test(hf_fla, type_of_a_model) {
    static const char base[] =
        "{\"d_model\":12,\"layers\":3,\"vocab\":20,\"max_positions\":32,\"library\":\"fla\",\"kinds\":{\"k\":{"
        "\"mixer\":"
        "\"kda\",\"heads\":2,\"out_bias\":true},\"g\":{\"mixer\":\"gdn\",\"heads\":2},\"d\":{\"mixer\":\"deltanet\","
        "\"heads\":2},\"l\":{\"mixer\":\"gla\",\"heads\":2},\"r\":{\"mixer\":\"retention\",\"heads\":2},\"m\":{"
        "\"mixer\":"
        "\"mamba2\",\"head_dim\":6},\"a\":{\"mixer\":\"gqa\",\"heads\":2},\"b\":{\"mixer\":\"gqa\",\"heads\":3,"
        "\"window\":4}},\"pattern\":[\"k\"],\"ffn\":{\"s\":{\"kind\":\"swiglu\",\"hidden\":8},\"n\":{\"kind\":\"none\"}"
        "},"
        "\"ffn_pattern\":[\"s\"]}";
    static const struct {
        const char *set[6], *type;
    } k[] = {
        {{"tied", "true"}, "kda"},
        {{"library", "\"transformers\""}, "kvsmith"},
        {{"pattern", "[\"k\",\"a\",\"b\"]"}, "kda"},
        {{"pattern", "[\"a\",\"k\"]"}, "kda"},
        {{"pattern", "[\"k\",\"g\"]"}, "kvsmith"},
        {{"pattern", "[\"a\"]"}, "llama"},
        {{"pattern", "[\"k\",\"a\"]", "kinds/a/qk_norm", "true"}, "kvsmith"},
        {{"pattern", "[\"k\",\"a\"]", "kinds/a/o_bias", "true"}, "kvsmith"},
        {{"pattern", "[\"k\",\"a\"]", "kinds/a/qkv_bias", "true"}, "kda"},
        {{"pattern", "[\"k\",\"a\"]", "kinds/a/head_dim", "4"}, "kvsmith"},
        {{"pattern", "[\"k\",\"a\"]", "kinds/a/rope", "\"none\""}, "kvsmith"},
        {{"pattern", "[\"k\",\"a\"]", "kinds/a/rope", "{\"theta\":50}"}, "kda"},
        {{"pattern", "[\"k\",\"a\"]", "kinds/a/sinks", "1", "kinds/a/window", "4"}, "kvsmith"},
        {{"residual_scale", "0.5"}, "kvsmith"},
        {{"norm", "\"layer\""}, "kvsmith"},
        {{"ffn_pattern", "[\"s\",\"n\"]"}, "kvsmith"},
        {{"kinds/k/gate", "\"standard\""}, "kda"},
        {{"kinds/k/v_dim", "5"}, "kda"},
        {{"kinds/k/v_dim", "5", "kinds/k/head_dim", "49"}, "kda"},
        {{"kinds/k/v_heads", "4"}, "kda"},
        {{"kinds/k/out_bias", "false"}, "kvsmith"},
        {{"kinds/k/kv_heads", "1"}, "kvsmith"},
        {{"kinds/k/erase", "\"channel\""}, "kvsmith"},
        {{"kinds/k/levels", "3"}, "kvsmith"},
        {{"kinds/k/levels", "0"}, "kda"},
        {{"kinds/k/conv_bias", "true"}, "kvsmith"},
        {{"kinds/k/out_gate", "\"full\""}, "kvsmith"},
        {{"kinds/k/out_act", "\"silu\""}, "kvsmith"},
        {{"kinds/k/gate_proj", "\"full\""}, "kvsmith"},
        {{"kinds/k/gate_rank", "3"}, "kvsmith"},
        {{"kinds/k/gate_rank", "6"}, "kda"},
        {{"pattern", "[\"g\"]"}, "gated_deltanet"},
        {{"pattern", "[\"g\",\"a\"]"}, "gated_deltanet"},
        {{"pattern", "[\"g\"]", "kinds/g/gate", "\"sigmoid\""}, "gated_deltanet"},
        {{"pattern", "[\"g\"]", "kinds/g/gate", "true"}, "gated_deltanet"},
        {{"pattern", "[\"g\"]", "kinds/g/householders", "2"}, "kvsmith"},
        {{"pattern", "[\"g\"]", "kinds/g/kv_heads", "1"}, "kvsmith"},
        {{"pattern", "[\"g\"]", "kinds/g/inner_decay", "true"}, "kvsmith"},
        {{"pattern", "[\"g\"]", "kinds/g/levels", "3"}, "kvsmith"},
        {{"pattern", "[\"d\"]"}, "delta_net"},
        {{"pattern", "[\"d\"]", "kinds/d/levels", "3"}, "kvsmith"},
        {{"pattern", "[\"d\"]", "kinds/d/gate", "\"sigmoid\""}, "kvsmith"},
        {{"pattern", "[\"d\"]", "kinds/d/head_dim", "7"}, "delta_net"},
        {{"pattern", "[\"l\"]"}, "gla"},
        {{"pattern", "[\"l\"]", "kinds/l/levels", "3"}, "kvsmith"},
        {{"pattern", "[\"l\"]", "kinds/l/kv_heads", "1"}, "gla"},
        {{"pattern", "[\"l\"]", "kinds/l/gate_rank", "8"}, "kvsmith"},
        {{"pattern", "[\"l\"]", "kinds/l/gate_divisor", "8"}, "kvsmith"},
        {{"pattern", "[\"l\"]", "kinds/l/conv", "3"}, "gla"},
        {{"pattern", "[\"r\"]"}, "retnet"},
        {{"pattern", "[\"r\"]", "kinds/r/conv", "3"}, "kvsmith"},
        {{"pattern", "[\"r\"]", "kinds/r/rope", "{\"theta\":50}"}, "kvsmith"},
        {{"pattern", "[\"r\"]", "kinds/r/gate", "\"none\""}, "retnet"},
        {{"pattern", "[\"m\"]", "ffn_pattern", "[\"n\"]"}, "mamba2"},
    };
    char *path = check_path("config.json");
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j = json_loads(base, 0, NULL);
        ModelCfg c, back;
        Err e = {0};
        for (int s = 0; s < 6 && k[i].set[s]; s += 2) dir_edit(j, k[i].set[s], k[i].set[s + 1]);
        char *text = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, text, strlen(text), "test", &e), "%s", e.msg);
        cr_assert(hf_config_write(path, &c, NULL, F32, &e), "%s", e.msg);
        json_t *file = json_load_file(path, 0, NULL);
        const char *type = json_string_value(json_object_get(file, "model_type")), *why = NULL;
        cr_expect_str_eq(type, k[i].type, "case %zu (%s): %s", i, k[i].set[0], type);
        const bool fla = strcmp(type, "kvsmith") != 0 && strcmp(type, "llama") != 0;
        cr_expect_eq(hf_is_fla(&c, &why), fla, "case %zu", i);
        cr_expect_eq(why == NULL, fla, "case %zu", i);
        cr_assert(hf_config_read(check_dir(), &back, &e), "case %zu: %s", i, e.msg);
        for (int l = 0; l < c.layers && fla; l++) {
            cr_expect_str_eq(back.kind[back.pattern[l]].mixer->name, c.kind[c.pattern[l]].mixer->name);
            cr_expect_eq(hf_type_of(&back), hf_type_of(&c), "case %zu", i);
            const KdaCfg *one = c.kind[c.pattern[l]].cfg, *two = back.kind[back.pattern[l]].cfg;
            if (strcmp(type, "kda") || c.kind[c.pattern[l]].mixer != mixer_find("kda")) continue;
            const int K = one->head_dim ? one->head_dim : c.d_model / one->heads;
            cr_expect_eq(two->head_dim, K, "case %zu", i);
            cr_expect_eq(two->v_dim, one->v_dim ? one->v_dim : K, "case %zu: %d", i, two->v_dim);
            cr_expect(two->gate == one->gate && (one->gate == KDA_STANDARD || two->bound == one->bound), "case %zu", i);
        }
        model_cfg_free(&c), model_cfg_free(&back);
        json_decref(j), json_decref(file);
        free(text);
    }
    free(path);
}
