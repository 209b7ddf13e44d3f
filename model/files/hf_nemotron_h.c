/* hf_nemotron_h.c: the model type nemotron_h: layers of one part each, which is Mamba-2, attention without rotation,
 * two projections with a squared ReLU, or experts of those. Source of fields, defaults and meaning: transformers
 * configuration_nemotron_h and modeling_nemotron_h.
 *
 * Steps of Mamba-2 are not clamped, as in the implementation that is published with the models. transformers 5.23 and
 * 5.24 raise those below time_step_min to it, except when they decode (pull request 48989 there). So that they compute
 * a model that is written here as it is, its time_step_min is close to 0. */
#include "layers/mamba2/mamba2.h"
#include "hf_file.h"

/* What a layer is, as hybrid_override_pattern spells it. */
enum { LAYER_MAMBA = 'M', LAYER_ATTENTION = '*', LAYER_MLP = '-', LAYER_EXPERTS = 'E' };
typedef struct {
    HfShape s; /* F: width of the layers of two projections */
    Mamba2Cfg m;
    bool mlp_bias;
    char part[LAYERS_MAX + 1];
    int latent, shared; /* moe_latent_size, 0: null; width of the shared expert */
} NemotronShape;

#define AT(member) offsetof(HfShape, member)
static const HfKey table[] = {{"hidden_size", HF_WHOLE, AT(d), 1, HF_NEEDED, NULL},
                              {"vocab_size", HF_WHOLE, AT(V), 1, HF_NEEDED, NULL},
                              {"max_position_embeddings", HF_WHOLE, AT(P), 1, 4096, NULL},
                              {"layer_norm_epsilon", HF_REAL, AT(eps), 1, 1e-5, NULL},
                              {"initializer_range", HF_REAL, AT(std), 0, 0.02, NULL},
                              {0}};
static const HfKey attention[] = {{"num_attention_heads", HF_WHOLE, AT(g.heads), 1, 32, NULL},
                                  {"head_dim", HF_WHOLE, AT(g.head_dim), 1, 128, NULL},
                                  {0}};
static const HfKey mlp[] = {{"intermediate_size", HF_WHOLE, AT(F), 1, 21504, NULL}, {0}};
static const HfKey experts[] = {{"n_routed_experts", HF_WHOLE, AT(moe.experts), 2, 8, "num_local_experts"},
                                {"num_experts_per_tok", HF_WHOLE, AT(moe.top_k), 1, 2, NULL},
                                {"moe_intermediate_size", HF_WHOLE, AT(moe.hidden), 1, 7688, NULL},
                                {"routed_scaling_factor", HF_REAL, AT(moe.scale), 1, 1, NULL},
                                {"n_group", HF_WHOLE, AT(moe.groups), 1, 1, NULL},
                                {"topk_group", HF_WHOLE, AT(moe.top_groups), 1, 1, NULL},
                                {0}};
#undef AT

