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

const char *hf_found(const json_t *v) {
    return !v ? "nothing" : json_is_string(v) ? json_string_value(v) : type_name(v);
}

bool hf_flag(const HfFile *f, const char *key, bool *out) { return hf_flag_or(f, key, false, out); }
bool hf_flag_or(const HfFile *f, const char *key, bool dflt, bool *out) {
    const json_t *v = json_object_get(f->j, key);
    *out = hf_given(f->j, key) ? json_is_true(v) : dflt;
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

/* ---- keys ----------------------------------------------------------------------------------------------------------
 */

bool hf_supported(const HfFile *f) {
    const json_t *act = json_object_get(f->j, "hidden_act"), *part = json_object_get(f->j, "partial_rotary_factor");
    bool mlp_bias;
    if (hf_given(f->j, "partial_rotary_factor") && !(json_is_number(part) && json_number_value(part) == 1))
        return err_input(f->e, "%s: \"partial_rotary_factor\" is not supported", f->path);
    if (hf_given(f->j, "hidden_act") && strcmp(hf_found(act), "silu"))
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

/* What every type may say: what it is called and how it was trained, saved and sampled; dropout, which kvsmith has as
 * train.dropout. */
static const char *const common[] = {"architectures",
                                     "model_type",
                                     "transformers_version",
                                     "torch_dtype",
                                     "dtype",
                                     "_name_or_path",
                                     "name_or_path",
                                     "_commit_hash",
                                     "_attn_implementation",
                                     "_attn_implementation_autoset",
                                     "attn_implementation",
                                     "auto_map",
                                     "vocab_size",
                                     "initializer_range",
                                     "tie_word_embeddings",
                                     "use_cache",
                                     "bos_token_id",
                                     "eos_token_id",
                                     "pad_token_id",
                                     "sep_token_id",
                                     "decoder_start_token_id",
                                     "attention_dropout",
                                     "id2label",
                                     "label2id",
                                     "num_labels",
                                     "problem_type",
                                     "finetuning_task",
                                     "task_specific_params",
                                     "tokenizer_class",
                                     "prefix",
                                     "return_dict",
                                     "return_dict_in_generate",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "output_scores",
                                     "torchscript",
                                     "is_decoder",
                                     "chunk_size_feed_forward",
                                     "max_length",
                                     "min_length",
                                     "do_sample",
                                     "early_stopping",
                                     "num_beams",
                                     "num_beam_groups",
                                     "diversity_penalty",
                                     "temperature",
                                     "top_k",
                                     "top_p",
                                     "typical_p",
                                     "repetition_penalty",
                                     "length_penalty",
                                     "no_repeat_ngram_size",
                                     "encoder_no_repeat_ngram_size",
                                     "bad_words_ids",
                                     "num_return_sequences",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "remove_invalid_values",
                                     "exponential_decay_length_penalty",
                                     "suppress_tokens",
                                     "begin_suppress_tokens",
                                     "is_llama_config",
                                     "transformers.js_config",
                                     "max_sequence_length",
                                     "unsloth_version",
                                     "unsloth_fixed",
                                     "kvsmith_task", /* task_cfg.h */
                                     NULL};

static bool listed(const char *const *list, const char *key) {
    for (; *list; list++)
        if (!strcmp(*list, key)) return true;
    return false;
}
/* A setting that nobody here knows may change what the model computes. What is null or false is not in use. */
static bool keys_known(const HfFile *f, const HfType *type) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)f->j, key, v) {
        bool empty = (!strcmp(key, "quantization_config") || !strcmp(key, "pruned_heads")) && json_is_object(v) &&
                     !json_object_size(v);
        if (json_is_null(v) || json_is_false(v) || empty || listed(common, key) || listed(type->keys, key)) continue;
        const char *method = json_string_value(json_object_get(v, "quant_method"));
        if (!strcmp(key, "quantization_config"))
            return err_input(
                f->e,
                "%s: \"quantization_config\" is not supported: this checkpoint is quantised by %.40s; start "
                "from the unquantised model",
                f->path, method ? method : "a method without a name");
        return err_input(f->e,
                         "%s: \"%.80s\" is not supported of model_type %s; remove it if the model does not need it",
                         f->path, key, type->type);
    }
    return true;
}

/* ---- a model type --------------------------------------------------------------------------------------------------
 */

const HfType *const hf_types[] = {&hf_llama, &hf_mistral,  &hf_qwen2,    &hf_qwen3,
                                  &hf_gpt2,  &hf_gpt_neox, &hf_deepseek, NULL};
const HfType *hf_type(const char *name) {
    for (int i = 0; hf_types[i]; i++)
        if (!strcmp(hf_types[i]->type, name)) return hf_types[i];
    return NULL;
}
const HfType *hf_type_of(const ModelCfg *c) {
    for (int i = 0; hf_types[i]; i++)
        if (hf_types[i]->is(c, NULL)) return hf_types[i];
    return NULL;
}

/* Families that people have and that are not read: what they are beside those that are. "": not known. */
static const char *family_of(const char *type) {
    static const struct {
        const char *type, *what;
    } families[] = {{"phi3", "a llama whose q, k, v and whose gate, up are joined; split them and it is one"},
                    {"mixtral", "a mistral with experts"},
                    {"qwen2_moe", "a qwen2 with experts"},
                    {"qwen3_moe", "a qwen3 with experts"},
                    {"qwen3_next", "gated delta rule beside gated attention, with experts"},
                    {"gemma", "norms of 1 + w and a scaled embedding"},
                    {"gemma2", "norms of 1 + w behind each part, and capped logits"},
                    {"gemma3", "norms of 1 + w behind each part; take a text model of another family"},
                    {"gemma3_text", "norms of 1 + w behind each part"},
                    {"olmo2", "a llama with its norms behind each part"},
                    {"smollm3", "a llama with layers without rotation"},
                    {"granite", "a llama with factors on embedding, residuals and logits"},
                    {"gpt_oss", "experts, attention sinks and 4-bit weights"},
                    {"mamba2", "the mixer mamba2 is here, its published files are not read"},
                    {"kimi_linear", "the mixers kda and mla are here, its published files are not read"},
                    {"deepseek_v2", "near deepseek_v3, which is read"},
                    {"llama4", "experts and chunked attention"},
                    {"t5", "an encoder and a decoder; here are decoders alone"},
                    {"bert", "an encoder; here are decoders alone"}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(type, families[i].type)) return families[i].what;
    return "";
}

bool hf_config_read(const char *dir, ModelCfg *c, Err *e) {
    char *path = xformat("%s/config.json", dir), *where = NULL;
    json_t *j = json_read(path, e), *own = NULL;
    const json_t *type = json_object_get(j, "model_type");
    const char *name = json_is_string(type) ? json_string_value(type) : NULL;
    HfFile f = {path, j, e};
    bool ok = false;
    *c = (ModelCfg){0};
    const HfType *known = name ? hf_type(name) : NULL;
    if (known) {
        own = keys_known(&f, known) ? known->settings(&f) : NULL;
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
        const char *near = name ? family_of(name) : "";
        err_input(e,
                  "%s: \"model_type\": expected llama, mistral, qwen2, qwen3, gpt2, gpt_neox, deepseek_v3 or kvsmith, "
                  "found %.60s%s%s%s",
                  path,
                  name   ? name
                  : type ? type_name(type)
                         : "nothing",
                  *near ? " (" : "", near, *near ? ")" : "");
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
        if (i && !file_exists(dir, files[i], e)) return !e->status;
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
