/* hf.h: a model directory as Hugging Face transformers lays it out: config.json, model.safetensors or its shards,
 * generation_config.json. tokenizer.json belongs to data/tokenizer.h.
 *
 * model_type llama, mistral, qwen2 and qwen3 are read into gqa and one swiglu, gpt2 and gpt_neox into gqa and one gelu,
 * deepseek_v3 without experts into mla and one swiglu; each is written whenever the model is one (of several the first
 * in this order), so that transformers loads it unchanged; any other model is model_type "kvsmith", which holds the
 * settings of model_cfg_json under "kvsmith". Tensor names are those of LlamaForCausalLM and DeepseekV3ForCausalLM in
 * all but gpt2 and gpt_neox, whose own names, transposed and joined matrices are taken apart and made again on the way.
 * Fields and their defaults: transformers configuration_llama and those of the others, modeling_rope_utils (v5 meaning,
 * v4 spelling understood). */
#pragma once
#include "model.h"
#include "safetensors.h"

enum { HF_EOS_MAX = 16 };
typedef struct {
    int bos, neos, eos[HF_EOS_MAX]; /* bos -1: none */
} HfIds;

/* The model's shape from DIR/config.json; model_cfg_free when done. Refused (EXIT_INPUT): what cannot be computed here
 * as transformers would (other model types, mlp_bias, quantisation, other activations, unknown rope scalings), keys
 * that the type is not known to have unless they are null or false, missing or impossible values. Rotations that
 * depend on the length of the input (dynamic, longrope) wait for model_plan. */
bool hf_config_read(const char *dir, ModelCfg *, Err *);
/* Start and end ids: generation_config.json first, then config.json. A directory that names none gives -1 and 0. */
bool hf_ids_read(const char *dir, HfIds *, Err *);
/* Every tensor that a model of this shape needs is there with its shape and a float dtype, and no other but rotary
 * buffers, causal masks and the head's copy in a tied model. Only headers are read: cheap, and before any memory is
 * taken. */
bool hf_check(const char *dir, const ModelCfg *, Err *);
/* Whether every matrix in the files of DIR is BF16; false where there is no model. `e` is filled where reading failed for
 * another reason (EXIT_WORLD). Headers alone. */
bool hf_is_bf16(const char *dir, Err *e);
/* The same checks, and the numbers into m->w. On failure the weights are undefined. */
bool hf_load(const char *dir, Model *m, Err *);
/* Both with the adapter of a directory of `peft` added to the weights (peft.h); NULL: none. */
bool hf_check_with(const char *dir, const char *adapter, const ModelCfg *, Err *);
bool hf_load_with(const char *dir, const char *adapter, Model *m, Err *);
/* What is odd but legal in DIR (it must have passed hf_check), a line each on `f`; returns how many. */
int hf_notes(const char *dir, FILE *f);

/* Whether transformers' LlamaForCausalLM computes this model; otherwise `why` (may be NULL) says what it lacks. */
bool hf_is_llama(const ModelCfg *, const char **why);
/* The same of DeepseekV3ForCausalLM with dense layers alone (first_k_dense_replace = num_hidden_layers). */
bool hf_is_deepseek(const ModelCfg *, const char **why);
/* DIR/generation_config.json again, with the keys of `keep` (an object) beside the ids. */
bool hf_generation_write(const char *dir, const HfIds *, json_t *keep, Err *);
/* One file, written as file.h says. ids may be NULL. dtype: of the tensors beside it. */
bool hf_config_write(const char *path, const ModelCfg *, const HfIds *, Dtype, Err *);
/* config.json, generation_config.json and model.safetensors into DIR, which exists; tensors as `as`. Each file is whole
 * or absent; the caller makes the directory so. */
bool hf_save(const char *dir, const Model *, const HfIds *, Dtype as, Err *);
/* The same with the tensors in shards of at most `limit` bytes where they take more (st_write_dir; 0: one file). */
bool hf_save_sharded(const char *dir, const Model *, const HfIds *, Dtype as, size_t limit, Err *e);
/* The files of the model directory FROM that are neither settings nor weights, byte for byte into TO, where they
 * replace those of the same name: generation_config.json (so call this after hf_save), tokenizers, chat templates,
 * licences: what ends in .json, .txt, .model, .jinja, .bpe, .tiktoken or is called LICENSE, NOTICE, USE_POLICY; no
 * README, index or record of a training, no folder. Each file is whole or absent. */
bool hf_copy(const char *from, const char *to, Err *);

/* The files of a model directory, open, and where the fields of a model lie in them; or, without files, how they are to
 * lie in those that we write. */
typedef struct {
    St st;
    const StNames *names; /* NULL: the fields' own */
    struct HfPlaces *places;
    struct Peft *peft; /* added to what is read; NULL: nothing */
} HfFiles;
bool hf_files_open(HfFiles *, const char *dir, const ModelCfg *, Err *);
bool hf_files_open_with(HfFiles *, const char *dir, const char *adapter, const ModelCfg *, Err *);
void hf_files_plan(HfFiles *, const ModelCfg *); /* no files */
void hf_files_close(HfFiles *);
/* Name of the field `path`, of t's shape, in the files, and its place in the tensor of that name. */
StPlace hf_files_name(const HfFiles *, const char *path, Tensor t, char name[192]);
/* The entry; NULL: not there. */
const StEntry *hf_files_find(const HfFiles *, const char *path, Tensor t, StPlace *);
