/* bpe_train.h: learn a byte-level BPE vocabulary from text.
 *
 * Text is cut into pieces by a pattern; pieces start as bytes; the most frequent adjacent pair over all pieces (of
 * equals the one of lower ids) becomes a token, again and again. Ids: the special tokens in the order given, the 256
 * bytes in the order of their stand-in characters, then the merged tokens. This is the trainer of Hugging Face
 * tokenizers, and gives its vocabulary. Source: arXiv:1508.07909. */
#pragma once
#include "pretoken.h"

typedef struct {
    int vocab;           /* ids wanted in all; fewer when no pair is left that stands min_count times */
    int64_t min_count;   /* >= 1 */
    const char *pattern; /* as in tokenizer.json */
    int nspecial;
    const char *const *special; /* names, "<|endoftext|>" */
    int threads;
} BpeTrainCfg;

typedef struct BpeTrainer BpeTrainer;
/* NULL: EXIT_INPUT, a vocabulary too small or too large, a pattern that is not understood. */
BpeTrainer *bpe_train_open(const BpeTrainCfg *, Err *);
void bpe_train_close(BpeTrainer *);
/* Count the pieces of one more text; a line with its end is cut for itself, so that memory is that of the distinct
 * pieces. Texts may come in any order. */
void bpe_train_count(BpeTrainer *, const char *text, size_t n);
/* Learn the merges. progress (may be NULL) is called now and then with the ids made so far. The tokenizer.json as
 * malloc'ed text. */
char *bpe_train_run(BpeTrainer *, void (*progress)(void *, int made, int want), void *ctx);
