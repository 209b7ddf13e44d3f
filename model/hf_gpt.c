/* hf_gpt.c: gpt2 and gpt_neox: LayerNorms, GELU, joined projections. Source of fields, defaults and layouts:
 * transformers configuration_gpt2, modeling_gpt2, configuration_gpt_neox, modeling_gpt_neox. */
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
static bool must(const HfFile *f, const char *key, bool want) {
    bool v;
    if (!hf_flag_or(f, key, want, &v)) return false;
    return v == want || err_input(f->e, "%s: \"%s\": %s is not supported", f->path, key, v ? "true" : "false");
}
/* What both have to say; the attention's settings are taken. */
typedef struct {
    int d, F, layers, H, V, P;
    double eps, std;
    bool tied, parallel;
    const char *act, *positions;
} Shape;
static json_t *settings(const Shape *s, json_t *attention) {
    return json_pack("{si si si si sf sf sb sb ss ss s{so} s[s] s[{ss si ss}]}", "d_model", s->d, "layers", s->layers,
                     "vocab", s->V, "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "tied", s->tied,
                     "parallel", s->parallel, "norm", "layer", "positions", s->positions, "kinds", "full", attention,
                     "pattern", "full", "ffn", "kind", "gelu", "hidden", s->F, "act", s->act);
}
static bool heads_divide(const HfFile *f, const char *heads, int H, const char *width, int d) {
    return d % H == 0 || err_input(f->e, "%s: \"%s\": %d does not divide %s, which is %d", f->path, heads, H, width, d);
}

/* ---- gpt2 ----------------------------------------------------------------------------------------------------------
 */

static json_t *gpt2_settings(const HfFile *f) {
    Shape s = {.positions = "learned"};
    if (!hf_whole(f, "n_embd", 1, -1, &s.d) || !hf_whole(f, "n_layer", 1, -1, &s.layers) ||
        !hf_whole(f, "n_head", 1, -1, &s.H) || !hf_whole(f, "vocab_size", 1, -1, &s.V) ||
        !hf_whole(f, "n_positions", 1, 1024, &s.P) || !hf_whole(f, "n_inner", 1, s.d > 1 << 20 ? s.d : 4 * s.d, &s.F) ||
        !hf_number(f, "layer_norm_epsilon", 1e-5, false, &s.eps) ||
        !hf_number(f, "initializer_range", 0.02, true, &s.std) ||
        !hf_flag_or(f, "tie_word_embeddings", true, &s.tied) ||
        !act_read(f, "activation_function", "gelu_new", &s.act) || !must(f, "scale_attn_weights", true) ||
        !must(f, "scale_attn_by_inverse_layer_idx", false) || !must(f, "add_cross_attention", false) ||
        !heads_divide(f, "n_head", s.H, "n_embd", s.d))
        return NULL;
    return settings(&s, json_pack("{ss si si si ss sb sb}", "mixer", "gqa", "heads", s.H, "kv_heads", s.H, "head_dim",
                                  s.d / s.H, "rope", "none", "qkv_bias", 1, "o_bias", 1));
}

