/* hf_file.h: shared by the readers and writers of config.json: checked access to its values, and the table of model
 * types. Private to model/hf*.c. */
#pragma once
#include "layers/ffn/ffn.h"
#include "layers/gqa/gqa.h"
#include "layers/linear/line.h"
#include "layers/mamba2/mamba2.h"
#include "layers/mla/mla.h"
#include "hf.h"
#include "safetensors.h"

typedef struct {
    const char *path;
    const json_t *j;
    Err *e;
} HfFile;

bool hf_given(const json_t *, const char *key); /* present and not null */
/* Checked values of f->j; the message names file and key. Absent or null gives the default, if there is one (-1:
 * none). */
bool hf_whole(const HfFile *, const char *key, int least, int dflt, int *out);
bool hf_number(const HfFile *, const char *key, double dflt, bool zero, double *out);
bool hf_flag(const HfFile *, const char *key, bool *out); /* absent: false */
bool hf_flag_or(const HfFile *, const char *key, bool dflt, bool *out);
const char *hf_found(const json_t *);     /* its text, or its kind, for messages */
const char *hf_json_kind(const json_t *); /* "a list" */
/* A list of `layers` texts, each `yes` or `no`, into `out`, if the key is given. */
bool hf_texts(const HfFile *, const char *key, int layers, const char *yes, const char *no, bool *out);
/* The rotation as our own settings. theta: the type's default base. */
bool hf_rope_read(const HfFile *, double theta, json_t *out);
/* Visit the fields of a model that is not open, without memory. */
bool hf_walk(const ModelCfg *, Fields *, Err *);
struct HfType;
/* hf_supported: no key changes the model in a way that is not supported. hf_plain_layers: nor are there windows. */
bool hf_supported(const struct HfType *, const HfFile *);
bool hf_plain_layers(const HfFile *);

/* ---- quantised files (hf_quant.c) -------------------------------------------------------------------------------- */
/* quantization_config `v` of a config.json is one that can be read. */
bool hf_quant_known(const struct HfType *, const HfFile *, const json_t *v);
/* Opened files with tensors that `f`, the quantization_config, says are quantised: see hf_open_dir. */
bool hf_quant_open(St *, const struct HfType *, const HfFile *f);
/* hf.c: open the files of a directory. Tensors that its config.json says are quantised have the shapes of their values,
 * and reading gives those; their scales are no entries. */
bool hf_open_dir(St *, const char *dir, Err *);

/* ---- delayed eviction (hf_dms.c) --------------------------------------------------------------------------------- */
/* Delayed eviction (hf_dms.c). own: a token decides about its own row, and the rotation refills the channel. */
typedef struct {
    bool on, adapter, own;
    int delay;
    double gain, offset, temperature;
} HfDms;
#define HF_DMS_METADATA "dms_metadata.json"
/* Keys of config.json that a type with hf_dms_read has. */
#define HF_DMS_KEYS                                                                                            \
    "dms_window_size", "dms_alpha_scale", "dms_initial_alpha_offset", "dms_alpha_offset", "dms_tau", "dms_cr", \
        "dms_separate_alpha", "dms_alpha_per", "dms_disable_eviction", "dms_paged_attention_block_size",       \
        "dms_manual_inference_mode", "dms_chunked_prefill", "dms_preallocate_for_tokens", "dms_compile_limit"
/* Whether config.json says that an adapter decides; then hf_dms_open makes of its tensors those of `decide: adapter` in
 * the opened files of the directory, whose config.json `f` was read as *c. */
bool hf_dms_adapted(const json_t *config);
bool hf_dms_open(St *, const HfFile *f, const ModelCfg *c);

