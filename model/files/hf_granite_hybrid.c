/* hf_granite_hybrid.c: the model type granitemoehybrid: layers of Mamba-2 and of attention, with factors as granite and
 * a feed-forward part next to experts, or alone. Source of fields, defaults and meaning: transformers
 * configuration_granitemoehybrid and modeling_granitemoehybrid. */
#include "layers/mamba2/mamba2.h"
#include "hf_file.h"

typedef struct {
    HfShape s; /* F: width of the part that every token goes through */
    Mamba2Cfg m;
    bool attends[LAYERS_MAX];
    int nattends;
} HybridShape;

#define AT(member) offsetof(HfShape, member)
static const HfKey table[] = {{"hidden_size", HF_WHOLE, AT(d), 1, HF_NEEDED, NULL},
                              {"num_hidden_layers", HF_WHOLE, AT(layers), 1, HF_NEEDED, NULL},
                              {"vocab_size", HF_WHOLE, AT(V), 1, HF_NEEDED, NULL},
                              {"max_position_embeddings", HF_WHOLE, AT(P), 1, 2048, NULL},
                              {"rms_norm_eps", HF_REAL, AT(eps), 1, 1e-6, NULL},
                              {"initializer_range", HF_REAL, AT(std), 0, 0.02, NULL},
                              {"tie_word_embeddings", HF_FLAG, AT(tied), 0, 0, NULL},
                              {"num_attention_heads", HF_WHOLE, AT(g.heads), 1, HF_NEEDED, NULL},
                              {"attention_bias", HF_FLAG, AT(g.qkv_bias), 0, 0, NULL},
                              {"embedding_multiplier", HF_REAL, AT(embed_scale), 1, 1, NULL},
                              {"residual_multiplier", HF_REAL, AT(residual_scale), 1, 1, NULL},
                              {"attention_multiplier", HF_REAL, AT(g.scale), 1, 1, NULL},
                              {"logits_scaling", HF_REAL, AT(logits_divisor), 1, 1, NULL},
                              {"shared_intermediate_size", HF_WHOLE, AT(F), 1, 1024, NULL},
                              {"num_local_experts", HF_WHOLE, AT(moe.experts), 0, 8, NULL},
                              {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 0, 2, NULL},
                              {"intermediate_size", HF_WHOLE, AT(moe.hidden), 1, 11008, NULL},
                              {0}};
