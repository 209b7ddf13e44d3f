/* unigram.h: encodes one piece of text by a unigram model: of all ways to write it as tokens the one whose scores
 * (log-probabilities) have the greatest sum. The tokenizer calls it for each piece.
 *
 * A character that is no token by itself may also be unknown, with the lowest score of the vocabulary less 10; unknown
 * neighbours are one. Of equal sums the one found first from the left stays, as in the tokenizers library. An unknown
 * stretch becomes its bytes' tokens <0xNN> with `fallback`, else the unknown token. Cost: O(n) in the bytes of a piece
 * times the length of the longest token. Sources: arXiv:1804.10959; Hugging Face tokenizers. */
#pragma once
#include "trie.h"

typedef struct Unigram Unigram;
/* A vocabulary of n ids; the caller owns the tokens' bytes and `score` (n) and must keep them. unknown: an id. NULL
 * (EXIT_INPUT): fallback, and a byte has no token. */
Unigram *unigram_open(const Token *, const double *score, int n, int unknown, bool fallback, const char *where, Err *);
void unigram_close(Unigram *);

/* Buffers; each thread must have its own. */
typedef struct UnigramWork UnigramWork;
UnigramWork *unigram_work(const Unigram *);
void unigram_work_free(UnigramWork *);
void unigram_encode(UnigramWork *, const char *s, size_t n, Ids *out); /* appends the ids of one piece */