/* ---- model types ------------------------------------------------------------------------------------------------ */
enum { HF_ANYWHERE, HF_ATTENTION, HF_STATE };
enum { HF_IN_ROW, HF_BY_HEADS, HF_BY_KEYS };
/* How a model type names and lays out a tensor that it names differently from us. */
typedef struct {
    /* Beginnings of names, after the prefix of the layer for a layer's tensors. A * stands for a number (of an expert),
     * the same in both; theirs may leave it out where `stack` is set. */
    const char *ours, *theirs;
    const char *also; /* read where the files have that name and not `theirs`; NULL: none */
    /* Joined: a letter for each part in the order of the file, e.g. "qkv": q, k and v have the rows of queries, keys
     * and values, K and V those of keys and values of a state, every other letter as many as the tensor itself. part:
     * which of them. NULL: not joined. */
    const char *join;
    int part;
    int alternate; /* joined: whole parts one after another (HF_IN_ROW), or each query's head or key head of a state */
    int layers;    /* HF_ATTENTION: not of layers with a state; HF_STATE: of those alone */
    bool turned;   /* stored transposed */
    bool stack;    /* the experts' tensors are one, with an axis of experts in front */
    /* The experts' tensors are one, in its slices, where rows of joined parts alternate one by one; `turned` is of each
     * slice. packed: read where the files have that name and not `theirs`, and is not turned; NULL: none. */
    bool slice;
    const char *packed;
    bool deep; /* a vector of n values is stored as (1,1,n,1) */
} HfName;
/* A setting of config.json whose value lies in an HfShape, in both directions. */
typedef enum { HF_WHOLE, HF_REAL, HF_FLAG } HfKeyType;
typedef struct {
    const char *key;
    HfKeyType type;
    size_t at; /* offsetof(HfShape, ...): an int, a double, a bool */
    int least; /* of a whole number; of a real one 1: more than 0 */
    double dflt;
    const char *also; /* another spelling that is read too; NULL: none */
} HfKey;
enum { HF_NEEDED = -1 }; /* dflt of a whole number that must be given */
/* A setting that may have this value alone, or be left out: another would change what the model computes. `value`: as
 * JSON. */
typedef struct {
    const char *key, *value;
} HfMust;

/* The settings of a decoder of the Llama kind, between config.json and our own: blocks of a norm, a mixer, a norm and
 * a feed-forward part. hf_decoder.c fills all that every type spells alike; a type's hooks do the rest. */
typedef struct {
    int d, F, layers, V, P; /* F: width of swiglu layers; 0: there are none */
    double eps, std;
    bool tied;
    json_t *rope; /* reading: the rotation as our settings */
    /* mixer gqa: kv_heads and head_dim are resolved, window is 0. Reading: rope and base are not set. */
    GqaCfg g;
    int window, nslide, nunturned;
    bool slides[LAYERS_MAX];   /* layers with the window */
    bool unturned[LAYERS_MAX]; /* layers without a rotation */
    RopeCfg local_rope;        /* of layers with the window; that of g is the others' */
    json_t *local_rope_json;   /* reading: the same as our settings; NULL: `rope` is for all */
    double embed_scale, residual_scale, logits_divisor, logits_cap;
    LineCfg line; /* layers in `state`, with the type's other mixer */
    int nstate;
    bool state[LAYERS_MAX];
    MlaCfg mla; /* mixer mla, in the same way */
    MoeCfg moe; /* of the layers in sparse; the others have a swiglu */
    int nsparse;
    bool sparse[LAYERS_MAX];
    HfDms dms; /* reading: all layers are of the mixer dmc */
} HfShape;

