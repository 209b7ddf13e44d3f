/* hf_llama.c: the model types of the Llama family: llama, mistral, qwen2 and qwen3, which differ in windows, biases
 * and the norm of queries and keys. Source of fields, defaults and meaning: transformers configuration_llama and
 * modeling_llama, and those of the others. */
#include "hf_file.h"

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* A missing window is the class's default, null is none. */
static bool window_read(const HfFile *f, int dflt, int *out) {
    return hf_whole(f, "sliding_window", 1, json_object_get(f->j, "sliding_window") ? 0 : dflt, out);
}
bool hf_one_window(const HfFile *f, int dflt, HfShape *s) {
    const json_t *types = json_object_get(f->j, "layer_types");
    if (!window_read(f, dflt, &s->window)) return false;
    for (int l = 0; l < s->layers; l++) s->slides[l] = s->window > 0;
    for (size_t i = 0; i < json_array_size(types); i++) { /* the classes ignore them */
        const char *v = hf_found(json_array_get(types, i));
        if (strcmp(v, s->window ? "sliding_attention" : "full_attention"))
            return err_input(f->e, "%s: \"layer_types\": the layers of this type are all alike, found %.40s", f->path,
                             v);
    }
    return true;
}
bool hf_windows_by_layer(const HfFile *f, int every, int dflt, HfShape *s) {
    const json_t *types = json_object_get(f->j, "layer_types");
    int window;
    if (!window_read(f, dflt, &window)) return false;
    if (hf_given(f->j, "layer_types") && (!json_is_array(types) || json_array_size(types) != (size_t)s->layers))
        return err_input(f->e, "%s: \"layer_types\": expected a list of num_hidden_layers (%d) texts", f->path,
                         s->layers);
    for (int l = 0; l < s->layers; l++) {
        const char *v = json_is_array(types)   ? hf_found(json_array_get(types, (size_t)l))
                        : (l + 1) % every == 0 ? "full_attention"
                                               : "sliding_attention";
        s->slides[l] = !strcmp(v, "sliding_attention");
        if (!s->slides[l] && strcmp(v, "full_attention"))
            return err_input(f->e, "%s: \"layer_types\": expected full_attention or sliding_attention, found %.40s",
                             f->path, v);
        if (s->slides[l] && !window)
            return err_input(f->e, "%s: \"sliding_window\": null, but layer %d is sliding_attention", f->path, l);
        if (s->slides[l]) s->window = window;
    }
    return true;
}
json_t *hf_layer_types(const HfShape *s) {
    json_t *types = json_array();
    for (int l = 0; l < s->layers; l++)
        json_array_append_new(types, json_string(s->slides[l] ? "sliding_attention" : "full_attention"));
    return types;
}
bool hf_qwen_windows(const HfFile *f, HfShape *s) {
    const json_t *types = json_object_get(f->j, "layer_types");
    int from, window;
    bool use;
    if (!hf_flag(f, "use_sliding_window", &use) || !window_read(f, 4096, &window) ||
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
/* layer_types is complete. The older keys can say the same only if the windows begin at some layer and never end. */
void hf_qwen_windows_json(json_t *j, const ModelCfg *c, const HfShape *s) {
    int first = c->layers;
    for (int l = c->layers - 1; l >= 0; l--) first = s->slides[l] ? l : first;
    json_object_set_new(j, "use_sliding_window", json_boolean(s->nslide));
    json_object_set_new(j, "sliding_window", s->nslide ? json_integer(s->window) : json_null());
    json_object_set_new(j, "max_window_layers", json_integer(first));
    json_object_set_new(j, "layer_types", hf_layer_types(s));
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static bool llama_read(const HfFile *f, HfShape *s) { return hf_plain_layers(f) && hf_dms_read(f, true, s); }
static bool llama_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (s->nslide) return hf_no(why, "a window");
    return !s->g.qk_norm || hf_no(why, "qk_norm");
}

static bool mistral_read(const HfFile *f, HfShape *s) { return hf_one_window(f, 4096, s); }
static bool mistral_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    if (s->nslide != c->layers) return hf_no(why, "layers without a window");
    return !(s->g.qk_norm || s->g.qkv_bias || s->g.o_bias) || hf_no(why, "qk_norm or biases");
}
static void mistral_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    (void)c;
    json_object_set_new(j, "sliding_window", json_integer(s->window));
}

static bool qwen2_read(const HfFile *f, HfShape *s) {
    s->g.qkv_bias = true;
    return hf_qwen_windows(f, s);
}
static bool qwen2_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    return (!s->g.qk_norm && s->g.qkv_bias && !s->g.o_bias) || hf_no(why, "qk_norm, no qkv_bias, or o_bias");
}
static bool qwen3_read(const HfFile *f, HfShape *s) {
    s->g.qk_norm = true;
    return hf_qwen_windows(f, s) && hf_dms_read(f, false, s);
}
static bool qwen3_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    return s->g.qk_norm || hf_no(why, "no qk_norm");
}

static const char *const llama_keys[] = {"pretraining_tp", HF_DMS_KEYS, NULL},
                         *const mistral_keys[] = {"sliding_window", NULL},
                         *const qwen_keys[] = {"sliding_window", "use_sliding_window", "max_window_layers", NULL},
                         *const qwen3_keys[] = {"sliding_window", "use_sliding_window", "max_window_layers",
                                                HF_DMS_KEYS, NULL};
const HfType hf_llama = {.type = "llama",
                         .architecture = "LlamaForCausalLM",
                         .about =
                             "Llama 1 to 3, SmolLM, TinyLlama and models of their form; with DMS: read, not written",
                         .keys = llama_keys,
                         .mixer = "gqa",
                         .read = llama_read,
                         .holds = llama_holds,
                         .heads = true,
                         .attention_bias = true,
                         .mlp_bias = true};
const HfType hf_mistral = {.type = "mistral",
                           .architecture = "MistralForCausalLM",
                           .about = "Mistral: a window in all layers, or none",
                           .keys = mistral_keys,
                           .mixer = "gqa",
                           .read = mistral_read,
                           .holds = mistral_holds,
                           .write = mistral_write,
                           .positions = 4096 * 32};
const HfType hf_qwen2 = {.type = "qwen2",
                         .architecture = "Qwen2ForCausalLM",
                         .about = "Qwen 2 and 2.5: biases of q, k and v, windows in some layers",
                         .keys = qwen_keys,
                         .mixer = "gqa",
                         .read = qwen2_read,
                         .holds = qwen2_holds,
                         .write = hf_qwen_windows_json,
                         .positions = 32768};
const HfType hf_qwen3 = {.type = "qwen3",
                         .architecture = "Qwen3ForCausalLM",
                         .about =
                             "Qwen 3: norms of queries and keys, windows in some layers; with DMS: read, not written",
                         .keys = qwen3_keys,
                         .mixer = "gqa",
                         .read = qwen3_read,
                         .holds = qwen3_holds,
                         .write = hf_qwen_windows_json,
                         .positions = 32768,
                         .head_dim = 128,
                         .attention_bias = true};