static bool nemotron_has(const NemotronShape *x, char part) { return strchr(x->part, part) != NULL; }

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The part that a text of a list says, or a letter of the pattern; 0: unknown. */
static char nemotron_part(const char *name) {
    static const struct {
        const char *name;
        char part;
    } names[] = {{"M", LAYER_MAMBA},
                 {"mamba", LAYER_MAMBA},
                 {"linear_attention", LAYER_MAMBA},
                 {"*", LAYER_ATTENTION},
                 {"attention", LAYER_ATTENTION},
                 {"full_attention", LAYER_ATTENTION},
                 {"-", LAYER_MLP},
                 {"mlp", LAYER_MLP},
                 {"E", LAYER_EXPERTS},
                 {"moe", LAYER_EXPERTS}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].name)) return names[i].part;
    return 0;
}
/* The layers as one key has them; it must not say otherwise than those before it. */
static bool nemotron_list(const HfFile *f, const char *key, bool letters, NemotronShape *x) {
    const json_t *v = json_object_get(f->j, key);
    char part[LAYERS_MAX + 1] = "";
    if (!hf_given(f->j, key)) return true;
    if (letters ? !json_is_string(v) : !json_is_array(v))
        return err_input(f->e, "%s: \"%s\": expected %s, found %s", f->path, key,
                         letters ? "a text of the letters M, *, - and E" : "a list of texts", hf_json_kind(v));
    const size_t n = letters ? strlen(json_string_value(v)) : json_array_size(v);
    if (n < 1 || n > LAYERS_MAX)
        return err_input(f->e, "%s: \"%s\": expected 1 to %d layers, found %zu", f->path, key, LAYERS_MAX, n);
    for (size_t l = 0; l < n; l++) {
        const char letter[2] = {letters ? json_string_value(v)[l] : 0, 0},
                   *name = letters ? letter : hf_found(json_array_get(v, l));
        part[l] = nemotron_part(name);
        if (!part[l])
            return err_input(f->e, "%s: \"%s\": layer %zu: expected %s, found %.40s", f->path, key, l,
                             letters ? "M, *, - or E" : "linear_attention, full_attention, mlp or moe", name);
    }
    if (*x->part && strcmp(x->part, part))
        return err_input(f->e, "%s: \"%s\" and another key with the layers differ; remove one", f->path, key);
    memcpy(x->part, part, sizeof part);
    return true;
}
static bool nemotron_layers(const HfFile *f, NemotronShape *x) {
    int told;
    if (!nemotron_list(f, "layers_block_type", false, x) || !nemotron_list(f, "layer_types", false, x) ||
        !nemotron_list(f, "hybrid_override_pattern", true, x))
        return false;
    if (!*x->part)
        return err_input(f->e,
                         "%s: no \"layers_block_type\" and no \"hybrid_override_pattern\": what the layers are is "
                         "not known; add one of them",
                         f->path);
    x->s.layers = (int)strlen(x->part);
    return hf_whole(f, "num_hidden_layers", 1, x->s.layers, &told) &&
           (told == x->s.layers ||
            err_input(f->e, "%s: \"num_hidden_layers\": expected the number of listed layers, %d, found %d", f->path,
                      x->s.layers, told));
}
static bool nemotron_mamba(const HfFile *f, Mamba2Cfg *m) {
    return hf_whole(f, "mamba_num_heads", 1, 128, &m->heads) && hf_whole(f, "mamba_head_dim", 1, 64, &m->head_dim) &&
           hf_whole(f, "ssm_state_size", 1, 128, &m->state_size) && hf_whole(f, "n_groups", 1, 8, &m->groups) &&
           hf_whole(f, "conv_kernel", 1, 4, &m->conv) && hf_flag_or(f, "use_conv_bias", true, &m->conv_bias) &&
           hf_flag(f, "use_bias", &m->bias) && hf_steps_unlimited(f);
}
static bool nemotron_attention(const HfFile *f, HfShape *s) {
    GqaCfg *g = &s->g;
    int older;
    if (!hf_keys_read(f, attention, s) || !hf_whole(f, "attention_head_dim", 1, g->head_dim, &older)) return false;
    if (older != g->head_dim)
        return err_input(f->e, "%s: \"attention_head_dim\": expected head_dim (%d), found %d", f->path, g->head_dim,
                         older);
    const bool null = json_is_null(json_object_get(f->j, "num_key_value_heads"));
    if (!hf_whole(f, "num_key_value_heads", 1, null ? g->heads : 8, &g->kv_heads)) return false;
    return g->heads % g->kv_heads == 0 ||
           err_input(f->e, "%s: \"num_key_value_heads\": expected a divisor of num_attention_heads (%d), found %d",
                     f->path, g->heads, g->kv_heads);
}
static bool nemotron_experts(const HfFile *f, NemotronShape *x) {
    MoeCfg *m = &x->s.moe;
    if (!hf_keys_read(f, experts, &x->s) || !hf_flag_or(f, "norm_topk_prob", true, &m->norm_topk) ||
        !hf_whole(f, "moe_shared_expert_intermediate_size", 1, 7688, &x->shared) ||
        !hf_whole(f, "moe_latent_size", 1, 0, &x->latent))
        return false;
    m->router = ROUTER_SIGMOID, m->bias_balance = true, m->shared = 1, m->act = EXPERT_RELU2, m->latent = x->latent;
    m->shared_hidden = x->shared == m->hidden ? 0 : x->shared;
    if (x->mlp_bias) return err_input(f->e, "%s: \"mlp_bias\": true is not supported of experts", f->path);
    return m->experts / m->groups > 1 ||
           err_input(f->e, "%s: \"n_group\": expected groups of two experts at least, found %d of %d experts", f->path,
                     m->groups, m->experts);
}
static bool nemotron_read(const HfFile *f, NemotronShape *x) {
    HfShape *s = &x->s;
    double eps;
    if (!hf_musts_met(f, hf_nemotron_h.musts) || !hf_keys_read(f, table, s) || !nemotron_layers(f, x) ||
        !hf_number(f, "rms_norm_eps", s->eps, false, &eps) || !hf_flag(f, "mlp_bias", &x->mlp_bias))
        return false;
    if (eps != s->eps)
        return err_input(f->e, "%s: \"rms_norm_eps\": expected layer_norm_epsilon (%g), found %g", f->path, s->eps,
                         eps);
    return nemotron_mamba(f, &x->m) && nemotron_attention(f, s) && hf_keys_read(f, mlp, s) &&
           (!nemotron_has(x, LAYER_EXPERTS) || nemotron_experts(f, x));
}
static json_t *nemotron_settings(const HfFile *f) {
    NemotronShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    const GqaCfg *g = &s->g;
    json_t *j = NULL;
    if (nemotron_read(f, x)) {
        json_t *kinds = json_object(), *pattern = json_array(), *ffn = json_object(), *parts = json_array();
        const bool mlps = nemotron_has(x, LAYER_MLP), moes = nemotron_has(x, LAYER_EXPERTS);
        if (nemotron_has(x, LAYER_MAMBA)) json_object_set_new(kinds, "mamba", hf_mamba2_kind(&x->m));
        if (nemotron_has(x, LAYER_ATTENTION))
            json_object_set_new(kinds, "attention",
                                json_pack("{ss si si si ss}", "mixer", "gqa", "heads", g->heads, "kv_heads",
                                          g->kv_heads, "head_dim", g->head_dim, "rope", "none"));
        if (mlps || moes) json_object_set_new(kinds, "nothing", json_pack("{ss}", "mixer", "none"));
        if (mlps)
            json_object_set_new(ffn, "mlp",
                                json_pack("{ss si sb}", "kind", "relu2", "hidden", s->F, "bias", x->mlp_bias));
        if (moes) json_object_set_new(ffn, "experts", hf_moe_json(s));
        json_object_set_new(ffn, "nothing", json_pack("{ss}", "kind", "none"));
        for (const char *p = x->part; *p; p++) {
            const bool mixes = *p == LAYER_MAMBA || *p == LAYER_ATTENTION;
            json_array_append_new(pattern, json_string(!mixes ? "nothing" : *p == LAYER_MAMBA ? "mamba" : "attention"));
            json_array_append_new(parts, json_string(mixes ? "nothing" : *p == LAYER_MLP ? "mlp" : "experts"));
        }
        if (strspn(x->part, "-E") == strlen(x->part)) json_object_del(ffn, "nothing");
        j = json_pack("{si si si si sf sf so so so so}", "d_model", s->d, "layers", s->layers, "vocab", s->V,
                      "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "kinds", kinds, "pattern", pattern,
                      "ffn", ffn, "ffn_pattern", parts);
        json_object_set_new(j, "tied", json_false());
    }
    free(x);
    return j;
}

