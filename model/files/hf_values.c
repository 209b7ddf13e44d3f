/* hf_values.c: values of a config.json, checked under the file's names; the settings' tables check them again. */
#include "hf_file.h"

const char *hf_json_kind(const json_t *v) {
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
        return err_input(f->e, "%s: \"%s\": expected a whole number, found %s", f->path, key, hf_json_kind(v));
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
        return err_input(f->e, "%s: \"%s\": expected a number, found %s", f->path, key, hf_json_kind(v));
    *out = json_number_value(v);
    return (isfinite(*out) && (*out > 0 || (zero && *out == 0))) ||
           err_input(f->e, "%s: \"%s\": expected %s, found %g", f->path, key, zero ? "0 or more" : "more than 0", *out);
}

const char *hf_found(const json_t *v) {
    return !v ? "nothing" : json_is_string(v) ? json_string_value(v) : hf_json_kind(v);
}

bool hf_flag(const HfFile *f, const char *key, bool *out) { return hf_flag_or(f, key, false, out); }
bool hf_flag_or(const HfFile *f, const char *key, bool dflt, bool *out) {
    const json_t *v = json_object_get(f->j, key);
    *out = hf_given(f->j, key) ? json_is_true(v) : dflt;
    return !hf_given(f->j, key) || json_is_boolean(v) ||
           err_input(f->e, "%s: \"%s\": expected true or false, found %s", f->path, key, hf_json_kind(v));
}

bool hf_texts(const HfFile *f, const char *key, int layers, const char *yes, const char *no, bool *out) {
    const json_t *list = json_object_get(f->j, key);
    if (!hf_given(f->j, key)) return true;
    if (!json_is_array(list) || json_array_size(list) != (size_t)layers)
        return err_input(f->e, "%s: \"%s\": expected a list of num_hidden_layers (%d) texts", f->path, key, layers);
    for (int l = 0; l < layers; l++) {
        const char *v = hf_found(json_array_get(list, (size_t)l));
        out[l] = !strcmp(v, yes);
        if (!out[l] && strcmp(v, no))
            return err_input(f->e, "%s: \"%s\": layer %d: expected %s or %s, found %.40s", f->path, key, l, yes, no, v);
    }
    return true;
}

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

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
    *out = json_is_string(v) ? json_string_value(v) : hf_json_kind(v);
    for (size_t i = 0; json_is_string(v) && i < sizeof known / sizeof *known; i++)
        if (!strcmp(*out, known[i])) return true;
    return err_input(
        f->e, "%s: rope type \"%.60s\" is not known; expected default, linear, dynamic, llama3, yarn or longrope",
        f->path, *out);
}

bool hf_rope_read(const HfFile *f, double dflt, json_t *out) {
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
    if (!hf_number(f, "rope_theta", dflt, false, &theta)) return false;
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
        if (!strcmp(name, "original_max_positions") && !trained) continue; /* not used by the other types */
        json_object_set(out, name, v);
    }
    if (trained && L && !json_is_null(L)) json_object_set(out, "original_max_positions", (json_t *)L);
    return true;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

bool hf_supported(const HfType *t, const HfFile *f) {
    const json_t *act = json_object_get(f->j, "hidden_act"), *part = json_object_get(f->j, "partial_rotary_factor");
    bool mlp_bias;
    if (!(t->may & HF_PART_TURNED) && hf_given(f->j, "partial_rotary_factor") &&
        !(json_is_number(part) && json_number_value(part) == 1))
        return err_input(f->e, "%s: \"partial_rotary_factor\" is not supported", f->path);
    if (!t->geglu && hf_given(f->j, "hidden_act") && strcmp(hf_found(act), "silu"))
        return err_input(f->e, "%s: \"hidden_act\": expected silu, found %.40s", f->path, hf_found(act));
    if (!hf_flag(f, "mlp_bias", &mlp_bias)) return false;
    return !mlp_bias || err_input(f->e, "%s: \"mlp_bias\": true is not supported", f->path);
}
bool hf_plain_layers(const HfFile *f) {
    const json_t *types = json_object_get(f->j, "layer_types");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *v = json_array_get(types, i);
        if (!json_is_string(v) || strcmp(json_string_value(v), "full_attention"))
            return err_input(f->e, "%s: \"layer_types\": expected full_attention, found %.40s", f->path,
                             json_is_string(v) ? hf_found(v) : "no text");
    }
    return true;
}
