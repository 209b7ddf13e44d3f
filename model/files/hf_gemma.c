/* hf_gemma.c: the model types gemma2 and gemma3_text: norms of 1 + weight before and after each part, geglu, an
 * embedding times the square root of the width, windows in some layers. gemma2 caps scores and logits; gemma3_text
 * norms queries and keys, and layers with a window have a rotation of their own. Source: transformers
 * configuration_gemma2, modeling_gemma2, configuration_gemma3 and modeling_gemma3. */
#include "hf_file.h"

static bool gemma_read(const HfFile *f, int every, HfShape *s) {
    const json_t *act = json_object_get(f->j, "hidden_activation");
    int q;
    if (hf_given(f->j, "hidden_activation") && strcmp(hf_found(act), "gelu_pytorch_tanh"))
        return err_input(f->e, "%s: \"hidden_activation\": expected gelu_pytorch_tanh, found %.40s", f->path,
                         hf_found(act));
    if (!hf_whole(f, "query_pre_attn_scalar", 1, 256, &q)) return false;
    s->g.scale = 1 / sqrt(q);
    s->embed_scale = sqrt(s->d);
    return hf_windows_by_layer(f, every, 4096, s);
}
/* The whole number that scores are divided by the square root of; 0: there is none. */
static int gemma_scalar(const HfShape *s) {
    if (!(s->g.scale > 0)) return s->g.head_dim;
    const double q = round(1 / (s->g.scale * s->g.scale));
    return q >= 1 && q <= INT32_MAX && fabs(1 / sqrt(q) - s->g.scale) <= 1e-12 * s->g.scale ? (int)q : 0;
}
static bool gemma_holds(const HfShape *s, const char **why) {
    if (fabs(s->embed_scale - sqrt(s->d)) > 1e-12 * sqrt(s->d)) return hf_no(why, "embed_scale");
    return gemma_scalar(s) || hf_no(why, "scale");
}
static void gemma_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    json_object_del(j, "hidden_act");
    json_object_set_new(j, "hidden_activation", json_string("gelu_pytorch_tanh"));
    json_object_set_new(j, "query_pre_attn_scalar", json_integer(gemma_scalar(s)));
    json_object_set_new(j, "sliding_window", json_integer(s->window ? s->window : c->max_positions));
    json_object_set_new(j, "layer_types", hf_layer_types(s));
    json_object_set_new(j, "final_logit_softcapping", s->logits_cap > 0 ? json_real(s->logits_cap) : json_null());
    json_object_set_new(j, "pad_token_id", json_null());
}

static const HfMust gemma_musts[] = {{"use_bidirectional_attention", "false"}, {NULL, NULL}};
static const HfMust gemma3_musts[] = {{"use_bidirectional_attention", "false"},
                                      {"attn_logit_softcapping", "null"},
                                      {NULL, NULL}};
/* A cap that is null is none; one that is absent has the class's value. */
static bool cap_read(const HfFile *f, const char *key, double dflt, double *out) {
    return hf_number(f, key, json_object_get(f->j, key) ? 0 : dflt, false, out);
}

/* ---- gemma2 ------------------------------------------------------------------------------------------------------ */

static bool gemma2_read(const HfFile *f, HfShape *s) {
    return gemma_read(f, 2, s) && cap_read(f, "attn_logit_softcapping", 50, &s->g.soft_cap) &&
           cap_read(f, "final_logit_softcapping", 30, &s->logits_cap);
}
static bool gemma2_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (s->g.qk_norm) return hf_no(why, "qk_norm");
    return gemma_holds(s, why);
}
static void gemma2_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    gemma_write(j, c, s);
    json_object_set_new(j, "attn_logit_softcapping", s->g.soft_cap > 0 ? json_real(s->g.soft_cap) : json_null());
}
static const char *const gemma2_keys[] = {"hidden_activation",
                                          "query_pre_attn_scalar",
                                          "sliding_window",
                                          "final_logit_softcapping",
                                          "attn_logit_softcapping",
                                          "cache_implementation",
                                          NULL};
