/* hf_config.c: config.json into the model's own settings. Values are checked here under the names that the file uses;
 * the settings' tables check them again. */
#include "../ops/file.h"
#include "hf_file.h"

static const char *type_name(const json_t *v) {
    static const char *const name[] = {"an object", "a list", "text",  "a whole number",
                                       "a number",  "true",   "false", "null"};
    return name[json_typeof(v)];
}
bool hf_given(const json_t *j, const char *key) {
    const json_t *v = json_object_get(j, key);
    return v && !json_is_null(v);
}

bool hf_whole(const HfFile *f, const char *key, int least, int dflt, int *out) {
    const json_t *v = json_object_get(f->j, key);
    *out = dflt;
    if (!hf_given(f->j, key)) return dflt >= 0 || err_input(f->e, "%s: \"%s\" is missing", f->path, key);
    if (!json_is_integer(v))
        return err_input(f->e, "%s: \"%s\": expected a whole number, found %s", f->path, key, type_name(v));
    if (json_integer_value(v) < least || json_integer_value(v) > INT32_MAX)
        return err_input(f->e, "%s: \"%s\": expected %d to %d, found %lld", f->path, key, least, INT32_MAX,
                         (long long)json_integer_value(v));
    *out = (int)json_integer_value(v);
    return true;
}

bool hf_number(const HfFile *f, const char *key, double dflt, bool zero, double *out) {
    const json_t *v = json_object_get(f->j, key);
    *out = dflt;
    if (!hf_given(f->j, key)) return true;
    if (!json_is_number(v))
        return err_input(f->e, "%s: \"%s\": expected a number, found %s", f->path, key, type_name(v));
    *out = json_number_value(v);
    return (isfinite(*out) && (*out > 0 || (zero && *out == 0))) ||
           err_input(f->e, "%s: \"%s\": expected %s, found %g", f->path, key, zero ? "0 or more" : "more than 0", *out);
}

bool hf_flag(const HfFile *f, const char *key, bool *out) {
    const json_t *v = json_object_get(f->j, key);
    *out = json_is_true(v);
    return !hf_given(f->j, key) || json_is_boolean(v) ||
           err_input(f->e, "%s: \"%s\": expected true or false, found %s", f->path, key, type_name(v));
}

/* ---- rotation ------------------------------------------------------------------------------------------------------
 */

