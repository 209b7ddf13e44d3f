/* hf_gpt.c: the model types gpt2 and gpt_neox: LayerNorms, GELU, joined projections. Source of fields, defaults and
 * layouts: transformers configuration_gpt2, modeling_gpt2, configuration_gpt_neox, modeling_gpt_neox. */
#include "hf_file.h"

static bool act_read(const HfFile *f, const char *key, const char *dflt, const char **out) {
    static const char *const names[][2] = {{"gelu_new", "tanh"},
                                           {"gelu_pytorch_tanh", "tanh"},
                                           {"gelu_fast", "tanh"},
                                           {"gelu", "erf"},
                                           {"gelu_python", "erf"}};
    const json_t *v = json_object_get(f->j, key);
    const char *name = hf_given(f->j, key) ? hf_found(v) : dflt;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i][0])) return *out = names[i][1], true;
    return err_input(f->e, "%s: \"%s\": expected gelu, gelu_new, gelu_fast or gelu_pytorch_tanh, found %.40s", f->path,
                     key, name);
}
static bool hf_gpt_must(const HfFile *f, const char *key, bool want) {
    bool v;
    if (!hf_flag_or(f, key, want, &v)) return false;
    return v == want || err_input(f->e, "%s: \"%s\": %s is not supported", f->path, key, v ? "true" : "false");
}
/* The settings that both types have; takes over the attention's settings. */
typedef struct {
    int d, F, layers, H, V, P;
    double eps, std;
    bool tied, parallel;
    const char *act, *positions;
} Shape;
static json_t *hf_gpt_settings(const Shape *s, json_t *attention) {
    return json_pack("{si si si si sf sf sb sb ss ss s{so} s[s] s[{ss si ss}]}", "d_model", s->d, "layers", s->layers,
                     "vocab", s->V, "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "tied", s->tied,
                     "parallel", s->parallel, "norm", "layer", "positions", s->positions, "kinds", "full", attention,
                     "pattern", "full", "ffn", "kind", "gelu", "hidden", s->F, "act", s->act);
}
static bool heads_divide(const HfFile *f, const char *heads, int H, const char *width, int d) {
    return d % H == 0 || err_input(f->e, "%s: \"%s\": %d does not divide %s, which is %d", f->path, heads, H, width, d);
}

/* ---- gpt2 -------------------------------------------------------------------------------------------------------- */

static json_t *gpt2_settings(const HfFile *f) {
    Shape s = {.positions = "learned"};
    if (!hf_whole(f, "n_embd", 1, -1, &s.d) || !hf_whole(f, "n_layer", 1, -1, &s.layers) ||
        !hf_whole(f, "n_head", 1, -1, &s.H) || !hf_whole(f, "vocab_size", 1, -1, &s.V) ||
        !hf_whole(f, "n_positions", 1, 1024, &s.P) || !hf_whole(f, "n_inner", 1, s.d > 1 << 20 ? s.d : 4 * s.d, &s.F) ||
        !hf_number(f, "layer_norm_epsilon", 1e-5, false, &s.eps) ||
        !hf_number(f, "initializer_range", 0.02, true, &s.std) ||
        !hf_flag_or(f, "tie_word_embeddings", true, &s.tied) ||
        !act_read(f, "activation_function", "gelu_new", &s.act) || !hf_gpt_must(f, "scale_attn_weights", true) ||
        !hf_gpt_must(f, "scale_attn_by_inverse_layer_idx", false) || !hf_gpt_must(f, "add_cross_attention", false) ||
        !heads_divide(f, "n_head", s.H, "n_embd", s.d))
        return NULL;
    return hf_gpt_settings(&s, json_pack("{ss si si si ss sb sb}", "mixer", "gqa", "heads", s.H, "kv_heads", s.H,
                                         "head_dim", s.d / s.H, "rope", "none", "qkv_bias", 1, "o_bias", 1));
}

