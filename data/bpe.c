/* bpe.c: the tables of a vocabulary, and the merging of a piece: plain scans for a short one, a heap for a long one. */
#include "bpe.h"

void ids_push(Ids *s, int id) {
    if (s->n == s->cap) s->id = xrealloc(s->id, s->cap = s->cap ? 2 * s->cap : 256, sizeof *s->id);
    s->id[s->n++] = id;
}
void ids_free(Ids *s) {
    free(s->id);
    *s = (Ids){0};
}

/* Open addressing, at most half full; an empty place has to == -1. */
typedef struct {
    int a, b, rank, to;
} PairSlot;
struct Bpe {
    const Token *token;
    int n, byte_id[256];
    bool fallback;
    PairSlot *pair;
    int *name; /* ids by the hash of their bytes; -1 empty */
    size_t pair_mask, name_mask;
};

static size_t table_size(size_t n) {
    size_t size = 16;
    while (size < 2 * n + 1) size *= 2;
    return size;
}
static uint64_t bpe_hash_bytes(const char *s, size_t n) {
    uint64_t h = 0xCBF29CE484222325u ^ n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001B3u;
    return (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
}
static size_t hash_pair(int a, int b) {
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 31);
}
static const PairSlot *pair_find(const Bpe *m, int a, int b) {
    for (size_t i = hash_pair(a, b) & m->pair_mask;; i = (i + 1) & m->pair_mask) {
        const PairSlot *p = &m->pair[i];
        if (p->to < 0) return NULL;
        if (p->a == a && p->b == b) return p;
    }
}
int bpe_find(const Bpe *m, const char *s, size_t n) {
    for (size_t i = bpe_hash_bytes(s, n) & m->name_mask;; i = (i + 1) & m->name_mask) {
        int id = m->name[i];
        if (id < 0) return -1;
        if (m->token[id].n == n && !memcmp(m->token[id].at, s, n)) return id;
    }
}

static void names_fill(Bpe *m) {
    size_t size = table_size((size_t)m->n);
    m->name = xcalloc(size, sizeof *m->name);
    m->name_mask = size - 1;
    for (size_t i = 0; i < size; i++) m->name[i] = -1;
    for (int id = 0; id < m->n; id++) {
        const Token *t = &m->token[id];
        /* of two equal tokens the lower id */
        if (!t->at || t->byte >= 0 || t->hidden || bpe_find(m, t->at, t->n) >= 0) continue;
        size_t i = bpe_hash_bytes(t->at, t->n) & m->name_mask;
        while (m->name[i] >= 0) i = (i + 1) & m->name_mask;
        m->name[i] = id;
    }
}

static bool in_use(const Bpe *m, int id) { return id >= 0 && id < m->n && m->token[id].at; }
static bool pairs_fill(Bpe *m, const Merge *merge, size_t n, const char *where, Err *e) {
    size_t size = table_size(n);
    m->pair = xcalloc(size, sizeof *m->pair);
    m->pair_mask = size - 1;
    for (size_t i = 0; i < size; i++) m->pair[i].to = -1;
    for (size_t k = 0; k < n; k++) {
        Merge g = merge[k];
        if (!in_use(m, g.a) || !in_use(m, g.b) || !in_use(m, g.to))
            return err_input(e, "%s: merge %zu joins ids %d and %d to %d; expected ids of the vocabulary", where, k,
                             g.a, g.b, g.to);
        if (pair_find(m, g.a, g.b))
            return err_input(e, "%s: merge %zu, of ids %d and %d, is listed twice", where, k, g.a, g.b);
        size_t i = hash_pair(g.a, g.b) & m->pair_mask;
        while (m->pair[i].to >= 0) i = (i + 1) & m->pair_mask;
        m->pair[i] = (PairSlot){g.a, g.b, (int)k, g.to};
    }
    return true;
}
static bool bytes_fill(Bpe *m, const char *where, Err *e) {
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        m->byte_id[b] = m->fallback ? -1 : bpe_find(m, &c, 1);
    }
    for (int id = 0; !m->fallback && id < m->n; id++) { /* a special token of one byte is also the byte's token */
        const Token *t = &m->token[id];
        if (t->hidden && t->n == 1 && m->byte_id[(unsigned char)*t->at] < 0) m->byte_id[(unsigned char)*t->at] = id;
    }
    for (int id = 0; m->fallback && id < m->n; id++)
        if (m->token[id].at && m->token[id].byte >= 0) m->byte_id[m->token[id].byte] = id;
    for (int b = 0; b < 256; b++)
        if (m->byte_id[b] < 0)
            return err_input(e, "%s: no token for byte 0x%02X, so text with this byte cannot be encoded", where, b);
    return true;
}

