/* hf_llama.c: config.json of the Llama family: llama, mistral, qwen2 and qwen3, which differ in windows, biases and the
 * norm of queries and keys. Source of fields, defaults and meaning: transformers configuration_llama and
 * modeling_llama, and those of the others. */
#include "hf_file.h"

typedef struct {
    int d, F, layers, H, G, D, V, P, window;
    double eps, std;
    bool tied, slides[LAYERS_MAX];
    json_t *rope;
} Shape;

/* Absent is an oversight where the class has a default of its own that is not the number of heads. */
static bool kv_heads(const HfFile *f, const char *type, Shape *s) {
    if (strcmp(type, "llama") && !json_object_get(f->j, "num_key_value_heads"))
        return err_input(f->e, "%s: \"num_key_value_heads\" is missing", f->path);
    return hf_whole(f, "num_key_value_heads", 1, s->H, &s->G);
}

static bool shape_read(const HfFile *f, const char *type, int positions, Shape *s) {
    bool qwen3 = !strcmp(type, "qwen3");
    if (!hf_whole(f, "hidden_size", 1, -1, &s->d) || !hf_whole(f, "intermediate_size", 1, -1, &s->F) ||
        !hf_whole(f, "num_hidden_layers", 1, -1, &s->layers) || !hf_whole(f, "num_attention_heads", 1, -1, &s->H) ||
        !hf_whole(f, "vocab_size", 1, -1, &s->V) || !kv_heads(f, type, s) ||
        !hf_whole(f, "max_position_embeddings", 1, positions, &s->P) ||
        !hf_number(f, "rms_norm_eps", 1e-6, false, &s->eps) ||
        !hf_number(f, "initializer_range", 0.02, true, &s->std) || !hf_flag(f, "tie_word_embeddings", &s->tied) ||
        !hf_supported(f))
        return false;
    if (!hf_given(f->j, "head_dim") && !qwen3 && s->d % s->H)
        return err_input(f->e,
                         "%s: \"num_attention_heads\": %d does not divide hidden_size %d and there is no head_dim",
                         f->path, s->H, s->d);
    if (!hf_whole(f, "head_dim", 2, qwen3 ? 128 : s->d / s->H, &s->D)) return false;
    if (s->H % s->G || s->D % 2)
        return err_input(f->e,
                         s->H % s->G ? "%s: \"num_key_value_heads\": %d does not divide num_attention_heads %d"
                                     : "%s: \"head_dim\": expected an even number, found %d (num_attention_heads %d)",
                         f->path, s->H % s->G ? s->G : s->D, s->H);
    if (s->layers > LAYERS_MAX)
        return err_input(f->e, "%s: \"num_hidden_layers\": expected at most %d layers, found %d", f->path, LAYERS_MAX,
                         s->layers);
    s->rope = json_object();
    if (hf_rope_read(f, s->rope)) return true;
    json_decref(s->rope);
    return false;
}

/* ---- windows ---- */

