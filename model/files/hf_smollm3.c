/* hf_smollm3.c: the model type smollm3: a llama some of whose layers have no rotation. Source: transformers
 * configuration_smollm3 and modeling_smollm3. */
#include "hf_file.h"

/* no_rope_layers: 0 where a layer has none; without it every interval-th. */
static bool unturned_read(const HfFile *f, HfShape *s) {
    const json_t *list = json_object_get(f->j, "no_rope_layers");
    int every;
    if (!hf_whole(f, "no_rope_layer_interval", 1, 4, &every)) return false;
    if (hf_given(f->j, "no_rope_layers") && (!json_is_array(list) || json_array_size(list) < (size_t)s->layers))
        return err_input(f->e, "%s: \"no_rope_layers\": expected a list of num_hidden_layers (%d) 0 and 1", f->path,
                         s->layers);
    for (int l = 0; l < s->layers; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        if (json_is_array(list) && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1))
            return err_input(f->e, "%s: \"no_rope_layers\": expected 0 or 1 for layer %d", f->path, l);
        s->unturned[l] = json_is_array(list) ? !json_integer_value(v) : (l + 1) % every == 0;
        s->nunturned += s->unturned[l];
    }
    return true;
}
/* Without layer_types windows are where rotations are not. */
static bool smollm3_read(const HfFile *f, HfShape *s) {
    bool use;
    int window;
    if (!unturned_read(f, s)) return false;
    if (hf_given(f->j, "layer_types")) return hf_qwen_windows(f, s);
    if (!hf_flag(f, "use_sliding_window", &use) || !hf_whole(f, "sliding_window", 1, 0, &window)) return false;
    s->window = use ? window : 0;
    for (int l = 0; l < s->layers; l++) s->slides[l] = s->window && s->unturned[l];
    return true;
}
static bool smollm3_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (!s->nunturned) return hf_no(why, "a rotation in all layers");
    return !s->g.qk_norm || hf_no(why, "qk_norm");
}
static void smollm3_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    json_t *list = json_array();
    for (int l = 0; l < c->layers; l++) json_array_append_new(list, json_integer(!s->unturned[l]));
    hf_qwen_windows_json(j, c, s);
    json_object_del(j, "max_window_layers");
    json_object_set_new(j, "pad_token_id", json_null()); /* not the class's id, which a small vocabulary lacks */
    json_object_set_new(j, "no_rope_layers", list);
}

static const char *const smollm3_keys[] = {"no_rope_layers",
                                           "no_rope_layer_interval",
                                           "sliding_window",
                                           "use_sliding_window",
                                           "max_window_layers",
                                           "pretraining_tp",
                                           NULL};
const HfType hf_smollm3 = {.type = "smollm3",
                           .architecture = "SmolLM3ForCausalLM",
                           .about = "SmolLM 3: layers without rotation",
                           .keys = smollm3_keys,
                           .mixer = "gqa",
                           .may = HF_UNTURNED,
                           .read = smollm3_read,
                           .holds = smollm3_holds,
                           .write = smollm3_write,
                           .positions = 32768,
                           .theta = 2e6,
                           .tied = true,
                           .attention_bias = true,
                           .mlp_bias = true};