Bpe *bpe_open(const Token *token, int n, const Merge *merge, size_t nmerge, bool fallback, const char *where, Err *e) {
    Bpe *m = xcalloc(1, sizeof *m);
    *m = (Bpe){.token = token, .n = n, .fallback = fallback};
    names_fill(m);
    if (nmerge <= INT32_MAX / 4 && pairs_fill(m, merge, nmerge, where, e) && bytes_fill(m, where, e)) return m;
    bpe_close(m);
    return NULL;
}
void bpe_close(Bpe *m) {
    if (!m) return;
    free(m->pair);
    free(m->name);
    free(m);
}

/* ---- merging a piece --------------------------------------------------------------------------------------------- */

enum { SHORT = 32, CACHE = 1 << 14, CACHE_BYTES = 24, CACHE_IDS = 8 };
/* A direct-mapped cache: the result for the last piece of this hash. n 0: empty. */
typedef struct {
    unsigned char n, nids;
    char text[CACHE_BYTES];
    int id[CACHE_IDS];
} Cached;
typedef struct {
    int rank, at, to; /* merging the symbol at `at` with its follower gives `to` */
} Candidate;
typedef struct {
    int id, prev, next;
} Symbol;
struct BpeWork {
    const Bpe *m;
    Cached *cache;
    Ids first; /* the symbols of a piece */
    Symbol *symbol;
    Candidate *heap;
    size_t nheap, heap_cap, symbol_cap;
};

BpeWork *bpe_work(const Bpe *m) {
    BpeWork *w = xcalloc(1, sizeof *w);
    w->m = m;
    w->cache = xcalloc(CACHE, sizeof *w->cache);
    return w;
}
void bpe_work_free(BpeWork *w) {
    if (!w) return;
    ids_free(&w->first);
    free(w->cache);
    free(w->symbol);
    free(w->heap);
    free(w);
}

/* Bytes of the character at s, by its first byte alone; 1 if that byte begins no character. */
static size_t char_bytes(const char *s, size_t n) {
    unsigned char c = (unsigned char)*s;
    size_t k = c < 0xC2 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 1;
    if (k > n) return 1;
    for (size_t i = 1; i < k; i++)
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 1;
    return k;
}
static void bpe_symbols(BpeWork *w, const char *s, size_t n) {
    const Bpe *m = w->m;
    w->first.n = 0;
    for (size_t i = 0, k; i < n; i += k) {
        k = m->fallback ? char_bytes(s + i, n - i) : 1;
        int id = m->fallback ? bpe_find(m, s + i, k) : -1;
        if (id >= 0) ids_push(&w->first, id);
        for (size_t j = 0; id < 0 && j < k; j++) ids_push(&w->first, m->byte_id[(unsigned char)s[i + j]]);
    }
}

/* Plain scans: for few symbols, without bookkeeping. */
static size_t merge_short(const Bpe *m, int *id, size_t n) {
    int rank[SHORT], to[SHORT];
    for (size_t i = 0; i + 1 < n; i++) {
        const PairSlot *p = pair_find(m, id[i], id[i + 1]);
        rank[i] = p ? p->rank : INT32_MAX, to[i] = p ? p->to : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == INT32_MAX) break;
        id[best] = to[best];
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(rank + best, rank + best + 1, (n - 1 - best) * sizeof *rank);
        memmove(to + best, to + best + 1, (n - 1 - best) * sizeof *to);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const PairSlot *p = pair_find(m, id[i], id[i + 1]);
            rank[i] = p ? p->rank : INT32_MAX, to[i] = p ? p->to : -1;
        }
    }
    return n;
}