/* ---- which models it holds, writing ------------------------------------------------------------------------------ */

static bool nemotron_recurrent(const Mamba2Cfg *cfg, int d_model, bool first, Mamba2Cfg *all, const char **why) {
    Mamba2Cfg m;
    memcpy(&m, cfg, sizeof m); /* with its padding, which is compared */
    if (!m.heads) m.heads = 2 * d_model / m.head_dim;
    if (!m.conv) return hf_no(why, "no convolution");
    if (m.gate) return hf_no(why, "gate: sigmoid");
    if (m.levels) return hf_no(why, "levels");
    if (!first && memcmp(all, &m, sizeof m)) return hf_no(why, "layers of several kinds");
    memcpy(all, &m, sizeof m);
    return true;
}
static bool nemotron_mlp(const GeluCfg *k, bool first, NemotronShape *x, const char **why) {
    if (!first && (x->s.F != k->hidden || x->mlp_bias != k->bias))
        return hf_no(why, "feed-forward parts of several kinds");
    x->s.F = k->hidden, x->mlp_bias = k->bias;
    return true;
}
static bool nemotron_moe(const MoeCfg *cfg, bool first, NemotronShape *x, const char **why) {
    MoeCfg m;
    memcpy(&m, cfg, sizeof m);
    if (!m.top_groups) m.top_groups = m.groups;
    if (m.act != EXPERT_RELU2) return hf_no(why, "experts that are not relu2");
    if (m.router != ROUTER_SIGMOID || !m.bias_balance) return hf_no(why, "a router by softmax, or no bias_balance");
    if (m.shared != 1 || m.shared_gate) return hf_no(why, "not one shared expert without a gate");
    if (m.experts / m.groups < 2) return hf_no(why, "groups of one expert");
    if (!m.shared_hidden) m.shared_hidden = m.hidden;
    if (!first && memcmp(&x->s.moe, &m, sizeof m)) return hf_no(why, "experts of several kinds");
    memcpy(&x->s.moe, &m, sizeof m);
    x->latent = m.latent, x->shared = m.shared_hidden;
    return true;
}
/* What layer l is, and its settings into x. */
static bool nemotron_layer(const ModelCfg *c, int l, NemotronShape *x, const char **why) {
    const Kind *k = &c->kind[c->pattern[l]];
    const FfnKind *f = &c->ffn[c->ffn_pattern[l]];
    const bool mixes = k->mixer != mixer_find("none"), feeds = f->ffn != &none_ffn;
    if (c->kv_from[l] != l) return hf_no(why, "kv_from");
    if (mixes == feeds) return hf_no(why, "layers of two parts, or of none");
    const char part = k->mixer == mixer_find("mamba2") ? LAYER_MAMBA
                      : k->mixer == mixer_find("gqa")  ? LAYER_ATTENTION
                      : f->ffn == &relu2_ffn           ? LAYER_MLP
                      : f->ffn == &moe_ffn             ? LAYER_EXPERTS
                                                       : 0;
    const bool first = !part || !nemotron_has(x, part);
    if (!part || (mixes && part != LAYER_MAMBA && part != LAYER_ATTENTION))
        return hf_no(why, "another mixer or feed-forward part");
    x->part[l] = part;
    if (part == LAYER_MAMBA) return nemotron_recurrent(k->cfg, c->d_model, first, &x->m, why);
    if (part == LAYER_MLP) return nemotron_mlp(f->cfg, first, x, why);
    return part == LAYER_ATTENTION || nemotron_moe(f->cfg, first, x, why);
}
static bool nemotron_attends(const ModelCfg *c, HfShape *s, const char **why) {
    const GqaCfg *g = &s->g;
    if (!hf_attention(c, s, why)) return false; /* nor does the class run a model without attention */
    if (g->rope.type != ROPE_NONE) return hf_no(why, "a rotation");
    if (s->nslide) return hf_no(why, "a window");
    return !(g->qk_norm || g->qk_norm_wide || g->soft_cap > 0 || g->out_gate || g->sink_scores || g->rope_dims ||
             g->scale > 0 || g->qkv_bias || g->o_bias) ||
           hf_no(why, "a setting of attention that nemotron_h does not have");
}
static bool nemotron_shape(const ModelCfg *c, NemotronShape *x, const char **why) {
    HfShape *s = &x->s;
    if (!hf_plain(c, why)) return false;
    if (c->norm != NORM_RMS || c->positions != POSITIONS_NONE || c->parallel)
        return hf_no(why, "another norm, positions or parallel");
    if (c->tied) return hf_no(why, "a tied head");
    s->d = c->d_model, s->layers = c->layers, s->V = c->vocab, s->P = c->max_positions;
    s->eps = c->norm_eps, s->std = c->init_std;
    for (int l = 0; l < c->layers; l++)
        if (!nemotron_layer(c, l, x, why)) return false;
    if (x->mlp_bias && nemotron_has(x, LAYER_EXPERTS)) return hf_no(why, "biases next to experts");
    return nemotron_attends(c, s, why);
}
static bool nemotron_is(const ModelCfg *c, const char **why) {
    NemotronShape *x = xcalloc(1, sizeof *x);
    bool ok = nemotron_shape(c, x, why);
    free(x);
    return ok;
}
static void nemotron_json(json_t *j, const ModelCfg *c) {
    NemotronShape *x = xcalloc(1, sizeof *x);
    HfShape *s = &x->s;
    const Mamba2Cfg *m = &x->m;
    CHECK(nemotron_shape(c, x, NULL), "nemotron_h");
    json_object_set_new(j, "architectures", json_pack("[s]", hf_nemotron_h.architecture));
    json_object_set_new(j, "model_type", json_string(hf_nemotron_h.type));
    hf_keys_write(j, table, s);
    json_object_set_new(j, "num_hidden_layers", json_integer(s->layers));
    json_object_set_new(j, "hybrid_override_pattern", json_string(x->part));
    hf_keys_write(j, attention, s);
    json_object_set_new(j, "num_key_value_heads", json_integer(s->g.kv_heads));
    if (nemotron_has(x, LAYER_MAMBA)) {
        json_object_set_new(j, "mamba_num_heads", json_integer(m->heads));
        json_object_set_new(j, "mamba_head_dim", json_integer(m->head_dim));
        json_object_set_new(j, "ssm_state_size", json_integer(m->state_size));
        json_object_set_new(j, "n_groups", json_integer(m->groups));
        json_object_set_new(j, "conv_kernel", json_integer(m->conv));
        json_object_set_new(j, "use_conv_bias", json_boolean(m->conv_bias));
        json_object_set_new(j, "use_bias", json_boolean(m->bias));
    }
    if (nemotron_has(x, LAYER_MLP)) hf_keys_write(j, mlp, s);
    json_object_set_new(j, "mlp_bias", json_boolean(x->mlp_bias));
    if (nemotron_has(x, LAYER_EXPERTS)) {
        hf_keys_write(j, experts, s);
        json_object_set_new(j, "n_shared_experts", json_integer(1));
        json_object_set_new(j, "norm_topk_prob", json_boolean(s->moe.norm_topk));
        json_object_set_new(j, "moe_shared_expert_intermediate_size", json_integer(x->shared));
        json_object_set_new(j, "moe_latent_size", x->latent ? json_integer(x->latent) : json_null());
    }
    json_object_set_new(j, "mlp_hidden_act", json_string("relu2"));
    json_object_set_new(j, "mamba_hidden_act", json_string("silu"));
    json_object_set_new(j, "time_step_min", json_real(1e-30));
    json_object_set_new(j, "tie_word_embeddings", json_false());
    json_object_set_new(j, "pad_token_id", json_null()); /* not the class's id */
    json_object_set_new(j, "use_cache", json_true());
    free(x);
}