/* Our name for a number or list of the rope object; NULL: unknown. */
static const char *rope_name(const char *key) {
    static const char *const names[][2] = {{"factor", "factor"},
                                           {"low_freq_factor", "low_freq_factor"},
                                           {"high_freq_factor", "high_freq_factor"},
                                           {"beta_fast", "beta_fast"},
                                           {"beta_slow", "beta_slow"},
                                           {"mscale", "mscale"},
                                           {"mscale_all_dim", "mscale_all_dim"},
                                           {"attention_factor", "attention_factor"},
                                           {"truncate", "truncate"},
                                           {"short_factor", "short_factor"},
                                           {"long_factor", "long_factor"},
                                           {"original_max_position_embeddings", "original_max_positions"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(key, names[i][0])) return names[i][1];
    return NULL;
}

static bool rope_type(const HfFile *f, const json_t *r, const char **out) {
    static const char *const known[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
    const json_t *v = hf_given(r, "rope_type") ? json_object_get(r, "rope_type") : json_object_get(r, "type");
    *out = "default";
    if (!v || json_is_null(v)) return true;
    *out = json_is_string(v) ? json_string_value(v) : type_name(v);
    for (size_t i = 0; json_is_string(v) && i < sizeof known / sizeof *known; i++)
        if (!strcmp(*out, known[i])) return true;
    return err_input(
        f->e, "%s: rope type \"%.60s\" is not known; expected default, linear, dynamic, llama3, yarn or longrope",
        f->path, *out);
}

bool hf_rope_read(const HfFile *f, json_t *out) {
    const json_t *params = json_object_get(f->j, "rope_parameters"), *scaling = json_object_get(f->j, "rope_scaling");
    const json_t *L = json_object_get(f->j, "original_max_position_embeddings");
    bool a = hf_given(f->j, "rope_parameters"), b = hf_given(f->j, "rope_scaling");
    const json_t *r = a ? params : b ? scaling : NULL;
    const char *key, *type = "default";
    json_t *v;
    double theta;
    if ((a && !json_is_object(params)) || (b && !json_is_object(scaling)))
        return err_input(f->e, "%s: \"%s\": expected an object", f->path,
                         a && !json_is_object(params) ? "rope_parameters" : "rope_scaling");
    /* Versions of transformers disagree about which one counts. */
    if (a && b && !json_equal(params, scaling))
        return err_input(f->e, "%s: \"rope_parameters\" and \"rope_scaling\" differ; remove one", f->path);
    if (!hf_number(f, "rope_theta", 10000, false, &theta)) return false;
    if (r && hf_given(r, "rope_theta") && !hf_number(&(HfFile){f->path, r, f->e}, "rope_theta", 0, false, &theta))
        return false;
    if (r && !rope_type(f, r, &type)) return false;
    json_object_set_new(out, "type", json_string(type));
    json_object_set_new(out, "theta", json_real(theta));
    bool trained = !strcmp(type, "llama3") || !strcmp(type, "yarn") || !strcmp(type, "longrope");
    json_object_foreach((json_t *)r, key, v) {
        const char *name = rope_name(key);
        if (json_is_null(v) || !strcmp(key, "rope_type") || !strcmp(key, "type") || !strcmp(key, "rope_theta"))
            continue;
        if (!strcmp(key, "partial_rotary_factor") && json_is_number(v) && json_number_value(v) == 1) continue;
        if (!name) return err_input(f->e, "%s: rope setting \"%.80s\" is not supported", f->path, key);
        if (!strcmp(name, "original_max_positions") && !trained) continue; /* has no part in the others */
        json_object_set(out, name, v);
    }
    if (trained && L && !json_is_null(L)) json_object_set(out, "original_max_positions", (json_t *)L);
    return true;
}

/* ---- llama ---------------------------------------------------------------------------------------------------------
 */

/* Keys whose presence changes what the model computes in a way that is not built. */
bool hf_supported(const HfFile *f) {
    static const char *const never[] = {"quantization_config", "sliding_window", "partial_rotary_factor",
                                        "pruned_heads"};
    const json_t *act = json_object_get(f->j, "hidden_act"), *types = json_object_get(f->j, "layer_types"), *v;
    bool mlp_bias;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        v = json_object_get(f->j, never[i]);
        bool empty = json_is_object(v) && !json_object_size(v), one = json_is_number(v) && json_number_value(v) == 1;
        if (hf_given(f->j, never[i]) && !empty && !(i == 2 && one))
            return err_input(f->e, "%s: \"%s\" is not supported", f->path, never[i]);
    }
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *s = json_string_value(json_array_get(types, i));
        if (!s || strcmp(s, "full_attention"))
            return err_input(f->e, "%s: \"layer_types\": expected full_attention, found %.40s", f->path,
                             s ? s : "no text");
    }
    if (hf_given(f->j, "hidden_act") && (!json_is_string(act) || strcmp(json_string_value(act), "silu")))
        return err_input(f->e, "%s: \"hidden_act\": expected silu, found %.40s", f->path,
                         json_is_string(act) ? json_string_value(act) : type_name(act));
    if (!hf_flag(f, "mlp_bias", &mlp_bias)) return false;
    return !mlp_bias || err_input(f->e, "%s: \"mlp_bias\": true is not supported", f->path);
}

/* The same model in our own terms. */
static json_t *llama_settings(const HfFile *f) {
    int d, F, layers, H, G, D, V, P;
    double eps, std;
    bool bias, tied;
    if (!hf_whole(f, "hidden_size", 1, -1, &d) || !hf_whole(f, "intermediate_size", 1, -1, &F) ||
        !hf_whole(f, "num_hidden_layers", 1, -1, &layers) || !hf_whole(f, "num_attention_heads", 1, -1, &H) ||
        !hf_whole(f, "vocab_size", 1, -1, &V) || !hf_whole(f, "num_key_value_heads", 1, H, &G) ||
        !hf_whole(f, "max_position_embeddings", 1, 2048, &P) || !hf_number(f, "rms_norm_eps", 1e-6, false, &eps) ||
        !hf_number(f, "initializer_range", 0.02, true, &std) || !hf_flag(f, "attention_bias", &bias) ||
        !hf_flag(f, "tie_word_embeddings", &tied) || !hf_supported(f))
        return NULL;
    if (!hf_given(f->j, "head_dim") && d % H) {
        err_input(f->e, "%s: \"num_attention_heads\": %d does not divide hidden_size %d and there is no head_dim",
                  f->path, H, d);
        return NULL;
    }
    if (!hf_whole(f, "head_dim", 2, d / H, &D)) return NULL;
    if (H % G || D % 2) {
        err_input(f->e,
                  H % G ? "%s: \"num_key_value_heads\": %d does not divide num_attention_heads %d"
                        : "%s: \"head_dim\": expected an even number, found %d (num_attention_heads %d)",
                  f->path, H % G ? G : D, H);
        return NULL;
    }
    json_t *rope = json_object();
    if (!hf_rope_read(f, rope)) {
        json_decref(rope);
        return NULL;
    }
    return json_pack("{si si si si sf sf sb s{s{ss si si si so sb sb}} s[s] s[{ss si}]}", "d_model", d, "layers",
                     layers, "vocab", V, "max_positions", P, "norm_eps", eps, "init_std", std, "tied", tied, "kinds",
                     "full", "mixer", "gqa", "heads", H, "kv_heads", G, "head_dim", D, "rope", rope, "qkv_bias", bias,
                     "o_bias", bias, "pattern", "full", "ffn", "kind", "swiglu", "hidden", F);
}

