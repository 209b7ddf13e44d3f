/* hf_bailing.c: the model type bailing_hybrid: layers of Kimi Delta Attention with full projections of their gates, and
 * after each group of them one of latent attention with a gate for each head; dense and sparse feed-forward parts.
 * Source of fields, defaults and meaning: transformers configuration_bailing_hybrid and modeling_bailing_hybrid. */
#include "layers/kda/kda.h"
#include "hf_file.h"
#include "hf_kimi.h"

typedef struct {
    HfShape s;
    KdaCfg k; /* heads, head_dim, conv, gate, bound */
    bool full[LAYERS_MAX];
    int nfull;
} BailingShape;

#define AT(member) offsetof(HfShape, member)
static const HfKey table[] = {{"vocab_size", HF_WHOLE, AT(V), 1, HF_NEEDED, NULL},
                              {"hidden_size", HF_WHOLE, AT(d), 1, HF_NEEDED, NULL},
                              {"intermediate_size", HF_WHOLE, AT(F), 1, HF_NEEDED, NULL},
                              {"num_hidden_layers", HF_WHOLE, AT(layers), 1, HF_NEEDED, NULL},
                              {"max_position_embeddings", HF_WHOLE, AT(P), 1, 262144, "model_max_length"},
                              {"rms_norm_eps", HF_REAL, AT(eps), 1, 1e-6, NULL},
                              {"initializer_range", HF_REAL, AT(std), 0, 0.02, NULL},
                              {"tie_word_embeddings", HF_FLAG, AT(tied), 0, 0, NULL},
                              {"num_attention_heads", HF_WHOLE, AT(mla.heads), 1, HF_NEEDED, NULL},
                              {"kv_lora_rank", HF_WHOLE, AT(mla.kv_rank), 1, HF_NEEDED, NULL},
                              {"qk_nope_head_dim", HF_WHOLE, AT(mla.nope_dim), 1, HF_NEEDED, NULL},
                              {"qk_rope_head_dim", HF_WHOLE, AT(mla.rope_dim), 2, HF_NEEDED, NULL},
                              {"v_head_dim", HF_WHOLE, AT(mla.v_dim), 1, HF_NEEDED, NULL},
                              {"attention_bias", HF_FLAG, AT(mla.a_bias), 0, 0, NULL},
                              {0}};
