/* loss_split.c: see loss_split.h. */
#include "loss_split.h"

int loss_bucket(int pos) {
    int k = 0;
    for (int64_t upto = 1; upto < (int64_t)pos + 1; upto *= 4) k++;
    CHECK(k < LOSS_BUCKETS, "position %d", pos);
    return k;
}

void pairs_open(Pairs *p, size_t most) {
    *p = (Pairs){.cap = 16};
    while (p->cap < 2 * most) p->cap *= 2;
    p->key = xcalloc(p->cap, sizeof *p->key);
    p->value = xcalloc(p->cap, sizeof *p->value);
}
void pairs_close(Pairs *p) {
    free(p->key);
    free(p->value);
    *p = (Pairs){0};
}

/* The place of a pair, or the free one where it would be. */
static size_t pairs_place(const Pairs *p, uint64_t key) {
    uint64_t mix = key * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(mix ^ mix >> 32) & (p->cap - 1);
    while (p->key[at] && p->key[at] != key) at = (at + 1) & (p->cap - 1);
    return at;
}
static uint64_t pairs_key(int64_t a, int64_t b) { return ((uint64_t)a << 32 | (uint64_t)b) + 1; }

int64_t *pairs_find(const Pairs *p, int64_t a, int64_t b) {
    const size_t at = pairs_place(p, pairs_key(a, b));
    return p->key[at] ? &p->value[at] : NULL;
}
int64_t *pairs_add(Pairs *p, int64_t a, int64_t b) {
    const uint64_t key = pairs_key(a, b);
    const size_t at = pairs_place(p, key);
    if (!p->key[at]) {
        CHECK(2 * ++p->n <= p->cap, "%zu pairs in %zu places", p->n, p->cap);
        p->key[at] = key;
    }
    return &p->value[at];
}
void pairs_count(Pairs *p, const Tokens *text) {
    for (size_t i = 1; i < text->n; i++) {
        int64_t *count = pairs_find(p, token_at(text, i - 1), token_at(text, i));
        if (count) ++*count;
    }
}

static void sum_add(LossSum *s, double nll) { s->n++, s->nll += nll; }

void loss_split_add(LossSplit *s, const Pairs *counts, int64_t limit, int n, const int *tok, const int *tgt,
                    const int *pos, const double *nll) {
    Pairs seen; /* the last row, from 1, that had a pair */
    pairs_open(&seen, (size_t)n);
    for (int i = 0; i < n; i++) {
        int64_t *last = pairs_add(&seen, tok[i], tgt[i]), *count = pairs_find(counts, tok[i], tgt[i]);
        const bool again = *last > i - pos[i];
        *last = i + 1;
        sum_add(&s->all, nll[i]);
        sum_add(&s->bucket[loss_bucket(pos[i])], nll[i]);
        sum_add(&s->kind[!again ? LOSS_FIRST : count && *count > limit ? LOSS_COMMON : LOSS_HIT], nll[i]);
    }
    pairs_close(&seen);
}
