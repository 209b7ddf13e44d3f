/* hf_fla_types.c: model types of flash-linear-attention: kda, gated_deltanet, delta_net, gla and retnet. Each is a
 * decoder of one mixer with a state and a swiglu, in which softmax attention may take the mixer's place in some layers.
 * A model is written as one of them if its settings ask for it (library: fla), because transformers alone does not have
 * these classes. Source of fields, defaults, layouts and meaning: fla 0.6.0, of each type its configuration in
 * fla/models/ and its layer in fla/layers/; fla/models/configuration_utils.py and fla/layers/attn.py of attention. */
#include "hf_fla.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* base x `key` (by default dflt) in each of `heads` heads, which must be a whole number. */
static bool fla_width(const HfFile *f, const char *key, double dflt, int base, int heads, int *out) {
    double times;
    if (!hf_number(f, key, dflt, false, &times)) return false;
    const double all = base * times, each = all / heads;
    *out = each < 1e6 ? (int)lround(each) : 0;
    return (*out > 0 && fabs((double)*out * heads - all) <= 1e-9 * all) ||
           err_input(f->e, "%s: \"%s\": expected %d x %g to be a whole number in each of %d heads, found %g", f->path,
                     key, base, times, heads, each);
}
/* The factor of which fla_width, and fla's own truncation of base x factor, make `width`. */
static json_t *fla_factor(int width, int base) {
    const double x = (double)width / base;
    return json_real((int)(base * x) < width ? nextafter(x, INFINITY) : x);
}
static bool fla_conv(const HfFile *f, bool dflt, int *out) {
    bool used;
    if (!fla_flag(f, "use_short_conv", dflt, &used) || !hf_whole(f, "conv_size", 1, 4, out)) return false;
    if (!used) *out = 0;
    return true;
}
static bool fla_beta(const HfFile *f, int *out) {
    bool negative;
    if (!fla_flag(f, "allow_neg_eigval", false, &negative)) return false;
    *out = negative ? 2 : 1;
    return true;
}
static bool fla_gate(const HfFile *f, const char *key, bool dflt, int *out) {
    bool gate;
    if (!fla_flag(f, key, dflt, &gate)) return false;
    *out = gate ? LINE_GATE_SILU : LINE_GATE_NONE;
    return true;
}
/* The gain of the heads' norm, which a model of ours always has. */
static bool fla_gain(const HfFile *f) {
    bool gain;
    if (!fla_flag(f, "elementwise_affine", true, &gain)) return false;
    return gain || err_input(f->e,
                             "%s: \"elementwise_affine\": expected true, found %s; norms without weights are not "
                             "supported",
                             f->path, hf_found(json_object_get(f->j, "elementwise_affine")));
}
static void fla_conv_json(json_t *j, int conv) {
    json_object_set_new(j, "use_short_conv", json_boolean(conv > 0));
    json_object_set_new(j, "conv_size", json_integer(conv ? conv : 4));
}
static json_t *fla_line_kind(const char *mixer, const LineCfg *c) {
    return json_pack("{ss si si si si ss}", "mixer", mixer, "heads", c->heads, "head_dim", c->head_dim, "v_dim",
                     c->v_dim, "conv", c->conv, "gate", line_gates[c->gate]);
}

/* ---- layers with a state ----------------------------------------------------------------------------------------- */

/* A copy of a line's settings without what has no influence on results, by which layers are compared. */
static bool fla_line(const ModelCfg *c, const void *cfg, bool sigmoid, int v_per_k, LineCfg *y, const char **why) {
    memcpy(y, cfg, sizeof *y);
    if (y->gate >= LINE_GATE_FALSE) y->gate -= LINE_GATE_FALSE;
    if (!y->head_dim) y->head_dim = c->d_model / y->heads;
    if (!y->v_dim) y->v_dim = v_per_k * y->head_dim;
    if (!y->v_heads) y->v_heads = y->heads;
    if (!y->kv_heads) y->kv_heads = y->heads;
    y->rates = 0;
    if (y->conv_bias) return hf_no(why, "conv_bias");
    if (y->householders > 1) return hf_no(why, "householders");
    if (y->levels) return hf_no(why, "levels");
    if (y->inner_decay || y->output_correction) return hf_no(why, "inner_decay or output_correction");
    return sigmoid || y->gate != LINE_GATE_SIGMOID || hf_no(why, "gate: sigmoid");
}

