/* cache.c: lanes of rows in reference-counted pages, state blobs.
 *
 * What places rows (Slot.t but for the rows) the host alone writes. A device has a copy, which kv_begin brings up to
 * date: whatever changes between two passes, and behind a pass's kernels, goes over in one piece (ops/mirror.h).
 *
 * Where rows retire, those that no later query sees leave their lane when the pass ends, and the newest rows move into
 * their places: a lane is as long as what it shows, and no row moves but into a place that fell free. */
#include "cache.h"
#include "../ops/host.h"

enum { PAGE_ROWS = 64, TOKENS_MAX = 1 << 28 };
struct Slot {
    Device *dev; /* NULL: rows and states lie with the host */
    Lanes t;
    Lanes there;                                  /* of a device: the same as its kernels see it */
    Mirror *mirror;                               /* what of t that lacks; NULL: the host's memory */
    int *s0_next, *lo_next, *hi_next, *tail_next; /* (nseq*lanes) take effect in kv_end */
    bool *retires;                                /* (nseq*lanes) the pass retires the tail */
    int *ref;                                     /* (npages) tables that point to the page */
    int *unused, nunused;                         /* stack of free pages */
    Tensor state;                                 /* (nseq,state) */
    Tensor carry;                                 /* (nseq,lanes,carry_rows,carry) */
    int max_tokens;
};

static int lanes_of(const Slot *s) { return s->t.nseq * s->t.s.lanes; }

static bool slot_shape(Slot *s, const KvShape *shape, int nseq, int max_tokens, int max_rows, int P) {
    Lanes *t = &s->t;
    *s = (Slot){.t = {.s = *shape, .nseq = nseq, .P = P}, .max_tokens = max_tokens};
    CHECK(!shape->retire || !shape->window, "rows that retire are kept by no window");
    if (!shape->lanes) return true;
    CHECK(max_tokens <= TOKENS_MAX && max_rows <= TOKENS_MAX && P > 0, "%d tokens, %d rows of a pass, pages of %d",
          max_tokens, max_rows, P);
    int sinks = shape->window ? imin(shape->sinks, max_tokens) : 0, window = imin(shape->window, max_tokens);
    t->s.sinks = sinks;
    t->maxpages = (max_tokens + max_rows) / P + 3;
    int lane = t->maxpages; /* pages one lane can hold: a window keeps its sinks, its rows, and those of one pass */
    if (shape->window) lane = imin(lane, (sinks + P - 1) / P + 1 + (window + max_rows) / P + 3);
    return !__builtin_mul_overflow(lanes_of(s), lane, &t->npages);
}
static int *take_ints(Arena *a, size_t n, const char *name) { return arena_take(a, n * sizeof(int), name); }
/* What a device has a copy of. Whole words: that goes over by them. */
static void tables_place(Lanes *t, Arena *a) {
    size_t n = (size_t)t->nseq * (size_t)t->s.lanes, places = (size_t)t->npages * (size_t)t->P;
    if (!n) return;
    t->pos = take_ints(a, places, "cache positions");
    t->table = take_ints(a, n * (size_t)t->maxpages, "cache table");
    t->s0 = take_ints(a, n, "cache s0");
    t->lo = take_ints(a, n, "cache lo");
    t->hi = take_ints(a, n, "cache hi");
    if (!t->s.retire) return;
    t->gone = arena_take(a, (places * sizeof *t->gone + 3) / 4 * 4, "cache gone");
    t->tail = take_ints(a, n, "cache tail");
}
static void slot_place(Slot *s, Arena *rows, Arena *a) {
    Lanes *t = &s->t;
    int n = lanes_of(s), width = row_width(&t->s);
    if (n) {
        t->data = arena_tensor(rows, "cache rows", t->s.narrow ? BF16 : REAL, 2, (int[]){t->npages, t->P * width});
        s->s0_next = take_ints(a, (size_t)n, "cache s0'");
        s->lo_next = take_ints(a, (size_t)n, "cache lo'");
        s->hi_next = take_ints(a, (size_t)n, "cache hi'");
        s->ref = take_ints(a, (size_t)t->npages, "cache references");
        s->unused = take_ints(a, (size_t)t->npages, "cache free pages");
    }
    if (n && t->s.retire) {
        s->tail_next = take_ints(a, (size_t)n, "cache tail'");
        s->retires = arena_take(a, (size_t)n * sizeof *s->retires, "cache retires");
    }
    if (n && t->s.carry_rows)
        s->carry =
            arena_tensor(rows, "cache carry", REAL, 4, (int[]){t->nseq, t->s.lanes, t->s.carry_rows, t->s.carry});
    if (t->s.state) s->state = arena_tensor(rows, "cache state", REAL, 2, (int[]){t->nseq, t->s.state});
    s->there.data = t->data;
}
/* The tables of all slots first: of a device as far from its region's begin as the host's from theirs. Returns their
 * bytes. */
