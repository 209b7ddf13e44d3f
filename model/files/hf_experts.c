/* hf_experts.c: model types of the Llama family with experts and a softmax router: mixtral, olmoe, qwen3_moe and
 * qwen2_moe. Source of fields, defaults and meaning: transformers configuration_mixtral and modeling_mixtral, and those
 * of the others. */
#include "hf_file.h"

#define AT(member) offsetof(HfShape, member)

bool hf_plain_router(const HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    if (!s->nsparse) return hf_no(why, "no layer with experts");
    if (m->router != ROUTER_SOFTMAX) return hf_no(why, "a router by sigmoid");
    if (m->top_groups < m->groups) return hf_no(why, "groups of experts");
    if (m->bias_balance) return hf_no(why, "bias_balance");
    return m->scale == 1 || hf_no(why, "a factor of the experts' weights");
}
static bool all_sparse(const HfShape *s, const char **why) {
    return s->nsparse == s->layers || hf_no(why, "layers without experts");
}
static bool one_window(const HfShape *s, const char **why) {
    return !s->nslide || s->nslide == s->layers || hf_no(why, "layers without a window");
}
static void everywhere(HfShape *s) {
    s->nsparse = s->layers;
    for (int l = 0; l < s->layers; l++) s->sparse[l] = true;
}

/* ---- mixtral ----------------------------------------------------------------------------------------------------- */

static bool mixtral_read(const HfFile *f, HfShape *s) {
    s->moe.hidden = s->F;
    s->moe.norm_topk = true;
    everywhere(s);
    return hf_one_window(f, 0, s);
}
static bool mixtral_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (!hf_plain_router(s, why) || !all_sparse(s, why) || !one_window(s, why)) return false;
    if (!s->moe.norm_topk) return hf_no(why, "norm_topk is off");
    if (s->moe.shared) return hf_no(why, "shared experts");
    return !(s->g.qk_norm || s->g.qkv_bias || s->g.o_bias) || hf_no(why, "qk_norm or biases");
}
static void window_write(json_t *j, const HfShape *s) {
    json_object_set_new(j, "sliding_window", s->nslide ? json_integer(s->window) : json_null());
}
static void mixtral_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    (void)c;
    window_write(j, s);
    json_object_set_new(j, "output_router_logits", json_false());
}

static const HfKey mixtral_table[] = {{"num_local_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_experts"},
                                      {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, 2, NULL},
                                      {0}};
static const HfName mixtral_names[] = {
    {.ours = "mlp.gate.", .theirs = "block_sparse_moe.gate."},
    {.ours = "mlp.experts.*.gate_proj.", .theirs = "block_sparse_moe.experts.*.w1."},
    {.ours = "mlp.experts.*.up_proj.", .theirs = "block_sparse_moe.experts.*.w3."},
    {.ours = "mlp.experts.*.down_proj.", .theirs = "block_sparse_moe.experts.*.w2."},
    {0},
};
/* Of losses and noise in training. */
#define ROUTER_KEYS "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"
static const char *const mixtral_keys[] = {"sliding_window", ROUTER_KEYS, NULL};
const HfType hf_mixtral = {.type = "mixtral",
                           .architecture = "MixtralForCausalLM",
                           .about = "Mixtral: experts in all layers",
                           .keys = mixtral_keys,
                           .table = mixtral_table,
                           .names = mixtral_names,
                           .mixer = "gqa",
                           .experts = true,
                           .read = mixtral_read,
                           .holds = mixtral_holds,
                           .write = mixtral_write,
                           .positions = 4096 * 32,
                           .eps = 1e-5,
                           .theta = 1e6};

/* ---- olmoe ------------------------------------------------------------------------------------------------------- */

