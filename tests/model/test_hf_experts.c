/* test_hf_experts.c: the model types with experts: what of their config.json is refused, defaults, which type a model
 * is written as, and tensors that are passed by. Logits and files: test_hf_family.c. */
#include "layers/ffn/ffn.h"
#include "layers/kda/kda.h"
#include "model/files/hf_file.h"
#include "model/files/safetensors.h"
#include "tests/lib/dirs.h"
#include <sys/stat.h>

static const struct {
    const char *name, *key, *value, *part; /* part NULL: accepted */
} edits[] = {
    {"mixtral", "num_local_experts", NULL, "\"num_local_experts\" is missing"},
    {"mixtral", "num_local_experts", "0", "\"num_local_experts\": expected 1"},
    {"mixtral", "num_local_experts", "100000", "experts"},
    {"mixtral", "num_experts", "7", "\"num_local_experts\" and \"num_experts\" differ"},
    {"mixtral", "num_experts", "4", NULL},
    {"mixtral", "num_experts_per_tok", "5", "top_k: 5 is more than experts, 4"},
    {"mixtral", "num_experts_per_tok", "\"2\"", "\"num_experts_per_tok\": expected a whole number, found text"},
    {"mixtral", "num_key_value_heads", NULL, "\"num_key_value_heads\" is missing"},
    {"mixtral", "hidden_act", "\"gelu\"", "\"hidden_act\": expected silu"},
    {"mixtral", "sliding_window", "0", "\"sliding_window\": expected 1"},
    {"mixtral", "layer_types", "[\"sliding_attention\",\"sliding_attention\"]",
     "are all alike, found sliding_attention"},
    {"mixtral", "router_aux_loss_coef", "0.5", NULL},
    {"mixtral", "shared_expert_intermediate_size", "8",
     "\"shared_expert_intermediate_size\" is not supported of model_type"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"gptq\"}", "quantised by gptq"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"mxfp4\"}", "mxfp4 is not supported of model_type mixtral"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"fp8\"}", NULL},
    {"mixtral", "quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "\"fmt\": expected e4m3"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":null}",
     "\"weight_block_size\": expected two whole numbers"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}",
     "\"weight_block_size\": expected two whole numbers"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}",
     "\"weight_block_size\": expected two whole numbers"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"fp8\",\"bits\":4}", "\"bits\" is not supported"},
    {"mixtral", "quantization_config", "{\"fmt\":\"e4m3\"}", "quantised by a method without a name"},
    {"mixtral", "quantization_config", "7", "quantised by a method without a name"},
    {"gpt_oss", "num_local_experts", NULL, "\"num_local_experts\" is missing"},
    {"gpt_oss", "intermediate_size", NULL, "\"intermediate_size\" is missing"},
    {"gpt_oss", "swiglu_limit", "0", "\"swiglu_limit\": expected more than 0"},
    {"gpt_oss", "swiglu_alpha", "\"x\"", "\"swiglu_alpha\": expected a number"},
    {"gpt_oss", "attention_bias", "1", "\"attention_bias\": expected true or false"},
    {"gpt_oss", "sliding_window", "null", "\"sliding_window\": null, but layer 0 is sliding_attention"},
    {"gpt_oss", "layer_types", "[\"full_attention\"]", "expected a list of num_hidden_layers (2) texts"},
    {"gpt_oss", "experts_per_token", "3", "\"num_experts_per_tok\" and \"experts_per_token\" differ"},
    {"gpt_oss", "initial_context_length", "4096", NULL},
    {"gpt_oss", "rope_parameters", NULL, NULL}, /* yarn, of 131072 positions */
    {"gpt_oss", "hidden_act", "\"gelu\"", "\"hidden_act\": expected silu"},
    {"gpt_oss", "n_shared_experts", "1", "\"n_shared_experts\" is not supported of model_type gpt_oss"},
    {"olmoe", "clip_qkv", "8.0", "\"clip_qkv\": expected null, found 8.0"},
    {"olmoe", "clip_qkv", "null", NULL},
    {"olmoe", "head_dim", "4", "\"head_dim\": expected hidden_size / num_attention_heads, 12 / 2, found 4"},
    {"olmoe", "sliding_window", "4", "\"sliding_window\" is not supported of model_type olmoe"},
    {"qwen3_moe", "moe_intermediate_size", NULL, "\"moe_intermediate_size\" is missing"},
    {"qwen3_moe", "decoder_sparse_step", "0", "\"decoder_sparse_step\": expected 1"},
    {"qwen3_moe", "decoder_sparse_step", "9", NULL}, /* no layer has experts */
    {"qwen3_moe", "mlp_only_layers", "[2]", "\"mlp_only_layers\": expected layers from 0 to 1"},
    {"qwen3_moe", "mlp_only_layers", "[-1]", "\"mlp_only_layers\": expected layers from 0 to 1"},
    {"qwen3_moe", "mlp_only_layers", "[\"0\"]", "\"mlp_only_layers\": expected layers from 0 to 1, found 0"},
    {"qwen3_moe", "mlp_only_layers", "3", "\"mlp_only_layers\": expected a list of layers, found a whole number"},
    {"qwen3_moe", "norm_topk_prob", "1", "\"norm_topk_prob\": expected true or false"},
    {"qwen3_moe", "use_sliding_window", "3", "\"use_sliding_window\": expected true or false"},
    {"qwen3_moe", "layer_types", "[\"sliding_attention\"]", "expected full_attention, found sliding_attention"},
    {"qwen3_moe", "n_group", "2", "\"n_group\" is not supported of model_type qwen3_moe"},
    {"qwen3_moe", "mlp_bias", "true", "\"mlp_bias\": true is not supported"},
    {"qwen2_moe", "shared_expert_intermediate_size", NULL, "\"shared_expert_intermediate_size\" is missing"},
    {"qwen2_moe", "shared_expert_intermediate_size", "0", "\"shared_expert_intermediate_size\": expected 1"},
    {"qwen2_moe", "qkv_bias", "\"no\"", "\"qkv_bias\": expected true or false"},
    {"qwen2_moe", "use_sliding_window", "true", "\"sliding_window\": expected 1"},
    {"qwen2_moe-step", "layer_types", NULL, "\"layer_types\" is missing, but \"use_sliding_window\" is true"},
    {"qwen2_moe", "attention_bias", "true", "\"attention_bias\" is not supported"},
    {"deepseek_v3", "scoring_func", "\"softmax\"", "\"scoring_func\": expected \"sigmoid\", found \"softmax\""},
    {"deepseek_v3", "scoring_func", "\"sigmoid\"", NULL},
    {"deepseek_v3", "topk_method", "\"greedy\"", "\"topk_method\": expected \"noaux_tc\""},
    {"deepseek_v3", "moe_layer_freq", "2", "\"moe_layer_freq\": expected 1, found 2"},
    {"deepseek_v3", "moe_layer_freq", "1.0", NULL},
    {"deepseek_v3", "n_group", "3", "groups: 3 does not divide experts, 8"},
    {"deepseek_v3", "n_group", "8", "\"n_group\": expected groups of two experts at least, found 8 of 8"},
    {"deepseek_v3", "topk_group", "5", "top_groups: 5 is more than groups"},
    {"deepseek_v3", "topk_group", "1", "top_k: 3 is more than the 2 experts of top_groups 1"},
    {"deepseek_v3", "n_shared_experts", "0", "\"n_shared_experts\": expected 1"},
    {"deepseek_v3", "moe_intermediate_size", NULL, "\"moe_intermediate_size\" is missing"},
    {"deepseek_v3", "routed_scaling_factor", "0", "\"routed_scaling_factor\": expected more than 0"},
    {"deepseek_v3", "first_k_dense_replace", "-1", "\"first_k_dense_replace\": expected 0"},
    {"deepseek_v3", "num_local_experts", "9", "\"n_routed_experts\" and \"num_local_experts\" differ"},
    {"deepseek_v2", "topk_method", "\"noaux_tc\"",
     "\"topk_method\": expected greedy or group_limited_greedy, found noaux"},
    {"deepseek_v2", "norm_topk_prob", "true", "\"norm_topk_prob\": expected false, found true"},
    {"deepseek_v2", "scoring_func", "\"sigmoid\"", "\"scoring_func\": expected \"softmax\""},
    {"deepseek_v2", "num_experts_per_tok", NULL, "\"num_experts_per_tok\" is missing"},
    {"deepseek_v2", "rope_interleave", "true", "\"rope_interleave\" is not supported"},
    {"deepseek_v2-groups", "n_group", NULL, "\"n_group\" is missing"},
    {"qwen3_next", "layer_types", "[\"linear_attention\"]", "expected a list of num_hidden_layers (2) texts"},
    {"qwen3_next", "layer_types", "[\"linear_attention\",\"sliding_attention\"]",
     "expected linear_attention or full_attention, found sliding_attention"},
    {"qwen3_next", "full_attention_interval", "4", "\"full_attention_interval\" differ about layer 1"},
    {"qwen3_next", "full_attention_interval", "2", NULL},
    {"qwen3_next", "linear_num_value_heads", "3", "expected a multiple of linear_num_key_heads (2), found 3"},
    {"qwen3_next", "partial_rotary_factor", "0.3", NULL}, /* that in the rotation counts */
    {"qwen3_next", "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":50,\"partial_rotary_factor\":0.4}",
     "\"partial_rotary_factor\" 0.4 of head_dim 8: expected an even number"},
    {"qwen3_next", "rope_parameters", "{\"rope_theta\":50,\"mrope_section\":[1,1,0],\"mrope_interleaved\":true}", NULL},
    {"qwen3_next", "attn_output_gate", "false", "\"attn_output_gate\": expected true, found false"},
    {"qwen3_next", "linear_conv_kernel_dim", "0", "\"linear_conv_kernel_dim\": expected 1"},
    {"qwen3_next", "num_experts", NULL, "\"num_experts\" is missing"},
    {"qwen3_next", "intermediate_size", NULL, "\"intermediate_size\" is missing"},
    {"qwen3_next", "n_group", "2", "\"n_group\" is not supported of model_type qwen3_next"},
    {"qwen3_5_text", "num_experts", "4", "\"num_experts\" is not supported of model_type qwen3_5_text"},
    {"qwen3_5_text", "layer_types", NULL, NULL}, /* every fourth layer has attention, so here none */
    {"qwen3_5_moe_text", "norm_topk_prob", "true", "\"norm_topk_prob\" is not supported of model_type"},
    {"kimi_linear", "layer_types", NULL, "layers are full attention is not known"},
    {"kimi_linear", "layer_types", "[\"full_attention\"]", "expected a list of num_hidden_layers (4) texts"},
    {"kimi_linear", "linear_attn_config",
     "{\"num_heads\":2,\"head_dim\":4,\"kda_layers\":[1,2,3],\"full_attn_layers\":[4]}", "differ at layer 3"},
    {"kimi_linear", "linear_attn_config",
     "{\"num_heads\":2,\"head_dim\":4,\"kda_layers\":[1,2,4],\"full_attn_layers\":[3]}", NULL},
    {"kimi_linear", "linear_attn_config",
     "{\"num_heads\":2,\"head_dim\":4,\"kda_layers\":[0,1,3],\"full_attn_layers\":[2]}", "which count from 1"},
    {"kimi_linear", "linear_attn_config",
     "{\"num_heads\":2,\"head_dim\":4,\"kda_layers\":[1,2,3],\"full_attn_layers\":[3]}", "layer 3 is twice"},
    {"kimi_linear", "linear_attn_config",
     "{\"num_heads\":2,\"head_dim\":4,\"kda_layers\":[1,2],\"full_attn_layers\":[3]}", "layer 4 is in neither"},
    {"kimi_linear", "linear_attn_config", "{\"num_heads\":2,\"head_dim\":4,\"gate_lower_bound\":-5}",
     "\"gate_lower_bound\" is not supported"},
    {"kimi_linear", "tie_word_embeddings", "true", "\"tie_word_embeddings\": expected false, found true"},
    {"kimi_linear", "mla_use_nope", "false", "\"mla_use_nope\": expected true, found false"},
    {"kimi_linear", "hidden_act", "\"situ\"", "\"hidden_act\": expected silu, found situ"},
    {"kimi_linear", "attn_res_block_size", "8", "\"attn_res_block_size\" is not supported"},
    {"bailing_hybrid", "layer_types", NULL, NULL}, /* every second layer, by layer_group_size */
    {"bailing_hybrid", "layer_group_size", "0", "\"layer_group_size\": expected 1"},
    {"bailing_hybrid", "kda_lower_bound", "2", "\"kda_lower_bound\": expected a number below 0, found 2"},
    {"bailing_hybrid", "kda_safe_gate", "\"no\"", "\"kda_safe_gate\": expected"},
    {"bailing_hybrid", "num_key_value_heads", "1", "expected num_attention_heads (3), found 1"},
    {"bailing_hybrid", "tie_word_embeddings", "true", "\"tie_word_embeddings\": expected false, found true"},
    {"bailing_hybrid", "num_kda_heads", "3", "\"num_kda_heads\" is not supported of model_type bailing_hybrid"},
    {"granitemoehybrid", "layer_types", "[\"mamba\",\"attention\",\"mamba\"]", NULL},
    {"granitemoehybrid", "layer_types", "[\"mamba\",\"attention\"]", "expected a list of num_hidden_layers (3) texts"},
    {"granitemoehybrid", "layer_types", "[\"mamba\",\"sliding_attention\",\"mamba\"]",
     "layer 1: expected mamba or attention, found sliding_attention"},
    {"granitemoehybrid", "mamba_d_head", "\"auto\"", NULL},
    {"granitemoehybrid", "mamba_d_head", "5", "expected mamba_n_heads x mamba_d_head to be mamba_expand x hidden_size"},
    {"granitemoehybrid", "mamba_expand", "2000000000", "expected mamba_n_heads x mamba_d_head"},
    {"granitemoehybrid", "position_embedding_type", "\"nope\"", NULL},
    {"granitemoehybrid", "position_embedding_type", "\"learned\"", "expected rope or nope, found learned"},
    {"granitemoehybrid", "num_key_value_heads", "3", "no multiple of num_key_value_heads 3"},
    {"granitemoehybrid", "num_experts_per_tok", "6", "top_k: 6 is more than experts, 5"},
    {"granitemoehybrid", "normalization_function", "\"layernorm\"", "expected \"rmsnorm\", found \"layernorm\""},
    {"granitemoehybrid", "time_step_limit", "[0.0, 0.5]", "expected [0.0, Infinity]"},
    {"granitemoehybrid", "sliding_window", "5", "\"sliding_window\" is not supported of model_type granitemoehybrid"},
    {"nemotron_h", "layers_block_type", "[\"mamba\",\"mlp\",\"attention\",\"mamba\",\"mlp\"]", NULL},
    {"nemotron_h", "hybrid_override_pattern", "\"M-*M-\"", NULL},
    {"nemotron_h", "hybrid_override_pattern", "\"M-*MM\"", "\"hybrid_override_pattern\" and another key"},
    {"nemotron_h", "hybrid_override_pattern", "\"M-*Mx\"", "layer 4: expected M, *, - or E, found x"},
    {"nemotron_h", "hybrid_override_pattern", "\"\"", "expected 1 to"},
    {"nemotron_h", "hybrid_override_pattern", "[]", "expected a text of the letters M, *, - and E, found a list"},
    {"nemotron_h", "layer_types", "[\"mamba\"]", "\"layer_types\" and another key with the layers differ"},
    {"nemotron_h", "layers_block_type", NULL, "what the layers are is not known"},
    {"nemotron_h", "layers_block_type", "\"M-*M-\"", "expected a list of texts, found text"},
    {"nemotron_h", "layers_block_type", "[\"mamba\",\"hybrid\"]", "layer 1: expected linear_attention, full_attention"},
    {"nemotron_h", "num_hidden_layers", "5", NULL},
    {"nemotron_h", "num_hidden_layers", "4", "expected the number of listed layers, 5, found 4"},
    {"nemotron_h", "attention_head_dim", "5", NULL},
    {"nemotron_h", "attention_head_dim", "6", "\"attention_head_dim\": expected head_dim (5), found 6"},
    {"nemotron_h", "num_key_value_heads", "3", "expected a divisor of num_attention_heads (4), found 3"},
    {"nemotron_h", "rms_norm_eps", "0.001", NULL},
    {"nemotron_h", "rms_norm_eps", "0.002", "\"rms_norm_eps\": expected layer_norm_epsilon (0.001), found 0.002"},
    {"nemotron_h", "tie_word_embeddings", "true", "\"tie_word_embeddings\": expected false, found true"},
    {"nemotron_h", "attention_bias", "true", "\"attention_bias\": expected false, found true"},
    {"nemotron_h", "mamba_proj_bias", "true", "\"mamba_proj_bias\": expected false, found true"},
    {"nemotron_h", "mlp_hidden_act", "\"gelu\"", "\"mlp_hidden_act\": expected \"relu2\", found \"gelu\""},
    {"nemotron_h", "mamba_hidden_act", "\"gelu\"", "\"mamba_hidden_act\": expected \"silu\", found \"gelu\""},
    {"nemotron_h", "sliding_window", "5", "\"sliding_window\" is not supported of model_type nemotron_h"},
    {"nemotron_h", "time_step_limit", "[0.0, 0.5]", "expected [0.0, Infinity]"},
    {"nemotron_h", "mamba_n_groups", "2", "\"mamba_n_groups\" is not supported of model_type nemotron_h"},
    {"nemotron_h", "n_groups", "3", "groups: expected a divisor of heads (4), got 3"},
    {"nemotron_h", "expand", "7", NULL}, /* not read by the class either */
    {"nemotron_h", "time_step_min", "0.5", NULL},
    {"nemotron_h", "num_nextn_predict_layers", "1", NULL},
    {"nemotron_h-experts", "mlp_bias", "true", "\"mlp_bias\": true is not supported of experts"},
    {"nemotron_h-experts", "n_shared_experts", "2", "\"n_shared_experts\": expected 1, found 2"},
    {"nemotron_h-experts", "n_group", "6", "\"n_group\": expected groups of two experts at least, found 6 of 6"},
    {"nemotron_h-experts", "num_local_experts", "7", "\"n_routed_experts\" and \"num_local_experts\" differ"},
    {"nemotron_h-experts", "moe_latent_size", "0", "\"moe_latent_size\": expected 1"},
    {"nemotron_h-experts", "n_routed_experts", "1000", "experts"},
    {"mamba2", "hidden_act", "\"gelu\"", "\"hidden_act\": expected silu, found gelu"},
    {"mamba2", "num_heads", "5", "\"num_heads\": expected num_heads x head_dim to be expand x hidden_size"},
    {"mamba2", "n_groups", "3", "groups: expected a divisor of heads (4), got 3"},
    {"mamba2", "rms_norm", "false", "\"rms_norm\": expected true, found false"},
    {"mamba2", "norm_before_gate", "true", NULL},
    {"mamba2", "time_step_limit", "[0.0, \"Infinity\"]", NULL}, /* as json_read reads version 4's Infinity */
    {"mamba2", "time_step_limit", "[0.001, \"Infinity\"]", "expected [0.0, Infinity]"},
    {"mamba2", "time_step_limit", "[0.0, 0.1]", "expected [0.0, Infinity]"},
    {"mamba2", "num_attention_heads", "4", "\"num_attention_heads\" is not supported of model_type mamba2"},
    {"glm4_moe", "num_key_value_heads", NULL, "\"num_key_value_heads\" is missing"},
    {"glm4_moe", "n_routed_experts", NULL, NULL}, /* 128 by default */
    {"glm4_moe", "n_group", "4", "\"n_group\": expected groups of two experts at least, found 4 of 6"},
    {"glm4_moe", "n_group", "6", "\"n_group\": expected groups of two experts at least, found 6 of 6"},
    {"glm4_moe", "scoring_func", "\"softmax\"", "\"scoring_func\": expected \"sigmoid\", found \"softmax\""},
    {"glm4_moe", "use_qk_norm", "1", "\"use_qk_norm\": expected true or false"},
    {"glm4_moe", "partial_rotary_factor", "0.1", NULL}, /* that in the rotation counts */
    {"glm4_moe", "rope_parameters", "{\"rope_theta\":50}", NULL},
    {"glm4_moe", "rope_parameters", "{\"rope_theta\":50,\"partial_rotary_factor\":0.1}", "expected an even number"},
    {"glm4_moe", "layer_types", "[\"sliding_attention\"]", "expected full_attention, found sliding_attention"},
    {"glm4_moe", "kv_lora_rank", "4", "\"kv_lora_rank\" is not supported of model_type glm4_moe"},
    {"glm4_moe_lite", "mlp_layer_types", "[\"sparse\"]", "expected a list of num_hidden_layers (3) texts"},
    {"glm4_moe_lite", "mlp_layer_types", "[\"sparse\",\"dense\",\"moe\"]", "expected sparse or dense, found moe"},
    {"glm4_moe_lite", "first_k_dense_replace", "1", "\"first_k_dense_replace\": 1, but \"mlp_layer_types\""},
    {"glm4_moe_lite-plain", "first_k_dense_replace", "1", NULL},
    {"glm4_moe_lite-plain", "q_lora_rank", NULL, "\"q_lora_rank\" is missing"},
    {"glm4_moe_lite-plain", "partial_rotary_factor", "1.0", NULL},
    {"glm4_moe_lite-plain", "partial_rotary_factor", "0.5", "\"partial_rotary_factor\" is not supported"},
};