static bool fla_kda_read(const HfFile *f, FlaShape *x) {
    KdaCfg *k = &x->kda;
    bool safe;
    if (!hf_whole(f, "num_heads", 1, 16, &k->heads) || !hf_whole(f, "head_dim", 1, 128, &k->head_dim) ||
        !fla_groups(f, "num_v_heads", k->heads, true, &k->v_heads) ||
        !fla_width(f, "expand_v", 1, k->head_dim, 1, &k->v_dim) || !fla_conv(f, true, &k->conv) ||
        !fla_beta(f, &k->beta_max) || !fla_flag(f, "safe_gate", false, &safe))
        return false;
    const json_t *bound = json_object_get(f->j, "lower_bound");
    k->gate = hf_given(f->j, "lower_bound") ? KDA_LOWER_BOUND : KDA_STANDARD;
    if (k->gate == KDA_STANDARD)
        return !safe || err_input(f->e, "%s: \"lower_bound\" is missing, but \"safe_gate\" is true", f->path);
    k->bound = json_number_value(bound);
    return (json_is_number(bound) && k->bound < 0) ||
           err_input(f->e, "%s: \"lower_bound\": expected a number below 0, found %s", f->path,
                     json_is_number(bound) ? "another" : hf_json_kind(bound));
}
static json_t *fla_kda_kind(const FlaShape *x) {
    const KdaCfg *k = &x->kda;
    json_t *j = json_pack("{ss si si si si si ss sb si}", "mixer", "kda", "heads", k->heads, "v_heads", k->v_heads,
                          "head_dim", k->head_dim, "v_dim", k->v_dim, "conv", k->conv, "gate",
                          k->gate == KDA_STANDARD ? "standard" : "lower_bound", "out_bias", 1, "beta_max", k->beta_max);
    if (k->gate == KDA_LOWER_BOUND) json_object_set_new(j, "bound", json_real(k->bound));
    return j;
}
static bool fla_kda_holds(const ModelCfg *c, const void *cfg, FlaShape *x, const char **why) {
    KdaCfg *k = &x->kda;
    memcpy(k, cfg, sizeof *k);
    if (k->kv_heads && k->kv_heads != k->heads) return hf_no(why, "kv_heads");
    k->kv_heads = 0;
    if (!k->v_heads) k->v_heads = k->heads;
    if (!k->head_dim) k->head_dim = c->d_model / k->heads;
    if (!k->v_dim) k->v_dim = k->head_dim;
    if (k->gate == KDA_STANDARD) k->bound = 0;
    k->rates = 0;
    if (k->gate_proj != KDA_LOW_RANK || (k->gate_rank && k->gate_rank != k->v_dim))
        return hf_no(why, "gate_proj or gate_rank");
    if (k->out_gate != KDA_LOW_RANK || (k->out_rank && k->out_rank != k->v_dim) || k->out_act != KDA_SIGMOID)
        return hf_no(why, "out_gate, out_rank or out_act");
    k->gate_rank = k->out_rank = 0;
    if (!k->out_bias) return hf_no(why, "no out_bias");
    if (k->erase != KDA_BY_HEAD) return hf_no(why, "erase: channel");
    if (k->levels) return hf_no(why, "levels");
    return !k->conv_bias || hf_no(why, "conv_bias");
}
static void fla_kda_write(json_t *j, const FlaShape *x) {
    const KdaCfg *k = &x->kda;
    json_object_set_new(j, "num_heads", json_integer(k->heads));
    json_object_set_new(j, "num_v_heads", json_integer(k->v_heads));
    json_object_set_new(j, "head_dim", json_integer(k->head_dim));
    json_object_set_new(j, "expand_v", fla_factor(k->v_dim, k->head_dim));
    json_object_set_new(j, "allow_neg_eigval", json_boolean(k->beta_max == 2));
    /* the kernels' fast path knows bounds down to -5 */
    json_object_set_new(j, "safe_gate", json_boolean(k->gate == KDA_LOWER_BOUND && k->bound >= -5));
    json_object_set_new(j, "lower_bound", k->gate == KDA_LOWER_BOUND ? json_real(k->bound) : json_null());
    fla_conv_json(j, k->conv);
}

