/* hf_kimi.c: the model type kimi_linear: layers of Kimi Delta Attention and of latent attention without rotation, with
 * dense and sparse feed-forward parts. Source of fields, defaults and meaning: transformers configuration_kimi_linear
 * and modeling_kimi_linear, and the config.json of Kimi-Linear-48B-A3B. */
#include "layers/kda/kda.h"
#include "hf_file.h"
#include "hf_kimi.h"

typedef struct {
    HfShape s;
    KdaCfg k; /* heads, head_dim, conv */
    bool full[LAYERS_MAX];
    int nfull;
} KimiShape;

#define AT(member) offsetof(HfShape, member)
static const HfKey table[] = {{"hidden_size", HF_WHOLE, AT(d), 1, HF_NEEDED, NULL},
                              {"intermediate_size", HF_WHOLE, AT(F), 1, HF_NEEDED, NULL},
                              {"num_hidden_layers", HF_WHOLE, AT(layers), 1, HF_NEEDED, NULL},
                              {"vocab_size", HF_WHOLE, AT(V), 1, HF_NEEDED, NULL},
                              {"model_max_length", HF_WHOLE, AT(P), 1, 1048576, "max_position_embeddings"},
                              {"rms_norm_eps", HF_REAL, AT(eps), 1, 1e-5, NULL},
                              {"initializer_range", HF_REAL, AT(std), 0, 0.02, NULL},
                              {"tie_word_embeddings", HF_FLAG, AT(tied), 0, 0, NULL},
                              {"num_attention_heads", HF_WHOLE, AT(mla.heads), 1, HF_NEEDED, NULL},
                              {"kv_lora_rank", HF_WHOLE, AT(mla.kv_rank), 1, HF_NEEDED, NULL},
                              {"qk_nope_head_dim", HF_WHOLE, AT(mla.nope_dim), 1, HF_NEEDED, NULL},
                              {"qk_rope_head_dim", HF_WHOLE, AT(mla.rope_dim), 1, HF_NEEDED, NULL},
                              {"v_head_dim", HF_WHOLE, AT(mla.v_dim), 1, HF_NEEDED, NULL},
                              {"attention_bias", HF_FLAG, AT(mla.a_bias), 0, 0, NULL},
                              {0}};
