/* unigram.c: Viterbi over the bytes of a piece. */
#include "unigram.h"
#include "chars.h"

struct Unigram {
    Trie trie;
    const double *score;
    double least;
    int unknown, byte_id[256];
    bool fallback;
};
/* The best way to the end of the first i bytes. */
typedef struct {
    double sum;
    int id;
    uint32_t n; /* bytes of its last token; 0: no way is known */
} UnigramBest;
struct UnigramWork {
    const Unigram *m;
    UnigramBest *best;
    size_t cap;
    Ids back; /* the result from the end: pairs of an end and an id */
};

Unigram *unigram_open(const Token *token, const double *score, int n, int unknown, bool fallback, const char *where,
                      Err *e) {
    Unigram *m = xcalloc(1, sizeof *m);
    *m = (Unigram){.score = score, .least = INFINITY, .unknown = unknown, .fallback = fallback};
    for (int b = 0; b < 256; b++) m->byte_id[b] = -1;
    for (int i = 0; i < n; i++) {
        if (token[i].at) m->least = fmin(m->least, score[i]);
        if (token[i].at && token[i].byte >= 0) m->byte_id[token[i].byte] = i;
    }
    for (int b = 0; fallback && b < 256; b++)
        if (m->byte_id[b] < 0) {
            err_input(e, "%s: no token for byte 0x%02X, so text with this byte cannot be encoded", where, b);
            unigram_close(m);
            return NULL;
        }
    m->trie = trie_make(token, n);
    return m;
}
void unigram_close(Unigram *m) {
    if (!m) return;
    trie_free(&m->trie);
    free(m);
}
UnigramWork *unigram_work(const Unigram *m) {
    UnigramWork *w = xcalloc(1, sizeof *w);
    w->m = m;
    return w;
}
void unigram_work_free(UnigramWork *w) {
    if (!w) return;
    free(w->best);
    ids_free(&w->back);
    free(w);
}

static void unigram_offer(UnigramBest *to, double sum, int id, size_t n) {
    if (!to->n || sum > to->sum) *to = (UnigramBest){sum, id, (uint32_t)n};
}
static void unigram_forward(const Unigram *m, UnigramBest *best, const char *s, size_t n) {
    size_t k;
    for (size_t at = 0; at < n; at += k) {
        bool single = false;
        char_at(s, n, at, &k);
        uint32_t node = 0;
        for (size_t i = at; i < n && (node = trie_step(&m->trie, node, s[i])); i++) {
            const int id = m->trie.node[node].id;
            if (id < 0) continue;
            unigram_offer(&best[i + 1], best[at].sum + m->score[id], id, i + 1 - at);
            single |= i + 1 - at == k;
        }
        if (!single) unigram_offer(&best[at + k], best[at].sum + m->least - 10, m->unknown, k);
    }
}

/* A stretch of unknown text; as a whole it may be a token that is never the best way. */
static void unigram_unknown(const Unigram *m, const char *s, size_t n, Ids *out) {
    const int id = trie_find(&m->trie, s, n);
    if (id >= 0 || !m->fallback) {
        ids_push(out, id >= 0 ? id : m->unknown);
        return;
    }
    for (size_t i = 0; i < n; i++) ids_push(out, m->byte_id[(unsigned char)s[i]]);
}
void unigram_encode(UnigramWork *w, const char *s, size_t n, Ids *out) {
    const Unigram *m = w->m;
    if (!n) return;
    CHECK(n < INT32_MAX, "a piece of %zu bytes", n);
    if (n >= w->cap) w->best = xrealloc(w->best, w->cap = zmax(2 * w->cap, n + 1), sizeof *w->best);
    memset(w->best, 0, (n + 1) * sizeof *w->best);
    unigram_forward(m, w->best, s, n);
    w->back.n = 0;
    for (size_t at = n; at; at -= w->best[at].n) ids_push(&w->back, (int)at);
    size_t from = 0;
    for (size_t i = w->back.n; i-- > 0;) {
        size_t to = (size_t)w->back.id[i];
        const int id = w->best[to].id;
        if (id != m->unknown) {
            ids_push(out, id);
        } else {
            while (i > 0 && w->best[w->back.id[i - 1]].id == id) to = (size_t)w->back.id[--i];
            unigram_unknown(m, s + from, to - from, out);
        }
        from = to;
    }
}
