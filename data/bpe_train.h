/* bpe_train.h: learns a byte-level BPE vocabulary from text. The command `data train-bpe` opens a trainer, counts
 * texts and runs it.
 *
 * A pattern cuts text into pieces, and pieces start as bytes. The most frequent adjacent pair over all pieces (of
 * equals the one of lower ids) becomes a token, again and again. Ids: the special tokens in the given order, the 256
 * bytes in the order of their stand-in characters, then the merged tokens. This is the trainer of Hugging Face
 * tokenizers, and gives the same vocabulary. Source: arXiv:1508.07909. */
#pragma once
#include "pretoken.h"

typedef struct {
    int vocab;           /* ids wanted in all; fewer if no pair is left that occurs min_count times */
    int64_t min_count;   /* >= 1 */
    const char *pattern; /* as in tokenizer.json */
    int nspecial;
    const char *const *special; /* names, "<|endoftext|>" */
    int threads;
} BpeTrainCfg;

typedef struct BpeTrainer BpeTrainer;
/* NULL (EXIT_INPUT): the vocabulary is too small or too large, or the pattern is not understood. */
BpeTrainer *bpe_train_open(const BpeTrainCfg *, Err *);
void bpe_train_close(BpeTrainer *);
/* Count the pieces of one more text. Every line with its end is cut separately, so memory only holds the distinct
 * pieces. Texts may come in any order. */
void bpe_train_count(BpeTrainer *, const char *text, size_t n);
/* Learn the merges and return the tokenizer.json as malloc'ed text. progress (may be NULL) is called now and then with
 * the number of ids made so far. */
char *bpe_train_run(BpeTrainer *, void (*progress)(void *, int made, int want), void *ctx);
