/* hf_deepseek.c: config.json of a dense DeepseekV3ForCausalLM. Source of fields, defaults and meaning: transformers
 * configuration_deepseek_v3 and modeling_deepseek_v3. */
#include "../layers/mla/mla.h"
#include "hf_file.h"

/* What a dense model must say, and what cannot be read yet. */
static bool dense(const HfFile *f, int layers, int heads, int rope_dim) {
    int experts_from, groups, head_dim;
    if (!hf_whole(f, "first_k_dense_replace", 0, 3, &experts_from) ||
        !hf_whole(f, "num_key_value_heads", 1, heads, &groups) || !hf_whole(f, "head_dim", 1, rope_dim, &head_dim))
        return false;
    if (experts_from < layers)
        return err_input(f->e, "%s: \"first_k_dense_replace\": %d of %d layers are dense; experts are not supported",
                         f->path, experts_from, layers);
    if (groups != heads)
        return err_input(f->e, "%s: \"num_key_value_heads\": expected num_attention_heads (%d), found %d", f->path,
                         heads, groups);
    /* The rotation of transformers reads head_dim. */
    return head_dim == rope_dim ||
           err_input(f->e, "%s: \"head_dim\": expected qk_rope_head_dim (%d), found %d", f->path, rope_dim, head_dim);
}

static json_t *settings(const HfFile *f) {
    int d, F, layers, H, V, P, rq = 0, r, dn, dr, dv;
    double eps, std;
    bool bias, tied, interleaved = true;
    if (!hf_whole(f, "hidden_size", 1, -1, &d) || !hf_whole(f, "intermediate_size", 1, -1, &F) ||
        !hf_whole(f, "num_hidden_layers", 1, -1, &layers) || !hf_whole(f, "num_attention_heads", 1, -1, &H) ||
        !hf_whole(f, "vocab_size", 1, -1, &V) || !hf_whole(f, "kv_lora_rank", 1, -1, &r) ||
        !hf_whole(f, "qk_nope_head_dim", 1, -1, &dn) || !hf_whole(f, "qk_rope_head_dim", 2, -1, &dr) ||
        !hf_whole(f, "v_head_dim", 1, -1, &dv) || !hf_whole(f, "max_position_embeddings", 1, 4096, &P) ||
        !hf_number(f, "rms_norm_eps", 1e-6, false, &eps) || !hf_number(f, "initializer_range", 0.02, true, &std) ||
        !hf_flag(f, "attention_bias", &bias) || !hf_flag(f, "tie_word_embeddings", &tied) || !hf_supported(f) ||
        !hf_plain_layers(f) || !dense(f, layers, H, dr))
        return NULL;
    if (hf_given(f->j, "rope_interleave") && !hf_flag(f, "rope_interleave", &interleaved)) return NULL;
    /* null says that there is no such latent; absent means 1536 to transformers, and is more likely an oversight */
    if (!json_is_null(json_object_get(f->j, "q_lora_rank")) && !hf_whole(f, "q_lora_rank", 1, -1, &rq)) return NULL;
    json_t *rope = json_object();
    if (!hf_rope_read(f, rope)) {
        json_decref(rope);
        return NULL;
    }
    json_object_set_new(rope, "interleaved", json_boolean(interleaved));
    return json_pack("{si si si si sf sf sb s{s{ss si si si si si si so sb sb}} s[s] s[{ss si}]}", "d_model", d,
                     "layers", layers, "vocab", V, "max_positions", P, "norm_eps", eps, "init_std", std, "tied", tied,
                     "kinds", "latent", "mixer", "mla", "heads", H, "kv_rank", r, "q_rank", rq, "nope_dim", dn,
                     "rope_dim", dr, "v_dim", dv, "rope", rope, "a_bias", bias, "o_bias", bias, "pattern", "latent",
                     "ffn", "kind", "swiglu", "hidden", F);
}