bool hf_config_read(const char *dir, ModelCfg *c, Err *e) {
    char *path = xformat("%s/config.json", dir), *where = NULL;
    json_t *j = json_read(path, e), *own = NULL;
    const json_t *type = json_object_get(j, "model_type");
    const char *name = json_is_string(type) ? json_string_value(type) : NULL;
    HfFile f = {path, j, e};
    bool ok = false;
    *c = (ModelCfg){0};
    bool llama = name && !strcmp(name, "llama");
    if (llama || (name && !strcmp(name, "deepseek_v3"))) {
        own = llama ? llama_settings(&f) : hf_deepseek_settings(&f);
        where = xstrdup(path);
    } else if (name && !strcmp(name, "kvsmith")) {
        own = json_incref(json_object_get(j, "kvsmith"));
        where = xformat("%s: kvsmith", path);
        if (!json_is_object(own)) {
            err_input(e, "%s: \"kvsmith\": expected an object, the model's settings", path);
            json_decref(own);
            own = NULL;
        }
    } else if (j) {
        err_input(e, "%s: \"model_type\": expected llama, deepseek_v3 or kvsmith, found %.60s", path,
                  name   ? name
                  : type ? type_name(type)
                         : "nothing");
    }
    if (own) {
        char *text = json_dumps(own, JSON_COMPACT);
        ok = text ? model_cfg_from_json(c, text, strlen(text), where, e) : err_world(e, "%s: out of memory", path);
        free(text);
    }
    json_decref(own);
    json_decref(j);
    free(where);
    free(path);
    return ok;
}

/* ---- ids -----------------------------------------------------------------------------------------------------------
 */

static bool id_read(const HfFile *f, const char *key, const json_t *v, int *out) {
    if (!json_is_integer(v) || json_integer_value(v) < -1 || json_integer_value(v) > INT32_MAX)
        return err_input(f->e, "%s: \"%s\": expected a token id, found %s", f->path, key,
                         json_is_integer(v) ? "a number out of range"
                         : v                ? type_name(v)
                                            : "nothing");
    *out = (int)json_integer_value(v);
    return true;
}

/* What the file says replaces what `ids` has. */
static bool ids_from(const HfFile *f, HfIds *ids) {
    const json_t *eos = json_object_get(f->j, "eos_token_id");
    if (hf_given(f->j, "bos_token_id") && !id_read(f, "bos_token_id", json_object_get(f->j, "bos_token_id"), &ids->bos))
        return false;
    if (!hf_given(f->j, "eos_token_id")) return true;
    int n = json_is_array(eos) ? (int)json_array_size(eos) : 1;
    if (n > HF_EOS_MAX)
        return err_input(f->e, "%s: \"eos_token_id\": %d ids, at most %d are read", f->path, n, HF_EOS_MAX);
    for (int i = 0; i < n; i++)
        if (!id_read(f, "eos_token_id", json_is_array(eos) ? json_array_get(eos, (size_t)i) : eos, &ids->eos[i]))
            return false;
    ids->neos = n == 1 && ids->eos[0] < 0 ? 0 : n; /* old files say -1 for none */
    return true;
}

bool hf_ids_read(const char *dir, HfIds *ids, Err *e) {
    static const char *const files[] = {"config.json", "generation_config.json"};
    *ids = (HfIds){.bos = -1};
    for (int i = 0; i < 2; i++) {
        if (i && !file_exists(dir, files[i])) continue;
        char *path = xformat("%s/%s", dir, files[i]);
        json_t *j = json_read(path, e);
        HfFile f = {path, j, e};
        bool ok = j && ids_from(&f, ids);
        json_decref(j);
        free(path);
        if (!ok) return false;
    }
    return true;
}