static bool fla_gdn_read(const HfFile *f, FlaShape *x) {
    LineCfg *c = &x->s.line;
    const json_t *act = json_object_get(f->j, "output_gate_activation");
    if (!hf_whole(f, "num_heads", 1, 6, &c->heads) || !hf_whole(f, "head_dim", 1, 256, &c->head_dim) ||
        !fla_groups(f, "num_v_heads", c->heads, true, &c->v_heads) ||
        !fla_width(f, "expand_v", 2, c->head_dim, 1, &c->v_dim) || !fla_conv(f, true, &c->conv) ||
        !fla_beta(f, &c->beta_max) || !fla_gate(f, "use_gate", true, &c->gate))
        return false;
    if (!hf_given(f->j, "output_gate_activation")) return true;
    const char *name = hf_found(act);
    if (!strcmp(name, "sigmoid") && c->gate) c->gate = LINE_GATE_SIGMOID;
    return !strcmp(name, "sigmoid") || !strcmp(name, "swish") || !strcmp(name, "silu") ||
           err_input(f->e, "%s: \"output_gate_activation\": expected swish, silu or sigmoid, found %.40s", f->path,
                     name);
}
static json_t *fla_gdn_kind(const FlaShape *x) {
    json_t *j = fla_line_kind("gdn", &x->s.line);
    json_object_set_new(j, "v_heads", json_integer(x->s.line.v_heads));
    json_object_set_new(j, "beta_max", json_integer(x->s.line.beta_max));
    return j;
}
static bool fla_gdn_holds(const ModelCfg *c, const void *cfg, FlaShape *x, const char **why) {
    const LineCfg *y = &x->s.line;
    return fla_line(c, cfg, true, 2, &x->s.line, why) && (y->kv_heads == y->heads || hf_no(why, "kv_heads"));
}
static void fla_gdn_write(json_t *j, const FlaShape *x) {
    const LineCfg *c = &x->s.line;
    json_object_set_new(j, "num_heads", json_integer(c->heads));
    json_object_set_new(j, "num_v_heads", json_integer(c->v_heads));
    json_object_set_new(j, "head_dim", json_integer(c->head_dim));
    json_object_set_new(j, "expand_v", fla_factor(c->v_dim, c->head_dim));
    json_object_set_new(j, "use_gate", json_boolean(c->gate));
    json_object_set_new(j, "output_gate_activation", json_string(c->gate == LINE_GATE_SIGMOID ? "sigmoid" : "swish"));
    json_object_set_new(j, "allow_neg_eigval", json_boolean(c->beta_max == 2));
    fla_conv_json(j, c->conv);
}

