/* gguf.h: what the parts of `--to gguf` share: the architecture, the header under construction, the tensors. Private
 * to convert/; convert/gguf.c is the target.
 *
 * File (GGUF version 3, little-endian): "GGUF", u32 version, u64 tensors, u64 keys; the keys (name, type, value); the
 * tensors (name, rank, sizes with the fastest first, type, place in the data); data, which begins at a multiple of 32
 * bytes, as every tensor does. Texts are a u64 length and UTF-8. Names of keys, tensors and architectures, and what an
 * architecture computes: llama.cpp (gguf-py/gguf/constants.py, src/llama-model.cpp, src/models). */
#pragma once
#include "data/pretoken.h"
#include "layers/ffn/ffn.h"
#include "job.h"
#include "layers/kda/kda.h"
#include "layers/linear/line.h"
#include "layers/mamba2/mamba2.h"
#include "layers/mla/mla.h"
#include "ops/file.h"

enum { GGUF_ALIGN = 32, GGUF_BLOCK = 32, GGUF_BLOCK_BYTES = 34 };
/* Types of values and of tensors, as the file numbers them. */
typedef enum { GGUF_U32 = 4, GGUF_I32, GGUF_FLOAT, GGUF_BOOL, GGUF_TEXT, GGUF_ARRAY } GgufValue;
typedef enum { GGML_F32 = 0, GGML_F16 = 1, GGML_Q8_0 = 8, GGML_BF16 = 30 } GgmlType;

typedef struct {
    char name[64];
    int rank;
    uint64_t n[3]; /* as in memory: the last is the fastest */
    GgmlType type;
    uint64_t at, bytes; /* in the data */
} GgufTensor;
typedef struct {
    const char *arch; /* begins the keys of the model */
    Buf keys;
    uint64_t nkeys;
    int n, now; /* tensors; the one that is being written */
    GgufTensor *tensor;
    uint64_t bytes, put; /* of all data; of the tensor `now` */
    FileOut out;
} Gguf;

/* ---- container (gguf_write.c) ------------------------------------------------------------------------------------ */

/* A key. Names that begin with . are the architecture's: ".block_count" is "llama.block_count". */
void gguf_u32(Gguf *, const char *name, uint32_t);
void gguf_float(Gguf *, const char *name, double); /* stored as f32 */
void gguf_bool(Gguf *, const char *name, bool);
void gguf_text(Gguf *, const char *name, const char *text);
/* A key whose value is a list: n elements must follow, each by one of gguf_element_*. */
void gguf_list(Gguf *, const char *name, GgufValue of, uint64_t n);
void gguf_element_text(Gguf *, const char *text);
void gguf_element_int(Gguf *, int32_t);
void gguf_element_float(Gguf *, float);
void gguf_element_bool(Gguf *, bool);
/* Declare a tensor. EXIT_INPUT: it has more bytes than can be counted, or a name that is too long. */
bool gguf_tensor(Gguf *, const char *name, int rank, const uint64_t *n, GgmlType, Err *);
/* Create the file and write what precedes the data. */
bool gguf_begin(Gguf *, const char *path, Err *);
/* Write the next elements of the tensors, in the order of their declaration. EXIT_INPUT: a finite value that the type
 * cannot hold; in Q8_0 any that is not finite. Rounding: F16 and BF16 to nearest, ties to even, subnormal values
 * included; Q8_0 as ggml's reference, quantize_row_q8_0_ref: scale d = max |x| / 127 of 32 neighbours, stored as F16;
 * q = round(x / d) with the d before that, ties away from zero. */
bool gguf_put(Gguf *, Tensor, Err *);
/* Sync and rename; a path where something stands by then is refused. All tensors must be complete (CHECK). */
bool gguf_end(Gguf *, Err *);
void gguf_drop(Gguf *); /* free all, and remove the file if it is not complete */

