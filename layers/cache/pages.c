/* pages.c: lanes of rows in reference-counted pages, which hold bytes: what a row's key and value are the codec
 * knows. */
#include "slot.h"

enum { TOKENS_MAX = 1 << 28 };

/* ---- places ------------------------------------------------------------------------------------------------------*/

bool slot_shape(Slot *s, const KvShape *shape, int nseq, int max_tokens, int max_rows, int P) {
    Lanes *t = &s->t;
    if (rows_together(shape)) P = rows_together(shape);
    *s = (Slot){.t = {.s = *shape, .nseq = nseq, .P = P}, .max_tokens = max_tokens};
    CHECK(!shape->evicts || !shape->window, "rows that evict are kept by no window");
    if (!shape->lanes) return true;
    CHECK(max_tokens <= TOKENS_MAX && max_rows <= TOKENS_MAX && P > 0, "%d tokens, %d rows of a pass, pages of %d",
          max_tokens, max_rows, P);
    int sinks = shape->window ? imin(shape->sinks, max_tokens) : 0, window = imin(shape->window, max_tokens);
    t->s.sinks = sinks;
    t->maxpages = (max_tokens + max_rows) / P + 3;
    s->ring = imin(max_tokens, imax(1, imin(shape->delay, max_tokens)) + max_rows) + 1;
    int lane = t->maxpages; /* pages one lane can hold: a window keeps its sinks, its rows, and those of one pass */
    if (shape->window) lane = imin(lane, (sinks + P - 1) / P + 1 + (window + max_rows) / P + 3);
    if (!rows_together(shape)) return !__builtin_mul_overflow(slot_lanes(s), lane, &t->npages);
    /* in pages are the newest rows alone: those of a document, and of one that begins */
    int all;
    t->npages = 2 * slot_lanes(s);
    return !__builtin_mul_overflow(slot_lanes(s), lane, &t->nblocks) &&
           !__builtin_add_overflow(t->nblocks, t->npages, &all);
}
static size_t pages_all(const Lanes *t) { return (size_t)t->npages + (size_t)t->nblocks; }
static int *take_ints(Arena *a, size_t n, const char *name) { return arena_take(a, n * sizeof(int), name); }
void slot_place_tables(Lanes *t, Arena *a) {
    size_t n = (size_t)t->nseq * (size_t)t->s.lanes, places = pages_all(t) * (size_t)t->P;
    if (!n) return;
    t->pos = take_ints(a, places, "cache positions");
    t->table = take_ints(a, n * (size_t)t->maxpages, "cache table");
    t->s0 = take_ints(a, n, "cache s0");
    t->lo = take_ints(a, n, "cache lo");
    t->hi = take_ints(a, n, "cache hi");
    if (!t->s.evicts) return;
    t->evicted = arena_take(a, (places * sizeof *t->evicted + 3) / 4 * 4,
                            "cache evicted"); /* whole words: it goes over by them */
    t->tail = take_ints(a, n, "cache tail");
}
static Tensor pages_rows_place(const Slot *s, Arena *a) {
    const RowsAs as = rows_as(&s->t.s);
    const Dtype unit = as == ROWS_REAL ? REAL : as == ROWS_BF16 ? BF16 : F32;
    const size_t page = page_bytes(s);
    CHECK(page % dtype_size(unit) == 0 && page / dtype_size(unit) <= INT32_MAX, "pages of %zu bytes", page);
    const int shape[] = {s->t.npages, (int)(page / dtype_size(unit))};
    return s->tier ? tensor_make(NULL, unit, 2, shape) : arena_tensor(a, "cache rows", unit, 2, shape);
}
void slot_place(Slot *s, Arena *rows, Arena *a) {
    Lanes *t = &s->t;
    int n = slot_lanes(s);
    if (n) {
        t->data = pages_rows_place(s, rows);
        s->s0_next = take_ints(a, (size_t)n, "cache s0'");
        s->lo_next = take_ints(a, (size_t)n, "cache lo'");
        s->hi_next = take_ints(a, (size_t)n, "cache hi'");
        s->ref = take_ints(a, pages_all(t), "cache references");
        s->unused = take_ints(a, (size_t)t->npages, "cache free pages");
        if (t->nblocks) {
            const int words = (int)(block_bytes(&t->s) / sizeof(float));
            t->blocks = arena_tensor(rows, "cache blocks", F32, 2, (int[]){t->nblocks, words});
            s->free_blocks = take_ints(a, (size_t)t->nblocks, "cache free blocks");
            if (t->below) t->merged = take_ints(a, (size_t)t->nblocks, "blocks of the slot below");
            if (s->keeps_computed)
                s->computed = take_ints(a, (size_t)n * (size_t)t->maxpages, "cache rows as computed");
        }
        s->read = arena_take(a, sizeof *s->read, "bytes read");
    }
    if (n && t->s.evicts) {
        s->row_at = take_ints(a, (size_t)n * (size_t)s->ring, "cache rows of positions");
        s->leaving = take_ints(a, (size_t)s->ring, "cache rows that expire");
        s->tail_next = take_ints(a, (size_t)n, "cache tail'");
        s->evicts = arena_take(a, (size_t)n * sizeof *s->evicts, "cache evicts");
    }
    if (n && t->s.carry_rows)
        s->carry =
            arena_tensor(rows, "cache carry", REAL, 4, (int[]){t->nseq, t->s.lanes, t->s.carry_rows, t->s.carry});
    if (n && s->queries) {
        const int places = (s->replays ? 1 : t->nseq) * s->queries;
        s->asked = arena_tensor(rows, "queries asked", REAL, 3, (int[]){places, t->s.heads, t->s.kdim});
        s->asked_lse = arena_tensor(rows, "lse of queries asked", REAL, 2, (int[]){places, t->s.heads});
    }
    const size_t pages = pages_all(t);
    if (n && s->policy.read) {
        s->summary = arena_take(a, pages * policy_summary(&s->policy, t->s.kdim) * sizeof(real), "summaries of pages");
        s->newest = arena_take(a, pages * sizeof *s->newest, "newest rows of pages");
        s->oldest = arena_take(a, pages * sizeof *s->oldest, "oldest rows of pages");
        s->summed = arena_take(a, pages * sizeof *s->summed, "pages with summaries");
    }
    if (n && s->chosen && s->keeps) s->kept = arena_take(a, pages * (size_t)t->P * sizeof(real), "kept");
    if (n && s->score_of) s->score = arena_tensor(rows, "cache scores", REAL, 2, (int[]){(int)pages, t->P});
    if (t->s.state) s->state = arena_tensor(rows, "cache state", REAL, 2, (int[]){t->nseq, t->s.state});
    if (n && t->s.last)
        s->last = arena_tensor(rows, "newest rows before the head", REAL, 2, (int[]){t->nseq, t->s.last});
    s->there.data = t->data;
}