/* Widths of types that give those of all heads together. */
static bool fla_expands(const HfFile *f, FlaShape *x, int heads, double k, double v) {
    LineCfg *c = &x->s.line;
    return hf_whole(f, "num_heads", 1, heads, &c->heads) &&
           fla_width(f, "expand_k", k, x->s.d, c->heads, &c->head_dim) &&
           fla_width(f, "expand_v", v, x->s.d, c->heads, &c->v_dim);
}
static void fla_expands_json(json_t *j, const FlaShape *x) {
    const LineCfg *c = &x->s.line;
    json_object_set_new(j, "num_heads", json_integer(c->heads));
    json_object_set_new(j, "expand_k", fla_factor(c->heads * c->head_dim, x->s.d));
    json_object_set_new(j, "expand_v", fla_factor(c->heads * c->v_dim, x->s.d));
}
static bool fla_delta_read(const HfFile *f, FlaShape *x) {
    LineCfg *c = &x->s.line;
    return fla_expands(f, x, 16, 1, 1) && fla_conv(f, true, &c->conv) && fla_beta(f, &c->beta_max) &&
           fla_gate(f, "use_gate", false, &c->gate);
}
static json_t *fla_delta_kind(const FlaShape *x) {
    json_t *j = fla_line_kind("deltanet", &x->s.line);
    json_object_set_new(j, "beta_max", json_integer(x->s.line.beta_max));
    return j;
}
static bool fla_delta_holds(const ModelCfg *c, const void *cfg, FlaShape *x, const char **why) {
    const LineCfg *y = &x->s.line;
    return fla_line(c, cfg, false, 1, &x->s.line, why) && (y->kv_heads == y->heads || hf_no(why, "kv_heads"));
}
static void fla_delta_write(json_t *j, const FlaShape *x) {
    const LineCfg *c = &x->s.line;
    fla_expands_json(j, x);
    json_object_set_new(j, "use_gate", json_boolean(c->gate));
    json_object_set_new(j, "use_beta", json_true());
    json_object_set_new(j, "qk_norm", json_string("l2"));
    json_object_set_new(j, "qk_activation", json_string("silu"));
    json_object_set_new(j, "allow_neg_eigval", json_boolean(c->beta_max == 2));
    fla_conv_json(j, c->conv);
}

enum { GLA_RANK = 16, GLA_DIVISOR = 16 }; /* not in config.json: the layer's defaults */
static bool fla_gla_read(const HfFile *f, FlaShape *x) {
    LineCfg *c = &x->s.line;
    return fla_expands(f, x, 4, 0.5, 1) && fla_groups(f, "num_kv_heads", c->heads, false, &c->kv_heads) &&
           fla_conv(f, false, &c->conv) && fla_gate(f, "use_output_gate", true, &c->gate) && fla_gain(f);
}
static json_t *fla_gla_kind(const FlaShape *x) {
    json_t *j = fla_line_kind("gla", &x->s.line);
    json_object_set_new(j, "kv_heads", json_integer(x->s.line.kv_heads));
    json_object_set_new(j, "gate_rank", json_integer(GLA_RANK));
    json_object_set_new(j, "gate_divisor", json_integer(GLA_DIVISOR));
    return j;
}
static bool fla_gla_holds(const ModelCfg *c, const void *cfg, FlaShape *x, const char **why) {
    LineCfg y;
    memcpy(&y, cfg, sizeof y);
    if (!y.head_dim) y.head_dim = c->d_model / y.heads / 2;
    if (y.gate_rank != GLA_RANK) return hf_no(why, "gate_rank that is not 16");
    if (y.gate_divisor != GLA_DIVISOR) return hf_no(why, "gate_divisor that is not 16");
    return fla_line(c, &y, false, 2, &x->s.line, why);
}
static void fla_gla_write(json_t *j, const FlaShape *x) {
    const LineCfg *c = &x->s.line;
    fla_expands_json(j, x);
    json_object_set_new(j, "num_kv_heads", json_integer(c->kv_heads));
    json_object_set_new(j, "use_output_gate", json_boolean(c->gate));
    fla_conv_json(j, c->conv);
}