const HfType hf_gemma2 = {.type = "gemma2",
                          .architecture = "Gemma2ForCausalLM",
                          .about = "Gemma 2: norms before and after each part, capped scores and logits",
                          .keys = gemma2_keys,
                          .musts = gemma_musts,
                          .mixer = "gqa",
                          .may = HF_EMBED_SCALE | HF_SCORE_SCALE | HF_SCORE_CAP | HF_LOGITS_CAP,
                          .norm_place = NORM_BOTH,
                          .norm_plus_one = true,
                          .geglu = true,
                          .read = gemma2_read,
                          .holds = gemma2_holds,
                          .write = gemma2_write,
                          .positions = 8192,
                          .head_dim = 256,
                          .tied = true,
                          .attention_bias = true};

/* ---- gemma3_text ------------------------------------------------------------------------------------------------- */

/* Rotations of layers without a window and with one: by name in rope_parameters, or, as older files have them,
 * rope_theta with rope_scaling, and rope_local_base_freq. */
static bool gemma3_ropes(const HfFile *f, HfShape *s) {
    const json_t *both = json_object_get(f->j, "rope_parameters");
    const bool nested = hf_given(both, "full_attention") || hf_given(both, "sliding_attention");
    bool ok = true;
    if (nested && hf_given(f->j, "rope_scaling"))
        return err_input(f->e,
                         "%s: \"rope_scaling\" next to \"rope_parameters\" of each kind of layer; write it into its "
                         "full_attention",
                         f->path);
    if (!nested && json_object_size(both))
        return err_input(f->e, "%s: \"rope_parameters\": expected full_attention and sliding_attention in it", f->path);
    s->local_rope_json = json_object();
    for (int local = 0; ok && local < 2; local++) {
        json_t *j = json_object();
        if (nested) {
            const char *outer = local ? "rope_local_base_freq" : "rope_theta"; /* counts where the inner has no theta */
            json_object_set(j, "rope_parameters",
                            json_object_get(both, local ? "sliding_attention" : "full_attention"));
            if (hf_given(f->j, outer)) json_object_set(j, "rope_theta", json_object_get(f->j, outer));
        } else if (local) {
            json_object_set(j, "rope_theta", json_object_get(f->j, "rope_local_base_freq"));
        } else {
            static const char *const keys[] = {"rope_scaling", "rope_theta", "original_max_position_embeddings"};
            for (int i = 0; i < 3; i++)
                if (hf_given(f->j, keys[i])) json_object_set(j, keys[i], json_object_get(f->j, keys[i]));
        }
        ok = hf_rope_read(&(HfFile){f->path, j, f->e}, local ? 1e4 : 1e6, local ? s->local_rope_json : s->rope);
        json_decref(j);
    }
    return ok;
}
static bool gemma3_read(const HfFile *f, HfShape *s) {
    int every;
    s->g.qk_norm = true;
    return hf_whole(f, "_sliding_window_pattern", 1, 6, &every) &&
           hf_whole(f, "sliding_window_pattern", 1, every, &every) && gemma_read(f, every, s) &&
           cap_read(f, "final_logit_softcapping", 0, &s->logits_cap);
}
static bool gemma3_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (!s->g.qk_norm) return hf_no(why, "no qk_norm");
    if (s->nslide && s->local_rope.type != ROPE_DEFAULT) return hf_no(why, "a scaled rotation of layers with a window");
    return gemma_holds(s, why);
}
static void gemma3_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    gemma_write(j, c, s);
    json_object_set_new(j, "rope_local_base_freq", json_real(s->nslide ? s->local_rope.theta : 1e4));
}
static const char *const gemma3_keys[] = {"hidden_activation",       "query_pre_attn_scalar",
                                          "sliding_window",          "final_logit_softcapping",
                                          "attn_logit_softcapping",  "cache_implementation",
                                          "_sliding_window_pattern", "sliding_window_pattern",
                                          "rope_local_base_freq",    NULL};
const HfType hf_gemma3_text = {.type = "gemma3_text",
                               .architecture = "Gemma3ForCausalLM",
                               .about = "Gemma 3 without pictures: as Gemma 2 with norms of queries and keys",
                               .keys = gemma3_keys,
                               .musts = gemma3_musts,
                               .mixer = "gqa",
                               .may = HF_EMBED_SCALE | HF_SCORE_SCALE | HF_LOGITS_CAP | HF_LOCAL_ROPE,
                               .norm_place = NORM_BOTH,
                               .norm_plus_one = true,
                               .geglu = true,
                               .ropes = gemma3_ropes,
                               .read = gemma3_read,
                               .holds = gemma3_holds,
                               .write = gemma3_write,
                               .positions = 131072,
                               .head_dim = 256,
                               .tied = true,
                               .attention_bias = true};