/* True if every query head has its own key head, and all heads together are as wide as the residual stream. */
static bool plain_heads(const ModelCfg *c, HfShape *a, int positions, const char **why) {
    const GeluCfg *f = c->ffn[0].cfg;
    if (!hf_block(c, (HfBlock){"gqa", NULL, "gelu", NORM_LAYER, positions, c->parallel}, why) || !hf_plain(c, why) ||
        !hf_attention(c, a, why))
        return false;
    if (a->nunturned && a->nunturned < c->layers) return hf_no(why, "layers without rotation");
    if (a->g.scale > 0 || a->g.soft_cap > 0 || a->g.qk_norm_wide) return hf_no(why, "scale, soft_cap or qk_norm_wide");
    if (!f->bias) return hf_no(why, "a feed-forward part without biases");
    if (a->nslide) return hf_no(why, "a window");
    if (a->g.qk_norm) return hf_no(why, "qk_norm");
    if (a->g.kv_heads != a->g.heads) return hf_no(why, "kv_heads");
    return (long)a->g.head_dim * a->g.heads == c->d_model || hf_no(why, "head_dim x heads that is not d_model");
}
static bool is_gpt2(const ModelCfg *c, const char **why) {
    HfShape a = {0};
    if (!plain_heads(c, &a, POSITIONS_LEARNED, why)) return false;
    if (c->parallel) return hf_no(why, "parallel");
    if (a.g.rope.type != ROPE_NONE) return hf_no(why, "a rotation");
    return (a.g.qkv_bias && a.g.o_bias) || hf_no(why, "attention without biases");
}
static const char *act_name(const ModelCfg *c) {
    return ((const GeluCfg *)c->ffn[0].cfg)->act == GELU_TANH ? "gelu_new" : "gelu";
}
static void gpt2_json(json_t *j, const ModelCfg *c) {
    HfShape a = {0};
    CHECK(hf_attention(c, &a, NULL), "gpt2");
    json_object_set_new(j, "architectures", json_pack("[s]", "GPT2LMHeadModel"));
    json_object_set_new(j, "model_type", json_string("gpt2"));
    json_object_set_new(j, "vocab_size", json_integer(c->vocab));
    json_object_set_new(j, "n_positions", json_integer(c->max_positions));
    json_object_set_new(j, "n_embd", json_integer(c->d_model));
    json_object_set_new(j, "n_layer", json_integer(c->layers));
    json_object_set_new(j, "n_head", json_integer(a.g.heads));
    json_object_set_new(j, "n_inner", json_integer(((const GeluCfg *)c->ffn[0].cfg)->hidden));
    json_object_set_new(j, "activation_function", json_string(act_name(c)));
    json_object_set_new(j, "layer_norm_epsilon", json_real(c->norm_eps));
    json_object_set_new(j, "initializer_range", json_real(c->init_std));
    json_object_set_new(j, "scale_attn_weights", json_true());
    json_object_set_new(j, "scale_attn_by_inverse_layer_idx", json_false());
    json_object_set_new(j, "reorder_and_upcast_attn", json_false());
    static const char *const drops[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    for (int i = 0; i < 3; i++) json_object_set_new(j, drops[i], json_real(0));
    json_object_set_new(j, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(j, "use_cache", json_true());
}

/* ---- gpt_neox ---------------------------------------------------------------------------------------------------- */

/* Convert older names of rotation settings to newer ones, and extract the part of a head that is rotated. */
static bool neox_rope(const HfFile *f, int D, json_t *rope, int *dims) {
    json_t *j = json_copy((json_t *)f->j);
    const char *outer = hf_given(j, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    json_t *inner = json_copy(json_object_get(j, outer));
    HfFile in = {f->path, inner, f->e}, all = {f->path, j, f->e};
    double part, theta, other;
    bool ok = hf_number(f, "rotary_pct", 0.25, false, &part) && hf_number(f, "rotary_emb_base", 10000, false, &theta) &&
              hf_number(f, "rope_theta", theta, false, &other);
    if (ok && hf_given(j, "rotary_emb_base") && other != theta)
        ok = err_input(f->e, "%s: \"rope_theta\" and \"rotary_emb_base\" differ; remove one", f->path);
    json_object_set_new(j, "rope_theta", json_real(other));
    if (json_is_object(inner)) {
        ok = ok && hf_number(&in, "partial_rotary_factor", part, false, &part);
        json_object_del(inner, "partial_rotary_factor");
        json_object_set(j, outer, inner);
    }
    if (ok && hf_given(f->j, "rope_scaling")) json_object_del(j, "rope_parameters"); /* then the class ignores them */
    ok = ok && hf_rope_read(&all, 10000, rope);
    if (ok && part > 1)
        ok = err_input(f->e, "%s: part of a head that turns (rotary_pct): expected at most 1, found %g", f->path, part);
    *dims = ok ? (int)(D * part) : 0;
    if (ok && (*dims < 2 || *dims % 2))
        ok = err_input(f->e, "%s: rotary_pct %g of head_dim %d is %d elements; expected an even number from 2", f->path,
                       part, D, *dims);
    json_decref(inner);
    json_decref(j);
    return ok;
}
static json_t *neox_settings(const HfFile *f) {
    Shape s = {.positions = "none"};
    bool bias;
    int dims;
    if (!hf_whole(f, "hidden_size", 1, -1, &s.d) || !hf_whole(f, "intermediate_size", 1, -1, &s.F) ||
        !hf_whole(f, "num_hidden_layers", 1, -1, &s.layers) || !hf_whole(f, "num_attention_heads", 1, -1, &s.H) ||
        !hf_whole(f, "vocab_size", 1, -1, &s.V) || !hf_whole(f, "max_position_embeddings", 1, 2048, &s.P) ||
        !hf_number(f, "layer_norm_eps", 1e-5, false, &s.eps) ||
        !hf_number(f, "initializer_range", 0.02, true, &s.std) || !hf_flag(f, "tie_word_embeddings", &s.tied) ||
        !hf_flag_or(f, "use_parallel_residual", true, &s.parallel) || !hf_flag_or(f, "attention_bias", true, &bias) ||
        !act_read(f, "hidden_act", "gelu", &s.act) || !heads_divide(f, "num_attention_heads", s.H, "hidden_size", s.d))
        return NULL;
    json_t *rope = json_object();
    if (!neox_rope(f, s.d / s.H, rope, &dims)) {
        json_decref(rope);
        return NULL;
    }
    return hf_gpt_settings(&s, json_pack("{ss si si si si so sb sb}", "mixer", "gqa", "heads", s.H, "kv_heads", s.H,
                                         "head_dim", s.d / s.H, "rope_dims", dims == s.d / s.H ? 0 : dims, "rope", rope,
                                         "qkv_bias", bias, "o_bias", bias));
}

static bool is_neox(const ModelCfg *c, const char **why) {
    HfShape a = {0};
    if (!plain_heads(c, &a, POSITIONS_NONE, why)) return false;
    if (a.g.qkv_bias != a.g.o_bias) return hf_no(why, "qkv_bias without o_bias, or the reverse");
    if (a.g.rope.interleaved) return hf_no(why, "interleaved rotation");
    const char *differs = hf_rope_differs(&a.g.rope, c->max_positions);
    return !differs || hf_no(why, differs);
}
static void neox_json(json_t *j, const ModelCfg *c) {
    HfShape a = {0};
    CHECK(hf_attention(c, &a, NULL), "gpt_neox");
    int dims = a.g.rope_dims ? a.g.rope_dims : a.g.head_dim;
    double part = (double)dims / a.g.head_dim;
    if ((int)(a.g.head_dim * part) < dims) part = nextafter(part, 2); /* the reader truncates the product */
    json_object_set_new(j, "architectures", json_pack("[s]", "GPTNeoXForCausalLM"));
    json_object_set_new(j, "model_type", json_string("gpt_neox"));
    json_object_set_new(j, "vocab_size", json_integer(c->vocab));
    json_object_set_new(j, "hidden_size", json_integer(c->d_model));
    json_object_set_new(j, "intermediate_size", json_integer(((const GeluCfg *)c->ffn[0].cfg)->hidden));
    json_object_set_new(j, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(j, "num_attention_heads", json_integer(a.g.heads));
    json_object_set_new(j, "hidden_act", json_string(act_name(c)));
    json_object_set_new(j, "max_position_embeddings", json_integer(c->max_positions));
    json_object_set_new(j, "initializer_range", json_real(c->init_std));
    json_object_set_new(j, "layer_norm_eps", json_real(c->norm_eps));
    json_object_set_new(j, "rotary_pct", json_real(part));
    json_object_set_new(j, "rotary_emb_base", json_real(a.g.rope.theta));
    json_object_set_new(j, "rope_scaling", hf_rope_json(&a.g.rope, c->max_positions));
    json_object_set_new(j, "use_parallel_residual", json_boolean(c->parallel));
    json_object_set_new(j, "attention_bias", json_boolean(a.g.qkv_bias));
    json_object_set_new(j, "attention_dropout", json_real(0));
    json_object_set_new(j, "hidden_dropout", json_real(0));
    json_object_set_new(j, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(j, "use_cache", json_true());
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const HfName gpt2_names[] = {
    {.ours = "model.embed_tokens.", .theirs = "wte."},
    {.ours = "model.embed_positions.", .theirs = "wpe."},
    {.ours = "model.norm.", .theirs = "ln_f."},
    {.ours = "lm_head.", .theirs = "/lm_head."},
    {.ours = "input_layernorm.", .theirs = "ln_1."},
    {.ours = "post_attention_layernorm.", .theirs = "ln_2."},
    {.ours = "self_attn.q_proj.", .theirs = "attn.c_attn.", .join = "qkv", .part = 0, .turned = true},
    {.ours = "self_attn.k_proj.", .theirs = "attn.c_attn.", .join = "qkv", .part = 1, .turned = true},
    {.ours = "self_attn.v_proj.", .theirs = "attn.c_attn.", .join = "qkv", .part = 2, .turned = true},
    {.ours = "self_attn.o_proj.", .theirs = "attn.c_proj.", .turned = true},
    {.ours = "mlp.up_proj.", .theirs = "mlp.c_fc.", .turned = true},
    {.ours = "mlp.down_proj.", .theirs = "mlp.c_proj.", .turned = true},
    {0},
};
static const HfName neox_names[] = {
    {.ours = "model.embed_tokens.", .theirs = "embed_in."},
    {.ours = "model.norm.", .theirs = "final_layer_norm."},
    {.ours = "lm_head.", .theirs = "/embed_out."},
    {.ours = "input_layernorm.", .theirs = "input_layernorm."},
    {.ours = "post_attention_layernorm.", .theirs = "post_attention_layernorm."},
    {.ours = "self_attn.q_proj.",
     .theirs = "attention.query_key_value.",
     .join = "qkv",
     .part = 0,
     .alternate = HF_BY_HEADS},
    {.ours = "self_attn.k_proj.",
     .theirs = "attention.query_key_value.",
     .join = "qkv",
     .part = 1,
     .alternate = HF_BY_HEADS},
    {.ours = "self_attn.v_proj.",
     .theirs = "attention.query_key_value.",
     .join = "qkv",
     .part = 2,
     .alternate = HF_BY_HEADS},
    {.ours = "self_attn.o_proj.", .theirs = "attention.dense."},
    {.ours = "mlp.up_proj.", .theirs = "mlp.dense_h_to_4h."},
    {.ours = "mlp.down_proj.", .theirs = "mlp.dense_4h_to_h."},
    {0},
};

static const char *const gpt2_keys[] = {"n_embd",
                                        "n_layer",
                                        "n_head",
                                        "n_positions",
                                        "n_ctx",
                                        "n_inner",
                                        "activation_function",
                                        "layer_norm_epsilon",
                                        "resid_pdrop",
                                        "embd_pdrop",
                                        "attn_pdrop",
                                        "scale_attn_weights",
                                        "scale_attn_by_inverse_layer_idx",
                                        "reorder_and_upcast_attn",
                                        "add_cross_attention",
                                        "summary_activation",
                                        "summary_first_dropout",
                                        "summary_proj_to_labels",
                                        "summary_type",
                                        "summary_use_proj",
                                        NULL};
static const char *const neox_keys[] = {"hidden_size",
                                        "intermediate_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "hidden_act",
                                        "max_position_embeddings",
                                        "layer_norm_eps",
                                        "rotary_pct",
                                        "rotary_emb_base",
                                        "rope_theta",
                                        "rope_scaling",
                                        "rope_parameters",
                                        "use_parallel_residual",
                                        "attention_bias",
                                        "hidden_dropout",
                                        "classifier_dropout",
                                        NULL};
const HfType hf_gpt2 = {.type = "gpt2",
                        .architecture = "GPT2LMHeadModel",
                        .about = "GPT-2: LayerNorms, learned positions",
                        .keys = gpt2_keys,
                        .settings = gpt2_settings,
                        .is = is_gpt2,
                        .json = gpt2_json,
                        .names = gpt2_names,
                        .layer = "transformer.h.",
                        .top = "transformer.",
                        .bare = "wte.weight"};
const HfType hf_gpt_neox = {
    .type = "gpt_neox",
    .architecture = "GPTNeoXForCausalLM",
    .about = "GPT-NeoX and Pythia: LayerNorms, parallel or serial, a part of a head turned",
    .keys = neox_keys,
    .settings = neox_settings,
    .is = is_neox,
    .json = neox_json,
    .names = neox_names,
    .layer = "gpt_neox.layers.",
    .top = "gpt_neox.",
};
