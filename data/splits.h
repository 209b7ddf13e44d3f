/* splits.h: the merges of a vocabulary that has ranks instead of merges, for tokenizer.json: every way to cut a token
 * in two tokens, in order of the joined token's rank, then of both parts'. The readers of SentencePiece and tiktoken
 * files call it. */
#pragma once
#include <jansson.h>
#include "trie.h"

/* Tokens that take part have `at`; their order is their rank, lowest first. name: what merges call token i. chars: cut
 * between characters of UTF-8 only. Returns a list of pairs of names. */
json_t *splits_merges(const Token *, int n, const int *order, int norder, bool chars, json_t *const *name);