void slot_changed(const Slot *s, const void *p, size_t n) {
    if (s->mirror) dirty_copy_changed(s->mirror, p, n);
}
void slot_set(const Slot *s, int *word, int value) {
    if (*word == value) return;
    *word = value;
    slot_changed(s, word, sizeof *word);
}

void slot_clear(Slot *s) {
    Lanes *t = &s->t;
    size_t n = (size_t)slot_lanes(s);
    for (size_t i = 0; i < n; i++) {
        t->s0[i] = t->lo[i] = t->hi[i] = s->s0_next[i] = s->lo_next[i] = s->hi_next[i] = 0;
        for (int p = 0; p < t->maxpages; p++) t->table[i * (size_t)t->maxpages + (size_t)p] = -1;
        for (int p = 0; s->computed && p < t->maxpages; p++) *slot_computed(s, (int)i, p * t->P) = -1;
        if (t->s.evicts) t->tail[i] = s->tail_next[i] = 0, s->evicts[i] = false;
    }
    int *const lanes[] = {t->s0, t->lo, t->hi, t->tail}; /* of the table kernels read the entries of rows alone */
    for (size_t i = 0; n && i < 4; i++)
        if (lanes[i]) slot_changed(s, lanes[i], n * sizeof(int));
    /* Rows are carried on without a look at how many there are: an op reads them, which has to be of what is written.
     */
    if (s->dev && present(s->carry)) device_zero(s->dev, s->carry.p, tensor_bytes(s->carry));
    if (s->dev && present(s->score)) device_zero(s->dev, s->score.p, tensor_bytes(s->score)); /* read as a whole */
    if (s->dev && present(s->last)) device_zero(s->dev, s->last.p, tensor_bytes(s->last));
    if (s->dev && s->queries) { /* forks copy what nobody may have written */
        device_zero(s->dev, s->asked.p, tensor_bytes(s->asked));
        device_zero(s->dev, s->asked_lse.p, tensor_bytes(s->asked_lse));
    }
    if (n) *s->read = 0;
    s->nunused = s->nfree_blocks = 0;
    for (int p = t->npages - 1; p >= 0; p--) s->ref[p] = 0, s->unused[s->nunused++] = p;
    for (int p = t->nblocks - 1; p >= 0; p--)
        s->ref[t->npages + p] = 0, s->free_blocks[s->nfree_blocks++] = t->npages + p;
}