static size_t cache_place(Cache *c) {
    Arena *host = c->dev ? &c->tables : &c->mem;
    for (int i = 0; i < c->nslots; i++) tables_place(&c->slot[i].t, host);
    size_t bytes = host->used;
    if (c->dev) {
        for (int i = 0; i < c->nslots; i++) c->slot[i].there = c->slot[i].t, tables_place(&c->slot[i].there, &c->mem);
        CHECK(c->mem.used == bytes, "%zu bytes of tables, the host's are %zu", c->mem.used, bytes);
        c->words = arena_take(&c->mem, mirror_bytes(bytes), "words of tables");
    }
    for (int i = 0; i < c->nslots; i++) slot_place(&c->slot[i], &c->mem, host);
    return bytes;
}

/* Every write to the tables is one of these: of words that were written before, as all but those of new rows, and of
 * what else has changed. */
static void changed(const Slot *s, const void *p, size_t n) {
    if (s->mirror) mirror_changed(s->mirror, p, n);
}
static void set(const Slot *s, int *word, int value) {
    if (*word == value) return;
    *word = value;
    changed(s, word, sizeof *word);
}

static void slot_clear(Slot *s) {
    Lanes *t = &s->t;
    size_t n = (size_t)lanes_of(s);
    for (size_t i = 0; i < n; i++) {
        t->s0[i] = t->lo[i] = t->hi[i] = s->s0_next[i] = s->lo_next[i] = s->hi_next[i] = 0;
        for (int p = 0; p < t->maxpages; p++) t->table[i * (size_t)t->maxpages + (size_t)p] = -1;
        if (t->s.retire) t->tail[i] = s->tail_next[i] = 0, s->retires[i] = false;
    }
    int *const lanes[] = {t->s0, t->lo, t->hi, t->tail}; /* of the table kernels read the entries of rows alone */
    for (size_t i = 0; n && i < 4; i++)
        if (lanes[i]) changed(s, lanes[i], n * sizeof(int));
    /* Rows are carried on without a look at how many there are: an op reads them, which has to be of what is written.
     */
    if (s->dev && present(s->carry)) device_zero(s->dev, s->carry.p, tensor_bytes(s->carry));
    s->nunused = 0;
    for (int p = t->npages - 1; p >= 0; p--) s->ref[p] = 0, s->unused[s->nunused++] = p;
}

Slot *kv_slot(const Cache *c, int i) {
    CHECK(i >= 0 && i < c->nslots, "slot %d of %d", i, c->nslots);
    return &c->slot[i];
}

static int *entry(const Slot *s, int lane, int row) {
    return &s->t.table[(size_t)lane * (size_t)s->t.maxpages + (size_t)(row / s->t.P % s->t.maxpages)];
}
/* Place of number i of a page. */
static char *page_data(const Slot *s, int page, size_t i) {
    return (char *)s->t.data.p + ((size_t)page * (size_t)s->t.P * (size_t)row_width(&s->t.s) + i) * row_number(&s->t.s);
}

static void copy_bytes(const Slot *s, void *to, const void *from, size_t n) {
    if (s->dev)
        device_copy(s->dev, to, from, n);
    else
        memcpy(to, from, n);
}
/* Make the page of a row present and this lane's alone. The pool holds every lane's worst case, so it cannot run dry.
 */