static bool bpe_before(Candidate a, Candidate b) { return a.rank < b.rank || (a.rank == b.rank && a.at < b.at); }
static void bpe_heap_push(BpeWork *w, Candidate c) {
    if (w->nheap == w->heap_cap)
        w->heap = xrealloc(w->heap, w->heap_cap = w->heap_cap ? 2 * w->heap_cap : 256, sizeof *w->heap);
    size_t i = w->nheap++;
    for (; i && bpe_before(c, w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}
static Candidate bpe_heap_pop(BpeWork *w) {
    Candidate top = w->heap[0], c = w->heap[--w->nheap];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < w->nheap; i = k) {
        if (k + 1 < w->nheap && bpe_before(w->heap[k + 1], w->heap[k])) k++;
        if (!bpe_before(w->heap[k], c)) break;
        w->heap[i] = w->heap[k];
    }
    w->heap[i] = c;
    return top;
}
static void bpe_offer(BpeWork *w, int at) {
    if (at < 0 || w->symbol[at].next < 0) return;
    const PairSlot *p = pair_find(w->m, w->symbol[at].id, w->symbol[w->symbol[at].next].id);
    if (p) bpe_heap_push(w, (Candidate){p->rank, at, p->to});
}
/* A heap of candidates over a linked list. A candidate whose symbols have changed since is skipped. */
static void merge_long(BpeWork *w, Ids *out) {
    size_t n = w->first.n;
    CHECK(n < INT32_MAX, "a piece of %zu symbols", n);
    if (n > w->symbol_cap) w->symbol = xrealloc(w->symbol, w->symbol_cap = n, sizeof *w->symbol);
    for (size_t i = 0; i < n; i++) w->symbol[i] = (Symbol){w->first.id[i], (int)i - 1, i + 1 < n ? (int)i + 1 : -1};
    w->nheap = 0;
    for (size_t i = 0; i < n; i++) bpe_offer(w, (int)i);
    while (w->nheap) {
        Candidate c = bpe_heap_pop(w);
        Symbol *a = &w->symbol[c.at];
        if (a->id < 0 || a->next < 0) continue;
        Symbol *b = &w->symbol[a->next];
        const PairSlot *p = pair_find(w->m, a->id, b->id);
        if (!p || p->rank != c.rank) continue;
        a->id = c.to;
        a->next = b->next;
        b->id = -1;
        if (a->next >= 0) w->symbol[a->next].prev = c.at;
        bpe_offer(w, a->prev);
        bpe_offer(w, c.at);
    }
    for (int i = n ? 0 : -1; i >= 0; i = w->symbol[i].next) ids_push(out, w->symbol[i].id);
}

void bpe_encode(BpeWork *w, const char *s, size_t n, bool whole, Ids *out) {
    if (!n) return;
    int id = whole ? bpe_find(w->m, s, n) : -1;
    if (id >= 0) {
        ids_push(out, id);
        return;
    }
    Cached *c = n <= CACHE_BYTES ? &w->cache[bpe_hash_bytes(s, n) % CACHE] : NULL;
    if (c && c->n == n && !memcmp(c->text, s, n)) {
        for (int i = 0; i < c->nids; i++) ids_push(out, c->id[i]);
        return;
    }
    size_t start = out->n;
    bpe_symbols(w, s, n);
    if (w->first.n <= SHORT) {
        size_t k = merge_short(w->m, w->first.id, w->first.n);
        for (size_t i = 0; i < k; i++) ids_push(out, w->first.id[i]);
    } else {
        merge_long(w, out);
    }
    if (!c || out->n - start > CACHE_IDS) return;
    c->n = (unsigned char)n;
    c->nids = (unsigned char)(out->n - start);
    memcpy(c->text, s, n);
    memcpy(c->id, out->id + start, (out->n - start) * sizeof *c->id);
}
