/* hf_mamba2.c: the model type mamba2: blocks of a norm and the mixer mamba2 alone. Source of fields, defaults and
 * layouts: transformers configuration_mamba2 and modeling_mamba2. flash-linear-attention 0.6.0 has a type of this name
 * with the same tensors, other defaults and some other keys (fla/models/mamba2); what is written both can load. */
#include "layers/mamba2/mamba2.h"
#include "hf_file.h"

typedef struct {
    Mamba2Cfg m;
    int d, layers, V, P;
    double eps, std;
    bool tied;
} Mamba2Shape;

static bool mamba2_unlimited(const HfFile *f, const char *key) {
    const json_t *v = json_object_get(f->j, key), *most = json_array_get(v, 1);
    if (!hf_given(f->j, key)) return true;
    if (json_is_object(most)) most = json_object_get(most, "__float__");
    return (json_array_size(v) == 2 && json_is_number(json_array_get(v, 0)) &&
            json_number_value(json_array_get(v, 0)) <= 0 && json_is_string(most) &&
            !strcmp(json_string_value(most), "Infinity")) ||
           err_input(f->e, "%s: \"%s\": expected [0.0, Infinity]; other limits are not supported", f->path, key);
}
bool hf_steps_unlimited(const HfFile *f) { return mamba2_unlimited(f, "time_step_limit"); }
/* What fla's class reads and transformers' does not. */
static bool mamba2_fla(const HfFile *f) {
    static const HfMust musts[] = {{"rmsnorm", "true"}, {"D_has_hdim", "false"}, {"norm_before_gate", "false"}, {0}};
    return hf_musts_met(f, musts) && mamba2_unlimited(f, "dt_limit");
}
static bool mamba2_read(const HfFile *f, Mamba2Shape *s) {
    Mamba2Cfg *m = &s->m;
    const json_t *act = json_object_get(f->j, "hidden_act"), *eps = json_object_get(f->j, "layer_norm_epsilon"),
                 *eps_fla = json_object_get(f->j, "norm_eps");
    const bool fla = eps_fla && !eps;
    int expand;
    if (eps && eps_fla && !json_equal(eps, eps_fla))
        return err_input(f->e, "%s: \"layer_norm_epsilon\" and \"norm_eps\" differ; remove one", f->path);
    if (!hf_musts_met(f, hf_mamba2.musts) || (fla && !mamba2_fla(f)) ||
        !hf_whole(f, "hidden_size", 1, HF_NEEDED, &s->d) ||
        !hf_whole(f, "num_hidden_layers", 1, HF_NEEDED, &s->layers) ||
        !hf_whole(f, "vocab_size", 1, HF_NEEDED, &s->V) || !hf_whole(f, "max_position_embeddings", 1, 1 << 20, &s->P) ||
        !hf_whole(f, "head_dim", 1, 64, &m->head_dim) || !hf_whole(f, "expand", 1, 2, &expand) ||
        !hf_whole(f, "num_heads", 1, fla ? imax(1, (int)((long)expand * s->d / m->head_dim)) : 128, &m->heads) ||
        !hf_whole(f, "state_size", 1, 128, &m->state_size) || !hf_whole(f, "n_groups", 1, fla ? 1 : 8, &m->groups) ||
        !hf_whole(f, "conv_kernel", 1, 4, &m->conv) ||
        !hf_number(f, fla ? "norm_eps" : "layer_norm_epsilon", 1e-5, false, &s->eps) ||
        !hf_number(f, "initializer_range", fla ? 0.02 : 0.1, true, &s->std) ||
        !hf_flag_or(f, "use_conv_bias", true, &m->conv_bias) || !hf_flag(f, "use_bias", &m->bias) ||
        !hf_flag(f, "tie_word_embeddings", &s->tied) || !hf_steps_unlimited(f))
        return false;
    if (hf_given(f->j, "hidden_act") && strcmp(hf_found(act), "silu"))
        return err_input(f->e, "%s: \"hidden_act\": expected silu, found %.40s", f->path, hf_found(act));
    return (long)m->heads * m->head_dim == (long)expand * s->d ||
           err_input(f->e,
                     "%s: \"num_heads\": expected num_heads x head_dim to be expand x hidden_size, %d x %d, found "
                     "%d x %d",
                     f->path, expand, s->d, m->heads, m->head_dim);
}
json_t *hf_mamba2_kind(const Mamba2Cfg *m) {
    return json_pack("{ss si si si si si sb sb}", "mixer", "mamba2", "heads", m->heads, "head_dim", m->head_dim,
                     "state_size", m->state_size, "groups", m->groups, "conv", m->conv, "conv_bias", m->conv_bias,
                     "bias", m->bias);
}
static json_t *mamba2_settings(const HfFile *f) {
    Mamba2Shape s = {.d = 0};
    const Mamba2Cfg *m = &s.m;
    if (!mamba2_read(f, &s)) return NULL;
    return json_pack("{si si si si sf sf sb s{so} s[s] s[{ss}]}", "d_model", s.d, "layers", s.layers, "vocab", s.V,
                     "max_positions", s.P, "norm_eps", s.eps, "init_std", s.std, "tied", s.tied, "kinds", "mamba",
                     hf_mamba2_kind(m), "pattern", "mamba", "ffn", "kind", "none");
}