/* One head of keys for each of queries, and both together as wide as the stream. */
static bool plain_heads(const ModelCfg *c, HfAttention *a, int positions, const char **why) {
    const GeluCfg *f = c->ffn[0].cfg;
    if (!hf_block(c, (HfBlock){"gqa", "gelu", NORM_LAYER, positions, c->parallel}, why) || !hf_attention(c, a, why))
        return false;
    if (!f->bias) return hf_no(why, "a feed-forward part without biases");
    if (a->nslide) return hf_no(why, "a window");
    if (a->g.qk_norm) return hf_no(why, "qk_norm");
    if (a->g.kv_heads != a->g.heads) return hf_no(why, "kv_heads");
    return (long)a->g.head_dim * a->g.heads == c->d_model || hf_no(why, "head_dim x heads that is not d_model");
}
static bool is_gpt2(const ModelCfg *c, const char **why) {
    HfAttention a;
    if (!plain_heads(c, &a, POSITIONS_LEARNED, why)) return false;
    if (c->parallel) return hf_no(why, "parallel");
    if (a.g.rope.type != ROPE_NONE) return hf_no(why, "a rotation");
    return (a.g.qkv_bias && a.g.o_bias) || hf_no(why, "attention without biases");
}
static const char *act_name(const ModelCfg *c) {
    return ((const GeluCfg *)c->ffn[0].cfg)->act == GELU_TANH ? "gelu_new" : "gelu";
}
static void gpt2_json(json_t *j, const ModelCfg *c) {
    HfAttention a;
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

/* ---- gpt_neox ------------------------------------------------------------------------------------------------------
 */

/* The rotation with its older names made the newer ones, and the part of a head that turns taken out of it. */
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
    if (ok && hf_given(f->j, "rope_scaling")) json_object_del(j, "rope_parameters"); /* the class ignores them then */
    ok = ok && hf_rope_read(&all, rope);
    if (ok && part > 1)
        ok = err_input(f->e, "%s: part of a head that turns (rotary_pct): expected at most 1, found %g", f->path, part);
    *dims = ok ? (int)(D * part) : 0;
    if (ok && (*dims < 2 || *dims % 2))
        ok = err_input(f->e, "%s: rotary_pct %g of head_dim %d is %d numbers; expected an even number from 2", f->path,
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
    return settings(&s, json_pack("{ss si si si si so sb sb}", "mixer", "gqa", "heads", s.H, "kv_heads", s.H,
                                  "head_dim", s.d / s.H, "rope_dims", dims == s.d / s.H ? 0 : dims, "rope", rope,
                                  "qkv_bias", bias, "o_bias", bias));
}

static bool is_neox(const ModelCfg *c, const char **why) {
    HfAttention a;
    if (!plain_heads(c, &a, POSITIONS_NONE, why)) return false;
    if (a.g.qkv_bias != a.g.o_bias) return hf_no(why, "qkv_bias without o_bias, or the reverse");
    if (a.g.rope.interleaved) return hf_no(why, "interleaved rotation");
    const char *differs = hf_rope_differs(&a.g.rope, c->max_positions);
    return !differs || hf_no(why, differs);
}
static void neox_json(json_t *j, const ModelCfg *c) {
    HfAttention a;
    CHECK(hf_attention(c, &a, NULL), "gpt_neox");
    int dims = a.g.rope_dims ? a.g.rope_dims : a.g.head_dim;
    double part = (double)dims / a.g.head_dim;
    if ((int)(a.g.head_dim * part) < dims) part = nextafter(part, 2); /* the reader cuts the product off */
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

/* ---- names ---------------------------------------------------------------------------------------------------------
 */

static const HfName gpt2_names[] = {
    {"model.embed_tokens.", "wte.", -1, false},
    {"model.embed_positions.", "wpe.", -1, false},
    {"model.norm.", "ln_f.", -1, false},
    {"lm_head.", "/lm_head.", -1, false},
    {"input_layernorm.", "ln_1.", -1, false},
    {"post_attention_layernorm.", "ln_2.", -1, false},
    {"self_attn.q_proj.", "attn.c_attn.", 0, true},
    {"self_attn.k_proj.", "attn.c_attn.", 1, true},
    {"self_attn.v_proj.", "attn.c_attn.", 2, true},
    {"self_attn.o_proj.", "attn.c_proj.", -1, true},
    {"mlp.up_proj.", "mlp.c_fc.", -1, true},
    {"mlp.down_proj.", "mlp.c_proj.", -1, true},
    {NULL, NULL, 0, false},
};
static const HfName neox_names[] = {
    {"model.embed_tokens.", "embed_in.", -1, false},
    {"model.norm.", "final_layer_norm.", -1, false},
    {"lm_head.", "/embed_out.", -1, false},
    {"input_layernorm.", "input_layernorm.", -1, false},
    {"post_attention_layernorm.", "post_attention_layernorm.", -1, false},
    {"self_attn.q_proj.", "attention.query_key_value.", 0, false},
    {"self_attn.k_proj.", "attention.query_key_value.", 1, false},
    {"self_attn.v_proj.", "attention.query_key_value.", 2, false},
    {"self_attn.o_proj.", "attention.dense.", -1, false},
    {"mlp.up_proj.", "mlp.dense_h_to_4h.", -1, false},
    {"mlp.down_proj.", "mlp.dense_4h_to_h.", -1, false},
    {NULL, NULL, 0, false},
};

static StPlace find(const StNames *n, const char *path, Tensor t, char name[192]) {
    const HfPlaces *p = (const HfPlaces *)n->ctx;
    const char *rest = path;
    int layer = -1, used = 0;
    if (sscanf(path, "model.layers.%d.%n", &layer, &used) == 1 && used) rest = path + used;
    for (const HfName *k = p->type->names; k->ours; k++) {
        size_t len = strlen(k->ours);
        if (strncmp(rest, k->ours, len)) continue;
        if (layer >= 0)
            snprintf(name, 192, "%s%d.%s%s", p->layer, layer, k->theirs, rest + len);
        else if (*k->theirs == '/')
            snprintf(name, 192, "%s%s", k->theirs + 1, rest + len);
        else
            snprintf(name, 192, "%s%s%s", p->top, k->theirs, rest + len);
        if (k->part < 0) return (StPlace){1, 0, 1, k->turned};
        return (StPlace){3, k->part, p->type->by_heads ? p->head_dim : t.n[0], k->turned};
    }
    snprintf(name, 192, "%s", path); /* the type has no such tensor */
    return ST_WHOLE;
}

void hf_places(HfPlaces *p, const HfType *type, const ModelCfg *c, const St *st) {
    *p = (HfPlaces){.type = type};
    if (!type || !type->names) return;
    HfAttention a;
    CHECK(hf_attention(c, &a, NULL), "%s", type->type);
    p->names = (StNames){find, p};
    p->layer = type->layer, p->top = type->top, p->head_dim = a.g.head_dim;
    if (st && type->bare && st_find(st, type->bare)) p->layer = strchr(type->layer, '.') + 1, p->top = "";
}

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
const HfType hf_gpt2 = {"gpt2",     gpt2_settings,    is_gpt2,        gpt2_json,    gpt2_keys,
                        gpt2_names, "transformer.h.", "transformer.", "wte.weight", false};
const HfType hf_gpt_neox = {"gpt_neox", neox_settings,      is_neox,     neox_json, neox_keys,
                            neox_names, "gpt_neox.layers.", "gpt_neox.", NULL,      true};