static bool olmoe_read(const HfFile *f, HfShape *s) {
    s->moe.hidden = s->F;
    s->g.qk_norm_wide = true;
    everywhere(s);
    if ((int64_t)s->g.head_dim * s->g.heads != s->d) /* the class sizes its norms by hidden_size */
        return err_input(f->e, "%s: \"head_dim\": expected hidden_size / num_attention_heads, %d / %d, found %d",
                         f->path, s->d, s->g.heads, s->g.head_dim);
    return hf_plain_layers(f);
}
static bool olmoe_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    if (!hf_plain_router(s, why) || !all_sparse(s, why)) return false;
    if (s->nslide) return hf_no(why, "a window");
    if (s->moe.shared) return hf_no(why, "shared experts");
    if (!s->g.qk_norm_wide) return hf_no(why, "no qk_norm_wide");
    return s->g.head_dim * s->g.heads == c->d_model || hf_no(why, "head_dim x heads that is not d_model");
}

static const HfKey olmoe_table[] = {{"num_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_local_experts"},
                                    {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, HF_NEEDED, NULL},
                                    {"norm_topk_prob", HF_FLAG, AT(moe.norm_topk), 0, 0, NULL},
                                    {0}};
static const HfMust olmoe_musts[] = {{"clip_qkv", "null"}, {0}};
static const char *const olmoe_keys[] = {ROUTER_KEYS, NULL};
const HfType hf_olmoe = {.type = "olmoe",
                         .architecture = "OlmoeForCausalLM",
                         .about = "OLMoE: experts in all layers, norms over all heads of q and of k",
                         .keys = olmoe_keys,
                         .table = olmoe_table,
                         .musts = olmoe_musts,
                         .mixer = "gqa",
                         .experts = true,
                         .may = HF_WIDE_NORM,
                         .read = olmoe_read,
                         .holds = olmoe_holds,
                         .positions = 4096,
                         .eps = 1e-5,
                         .heads = true,
                         .attention_bias = true};

/* ---- qwen3_moe and qwen2_moe ------------------------------------------------------------------------------------- */

static const HfKey qwen_table[] = {{"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},
                                   {"num_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_local_experts"},
                                   {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, HF_NEEDED, NULL},
                                   {"norm_topk_prob", HF_FLAG, AT(moe.norm_topk), 0, 0, NULL},
                                   {0}};

bool hf_qwen_sparse(const HfFile *f, HfShape *s) {
    const json_t *dense = json_object_get(f->j, "mlp_only_layers");
    int step;
    if (!hf_whole(f, "decoder_sparse_step", 1, 1, &step)) return false;
    for (int l = 0; l < s->layers; l++) s->sparse[l] = (l + 1) % step == 0;
    if (hf_given(f->j, "mlp_only_layers") && !json_is_array(dense))
        return err_input(f->e, "%s: \"mlp_only_layers\": expected a list of layers, found %.40s", f->path,
                         hf_found(dense));
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *v = json_array_get(dense, i);
        const json_int_t l = json_is_integer(v) ? json_integer_value(v) : -1;
        if (l < 0 || l >= s->layers)
            return err_input(f->e, "%s: \"mlp_only_layers\": expected layers from 0 to %d, found %.40s%s", f->path,
                             s->layers - 1, json_is_integer(v) ? "another number" : hf_found(v), "");
        s->sparse[l] = false;
    }
    for (int l = 0; l < s->layers; l++) s->nsparse += s->sparse[l];
    return true;
}
void hf_qwen_sparse_json(json_t *j, const HfShape *s) {
    json_t *dense = json_array();
    for (int l = 0; l < s->layers; l++)
        if (!s->sparse[l]) json_array_append_new(dense, json_integer(l));
    json_object_set_new(j, "decoder_sparse_step", json_integer(1));
    json_object_set_new(j, "mlp_only_layers", dense);
    json_object_set_new(j, "output_router_logits", json_false());
}