/* ---- the type ---------------------------------------------------------------------------------------------------- */

/* Without an effect: expand (the width is mamba_num_heads x mamba_head_dim), rope_theta and partial_rotary_factor
 * (there is no rotation), those of initial weights (time_step_*, rescale_*) and of how it is computed. */
static const char *const keys[] = {"layers_block_type",
                                   "layer_types",
                                   "hybrid_override_pattern",
                                   "num_hidden_layers",
                                   "attention_head_dim",
                                   "num_attention_heads",
                                   "head_dim",
                                   "num_key_value_heads",
                                   "intermediate_size",
                                   "mlp_bias",
                                   "rms_norm_eps",
                                   "mamba_num_heads",
                                   "mamba_head_dim",
                                   "ssm_state_size",
                                   "n_groups",
                                   "conv_kernel",
                                   "use_conv_bias",
                                   "use_bias",
                                   "time_step_limit",
                                   "n_routed_experts",
                                   "num_local_experts",
                                   "num_experts_per_tok",
                                   "moe_intermediate_size",
                                   "routed_scaling_factor",
                                   "n_group",
                                   "topk_group",
                                   "norm_topk_prob",
                                   "moe_shared_expert_intermediate_size",
                                   "moe_latent_size",
                                   "num_nextn_predict_layers",
                                   "mtp_layers_block_type",
                                   "mtp_hybrid_override_pattern",
                                   "expand",
                                   "rope_theta",
                                   "partial_rotary_factor",
                                   "time_step_min",
                                   "time_step_max",
                                   "time_step_floor",
                                   "time_step_rank",
                                   "rescale_prenorm_residual",
                                   "residual_in_fp32",
                                   "hidden_dropout",
                                   "chunk_size",
                                   "num_logits_to_keep",
                                   "use_mamba_kernels",
                                   "mamba_ssm_cache_dtype",
                                   "moe_shared_expert_overlap",
                                   "output_router_logits",
                                   NULL};