static const HfKey experts[] = {{"num_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_local_experts"},
                                {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, 8, "num_experts_per_token"},
                                {"num_shared_experts", HF_WHOLE, AT(moe.shared), 1, 1, "n_shared_experts"},
                                {"n_group", HF_WHOLE, AT(moe.groups), 1, 8, "num_expert_group"},
                                {"topk_group", HF_WHOLE, AT(moe.top_groups), 1, 4, NULL},
                                {"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},
                                {"routed_scaling_factor", HF_REAL, AT(moe.scale), 1, 2.5, NULL},
                                {"norm_topk_prob", HF_FLAG, AT(moe.norm_topk), 0, 1, "moe_renormalize"},
                                {0}};
#undef AT

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Layers of latents end groups of layer_group_size, unless layer_types lists them: transformers saves both, the group
 * with its default value where it says something else. So it does with mlp_layer_types and first_k_dense_replace. */
static bool bailing_layers(const HfFile *f, BailingShape *x) {
    const int L = x->s.layers;
    int group;
    if (!hf_whole(f, "layer_group_size", 1, 6, &group)) return false;
    for (int l = 0; l < L; l++) x->full[l] = (l + 1) % group == 0;
    if (!hf_texts(f, "layer_types", L, "full_attention", "linear_attention", x->full)) return false;
    for (int l = 0; l < L; l++) x->nfull += x->full[l];
    return true;
}
/* head_dim is that of the layers with a state. A file that transformers has saved gives it as linear_head_dim, and the
 * width of the rotated keys as head_dim. */
static bool bailing_states(const HfFile *f, BailingShape *x) {
    const bool renamed = hf_given(f->j, "linear_head_dim");
    bool safe;
    if (!hf_whole(f, renamed ? "linear_head_dim" : "head_dim", 1, 128, &x->k.head_dim) ||
        !hf_whole(f, "linear_num_heads", 1, x->s.mla.heads, &x->k.heads) ||
        !hf_whole(f, hf_given(f->j, "linear_conv_kernel_dim") ? "linear_conv_kernel_dim" : "short_conv_kernel_size", 1,
                  4, &x->k.conv) ||
        !hf_flag_or(f, "kda_safe_gate", true, &safe))
        return false;
    const json_t *bound = json_object_get(f->j, "kda_lower_bound");
    x->k.gate = safe ? KDA_LOWER_BOUND : KDA_STANDARD;
    x->k.bound = json_is_number(bound) ? json_number_value(bound) : -5;
    if (!hf_given(f->j, "kda_lower_bound") || (json_is_number(bound) && x->k.bound < 0)) return true;
    return json_is_number(bound)
               ? err_input(f->e, "%s: \"kda_lower_bound\": expected a number below 0, found %g", f->path, x->k.bound)
               : err_input(f->e, "%s: \"kda_lower_bound\": expected a number below 0, found %.40s", f->path,
                           hf_found(bound));
}
static bool bailing_read(const HfFile *f, BailingShape *x) {
    HfShape *s = &x->s;
    int groups;
    if (!hf_musts_met(f, hf_bailing_hybrid.musts) || !hf_supported(&hf_bailing_hybrid, f) ||
        !hf_keys_read(f, table, s) || !hf_whole(f, "num_key_value_heads", 1, s->mla.heads, &groups) ||
        !hf_whole(f, "q_lora_rank", 1, 0, &s->mla.q_rank))
        return false;
    s->mla.o_bias = s->mla.a_bias, s->mla.out_gate = true;
    if (groups != s->mla.heads)
        return err_input(f->e, "%s: \"num_key_value_heads\": expected num_attention_heads (%d), found %d", f->path,
                         s->mla.heads, groups);
    if (s->layers > LAYERS_MAX)
        return err_input(f->e, "%s: \"num_hidden_layers\": expected at most %d layers, found %d", f->path, LAYERS_MAX,
                         s->layers);
    return bailing_layers(f, x) && bailing_states(f, x) && hf_kimi_feeds(f, experts, 2, false, s);
}
static json_t *bailing_settings(const HfFile *f) {
    BailingShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    json_t *j = NULL;
    s->rope = json_object();
    if (bailing_read(f, x) && hf_rope_read(f, 6000000, s->rope)) {
        json_t *kinds = json_object(), *pattern = json_array(), *ffn = json_object(), *parts = json_array();
        json_object_set_new(s->rope, "interleaved", json_true());
        if (x->nfull) json_object_set_new(kinds, "latent", hf_mla_json(s));
        if (x->nfull < s->layers)
            json_object_set_new(kinds, "delta",
                                json_pack("{ss si si si ss sf ss ss}", "mixer", "kda", "heads", x->k.heads, "head_dim",
                                          x->k.head_dim, "conv", x->k.conv, "gate",
                                          x->k.gate == KDA_STANDARD ? "standard" : "lower_bound", "bound", x->k.bound,
                                          "gate_proj", "full", "out_gate", "full"));
        if (s->nsparse) json_object_set_new(ffn, "experts", hf_moe_json(s));
        if (s->nsparse < s->layers)
            json_object_set_new(ffn, "dense", json_pack("{ss si}", "kind", "swiglu", "hidden", s->F));
        for (int l = 0; l < s->layers; l++) {
            json_array_append_new(pattern, json_string(x->full[l] ? "latent" : "delta"));
            json_array_append_new(parts, json_string(s->sparse[l] ? "experts" : "dense"));
        }
        j = json_pack("{si si si si sf sf sb so so so so}", "d_model", s->d, "layers", s->layers, "vocab", s->V,
                      "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "tied", s->tied, "kinds", kinds,
                      "pattern", pattern, "ffn", ffn, "ffn_pattern", parts);
    }
    json_decref(s->rope);
    free(x);
    return j;
}

/* ---- which models it holds, writing ------------------------------------------------------------------------------ */

static bool bailing_kda(const KdaCfg *k, BailingShape *x, const char **why) {
    if (k->v_heads && k->v_heads != k->heads) return hf_no(why, "v_heads");
    if (k->kv_heads && k->kv_heads != k->heads) return hf_no(why, "kv_heads");
    if (k->v_dim && k->v_dim != k->head_dim) return hf_no(why, "v_dim");
    if (k->gate_proj != KDA_FULL) return hf_no(why, "gate_proj: low_rank");
    if (k->out_gate != KDA_FULL || k->out_act != KDA_SIGMOID || k->out_bias)
        return hf_no(why, "out_gate, out_act or out_bias");
    if (!k->conv || k->conv_bias) return hf_no(why, "no convolution, or conv_bias");
    if (k->beta_max != 1) return hf_no(why, "beta_max");
    if (k->erase != KDA_BY_HEAD) return hf_no(why, "erase: channel");
    if (k->levels) return hf_no(why, "kda with levels");
    if (x->k.heads && (x->k.heads != k->heads || x->k.head_dim != k->head_dim || x->k.conv != k->conv ||
                       x->k.gate != k->gate || x->k.bound != k->bound))
        return hf_no(why, "layers of several kinds");
    x->k = *k;
    return true;
}
static bool bailing_shape(const ModelCfg *c, BailingShape *x, const char **why) {
    HfShape *s = &x->s;
    if (!hf_plain(c, why)) return false;
    if (c->norm != NORM_RMS || c->positions != POSITIONS_NONE || c->parallel)
        return hf_no(why, "another norm, positions or parallel");
    for (int l = 0; l < c->layers; l++) {
        const Kind *k = &c->kind[c->pattern[l]];
        if (c->kv_from[l] != l) return hf_no(why, "kv_from");
        x->full[l] = k->mixer == mixer_find("mla");
        if (x->full[l]) {
            const MlaCfg *m = k->cfg;
            if (!m->out_gate) return hf_no(why, "latent attention without out_gate");
            if (m->rope.type == ROPE_NONE || !m->rope.interleaved)
                return hf_no(why, "latent attention without a rotation, or one that is not interleaved");
            if (!hf_kimi_latent(m, !x->nfull++, s, why)) return false;
            continue;
        }
        if (k->mixer != mixer_find("kda")) return hf_no(why, "another mixer");
        KdaCfg kda;
        memcpy(&kda, k->cfg, sizeof kda);
        if (!kda.head_dim) kda.head_dim = c->d_model / kda.heads;
        if (!bailing_kda(&kda, x, why)) return false;
    }
    if (!x->nfull || x->nfull == c->layers) return hf_no(why, "layers of one mixer alone");
    if (x->k.heads != s->mla.heads) return hf_no(why, "heads of kda and of mla that differ in number");
    if (!hf_decoder_feeds(&hf_bailing_hybrid, c, s, why) || !hf_kimi_experts(s, why)) return false;
    s->d = c->d_model, s->layers = c->layers, s->V = c->vocab, s->P = c->max_positions;
    s->eps = c->norm_eps, s->std = c->init_std, s->tied = c->tied;
    return !s->tied || hf_no(why, "a tied head");
}
static bool bailing_is(const ModelCfg *c, const char **why) {
    BailingShape *x = xcalloc(1, sizeof *x);
    const bool ok = bailing_shape(c, x, why);
    free(x);
    return ok;
}
static void bailing_json(json_t *j, const ModelCfg *c) {
    BailingShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    CHECK(bailing_shape(c, x, NULL), "bailing_hybrid");
    json_t *layers = json_array(), *feeds = json_array();
    for (int l = 0; l < c->layers; l++) {
        json_array_append_new(layers, json_string(x->full[l] ? "full_attention" : "linear_attention"));
        json_array_append_new(feeds, json_string(s->sparse[l] ? "sparse" : "dense"));
    }
    json_object_set_new(j, "architectures", json_pack("[s]", hf_bailing_hybrid.architecture));
    json_object_set_new(j, "model_type", json_string(hf_bailing_hybrid.type));
    hf_keys_write(j, table, s);
    hf_keys_write(j, experts, s);
    json_object_set_new(j, "num_key_value_heads", json_integer(s->mla.heads));
    json_object_set_new(j, "q_lora_rank", s->mla.q_rank ? json_integer(s->mla.q_rank) : json_null());
    json_object_set_new(j, "rope_theta", json_real(s->mla.rope.theta));
    json_object_set_new(j, "rope_scaling", hf_rope_json(&s->mla.rope, c->max_positions));
    json_object_set_new(j, "head_dim", json_integer(x->k.head_dim));
    json_object_set_new(j, "short_conv_kernel_size", json_integer(x->k.conv));
    json_object_set_new(j, "kda_safe_gate", json_boolean(x->k.gate == KDA_LOWER_BOUND));
    json_object_set_new(j, "kda_lower_bound", json_real(x->k.bound));
    json_object_set_new(j, "layer_types", layers);
    json_object_set_new(j, "mlp_layer_types", feeds);
    json_object_set_new(j, "hidden_act", json_string("silu"));
    json_object_set_new(j, "num_nextn_predict_layers", json_integer(0));
    json_object_set_new(j, "pad_token_id", json_null()); /* not the class's id, which a small vocabulary lacks */
    json_object_set_new(j, "use_cache", json_true());
    free(x);
}

/* ---- the type ---------------------------------------------------------------------------------------------------- */

/* mtp_loss_scaling_factor is of training alone. */
static const char *const keys[] = {"vocab_size",
                                   "hidden_size",
                                   "intermediate_size",
                                   "num_hidden_layers",
                                   "max_position_embeddings",
                                   "model_max_length",
                                   "rms_norm_eps",
                                   "num_attention_heads",
                                   "num_key_value_heads",
                                   HF_LATENT_KEYS,
                                   "attention_bias",
                                   "num_experts",
                                   "num_local_experts",
                                   "num_experts_per_token",
                                   "num_experts_per_tok",
                                   "num_shared_experts",
                                   "n_shared_experts",
                                   "num_expert_group",
                                   "n_group",
                                   "topk_group",
                                   "moe_intermediate_size",
                                   "routed_scaling_factor",
                                   "moe_renormalize",
                                   "norm_topk_prob",
                                   "first_k_dense_replace",
                                   "layer_types",
                                   "mlp_layer_types",
                                   "layer_group_size",
                                   "linear_head_dim",
                                   "linear_num_heads",
                                   "linear_conv_kernel_dim",
                                   "short_conv_kernel_size",
                                   "kda_safe_gate",
                                   "kda_lower_bound",
                                   "hidden_act",
                                   "head_dim",
                                   "rope_theta",
                                   "rope_parameters",
                                   "rope_scaling",
                                   "pretraining_tp",
                                   "num_nextn_predict_layers",
                                   "num_mtp_layers",
                                   "mtp_loss_scaling_factor",
                                   "output_router_logits",
                                   NULL};
static const HfMust musts[] = {{"tie_word_embeddings", "false"}, {0}}; /* its class does not tie the head */
static const HfName names[] = {{.ours = "model.embed_tokens.",
                                .theirs = "model.word_embeddings.",
                                .also = "model.embed_tokens."},
                               {.ours = "self_attn.o_proj.", .theirs = "attention.dense.", .also = "self_attn.o_proj."},
                               {.ours = "self_attn.", .theirs = "attention.", .also = "self_attn."},
                               {.ours = "mlp.gate.e_score_correction_bias",
                                .theirs = "mlp.gate.expert_bias",
                                .also = "mlp.gate.e_score_correction_bias"},
                               {0}};
const HfType hf_bailing_hybrid = {.type = "bailing_hybrid",
                                  .architecture = "BailingHybridForCausalLM",
                                  .about = "Ling 3: Kimi Delta Attention, gated latent attention, experts",
                                  .keys = keys,
                                  .musts = musts,
                                  .extra = "num_nextn_predict_layers",
                                  .experts = true,
                                  .settings = bailing_settings,
                                  .is = bailing_is,
                                  .json = bailing_json,
                                  .names = names};