static void own_page(Slot *s, int lane, int row) {
    int *e = entry(s, lane, row), old = *e, P = s->t.P;
    if (old >= 0 && s->ref[old] == 1) return;
    CHECK(s->nunused > 0, "no free page of %d", s->t.npages);
    set(s, e, s->unused[--s->nunused]);
    s->ref[*e] = 1;
    if (old < 0) return;
    copy_bytes(s, page_data(s, *e, 0), page_data(s, old, 0),
               (size_t)P * (size_t)row_width(&s->t.s) * row_number(&s->t.s));
    size_t to = (size_t)*e * (size_t)P, from = (size_t)old * (size_t)P, n = (size_t)P;
    changed(s, memcpy(s->t.pos + to, s->t.pos + from, n * sizeof(int)), n * sizeof(int));
    if (s->t.gone) changed(s, memcpy(s->t.gone + to, s->t.gone + from, n), n);
    s->ref[old]--;
}

bool kv_begin(Cache *c, const Batch *b, Err *e) {
    for (int q = 0; q < b->B; q++) {
        int far = -1; /* of all rows, not the last: a document that ends in this pass may be accepted in part */
        CHECK(b->seq[q] >= 0 && b->seq[q] < c->nseq, "sequence %d of %d", b->seq[q], c->nseq);
        for (int row = b->off[q]; row < b->off[q + 1]; row++) far = imax(far, b->pos[row]);
        for (int i = 0; i < c->nslots; i++)
            if (far >= c->slot[i].max_tokens)
                return err_input(
                    e, "sequence %d: position %d does not fit the cache of %d tokens; open it with a longer context", q,
                    far, c->slot[i].max_tokens);
    }
    for (int i = 0; i < c->nslots; i++)
        for (int q = 0; q < b->B; q++)
            for (int h = 0; h < c->slot[i].t.s.lanes; h++) {
                Slot *s = &c->slot[i];
                int lane = b->seq[q] * s->t.s.lanes + h, hi = s->t.hi[lane], n = b->off[q + 1] - b->off[q];
                CHECK(hi + n - s->t.s0[lane] <= (s->t.maxpages - 1) * s->t.P, "lane of %d rows, %d more",
                      hi - s->t.s0[lane], n);
                for (int row = hi; row < hi + n; row = (row / s->t.P + 1) * s->t.P) own_page(s, lane, row);
            }
    if (c->mirror) mirror_flush(c->mirror);
    return true;
}

void kv_attend(Run *r, const Slot *s, const Kv *pass, Tensor o, Tensor lse, Tensor q, Look look, bool merge) {
    CHECK(!s->mirror || measuring(r) || !mirror_behind(s->mirror), "tables that the device has not seen");
    r->ops->attend_lanes(r, o, lse, q, kv_lanes_there(s), pass, look, merge);
}

/* Places of the pool: page * P + place in the page. */
static size_t place(const Slot *s, int lane, int row) {
    return (size_t)*entry(s, lane, row) * (size_t)s->t.P + (size_t)(row % s->t.P);
}
static char *key_of(const Slot *s, size_t place) {
    size_t P = (size_t)s->t.P;
    return page_data(s, (int)(place / P), place % P * (size_t)s->t.s.kdim);
}
static char *value_of(const Slot *s, size_t place) {
    size_t P = (size_t)s->t.P;
    return page_data(s, (int)(place / P), P * (size_t)s->t.s.kdim + place % P * (size_t)s->t.s.vdim);
}
/* Of a place, whatever was there: nobody wrote it before its first row. */
static void set_pos(const Slot *s, size_t at, int pos) {
    s->t.pos[at] = pos;
    changed(s, &s->t.pos[at], sizeof *s->t.pos);
}
static void set_gone(const Slot *s, size_t at, bool gone) {
    s->t.gone[at] = gone;
    changed(s, &s->t.gone[at], sizeof *s->t.gone);
}
/* Numbers of Lanes.data before the key and the value of a place. */
static size_t key_number(const Slot *s, size_t place) {
    size_t P = (size_t)s->t.P, page = place / P * P * (size_t)row_width(&s->t.s);
    return page + place % P * (size_t)s->t.s.kdim;
}
static size_t value_number(const Slot *s, size_t place) {
    size_t P = (size_t)s->t.P, page = place / P * P * (size_t)row_width(&s->t.s);
    return page + P * (size_t)s->t.s.kdim + place % P * (size_t)s->t.s.vdim;
}

/* Rows that move from place to place on a device, where they are moved together: all are read, by way of scratch,
 * before one is written. The places that they leave and come to belong to their own lanes meanwhile. */