static const HfKey experts[] = {{"num_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_local_experts"},
                                {"num_experts_per_token", HF_WHOLE, AT(moe.top_k), 1, HF_NEEDED, "num_experts_per_tok"},
                                {"num_shared_experts", HF_WHOLE, AT(moe.shared), 1, 1, "n_shared_experts"},
                                {"num_expert_group", HF_WHOLE, AT(moe.groups), 1, 1, "n_group"},
                                {"topk_group", HF_WHOLE, AT(moe.top_groups), 1, 1, NULL},
                                {"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},
                                {"routed_scaling_factor", HF_REAL, AT(moe.scale), 1, 2.446, NULL},
                                {"moe_renormalize", HF_FLAG, AT(moe.norm_topk), 0, 1, "norm_topk_prob"},
                                {0}};
#undef AT

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Mark the layers of a list that counts from 1. */
static bool kimi_numbers(const HfFile *f, const json_t *in, const char *key, int layers, char mark, char *out) {
    const json_t *list = json_object_get(in, key);
    if (!json_is_array(list)) return err_input(f->e, "%s: linear_attn_config: \"%s\": expected a list", f->path, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const long long n = json_is_integer(v) ? json_integer_value(v) : 0;
        if (n < 1 || n > layers)
            return err_input(f->e, "%s: linear_attn_config: \"%s\": expected layers 1 to %d, which count from 1",
                             f->path, key, layers);
        if (out[n - 1])
            return err_input(f->e, "%s: linear_attn_config: layer %lld is twice in kda_layers and full_attn_layers",
                             f->path, n);
        out[n - 1] = mark;
    }
    return true;
}
/* Sizes and layers of KDA. Without any list transformers and the published models disagree about the layers. */
static bool kimi_layers(const HfFile *f, KimiShape *x) {
    static const char *const known[] = {"kda_layers", "full_attn_layers", "num_heads", "head_dim",
                                        "short_conv_kernel_size"};
    const json_t *in = json_object_get(f->j, "linear_attn_config");
    const bool packed = hf_given(f->j, "linear_attn_config"), listed = hf_given(f->j, "layer_types");
    const int L = x->s.layers;
    char mark[LAYERS_MAX] = {0};
    const char *key;
    json_t *v;
    if (packed && !json_is_object(in))
        return err_input(f->e, "%s: \"linear_attn_config\": expected an object", f->path);
    json_object_foreach((json_t *)in, key, v) {
        bool ok = json_is_null(v) || json_is_false(v);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) ok |= !strcmp(key, known[i]);
        if (!ok) return err_input(f->e, "%s: linear_attn_config: \"%.60s\" is not supported", f->path, key);
    }
    const HfFile g = {f->path, packed ? in : f->j, f->e};
    if (!hf_whole(&g, packed ? "num_heads" : "linear_num_heads", 1, packed ? HF_NEEDED : 32, &x->k.heads) ||
        !hf_whole(&g, packed ? "head_dim" : "linear_head_dim", 1, packed ? HF_NEEDED : 128, &x->k.head_dim) ||
        !hf_whole(&g, packed ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 1, 4, &x->k.conv) ||
        !hf_texts(f, "layer_types", L, "full_attention", "linear_attention", x->full))
        return false;
    const bool numbered = hf_given(in, "kda_layers") || hf_given(in, "full_attn_layers");
    if (!numbered && !listed)
        return err_input(
            f->e,
            "%s: no \"layer_types\" and no kda_layers and full_attn_layers in \"linear_attn_config\": which "
            "layers are full attention is not known; add one of them",
            f->path);
    if (numbered &&
        (!kimi_numbers(f, in, "kda_layers", L, 'k', mark) || !kimi_numbers(f, in, "full_attn_layers", L, 'f', mark)))
        return false;
    for (int l = 0; numbered && l < L; l++) {
        if (!mark[l])
            return err_input(f->e, "%s: linear_attn_config: layer %d is in neither kda_layers nor full_attn_layers",
                             f->path, l + 1);
        if (listed && x->full[l] != (mark[l] == 'f'))
            return err_input(f->e, "%s: \"layer_types\" and \"linear_attn_config\" differ at layer %d; remove one",
                             f->path, l + 1);
        x->full[l] = mark[l] == 'f';
    }
    for (int l = 0; l < L; l++) x->nfull += x->full[l];
    return true;
}
bool hf_kimi_feeds(const HfFile *f, const HfKey *keys_of, int first, bool alike, HfShape *s) {
    if (!hf_whole(f, "first_k_dense_replace", 0, first, &first)) return false;
    for (int l = 0; l < s->layers; l++) s->sparse[l] = l >= first;
    bool listed[LAYERS_MAX];
    memcpy(listed, s->sparse, sizeof listed);
    if (!hf_texts(f, "mlp_layer_types", s->layers, "sparse", "dense", listed)) return false;
    if (alike && hf_given(f->j, "first_k_dense_replace") && memcmp(listed, s->sparse, sizeof listed))
        return err_input(f->e, "%s: \"mlp_layer_types\" and \"first_k_dense_replace\" differ; remove one", f->path);
    memcpy(s->sparse, listed, sizeof listed);
    for (int l = 0; l < s->layers; l++) s->nsparse += s->sparse[l];
    if (!s->nsparse) return true;
    s->moe.router = ROUTER_SIGMOID, s->moe.bias_balance = true;
    return hf_keys_read(f, keys_of, s) &&
           (s->moe.experts / s->moe.groups > 1 ||
            err_input(f->e, "%s: \"num_expert_group\": expected groups of two experts at least, found %d of %d experts",
                      f->path, s->moe.groups, s->moe.experts));
}
static bool kimi_read(const HfFile *f, KimiShape *x) {
    HfShape *s = &x->s;
    int groups;
    if (!hf_musts_met(f, hf_kimi_linear.musts) || !hf_supported(&hf_kimi_linear, f) || !hf_keys_read(f, table, s) ||
        !hf_whole(f, "num_key_value_heads", 1, s->mla.heads, &groups) ||
        !hf_whole(f, "q_lora_rank", 1, 0, &s->mla.q_rank))
        return false;
    s->mla.o_bias = s->mla.a_bias;
    if (groups != s->mla.heads)
        return err_input(f->e, "%s: \"num_key_value_heads\": expected num_attention_heads (%d), found %d", f->path,
                         s->mla.heads, groups);
    if (s->layers > LAYERS_MAX)
        return err_input(f->e, "%s: \"num_hidden_layers\": expected at most %d layers, found %d", f->path, LAYERS_MAX,
                         s->layers);
    return kimi_layers(f, x) && hf_kimi_feeds(f, experts, 1, true, s);
}
static json_t *kimi_settings(const HfFile *f) {
    KimiShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    json_t *j = NULL;
    if (kimi_read(f, x)) {
        s->rope = json_string("none");
        json_t *kinds = json_object(), *pattern = json_array(), *ffn = json_object(), *parts = json_array();
        if (x->nfull) json_object_set_new(kinds, "latent", hf_mla_json(s));
        if (x->nfull < s->layers)
            json_object_set_new(kinds, "delta",
                                json_pack("{ss si si si ss}", "mixer", "kda", "heads", x->k.heads, "head_dim",
                                          x->k.head_dim, "conv", x->k.conv, "gate", "standard"));
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
        json_decref(s->rope);
    }
    free(x);
    return j;
}

