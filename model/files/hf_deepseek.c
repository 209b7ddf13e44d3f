/* hf_deepseek.c: the model types deepseek_v3 and deepseek_v2. Source of fields, defaults and meaning: transformers
 * configuration_deepseek_v3 and modeling_deepseek_v3, and those of deepseek_v2. */
#include "hf_file.h"

#define AT(member) offsetof(HfShape, member)

bool hf_latents_read(const HfFile *f, HfShape *s) {
    int groups, head_dim;
    MlaCfg *m = &s->mla;
    if (!hf_plain_layers(f) || !hf_whole(f, "kv_lora_rank", 1, -1, &m->kv_rank) ||
        !hf_whole(f, "qk_nope_head_dim", 1, -1, &m->nope_dim) ||
        !hf_whole(f, "qk_rope_head_dim", 2, -1, &m->rope_dim) || !hf_whole(f, "v_head_dim", 1, -1, &m->v_dim) ||
        !hf_whole(f, "num_key_value_heads", 1, m->heads, &groups) ||
        !hf_whole(f, "head_dim", 1, m->rope_dim, &head_dim))
        return false;
    if (groups != m->heads)
        return err_input(f->e, "%s: \"num_key_value_heads\": expected num_attention_heads (%d), found %d", f->path,
                         m->heads, groups);
    /* The rotation of transformers uses head_dim. */
    if (head_dim != m->rope_dim)
        return err_input(f->e, "%s: \"head_dim\": expected qk_rope_head_dim (%d), found %d", f->path, m->rope_dim,
                         head_dim);
    json_object_set_new(s->rope, "interleaved", json_true());
    /* null says that there is no such latent; absent means 1536 to transformers, and is more likely an oversight */
    return json_is_null(json_object_get(f->j, "q_lora_rank")) || hf_whole(f, "q_lora_rank", 1, -1, &m->q_rank);
}
/* The latents, and which layers have experts: those from first_k_dense_replace on. */
static bool deepseek_read(const HfFile *f, HfShape *s, int first) {
    if (!hf_latents_read(f, s) || !hf_whole(f, "first_k_dense_replace", 0, first, &first)) return false;
    for (int l = first; l < s->layers; l++) s->sparse[l] = true, s->nsparse++;
    return true;
}
/* What both types ask of a model. */
static bool deepseek_holds(const HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    const int first = s->layers - s->nsparse;
    /* transformers has a setting for it; vLLM and SGLang silently assume interleaved */
    if (!s->mla.rope.interleaved) return hf_no(why, "rotation that is not interleaved");
    if (!s->nsparse) return true;
    for (int l = 0; l < s->layers; l++)
        if (s->sparse[l] != (l >= first)) return hf_no(why, "a layer without experts after one with them");
    if (!m->shared) return hf_no(why, "no shared expert");
    return !(m->shared_hidden || m->shared_gate) || hf_no(why, "shared_hidden or shared_gate");
}
void hf_latents_write(json_t *j, const HfShape *s) {
    const MlaCfg *m = &s->mla;
    json_object_set_new(j, "q_lora_rank", m->q_rank ? json_integer(m->q_rank) : json_null());
    json_object_set_new(j, "kv_lora_rank", json_integer(m->kv_rank));
    json_object_set_new(j, "qk_nope_head_dim", json_integer(m->nope_dim));
    json_object_set_new(j, "qk_rope_head_dim", json_integer(m->rope_dim));
    json_object_set_new(j, "v_head_dim", json_integer(m->v_dim));
}

/* ---- deepseek_v3 ------------------------------------------------------------------------------------------------- */

static const HfKey v3_experts[] = {{"n_routed_experts", HF_WHOLE, AT(moe.experts), 1, 256, "num_local_experts"},
                                   {"n_shared_experts", HF_WHOLE, AT(moe.shared), 1, 1, NULL},
                                   {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, 8, NULL},
                                   {"n_group", HF_WHOLE, AT(moe.groups), 1, 8, NULL},
                                   {"topk_group", HF_WHOLE, AT(moe.top_groups), 1, 4, NULL},
                                   {"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},
                                   {"routed_scaling_factor", HF_REAL, AT(moe.scale), 1, 2.5, NULL},
                                   {"norm_topk_prob", HF_FLAG, AT(moe.norm_topk), 0, 1, NULL},
                                   {0}};

static bool v3_read(const HfFile *f, HfShape *s) {
    bool interleaved = true;
    MoeCfg *m = &s->moe;
    if (!deepseek_read(f, s, 3) || !hf_flag_or(f, "rope_interleave", true, &interleaved)) return false;
    json_object_set_new(s->rope, "interleaved", json_boolean(interleaved));
    if (!s->nsparse) return true;
    m->router = ROUTER_SIGMOID, m->bias_balance = true;
    if (!hf_keys_read(f, v3_experts, s)) return false;
    return m->experts / m->groups > 1 ||
           err_input(f->e, "%s: \"n_group\": expected groups of two experts at least, found %d of %d experts", f->path,
                     m->groups, m->experts);
}
static bool v3_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    (void)c;
    if (!deepseek_holds(s, why)) return false;
    if (!s->nsparse) return true;
    if (m->router != ROUTER_SIGMOID || !m->bias_balance) return hf_no(why, "a router by softmax, or no bias_balance");
    return m->experts / m->groups > 1 || hf_no(why, "groups of one expert");
}
static void v3_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    hf_latents_write(j, s);
    json_object_set_new(j, "rope_interleave", json_true());
    json_object_set_new(j, "first_k_dense_replace", json_integer(c->layers - s->nsparse));
    /* Without experts the other values are the smallest that the class accepts. */
    if (s->nsparse) hf_keys_write(j, v3_experts, s);
    for (const HfKey *k = v3_experts; !s->nsparse && k->type == HF_WHOLE && k->key; k++)
        json_object_set_new(j, k->key, json_integer(1));
    json_object_set_new(j, "num_nextn_predict_layers", json_integer(0));
}