#undef AT

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Version 4 says mamba and attention, version 5 linear_attention and full_attention. */
static bool hybrid_layers(const HfFile *f, HybridShape *x) {
    const json_t *list = json_object_get(f->j, "layer_types");
    const int L = x->s.layers;
    if (hf_given(f->j, "layer_types") && (!json_is_array(list) || json_array_size(list) != (size_t)L))
        return err_input(f->e, "%s: \"layer_types\": expected a list of num_hidden_layers (%d) texts", f->path, L);
    for (int l = 0; list && l < L; l++) {
        const char *v = hf_found(json_array_get(list, (size_t)l));
        x->attends[l] = !strcmp(v, "attention") || !strcmp(v, "full_attention");
        if (!x->attends[l] && strcmp(v, "mamba") && strcmp(v, "linear_attention"))
            return err_input(f->e, "%s: \"layer_types\": layer %d: expected mamba or attention, found %.40s", f->path,
                             l, v);
        x->nattends += x->attends[l];
    }
    return true;
}
static bool hybrid_mamba(const HfFile *f, HybridShape *x) {
    Mamba2Cfg *m = &x->m;
    const json_t *width = json_object_get(f->j, "mamba_d_head");
    const bool chosen = json_is_string(width) && !strcmp(json_string_value(width), "auto");
    int expand;
    if (!hf_whole(f, "mamba_n_heads", 1, 128, &m->heads) || !hf_whole(f, "mamba_n_groups", 1, 1, &m->groups) ||
        !hf_whole(f, "mamba_d_state", 1, 256, &m->state_size) || !hf_whole(f, "mamba_d_conv", 1, 4, &m->conv) ||
        !hf_whole(f, "mamba_expand", 1, 2, &expand) || !hf_flag_or(f, "mamba_conv_bias", true, &m->conv_bias) ||
        !hf_flag(f, "mamba_proj_bias", &m->bias) || !hf_steps_unlimited(f))
        return false;
    const int all = expand <= (1 << 24) / x->s.d ? expand * x->s.d : 0;
    m->head_dim = all / m->heads;
    if (!chosen && !hf_whole(f, "mamba_d_head", 1, m->head_dim, &m->head_dim)) return false;
    return (m->head_dim > 0 && (long)m->head_dim * m->heads == all) ||
           err_input(f->e,
                     "%s: \"mamba_n_heads\": expected mamba_n_heads x mamba_d_head to be mamba_expand x hidden_size, "
                     "%d x %d, found %d x %d",
                     f->path, expand, x->s.d, m->heads, m->head_dim);
}
static bool hybrid_attention(const HfFile *f, HfShape *s) {
    GqaCfg *g = &s->g;
    const char *how =
        hf_given(f->j, "position_embedding_type") ? hf_found(json_object_get(f->j, "position_embedding_type")) : "nope";
    const bool turns = !strcmp(how, "rope");
    if (!hf_whole(f, "num_key_value_heads", 1, g->heads, &g->kv_heads)) return false;
    if (s->d % g->heads || g->heads % g->kv_heads)
        return err_input(f->e,
                         "%s: \"num_attention_heads\": %d does not divide hidden_size %d, or is no multiple of "
                         "num_key_value_heads %d",
                         f->path, g->heads, s->d, g->kv_heads);
    g->head_dim = s->d / g->heads, g->o_bias = g->qkv_bias;
    if (!turns && strcmp(how, "nope"))
        return err_input(f->e, "%s: \"position_embedding_type\": expected rope or nope, found %.40s", f->path, how);
    s->rope = turns ? json_object() : json_string("none");
    return !turns || hf_rope_read(f, 10000, s->rope);
}
static bool hybrid_read(const HfFile *f, HybridShape *x) {
    HfShape *s = &x->s;
    if (!hf_musts_met(f, hf_granitemoehybrid.musts) || !hf_supported(&hf_granitemoehybrid, f) ||
        !hf_keys_read(f, table, s))
        return false;
    if (s->layers > LAYERS_MAX)
        return err_input(f->e, "%s: \"num_hidden_layers\": expected at most %d layers, found %d", f->path, LAYERS_MAX,
                         s->layers);
    MoeCfg *m = &s->moe;
    m->norm_topk = true, m->shared = 1, m->shared_hidden = s->F == m->hidden ? 0 : s->F;
    return hybrid_layers(f, x) && hybrid_mamba(f, x) && hybrid_attention(f, s);
}
static json_t *attention_json(const HfShape *s) {
    const GqaCfg *g = &s->g;
    json_t *k = json_pack("{ss si si si sO sb sb}", "mixer", "gqa", "heads", g->heads, "kv_heads", g->kv_heads,
                          "head_dim", g->head_dim, "rope", s->rope, "qkv_bias", g->qkv_bias, "o_bias", g->o_bias);
    if (g->scale != 1 / sqrt(g->head_dim)) json_object_set_new(k, "scale", json_real(g->scale));
    return k;
}
static json_t *hybrid_settings(const HfFile *f) {
    HybridShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    json_t *j = NULL;
    if (hybrid_read(f, x)) {
        json_t *kinds = json_object(), *pattern = json_array(),
               *ffn = s->moe.experts ? hf_moe_json(s) : json_pack("{ss si}", "kind", "swiglu", "hidden", s->F);
        if (x->nattends) json_object_set_new(kinds, "attention", attention_json(s));
        if (x->nattends < s->layers) json_object_set_new(kinds, "mamba", hf_mamba2_kind(&x->m));
        for (int l = 0; l < s->layers; l++)
            json_array_append_new(pattern, json_string(x->attends[l] ? "attention" : "mamba"));
        j = json_pack("{si si si si sf sf sb sf sf sf so so s[o]}", "d_model", s->d, "layers", s->layers, "vocab", s->V,
                      "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "tied", s->tied, "embed_scale",
                      s->embed_scale, "residual_scale", s->residual_scale, "logits_divisor", s->logits_divisor, "kinds",
                      kinds, "pattern", pattern, "ffn", ffn);
    }
    json_decref(s->rope);
    free(x);
    return j;
}

/* ---- which models it holds, writing ------------------------------------------------------------------------------ */

