/* hf_config.c: the table of model types; config.json as settings of our own, by the type that it names. */
#include "ops/file.h"
#include "hf_file.h"

/* Keys that every type may have: its name, and how it was trained, saved and sampled. Dropout is train.dropout in
 * kvsmith. */
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

/* Those of every decoder of the Llama kind, in addition. */
static const char *const decoder[] = {"hidden_size",
                                      "intermediate_size",
                                      "num_hidden_layers",
                                      "num_attention_heads",
                                      "num_key_value_heads",
                                      "head_dim",
                                      "hidden_act",
                                      "max_position_embeddings",
                                      "rms_norm_eps",
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "original_max_position_embeddings",
                                      "partial_rotary_factor",
                                      "layer_types",
                                      "mlp_bias",
                                      NULL};

static bool hf_config_listed(const char *const *list, const char *key) {
    for (; *list; list++)
        if (!strcmp(*list, key)) return true;
    return false;
}
static bool key_known(const HfType *type, const char *key) {
    for (const HfKey *k = type->table; k && k->key; k++)
        if (!strcmp(k->key, key) || (k->also && !strcmp(k->also, key))) return true;
    for (const HfMust *m = type->musts; m && m->key; m++)
        if (!strcmp(m->key, key)) return true;
    return hf_config_listed(common, key) || (type->keys && hf_config_listed(type->keys, key)) ||
           (type->mixer && hf_config_listed(decoder, key)) || (type->attention_bias && !strcmp(key, "attention_bias"));
}
/* An unknown setting may change what the model computes, so it is refused. A key that is null or false is not in
 * use. */
static bool keys_known(const HfFile *f, const HfType *type) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)f->j, key, v) {
        bool quantised = !strcmp(key, "quantization_config"),
             empty = (quantised || !strcmp(key, "pruned_heads")) && json_is_object(v) && !json_object_size(v);
        if (json_is_null(v) || json_is_false(v) || empty || key_known(type, key)) continue;
        if (quantised && !hf_quant_known(type, f, v)) return false;
        if (quantised) continue;
        return err_input(f->e,
                         "%s: \"%.80s\" is not supported of model_type %s; remove it if the model does not need it",
                         f->path, key, type->type);
    }
    return true;
}

/* ---- a model type ------------------------------------------------------------------------------------------------ */

const HfType *const hf_types[] = {&hf_llama,
                                  &hf_mistral,
                                  &hf_qwen2,
                                  &hf_qwen3,
                                  &hf_gpt2,
                                  &hf_gpt_neox,
                                  &hf_deepseek_v3,
                                  &hf_phi3,
                                  &hf_smollm3,
                                  &hf_granite,
                                  &hf_olmo2,
                                  &hf_gemma2,
                                  &hf_gemma3_text,
                                  &hf_deepseek_v2,
                                  &hf_mixtral,
                                  &hf_qwen3_moe,
                                  &hf_qwen2_moe,
                                  &hf_olmoe,
                                  &hf_qwen3_5_text,
                                  &hf_qwen3_next,
                                  &hf_qwen3_5_moe_text,
                                  &hf_qwen3_5,
                                  &hf_qwen3_5_moe,
                                  &hf_kimi_linear,
                                  &hf_bailing_hybrid,
                                  &hf_glm4_moe,
                                  &hf_glm4_moe_lite,
                                  &hf_mamba2,
                                  &hf_granitemoehybrid,
                                  &hf_fla_kda,
                                  &hf_fla_gdn,
                                  &hf_fla_delta,
                                  &hf_fla_gla,
                                  &hf_fla_retnet,
                                  &hf_gpt_oss,
                                  &hf_nemotron_h,
                                  NULL};
const HfType *hf_type(const char *name) {
    for (int i = 0; hf_types[i]; i++)
        if (!strcmp(hf_types[i]->type, name)) return hf_types[i];
    return NULL;
}
const HfType *hf_type_of(const ModelCfg *c) {
    for (int i = 0; hf_types[i]; i++)
        if (hf_type_holds(hf_types[i], c, NULL)) return hf_types[i];
    return NULL;
}
bool hf_type_holds(const HfType *t, const ModelCfg *c, const char **why) {
    if (t->nested || t->written_as) return hf_no(why, "it is read alone");
    return t->mixer ? hf_decoder_is(t, c, why) : t->is(c, why);
}
json_t *hf_type_settings(const HfType *t, const HfFile *f) {
    return t->mixer ? hf_decoder_settings(t, f) : t->settings(f);
}
void hf_type_json(const HfType *t, json_t *j, const ModelCfg *c) {
    if (t->mixer)
        hf_decoder_json(t, j, c);
    else
        t->json(j, c);
}
bool hf_is_llama(const ModelCfg *c, const char **why) { return hf_type_holds(&hf_llama, c, why); }
bool hf_is_deepseek(const ModelCfg *c, const char **why) { return hf_type_holds(&hf_deepseek_v3, c, why); }