/* ep_size, aux_loss_alpha, seq_aux: of training alone */
#define LATENT_KEYS                                                                                    \
    HF_LATENT_KEYS, "pretraining_tp", "first_k_dense_replace", "ep_size", "aux_loss_alpha", "seq_aux", \
        "output_router_logits", "router_aux_loss_coef"
static const char *const v3_keys[] = {LATENT_KEYS,
                                      "rope_interleave",
                                      "num_nextn_predict_layers",
                                      "n_routed_experts",
                                      "num_local_experts",
                                      "n_shared_experts",
                                      "num_experts_per_tok",
                                      "n_group",
                                      "topk_group",
                                      "moe_intermediate_size",
                                      "routed_scaling_factor",
                                      "norm_topk_prob",
                                      NULL};
static const HfMust v3_musts[] = {{"scoring_func", "\"sigmoid\""},
                                  {"topk_method", "\"noaux_tc\""},
                                  {"moe_layer_freq", "1"},
                                  {0}};
const HfType hf_deepseek_v3 = {.type = "deepseek_v3",
                               .architecture = "DeepseekV3ForCausalLM",
                               .about = "DeepSeek-V3, R1, Moonlight: latent attention, with experts or without",
                               .keys = v3_keys,
                               .musts = v3_musts,
                               .extra = "num_nextn_predict_layers",
                               .mixer = "mla",
                               .experts = true,
                               .read = v3_read,
                               .holds = v3_holds,
                               .write = v3_write,
                               .positions = 4096,
                               .heads = true,
                               .attention_bias = true,
                               .mlp_bias = true};

/* ---- deepseek_v2 ------------------------------------------------------------------------------------------------- */

static const HfKey v2_table[] = {{"n_routed_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_experts"},
                                 {"n_shared_experts", HF_WHOLE, AT(moe.shared), 1, 2, NULL},
                                 {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, HF_NEEDED, NULL},
                                 {"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},
                                 {"routed_scaling_factor", HF_REAL, AT(moe.scale), 1, 1, NULL},
                                 {0}};

static bool v2_read(const HfFile *f, HfShape *s) {
    const json_t *v = json_object_get(f->j, "topk_method");
    const char *how = hf_given(f->j, "topk_method") ? hf_found(v) : "greedy";
    MoeCfg *m = &s->moe;
    if (!deepseek_read(f, s, 0)) return false;
    m->groups = 1; /* greedy: groups are not used */
    if (!strcmp(how, "greedy")) return true;
    if (strcmp(how, "group_limited_greedy"))
        return err_input(f->e, "%s: \"topk_method\": expected greedy or group_limited_greedy, found %.40s", f->path,
                         how);
    return hf_whole(f, "n_group", 1, -1, &m->groups) && hf_whole(f, "topk_group", 1, -1, &m->top_groups);
}
static bool v2_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    if (!s->nsparse) return hf_no(why, "no layer with experts");
    if (!deepseek_holds(s, why)) return false;
    if (m->router != ROUTER_SOFTMAX || m->bias_balance) return hf_no(why, "a router by sigmoid, or bias_balance");
    if (m->norm_topk) return hf_no(why, "norm_topk");
    return c->d_model % s->mla.heads == 0 || hf_no(why, "heads that do not divide d_model");
}
static void v2_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    const MoeCfg *m = &s->moe;
    const bool grouped = m->top_groups < m->groups;
    hf_latents_write(j, s);
    json_object_set_new(j, "first_k_dense_replace", json_integer(c->layers - s->nsparse));
    json_object_set_new(j, "topk_method", json_string(grouped ? "group_limited_greedy" : "greedy"));
    json_object_set_new(j, "n_group", grouped ? json_integer(m->groups) : json_null());
    json_object_set_new(j, "topk_group", grouped ? json_integer(m->top_groups) : json_null());
    json_object_set_new(j, "norm_topk_prob", json_false());
}

static const char *const v2_keys[] = {LATENT_KEYS, "topk_method", "n_group", "topk_group", NULL};
/* The class ignores norm_topk_prob, others do not. */
static const HfMust v2_musts[] = {{"scoring_func", "\"softmax\""},
                                  {"norm_topk_prob", "false"},
                                  {"moe_layer_freq", "1"},
                                  {0}};
const HfType hf_deepseek_v2 = {.type = "deepseek_v2",
                               .architecture = "DeepseekV2ForCausalLM",
                               .about = "DeepSeek-V2 and V2-Lite: latent attention, experts by softmax",
                               .keys = v2_keys,
                               .table = v2_table,
                               .musts = v2_musts,
                               .mixer = "mla",
                               .experts = true,
                               .read = v2_read,
                               .holds = v2_holds,
                               .write = v2_write,
                               .heads = true,
                               .attention_bias = true,
                               .mlp_bias = true};