static bool hybrid_mixers(const ModelCfg *c, HybridShape *x, const char **why) {
    const GqaCfg *g = &x->s.g;
    if (!hf_block(c, (HfBlock){"gqa", "mamba2", NULL, NORM_RMS, POSITIONS_NONE, false}, why)) return false;
    for (int l = 0; l < c->layers; l++) {
        const Kind *k = &c->kind[c->pattern[l]];
        Mamba2Cfg m;
        x->attends[l] = k->mixer == mixer_find("gqa");
        x->nattends += x->attends[l];
        if (x->attends[l]) continue;
        if (!hf_mamba2_plain(k->cfg, c->d_model, &m, why)) return false;
        if (x->nattends < l && memcmp(&m, &x->m, sizeof m)) return hf_no(why, "layers of several kinds");
        memcpy(&x->m, &m, sizeof m);
    }
    if (!x->nattends || x->nattends == c->layers) return hf_no(why, "layers of one mixer alone");
    if (!hf_attention(c, &x->s, why)) return false;
    if (x->s.nslide) return hf_no(why, "a window");
    if (x->s.nunturned && x->s.nunturned < x->nattends) return hf_no(why, "layers without rotation");
    if (g->qk_norm || g->qk_norm_wide || g->soft_cap > 0 || g->out_gate || g->sink_scores || g->rope_dims)
        return hf_no(why, "a setting of attention that granite does not have");
    if (g->qkv_bias != g->o_bias) return hf_no(why, "qkv_bias without o_bias, or the reverse");
    if (g->head_dim * g->heads != c->d_model) return hf_no(why, "head_dim x heads that is not d_model");
    if (x->s.nunturned) return true;
    const char *differs = g->rope.interleaved ? "interleaved rotation" : hf_rope_differs(&g->rope, c->max_positions);
    return !differs || hf_no(why, differs);
}
static bool hybrid_feeds(const ModelCfg *c, HfShape *s, const char **why) {
    const MoeCfg *m = &s->moe;
    if (!hf_decoder_feeds(&hf_granitemoehybrid, c, s, why)) return false;
    if (!s->nsparse) return true;
    if (s->nsparse < s->layers || !hf_plain_router(s, why))
        return hf_no(why, "experts in some layers, or their router");
    if (!m->norm_topk) return hf_no(why, "norm_topk is off");
    if (m->shared != 1 || m->shared_gate) return hf_no(why, "not one shared expert without a gate");
    s->F = m->shared_hidden ? m->shared_hidden : m->hidden;
    return true;
}
static bool hybrid_shape(const ModelCfg *c, HybridShape *x, const char **why) {
    HfShape *s = &x->s;
    s->d = c->d_model, s->layers = c->layers, s->V = c->vocab, s->P = c->max_positions;
    s->eps = c->norm_eps, s->std = c->init_std, s->tied = c->tied;
    s->embed_scale = c->embed_scale, s->residual_scale = c->residual_scale, s->logits_divisor = c->logits_divisor;
    if (c->norm_place != NORM_PRE || c->norm_plus_one) return hf_no(why, "norm_place or norm_plus_one");
    if (c->logits_cap > 0) return hf_no(why, "logits_cap");
    return hybrid_mixers(c, x, why) && hybrid_feeds(c, s, why);
}
static bool hybrid_is(const ModelCfg *c, const char **why) {
    HybridShape *x = xcalloc(1, sizeof *x);
    bool ok = hybrid_shape(c, x, why);
    free(x);
    return ok;
}
static void hybrid_json(json_t *j, const ModelCfg *c) {
    HybridShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    const Mamba2Cfg *m = &x->m;
    CHECK(hybrid_shape(c, x, NULL), "granitemoehybrid");
    if (!(s->g.scale > 0)) s->g.scale = 1 / sqrt(s->g.head_dim);
    if (!s->nsparse) s->moe.hidden = s->F;
    json_t *types = json_array();
    for (int l = 0; l < c->layers; l++)
        json_array_append_new(types, json_string(x->attends[l] ? "attention" : "mamba"));
    json_object_set_new(j, "architectures", json_pack("[s]", hf_granitemoehybrid.architecture));
    json_object_set_new(j, "model_type", json_string(hf_granitemoehybrid.type));
    hf_keys_write(j, table, s);
    json_object_set_new(j, "num_key_value_heads", json_integer(s->g.kv_heads));
    json_object_set_new(j, "position_embedding_type", json_string(s->nunturned ? "nope" : "rope"));
    json_object_set_new(j, "rope_theta", json_real(s->nunturned ? 10000 : s->g.rope.theta));
    json_object_set_new(j, "rope_scaling", s->nunturned ? json_null() : hf_rope_json(&s->g.rope, c->max_positions));
    json_object_set_new(j, "layer_types", types);
    json_object_set_new(j, "mamba_n_heads", json_integer(m->heads));
    json_object_set_new(j, "mamba_d_head", json_integer(m->head_dim));
    json_object_set_new(j, "mamba_n_groups", json_integer(m->groups));
    json_object_set_new(j, "mamba_d_state", json_integer(m->state_size));
    json_object_set_new(j, "mamba_d_conv", json_integer(m->conv));
    json_object_set_new(j, "mamba_expand", json_integer(m->heads * m->head_dim / c->d_model));
    json_object_set_new(j, "mamba_conv_bias", json_boolean(m->conv_bias));
    json_object_set_new(j, "mamba_proj_bias", json_boolean(m->bias));
    json_object_set_new(j, "hidden_act", json_string("silu"));
    json_object_set_new(j, "attention_dropout", json_real(0));
    json_object_set_new(j, "use_cache", json_true());
    free(x);
}

