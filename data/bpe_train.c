/* bpe_train.c: counts the distinct pieces of texts in parallel, learns merges from them, and writes tokenizer.json. */
#include "bpe_train.h"
#include "ops/file.h"
#include "tok_model.h"
#include <omp.h>

/* A distinct piece: symbols sym[at .. at+n), seen `count` times. While counting, the symbols are bytes of `text`. */
typedef struct {
    size_t at;
    uint32_t n;
    int64_t count;
} Word;
/* The distinct pieces that one thread has seen. */
typedef struct {
    Buf text;
    Word *word;
    size_t n, cap, mask;
    uint32_t *slot; /* word + 1; 0: empty */
    CutState *cut;
} Counter;
typedef struct {
    int a, b;
    int64_t count;
    uint32_t *in; /* words that have, or had, the pair */
    size_t nin, cap;
} Pair;
struct BpeTrainer {
    BpeTrainCfg cfg;
    Cutter *cutter;
    Counter *part; /* by thread */
    int byte_id[256];
    /* learning */
    Word *word;
    size_t nword;
    int *sym;
    Pair *pair;
    size_t npair, pair_cap, pair_mask;
    uint32_t *pair_slot;
    uint32_t *heap; /* pairs by the count that they were inserted with */
    int64_t *heap_count;
    size_t nheap, heap_cap;
};

