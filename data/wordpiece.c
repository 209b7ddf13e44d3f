/* wordpiece.c: greedy search in a trie. */
#include "wordpiece.h"
#include "chars.h"

Wordpiece wordpiece_make(const Token *token, int n, const char *prefix, int unknown, int most) {
    Wordpiece m = {.trie = trie_make(token, n), .prefixed = *prefix, .unknown = unknown, .most = most};
    for (const char *c = prefix; *c; c++)
        if (!(m.inside = trie_step(&m.trie, m.inside, *c))) break;
    return m;
}
void wordpiece_free(Wordpiece *m) { trie_free(&m->trie); }

void wordpiece_encode(const Wordpiece *m, const char *s, size_t n, Ids *out) {
    const size_t start = out->n;
    size_t k, at = 0, to;
    long chars = 0;
    for (size_t i = 0; i < n; i += k, chars++) char_at(s, n, i, &k);
    bool ok = chars <= m->most;
    for (; ok && at < n; at = to) {
        uint32_t node = at ? m->inside : 0;
        int best = -1;
        to = at;
        if (at && m->prefixed && !node) {
            ok = false;
            break;
        }
        for (size_t i = at; i < n && (node = trie_step(&m->trie, node, s[i])); i++)
            if (m->trie.node[node].id >= 0) best = m->trie.node[node].id, to = i + 1;
        ok = best >= 0;
        if (ok) ids_push(out, best);
    }
    if (ok) return;
    out->n = start;
    ids_push(out, m->unknown);
}