/* An absent window is the classes' 4096, null is none. */
static bool window_read(const HfFile *f, int *out) {
    return hf_whole(f, "sliding_window", 1, json_object_get(f->j, "sliding_window") ? 0 : 4096, out);
}
static bool mistral_windows(const HfFile *f, Shape *s) {
    const json_t *types = json_object_get(f->j, "layer_types");
    if (!window_read(f, &s->window)) return false;
    for (int l = 0; l < s->layers; l++) s->slides[l] = s->window > 0;
    for (size_t i = 0; i < json_array_size(types); i++) { /* the class does not look at them */
        const json_t *v = json_array_get(types, i);
        if (strcmp(hf_found(v), s->window ? "sliding_attention" : "full_attention"))
            return err_input(f->e, "%s: \"layer_types\": the layers of a mistral are all alike, found %.40s", f->path,
                             hf_found(v));
    }
    return true;
}
static bool qwen_windows(const HfFile *f, Shape *s) {
    const json_t *types = json_object_get(f->j, "layer_types");
    int from, window;
    bool use;
    if (!hf_flag(f, "use_sliding_window", &use) || !window_read(f, &window) ||
        !hf_whole(f, "max_window_layers", 0, 28, &from))
        return false;
    s->window = use ? window : 0;
    for (int l = 0; l < s->layers; l++) s->slides[l] = s->window && l >= from;
    if (!hf_given(f->j, "layer_types")) return true;
    if (!json_is_array(types) || json_array_size(types) != (size_t)s->layers)
        return err_input(f->e, "%s: \"layer_types\": expected a list of num_hidden_layers (%d) texts", f->path,
                         s->layers);
    for (int l = 0; l < s->layers; l++) {
        const char *v = hf_found(json_array_get(types, (size_t)l));
        s->slides[l] = !strcmp(v, "sliding_attention");
        if (!s->slides[l] && strcmp(v, "full_attention"))
            return err_input(f->e, "%s: \"layer_types\": expected full_attention or sliding_attention, found %.40s",
                             f->path, v);
        if (s->slides[l] && !s->window)
            return err_input(f->e, "%s: \"layer_types\": sliding_attention, but there is no window: %s", f->path,
                             use ? "\"sliding_window\" is null" : "\"use_sliding_window\" is not true");
    }
    return true;
}

/* ---- settings ---- */

static json_t *kind_json(const Shape *s, int window, bool qk_norm, bool qkv_bias, bool o_bias) {
    json_t *k = json_pack("{ss si si si sO sb sb}", "mixer", "gqa", "heads", s->H, "kv_heads", s->G, "head_dim", s->D,
                          "rope", s->rope, "qkv_bias", qkv_bias, "o_bias", o_bias);
    if (window) json_object_set_new(k, "window", json_integer(window));
    if (qk_norm) json_object_set_new(k, "qk_norm", json_true());
    return k;
}
static json_t *settings(Shape *s, bool qk_norm, bool qkv_bias, bool o_bias) {
    json_t *kinds = json_object(), *pattern = json_array();
    for (int l = 0; l < s->layers; l++) {
        const char *name = s->slides[l] ? "local" : "full";
        json_array_append_new(pattern, json_string(name));
        if (!json_object_get(kinds, name))
            json_object_set_new(kinds, name, kind_json(s, s->slides[l] ? s->window : 0, qk_norm, qkv_bias, o_bias));
    }
    json_decref(s->rope);
    return json_pack("{si si si si sf sf sb so so s[{ss si}]}", "d_model", s->d, "layers", s->layers, "vocab", s->V,
                     "max_positions", s->P, "norm_eps", s->eps, "init_std", s->std, "tied", s->tied, "kinds", kinds,
                     "pattern", pattern, "ffn", "kind", "swiglu", "hidden", s->F);
}

static json_t *llama_settings(const HfFile *f) {
    Shape s = {0};
    bool bias;
    if (!hf_flag(f, "attention_bias", &bias) || !hf_plain_layers(f) || !shape_read(f, "llama", 2048, &s)) return NULL;
    return settings(&s, false, bias, bias);
}
/* The rotation is freed where what follows it is refused. */
static json_t *windowed(const HfFile *f, const char *type, int positions, bool (*windows)(const HfFile *, Shape *),
                        bool qk_norm, bool qkv_bias, bool o_bias) {
    Shape s = {0};
    if (!shape_read(f, type, positions, &s)) return NULL;
    if (windows(f, &s)) return settings(&s, qk_norm, qkv_bias, o_bias);
    json_decref(s.rope);
    return NULL;
}
static json_t *mistral_settings(const HfFile *f) {
    return windowed(f, "mistral", 4096 * 32, mistral_windows, false, false, false);
}
static json_t *qwen2_settings(const HfFile *f) { return windowed(f, "qwen2", 32768, qwen_windows, false, true, false); }
static json_t *qwen3_settings(const HfFile *f) {
    bool bias;
    return hf_flag(f, "attention_bias", &bias) ? windowed(f, "qwen3", 32768, qwen_windows, true, bias, bias) : NULL;
}

/* ---- which one a model is ----
 */

