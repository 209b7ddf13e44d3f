/* wordpiece.h: encodes one word by BERT's rule: the longest token that the word begins with, then again and again the
 * longest token "##..." that the rest begins with. A word that has such a rest without a token, or too many characters,
 * is one unknown token. The tokenizer calls it for each piece. Cost: O(n) in the bytes of a word times the length of
 * the longest token. Source: arXiv:1810.04805; Hugging Face tokenizers. */
#pragma once
#include "trie.h"

typedef struct {
    Trie trie;
    uint32_t inside; /* the node of the prefix; 0 with a prefix: no token has it */
    bool prefixed;
    int unknown, most; /* characters of a word */
} Wordpiece;
/* A vocabulary of n ids, whose bytes the caller must keep. */
Wordpiece wordpiece_make(const Token *, int n, const char *prefix, int unknown, int most);
void wordpiece_free(Wordpiece *);
void wordpiece_encode(const Wordpiece *, const char *s, size_t n, Ids *out); /* appends the ids of one word */
