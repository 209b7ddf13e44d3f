/* hf_glm.c: the model types glm4_moe and glm4_moe_lite: experts of DeepSeek-V3's router with grouped-query attention of
 * which a part of each head is turned, or with latent attention. Source of fields, defaults and meaning: transformers
 * configuration_glm4_moe and modeling_glm4_moe, and those of glm4_moe_lite. */
#include "hf_file.h"

#define AT(member) offsetof(HfShape, member)

/* What the router of both asks of a model, and an index of a layer with or without experts. */
static bool glm_router(const HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    if (!s->nsparse) return hf_no(why, "no layer with experts");
    if (m->router != ROUTER_SIGMOID || !m->bias_balance) return hf_no(why, "a router by softmax, or no bias_balance");
    if (!m->shared || m->shared_hidden || m->shared_gate) return hf_no(why, "not shared experts of DeepSeek's kind");
    return m->experts / m->groups > 1 || hf_no(why, "groups of one expert");
}
static bool glm_groups(const HfFile *f, HfShape *s) {
    MoeCfg *m = &s->moe;
    m->router = ROUTER_SIGMOID, m->bias_balance = true;
    return m->experts / m->groups > 1 ||
           err_input(f->e, "%s: \"n_group\": expected groups of two experts at least, found %d of %d experts", f->path,
                     m->groups, m->experts);
}

/* ---- glm4_moe ---------------------------------------------------------------------------------------------------- */

static bool glm_ropes(const HfFile *f, HfShape *s) { return hf_ropes_in_part(f, 0.5, s); }
static bool glm_read(const HfFile *f, HfShape *s) {
    int first;
    if (!hf_plain_layers(f) || !hf_whole(f, "first_k_dense_replace", 0, 1, &first)) return false;
    for (int l = first; l < s->layers; l++) s->sparse[l] = true, s->nsparse++;
    return glm_groups(f, s);
}
static bool glm_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    const int first = s->layers - s->nsparse;
    (void)c;
    if (!glm_router(s, why)) return false;
    if (s->nslide) return hf_no(why, "a window");
    if (s->g.o_bias) return hf_no(why, "o_bias");
    for (int l = 0; l < s->layers; l++)
        if (s->sparse[l] != (l >= first)) return hf_no(why, "a layer without experts after one with them");
    return true;
}
static void glm_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    json_object_set_new(j, "first_k_dense_replace", json_integer(c->layers - s->nsparse));
    json_object_set_new(j, "partial_rotary_factor", json_real(hf_part_of(s)));
    json_object_set_new(j, "num_nextn_predict_layers", json_integer(0));
}

#define EXPERTS(number, chosen, factor)                                                                              \
    {"n_routed_experts", HF_WHOLE, AT(moe.experts), 1, number, "num_local_experts"},                                 \
        {"n_shared_experts", HF_WHOLE, AT(moe.shared), 1, 1, NULL},                                                  \
        {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, chosen, NULL},                                           \
        {"n_group", HF_WHOLE, AT(moe.groups), 1, 1, NULL}, {"topk_group", HF_WHOLE, AT(moe.top_groups), 1, 1, NULL}, \
        {"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},                                     \
        {"routed_scaling_factor", HF_REAL, AT(moe.scale), 1, factor, NULL}, {                                        \
        "norm_topk_prob", HF_FLAG, AT(moe.norm_topk), 0, 1, NULL                                                     \
    }
static const HfKey glm_table[] = {EXPERTS(128, 8, 1),
                                  {"attention_bias", HF_FLAG, AT(g.qkv_bias), 0, 0, NULL},
                                  {"use_qk_norm", HF_FLAG, AT(g.qk_norm), 0, 0, NULL},
                                  {0}};
static const HfMust glm_musts[] = {{"scoring_func", "\"sigmoid\""}, {"topk_method", "\"noaux_tc\""}, {0}};
/* Of losses and noise in training, and of layers that predict further tokens. */
#define OTHER_KEYS "output_router_logits", "router_aux_loss_coef", "num_nextn_predict_layers", "num_mtp_layers"
static const char *const glm_keys[] = {"first_k_dense_replace", OTHER_KEYS, NULL};
const HfType hf_glm4_moe = {.type = "glm4_moe",
                            .architecture = "Glm4MoeForCausalLM",
                            .about = "GLM-4.5 to 4.7: experts as DeepSeek-V3, a part of a head turned",
                            .keys = glm_keys,
                            .table = glm_table,
                            .musts = glm_musts,
                            .extra = "num_nextn_predict_layers",
                            .mixer = "gqa",
                            .experts = true,
                            .may = HF_PART_TURNED,
                            .ropes = glm_ropes,
                            .read = glm_read,
                            .holds = glm_holds,
                            .write = glm_write,
                            .positions = 131072,
                            .eps = 1e-5};

/* ---- glm4_moe_lite ----------------------------------------------------------------------------------------------- */

/* Experts where mlp_layer_types says sparse; without it, in all layers but the first. */
static bool lite_read(const HfFile *f, HfShape *s) {
    bool interleaved;
    int first;
    for (int l = 1; l < s->layers; l++) s->sparse[l] = true;
    if (!hf_latents_read(f, s) || !hf_flag_or(f, "rope_interleave", true, &interleaved) ||
        !hf_texts(f, "mlp_layer_types", s->layers, "sparse", "dense", s->sparse) ||
        !hf_whole(f, "first_k_dense_replace", 0, 1, &first))
        return false;
    json_object_set_new(s->rope, "interleaved", json_boolean(interleaved));
    for (int l = 0; l < s->layers; l++) {
        s->nsparse += s->sparse[l];
        if (hf_given(f->j, "first_k_dense_replace") && s->sparse[l] != (l >= first)) /* the class does not read it */
            return err_input(f->e,
                             "%s: \"first_k_dense_replace\": %d, but \"mlp_layer_types\", or its default, says "
                             "otherwise of layer %d; remove it",
                             f->path, first, l);
    }
    return glm_groups(f, s);
}
static bool lite_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    /* as of deepseek_v3 */
    return glm_router(s, why) && (s->mla.rope.interleaved || hf_no(why, "rotation that is not interleaved"));
}
static void lite_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    json_t *types = json_array();
    for (int l = 0; l < c->layers; l++) json_array_append_new(types, json_string(s->sparse[l] ? "sparse" : "dense"));
    hf_latents_write(j, s);
    json_object_set_new(j, "rope_interleave", json_true());
    json_object_set_new(j, "mlp_layer_types", types);
    json_object_set_new(j, "num_nextn_predict_layers", json_integer(0));
}

static const HfKey lite_table[] = {EXPERTS(64, 4, 1.8), {0}};
static const char *const lite_keys[] = {
    HF_LATENT_KEYS, "rope_interleave", "mlp_layer_types", "first_k_dense_replace", "pretraining_tp", OTHER_KEYS, NULL};
const HfType hf_glm4_moe_lite = {.type = "glm4_moe_lite",
                                 .architecture = "Glm4MoeLiteForCausalLM",
                                 .about =
                                     "GLM-4.7-Flash: deepseek_v3 with experts in any layers, written as it if it can",
                                 .keys = lite_keys,
                                 .table = lite_table,
                                 .musts = glm_musts,
                                 .extra = "num_nextn_predict_layers",
                                 .mixer = "mla",
                                 .experts = true,
                                 .read = lite_read,
                                 .holds = lite_holds,
                                 .write = lite_write,
                                 .positions = 202752,
                                 .eps = 1e-5,
                                 .heads = true,
                                 .attention_bias = true};