static bool qwen3_moe_read(const HfFile *f, HfShape *s) {
    bool use;
    s->g.qk_norm = true;
    if (!hf_qwen_sparse(f, s) || !hf_flag(f, "use_sliding_window", &use)) return false;
    return use ? hf_one_window(f, 4096, s) : hf_plain_layers(f);
}
static bool qwen3_moe_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (!hf_plain_router(s, why) || !one_window(s, why)) return false;
    if (s->moe.shared) return hf_no(why, "shared experts");
    return s->g.qk_norm || hf_no(why, "no qk_norm");
}
static void qwen3_moe_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    (void)c;
    hf_qwen_sparse_json(j, s);
    json_object_set_new(j, "use_sliding_window", json_boolean(s->nslide));
    window_write(j, s);
}

/* Versions of transformers disagree about the layers that have a window where layer_types does not say it. */
static bool qwen2_moe_read(const HfFile *f, HfShape *s) {
    MoeCfg *m = &s->moe;
    bool use;
    m->shared = 1, m->shared_gate = true;
    if (m->shared_hidden == m->hidden) m->shared_hidden = 0;
    if (!hf_qwen_sparse(f, s) || !hf_flag(f, "use_sliding_window", &use)) return false;
    if (!use) return hf_plain_layers(f);
    if (!hf_given(f->j, "layer_types"))
        return err_input(f->e, "%s: \"layer_types\" is missing, but \"use_sliding_window\" is true", f->path);
    return hf_qwen_windows(f, s);
}
static bool qwen2_moe_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    (void)c;
    if (!hf_plain_router(s, why)) return false;
    if (m->shared != 1 || !m->shared_gate) return hf_no(why, "not one shared expert with a gate");
    return !(s->g.qk_norm || s->g.o_bias) || hf_no(why, "qk_norm or o_bias");
}
static void qwen2_moe_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    const MoeCfg *m = &s->moe;
    hf_qwen_sparse_json(j, s);
    hf_qwen_windows_json(j, c, s);
    json_object_set_new(j, "shared_expert_intermediate_size",
                        json_integer(m->shared_hidden ? m->shared_hidden : m->hidden));
}

static const HfKey qwen2_moe_table[] = {{"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},
                                        {"shared_expert_intermediate_size", HF_WHOLE, AT(moe.shared_hidden), 1,
                                         HF_NEEDED, NULL},
                                        {"num_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, NULL},
                                        {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, HF_NEEDED, NULL},
                                        {"norm_topk_prob", HF_FLAG, AT(moe.norm_topk), 0, 0, NULL},
                                        {"qkv_bias", HF_FLAG, AT(g.qkv_bias), 0, 1, NULL},
                                        {0}};
static const HfName qwen2_moe_names[] = {{.ours = "mlp.shared_experts.", .theirs = "mlp.shared_expert."}, {0}};
static const char *const qwen_keys[] = {"decoder_sparse_step",
                                        "mlp_only_layers",
                                        "use_sliding_window",
                                        "sliding_window",
                                        "max_window_layers",
                                        ROUTER_KEYS,
                                        NULL};
const HfType hf_qwen3_moe = {.type = "qwen3_moe",
                             .architecture = "Qwen3MoeForCausalLM",
                             .about = "Qwen 3 with experts, in all layers or some",
                             .keys = qwen_keys,
                             .table = qwen_table,
                             .mixer = "gqa",
                             .experts = true,
                             .read = qwen3_moe_read,
                             .holds = qwen3_moe_holds,
                             .write = qwen3_moe_write,
                             .positions = 32768,
                             .attention_bias = true};
const HfType hf_qwen2_moe = {.type = "qwen2_moe",
                             .architecture = "Qwen2MoeForCausalLM",
                             .about = "Qwen 1.5 and 2 with experts and a gated shared one",
                             .keys = qwen_keys,
                             .table = qwen2_moe_table,
                             .names = qwen2_moe_names,
                             .mixer = "gqa",
                             .experts = true,
                             .read = qwen2_moe_read,
                             .holds = qwen2_moe_holds,
                             .write = qwen2_moe_write,
                             .positions = 32768};
