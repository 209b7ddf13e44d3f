/* hf_gpt_oss.c: the model type gpt_oss: sink scores, windows in every other layer, experts with biases and a bounded
 * unit, which are stored together: all in bf16 or f32, turned, or in MXFP4 (hf_quant.c). Source of fields, defaults and
 * meaning: transformers configuration_gpt_oss and modeling_gpt_oss. */
#include "hf_file.h"

#define AT(member) offsetof(HfShape, member)

/* A rotation that is absent or null is the class's, that of the published models. */
static bool gpt_oss_ropes(const HfFile *f, HfShape *s) {
    if (hf_given(f->j, "rope_parameters") || hf_given(f->j, "rope_scaling")) return hf_rope_read(f, 150000, s->rope);
    double theta;
    if (!hf_number(f, "rope_theta", 150000, false, &theta)) return false;
    json_object_set_new(s->rope, "type", json_string("yarn"));
    json_object_set_new(s->rope, "theta", json_real(theta));
    json_object_set_new(s->rope, "factor", json_real(32));
    json_object_set_new(s->rope, "original_max_positions", json_integer(4096));
    json_object_set_new(s->rope, "truncate", json_false());
    return true;
}
static bool gpt_oss_read(const HfFile *f, HfShape *s) {
    MoeCfg *m = &s->moe;
    bool bias;
    if (!hf_flag_or(f, "attention_bias", true, &bias)) return false;
    s->g.qkv_bias = s->g.o_bias = bias;
    s->g.sink_scores = true;
    m->hidden = s->F, m->norm_topk = true, m->router_bias = m->expert_bias = true;
    s->nsparse = s->layers;
    for (int l = 0; l < s->layers; l++) s->sparse[l] = true;
    if (!s->F) return err_input(f->e, "%s: \"intermediate_size\" is missing", f->path);
    return hf_windows_by_layer(f, 2, 128, s);
}
static bool gpt_oss_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    (void)c;
    if (!hf_plain_router(s, why)) return false;
    if (s->nsparse < s->layers) return hf_no(why, "layers without experts");
    if (!m->norm_topk || m->shared) return hf_no(why, "no norm_topk, or shared experts");
    if (!(m->router_bias && m->expert_bias && m->limit > 0)) return hf_no(why, "no router_bias, expert_bias or limit");
    if (!s->g.sink_scores) return hf_no(why, "no sink_scores");
    return (!s->g.qk_norm && s->g.qkv_bias == s->g.o_bias) || hf_no(why, "qk_norm, or biases of some projections");
}
static void gpt_oss_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    json_object_set_new(j, "attention_bias", json_boolean(s->g.qkv_bias));
    json_object_set_new(j, "sliding_window", json_integer(s->window ? s->window : c->max_positions));
    json_object_set_new(j, "layer_types", hf_layer_types(s));
    json_object_set_new(j, "output_router_logits", json_false());
    if (s->g.rope.type != ROPE_DEFAULT) return;
    json_object_del(j, "rope_scaling"); /* null would be the class's */
    json_object_set_new(j, "rope_parameters",
                        json_pack("{ss sf}", "rope_type", "default", "rope_theta", s->g.rope.theta));
}

static const HfKey gpt_oss_table[] = {{"num_local_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_experts"},
                                      {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, 4, "experts_per_token"},
                                      {"swiglu_limit", HF_REAL, AT(moe.limit), 1, 7, NULL},
                                      {"swiglu_alpha", HF_REAL, AT(moe.alpha), 1, 1.702, NULL},
                                      {0}};
/* initial_context_length: of the programs that published it; the rotation says it too. */
static const char *const gpt_oss_keys[] = {"attention_bias",       "sliding_window",         "output_router_logits",
                                           "router_aux_loss_coef", "initial_context_length", NULL};
/* gate and up are the columns of a matrix in turn. */
static const HfName gpt_oss_names[] = {
    {.ours = "mlp.gate.", .theirs = "mlp.router."},
    {.ours = "mlp.experts.*.gate_proj.weight",
     .theirs = "mlp.experts.gate_up_proj",
     .packed = "mlp.experts.gate_up_proj_blocks",
     .join = "gu",
     .slice = true,
     .turned = true},
    {.ours = "mlp.experts.*.up_proj.weight",
     .theirs = "mlp.experts.gate_up_proj",
     .packed = "mlp.experts.gate_up_proj_blocks",
     .join = "gu",
     .part = 1,
     .slice = true,
     .turned = true},
    {.ours = "mlp.experts.*.down_proj.weight",
     .theirs = "mlp.experts.down_proj",
     .packed = "mlp.experts.down_proj_blocks",
     .slice = true,
     .turned = true},
    {.ours = "mlp.experts.*.gate_proj.bias", .theirs = "mlp.experts.gate_up_proj_bias", .join = "gu", .slice = true},
    {.ours = "mlp.experts.*.up_proj.bias",
     .theirs = "mlp.experts.gate_up_proj_bias",
     .join = "gu",
     .part = 1,
     .slice = true},
    {.ours = "mlp.experts.*.down_proj.bias", .theirs = "mlp.experts.down_proj_bias", .slice = true},
    {0},
};
const HfType hf_gpt_oss = {.type = "gpt_oss",
                           .architecture = "GptOssForCausalLM",
                           .about = "gpt-oss: sink scores, windows, experts with biases; read in bf16 and MXFP4",
                           .keys = gpt_oss_keys,
                           .table = gpt_oss_table,
                           .names = gpt_oss_names,
                           .mixer = "gqa",
                           .experts = true,
                           .experts_alone = true,
                           .bounded = true,
                           .mxfp4 = true,
                           .may = HF_SINK_SCORES,
                           .ropes = gpt_oss_ropes,
                           .read = gpt_oss_read,
                           .holds = gpt_oss_holds,
                           .write = gpt_oss_write,
                           .positions = 131072,
                           .eps = 1e-5,
                           .head_dim = 64};