/* ---- the type ---------------------------------------------------------------------------------------------------- */

static const char *const keys[] = {"hidden_size",
                                   "intermediate_size",
                                   "num_hidden_layers",
                                   "max_position_embeddings",
                                   "rms_norm_eps",
                                   "num_attention_heads",
                                   "num_key_value_heads",
                                   "attention_bias",
                                   "attention_dropout",
                                   "hidden_act",
                                   "embedding_multiplier",
                                   "residual_multiplier",
                                   "attention_multiplier",
                                   "logits_scaling",
                                   "shared_intermediate_size",
                                   "num_local_experts",
                                   "num_experts_per_tok",
                                   "position_embedding_type",
                                   "rope_theta",
                                   "rope_scaling",
                                   "rope_parameters",
                                   "layer_types",
                                   "mamba_n_heads",
                                   "mamba_d_head",
                                   "mamba_n_groups",
                                   "mamba_d_state",
                                   "mamba_d_conv",
                                   "mamba_expand",
                                   "mamba_conv_bias",
                                   "mamba_proj_bias",
                                   "mamba_chunk_size",
                                   "time_step_limit",
                                   "output_router_logits",
                                   "router_aux_loss_coef",
                                   NULL};
static const HfMust musts[] = {{"normalization_function", "\"rmsnorm\""}, {0}};
#define MAMBA(name) \
    { .ours = "self_attn." name, .theirs = "mamba." name }
#define SHARED(ours_, part_) \
    { .ours = ours_, .theirs = "shared_mlp.input_linear.", .join = "gu", .part = part_ }
static const HfName names[] = {MAMBA("in_proj."),
                               MAMBA("conv1d."),
                               MAMBA("A_log"),
                               MAMBA("D"),
                               MAMBA("dt_bias"),
                               MAMBA("norm."),
                               MAMBA("out_proj."),
                               SHARED("mlp.gate_proj.", 0),
                               SHARED("mlp.up_proj.", 1),
                               {.ours = "mlp.down_proj.", .theirs = "shared_mlp.output_linear."},
                               SHARED("mlp.shared_experts.gate_proj.", 0),
                               SHARED("mlp.shared_experts.up_proj.", 1),
                               {.ours = "mlp.shared_experts.down_proj.", .theirs = "shared_mlp.output_linear."},
                               {.ours = "mlp.gate.", .theirs = "block_sparse_moe.router.layer."},
                               {.ours = "mlp.experts.*.gate_proj.",
                                .theirs = "block_sparse_moe.input_linear.",
                                .join = "gu",
                                .part = 0,
                                .stack = true},
                               {.ours = "mlp.experts.*.up_proj.",
                                .theirs = "block_sparse_moe.input_linear.",
                                .join = "gu",
                                .part = 1,
                                .stack = true},
                               {.ours = "mlp.experts.*.down_proj.",
                                .theirs = "block_sparse_moe.output_linear.",
                                .stack = true},
                               {0}};
const HfType hf_granitemoehybrid = {.type = "granitemoehybrid",
                                    .architecture = "GraniteMoeHybridForCausalLM",
                                    .about = "Granite 4.0: Mamba-2 and attention, with experts or without",
                                    .keys = keys,
                                    .musts = musts,
                                    .experts = true,
                                    .settings = hybrid_settings,
                                    .is = hybrid_is,
                                    .json = hybrid_json,
                                    .names = names};