void hf_families_text(FILE *f) {
    fprintf(f, "| model_type | read and written |\n|---|---|\n");
    for (int i = 0; hf_types[i]; i++) {
        const HfType *t = hf_types[i];
        const char *as = t->nested ? t->text->written_as ? t->text->written_as : t->text->type : t->written_as;
        fprintf(f, "| `%s` | %s%s%s |\n", t->type, t->about, as ? "; written as " : "", as ? as : "");
    }
    fprintf(f, "| `kvsmith` | any model of this program; transformers loads it with `trust_remote_code=True`, without "
               "a cache |\n");
}
json_t *hf_families_json(void) {
    json_t *list = json_array();
    for (int i = 0; hf_types[i]; i++)
        json_array_append_new(list, json_pack("{ss ss sb sb ss}", "type", hf_types[i]->type, "architecture",
                                              hf_types[i]->architecture, "read", 1, "write",
                                              !(hf_types[i]->nested || hf_types[i]->written_as), "covers",
                                              hf_types[i]->about));
    return list;
}

/* Model types that are not supported: how they differ from supported ones. "": unknown. */
static const char *family_of(const char *type) {
    static const struct {
        const char *type, *what;
    } families[] = {{"gemma", "as gemma2, which is read, with norms before each part alone"},
                    {"gemma3", "with pictures; gemma3_text, its text model alone, is read"},
                    {"falcon_h1", "attention and Mamba-2 side by side in each layer"},
                    {"llama4", "experts and chunked attention"},
                    {"t5", "an encoder and a decoder; here are decoders alone"},
                    {"bert", "an encoder; here are decoders alone"}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(type, families[i].type)) return families[i].what;
    return "";
}

/* config.json of the text model of a type with several parts: a new object, NULL if refused. */
static json_t *text_config(const HfFile *f, const HfType *t) {
    json_t *in = json_object_get(f->j, t->nested), *tied = json_object_get(f->j, "tie_word_embeddings");
    const json_t *type = json_object_get(in, "model_type"), *own = json_object_get(in, "tie_word_embeddings");
    if (!json_is_object(in)) {
        err_input(f->e, "%s: \"%s\": expected an object, the settings of the text model", f->path, t->nested);
        return NULL;
    }
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), t->text->type))) {
        err_input(f->e, "%s: \"%s\": \"model_type\": expected %s, found %.60s", f->path, t->nested, t->text->type,
                  hf_found(type));
        return NULL;
    }
    if (hf_given(f->j, "tie_word_embeddings") && own && !json_equal(tied, own)) {
        err_input(f->e, "%s: \"tie_word_embeddings\" differs from that in \"%s\"; remove one", f->path, t->nested);
        return NULL;
    }
    in = json_copy(in);
    if (hf_given(f->j, "tie_word_embeddings")) json_object_set(in, "tie_word_embeddings", tied);
    return in;
}
static json_t *config_settings(const HfFile *f, const HfType *t) {
    if (!keys_known(f, t)) return NULL;
    if (!t->nested) return hf_type_settings(t, f);
    json_t *in = text_config(f, t);
    const HfFile text = {f->path, in, f->e};
    json_t *own = in && keys_known(&text, t->text) ? hf_type_settings(t->text, &text) : NULL;
    json_decref(in);
    return own;
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
        own = config_settings(&f, known);
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
        err_input(
            e, "%s: \"model_type\": expected kvsmith or a type that `kvsmith info --families` lists, found %.60s%s%s%s",
            path,
            name   ? name
            : type ? hf_json_kind(type)
                   : "nothing",
            *near ? " (" : "", near, *near ? ")" : "");
    }
    if (own) {
        char *text = json_dumps(own, JSON_COMPACT);
        ok = text ? model_cfg_from_json(c, text, strlen(text), where, e) : err_runtime(e, "%s: out of memory", path);
        free(text);
    }
    json_decref(own);
    json_decref(j);
    free(where);
    free(path);
    return ok;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

static bool id_read(const HfFile *f, const char *key, const json_t *v, int *out) {
    if (!json_is_integer(v) || json_integer_value(v) < -1 || json_integer_value(v) > INT32_MAX)
        return err_input(f->e, "%s: \"%s\": expected a token id, found %s", f->path, key,
                         json_is_integer(v) ? "a number out of range"
                         : v                ? hf_json_kind(v)
                                            : "nothing");
    *out = (int)json_integer_value(v);
    return true;
}

/* Values in the file replace those in `ids`. */
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
        HfFile f = {path, j, e}, text = {path, json_object_get(j, "text_config"), e};
        bool ok = j && (!json_is_object(text.j) || ids_from(&text, ids)) && ids_from(&f, ids);
        json_decref(j);
        free(path);
        if (!ok) return false;
    }
    return true;
}