enum { RETNET_THETA = 10000, RETNET_MAX = 256 }; /* base of the rotation; widest key of its layer */
static bool fla_retnet_read(const HfFile *f, FlaShape *x) {
    LineCfg *c = &x->s.line;
    if (!fla_expands(f, x, 8, 1, 2) || !fla_groups(f, "num_kv_heads", c->heads, false, &c->kv_heads) ||
        !fla_gate(f, "use_output_gate", true, &c->gate) || !fla_gain(f))
        return false;
    return c->kv_heads == c->heads ||
           err_input(f->e,
                     "%s: \"num_kv_heads\": expected num_heads (%d), found %d: heads of different decays cannot "
                     "share a state",
                     f->path, c->heads, c->kv_heads);
}
static json_t *fla_retnet_kind(const FlaShape *x) {
    json_t *j = fla_line_kind("retention", &x->s.line);
    json_object_set_new(j, "rope", json_pack("{si}", "theta", RETNET_THETA));
    return j;
}
static bool fla_retnet_holds(const ModelCfg *c, const void *cfg, FlaShape *x, const char **why) {
    const LineCfg *y = &x->s.line;
    if (!fla_line(c, cfg, false, 2, &x->s.line, why)) return false;
    if (y->conv) return hf_no(why, "a convolution");
    if (y->head_dim > RETNET_MAX) return hf_no(why, "head_dim over 256");
    return (fla_turns(&y->rope) && y->rope.theta == RETNET_THETA) || hf_no(why, "another rotation");
}
static void fla_retnet_write(json_t *j, const FlaShape *x) {
    fla_expands_json(j, x);
    json_object_set_new(j, "use_output_gate", json_boolean(x->s.line.gate));
}

static const FlaType kda = {&hf_fla_kda, "kda", 4, fla_kda_read, fla_kda_kind, fla_kda_holds, fla_kda_write},
                     gdn = {&hf_fla_gdn, "gdn", 4, fla_gdn_read, fla_gdn_kind, fla_gdn_holds, fla_gdn_write},
                     delta = {&hf_fla_delta,   "deltanet",     4, fla_delta_read, fla_delta_kind,
                              fla_delta_holds, fla_delta_write},
                     gla = {&hf_fla_gla, "gla", 4, fla_gla_read, fla_gla_kind, fla_gla_holds, fla_gla_write},
                     retnet = {&hf_fla_retnet,   "retention",     2, fla_retnet_read, fla_retnet_kind,
                               fla_retnet_holds, fla_retnet_write};

/* ---- the types --------------------------------------------------------------------------------------------------- */

/* attn_mode and fuse_*: how it is computed. use_l2warp: of losses. use_gk, use_gv, use_output_norm: its class passes
 * them by. */
#define FLA_KEYS                                                                                                    \
    "hidden_size", "num_hidden_layers", "max_position_embeddings", "intermediate_size", "hidden_ratio", "norm_eps", \
        "num_heads", "attn", "attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy",                         \
        "fuse_linear_cross_entropy", "use_l2warp", "conv_size"
static const char *const kda_keys[] = {FLA_KEYS,    "head_dim",         "num_v_heads", "expand_v", "use_short_conv",
                                       "safe_gate", "allow_neg_eigval", "lower_bound", NULL},
                         *const gdn_keys[] = {FLA_KEYS,         "head_dim",         "num_v_heads",
                                              "expand_v",       "use_gate",         "output_gate_activation",
                                              "use_short_conv", "allow_neg_eigval", NULL},
                         *const delta_keys[] = {FLA_KEYS,         "expand_k",         "expand_v",        "use_gate",
                                                "use_short_conv", "allow_neg_eigval", "use_output_norm", NULL},
                         *const gla_keys[] =
                             {FLA_KEYS,          "expand_k",           "expand_v", "num_kv_heads", "use_short_conv",
                              "use_output_gate", "elementwise_affine", "use_gk",   "use_gv",       NULL},
                         *const retnet_keys[] = {FLA_KEYS,          "expand_k",           "expand_v", "num_kv_heads",
                                                 "use_output_gate", "elementwise_affine", NULL};
#define FLA_MUSTS \
    {"hidden_act", "\"swish\""}, { "attnres_block_size", "null" }
static const HfMust musts[] = {FLA_MUSTS, {0}},
                    delta_musts[] = {FLA_MUSTS,
                                     {"use_beta", "true"},
                                     {"qk_norm", "\"l2\""},
                                     {"qk_activation", "\"silu\""},
                                     {0}},
                    gla_musts[] = {FLA_MUSTS, {"feature_map", "null"}, {"clamp_min", "null"}, {0}},
                    retnet_musts[] = {FLA_MUSTS, {"feature_map", "null"}, {"use_short_conv", "false"}, {0}};