/* A model that sees pictures, too, is read as its text model, if its settings say one thing. */
Test(hf_experts, text_model_inside) {
    static const struct {
        const char *key, *value, *part; /* part NULL: accepted */
    } k[] = {
        {"image_token_id", "7", NULL},
        {"tie_word_embeddings", "false", NULL},
        {"tie_word_embeddings", "true", "\"tie_word_embeddings\" differs from that in \"text_config\""},
        {"text_config/model_type", "\"llama\"", "\"model_type\": expected qwen3_5_text, found llama"},
        {"text_config/n_group", "2", "\"n_group\" is not supported of model_type qwen3_5_text"},
        {"hidden_size", "9", "\"hidden_size\" is not supported of model_type qwen3_5"},
        {"text_config", "3", "\"text_config\": expected an object"},
        {"text_config", NULL, "\"text_config\": expected an object"},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *in;
        char *dir = dir_stage("../families/qwen3_5_text", &in);
        dir_config(dir, in);
        char *want = dir_settings(dir), *got = NULL;
        json_t *j = json_pack("{ss so s{ss}}", "model_type", "qwen3_5", "text_config", in, "vision_config",
                              "model_type", "qwen3_5_vision");
        ModelCfg c = {0};
        Err e = {0};
        dir_edit(j, k[i].key, k[i].value);
        dir_config(dir, j);
        bool ok = hf_config_read(dir, &c, &e);
        cr_expect_eq(ok, !k[i].part, "%s: %s", k[i].key, e.msg);
        if (!ok && k[i].part) dir_refused(k[i].key, "config.json", &e, k[i].part);
        if (ok) {
            got = model_cfg_json(&c);
            cr_expect_str_eq(got, want);
            cr_expect_eq(hf_type_of(&c), &hf_qwen3_5_text);
            model_cfg_free(&c);
        }
        json_decref(j);
        free(dir), free(want), free(got);
    }
}

