/* tok_model.h: a tokenizer in memory. tokenizer.c works on it, and the readers of tokenizer files fill it. Private to
 * data/. */
#pragma once
#include "normal.h"
#include "tokenizer.h"
#include "unigram.h"
#include "wordpiece.h"

/* An added token, which is matched in the text before anything else. */
typedef struct {
    char *text; /* as it appears in the text it is searched in (normalised if `normalized`) */
    size_t n;
    int id;
    bool special, lstrip, rstrip, word, normalized;
} Added;

typedef enum { CUT_PATTERN, CUT_PREFIX_SPACE, CUT_METASPACE } CutKind;
/* What becomes of the matches of a pattern; the names of tokenizer.json. */
typedef enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_PREVIOUS, SPLIT_NEXT } Split;
typedef enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } Prepend;
typedef struct {
    CutKind kind;
    bool known; /* the pattern is one of those in pretoken.h */
    Cutter *cutter;
    Split split_as;
    bool invert;     /* matches are the stretches between, and these are matches */
    Prepend prepend; /* metaspace: blanks become U+2581, and one is put before the text */
    bool split;      /* metaspace: pieces begin at U+2581 */
} Cut;

typedef enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE } ModelKind;
enum { CUTS_MAX = 8 };
typedef struct TokModel {
    char *file; /* the file's text, to be written back */
    size_t nfile;
    Token *token; /* (vocab) the bytes that encoding looks for */
    Token *shown; /* (vocab) the bytes that decoding writes */
    Buf pool;     /* the bytes of both */
    ModelKind kind;
    Bpe *bpe; /* the others: by `kind` */
    Unigram *unigram;
    double *score; /* (vocab) of a unigram model */
    Wordpiece wordpiece;
    Added *added;
    int nadded;
    int *first[2]; /* by `normalized`: (257) where added tokens of a first byte begin in order; see tokenizer.c */
    int *order[2];
    int plain[2];           /* by `normalized`: how many added tokens are not special */
    bool joins;             /* an added token that is not special can span a blank between two letters; see pool.c */
    unsigned char *special; /* (vocab) */
    Norm norm[NORMS_MAX];
    int nnorm;
    Cut cut[CUTS_MAX];
    int ncut;
    bool whole;        /* ignore_merges */
    Ids before, after; /* ids that the template puts before and after a text */
} TokModel;

void tok_model_free(TokModel *);
/* Order the added tokens for matching; must be called once, after all were added. */
void tok_model_index(TokModel *);
/* U+0100.. stand-ins of bytes that GPT-2's map uses: the UTF-8 of each byte's character. */
typedef struct {
    char utf8[3];
} ByteChar;
void byte_chars(ByteChar c[256]);
/* The names of tiktoken files whose patterns are known, i = 0, 1...; NULL: no more. */
const char *tiktoken_name(int i);