/* ---- pages -------------------------------------------------------------------------------------------------------*/

int *slot_entry(const Slot *s, int lane, int row) {
    return &s->t.table[(size_t)lane * (size_t)s->t.maxpages + (size_t)(row / s->t.P % s->t.maxpages)];
}
static void copy_bytes(const Slot *s, void *to, const void *from, size_t n) {
    if (s->dev)
        device_copy(s->dev, to, from, n);
    else
        memcpy(to, from, n);
}
int slot_take_page(Slot *s, bool block) {
    int *const left = block ? &s->nfree_blocks : &s->nunused;
    CHECK(*left > 0, "no free page of %d, or block of %d", s->t.npages, s->t.nblocks);
    const int page = (block ? s->free_blocks : s->unused)[--*left];
    s->ref[page] = 1;
    if (s->summed) s->summed[page] = false;
    return page;
}
void slot_leave_page(Slot *s, int *entry) {
    const int page = *entry;
    if (--s->ref[page] == 0 && page < s->t.npages) s->unused[s->nunused++] = page;
    if (s->ref[page] == 0 && page >= s->t.npages) s->free_blocks[s->nfree_blocks++] = page;
    slot_set(s, entry, -1);
}
void slot_bytes(const Slot *s, void *cache, char *host, size_t n, bool save) {
    if (!s->dev)
        save ? memcpy(host, cache, n) : memcpy(cache, host, n);
    else
        save ? device_read(s->dev, host, cache, n) : device_write(s->dev, cache, host, n);
}
/* Rows from one place to another, of a page at most. */
static void copy_rows(const Slot *s, size_t to, size_t from, size_t n) {
    if (s->tier)
        tier_copy(s, to, from, n);
    else
        copy_bytes(s, (char *)s->t.data.p + to, (char *)s->t.data.p + from, n);
}
void slot_own_page(Slot *s, int lane, int row) {
    int *e = slot_entry(s, lane, row), old = *e, P = s->t.P;
    const bool block = old >= s->t.npages;
    if (old >= 0 && s->ref[old] == 1) return;
    slot_set(s, e, slot_take_page(s, block));
    if (old < 0) return;
    if (block)
        memcpy(lanes_block(&s->t, *e), lanes_block(&s->t, old), block_bytes(&s->t.s));
    else
        copy_rows(s, (size_t)*e * page_bytes(s), (size_t)old * page_bytes(s), page_bytes(s));
    size_t to = (size_t)*e * (size_t)P, from = (size_t)old * (size_t)P, n = (size_t)P;
    if (present(s->score)) copy_bytes(s, R(s->score) + to, R(s->score) + from, n * sizeof(real));
    if (s->kept) memcpy(s->kept + to, s->kept + from, n * sizeof(real));
    slot_changed(s, memcpy(s->t.pos + to, s->t.pos + from, n * sizeof(int)), n * sizeof(int));
    if (s->t.evicted) slot_changed(s, memcpy(s->t.evicted + to, s->t.evicted + from, n), n);
    s->ref[old]--;
}