static uint64_t hash_text(const char *s, size_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001B3u;
    return h ^ h >> 31;
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static void counter_grow(Counter *c) {
    size_t size = c->mask ? 2 * (c->mask + 1) : 1 << 12;
    free(c->slot);
    c->slot = xcalloc(size, sizeof *c->slot);
    c->mask = size - 1;
    for (size_t w = 0; w < c->n; w++) {
        size_t i = hash_text(c->text.at + c->word[w].at, c->word[w].n) & c->mask;
        while (c->slot[i]) i = (i + 1) & c->mask;
        c->slot[i] = (uint32_t)w + 1;
    }
}
static void counter_add(Counter *c, const char *s, size_t n, int64_t times) {
    if (2 * c->n >= c->mask) counter_grow(c);
    size_t i = hash_text(s, n) & c->mask;
    for (; c->slot[i]; i = (i + 1) & c->mask) {
        Word *w = &c->word[c->slot[i] - 1];
        if (w->n != n || memcmp(c->text.at + w->at, s, n)) continue;
        w->count += times;
        return;
    }
    CHECK(c->n < UINT32_MAX - 1, "%zu distinct pieces", c->n);
    if (c->n == c->cap) c->word = xrealloc(c->word, c->cap = c->cap ? 2 * c->cap : 1024, sizeof *c->word);
    c->word[c->n++] = (Word){c->text.n, (uint32_t)n, times};
    c->slot[i] = (uint32_t)c->n;
    buf_put(&c->text, s, n);
}
static void counter_free(Counter *c) {
    buf_free(&c->text);
    free(c->word);
    free(c->slot);
    cut_state_free(c->cut);
}

BpeTrainer *bpe_train_open(const BpeTrainCfg *cfg, Err *e) {
    int least = cfg->nspecial + 256;
    if (cfg->vocab < least || cfg->vocab > TOKENIZER_IDS_MAX) {
        err_input(e, "vocabulary of %d: expected %d (256 bytes and %d special tokens) to %d", cfg->vocab, least,
                  cfg->nspecial, TOKENIZER_IDS_MAX);
        return NULL;
    }
    Cutter *cutter = cutter_open(cfg->pattern, PATTERN_ONIGURUMA, "pattern", e);
    if (!cutter) return NULL;
    BpeTrainer *t = xcalloc(1, sizeof *t);
    t->cfg = *cfg;
    t->cutter = cutter;
    t->part = xcalloc((size_t)cfg->threads, sizeof *t->part);
    for (int i = 0; i < cfg->threads; i++) t->part[i].cut = cut_state(cutter);
    return t;
}
void bpe_train_close(BpeTrainer *t) {
    if (!t) return;
    for (int i = 0; i < t->cfg.threads; i++) counter_free(&t->part[i]);
    for (size_t i = 0; i < t->npair; i++) free(t->pair[i].in);
    cutter_close(t->cutter);
    free(t->part);
    free(t->word);
    free(t->sym);
    free(t->pair);
    free(t->pair_slot);
    free(t->heap);
    free(t->heap_count);
    free(t);
}

static void count_line(Counter *c, const char *s, size_t n) {
    for (size_t at = 0, to; at < n; at = to) {
        to = cut_next(c->cut, s, n, at);
        counter_add(c, s + at, to - at, 1);
    }
}
void bpe_train_count(BpeTrainer *t, const char *text, size_t n) {
    enum { SHARE = 1 << 16 }; /* bytes that a thread processes at once, up to the end of a line */
#pragma omp parallel for schedule(dynamic) num_threads(t->cfg.threads)
    for (size_t from = 0; from < n; from += SHARE) {
        Counter *c = &t->part[omp_get_thread_num()];
        const char *end = text + zmin(n, from + SHARE), *s = text + from;
        if (from && s[-1] != '\n')
            s = memchr(s, '\n', n - from), s = s ? s + 1 : text + n; /* the line began in the previous thread's range */
        while (s < end) {
            const char *stop = memchr(s, '\n', (size_t)(text + n - s));
            stop = stop ? stop + 1 : text + n;
            count_line(c, s, (size_t)(stop - s));
            s = stop;
        }
    }
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

static void gather_words(BpeTrainer *t) {
    Counter *all = &t->part[0];
    for (int i = 1; i < t->cfg.threads; i++) {
        for (size_t w = 0; w < t->part[i].n; w++)
            counter_add(all, t->part[i].text.at + t->part[i].word[w].at, t->part[i].word[w].n,
                        t->part[i].word[w].count);
    }
    t->word = all->word;
    t->nword = all->n;
    all->word = NULL;
    t->sym = xcalloc(all->text.n + 1, sizeof *t->sym);
    for (size_t i = 0; i < all->text.n; i++) t->sym[i] = t->byte_id[(unsigned char)all->text.at[i]];
}

static size_t pair_hash(int a, int b) {
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 31);
}
static Pair *pair_of(BpeTrainer *t, int a, int b) {
    if (2 * t->npair >= t->pair_mask) {
        size_t size = t->pair_mask ? 2 * (t->pair_mask + 1) : 1 << 14;
        free(t->pair_slot);
        t->pair_slot = xcalloc(size, sizeof *t->pair_slot);
        t->pair_mask = size - 1;
        for (size_t p = 0; p < t->npair; p++) {
            size_t i = pair_hash(t->pair[p].a, t->pair[p].b) & t->pair_mask;
            while (t->pair_slot[i]) i = (i + 1) & t->pair_mask;
            t->pair_slot[i] = (uint32_t)p + 1;
        }
    }
    size_t i = pair_hash(a, b) & t->pair_mask;
    for (; t->pair_slot[i]; i = (i + 1) & t->pair_mask) {
        Pair *p = &t->pair[t->pair_slot[i] - 1];
        if (p->a == a && p->b == b) return p;
    }
    if (t->npair == t->pair_cap)
        t->pair = xrealloc(t->pair, t->pair_cap = t->pair_cap ? 2 * t->pair_cap : 4096, sizeof *t->pair);
    t->pair[t->npair++] = (Pair){.a = a, .b = b};
    t->pair_slot[i] = (uint32_t)t->npair;
    return &t->pair[t->npair - 1];
}
/* Count `times` more occurrences of the pair in word w; returns the pair's number. */
static int pair_add(BpeTrainer *t, int a, int b, size_t w, int64_t times) {
    Pair *p = pair_of(t, a, b);
    p->count += times;
    if (times < 0 || (p->nin && p->in[p->nin - 1] == w)) return (int)(p - t->pair);
    if (p->nin == p->cap) p->in = xrealloc(p->in, p->cap = p->cap ? 2 * p->cap : 4, sizeof *p->in);
    p->in[p->nin++] = (uint32_t)w;
    return (int)(p - t->pair);
}

/* Pair x, with the count nx it was inserted with, comes before y. */
static bool first_of(const BpeTrainer *t, uint32_t x, int64_t nx, uint32_t y, int64_t ny) {
    const Pair *p = &t->pair[x], *q = &t->pair[y];
    if (nx != ny) return nx > ny;
    return p->a != q->a ? p->a < q->a : p->b < q->b;
}
static void heap_put(BpeTrainer *t, size_t i, uint32_t p, int64_t n) { t->heap[i] = p, t->heap_count[i] = n; }
static void bpe_train_heap_push(BpeTrainer *t, uint32_t p) {
    int64_t n = t->pair[p].count;
    if (t->nheap == t->heap_cap) {
        t->heap_cap = t->heap_cap ? 2 * t->heap_cap : 4096;
        t->heap = xrealloc(t->heap, t->heap_cap, sizeof *t->heap);
        t->heap_count = xrealloc(t->heap_count, t->heap_cap, sizeof *t->heap_count);
    }
    size_t i = t->nheap++;
    while (i) {
        size_t up = (i - 1) / 2;
        if (!first_of(t, p, n, t->heap[up], t->heap_count[up])) break;
        heap_put(t, i, t->heap[up], t->heap_count[up]);
        i = up;
    }
    heap_put(t, i, p, n);
}
static uint32_t bpe_train_heap_pop(BpeTrainer *t, int64_t *count) {
    uint32_t top = t->heap[0], last = t->heap[--t->nheap];
    int64_t n = t->heap_count[t->nheap];
    *count = t->heap_count[0];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < t->nheap; i = k) {
        if (k + 1 < t->nheap && first_of(t, t->heap[k + 1], t->heap_count[k + 1], t->heap[k], t->heap_count[k])) k++;
        if (!first_of(t, t->heap[k], t->heap_count[k], last, n)) break;
        heap_put(t, i, t->heap[k], t->heap_count[k]);
    }
    if (t->nheap) heap_put(t, i, last, n);
    return top;
}

