/* normal.h: the normalizers of tokenizer files: steps that rewrite a text before it is cut into pieces. The tokenizer
 * runs them on every stretch between added tokens, and on the added tokens that are searched in normalised text.
 *
 * Each step does what the tokenizers library does. Bytes that are not UTF-8 pass unchanged. */
#pragma once
#include "charsmap.h"
#include "pretoken.h"

typedef enum {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWER,   /* Unicode's full mapping of each character alone */
    NORM_ACCENTS, /* drops marks (M) */
    NORM_STRIP,   /* drops white space at `left`, `right` */
    NORM_PREPEND, /* `text` before a text that is not empty */
    NORM_REPLACE, /* `text` for every `find` or match of `cutter` */
    NORM_NMT,     /* SentencePiece's: drops controls; other white space becomes a blank */
    NORM_CHARSMAP,
    NORM_CLEAN,       /* BERT: drops controls; white space becomes a blank */
    NORM_CHINESE,     /* BERT: a blank on both sides of a CJK ideograph */
    NORM_BERT_ACCENTS /* BERT: decomposes (NFD), drops non-spacing marks (Mn) */
} NormKind;
typedef struct {
    NormKind kind;
    bool left, right;
    char *text, *find; /* owned; malloc'ed */
    size_t ntext, nfind;
    Cutter *cutter; /* owned */
    Charsmap *map;  /* owned */
} Norm;
void norm_free(Norm *);

enum { NORMS_MAX = 16 };
/* Buffers; each thread must have its own. */
typedef struct NormWork NormWork;
NormWork *norm_work(const Norm *, int n);
void norm_work_free(NormWork *);
/* Run all steps on s. *out and *nout: the result, valid until the next call. joined: no prefix is put before the text.
 * False: a pattern did not terminate. */
bool norm_run(NormWork *, const char *s, size_t n, bool joined, const char **out, size_t *nout);
bool norm_moved(const NormWork *); /* the last run dropped what the text began with */
