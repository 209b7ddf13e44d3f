/* hf.h: a model directory as Hugging Face transformers lays it out: config.json, model.safetensors or its shards,
 * generation_config.json. tokenizer.json belongs to data/tokenizer.h.
 *
 * model_type "llama" is read into one gqa kind and one swiglu, "deepseek_v3" without experts into one mla kind and one
 * swiglu; both are written whenever the model is one, so that transformers loads it unchanged; any other model is
 * model_type "kvsmith", which holds the settings of model_cfg_json under "kvsmith". Tensor names are those of
 * LlamaForCausalLM and DeepseekV3ForCausalLM in all. Fields and their defaults: transformers configuration_llama,
 * configuration_deepseek_v3, modeling_rope_utils (v5 meaning, v4 spelling understood). */
#pragma once
#include "model.h"

enum { HF_EOS_MAX = 16 };
typedef struct {
    int bos, neos, eos[HF_EOS_MAX]; /* bos -1: none */
} HfIds;

/* The model's shape from DIR/config.json; model_cfg_free when done. Refused (EXIT_INPUT): what cannot be computed here
 * as transformers would (other model types, mlp_bias, sliding_window, quantisation, activations but silu, unknown rope
 * scalings or rope keys), missing or impossible values. longrope: the model's full length decides between short and
 * long factors, where transformers decides by the length of each input. */
bool hf_config_read(const char *dir, ModelCfg *, Err *);
/* Start and end ids: generation_config.json first, then config.json. A directory that names none gives -1 and 0. */
bool hf_ids_read(const char *dir, HfIds *, Err *);
/* Every tensor that a model of this shape needs is there with its shape and a float dtype, and no other but rotary
 * buffers and the head's copy in a tied model. Only headers are read: cheap, and before any memory is taken. */
bool hf_check(const char *dir, const ModelCfg *, Err *);
/* The same checks, and the numbers into m->w. On failure the weights are undefined. */
bool hf_load(const char *dir, Model *m, Err *);
/* What is odd but legal in DIR (it must have passed hf_check), a line each on `f`; returns how many. */
int hf_notes(const char *dir, FILE *f);

/* Whether transformers' LlamaForCausalLM computes this model; otherwise `why` (may be NULL) says what it lacks. */
bool hf_is_llama(const ModelCfg *, const char **why);
/* The same of DeepseekV3ForCausalLM with dense layers alone (first_k_dense_replace = num_hidden_layers). */
bool hf_is_deepseek(const ModelCfg *, const char **why);
/* One file, written as file.h says. ids may be NULL. dtype: of the tensors beside it. */
bool hf_config_write(const char *path, const ModelCfg *, const HfIds *, Dtype, Err *);
/* config.json, generation_config.json and model.safetensors into DIR, which exists; tensors as `as`. Each file is whole
 * or absent; the caller makes the directory so. */
bool hf_save(const char *dir, const Model *, const HfIds *, Dtype as, Err *);
/* The same with the tensors in shards of at most `limit` bytes where they take more (st_write_dir; 0: one file). */
bool hf_save_sharded(const char *dir, const Model *, const HfIds *, Dtype as, size_t limit, Err *e);
