/* hf_file.h: what the readers and writers of config.json share. Private to model/hf*.c. */
#pragma once
#include "../layers/ffn/ffn.h"
#include "../layers/gqa/gqa.h"
#include "hf.h"
#include "safetensors.h"

typedef struct {
    const char *path;
    const json_t *j;
    Err *e;
} HfFile;

bool hf_given(const json_t *, const char *key); /* there, and not null */
/* Values of f->j, checked; the message names file and key. Absent or null: the default, if there is one (-1: none). */
bool hf_whole(const HfFile *, const char *key, int least, int dflt, int *out);
bool hf_number(const HfFile *, const char *key, double dflt, bool zero, double *out);
bool hf_flag(const HfFile *, const char *key, bool *out); /* absent: false */
bool hf_flag_or(const HfFile *, const char *key, bool dflt, bool *out);
const char *hf_found(const json_t *);           /* its text, or what it is, for messages */
bool hf_rope_read(const HfFile *, json_t *out); /* rotation in our own terms */
/* The fields of a model that is not open, without memory. */
bool hf_walk(const ModelCfg *, Fields *, Err *);
/* No key that changes the model in a way that is not built. hf_plain_layers: nor windows. */
bool hf_supported(const HfFile *);
bool hf_plain_layers(const HfFile *);

/* ---- model types ---------------------------------------------------------------------------------------------------
 */
/* How a model type names and lays out what it calls otherwise than we do. */
typedef struct {
    const char *ours, *theirs; /* beginnings of names, behind those of the layer where they are a layer's */
    int part;                  /* of three joined tensors; -1: not joined */
    bool turned;               /* stored transposed */
} HfName;
typedef struct {
    const char *type;
    /* config.json in our own terms, NULL: refused; whether the type computes a model; its config.json. */
    json_t *(*settings)(const HfFile *);
    bool (*is)(const ModelCfg *, const char **why);
    void (*json)(json_t *, const ModelCfg *);
    const char *const *keys; /* of config.json, beside those that every type has; NULL-ended */
    const HfName *names;     /* ours NULL-ended; NULL: as LlamaForCausalLM */
    const char *layer, *top; /* before the names of a layer (with its number between) and before the others, but for
                                names that begin with / */
    const char *bare;        /* a name that shows that a file leaves the word before the first dot out; NULL: none */
    bool by_heads;           /* joined tensors take turns by heads; else all of one, then all of the next */
} HfType;
extern const HfType *const hf_types[]; /* in the order in which a model is tried for them; NULL-ended */
const HfType *hf_type(const char *name);
/* The type of a model; NULL: ours alone. */
const HfType *hf_type_of(const ModelCfg *);

/* What the model types of the Llama family spell alike: the model's own settings and these. */
typedef struct {
    const char *architecture, *type;
    int heads, kv_heads, head_dim;
    int bias;      /* attention_bias; -1: the type has no such key */
    bool mlp_bias; /* it has that key, which must be false */
    const RopeCfg *rope;
} HfFamily;
void hf_family_json(json_t *, const ModelCfg *, HfFamily);
json_t *hf_rope_json(const RopeCfg *, int max_positions); /* rope_scaling as version 4 spells it */
bool hf_no(const char **why, const char *what);           /* false */
/* Nothing shared or scaled, one feed-forward kind, every mixer of this name, and the norm and positions given; `why`
 * (may be NULL). */
typedef struct {
    const char *mixer, *ffn;
    int norm, positions;
    bool parallel;
} HfBlock;
bool hf_block(const ModelCfg *, HfBlock, const char **why);
/* Layers of one gqa that differ in nothing but whether they have one and the same window. */
typedef struct {
    GqaCfg g; /* window 0, kv_heads and head_dim resolved */
    int window, nslide;
    bool slides[LAYERS_MAX];
} HfAttention;
bool hf_attention(const ModelCfg *, HfAttention *, const char **why);
/* Why transformers' rotation is not ours; NULL: it is. */
const char *hf_rope_differs(const RopeCfg *, int max_positions);

/* Where the fields of a model lie in a directory of this type. `st`: the open files, or NULL to write. */
typedef struct HfPlaces {
    StNames names;
    const HfType *type;
    const char *layer, *top; /* "transformer.h.", "transformer." */
    int head_dim;
} HfPlaces;
void hf_places(HfPlaces *, const HfType *, const ModelCfg *, const St *st);

extern const HfType hf_llama, hf_mistral, hf_qwen2, hf_qwen3, hf_gpt2, hf_gpt_neox, hf_deepseek;