/* ---- which models it holds, writing ------------------------------------------------------------------------------ */

static bool kimi_kda(const KdaCfg *k, KimiShape *x, const char **why) {
    const int K = k->head_dim;
    if (k->v_heads && k->v_heads != k->heads) return hf_no(why, "v_heads");
    if (k->kv_heads && k->kv_heads != k->heads) return hf_no(why, "kv_heads");
    if (k->v_dim && k->v_dim != K) return hf_no(why, "v_dim");
    if (k->gate != KDA_STANDARD) return hf_no(why, "gate: lower_bound");
    if (k->gate_proj != KDA_LOW_RANK || (k->gate_rank && k->gate_rank != K))
        return hf_no(why, "gate_proj or gate_rank");
    if (k->out_gate != KDA_LOW_RANK || (k->out_rank && k->out_rank != K) || k->out_act != KDA_SIGMOID || k->out_bias)
        return hf_no(why, "out_gate, out_rank, out_act or out_bias");
    if (!k->conv || k->conv_bias) return hf_no(why, "no convolution, or conv_bias");
    if (k->beta_max != 1) return hf_no(why, "beta_max");
    if (k->erase != KDA_BY_HEAD) return hf_no(why, "erase: channel");
    if (k->levels) return hf_no(why, "kda with levels");
    if (x->k.heads && (x->k.heads != k->heads || x->k.head_dim != K || x->k.conv != k->conv))
        return hf_no(why, "layers of several kinds");
    x->k.heads = k->heads, x->k.head_dim = K, x->k.conv = k->conv;
    return true;
}
bool hf_kimi_latent(const MlaCfg *m, bool first, HfShape *s, const char **why) {
    const MlaCfg *old = &s->mla;
    if (!m->heads) return hf_no(why, "a layer without queries");
    if (!m->nope_dim || !m->rope_dim || m->rope_heads != 1) return hf_no(why, "latent attention without a key for all");
    if (m->window || m->sinks) return hf_no(why, "a window");
    if (m->evict) return hf_no(why, "evict");
    if (!m->latent_norm || (m->q_rank && !m->q_latent_norm)) return hf_no(why, "a latent without its norm");
    if (m->a_bias != m->o_bias || m->q_bias) return hf_no(why, "q_bias, or a_bias without o_bias, or the reverse");
    if (!first && (old->heads != m->heads || old->kv_rank != m->kv_rank || old->q_rank != m->q_rank ||
                   old->nope_dim != m->nope_dim || old->rope_dim != m->rope_dim || old->a_bias != m->a_bias ||
                   old->v_dim != (m->v_dim ? m->v_dim : m->nope_dim) || memcmp(&old->rope, &m->rope, sizeof m->rope)))
        return hf_no(why, "layers of several kinds");
    memcpy(&s->mla, m, sizeof *m); /* with the bytes between its members, which are compared */
    if (!m->v_dim) s->mla.v_dim = m->nope_dim;
    return true;
}
static bool kimi_latent(const MlaCfg *m, KimiShape *x, const char **why) {
    if (m->rope.type != ROPE_NONE) return hf_no(why, "latent attention with a rotation");
    if (m->out_gate) return hf_no(why, "out_gate of latent attention");
    return hf_kimi_latent(m, !x->nfull++, &x->s, why);
}
bool hf_kimi_experts(HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    if (!s->nsparse) return hf_no(why, "no layer with experts");
    if (m->router != ROUTER_SIGMOID || !m->bias_balance) return hf_no(why, "a router by softmax, or no bias_balance");
    if (!m->shared || m->shared_hidden || m->shared_gate)
        return hf_no(why, "no shared expert, or shared_hidden or shared_gate");
    if (!s->F) s->F = m->hidden; /* no layer has this width */
    return m->experts / m->groups >= 2 || hf_no(why, "groups of one expert");
}
static bool kimi_shape(const ModelCfg *c, KimiShape *x, const char **why) {
    HfShape *s = &x->s;
    if (!hf_plain(c, why)) return false;
    if (c->norm != NORM_RMS || c->positions != POSITIONS_NONE || c->parallel)
        return hf_no(why, "another norm, positions or parallel");
    for (int l = 0; l < c->layers; l++) {
        const Kind *k = &c->kind[c->pattern[l]];
        if (c->kv_from[l] != l) return hf_no(why, "kv_from");
        x->full[l] = k->mixer == mixer_find("mla");
        if (!x->full[l] && k->mixer != mixer_find("kda")) return hf_no(why, "another mixer");
        KdaCfg kda;
        if (!x->full[l]) {
            memcpy(&kda, k->cfg, sizeof kda);
            if (!kda.head_dim) kda.head_dim = c->d_model / kda.heads;
        }
        if (x->full[l] ? !kimi_latent(k->cfg, x, why) : !kimi_kda(&kda, x, why)) return false;
    }
    if (!x->nfull || x->nfull == c->layers) return hf_no(why, "layers of one mixer alone");
    if (!hf_decoder_feeds(&hf_kimi_linear, c, s, why)) return false;
    if (!hf_kimi_experts(s, why)) return false;
    s->d = c->d_model, s->layers = c->layers, s->V = c->vocab, s->P = c->max_positions;
    s->eps = c->norm_eps, s->std = c->init_std, s->tied = c->tied;
    return !s->tied || hf_no(why, "a tied head");
}
static bool kimi_is(const ModelCfg *c, const char **why) {
    KimiShape *x = xcalloc(1, sizeof *x);
    bool ok = kimi_shape(c, x, why);
    free(x);
    return ok;
}
static void kimi_json(json_t *j, const ModelCfg *c) {
    KimiShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    CHECK(kimi_shape(c, x, NULL), "kimi_linear");
    json_t *kda = json_array(), *full = json_array(), *feeds = json_array();
    for (int l = 0; l < c->layers; l++) {
        json_array_append_new(x->full[l] ? full : kda, json_integer(l + 1));
        json_array_append_new(feeds, json_string(s->sparse[l] ? "sparse" : "dense"));
    }
    json_object_set_new(j, "architectures", json_pack("[s]", hf_kimi_linear.architecture));
    json_object_set_new(j, "model_type", json_string(hf_kimi_linear.type));
    hf_keys_write(j, table, s);
    hf_keys_write(j, experts, s);
    json_object_set_new(j, "num_key_value_heads", json_integer(s->mla.heads));
    json_object_set_new(j, "q_lora_rank", s->mla.q_rank ? json_integer(s->mla.q_rank) : json_null());
    json_object_set_new(j, "mla_use_nope", json_true());
    json_object_set_new(j, "hidden_act", json_string("silu"));
    json_object_set_new(j, "moe_router_activation_func", json_string("sigmoid"));
    json_object_set_new(j, "mlp_layer_types", feeds);
    json_object_set_new(j, "linear_attn_config",
                        json_pack("{so so si si si}", "kda_layers", kda, "full_attn_layers", full, "num_heads",
                                  x->k.heads, "head_dim", x->k.head_dim, "short_conv_kernel_size", x->k.conv));
    json_object_set_new(j, "pad_token_id", json_null()); /* not the class's id, which a small vocabulary lacks */
    json_object_set_new(j, "use_cache", json_true());
    free(x);
}