bool hf_no(const char **why, const char *what) {
    if (why) *why = what;
    return false;
}
bool hf_block(const ModelCfg *c, HfBlock b, const char **why) {
    for (int l = 0; l < c->layers; l++) {
        if (c->kv_from[l] != l) return hf_no(why, "kv_from");
        if (c->kind[c->pattern[l]].mixer != mixer_find(b.mixer)) return hf_no(why, "another mixer");
    }
    if (c->embed_scale != 1) return hf_no(why, "embed_scale");
    if (c->nffn != 1 || c->ffn[0].ffn != ffn_find(b.ffn)) return hf_no(why, "another feed-forward part, or several");
    if (c->norm != b.norm) return hf_no(why, "another norm");
    if (c->positions != b.positions) return hf_no(why, "other positions");
    return c->parallel == b.parallel || hf_no(why, "parallel");
}
bool hf_attention(const ModelCfg *c, HfAttention *a, const char **why) {
    *a = (HfAttention){.nslide = 0};
    for (int l = 0; l < c->layers; l++) {
        GqaCfg g;
        memcpy(&g, c->kind[c->pattern[l]].cfg, sizeof g); /* with its padding, which is compared */
        if (!g.heads) return hf_no(why, "a layer without queries");
        if (g.sinks) return hf_no(why, "sinks");
        if (!g.kv_heads) g.kv_heads = g.heads;
        if (!g.head_dim) g.head_dim = c->d_model / g.heads;
        if (g.rope_dims == g.head_dim) g.rope_dims = 0;
        if (g.window && a->window && g.window != a->window) return hf_no(why, "windows of several sizes");
        if (g.window) a->window = g.window, a->slides[l] = true, a->nslide++;
        g.window = 0;
        if (l == 0) memcpy(&a->g, &g, sizeof g);
        if (memcmp(&a->g, &g, sizeof g)) return hf_no(why, "layers of several kinds");
    }
    return true;
}
const char *hf_rope_differs(const RopeCfg *r, int max_positions) {
    double L = r->original_max_positions ? r->original_max_positions : max_positions;
    if (r->type == ROPE_NONE) return "no rotation";
    if (r->inclusive) return "inclusive frequencies";
    /* Older versions replace yarn's factor by this quotient. */
    if (r->type == ROPE_YARN && fabs(r->factor * L - max_positions) > 1e-9 * max_positions)
        return "yarn whose factor is not max_positions / original_max_positions";
    /* transformers looks at the length of the input, we at the planned length. */
    if (r->type == ROPE_DYNAMIC && ((r->length && r->length > L) || L != max_positions))
        return "dynamic rotation for a planned length";
    if (r->type == ROPE_LONGROPE && r->length && memcmp(&r->short_factor, &r->long_factor, sizeof r->short_factor))
        return "longrope of one length";
    return NULL;
}

/* What all four have in common. */
static bool alike(const ModelCfg *c, HfAttention *a, const char **why) {
    if (!hf_block(c, (HfBlock){"gqa", "swiglu", NORM_RMS, POSITIONS_NONE, false}, why) || !hf_attention(c, a, why))
        return false;
    if (a->g.rope_dims) return hf_no(why, "rope_dims");
    if (a->g.rope.interleaved) return hf_no(why, "interleaved rotation");
    const char *differs = hf_rope_differs(&a->g.rope, c->max_positions);
    return !differs || hf_no(why, differs);
}
bool hf_is_llama(const ModelCfg *c, const char **why) {
    HfAttention a;
    if (!alike(c, &a, why)) return false;
    if (a.nslide) return hf_no(why, "a window");
    if (a.g.qk_norm) return hf_no(why, "qk_norm");
    return a.g.qkv_bias == a.g.o_bias || hf_no(why, "qkv_bias without o_bias, or the reverse");
}
static bool is_mistral(const ModelCfg *c, const char **why) {
    HfAttention a;
    if (!alike(c, &a, why)) return false;
    if (a.nslide != c->layers) return hf_no(why, "layers without a window");
    return !(a.g.qk_norm || a.g.qkv_bias || a.g.o_bias) || hf_no(why, "qk_norm or biases");
}
static bool is_qwen2(const ModelCfg *c, const char **why) {
    HfAttention a;
    if (!alike(c, &a, why)) return false;
    return (!a.g.qk_norm && a.g.qkv_bias && !a.g.o_bias) || hf_no(why, "qk_norm, no qkv_bias, or o_bias");
}
static bool is_qwen3(const ModelCfg *c, const char **why) {
    HfAttention a;
    if (!alike(c, &a, why)) return false;
    if (!a.g.qk_norm) return hf_no(why, "no qk_norm");
    return a.g.qkv_bias == a.g.o_bias || hf_no(why, "qkv_bias without o_bias, or the reverse");
}

