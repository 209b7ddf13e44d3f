/* trie.c: built from the sorted tokens, level by level. */
#include "trie.h"

typedef struct {
    const char *at;
    size_t n;
    int id;
} TrieWord;
static int trie_order(const void *a, const void *b) {
    const TrieWord *x = a, *y = b;
    int c = memcmp(x->at, y->at, zmin(x->n, y->n));
    return c ? c : x->n != y->n ? (x->n < y->n ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

typedef struct {
    uint32_t from, to; /* the words below a node */
} TrieRange;
Trie trie_make(const Token *token, int n) {
    TrieWord *word = xcalloc((size_t)n + 1, sizeof *word);
    uint32_t nword = 0;
    size_t bytes = 1;
    for (int i = 0; i < n; i++)
        if (token[i].at && token[i].n && !token[i].hidden)
            word[nword++] = (TrieWord){token[i].at, token[i].n, i}, bytes += token[i].n;
    CHECK(bytes < UINT32_MAX, "%zu bytes of tokens", bytes);
    qsort(word, nword, sizeof *word, trie_order);
    Trie t = {.n = 1};
    size_t cap = zmin(bytes, 1024);
    t.node = xcalloc(cap, sizeof *t.node);
    TrieRange *below = xcalloc(cap, sizeof *below);
    below[0] = (TrieRange){0, nword};
    t.node[0].id = -1;
    size_t depth = 0, level = 1; /* nodes from `level` on are one deeper */
    for (size_t at = 0; at < t.n; at++) {
        if (at == level) depth++, level = t.n;
        uint32_t w = below[at].from, end = below[at].to;
        for (; w < end && word[w].n == depth; w++) t.node[at].id = word[w].id;
        t.node[at].child = (uint32_t)t.n;
        while (w < end) {
            if (t.n == cap) {
                cap *= 2;
                t.node = xrealloc(t.node, cap, sizeof *t.node);
                below = xrealloc(below, cap, sizeof *below);
            }
            const char c = word[w].at[depth];
            const uint32_t from = w;
            while (w < end && word[w].at[depth] == c) w++;
            t.node[t.n] = (TrieNode){.byte = (unsigned char)c, .id = -1};
            below[t.n++] = (TrieRange){from, w};
            t.node[at].n++;
        }
    }
    free(below), free(word);
    return t;
}
void trie_free(Trie *t) {
    free(t->node);
    *t = (Trie){0};
}
int trie_find(const Trie *t, const char *s, size_t n) {
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++)
        if (!(at = trie_step(t, at, s[i]))) return -1;
    return n ? t->node[at].id : -1;
}