Test(hf_experts, settings_refused) {
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *from = xformat("../families/%s", edits[i].name);
        json_t *j;
        char *dir = dir_stage(from, &j);
        dir_tried(dir, j, edits[i].name, edits[i].key, edits[i].value, edits[i].part, "config.json");
        json_decref(j);
        free(dir), free(from);
    }
}

/* Python writes numbers that JSON does not have; in texts the same words stay. */
Test(hf_experts, words_for_numbers) {
    json_t *j;
    char *dir = dir_stage("../families/mamba2", &j), *path = xformat("%s/config.json", dir);
    dir_edit(j, "time_step_limit", "[0.0, \"HERE\"]");
    dir_edit(j, "_name_or_path", "\"a \\\" NaN, Infinity \\\\\"");
    char *text = json_dumps(j, 0), *at = strstr(text, "\"HERE\"");
    check_write(path, "", 0);
    FILE *f = fopen(path, "w");
    fprintf(f, "%.*sInfinity%s", (int)(at - text), text, at + 6);
    cr_assert(!fclose(f));
    ModelCfg c;
    Err e = {0};
    cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
    cr_expect(c.layers == 3 && hf_type_of(&c) == &hf_mamba2);
    model_cfg_free(&c);
    json_t *read = json_read(path, &e);
    cr_expect(json_equal(json_object_get(read, "_name_or_path"), json_object_get(j, "_name_or_path")));
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(read, "time_step_limit"), 1)), "Infinity");
    json_decref(read);
    f = fopen(path, "w");
    fprintf(f, "%.*s[-Infinity, NaN%s", (int)(at - text), text, at + 6);
    cr_assert(!fclose(f));
    cr_expect(!json_read(path, &e) && e.status == EXIT_INPUT, "an unclosed list");
    json_decref(j);
    free(text), free(dir), free(path);
}