/* ---- writing ----
 */

static json_t *numbers(const Numbers *v) {
    json_t *a = json_array();
    for (int i = 0; i < v->n; i++) json_array_append_new(a, json_real(v->v[i]));
    return a;
}

/* As version 4 spells it, which version 5 reads as well. */
json_t *hf_rope_json(const RopeCfg *r, int max_positions) {
    static const char *const name[] = {[ROPE_LINEAR] = "linear",
                                       [ROPE_DYNAMIC] = "dynamic",
                                       [ROPE_LLAMA3] = "llama3",
                                       [ROPE_YARN] = "yarn",
                                       [ROPE_LONGROPE] = "longrope"};
    if (r->type == ROPE_DEFAULT) return json_null();
    json_t *j = json_object();
    json_object_set_new(j, "rope_type", json_string(name[r->type]));
    if (r->factor > 0) json_object_set_new(j, "factor", json_real(r->factor));
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN || r->type == ROPE_LONGROPE)
        json_object_set_new(j, "original_max_position_embeddings",
                            json_integer(r->original_max_positions ? r->original_max_positions : max_positions));
    if (r->type == ROPE_LLAMA3) {
        json_object_set_new(j, "low_freq_factor", json_real(r->low_freq_factor));
        json_object_set_new(j, "high_freq_factor", json_real(r->high_freq_factor));
    }
    if (r->type == ROPE_YARN) {
        json_object_set_new(j, "beta_fast", json_real(r->beta_fast));
        json_object_set_new(j, "beta_slow", json_real(r->beta_slow));
        json_object_set_new(j, "truncate", json_boolean(r->truncate));
        if (r->mscale > 0) json_object_set_new(j, "mscale", json_real(r->mscale));
        if (r->mscale_all_dim > 0) json_object_set_new(j, "mscale_all_dim", json_real(r->mscale_all_dim));
    }
    if (r->attention_factor > 0 && (r->type == ROPE_YARN || r->type == ROPE_LONGROPE))
        json_object_set_new(j, "attention_factor", json_real(r->attention_factor));
    if (r->type == ROPE_LONGROPE) {
        json_object_set_new(j, "short_factor", numbers(&r->short_factor));
        json_object_set_new(j, "long_factor", numbers(&r->long_factor));
    }
    return j;
}

