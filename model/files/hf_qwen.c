/* hf_qwen.c: the hybrids of Qwen: qwen3_next and qwen3_5, with experts or without. Most layers are a gated delta rule,
 * some are attention with an output gate. Source of fields, defaults, layouts and meaning: transformers
 * configuration_qwen3_next, modeling_qwen3_next, and those of qwen3_5 and qwen3_5_moe. */
#include "hf_file.h"

#define AT(member) offsetof(HfShape, member)

bool hf_ropes_in_part(const HfFile *f, double part, HfShape *s) {
    static const char *const outer[] = {"rope_parameters", "rope_scaling"}, *const less[] = {"partial_rotary_factor",
                                                                                             "mrope_section",
                                                                                             "mrope_interleaved"};
    json_t *j = json_copy((json_t *)f->j);
    bool ok = hf_number(f, "partial_rotary_factor", part, false, &part);
    for (int i = 0; ok && i < 2; i++) {
        json_t *in = json_copy(json_object_get(j, outer[i]));
        if (json_is_object(in)) {
            ok = hf_number(&(HfFile){f->path, in, f->e}, less[0], part, false, &part);
            for (int k = 0; k < 3; k++) json_object_del(in, less[k]);
            json_object_set(j, outer[i], in);
        }
        json_decref(in);
    }
    ok = ok && hf_part_turned(f, part, s) && hf_rope_read(&(HfFile){f->path, j, f->e}, 10000, s->rope);
    json_decref(j);
    return ok;
}
static bool qwen_ropes(const HfFile *f, HfShape *s) { return hf_ropes_in_part(f, 0.25, s); }
/* layer_types, or attention in every full_attention_interval-th layer. */
static bool qwen_layers(const HfFile *f, HfShape *s) {
    const json_t *types = json_object_get(f->j, "layer_types");
    const bool listed = hf_given(f->j, "layer_types");
    int every;
    if (!hf_whole(f, "full_attention_interval", 1, 4, &every)) return false;
    if (listed && (!json_is_array(types) || json_array_size(types) != (size_t)s->layers))
        return err_input(f->e, "%s: \"layer_types\": expected a list of num_hidden_layers (%d) texts", f->path,
                         s->layers);
    for (int l = 0; l < s->layers; l++) {
        const bool by_interval = (l + 1) % every != 0;
        const char *v = listed ? hf_found(json_array_get(types, (size_t)l)) : NULL;
        s->state[l] = v ? !strcmp(v, "linear_attention") : by_interval;
        if (v && !s->state[l] && strcmp(v, "full_attention"))
            return err_input(f->e, "%s: \"layer_types\": expected linear_attention or full_attention, found %.40s",
                             f->path, v);
        if (v && hf_given(f->j, "full_attention_interval") && s->state[l] != by_interval)
            return err_input(f->e,
                             "%s: \"layer_types\" and \"full_attention_interval\" differ about layer %d; remove one",
                             f->path, l);
        s->nstate += s->state[l];
    }
    if (s->line.v_heads % s->line.heads)
        return err_input(f->e,
                         "%s: \"linear_num_value_heads\": expected a multiple of linear_num_key_heads (%d), found %d",
                         f->path, s->line.heads, s->line.v_heads);
    s->g.qk_norm = s->g.out_gate = true;
    return true;
}
static bool qwen_shared(HfShape *s) {
    MoeCfg *m = &s->moe;
    m->shared = 1, m->shared_gate = true;
    if (m->shared_hidden == m->hidden) m->shared_hidden = 0;
    return true;
}