enum { MOVES = 512 };
struct Moves {
    size_t to[MOVES], from[MOVES], number[MOVES], dense[MOVES];
    int n;
};
static void move_part(Run *r, const Slot *s, struct Moves *m, Tensor dense, size_t (*number_of)(const Slot *, size_t),
                      int w) {
    for (int i = 0; i < m->n; i++) m->dense[i] = (size_t)i * (size_t)w, m->number[i] = number_of(s, m->from[i]);
    r->ops->move(r, dense, m->dense, s->t.data, m->number, m->n, w);
    for (int i = 0; i < m->n; i++) m->number[i] = number_of(s, m->to[i]);
    r->ops->move(r, s->t.data, m->number, dense, m->dense, m->n, w);
}
static void moves_done(Cache *c, const Slot *s) {
    struct Moves *m = c->moves;
    if (!m || !m->n) return;
    Run r = run_make(c->dev, &c->moving);
    Mark mark = arena_mark(r.scratch);
    const int n[] = {MOVES, imax(s->t.s.kdim, s->t.s.vdim)};
    Tensor dense = scratch_tensor(&r, "moved rows", s->t.data.dtype, 2, n);
    move_part(&r, s, m, dense, key_number, s->t.s.kdim);
    if (!s->t.s.alias) move_part(&r, s, m, dense, value_number, s->t.s.vdim);
    m->n = 0;
    arena_release(r.scratch, mark);
}
/* A row that is stored moves from one place to another. */
static void move(Cache *c, Slot *s, size_t to, size_t from) {
    struct Moves *m = c->moves;
    set_pos(s, to, s->t.pos[from]);
    if (!s->dev) {
        memcpy(key_of(s, to), key_of(s, from), (size_t)s->t.s.kdim * row_number(&s->t.s));
        if (!s->t.s.alias) memcpy(value_of(s, to), value_of(s, from), (size_t)s->t.s.vdim * row_number(&s->t.s));
        return;
    }
    if (m->n && m->to[m->n - 1] == to) { /* what had come there has to go at once */
        m->from[m->n - 1] = from;
        return;
    }
    if (m->n == MOVES) moves_done(c, s);
    m->to[m->n] = to, m->from[m->n++] = from;
}
/* Of the device's scratch that moves_done takes. */
static bool moves_open(Cache *c, Err *e) {
    c->moves = xcalloc(1, sizeof *c->moves);
    for (int i = 0; i < c->nslots; i++) {
        c->moves->n = c->slot[i].t.s.retire ? MOVES : 0;
        moves_done(c, &c->slot[i]);
    }
    c->moves->n = 0;
    return arena_open_at(&c->moving, device_memory(c->dev, false), "moves of the cache", c->moving.peak, false, e);
}