void hf_family_json(json_t *j, const ModelCfg *c, HfFamily y) {
    json_object_set_new(j, "architectures", json_pack("[s]", y.architecture));
    json_object_set_new(j, "model_type", json_string(y.type));
    json_object_set_new(j, "vocab_size", json_integer(c->vocab));
    json_object_set_new(j, "hidden_size", json_integer(c->d_model));
    json_object_set_new(j, "intermediate_size", json_integer(((SwigluCfg *)c->ffn[0].cfg)->hidden));
    json_object_set_new(j, "num_hidden_layers", json_integer(c->layers));
    json_object_set_new(j, "num_attention_heads", json_integer(y.heads));
    json_object_set_new(j, "num_key_value_heads", json_integer(y.kv_heads));
    json_object_set_new(j, "head_dim", json_integer(y.head_dim));
    json_object_set_new(j, "hidden_act", json_string("silu"));
    json_object_set_new(j, "max_position_embeddings", json_integer(c->max_positions));
    json_object_set_new(j, "initializer_range", json_real(c->init_std));
    json_object_set_new(j, "rms_norm_eps", json_real(c->norm_eps));
    json_object_set_new(j, "rope_theta", json_real(y.rope->theta));
    json_object_set_new(j, "rope_scaling", hf_rope_json(y.rope, c->max_positions));
    if (y.bias >= 0) json_object_set_new(j, "attention_bias", json_boolean(y.bias));
    json_object_set_new(j, "attention_dropout", json_real(0));
    if (y.mlp_bias) json_object_set_new(j, "mlp_bias", json_false());
    json_object_set_new(j, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(j, "use_cache", json_true());
}

static void type_json(json_t *j, const ModelCfg *c, const char *type, const char *architecture, HfAttention *a) {
    CHECK(hf_attention(c, a, NULL), "%s", type);
    bool llama = !strcmp(type, "llama"), qwen3 = !strcmp(type, "qwen3");
    hf_family_json(j, c,
                   (HfFamily){.architecture = architecture,
                              .type = type,
                              .heads = a->g.heads,
                              .kv_heads = a->g.kv_heads,
                              .head_dim = a->g.head_dim,
                              .bias = llama || qwen3 ? a->g.qkv_bias : -1,
                              .mlp_bias = llama,
                              .rope = &a->g.rope});
}
static void llama_json(json_t *j, const ModelCfg *c) {
    HfAttention a;
    type_json(j, c, "llama", "LlamaForCausalLM", &a);
}
static void mistral_json(json_t *j, const ModelCfg *c) {
    HfAttention a;
    type_json(j, c, "mistral", "MistralForCausalLM", &a);
    json_object_set_new(j, "sliding_window", json_integer(a.window));
}
/* layer_types says it all; the older keys say the same where the windows begin at some layer and never end. */
static void windows_json(json_t *j, const ModelCfg *c, const HfAttention *a) {
    json_t *types = json_array();
    int first = c->layers;
    for (int l = c->layers - 1; l >= 0; l--) first = a->slides[l] ? l : first;
    for (int l = 0; l < c->layers; l++)
        json_array_append_new(types, json_string(a->slides[l] ? "sliding_attention" : "full_attention"));
    json_object_set_new(j, "use_sliding_window", json_boolean(a->nslide));
    json_object_set_new(j, "sliding_window", a->nslide ? json_integer(a->window) : json_null());
    json_object_set_new(j, "max_window_layers", json_integer(first));
    json_object_set_new(j, "layer_types", types);
}
static void qwen2_json(json_t *j, const ModelCfg *c) {
    HfAttention a;
    type_json(j, c, "qwen2", "Qwen2ForCausalLM", &a);
    windows_json(j, c, &a);
}
static void qwen3_json(json_t *j, const ModelCfg *c) {
    HfAttention a;
    type_json(j, c, "qwen3", "Qwen3ForCausalLM", &a);
    windows_json(j, c, &a);
}

#define SHARED                                                                                                         \
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", \
        "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",      \
        "original_max_position_embeddings", "partial_rotary_factor", "layer_types", "mlp_bias"
static const char *const llama_keys[] = {SHARED, "attention_bias", "pretraining_tp", NULL};
static const char *const mistral_keys[] = {SHARED, "sliding_window", NULL};
static const char *const qwen2_keys[] = {SHARED, "sliding_window", "use_sliding_window", "max_window_layers", NULL};
static const char *const qwen3_keys[] = {
    SHARED, "sliding_window", "use_sliding_window", "max_window_layers", "attention_bias", NULL};
const HfType hf_llama = {"llama", llama_settings, hf_is_llama, llama_json, llama_keys, NULL, NULL, NULL, NULL, false};
const HfType hf_mistral = {"mistral", mistral_settings, is_mistral, mistral_json, mistral_keys, NULL, NULL, NULL, NULL,
                           false};
const HfType hf_qwen2 = {"qwen2", qwen2_settings, is_qwen2, qwen2_json, qwen2_keys, NULL, NULL, NULL, NULL, false};
const HfType hf_qwen3 = {"qwen3", qwen3_settings, is_qwen3, qwen3_json, qwen3_keys, NULL, NULL, NULL, NULL, false};