bool hf_is_deepseek(const ModelCfg *c, const char **why) {
    if (!hf_block(c, (HfBlock){"mla", "swiglu", NORM_RMS, POSITIONS_NONE, false}, why)) return false;
    for (int l = 0; l < c->layers; l++)
        if (c->pattern[l] != c->pattern[0]) return hf_no(why, "layers of several kinds");
    const MlaCfg *m = c->kind[c->pattern[0]].cfg;
    if (!m->heads) return hf_no(why, "a layer without queries");
    if (!m->nope_dim || !m->rope_dim) return hf_no(why, "keys of one part alone");
    if (m->rope_heads != 1) return hf_no(why, "rope_heads");
    if (m->window) return hf_no(why, "a window");
    if (!m->latent_norm || (m->q_rank && !m->q_latent_norm)) return hf_no(why, "a latent without its norm");
    if (m->a_bias != m->o_bias) return hf_no(why, "a_bias without o_bias, or the reverse");
    if (m->q_bias) return hf_no(why, "q_bias");
    /* transformers can be told so; vLLM and SGLang take all for interleaved, silently */
    if (!m->rope.interleaved) return hf_no(why, "rotation that is not interleaved");
    if (m->rope.mscale_all_dim > 0 && m->rope.type != ROPE_YARN) return hf_no(why, "mscale_all_dim without yarn");
    const char *differs = hf_rope_differs(&m->rope, c->max_positions);
    return !differs || hf_no(why, differs);
}

static void deepseek_json(json_t *j, const ModelCfg *c) {
    const MlaCfg *m = c->kind[c->pattern[0]].cfg;
    hf_family_json(j, c,
                   (HfFamily){.architecture = "DeepseekV3ForCausalLM",
                              .type = "deepseek_v3",
                              .heads = m->heads,
                              .kv_heads = m->heads,
                              .head_dim = m->rope_dim, /* what its rotation reads */
                              .bias = m->a_bias,
                              .mlp_bias = true,
                              .rope = &m->rope});
    json_object_set_new(j, "q_lora_rank", m->q_rank ? json_integer(m->q_rank) : json_null());
    json_object_set_new(j, "kv_lora_rank", json_integer(m->kv_rank));
    json_object_set_new(j, "qk_nope_head_dim", json_integer(m->nope_dim));
    json_object_set_new(j, "qk_rope_head_dim", json_integer(m->rope_dim));
    json_object_set_new(j, "v_head_dim", json_integer(m->v_dim ? m->v_dim : m->nope_dim));
    json_object_set_new(j, "rope_interleave", json_true());
    /* No layer has experts; the rest are the smallest numbers that the class takes. */
    static const char *const one[] = {"n_routed_experts", "n_shared_experts", "num_experts_per_tok",
                                      "n_group",          "topk_group",       "moe_intermediate_size"};
    json_object_set_new(j, "first_k_dense_replace", json_integer(c->layers));
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) json_object_set_new(j, one[i], json_integer(1));
    json_object_set_new(j, "num_nextn_predict_layers", json_integer(0));
}

static const char *const keys[] = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                   "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings",
                                   "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
                                   "original_max_position_embeddings", "rope_interleave", "attention_bias", "mlp_bias",
                                   "layer_types", "partial_rotary_factor", "pretraining_tp", "q_lora_rank",
                                   "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim",
                                   "first_k_dense_replace",
                                   /* of experts, which no layer has */
                                   "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "num_local_experts",
                                   "num_experts", "n_group", "topk_group", "moe_intermediate_size", "moe_layer_freq",
                                   "ep_size", "routed_scaling_factor", "norm_topk_prob", "topk_method", "scoring_func",
                                   "aux_loss_alpha", "seq_aux", "num_nextn_predict_layers", NULL};
const HfType hf_deepseek = {"deepseek_v3", settings, hf_is_deepseek, deepseek_json, keys,
                            NULL,          NULL,     NULL,           NULL,          false};
