/* splits.c: finds both halves of every cut in a trie. */
#include "splits.h"

typedef struct {
    int left, right; /* as ranks, then ids */
} SplitPair;
static int split_order(const void *a, const void *b) {
    const SplitPair *x = a, *y = b;
    return x->left != y->left ? (x->left < y->left ? -1 : 1) : (x->right > y->right) - (x->right < y->right);
}

json_t *splits_merges(const Token *token, int n, const int *order, int norder, bool chars, json_t *const *name) {
    Trie trie = trie_make(token, n);
    int *rank = xcalloc((size_t)n + 1, sizeof *rank);
    SplitPair *pair = NULL;
    size_t cap = 0;
    json_t *list = json_array();
    for (int i = 0; i < norder; i++) rank[order[i]] = i;
    for (int i = 0; i < norder; i++) {
        const Token *t = &token[order[i]];
        size_t npair = 0;
        uint32_t node = 0;
        if (t->n > cap) pair = xrealloc(pair, cap = t->n, sizeof *pair);
        for (size_t k = 1; k < t->n && (node = trie_step(&trie, node, t->at[k - 1])); k++) {
            if (trie.node[node].id < 0 || (chars && ((unsigned char)t->at[k] & 0xC0) == 0x80)) continue;
            const int right = trie_find(&trie, t->at + k, t->n - k);
            if (right >= 0) pair[npair++] = (SplitPair){rank[trie.node[node].id], rank[right]};
        }
        if (npair) qsort(pair, npair, sizeof *pair, split_order);
        for (size_t k = 0; k < npair; k++) {
            json_t *two = json_array();
            json_array_append(two, name[order[pair[k].left]]);
            json_array_append(two, name[order[pair[k].right]]);
            json_array_append_new(list, two);
        }
    }
    free(pair), free(rank);
    trie_free(&trie);
    return list;
}