/* ---- the type ---------------------------------------------------------------------------------------------------- */

/* head_dim, qk_head_dim and rope_theta have no effect: no layer has a rotation. */
static const char *const keys[] = {"hidden_size",
                                   "intermediate_size",
                                   "num_hidden_layers",
                                   "model_max_length",
                                   "max_position_embeddings",
                                   "rms_norm_eps",
                                   "num_attention_heads",
                                   "num_key_value_heads",
                                   "kv_lora_rank",
                                   "q_lora_rank",
                                   "qk_nope_head_dim",
                                   "qk_rope_head_dim",
                                   "v_head_dim",
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
                                   "linear_attn_config",
                                   "linear_head_dim",
                                   "linear_num_heads",
                                   "linear_conv_kernel_dim",
                                   "hidden_act",
                                   "head_dim",
                                   "qk_head_dim",
                                   "rope_theta",
                                   "pretraining_tp",
                                   "output_router_logits",
                                   NULL};
/* Its class does not tie the head, whatever that key says. */
static const HfMust musts[] = {{"tie_word_embeddings", "false"},
                               {"mla_use_nope", "true"},
                               {"moe_router_activation_func", "\"sigmoid\""},
                               {"moe_layer_freq", "1"},
                               {"use_grouped_topk", "true"},
                               {"num_nextn_predict_layers", "0"},
                               {0}};