/* Replace a b by `to` in word w; the pairs that appear are added to `fresh`. */
static void merge_in(BpeTrainer *t, size_t w, int a, int b, int to, Ids *fresh) {
    Word *word = &t->word[w];
    int *s = t->sym + word->at;
    uint32_t n = word->n, m = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 == n || s[i] != a || s[i + 1] != b) {
            s[m++] = s[i];
            continue;
        }
        if (m) {
            pair_add(t, s[m - 1], a, w, -word->count);
            ids_push(fresh, pair_add(t, s[m - 1], to, w, word->count));
        }
        if (i + 2 < n) {
            pair_add(t, b, s[i + 2], w, -word->count);
            ids_push(fresh, pair_add(t, to, s[i + 2], w, word->count));
        }
        s[m++] = to;
        i++;
    }
    word->n = m;
}

/* The names of tokens, in the file's spelling, and their ids. */
typedef struct {
    json_t *vocab, *merges;
    Ids at;   /* id -> where its name begins in `pool` */
    Buf pool; /* NUL-ended names */
} Made;
static const char *bpe_train_name_of(const Made *k, int id) { return k->pool.at + k->at.id[id]; }
static int made_add(Made *k, const char *name) {
    const json_t *old = json_object_get(k->vocab, name);
    if (old) return (int)json_integer_value(old);
    int id = (int)k->at.n;
    CHECK(k->pool.n < INT32_MAX, "%zu bytes of names", k->pool.n);
    ids_push(&k->at, (int)k->pool.n);
    buf_put(&k->pool, name, strlen(name) + 1);
    json_object_set_new(k->vocab, name, json_integer(id));
    return id;
}

