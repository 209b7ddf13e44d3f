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
    const MoeCfg *moe; /* of the layers behind the first `dense` ones; NULL: no layer has experts */
    int dense;
    bool joined;  /* q, k and v are one tensor */
    bool turned;  /* rows of q and k move from half-split to interleaved order */
    bool factors; /* frequencies have divisors, in a tensor */
    bool erf;     /* its gelu is by erf, that of llama.cpp by tanh */
    bool head;    /* it always has an output tensor; elsewhere a missing one is the embedding */
} GgufArch;
/* The architecture of llama.cpp that computes the model. EXIT_INPUT: none does; the line names the setting. */
bool gguf_arch(GgufArch *, const Model *, Err *);
void gguf_arch_keys(Gguf *, const GgufArch *, const Model *);
/* Divisor of the frequency of pair i, for `factors`. */
double gguf_rope_factor(const GqaCfg *, int i);

/* ---- tokenizer (gguf_vocab.c) ------------------------------------------------------------------------------------ */

/* The keys of the tokenizer and the chat template in the model directory `src`, for a model of `vocab` ids. `none`:
 * the directory has no tokenizer. EXIT_INPUT: llama.cpp would cut texts otherwise. */
bool gguf_vocab(Gguf *, const char *src, int vocab, bool *none, Err *);