#define FLA_NAMES                                                       \
    {.ours = "model.embed_tokens.", .theirs = "model.embeddings."},     \
        {.ours = "input_layernorm.", .theirs = "attn_norm."},           \
        {.ours = "post_attention_layernorm.", .theirs = "mlp_norm."}, { \
        .ours = "self_attn.", .theirs = "attn."                         \
    }
static const HfName names[] = {FLA_NAMES, {0}},
                    kda_names[] = {{.ours = "self_attn.f_a_proj.", .theirs = "attn.f_proj.0."},
                                   {.ours = "self_attn.f_b_proj.", .theirs = "attn.f_proj.1."},
                                   {.ours = "self_attn.g_a_proj.", .theirs = "attn.g_proj.0."},
                                   {.ours = "self_attn.g_b_proj.", .theirs = "attn.g_proj.1."},
                                   FLA_NAMES,
                                   {0}},
                    /* with fuse_norm: false the norm has the second name */
    gated_names[] = {{.ours = "self_attn.g_norm_swish_gate.",
                      .theirs = "attn.g_norm_swish_gate.",
                      .also = "attn.g_norm."},
                     FLA_NAMES,
                     {0}};

#define FLA_TYPE(t)                                                                              \
    static json_t *fla_##t##_settings(const HfFile *f) { return fla_settings(&t, f); }           \
    static bool fla_##t##_is(const ModelCfg *c, const char **why) { return fla_is(&t, c, why); } \
    static void fla_##t##_json(json_t *j, const ModelCfg *c) { fla_json(&t, j, c); }
FLA_TYPE(kda)
FLA_TYPE(gdn)
FLA_TYPE(delta)
FLA_TYPE(gla)
FLA_TYPE(retnet)
#define FLA_HOOKS(t) .settings = fla_##t##_settings, .is = fla_##t##_is, .json = fla_##t##_json
const HfType hf_fla_kda = {.type = "kda",
                           .architecture = "KDAForCausalLM",
                           .about = "Kimi Delta Attention of flash-linear-attention, with attention in some layers",
                           .keys = kda_keys,
                           .musts = musts,
                           .names = kda_names,
                           FLA_HOOKS(kda)};
const HfType hf_fla_gdn = {.type = "gated_deltanet",
                           .architecture = "GatedDeltaNetForCausalLM",
                           .about = "its Gated DeltaNet, in the same way",
                           .keys = gdn_keys,
                           .musts = musts,
                           .names = names,
                           FLA_HOOKS(gdn)};
const HfType hf_fla_delta = {.type = "delta_net",
                             .architecture = "DeltaNetForCausalLM",
                             .about = "its DeltaNet, in the same way",
                             .keys = delta_keys,
                             .musts = delta_musts,
                             .names = names,
                             FLA_HOOKS(delta)};
const HfType hf_fla_gla = {.type = "gla",
                           .architecture = "GLAForCausalLM",
                           .about = "its gated linear attention, in the same way",
                           .keys = gla_keys,
                           .musts = gla_musts,
                           .names = gated_names,
                           FLA_HOOKS(gla)};
const HfType hf_fla_retnet = {.type = "retnet",
                              .architecture = "RetNetForCausalLM",
                              .about = "its multi-scale retention, in the same way",
                              .keys = retnet_keys,
                              .musts = retnet_musts,
                              .names = gated_names,
                              FLA_HOOKS(retnet)};

bool hf_is_fla(const ModelCfg *c, const char **why) {
    const FlaType *all[] = {&kda, &gdn, &delta, &gla, &retnet};
    for (int l = 0; l < c->layers; l++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (c->kind[c->pattern[l]].mixer == mixer_find(all[i]->mixer)) return fla_is(all[i], c, why);
    return hf_mamba2.is(c, NULL) || hf_no(why, "its mixers");
}