/* Whether row j of the pass, of which those before `end` are accepted, retires its predecessor. */
static bool retires(const Kv *pass, int h, int j, int end) {
    return pass->s.retire && j < end && R(pass->gone)[(size_t)j * (size_t)pass->s.lanes + (size_t)h] != 0;
}
/* Numbers that one op moves for all lanes, not as they are met. */
typedef struct {
    size_t *to, *from;
    int n;
} Pieces;
static Pieces pieces(Run *r, int most) {
    size_t bytes = (size_t)most * sizeof(size_t);
    return (Pieces){arena_take(r->host, bytes, "places"), arena_take(r->host, bytes, "rows to store"),
                    measuring(r) ? most : 0};
}
static void piece(Pieces *p, size_t to, size_t from) { p->to[p->n] = to, p->from[p->n++] = from; }
/* Rows of a pass in a slot, and what is carried on: by way of `old`, the rows that stay, and the pass's. */
typedef struct {
    Pieces key, value, old, stay, carry;
    Tensor kept;
} Stored;
static Stored stored_begin(Run *r, const Slot *s) {
    const KvShape *k = &s->t.s;
    int n = r->batch->N * k->lanes, kept = r->batch->B * k->lanes * k->carry_rows;
    Stored d = {pieces(r, n), pieces(r, n), pieces(r, kept), pieces(r, kept), pieces(r, kept), ABSENT};
    if (kept) d.kept = SCRATCH(r, "rows carried on", kept, k->carry);
    return d;
}
/* Row `row` of a lane becomes row `from` of the pass's keys and values, when they are moved. */
static size_t stored_put(Stored *d, Slot *s, int lane, int row, size_t from, int pos) {
    size_t at = place(s, lane, row);
    piece(&d->key, key_number(s, at), from * (size_t)s->t.s.kdim);
    piece(&d->value, value_number(s, at), from * (size_t)s->t.s.vdim);
    set_pos(s, at, pos);
    return at;
}
static void stored_end(Run *r, Slot *s, const Kv *pass, Stored *d) {
    const KvShape *k = &s->t.s;
    if (!k->lanes) return;
    r->ops->move(r, s->t.data, d->key.to, pass->k, d->key.from, d->key.n, k->kdim);
    if (!k->alias) r->ops->move(r, s->t.data, d->value.to, pass->v, d->value.from, d->value.n, k->vdim);
    if (!present(d->kept)) return;
    r->ops->move(r, d->kept, d->old.to, s->carry, d->old.from, d->old.n, k->carry);
    r->ops->move(r, s->carry, d->stay.to, d->kept, d->stay.from, d->stay.n, k->carry);
    r->ops->move(r, s->carry, d->carry.to, pass->carry, d->carry.from, d->carry.n, k->carry);
}
/* The newest carry_rows rows of what was carried and the pass's rows from..end-1. */
static void carry_on(const Slot *s, int seq, int h, int from, int end, Stored *d) {
    size_t C = (size_t)s->t.s.carry, K = (size_t)s->t.s.lanes;
    int rows = s->t.s.carry_rows, n = imin(end - from, rows);
    size_t at = ((size_t)seq * K + (size_t)h) * (size_t)rows, newest = ((size_t)(end - n) * K + (size_t)h);
    for (int i = 0; i < rows - n; i++) {
        size_t by = (size_t)d->old.n * C;
        piece(&d->old, by, (at + (size_t)(n + i)) * C);
        piece(&d->stay, (at + (size_t)i) * C, by);
    }
    for (int i = 0; i < n; i++) piece(&d->carry, (at + (size_t)(rows - n + i)) * C, (newest + (size_t)i * K) * C);
}

static void append(const Run *r, Slot *s, const Kv *pass, const int *accept, Stored *d) {
    const Batch *b = r->batch;
    int K = s->t.s.lanes, delay = s->t.s.delay;
    for (int q = 0; q < b->B; q++) {
        int from = b->off[q], end = accept ? from + accept[q] : b->off[q + 1];
        if (from == end) continue;
        bool fresh =
            b->first[end - 1] >= 0; /* the last row's document began in this pass: nothing older is looked at again */
        if (fresh) from = b->first[end - 1];
        for (int h = 0; h < K; h++) {
            int lane = b->seq[q] * K + h, w = s->t.hi[lane];
            if (s->t.s.retire) s->retires[lane] = !fresh && retires(pass, h, from, end);
            if (s->t.s.carry_rows) carry_on(s, b->seq[q], h, from, end, d);
            s->s0_next[lane] = fresh ? w : s->t.s0[lane];
            s->lo_next[lane] = fresh ? w : s->t.lo[lane];
            for (int j = from; j < end; j++) {
                size_t row = (size_t)j * (size_t)K + (size_t)h;
                bool gone = retires(pass, h, j + 1, end);
                if (gone && b->pos[end - 1] + 1 - b->pos[j] > delay) continue; /* no later query sees it */
                size_t at = stored_put(d, s, lane, w++, row, b->pos[j]);
                if (s->t.s.retire) set_gone(s, at, gone), s->tail_next[lane] = w - 1;
            }
            s->hi_next[lane] = w;
        }
    }
}

void kv_append(Run *r, Slot *s, const Kv *pass, const int *accept) {
    RunMark mark = run_mark(r);
    Stored d = stored_begin(r, s);
    if (!measuring(r)) append(r, s, pass, accept, &d);
    stored_end(r, s, pass, &d);
    run_release(r, mark);
}