/* What a type may have beyond a llama; `holds` sees to the rest. */
enum {
    HF_PART_TURNED = 1, /* rope_dims */
    HF_UNTURNED = 2,    /* layers without a rotation */
    HF_LOCAL_ROPE = 4,  /* layers with the window have a rotation of their own */
    HF_EMBED_SCALE = 8,
    HF_FACTORS = 16 | HF_EMBED_SCALE, /* residual_scale, logits_divisor, too */
    HF_SCORE_SCALE = 32,
    HF_SCORE_CAP = 64,
    HF_LOGITS_CAP = 128,
    HF_WIDE_NORM = 256, /* qk_norm_wide */
    HF_OUT_GATE = 512,
    HF_SINK_SCORES = 1024
};
/* Tensors whose names begin so are not read: `what` says what they are. */
typedef struct {
    const char *begin, *what;
} HfPast;
typedef struct HfType HfType;
struct HfType {
    const char *type, *architecture;
    const char *about; /* for `info --families`: what it covers; one short line */
    /* Keys of config.json, in addition to those that every type has and to those of `table` and `musts`; NULL-ended. */
    const char *const *keys;
    const HfKey *table;  /* of settings that only this type has; ends with key NULL. NULL: none */
    const HfMust *musts; /* ends with key NULL. NULL: none */
    /* A decoder of the Llama kind: settings, is and json are those of hf_decoder.c, and these hooks may be NULL.
     * read: what the table does not say, after it and the common keys. holds: the type can hold a model of that shape,
     * else says why not. write: keys that are not in the table; called last. */
    const char *mixer;         /* "gqa" or "mla" */
    const char *state;         /* a mixer with a state that some layers have instead: "gdn"; NULL: none have */
    bool experts;              /* layers may have experts */
    bool experts_alone;        /* all layers have them: config.json has no width of others */
    bool bounded;              /* experts may have gpt-oss's unit and biases, and their router a bias */
    bool mxfp4;                /* experts may be stored in MXFP4 (hf_quant.c) */
    unsigned may;              /* HF_PART_TURNED and the like */
    int norm_place;            /* the one that its models have */
    bool norm_plus_one, geglu; /* all of its models have it (geglu: by tanh, in place of swiglu), or none */
    bool tied;                 /* default of tie_word_embeddings */
    /* In the place of hf_rope_read: sets `rope`, and what else the type says of rotations. */
    bool (*ropes)(const HfFile *, HfShape *);
    bool (*read)(const HfFile *, HfShape *);
    bool (*holds)(const ModelCfg *, const HfShape *, const char **why);
    void (*write)(json_t *, const ModelCfg *, const HfShape *);
    /* Defaults of common keys; 0: max_position_embeddings 2048, rms_norm_eps 1e-6, rope_theta 10000, head_dim
     * hidden_size / heads. heads: num_key_value_heads may be left out, and is then that of the queries. */
    int positions, head_dim;
    double eps, theta;
    bool heads;
    bool attention_bias, mlp_bias; /* it has that key: biases of q, k, v and o; mlp_bias must be false */
    /* Any other type. settings: config.json as our own settings, NULL if refused. is: the type can hold a model. json:
     * writes its config.json. */
    json_t *(*settings)(const HfFile *);
    bool (*is)(const ModelCfg *, const char **why);
    void (*json)(json_t *, const ModelCfg *);
    const HfName *names; /* ends with ours NULL; NULL: names as in LlamaForCausalLM */
    /* Prefix of a layer's names (followed by its number), and of the other names, except those that begin with /.
     * NULL: model.layers. and none. */
    const char *layer, *top;
    /* A key with the number of layers after the last that only predict more tokens at once: their tensors may be there
     * and are not read. NULL: none. */
    const char *extra;
    const char *bare;   /* a name whose presence shows that the file omits the word before the first dot; NULL: none */
    const HfPast *past; /* ends with begin NULL; NULL: none */
    /* A key of a model of several parts, whose value is the config.json of its text model, of the type `text`. Such a
     * type is read alone; `keys` are those around it. */
    const char *nested;
    const HfType *text;
    const char *written_as; /* another type, which can hold all its models; NULL: this one */
};
extern const HfType *const hf_types[]; /* in the order in which they are tried for a model; NULL-ended */
const HfType *hf_type(const char *name);
/* The type of a model; NULL: only our own. */
const HfType *hf_type_of(const ModelCfg *);
bool hf_type_holds(const HfType *, const ModelCfg *, const char **why);
json_t *hf_type_settings(const HfType *, const HfFile *);
void hf_type_json(const HfType *, json_t *, const ModelCfg *);

/* ---- decoders of the Llama kind (hf_decoder.c) ------------------------------------------------------------------- */
json_t *hf_decoder_settings(const HfType *, const HfFile *);
bool hf_decoder_is(const HfType *, const ModelCfg *, const char **why);
/* hf_dms.c: delayed eviction, if config.json or a dms_metadata.json next to it speaks of it. llama: of that type. */
bool hf_dms_read(const HfFile *, bool llama, HfShape *);
void hf_decoder_json(const HfType *, json_t *, const ModelCfg *);
/* The settings of layers of latent attention and of experts. */
json_t *hf_mla_json(const HfShape *);
json_t *hf_moe_json(const HfShape *);
/* The feed-forward parts of a model: swiglus of one width, and experts of one kind if the type has any. */
bool hf_decoder_feeds(const HfType *, const ModelCfg *, HfShape *, const char **why);
bool hf_musts_met(const HfFile *, const HfMust *);
/* Read and write a table's settings. */
bool hf_keys_read(const HfFile *, const HfKey *, HfShape *);
void hf_keys_write(json_t *, const HfKey *, const HfShape *);
/* layer_types as Qwen has it: a window where it says sliding_attention, or from `from` on where it is absent. */
bool hf_qwen_windows(const HfFile *, HfShape *);
void hf_qwen_windows_json(json_t *, const ModelCfg *, const HfShape *);
/* layer_types, or a window but in every `every`-th layer; dflt: sliding_window where it is absent. And back. */
bool hf_windows_by_layer(const HfFile *, int every, int dflt, HfShape *);
json_t *hf_layer_types(const HfShape *);
/* sliding_window, which all layers have, or none where it is null; dflt: where it is absent, 0: none. layer_types may
 * say the same alone. */
