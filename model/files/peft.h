/* peft.h: adapter directories of the `peft` package (huggingface.co/docs/peft): adapter_config.json and
 * adapter_model.safetensors. hf.c reads a model through them, train/adapt/adapter.c writes them.
 *
 * An adapter changes matrices of a base model:
 *   W + s B A,   A (r, in), B (out, r),   s = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora
 * rank_pattern and alpha_pattern give modules their own r and alpha. Tensors are named
 * base_model.model.MODULE.lora_A.weight and ...lora_B.weight; MODULE is the base's own name of the matrix without
 * ".weight". gpt2's matrices are stored transposed; A and B are not. */
#pragma once
#include "model/model.h"
#include "safetensors.h"

/* `path` is an adapter directory: it holds adapter_config.json and no config.json. */
bool peft_is(const char *path);
/* `path` if it is one, else NULL: the argument of hf_load_with that goes with model_dir_resolve's directory. */
const char *peft_path(const char *path);
/* base_model_name_or_path of an adapter directory, malloc'ed. NULL (EXIT_INPUT): it is not a local directory. */
char *peft_base(const char *dir, Err *);

typedef struct {
    char *module;         /* "model.layers.0.self_attn.q_proj" */
    const StEntry *a, *b; /* in Peft.st */
    const StEntry *of;    /* the matrix in the base's files, after peft_attach */
    int r, in, out;
    double scale; /* s */
    bool taken;   /* peft_take has returned it */
} PeftPart;
typedef struct Peft {
    StPatch patch;
    St st;
    char *dir;
    int n;
    PeftPart *part;
} Peft;
/* Open and check every file and value. EXIT_INPUT:
 * - settings that change the computation and are not described above (DoRA, modules_to_save, biases, a base changed at
 *   initialisation, another kind of adapter);
 * - unknown keys that are not null, false or empty;
 * - an A without its B, shapes that do not fit, values that are not finite. */
bool peft_open(Peft *, const char *dir, Err *);
void peft_close(Peft *);
/* From now on every read of the base's open files returns sums, each added in the tensor's own dtype or f32.
 * EXIT_INPUT: a module that the base does not have, or has in another shape. transposed: matrices are stored (in,
 * out), as gpt2's. The Peft must not move, and must outlive the files. */
bool peft_attach(Peft *, St *base, bool transposed, Err *);
/* A and B of one of our matrices (a field's path and shape), for that field alone: a (r, in), b (out, r), in memory,
 * scaled so that B A times `scale` is what the adapter adds. False with e->status 0: it has none. EXIT_INPUT: a has
 * another rank. */
bool peft_take(Peft *, const ModelCfg *, const char *path, Tensor a, Tensor b, double scale, Err *);

/* An adapter of one of our matrices, in the host's memory. */
typedef struct {
    const char *path; /* "model.layers.0.self_attn.q_proj.weight" */
    Tensor a, b;
} PeftField;
/* True if `peft` can load adapters of these matrices on a base in the directory `base`; else `why` gives the reason.
 * The base is the model that hf_config_read reads there; the fields need no memory. */
bool peft_can(const char *base, const ModelCfg *, int n, const PeftField *, char why[200]);
/* Write both files into DIR, which must exist. Parts of a joined matrix (gpt2's c_attn) become one adapter of a
 * multiple of the rank, with the blocks of B on its diagonal. peft_can must allow it. */
bool peft_write(const char *dir, const char *base, const ModelCfg *, int n, const PeftField *, double alpha, Err *);