bool hf_mamba2_plain(const Mamba2Cfg *cfg, int d_model, Mamba2Cfg *m, const char **why) {
    memcpy(m, cfg, sizeof *m); /* with its padding, which may be compared */
    if (!m->heads) m->heads = 2 * d_model / m->head_dim;
    if (!m->conv) return hf_no(why, "no convolution");
    if (m->gate) return hf_no(why, "gate: sigmoid");
    if (m->levels) return hf_no(why, "levels");
    return (long)m->heads * m->head_dim % d_model == 0 || hf_no(why, "heads x head_dim that d_model does not divide");
}
static bool mamba2_shape(const ModelCfg *c, Mamba2Cfg *m, const char **why) {
    if (!hf_block(c, (HfBlock){"mamba2", NULL, "none", NORM_RMS, POSITIONS_NONE, false}, why) || !hf_plain(c, why))
        return false;
    for (int l = 1; l < c->layers; l++)
        if (c->pattern[l] != c->pattern[0]) return hf_no(why, "layers of several kinds");
    return hf_mamba2_plain(c->kind[c->pattern[0]].cfg, c->d_model, m, why);
}
static bool is_mamba2(const ModelCfg *c, const char **why) {
    Mamba2Cfg m;
    return mamba2_shape(c, &m, why);
}
static void mamba2_json(json_t *j, const ModelCfg *c) {
    Mamba2Cfg m;
    CHECK(mamba2_shape(c, &m, NULL), "mamba2");
    json_object_set_new(j, "architectures", json_pack("[s]", "Mamba2ForCausalLM"));
    json_object_set_new(j, "model_type", json_string("mamba2"));
    json_object_set_new(j, "vocab_size", json_integer(c->vocab));
    json_object_set_new(j, "hidden_size", json_integer(c->d_model));
    json_object_set_new(j, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(j, "num_heads", json_integer(m.heads));
    json_object_set_new(j, "head_dim", json_integer(m.head_dim));
    json_object_set_new(j, "state_size", json_integer(m.state_size));
    json_object_set_new(j, "n_groups", json_integer(m.groups));
    json_object_set_new(j, "conv_kernel", json_integer(m.conv));
    json_object_set_new(j, "expand", json_integer(m.heads * m.head_dim / c->d_model));
    json_object_set_new(j, "use_bias", json_boolean(m.bias));
    json_object_set_new(j, "use_conv_bias", json_boolean(m.conv_bias));
    json_object_set_new(j, "hidden_act", json_string("silu"));
    json_object_set_new(j, "layer_norm_epsilon", json_real(c->norm_eps));
    json_object_set_new(j, "norm_eps", json_real(c->norm_eps)); /* fla's name */
    json_object_set_new(j, "initializer_range", json_real(c->init_std));
    json_object_set_new(j, "max_position_embeddings", json_integer(c->max_positions)); /* ours; the class has none */
    json_object_set_new(j, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(j, "use_cache", json_true());
}

static const HfName mamba2_names[] = {
    {.ours = "model.embed_tokens.", .theirs = "embeddings.", .also = "backbone.embedding."},
    {.ours = "model.norm.", .theirs = "norm_f."},
    {.ours = "lm_head.", .theirs = "/lm_head."},
    {.ours = "input_layernorm.", .theirs = "norm."},
    {.ours = "self_attn.", .theirs = "mixer."},
    {0},
};
/* time_step_*, rescale_*, dt_*, *_init*: of initial weights alone; chunk_size: how it is computed. The class reads
 * norm_before_gate as little as we do: the gate comes first. */
static const char *const mamba2_keys[] = {"hidden_size", "num_hidden_layers", "num_heads", "head_dim", "state_size",
                                          "n_groups", "conv_kernel", "expand", "use_bias", "use_conv_bias",
                                          "hidden_act", "layer_norm_epsilon", "max_position_embeddings",
                                          "residual_in_fp32", "rescale_prenorm_residual", "chunk_size",
                                          "time_step_rank", "time_step_min", "time_step_max", "time_step_floor",
                                          "time_step_limit", "norm_before_gate",
                                          /* of fla */
                                          "norm_eps", "rmsnorm", "D_has_hdim", "dt_limit", "dt_min", "dt_max",
                                          "dt_init_floor", "conv_init", "A_init_range", "fuse_norm",
                                          "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", NULL};
static const HfMust mamba2_musts[] = {{"rms_norm", "true"}, {0}};
const HfType hf_mamba2 = {.type = "mamba2",
                          .architecture = "Mamba2ForCausalLM",
                          .about = "Mamba-2 and Codestral Mamba: the recurrence alone, without feed-forward parts",
                          .keys = mamba2_keys,
                          .musts = mamba2_musts,
                          .settings = mamba2_settings,
                          .is = is_mamba2,
                          .json = mamba2_json,
                          .names = mamba2_names,
                          .layer = "backbone.layers.",
                          .top = "backbone."};