/* Which layers have experts, and how wide everything is. */
Test(hf_experts, layers) {
    static const struct {
        const char *name, *key, *value, *of; /* d: dense, e: experts */
    } k[] = {
        {"mixtral", "num_experts", "4", "ee"},
        {"qwen3_moe-some", "mlp_only_layers", "[]", "eee"},
        {"qwen3_moe-some", "mlp_only_layers", "[1]", "ede"},
        {"qwen3_moe-some", "mlp_only_layers", "[2, 0]", "ded"},
        {"qwen3_moe-some", "decoder_sparse_step", "3", "dde"},
        {"qwen2_moe-step", "decoder_sparse_step", "2", "ded"},
        {"deepseek_v3", "first_k_dense_replace", "0", "eee"},
        {"deepseek_v3", "first_k_dense_replace", NULL, "ddd"}, /* 3 by default */
        {"deepseek_v2", "first_k_dense_replace", NULL, "eee"}, /* 0 by default */
        {"glm4_moe", "first_k_dense_replace", NULL, "dee"},    /* 1 by default */
        {"glm4_moe", "first_k_dense_replace", "2", "dde"},
        {"glm4_moe_lite", "rope_interleave", "true", "ede"},
        {"glm4_moe_lite", "mlp_layer_types", NULL, "dee"},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char *from = xformat("../families/%s", k[i].name);
        json_t *j;
        char *dir = dir_stage(from, &j);
        ModelCfg c;
        Err e = {0};
        dir_edit(j, k[i].key, k[i].value);
        dir_config(dir, j);
        cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
        cr_assert_eq(c.layers, (int)strlen(k[i].of));
        for (int l = 0; l < c.layers; l++) {
            const Ffn *f = c.ffn[c.ffn_pattern[l]].ffn;
            cr_expect(f == (k[i].of[l] == 'e' ? &moe_ffn : &swiglu_ffn), "%s %s %s, layer %d: %s", k[i].name, k[i].key,
                      k[i].value ? k[i].value : "nothing", l, f->name);
        }
        model_cfg_free(&c);
        json_decref(j);
        free(dir), free(from);
    }
}