static bool qwen_holds(const HfShape *s, const char **why) {
    const LineCfg *c = &s->line;
    if (!s->nstate) return hf_no(why, "no layer of gdn");
    if (s->nslide) return hf_no(why, "a window");
    if (!s->g.qk_norm || !s->g.out_gate) return hf_no(why, "no qk_norm, or no out_gate");
    if (c->gate != LINE_GATE_SILU || c->beta_max != 1) return hf_no(why, "gdn without a gate by silu, or beta_max 2");
    if (c->conv_bias) return hf_no(why, "gdn with conv_bias");
    if (c->householders > 1 || (c->kv_heads && c->kv_heads != c->heads))
        return hf_no(why, "gdn with householders, or fewer kv_heads than heads");
    if (c->inner_decay || c->output_correction) return hf_no(why, "gdn with inner_decay or output_correction");
    if (c->levels) return hf_no(why, "gdn with levels");
    return c->conv || hf_no(why, "gdn without a convolution");
}
static void qwen_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    json_t *types = json_array();
    for (int l = 0; l < c->layers; l++)
        json_array_append_new(types, json_string(s->state[l] ? "linear_attention" : "full_attention"));
    json_object_set_new(j, "layer_types", types);
    json_object_set_new(j, "partial_rotary_factor", json_real(hf_part_of(s)));
}

#define LINE_TABLE                                                          \
    {"linear_conv_kernel_dim", HF_WHOLE, AT(line.conv), 1, 4, NULL},        \
        {"linear_key_head_dim", HF_WHOLE, AT(line.head_dim), 1, 128, NULL}, \
        {"linear_value_head_dim", HF_WHOLE, AT(line.v_dim), 1, 128, NULL},  \
        {"linear_num_key_heads", HF_WHOLE, AT(line.heads), 1, 16, NULL}, {  \
        "linear_num_value_heads", HF_WHOLE, AT(line.v_heads), 1, 32, NULL   \
    }
#define EXPERTS_TABLE                                                                             \
    {"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, HF_NEEDED, NULL},                      \
        {"shared_expert_intermediate_size", HF_WHOLE, AT(moe.shared_hidden), 1, HF_NEEDED, NULL}, \
        {"num_experts", HF_WHOLE, AT(moe.experts), 1, HF_NEEDED, "num_local_experts"}, {          \
        "num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, HF_NEEDED, NULL                        \
    }
/* Of losses in training. */
#define ROUTER_KEYS "output_router_logits", "router_aux_loss_coef"

/* Attention's q and gate alternate by heads; the convolutions of a delta rule are one. */
#define COMMON_NAMES                                                                                \
    {.ours = "self_attn.q_proj.",                                                                   \
     .theirs = "self_attn.q_proj.",                                                                 \
     .join = "qq",                                                                                  \
     .part = 0,                                                                                     \
     .alternate = HF_BY_HEADS,                                                                      \
     .layers = HF_ATTENTION},                                                                       \
        {.ours = "self_attn.gate_proj.",                                                            \
         .theirs = "self_attn.q_proj.",                                                             \
         .join = "qq",                                                                              \
         .part = 1,                                                                                 \
         .alternate = HF_BY_HEADS,                                                                  \
         .layers = HF_ATTENTION},                                                                   \
        {.ours = "self_attn.q_conv1d.", .theirs = "linear_attn.conv1d.", .join = "KKV", .part = 0}, \
        {.ours = "self_attn.k_conv1d.", .theirs = "linear_attn.conv1d.", .join = "KKV", .part = 1}, \
        {.ours = "self_attn.v_conv1d.", .theirs = "linear_attn.conv1d.", .join = "KKV", .part = 2}, \
        {.ours = "self_attn.A_log", .theirs = "linear_attn.A_log"},                                 \
        {.ours = "self_attn.dt_bias", .theirs = "linear_attn.dt_bias"},                             \
        {.ours = "self_attn.o_norm.", .theirs = "linear_attn.norm.", .layers = HF_STATE}, {         \
        .ours = "self_attn.o_proj.", .theirs = "linear_attn.out_proj.", .layers = HF_STATE          \
    }
#define PACKED(our, name, parts, n) \
    { .ours = our, .theirs = name, .join = parts, .part = n, .alternate = HF_BY_KEYS, .layers = HF_STATE }
#define JOINED(our, name, parts, n) \
    { .ours = our, .theirs = name, .join = parts, .part = n, .layers = HF_STATE }