/* Whether entry e of a lane's table holds rows of from..to-1. */
static bool holds(const Lanes *t, int e, int from, int to) {
    if (from >= to) return false;
    int first = from / t->P, ahead = (e - first % t->maxpages + t->maxpages) % t->maxpages;
    return ahead <= (to - 1) / t->P - first;
}
/* Rows of a lane become visible up to hi; every page outside the visible rows is given back. */
static void settle(Slot *s, int lane, int s0, int lo, int hi) {
    Lanes *t = &s->t;
    for (int e = 0; e < t->maxpages; e++) {
        int *page = &t->table[(size_t)lane * (size_t)t->maxpages + (size_t)e];
        if (*page < 0 || holds(t, e, lo, hi) || holds(t, e, s0, imin(s0 + t->s.sinks, lo))) continue;
        if (--s->ref[*page] == 0) s->unused[s->nunused++] = *page;
        set(s, page, -1);
    }
    set(s, &t->s0[lane], s->s0_next[lane] = s0);
    set(s, &t->lo[lane], s->lo_next[lane] = lo);
    set(s, &t->hi[lane], s->hi_next[lane] = hi);
    if (t->s.retire) set(s, &t->tail[lane], s->tail_next[lane]), s->retires[lane] = false;
}

/* Rows of lo..hi-1 that a query at position `next` and later ones do not see leave; the last rows move into their
 * places. Returns the new hi. Without a delay only the tail of before the pass can be such a row. */
static int expire(Cache *c, Slot *s, int lane, int lo, int hi, int next) {
    Lanes *t = &s->t;
    bool tail = s->retires[lane];
    if (tail) {
        own_page(s, lane, t->tail[lane]);
        set_gone(s, place(s, lane, t->tail[lane]), true);
    }
    for (int row = t->s.delay ? lo : tail ? t->tail[lane] : hi; row < hi;) {
        size_t at = place(s, lane, row);
        if (!t->gone[at] || next - t->pos[at] <= t->s.delay) {
            row++;
            continue;
        }
        if (--hi == row) break;
        own_page(s, lane, row);
        at = place(s, lane, row);
        size_t last = place(s, lane, hi);
        move(c, s, at, last);
        set_gone(s, at, t->gone[last]);
        if (s->tail_next[lane] == hi) s->tail_next[lane] = row;
    }
    return hi;
}

static void end(Cache *c, Slot *s, const Batch *b, const int *accept) {
    int lanes = s->t.s.lanes;
    /* Pages are given back when all rows have moved: until then what is read stays what it was. */
    for (int settles = 0; settles < 2; settles++) {
        for (int i = 0; i < b->B * lanes; i++) {
            int q = i / lanes, lane = b->seq[q] * lanes + i % lanes, lo = s->lo_next[lane], hi = s->hi_next[lane];
            if (b->off[q] == b->off[q + 1]) continue;
            int to = accept ? b->off[q] + accept[q] : b->off[q + 1];
            bool stored = to > b->off[q];
            if (!settles) {
                if (s->t.s.retire && stored) s->hi_next[lane] = expire(c, s, lane, lo, hi, b->pos[to - 1] + 1);
                continue;
            }
            /* the next query is one position on: of a window it sees the newest window-1 rows */
            if (s->t.s.window && stored) lo = imax(lo, hi - (s->t.s.window - 1));
            settle(s, lane, s->s0_next[lane], lo, hi);
        }
        moves_done(c, s);
    }
}
void kv_end(Cache *c, const Batch *b, const int *accept) {
    for (int i = 0; i < c->nslots; i++) end(c, &c->slot[i], b, accept);
}

void kv_drop(Cache *c, int seq) {
    for (int i = 0; i < c->nslots; i++)
        for (int h = 0; h < c->slot[i].t.s.lanes; h++) settle(&c->slot[i], seq * c->slot[i].t.s.lanes + h, 0, 0, 0);
}

