/* trie.h: the tokens of a vocabulary by their bytes, for models that look for all tokens at a place (unigram.h,
 * wordpiece.h). Children of a node are neighbours in one array, in order of their bytes. */
#pragma once
#include "bpe.h"

typedef struct {
    uint32_t child; /* the first of them */
    uint16_t n;
    unsigned char byte;
    int id; /* -1: no token ends here */
} TrieNode;
typedef struct {
    TrieNode *node;
    size_t n;
} Trie;
/* Of tokens with the same bytes the last keeps its place. Tokens without bytes and hidden ones are left out. */
Trie trie_make(const Token *, int n);
void trie_free(Trie *);
/* The child of node `at` for a byte; 0 (the root): none. */
static inline uint32_t trie_step(const Trie *t, uint32_t at, char c) {
    const TrieNode *p = &t->node[at];
    uint32_t low = p->child, high = low + p->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (t->node[mid].byte == (unsigned char)c) return mid;
        if (t->node[mid].byte < (unsigned char)c)
            low = mid + 1;
        else
            high = mid;
    }
    return 0;
}
/* The id of exactly these bytes; -1: none. */
int trie_find(const Trie *, const char *s, size_t n);