#define SHARED_EXPERT \
    { .ours = "mlp.shared_experts.", .theirs = "mlp.shared_expert." }

static const HfPast qwen_past[] = {{"mtp.", "layers that predict further tokens"},
                                   {"model.visual.", "the part that sees pictures"},
                                   {NULL, NULL}};
static const char *const dense_keys[] = {"full_attention_interval", NULL};
static const char *const experts_keys[] = {"full_attention_interval", "decoder_sparse_step", "mlp_only_layers",
                                           ROUTER_KEYS, NULL};
static const HfMust qwen_musts[] = {{"attn_output_gate", "true"}, {"mamba_ssm_dtype", "\"float32\""}, {NULL, NULL}};

/* ---- qwen3_next -------------------------------------------------------------------------------------------------- */

static bool next_read(const HfFile *f, HfShape *s) {
    return qwen_layers(f, s) && qwen_shared(s) && hf_qwen_sparse(f, s);
}
static bool next_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (!qwen_holds(s, why) || !hf_plain_router(s, why)) return false;
    return (s->moe.shared == 1 && s->moe.shared_gate) || hf_no(why, "not one shared expert with a gate");
}
static void next_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    qwen_write(j, c, s);
    hf_qwen_sparse_json(j, s);
    json_object_set_new(j, "shared_expert_intermediate_size",
                        json_integer(s->moe.shared_hidden ? s->moe.shared_hidden : s->moe.hidden));
}

static const HfKey next_table[] = {LINE_TABLE,
                                   EXPERTS_TABLE,
                                   {"norm_topk_prob", HF_FLAG, AT(moe.norm_topk), 0, 1, NULL},
                                   {0}};
static const HfName next_names[] = {
    COMMON_NAMES,
    PACKED("self_attn.q_proj.", "linear_attn.in_proj_qkvz.", "KKVV", 0),
    PACKED("self_attn.k_proj.", "linear_attn.in_proj_qkvz.", "KKVV", 1),
    PACKED("self_attn.v_proj.", "linear_attn.in_proj_qkvz.", "KKVV", 2),
    PACKED("self_attn.g_proj.", "linear_attn.in_proj_qkvz.", "KKVV", 3),
    PACKED("self_attn.b_proj.", "linear_attn.in_proj_ba.", "ba", 0),
    PACKED("self_attn.a_proj.", "linear_attn.in_proj_ba.", "ba", 1),
    SHARED_EXPERT,
    {0},
};
const HfType hf_qwen3_next = {.type = "qwen3_next",
                              .architecture = "Qwen3NextForCausalLM",
                              .about = "Qwen3-Next: gated delta rule and gated attention, with experts",
                              .keys = experts_keys,
                              .table = next_table,
                              .musts = qwen_musts,
                              .names = next_names,
                              .past = qwen_past,
                              .mixer = "gqa",
                              .state = "gdn",
                              .experts = true,
                              .may = HF_PART_TURNED | HF_OUT_GATE,
                              .norm_plus_one = true,
                              .ropes = qwen_ropes,
                              .read = next_read,
                              .holds = next_holds,
                              .write = next_write,
                              .positions = 32768,
                              .head_dim = 256,
                              .attention_bias = true};

/* ---- qwen3_5 ----------------------------------------------------------------------------------------------------- */

static bool qwen3_5_read(const HfFile *f, HfShape *s) { return qwen_layers(f, s); }
static bool qwen3_5_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    return qwen_holds(s, why) && (!s->nsparse || hf_no(why, "experts"));
}
static bool qwen3_5_moe_read(const HfFile *f, HfShape *s) {
    s->moe.norm_topk = true;
    s->nsparse = s->layers;
    for (int l = 0; l < s->layers; l++) s->sparse[l] = true;
    return qwen_layers(f, s) && qwen_shared(s);
}