/* transformers renames the dense parts as well when it saves a model; published files have mlp. */
static const HfName names[] = {
    {.ours = "mlp.gate_proj.", .theirs = "mlp.gate_proj.", .also = "block_sparse_moe.gate_proj."},
    {.ours = "mlp.up_proj.", .theirs = "mlp.up_proj.", .also = "block_sparse_moe.up_proj."},
    {.ours = "mlp.down_proj.", .theirs = "mlp.down_proj.", .also = "block_sparse_moe.down_proj."},
    {.ours = "mlp.experts.*.gate_proj.", .theirs = "block_sparse_moe.experts.*.w1."},
    {.ours = "mlp.experts.*.up_proj.", .theirs = "block_sparse_moe.experts.*.w3."},
    {.ours = "mlp.experts.*.down_proj.", .theirs = "block_sparse_moe.experts.*.w2."},
    {.ours = "mlp.gate.", .theirs = "block_sparse_moe.gate."},
    {.ours = "mlp.shared_experts.", .theirs = "block_sparse_moe.shared_experts."},
    {.ours = "self_attn.A_log", .theirs = "self_attn.A_log", .deep = true},
    {0}};
const HfType hf_kimi_linear = {.type = "kimi_linear",
                               .architecture = "KimiLinearForCausalLM",
                               .about =
                                   "Kimi Linear: Kimi Delta Attention and latent attention without rotation, experts",
                               .keys = keys,
                               .musts = musts,
                               .experts = true,
                               .settings = kimi_settings,
                               .is = kimi_is,
                               .json = kimi_json,
                               .names = names};