void kv_fork(Cache *c, int from, int to) {
    CHECK(from != to, "sequence %d onto itself", from);
    kv_drop(c, to);
    for (int i = 0; i < c->nslots; i++) {
        Slot *s = &c->slot[i];
        Lanes *t = &s->t;
        for (int h = 0; h < t->s.lanes; h++) {
            int a = from * t->s.lanes + h, b = to * t->s.lanes + h;
            set(s, &t->s0[b], s->s0_next[b] = t->s0[a]);
            set(s, &t->lo[b], s->lo_next[b] = t->lo[a]);
            set(s, &t->hi[b], s->hi_next[b] = t->hi[a]);
            if (t->s.retire) set(s, &t->tail[b], s->tail_next[b] = t->tail[a]);
            for (int e = 0; e < t->maxpages; e++) {
                int page = t->table[(size_t)a * (size_t)t->maxpages + (size_t)e];
                set(s, &t->table[(size_t)b * (size_t)t->maxpages + (size_t)e], page);
                if (page >= 0) s->ref[page]++;
            }
        }
        size_t n = (size_t)t->s.state;
        if (n) copy_bytes(s, R(s->state) + (size_t)to * n, R(s->state) + (size_t)from * n, n * sizeof(real));
        n = carried(&t->s);
        if (n) copy_bytes(s, R(s->carry) + (size_t)to * n, R(s->carry) + (size_t)from * n, n * sizeof(real));
    }
}

bool kv_open(Cache *c, const KvShape *slots, int nslots, int nseq, int max_tokens, int max_rows, int page_rows,
             bool poison, bool dry, Err *e) {
    return kv_open_at(c, NULL, slots, nslots, nseq, max_tokens, max_rows, page_rows, poison, dry, e);
}
bool kv_open_at(Cache *c, Device *dev, const KvShape *slots, int nslots, int nseq, int max_tokens, int max_rows,
                int page_rows, bool poison, bool dry, Err *e) {
    if (!device_apart(dev)) dev = NULL;
    *c = (Cache){.nslots = nslots, .nseq = nseq, .slot = xcalloc((size_t)nslots, sizeof *c->slot), .dev = dev};
    for (int i = 0; i < nslots; i++) {
        if (!slot_shape(&c->slot[i], &slots[i], nseq, max_tokens, max_rows, page_rows ? page_rows : PAGE_ROWS)) {
            kv_close(c);
            return err_world(e, "out of memory: a cache of %d sequences of %d tokens; fewer or shorter ones need less",
                             nseq, max_tokens);
        }
        c->slot[i].dev = dev;
    }
    size_t tables = cache_place(c);
    if (dry) return true;
    if (!arena_open_at(&c->mem, dev ? device_memory(dev, false) : NULL, "cache", c->mem.peak, poison, e)) {
        kv_close(c);
        return false;
    }
    if (dev && !arena_open(&c->tables, "tables of the cache", c->tables.peak, poison, e)) {
        kv_close(c);
        return false;
    }
    bool moves = false;
    for (int i = 0; i < nslots; i++) moves |= slots[i].retire;
    if (dev && moves && !moves_open(c, e)) {
        kv_close(c);
        return false;
    }
    cache_place(c);
    if (dev && !mirror_open(&c->mirror, dev, c->tables.base, c->mem.base, tables, c->words, e)) {
        kv_close(c);
        return false;
    }
    for (int i = 0; i < nslots; i++) {
        c->slot[i].mirror = c->mirror;
        slot_clear(&c->slot[i]);
    }
    return true;
}
void kv_close(Cache *c) {
    mirror_close(c->mirror);
    arena_close(&c->mem);
    arena_close(&c->tables);
    arena_close(&c->moving);
    free(c->moves);
    free(c->slot);
    *c = (Cache){0};
}
Tensor kv_state(const Slot *s) { return s->state; }
Tensor kv_carry(const Slot *s) { return s->carry; }
const Lanes *kv_lanes(const Slot *s) { return &s->t; }
const Lanes *kv_lanes_there(const Slot *s) { return s->mirror ? &s->there : &s->t; }
int kv_pages(const Slot *s) { return s->t.npages - s->nunused; }
int kv_rows(const Slot *s, int seq, int lane) {
    lane += seq * s->t.s.lanes;
    return s->t.hi[lane] - s->t.lo[lane] + imax(0, imin(s->t.s0[lane] + s->t.s.sinks, s->t.lo[lane]) - s->t.s0[lane]);
}
size_t kv_bytes(const Cache *c, int seq) {
    size_t n = 0;
    for (int i = 0; i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        size_t row = (size_t)row_width(&s->t.s) * row_number(&s->t.s);
        for (int h = 0; h < s->t.s.lanes; h++) n += (size_t)kv_rows(s, seq, h) * row;
        n += ((size_t)s->t.s.state + carried(&s->t.s)) * sizeof(real);
    }
    return n;
}