#define NAMES_3_5                                                                                \
    COMMON_NAMES, JOINED("self_attn.q_proj.", "linear_attn.in_proj_qkv.", "KKV", 0),             \
        JOINED("self_attn.k_proj.", "linear_attn.in_proj_qkv.", "KKV", 1),                       \
        JOINED("self_attn.v_proj.", "linear_attn.in_proj_qkv.", "KKV", 2),                       \
        {.ours = "self_attn.g_proj.", .theirs = "linear_attn.in_proj_z.", .layers = HF_STATE},   \
        {.ours = "self_attn.b_proj.", .theirs = "linear_attn.in_proj_b.", .layers = HF_STATE}, { \
        .ours = "self_attn.a_proj.", .theirs = "linear_attn.in_proj_a.", .layers = HF_STATE      \
    }
/* A model that sees pictures, too: its text model lies in a part of it. */
#define NAMES_OUTSIDE                                                                  \
    {.ours = "model.embed_tokens.", .theirs = "model.language_model.embed_tokens."}, { \
        .ours = "model.norm.", .theirs = "model.language_model.norm."                  \
    }
static const HfKey dense_table[] = {LINE_TABLE, {0}};
static const HfKey moe_table[] = {LINE_TABLE, EXPERTS_TABLE, {0}};
static const HfName text_names[] = {NAMES_3_5, SHARED_EXPERT, {0}};
static const HfName outer_names[] = {
    NAMES_3_5,
    NAMES_OUTSIDE,
    SHARED_EXPERT,
    {.ours = "mlp.experts.*.gate_proj.weight",
     .theirs = "mlp.experts.gate_up_proj",
     .join = "gu",
     .part = 0,
     .stack = true},
    {.ours = "mlp.experts.*.up_proj.weight",
     .theirs = "mlp.experts.gate_up_proj",
     .join = "gu",
     .part = 1,
     .stack = true},
    {.ours = "mlp.experts.*.down_proj.weight", .theirs = "mlp.experts.down_proj", .stack = true},
    {0},
};
#define TYPE_3_5                                                                                                 \
    .past = qwen_past, .mixer = "gqa", .state = "gdn", .musts = qwen_musts, .may = HF_PART_TURNED | HF_OUT_GATE, \
    .norm_plus_one = true, .ropes = qwen_ropes, .positions = 32768, .head_dim = 256, .attention_bias = true
const HfType hf_qwen3_5_text = {.type = "qwen3_5_text",
                                .architecture = "Qwen3_5ForCausalLM",
                                .about = "Qwen 3.5 and 3.6: gated delta rule and gated attention",
                                .keys = dense_keys,
                                .table = dense_table,
                                .names = text_names,
                                .read = qwen3_5_read,
                                .holds = qwen3_5_holds,
                                .write = qwen_write,
                                TYPE_3_5};
const HfType hf_qwen3_5_moe_text = {.type = "qwen3_5_moe_text",
                                    .architecture = "Qwen3_5MoeForCausalLM",
                                    .about = "the same with experts",
                                    .keys = experts_keys,
                                    .table = moe_table,
                                    .names = text_names,
                                    .read = qwen3_5_moe_read,
                                    .experts = true,
                                    .experts_alone = true,
                                    .written_as = "qwen3_next",
                                    TYPE_3_5};

static const char *const outer_keys[] = {"text_config",           "vision_config",
                                         "image_token_id",        "video_token_id",
                                         "vision_start_token_id", "vision_end_token_id",
                                         "language_model_only",   NULL};
#define TYPE_OUTER                                                                                        \
    .keys = outer_keys, .names = outer_names, .past = qwen_past, .layer = "model.language_model.layers.", \
    .state = "gdn", .nested = "text_config"
const HfType hf_qwen3_5 = {.type = "qwen3_5",
                           .architecture = "Qwen3_5ForConditionalGeneration",
                           .about = "Qwen 3.5 with pictures, of which the text model alone is read",
                           .text = &hf_qwen3_5_text,
                           TYPE_OUTER};
const HfType hf_qwen3_5_moe = {.type = "qwen3_5_moe",
                               .architecture = "Qwen3_5MoeForConditionalGeneration",
                               .about = "the same with experts",
                               .text = &hf_qwen3_5_moe_text,
                               TYPE_OUTER};