/* Its class reads neither tie_word_embeddings, attention_bias, mamba_proj_bias nor n_shared_experts; other programs
 * do. */
static const HfMust musts[] = {{"tie_word_embeddings", "false"},
                               {"attention_bias", "false"},
                               {"mamba_proj_bias", "false"},
                               {"n_shared_experts", "1"},
                               {"mlp_hidden_act", "\"relu2\""},
                               {"mamba_hidden_act", "\"silu\""},
                               {0}};
static const HfName names[] = {{.ours = "model.embed_tokens.", .theirs = "embeddings."},
                               {.ours = "model.norm.", .theirs = "norm_f."},
                               {.ours = "lm_head.", .theirs = "/lm_head."},
                               {.ours = "input_layernorm.", .theirs = "norm."},
                               {.ours = "post_attention_layernorm.",
                                .theirs = "norm."}, /* that before the only part, too */
                               {.ours = "self_attn.", .theirs = "mixer."},
                               {.ours = "mlp.", .theirs = "mixer."},
                               {0}};
static const HfPast past[] = {{"mtp.", "layers that predict further tokens"}, {0}};
const HfType hf_nemotron_h = {.type = "nemotron_h",
                              .architecture = "NemotronHForCausalLM",
                              .about = "Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers of one part each",
                              .keys = keys,
                              .table = table,
                              .musts = musts,
                              .settings = nemotron_settings,
                              .is = nemotron_is,
                              .json = nemotron_json,
                              .names = names,
                              .layer = "backbone.layers.",
                              .top = "backbone.",
                              .past = past};
