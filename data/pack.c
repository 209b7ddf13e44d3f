/* pack.c: best-fit decreasing, with bit sets of the free rooms that windows have. */
#include "pack.h"

/* A set of free rooms: one bit for every room that some window has, and one bit for every word of those that is not
 * 0. */
typedef struct {
    uint64_t *word, *sum;
    int nsum;
} Rooms;
static void rooms_set(Rooms *r, int room, bool on) {
    uint64_t bit = (uint64_t)1 << room % 64, up = (uint64_t)1 << room / 64 % 64;
    uint64_t *w = &r->word[room / 64], *s = &r->sum[room / 4096];
    *w = on ? *w | bit : *w & ~bit;
    *s = *w ? *s | up : *s & ~up;
}
static uint64_t pack_from(uint64_t word, int bit) { return bit < 64 ? word >> bit << bit : 0; }
/* The least room >= want in the set; -1: none. */
static int rooms_find(const Rooms *r, int want) {
    uint64_t w = pack_from(r->word[want / 64], want % 64);
    if (w) return want / 64 * 64 + __builtin_ctzll(w);
    uint64_t s = pack_from(r->sum[want / 4096], want / 64 % 64 + 1);
    for (int i = want / 4096; i < r->nsum; s = ++i < r->nsum ? r->sum[i] : 0) {
        if (!s) continue;
        int k = i * 64 + __builtin_ctzll(s);
        return k * 64 + __builtin_ctzll(r->word[k]);
    }
    return -1;
}

/* The pieces' numbers by decreasing length, equal lengths by increasing number. */
static int *by_length(const int *len, int n, int room) {
    int *order = xcalloc((size_t)n + 1, sizeof *order), *at = xcalloc((size_t)room + 2, sizeof *at);
    for (int i = 0; i < n; i++) {
        CHECK(len[i] >= 1 && len[i] <= room, "piece %d: %d of %d", i, len[i], room);
        at[room - len[i] + 1]++;
    }
    for (int k = 0; k <= room; k++) at[k + 1] += at[k];
    for (int i = 0; i < n; i++) order[at[room - len[i]]++] = i;
    free(at);
    return order;
}

void pack_make(Pack *p, const int *len, int n, int room) {
    CHECK(n >= 0 && room >= 1 && room <= 1 << 24, "%d pieces, room %d", n, room);
    int *order = by_length(len, n, room), *in = xcalloc((size_t)n + 1, sizeof *in),
        *below = xcalloc((size_t)n + 1, sizeof *below), *top = xcalloc((size_t)room + 1, sizeof *top);
    Rooms r = {.nsum = room / 4096 + 1};
    r.word = xcalloc((size_t)r.nsum * 64, sizeof *r.word);
    r.sum = xcalloc((size_t)r.nsum, sizeof *r.sum);
    *p = (Pack){.n = 0};
    /* top[c] - 1: the window that reached free room c last; below[w] - 1: the window before it */
    for (int i = 0; i < n; i++) {
        int need = len[order[i]], c = rooms_find(&r, need), w;
        if (c < 0) {
            w = p->n++, c = room;
        } else {
            w = top[c] - 1;
            top[c] = below[w];
            if (!top[c]) rooms_set(&r, c, false);
        }
        in[i] = w;
        c -= need;
        if (!c) continue;
        below[w] = top[c];
        top[c] = w + 1;
        rooms_set(&r, c, true);
    }
    p->first = xcalloc((size_t)p->n + 2, sizeof *p->first);
    p->piece = xcalloc((size_t)n + 1, sizeof *p->piece);
    for (int i = 0; i < n; i++) p->first[in[i] + 2]++;
    for (int w = 0; w < p->n; w++) p->first[w + 2] += p->first[w + 1];
    for (int i = 0; i < n; i++) p->piece[p->first[in[i] + 1]++] = order[i];
    free(order), free(in), free(below), free(top), free(r.word), free(r.sum);
}

void pack_free(Pack *p) {
    free(p->first);
    free(p->piece);
    *p = (Pack){0};
}