bool hf_one_window(const HfFile *, int dflt, HfShape *);
json_t *hf_rope_json(const RopeCfg *, int max_positions); /* rope_scaling as version 4 spells it */
bool hf_no(const char **why, const char *what);           /* false */
/* One router of the plain kind: softmax over all experts, no groups, no bias, no factor. */
bool hf_plain_router(const HfShape *, const char **why);
/* Every decoder_sparse_step-th layer has experts, except those in mlp_only_layers; and back. */
bool hf_qwen_sparse(const HfFile *, HfShape *);
void hf_qwen_sparse_json(json_t *, const HfShape *);
/* partial_rotary_factor `part`: set rope_dims; and back. */
bool hf_part_turned(const HfFile *, double part, HfShape *);
double hf_part_of(const HfShape *);
/* A hook `ropes`: the part of a head that is turned (by default `part`) lies in the rotation or next to it. Settings
 * that only pictures have an influence on are passed over: a text's three positions are one. */
bool hf_ropes_in_part(const HfFile *, double part, HfShape *);
/* time_step_limit is [0, Infinity], in the spelling of version 4 or 5: steps are never clamped. */
bool hf_steps_unlimited(const HfFile *);
/* The settings of a kind of mamba2. hf_mamba2_plain: *m becomes *cfg with its widths resolved, as transformers' classes
 * have it, else `why` not. */
json_t *hf_mamba2_kind(const Mamba2Cfg *);
bool hf_mamba2_plain(const Mamba2Cfg *cfg, int d_model, Mamba2Cfg *m, const char **why);
/* The settings of latents as DeepSeek names them; and back. */
#define HF_LATENT_KEYS \
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim"
bool hf_latents_read(const HfFile *, HfShape *);
void hf_latents_write(json_t *, const HfShape *);
/* What lets transformers load a model of type kvsmith: modeling_kvsmith.py, and the keys of config.json that name it.
 * `config`: the path of config.json, next to which the file is written. */
#define HF_MODELING "modeling_kvsmith.py"
void hf_modeling_json(json_t *config);
bool hf_modeling_write(const char *config, Err *e);

/* True if nothing is shared, all mixers have this name (or the other one), all feed-forward parts this one (NULL: any),
 * and norm and positions are as given; otherwise `why` (may be NULL). */
typedef struct {
    const char *mixer, *state, *ffn;
    int norm, positions;
    bool parallel;
} HfBlock;
bool hf_block(const ModelCfg *, HfBlock, const char **why);
/* True if a model has no setting that changes what a llama computes, such as residual_scale. */
bool hf_plain(const ModelCfg *, const char **why);
/* The settings of layers of one gqa that differ at most in whether they have one common window. */
bool hf_attention(const ModelCfg *, HfShape *, const char **why);
/* Resolve the widths that gdn leaves open. */
void hf_line_plain(LineCfg *, int d_model);
/* Why transformers' rotation differs from ours; NULL: it does not. */
const char *hf_rope_differs(const RopeCfg *, int max_positions);

/* The places of a model's fields in a directory of this type. `st`: the open files, or NULL to write. */
typedef struct HfPlaces {
    StNames names;
    const HfType *type;
    const St *st;                            /* the files; NULL to write */
    const char *layer, *top;                 /* "transformer.h.", "transformer." */
    int head_dim, heads, kv_heads, experts;  /* 0: it has none */
    int state_keys, state_values, key_heads; /* rows of keys and of values of layers with a state */
    bool state[LAYERS_MAX];
    int layers, extra; /* layers after the model's own, whose tensors are not read */
} HfPlaces;
void hf_places(HfPlaces *, const HfType *, const ModelCfg *, const St *st);
/* The name and place of one field in the files of this model as they are written. */
StPlace hf_place_written(const ModelCfg *, const char *path, Tensor, char name[192]);

extern const HfType hf_llama, hf_mistral, hf_qwen2, hf_qwen3, hf_gpt2, hf_gpt_neox, hf_deepseek_v3, hf_phi3, hf_smollm3,
    hf_granite, hf_olmo2, hf_gemma2, hf_gemma3_text, hf_deepseek_v2, hf_mixtral, hf_qwen3_moe, hf_qwen2_moe, hf_olmoe,
    hf_qwen3_next, hf_qwen3_5_text, hf_qwen3_5, hf_qwen3_5_moe_text, hf_qwen3_5_moe, hf_kimi_linear, hf_glm4_moe,
    hf_glm4_moe_lite, hf_mamba2, hf_granitemoehybrid, hf_fla_kda, hf_fla_gdn, hf_fla_delta, hf_fla_gla, hf_fla_retnet,
    hf_gpt_oss, hf_nemotron_h, hf_bailing_hybrid;