/* ---- architecture (gguf_arch.c) ---------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    const GqaCfg *gqa; /* of all layers; NULL: mla */
    const MlaCfg *mla;
    const Mamba2Cfg *mamba; /* of the layers with a state, of which there is one kind at most; NULL: another kind */
    const LineCfg *gdn;
    const KdaCfg *kda;
    const MoeCfg *moe; /* of the layers behind the first `dense` ones; NULL: no layer has experts */
    int dense;
    const GqaCfg *local; /* of the layers with a window, if they differ in more; NULL: there are none */
    int window, period;  /* all layers but every period-th have the window; 0: none has */
    bool joined;         /* q, k and v are one tensor */
    bool gate_up;        /* gate and up are one tensor */
    bool after;          /* the norm before the feed-forward part has the name of one after attention */
    bool turned;         /* rows of q and k move from half-split to interleaved order */
    bool factors;        /* frequencies have divisors, in a tensor */
    bool erf;            /* its gelu is by erf, that of llama.cpp by tanh */
    bool eps;            /* unit lengths and latents have the model's norm_eps there, here 1e-6 */
    bool lengths;        /* longrope: its factors follow the context there, here the text */
    bool untruncated;    /* yarn's limits are whole pairs there, here not */
    bool head;           /* it always has an output tensor; elsewhere a missing one is the embedding */
} GgufArch;
/* The architecture of llama.cpp that computes the model. EXIT_INPUT: none does; the line names the setting. */
bool gguf_arch(GgufArch *, const Model *, Err *);
void gguf_arch_keys(Gguf *, const GgufArch *, const Model *);
/* What its parts share. gguf_no fills the Err and returns false. */
bool gguf_no(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool gguf_rope_fits(const RopeCfg *, const Rope *, bool mla, bool factors, const char *arch, Err *);
bool gguf_group_scores_fit(const MoeCfg *, Err *); /* groups of experts are scored as there */
void gguf_rope_keys(Gguf *, const RopeCfg *, const Rope *, bool mla, int max_positions);
/* The first setting but window and rotation in which two layers differ; NULL: none. */
const char *gguf_gqa_differs(const GqaCfg *, const GqaCfg *);
bool gguf_turns_alike(const GqaCfg *, const GqaCfg *);
bool gguf_rows_stay(const Model *, Err *);    /* no layer evicts rows */
bool gguf_mixers_alike(const Model *, Err *); /* one mixer, gqa or mla, without kv_from */
/* Count the first layers without experts, and refuse other feed-forward parts that differ. */
bool gguf_feeds_alike(GgufArch *, const Model *, Err *);
bool gguf_window_none(int window, int l, const ModelCfg *, Err *);
/* No factor of embedding, residuals, scores and logits. */
bool gguf_factors_none(const ModelCfg *, const GqaCfg *, const char *arch, Err *);
/* Divisor of the frequency of pair i, for `factors`. */
double gguf_rope_factor(const GqaCfg *, int i);

/* ---- other attention models (gguf_dense.c) ----------------------------------------------------------------------- */

/* gemma2, gemma3, phi3, smollm3, glm4moe or gpt-oss, which alone could compute the model; NULL: those of gguf_arch. */
const char *gguf_dense(const Model *);
bool gguf_dense_arch(GgufArch *, const Model *, const char *name, Err *);
void gguf_dense_keys(Gguf *, const GgufArch *, const Model *);

/* ---- names of tensors (gguf.c) ----------------------------------------------------------------------------------- */

/* In what order, and as what, the values of a field are written. */
typedef enum {
    ROWS_SAME,
    ROWS_QUERIES, /* of heads, from half-split to interleaved order, where the architecture has that */
    ROWS_KEYS,
    ROWS_KEYS_UP,   /* of kv_b: for each head the transpose of the rows that make keys */
    ROWS_VALUES_UP, /* of kv_b: for each head the rows that make values */
    ROWS_FACTORS,   /* of the rotation's frequencies; no field of the model */
    ROWS_LONG,      /* longrope's divisors, which are no fields either */
    ROWS_SHORT,
    ROWS_BY_HEADS, /* two fields: those of a query head of the first, of the second, of the next head.. */
    ROWS_BY_KEYS,  /* the same by key heads of a delta rule */
    ROWS_TILED,    /* of value heads: the first of each key head, the second of each.. (gguf_recurrent_moved) */
    COLUMNS_TILED,
    ROWS_TILED_DECAY, /* -exp of them */
    ROWS_DECAY,
    ROWS_RATE /* exp of them */
} RowsOrder;
/* The sizes of a tensor in the file, of a field or of several whose rows follow each other. */
typedef enum {
    SHAPE_SAME,
    SHAPE_VECTOR,  /* (1,n) or (n): one list */
    SHAPE_COLUMN,  /* (n,1) */
    SHAPE_GROUPS,  /* (groups, n / groups) of a mamba2 */
    SHAPE_SQUEEZED /* of a convolution (C,1,W): (C,W) */
} GgufShape;
enum { PARTS_MAX = 3 };
typedef struct {
    const char *theirs, *ours[PARTS_MAX]; /* without .weight or .bias; several: one tensor after the other */
    RowsOrder order;
    bool joined; /* in architectures that join q, k and v; else in those that do not */
} GgufName;
/* A name and what else a tensor may need. */
typedef struct {
    GgufName name;
    bool whole; /* both names are given to the end */
    GgufShape shape;
    RowsOrder last; /* of the last part, if it is not ROWS_SAME */
} GgufPlace;

/* ---- layers with a state (gguf_recurrent.c, gguf_recurrent_file.c) ----------------------------------------------- */

bool gguf_recurrent(const Model *); /* a layer is mamba2, gdn or kda */
/* gguf_arch and gguf_arch_keys for such models. `type`: the model_type of the source, which chooses among architectures
 * that compute the same; NULL: unknown. */
bool gguf_recurrent_arch(GgufArch *, const Model *, const char *type, Err *);
void gguf_recurrent_keys(Gguf *, const GgufArch *, const Model *);
/* The names of layer l without its experts, as lists of n names; returns how many lists. */
enum { GGUF_LISTS = 3 };
typedef struct {
    const GgufPlace *place;
    size_t n;
} GgufPlaces;
int gguf_recurrent_places(const GgufArch *, const Model *, int l, GgufPlaces lists[GGUF_LISTS]);
/* Fill `to` with the values of `from`, of as many elements, in one of the orders from ROWS_TILED on. */
void gguf_recurrent_moved(const GgufArch *, RowsOrder, Tensor to, Tensor from);
/* Fill `to` with rows of two fields of equal shape in turn, `groups` times. */
void gguf_alternate(Tensor to, Tensor a, Tensor b, int groups);

/* ---- tokenizer (gguf_vocab.c) ------------------------------------------------------------------------------------ */

/* The keys of the tokenizer and the chat template in the model directory `src`, for a model of `vocab` ids. `note`:
 * what differs there, or that the directory has no tokenizer; else NULL. EXIT_INPUT: llama.cpp would cut texts
 * otherwise. */
bool gguf_vocab(Gguf *, const char *src, int vocab, const char **note, Err *);