/* A public type has one state per head of Kimi Delta Attention. */
Test(hf_experts, kda_with_levels_has_no_public_type) {
    static const char *const name[] = {"kimi_linear", "bailing_hybrid", "kda"};
    for (int i = 0; i < 3; i++) {
        char *dir = xformat("tests/golden/families/%s", name[i]);
        ModelCfg c;
        Err e = {0};
        int changed = 0;
        cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
        cr_expect_str_eq(hf_type_of(&c)->type, name[i]);
        for (int k = 0; k < c.nkinds; k++)
            if (!strcmp(c.kind[k].mixer->name, "kda")) ((KdaCfg *)c.kind[k].cfg)->levels = 3, changed++;
        cr_expect(changed && !hf_type_of(&c), "%s: %d kinds have levels", name[i], changed);
        model_cfg_free(&c);
        free(dir);
    }
}

/* Which type a model with experts is written as: one that holds all of its settings, else our own. */
#define OSS_EXPERTS "ffn/e/router_bias", "true", "ffn/e/expert_bias", "true", "ffn/e/limit", "7"
Test(hf_experts, type_of_a_model) {
    static const char gqa[] =
        "{\"d_model\":12,\"layers\":3,\"vocab\":20,\"max_positions\":32,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":"
        "2},"
        "\"w\":{\"mixer\":\"gqa\",\"heads\":2,\"window\":4}},\"pattern\":[\"a\"],\"ffn\":{\"d\":{\"kind\":\"swiglu\","
        "\"hidden\":8},\"e\":{\"kind\":\"moe\",\"experts\":4,\"top_k\":2,\"hidden\":5}},\"ffn_pattern\":[\"e\"]}";
    static const char mla[] =
        "{\"d_model\":12,\"layers\":3,\"vocab\":20,\"max_positions\":32,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":"
        "2,"
        "\"kv_rank\":6,\"nope_dim\":4,\"rope_dim\":2,\"v_dim\":3,\"rope\":{\"type\":\"default\",\"interleaved\":true}}}"
        ","
        "\"pattern\":[\"a\"],\"ffn\":{\"d\":{\"kind\":\"swiglu\",\"hidden\":8},\"e\":{\"kind\":\"moe\",\"experts\":4,"
        "\"top_k\":2,\"hidden\":5,\"shared\":1,\"norm_topk\":false}},\"ffn_pattern\":[\"d\",\"e\",\"e\"]}";
    static const char gdn[] =
        "{\"d_model\":12,\"layers\":2,\"vocab\":20,\"max_positions\":32,\"norm_plus_one\":true,\"kinds\":{\"g\":{"
        "\"mixer\":\"gdn\",\"heads\":2,\"head_dim\":4},\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"qk_norm\":true,"
        "\"out_gate\":true}},\"pattern\":[\"g\",\"a\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":8}]}";
    static const char mamba[] =
        "{\"d_model\":12,\"layers\":2,\"vocab\":20,\"max_positions\":32,\"kinds\":{\"m\":{\"mixer\":\"mamba2\","
        "\"head_dim\":6,\"state_size\":4},\"a\":{\"mixer\":\"gqa\",\"heads\":2}},\"pattern\":[\"m\"],\"ffn\":{\"n\":{"
        "\"kind\":\"none\"},\"d\":{\"kind\":\"swiglu\",\"hidden\":8}},\"ffn_pattern\":[\"n\"]}";
    static const char parts[] =
        "{\"d_model\":12,\"layers\":3,\"vocab\":20,\"tied\":false,\"max_positions\":32,\"kinds\":{\"m\":{\"mixer\":"
        "\"mamba2\","
        "\"head_dim\":6,\"state_size\":4},\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"rope\":\"none\"},\"n\":{\"mixer\":"
        "\"none\"}},\"pattern\":[\"m\",\"n\",\"a\"],\"ffn\":{\"n\":{\"kind\":\"none\"},\"r\":{\"kind\":\"relu2\","
        "\"hidden\":8},\"e\":{\"kind\":\"moe\",\"experts\":4,\"top_k\":2,\"hidden\":5,\"shared\":1,\"act\":\"relu2\","
        "\"router\":\"sigmoid\",\"bias_balance\":true}},\"ffn_pattern\":[\"n\",\"r\",\"n\"]}";
    static const struct {
        const char *base, *set[12], *type;
    } k[] = {
        {parts, {"init_std", "0.03"}, "nemotron_h"},
        {parts, {"kinds/m/heads", "5"}, "nemotron_h"}, /* any width */
        {parts, {"ffn/r/bias", "true"}, "nemotron_h"},
        {parts, {"ffn_pattern", "[\"n\",\"e\",\"n\"]"}, "nemotron_h"},
        {parts, {"ffn_pattern", "[\"n\",\"e\",\"n\"]", "ffn/e/latent", "6", "ffn/e/shared_hidden", "9"}, "nemotron_h"},
        {parts, {"ffn_pattern", "[\"n\",\"e\",\"n\"]", "ffn/e/act", "\"swiglu\""}, "kvsmith"},
        {parts, {"ffn_pattern", "[\"n\",\"e\",\"n\"]", "ffn/e/shared", "2"}, "kvsmith"},
        {parts, {"ffn_pattern", "[\"n\",\"e\",\"n\"]", "ffn/e/shared_gate", "true"}, "kvsmith"},
        {parts, {"ffn_pattern", "[\"n\",\"e\",\"n\"]", "ffn/e/bias_balance", "false"}, "kvsmith"},
        {parts, {"ffn_pattern", "[\"n\",\"e\",\"n\"]", "ffn/e/groups", "4"}, "kvsmith"},
        {parts, {"ffn_pattern", "[\"r\",\"r\",\"n\"]"}, "kvsmith"}, /* a layer of two parts */
        {parts, {"ffn_pattern", "[\"n\",\"n\",\"n\"]"}, "kvsmith"}, /* a layer of none */
        {parts, {"pattern", "[\"m\",\"n\",\"m\"]"}, "kvsmith"},
        {parts, {"tied", "true"}, "kvsmith"},
        {parts, {"parallel", "true"}, "kvsmith"},
        {parts, {"embed_scale", "2"}, "kvsmith"},
        {parts, {"kinds/a/rope", "{\"type\":\"default\"}"}, "kvsmith"},
        {parts, {"kinds/a/window", "4"}, "kvsmith"},
        {parts, {"kinds/a/qkv_bias", "true"}, "kvsmith"},
        {parts, {"kinds/m/gate", "\"sigmoid\""}, "kvsmith"},
        {parts, {"kinds/m/conv", "0"}, "kvsmith"},
        {parts, {"kinds/m/levels", "3"}, "kvsmith"},
        {mamba, {"tied", "false"}, "mamba2"},
        {mamba, {"kinds/m/heads", "6"}, "mamba2"},
        {mamba, {"kinds/m/heads", "5"}, "kvsmith"}, /* 30 channels of 12 */
        {mamba, {"kinds/m/gate", "\"sigmoid\""}, "kvsmith"},
        {mamba, {"kinds/m/conv", "0"}, "kvsmith"},
        {mamba, {"kinds/m/levels", "3"}, "kvsmith"},
        {mamba, {"pattern", "[\"m\",\"a\"]"}, "kvsmith"},
        {mamba, {"ffn_pattern", "[\"d\"]"}, "kvsmith"},
        {mamba, {"pattern", "[\"m\",\"a\"]", "ffn_pattern", "[\"d\"]"}, "granitemoehybrid"},
        {mamba, {"pattern", "[\"m\",\"a\"]", "ffn_pattern", "[\"d\"]", "residual_scale", "0.5"}, "granitemoehybrid"},
        {mamba, {"pattern", "[\"m\",\"a\"]", "ffn_pattern", "[\"d\"]", "logits_cap", "9"}, "kvsmith"},
        {mamba, {"pattern", "[\"m\",\"a\"]", "ffn_pattern", "[\"d\"]", "kinds/a/qk_norm", "true"}, "kvsmith"},
        {mamba, {"pattern", "[\"m\",\"a\"]", "ffn_pattern", "[\"d\"]", "kinds/a/head_dim", "4"}, "kvsmith"},
        {mamba, {"pattern", "[\"m\",\"a\"]", "ffn_pattern", "[\"d\",\"n\"]"}, "kvsmith"},
        {mamba, {"pattern", "[\"m\",\"a\"]", "ffn_pattern", "[\"d\"]", "kinds/m/levels", "3"}, "kvsmith"},
        {mamba, {"embed_scale", "2"}, "kvsmith"},
        {gdn, {"tied", "true"}, "qwen3_5_text"},
        {gdn, {"kinds/g/conv_bias", "true"}, "kvsmith"},
        {gdn, {"kinds/g/gate", "\"sigmoid\""}, "kvsmith"},
        {gdn, {"kinds/g/gate", "\"none\""}, "kvsmith"},
        {gdn, {"kinds/g/beta_max", "2"}, "kvsmith"},
        {gdn, {"kinds/g/householders", "2"}, "kvsmith"},
        {gdn, {"kinds/g/kv_heads", "1"}, "kvsmith"},
        {gdn, {"kinds/g/inner_decay", "true"}, "kvsmith"},
        {gdn, {"kinds/g/output_correction", "true"}, "kvsmith"},
        {gdn, {"kinds/g/levels", "3"}, "kvsmith"},
        {gdn, {"kinds/g/conv", "0"}, "kvsmith"},
        {gdn, {"kinds/a/out_gate", "false"}, "kvsmith"},
        {gqa, {OSS_EXPERTS, "kinds/a/sink_scores", "true"}, "gpt_oss"},
        {gqa, {OSS_EXPERTS}, "kvsmith"},
        {gqa, {OSS_EXPERTS, "kinds/a/sink_scores", "true", "ffn_pattern", "[\"e\",\"d\",\"e\"]"}, "kvsmith"},
        {gqa, {OSS_EXPERTS, "kinds/a/sink_scores", "true", "kinds/a/o_bias", "true"}, "kvsmith"},
        {gqa, {"ffn/e/limit", "7", "kinds/a/sink_scores", "true"}, "kvsmith"},
        {gqa, {"ffn/e/router_bias", "true"}, "kvsmith"},
        {gqa, {"ffn/e/expert_bias", "true"}, "kvsmith"},
        {gqa,
         {"ffn/e/shared", "1", "ffn/e/router", "\"sigmoid\"", "ffn/e/bias_balance", "true", "kinds/a/qkv_bias", "true"},
         "glm4_moe"},
        {gqa,
         {"ffn/e/shared", "1", "ffn/e/router", "\"sigmoid\"", "ffn/e/bias_balance", "true", "ffn_pattern",
          "[\"e\",\"d\",\"e\"]"},
         "kvsmith"},
        {gqa,
         {"ffn/e/shared", "1", "ffn/e/router", "\"sigmoid\"", "ffn/e/bias_balance", "true", "pattern", "[\"w\"]"},
         "kvsmith"},
        {mla,
         {"ffn/e/router", "\"sigmoid\"", "ffn/e/bias_balance", "true", "ffn_pattern", "[\"e\",\"d\",\"e\"]"},
         "glm4_moe_lite"},
        {gqa, {"tied", "true"}, "mixtral"},
        {gqa, {"pattern", "[\"w\"]"}, "mixtral"},
        {gqa, {"pattern", "[\"a\",\"w\"]"}, "kvsmith"},
        {gqa, {"ffn_pattern", "[\"d\",\"e\"]"}, "kvsmith"},
        {gqa, {"ffn/e/norm_topk", "false"}, "kvsmith"},
        {gqa, {"ffn/e/scale", "2"}, "kvsmith"},
        {gqa, {"ffn/e/router", "\"sigmoid\""}, "kvsmith"},
        {gqa, {"ffn/e/groups", "2", "ffn/e/top_groups", "1"}, "kvsmith"},
        {gqa, {"ffn/e/groups", "2"}, "mixtral"}, /* all groups: none */
        {gqa, {"ffn/e/bias_balance", "true"}, "kvsmith"},
        {gqa, {"ffn/e/shared", "1"}, "kvsmith"},
        {gqa, {"kinds/a/qkv_bias", "true"}, "kvsmith"},
        {gqa, {"kinds/a/qk_norm_wide", "true"}, "olmoe"},
        {gqa, {"kinds/a/qk_norm_wide", "true", "kinds/a/head_dim", "4"}, "kvsmith"},
        {gqa, {"kinds/a/qk_norm", "true"}, "qwen3_moe"},
        {gqa, {"kinds/a/qk_norm", "true", "ffn_pattern", "[\"d\",\"e\"]"}, "qwen3_moe"},
        {gqa, {"kinds/a/qk_norm", "true", "ffn_pattern", "[\"d\"]"}, "qwen3"},
        {gqa, {"kinds/a/qk_norm", "true", "ffn_pattern", "[\"e\",\"none\"]"}, "kvsmith"},
        {gqa, {"ffn/e/shared", "1", "ffn/e/shared_gate", "true"}, "qwen2_moe"},
        {gqa,
         {"ffn/e/shared", "1", "ffn/e/shared_gate", "true", "ffn/e/shared_hidden", "9", "kinds/a/qkv_bias", "true"},
         "qwen2_moe"},
        {gqa, {"ffn/e/shared", "2", "ffn/e/shared_gate", "true"}, "kvsmith"},
        {mla, {"tied", "true"}, "deepseek_v2"},
        {mla, {"ffn/e/norm_topk", "true"}, "kvsmith"},
        {mla, {"ffn/e/groups", "2", "ffn/e/top_groups", "1"}, "deepseek_v2"},
        {mla, {"ffn_pattern", "[\"e\"]"}, "deepseek_v2"},
        {mla, {"ffn_pattern", "[\"e\",\"d\",\"e\"]"}, "kvsmith"},
        {mla, {"ffn_pattern", "[\"d\"]"}, "deepseek_v3"},
        {mla, {"ffn/e/shared", "0"}, "kvsmith"},
        {mla, {"ffn/e/shared_hidden", "7"}, "kvsmith"},
        {mla, {"ffn/e/shared_hidden", "5"}, "deepseek_v2"},
        {mla, {"ffn/e/router", "\"sigmoid\""}, "kvsmith"},
        {mla, {"ffn/e/router", "\"sigmoid\"", "ffn/e/bias_balance", "true"}, "deepseek_v3"},
        {mla,
         {"ffn/e/router", "\"sigmoid\"", "ffn/e/bias_balance", "true", "ffn/e/groups", "4", "ffn/e/scale", "3"},
         "kvsmith"},
        {mla,
         {"ffn/e/router", "\"sigmoid\"", "ffn/e/bias_balance", "true", "kinds/a/rope/interleaved", "false"},
         "kvsmith"},
    };
    char *path = check_path("config.json");
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j = json_loads(k[i].base, 0, NULL);
        ModelCfg c, back;
        Err e = {0};
        for (int s = 0; k[i].set[s]; s += 2) dir_edit(j, k[i].set[s], k[i].set[s + 1]);
        char *text = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, text, strlen(text), "test", &e), "%s", e.msg);
        cr_assert(hf_config_write(path, &c, NULL, F32, &e), "%s", e.msg);
        json_t *file = json_load_file(path, 0, NULL);
        const char *type = json_string_value(json_object_get(file, "model_type"));
        cr_expect_str_eq(type, k[i].type, "case %zu (%s): %s", i, k[i].set[0], type);
        cr_assert(hf_config_read(check_dir(), &back, &e), "case %zu: %s", i, e.msg);
        for (int l = 0; l < c.layers; l++)
            cr_expect_str_eq(back.ffn[back.ffn_pattern[l]].ffn->name, c.ffn[c.ffn_pattern[l]].ffn->name);
        model_cfg_free(&c), model_cfg_free(&back);
        json_decref(j), json_decref(file);
        free(text);
    }
    free(path);
}

/* Tensors of layers that predict further tokens are passed by where config.json says that they are there. */
Test(hf_experts, extra_layers) {
    for (int extra = 0; extra < 3; extra++)
        for (int layer = 3; layer < 5; layer++) {
            json_t *j;
            char *dir = dir_stage("../families/deepseek_v3", &j), value[16];
            char *name = xformat("model.layers.%d.eh_proj.weight", layer);
            ModelCfg c;
            Err e = {0};
            snprintf(value, sizeof value, "%d", extra);
            dir_edit(j, "num_nextn_predict_layers", value);
            dir_config(dir, j);
            dir_rewrite(dir, "../families/deepseek_v3", "model.norm.weight", ADDED, name);
            cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
            bool ok = hf_check(dir, &c, &e);
            cr_expect_eq(ok, layer < 3 + extra, "%d layers, %s: %s", extra, name, e.msg);
            if (!ok) dir_refused("extra", NULL, &e, "eh_proj.weight\" has no place");
            model_cfg_free(&c);
            json_decref(j);
            free(dir), free(name);
        }
}