static int by_code(const void *a, const void *b) { /* UTF-8 sorts as its code points do */
    return strcmp(((const ByteChar *)a)->utf8, ((const ByteChar *)b)->utf8);
}
static void bpe_train_alphabet(BpeTrainer *t, Made *k) {
    ByteChar of[256], sorted[256];
    byte_chars(of);
    memcpy(sorted, of, sizeof of);
    qsort(sorted, 256, sizeof *sorted, by_code);
    for (int i = 0; i < t->cfg.nspecial; i++) made_add(k, t->cfg.special[i]);
    for (int i = 0; i < 256; i++) made_add(k, sorted[i].utf8);
    for (int b = 0; b < 256; b++) t->byte_id[b] = made_add(k, of[b].utf8);
}

static char *file_text(const BpeTrainer *t, const Made *k) {
    json_t *added = json_array();
    for (int i = 0; i < t->cfg.nspecial; i++)
        json_array_append_new(added,
                              json_pack("{si ss sb sb sb sb sb}", "id", i, "content", t->cfg.special[i], "single_word",
                                        0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    json_t *j = json_pack(
        "{ss sn sn so sn s{ss s[{ss s{ss} ss sb}{ss sb sb sb}]} sn s{ss sb sb sb} s{ss sn sn sn sn sb sb sb sO sO}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer", "type",
        "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", t->cfg.pattern, "behavior", "Isolated",
        "invert", 0, "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0, "post_processor",
        "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type",
        "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0, "vocab", k->vocab, "merges", k->merges);
    CHECK(j, "building JSON failed");
    char *body = json_dumps(j, JSON_INDENT(2)), *text = xformat("%s\n", body);
    free(body);
    json_decref(j);
    return text;
}

char *bpe_train_run(BpeTrainer *t, void (*progress)(void *, int made, int want), void *ctx) {
    Made k = {.vocab = json_object(), .merges = json_array()};
    bpe_train_alphabet(t, &k);
    gather_words(t);
    for (size_t w = 0; w < t->nword; w++)
        for (uint32_t i = 0; i + 1 < t->word[w].n; i++)
            pair_add(t, t->sym[t->word[w].at + i], t->sym[t->word[w].at + i + 1], w, t->word[w].count);
    for (size_t p = 0; p < t->npair; p++) bpe_train_heap_push(t, (uint32_t)p);
    Ids fresh = {0};
    while ((int)k.at.n < t->cfg.vocab && t->nheap) {
        int64_t count;
        uint32_t p = bpe_train_heap_pop(t, &count);
        if (count != t->pair[p].count) { /* the count is lower by now */
            if (t->pair[p].count > 0) bpe_train_heap_push(t, p);
            continue;
        }
        if (count < t->cfg.min_count) break;
        int a = t->pair[p].a, b = t->pair[p].b;
        char *name = xformat("%s%s", bpe_train_name_of(&k, a), bpe_train_name_of(&k, b));
        int to = made_add(&k, name);
        free(name);
        json_array_append_new(k.merges, json_pack("[ss]", bpe_train_name_of(&k, a), bpe_train_name_of(&k, b)));
        uint32_t *in = t->pair[p].in;
        size_t nin = t->pair[p].nin;
        t->pair[p].in = NULL, t->pair[p].nin = t->pair[p].cap = 0, t->pair[p].count = 0;
        fresh.n = 0;
        for (size_t i = 0; i < nin; i++) merge_in(t, in[i], a, b, to, &fresh);
        free(in);
        t->pair[p].count = 0;
        for (size_t i = 0; i < fresh.n; i++)
            if (t->pair[fresh.id[i]].count > 0) bpe_train_heap_push(t, (uint32_t)fresh.id[i]);
        if (progress) progress(ctx, (int)k.at.n, t->cfg.vocab);
    }
    char *text = file_text(t, &k);
    ids_free(&fresh);
    ids_free(&k.at);
    buf_free(&k.pool);
    json_decref(k.vocab);
    json_decref(k.merges);
    return text;
}