/* Whether entry e of a lane's table holds rows of from..to-1. */
static bool pages_holds(const Lanes *t, int e, int from, int to) {
    if (from >= to) return false;
    int first = from / t->P, ahead = (e - first % t->maxpages + t->maxpages) % t->maxpages;
    return ahead <= (to - 1) / t->P - first;
}
void slot_show(Slot *s, int lane, int s0, int lo, int hi) {
    Lanes *t = &s->t;
    int *const table = &t->table[(size_t)lane * (size_t)t->maxpages];
    if (s0 == t->s0[lane] && lo == t->lo[lane] &&
        lo < hi) { /* only pages after the last row, which follow it, can go */
        for (int e = (hi - 1) / t->P + 1, n = 1; n < t->maxpages; e++, n++) {
            int *page = &table[e % t->maxpages];
            if (*page < 0 || pages_holds(t, e % t->maxpages, s0, imin(s0 + t->s.sinks, lo))) break;
            slot_leave_page(s, page);
        }
    } else {
        for (int e = 0; e < t->maxpages; e++)
            if (s->computed && !pages_holds(t, e, lo, hi) && *slot_computed(s, lane, e * t->P) >= 0)
                slot_leave_page(s, slot_computed(s, lane, e * t->P));
        for (int e = 0; e < t->maxpages; e++)
            if (table[e] >= 0 && !pages_holds(t, e, lo, hi) && !pages_holds(t, e, s0, imin(s0 + t->s.sinks, lo)))
                slot_leave_page(s, &table[e]);
    }
    slot_set(s, &t->s0[lane], s->s0_next[lane] = s0);
    slot_set(s, &t->lo[lane], s->lo_next[lane] = lo);
    slot_set(s, &t->hi[lane], s->hi_next[lane] = hi);
    if (t->s.evicts) slot_set(s, &t->tail[lane], s->tail_next[lane]), s->evicts[lane] = false;
}

void slot_share(Slot *s, int from, int to) {
    Lanes *t = &s->t;
    for (int h = 0; h < t->s.lanes; h++) {
        int a = from * t->s.lanes + h, b = to * t->s.lanes + h;
        slot_set(s, &t->s0[b], s->s0_next[b] = t->s0[a]);
        slot_set(s, &t->lo[b], s->lo_next[b] = t->lo[a]);
        slot_set(s, &t->hi[b], s->hi_next[b] = t->hi[a]);
        if (t->s.evicts) {
            slot_set(s, &t->tail[b], s->tail_next[b] = t->tail[a]);
            memcpy(slot_row_at(s, b, 0), slot_row_at(s, a, 0), (size_t)s->ring * sizeof(int));
        }
        for (int e = 0; e < t->maxpages; e++) {
            int page = t->table[(size_t)a * (size_t)t->maxpages + (size_t)e];
            slot_set(s, &t->table[(size_t)b * (size_t)t->maxpages + (size_t)e], page);
            if (page >= 0) s->ref[page]++;
            if (!s->computed) continue;
            page = *slot_computed(s, b, e * t->P) = *slot_computed(s, a, e * t->P);
            if (page >= 0) s->ref[page]++;
        }
    }
    size_t n = (size_t)t->s.state;
    if (n) copy_bytes(s, R(s->state) + (size_t)to * n, R(s->state) + (size_t)from * n, n * sizeof(real));
    n = present(s->last) ? (size_t)t->s.last : 0;
    if (n) copy_bytes(s, R(s->last) + (size_t)to * n, R(s->last) + (size_t)from * n, n * sizeof(real));
    Tensor *const asked[] = {&s->asked, &s->asked_lse};
    for (int i = 0; i < 2 && s->queries && !s->replays; i++) {
        const size_t bytes = tensor_bytes(*asked[i]) / (size_t)t->nseq;
        char *p = asked[i]->p;
        copy_bytes(s, p + (size_t)to * bytes, p + (size_t)from * bytes, bytes);
    }
    n = carried(&t->s);
    if (n) copy_bytes(s, R(s->carry) + (size_t)to * n, R(s->carry) + (size_t)from * n, n * sizeof(real));
}

/* ---- rows --------------------------------------------------------------------------------------------------------*/

