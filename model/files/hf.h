/* hf.h: reads and writes model directories in the layout of Hugging Face transformers: config.json, model.safetensors
 * or its shards, generation_config.json. Training, conversion and inference load and save models through it.
 * data/tokenizer.h reads tokenizer.json.
 *
 *   model_type                        read as
 *   llama, mistral, qwen2, qwen3      gqa and one swiglu
 *   phi3, smollm3, granite, olmo2     the same, with some of the settings that a llama does not have
 *   gemma2, gemma3_text               gqa and one geglu, norms before and after them
 *   gpt2, gpt_neox                    gqa and one gelu
 *   deepseek_v3 without experts       mla and one swiglu
 *   kvsmith                           any model; it holds the settings of model_cfg_json under "kvsmith"
 *
 * A model is written as the first of these types that can hold it. transformers loads all of them; kvsmith by
 * modeling_kvsmith.py, which is written with it, and trust_remote_code=True. Tensor names are those of LlamaForCausalLM
 * and DeepseekV3ForCausalLM. gpt2 and gpt_neox have their own names and transposed and joined matrices, which are
 * converted on reading and writing.
 * Fields and their defaults: transformers configuration_llama and those of the others, modeling_rope_utils (v5
 * meaning, v4 spelling understood). */
#pragma once
#include "model/model.h"
#include "safetensors.h"

enum { HF_EOS_MAX = 16 };
typedef struct {
    int bos, neos, eos[HF_EOS_MAX]; /* bos -1: none */
} HfIds;

/* Read the model's shape from DIR/config.json; the caller must call model_cfg_free. Rotations that depend on the
 * length of the input (dynamic, longrope) are resolved in model_plan. Refused (EXIT_INPUT):
 * - models that we cannot compute as transformers does (other types, mlp_bias, most quantisations, other activations,
 *   unknown rope scalings);
 * - keys that the type is not known to have, unless they are null or false;
 * - missing or impossible values. */
bool hf_config_read(const char *dir, ModelCfg *, Err *);
/* Read start and end ids: generation_config.json first, then config.json. A directory without them gives -1 and 0. */
bool hf_ids_read(const char *dir, HfIds *, Err *);
/* Check, from headers alone, that every tensor that a model of this shape needs is there with its shape and a float
 * dtype. Only rotary buffers, causal masks and the head's copy in a tied model may be there in addition. It is cheap;
 * call it before any memory is taken. */
bool hf_check(const char *dir, const ModelCfg *, Err *);
/* True if every matrix in the files of DIR is BF16 or MXFP4; false if there is no model. `e` is filled if reading
 * failed for another reason (EXIT_RUNTIME). Reads headers alone. */
bool hf_is_bf16(const char *dir, Err *e);
/* Do the same checks and load the values into m->w. On failure the weights are undefined. */
bool hf_load(const char *dir, Model *m, Err *);
/* Both, with the adapter of a `peft` directory added to the weights (peft.h); NULL: none. */
bool hf_check_with(const char *dir, const char *adapter, const ModelCfg *, Err *);
bool hf_load_with(const char *dir, const char *adapter, Model *m, Err *);
/* Print what is unusual but legal in DIR (which must have passed hf_check), a line each, on `f`; returns how many
 * lines. */
int hf_notes(const char *dir, FILE *f);

/* Print the table of model types: type, what is supported, what it covers. The same as a JSON list. */
void hf_families_text(FILE *);
json_t *hf_families_json(void);
/* True if transformers' LlamaForCausalLM computes this model; otherwise `why` (may be NULL) says what it lacks. */
bool hf_is_llama(const ModelCfg *, const char **why);
/* The same for DeepseekV3ForCausalLM with dense layers alone (first_k_dense_replace = num_hidden_layers). */
bool hf_is_deepseek(const ModelCfg *, const char **why);
/* The same for a class of flash-linear-attention; model.library must be fla, unless transformers' class is the same. */
bool hf_is_fla(const ModelCfg *, const char **why);
/* Rewrite DIR/generation_config.json with the ids and the keys of `keep` (an object). */
bool hf_generation_write(const char *dir, const HfIds *, json_t *keep, Err *);
/* Write config.json as one file, by the rules of file.h, and for the type kvsmith modeling_kvsmith.py next to it. ids
 * may be NULL. dtype: that of the tensors saved with it. */
bool hf_config_write(const char *path, const ModelCfg *, const HfIds *, Dtype, Err *);
/* Write config.json, generation_config.json and model.safetensors into DIR, which must exist; tensors as `as`. Each
 * file is whole or absent; the caller must make the directory so. */
bool hf_save(const char *dir, const Model *, const HfIds *, Dtype as, Err *);
/* The same, with the tensors in shards of at most `limit` bytes if they need more (st_write_dir; 0: one file). */
bool hf_save_sharded(const char *dir, const Model *, const HfIds *, Dtype as, size_t limit, Err *e);
/* Copy the files of the model directory FROM that are neither settings nor weights to TO, byte for byte, replacing
 * files of the same name. It also replaces generation_config.json, so call it after hf_save. Each file is whole or
 * absent.
 * - Copied: generation_config.json, tokenizers, chat templates, licences: names that end in .json, .txt, .model,
 *   .jinja, .bpe, .tiktoken, and LICENSE, NOTICE, USE_POLICY.
 * - Not copied: README, an index, records of a training, folders. */
bool hf_copy(const char *from, const char *to, Err *);

/* The open files of a model directory, and the places of a model's fields in them; or, without files, the places in
 * the files that we write. */
typedef struct {
    St st;
    const StNames *names; /* NULL: the fields' own names */
    struct HfPlaces *places;
    struct Peft *peft; /* added to the values that are read; NULL: nothing */
} HfFiles;
bool hf_files_open(HfFiles *, const char *dir, const ModelCfg *, Err *);
bool hf_files_open_with(HfFiles *, const char *dir, const char *adapter, const ModelCfg *, Err *);
void hf_files_plan(HfFiles *, const ModelCfg *); /* without files */
void hf_files_close(HfFiles *);
/* The name of the field `path`, of t's shape, in the files, and its place in the tensor of that name. */
StPlace hf_files_name(const HfFiles *, const char *path, Tensor t, char name[192]);
/* The entry of a field; NULL: not there. */
const StEntry *hf_files_find(const HfFiles *, const char *path, Tensor t, StPlace *);