int *slot_row_at(const Slot *s, int lane, int pos) {
    return &s->row_at[(size_t)lane * (size_t)s->ring + (size_t)(pos % s->ring)];
}
size_t slot_place_of(const Slot *s, int lane, int row) {
    return (size_t)*slot_entry(s, lane, row) * (size_t)s->t.P + (size_t)(row % s->t.P);
}
size_t slot_key(const Slot *s, size_t place) {
    size_t P = (size_t)s->t.P;
    CHECK(place / P < (size_t)s->t.npages, "a row of block %zu alone", place / P);
    return place / P * page_bytes(s) + place % P * key_bytes(&s->t.s);
}
size_t slot_value(const Slot *s, size_t place) {
    size_t P = (size_t)s->t.P;
    return place / P * page_bytes(s) + P * key_bytes(&s->t.s) + place % P * value_bytes(&s->t.s);
}
void slot_read(const Slot *s, size_t at, void *to, size_t n) {
    if (s->tier)
        tier_read(s, at, to, n);
    else
        slot_bytes(s, (char *)s->t.data.p + at, to, n, true);
}
void slot_write(const Slot *s, size_t at, const void *from, size_t n) {
    if (s->tier)
        tier_write(s, at, from, n);
    else
        slot_bytes(s, (char *)s->t.data.p + at, (char *)from, n, false);
}
void slot_set_pos(const Slot *s, size_t at, int pos) {
    s->t.pos[at] = pos;
    slot_changed(s, &s->t.pos[at], sizeof *s->t.pos);
}
void slot_set_evicted(const Slot *s, size_t at, bool evicted) {
    s->t.evicted[at] = evicted;
    slot_changed(s, &s->t.evicted[at], sizeof *s->t.evicted);
}

/* Rows that move from place to place on a device, where they are moved together, as elements of Lanes.data: all are
 * read, by way of scratch, before one is written. */
enum { MOVES = 512 };
struct Moves {
    size_t to[MOVES], from[MOVES], number[MOVES], dense[MOVES];
    int n;
};
static size_t score_byte(const Slot *s, size_t place) { return (void)s, place * sizeof(real); }
static void move_part(Run *r, const Slot *s, struct Moves *m, Tensor data, size_t (*byte_of)(const Slot *, size_t),
                      size_t bytes) {
    const size_t unit = dtype_size(data.dtype), w = bytes / unit;
    Mark mark = arena_mark(r->scratch);
    Tensor dense = scratch_tensor(r, "moved rows", data.dtype, 2, (int[]){MOVES, (int)w});
    for (int i = 0; i < m->n; i++) m->dense[i] = (size_t)i * w, m->number[i] = byte_of(s, m->from[i]) / unit;
    r->ops->move(r, dense, m->dense, data, m->number, m->n, (int)w);
    for (int i = 0; i < m->n; i++) m->number[i] = byte_of(s, m->to[i]) / unit;
    r->ops->move(r, data, m->number, dense, m->dense, m->n, (int)w);
    arena_release(r->scratch, mark);
}
void slot_moves_done(Cache *c, const Slot *s) {
    struct Moves *m = c->moves;
    if (!m || !m->n) return;
    const size_t key = key_bytes(&s->t.s), value = value_bytes(&s->t.s);
    Run r = run_make(c->dev, &c->moving);
    move_part(&r, s, m, s->t.data, slot_key, key);
    if (value) move_part(&r, s, m, s->t.data, slot_value, value);
    if (s->tier) tier_touched(s, (size_t)m->n * (key + value), (size_t)m->n * (key + value));
    if (present(s->score)) move_part(&r, s, m, s->score, score_byte, sizeof(real));
    m->n = 0;
}
void slot_move(Cache *c, Slot *s, size_t to, size_t from) {
    struct Moves *m = c->moves;
    slot_set_pos(s, to, s->t.pos[from]);
    if (s->summed) s->summed[to / (size_t)s->t.P] = false;
    if (s->kept) s->kept[to] = s->kept[from];
    if (!s->dev) {
        copy_rows(s, slot_key(s, to), slot_key(s, from), key_bytes(&s->t.s));
        if (!s->t.s.alias) copy_rows(s, slot_value(s, to), slot_value(s, from), value_bytes(&s->t.s));
        if (present(s->score)) R(s->score)[to] = R(s->score)[from];
        return;
    }
    if (m->n && m->to[m->n - 1] == to) { /* what had come there has to go at once */
        m->from[m->n - 1] = from;
        return;
    }
    if (m->n == MOVES) slot_moves_done(c, s);
    m->to[m->n] = to, m->from[m->n++] = from;
}
bool slot_moves_open(Cache *c, Err *e) {
    c->moves = xcalloc(1, sizeof *c->moves);
    for (int i = 0; i < c->nslots; i++) {
        c->moves->n = c->slot[i].t.s.evicts || c->slot[i].chosen ? MOVES : 0;
        slot_moves_done(c, &c->slot[i]);
    }
    c->moves->n = 0;
    return arena_open_at(&c->moving, device_memory(c->dev, false), "moves of the cache", c->moving.peak, false, e);
}
