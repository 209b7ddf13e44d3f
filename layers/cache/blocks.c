/* blocks.c: rows that a codec stores together (RowCodec.block): pages of a lane that are full become blocks.
 *
 * A query sees the rows of its own block as they were computed, and earlier ones as the codec leaves them. Where blocks
 * begin follows from positions alone, and passes end with them (kv_cut); so a text gives the same result however it is
 * cut.
 *
 * Rows that a policy chooses among become blocks at the same positions, once it has chosen. Where rows are chosen once,
 * at a prompt's end, rows of blocks are kept as they were computed, too, until then: rows that stay are stored anew, 64
 * of them to a block. Later a row of a block leaves by a mark, and the block goes when all its rows have left. */
#include "slot.h"
#include "ops/merged.h"
#include "ops/salient.h"

int blocks_first(const Slot *s, int row) { return (row + s->t.P - 1) / s->t.P * s->t.P; }
void blocks_begin(Slot *s, int lane, const Batch *b, int q) {
    const int hi = s->t.hi[lane], from = b->off[q], end = b->off[q + 1];
    int old = from; /* the first row of a document that begins */
    if (from == end) return;
    while (old < end && b->first[old] < 0) old++;
    for (int row = hi; row < hi + old - from; row = (row / s->t.P + 1) * s->t.P) slot_own_page(s, lane, row);
    if (b->first[end - 1] >= 0) slot_own_page(s, lane, blocks_first(s, hi));
}

RowTurns *blocks_turns(const RowCodec *c, const Rope *r) {
    if (!c->turned || !r || !r->n) return NULL;
    const size_t pairs = (size_t)r->n / 2, rows = (size_t)c->block, numbers = pairs * rows;
    RowTurns *t = xcalloc(1, sizeof *t + 2 * numbers * sizeof(real) + pairs * sizeof *t->pair);
    t->pairs = r->n / 2, t->rows = c->block;
    t->cos = (real *)(t + 1), t->sin = t->cos + numbers, t->pair = (void *)(t->sin + numbers);
    for (int i = 0; i < t->pairs; i++) {
        const int first = r->at + (r->interleaved ? 2 * i : i);
        t->pair[i][0] = first, t->pair[i][1] = first + (r->interleaved ? 1 : t->pairs);
        for (size_t j = 0; j < rows; j++) {
            t->cos[(size_t)i * rows + j] = (real)cos((double)j * r->f[i]);
            t->sin[(size_t)i * rows + j] = (real)sin((double)j * r->f[i]);
        }
    }
    return t;
}
static void blocks_pieces(const KvShape *s, char *to, const real *element, const real *values) {
    const RowCodec *c = s->codec;
    const size_t key = c->piece_bytes(c, c->block), value = s->alias ? 0 : c->piece_bytes(c, s->vdim);
    for (int k = 0; k < s->kdim; k++, to += key)
        c->piece_encode(c, to, element + (size_t)k * (size_t)c->block, c->block);
    for (int j = 0; value && j < c->block; j++, to += value)
        c->piece_encode(c, to, values + (size_t)j * (size_t)s->vdim, s->vdim);
}
/* score: what queries say about each row, of a codec that asks them. */
static void blocks_encode(const Lanes *t, char *to, const real *keys, const real *values, const real *score) {
    const KvShape *s = &t->s;
    const RowCodec *c = s->codec;
    const size_t rows = (size_t)c->block, D = (size_t)s->kdim;
    real *element = xcalloc(D * rows, sizeof *element);
    for (size_t j = 0; j < rows; j++)
        for (size_t k = 0; k < D; k++) element[k * rows + j] = keys[j * D + k];
    if (t->turns) rows_turn(t->turns, element, -1);
    if (c->block_encode)
        c->block_encode(c, to, element, values, s->kdim, s->alias ? 0 : s->vdim, score);
    else
        blocks_pieces(s, to, element, values);
    free(element);
}
/* The numbers that are kept of n rows go from one place to another. */
static void blocks_numbers(const Slot *s, size_t to, size_t from, size_t n) {
    memcpy(s->t.pos + to, s->t.pos + from, n * sizeof *s->t.pos);
    if (s->kept) memcpy(s->kept + to, s->kept + from, n * sizeof *s->kept);
    if (present(s->score)) memcpy(R(s->score) + to, R(s->score) + from, n * sizeof(real));
}
int blocks_waiting(const Slot *s, int lane) {
    const int P = s->t.P, lo = s->t.lo[lane];
    int row = s->t.hi[lane];
    while (row > lo && *slot_entry(s, lane, row - 1) < s->t.npages) row = (row - 1) / P * P;
    return imax(row, lo);
}
void blocks_replace(Slot *s, int lane, int row, int block, bool computed) {
    int *entry = slot_entry(s, lane, row);
    const size_t P = (size_t)s->t.P;
    blocks_numbers(s, (size_t)block * P, (size_t)*entry * P, P);
    if (computed)
        *slot_computed(s, lane, row) = *entry;
    else
        slot_leave_page(s, entry);
    slot_set(s, entry, block);
}
/* The page of rows row..row+P-1, which is full. */
static void blocks_store_page(Slot *s, int lane, int row, bool computed) {
    Lanes *t = &s->t;
    const size_t P = (size_t)t->P;
    const int page = *slot_entry(s, lane, row);
    if (page < 0 || page >= t->npages) return; /* a window has let it go; or nothing was stored in this pass */
    const int block = slot_take_page(s, true);
    const size_t at = (size_t)page * P;
    const char *data = t->data.p;
    const real *keys = (const void *)(data + slot_key(s, at));
    real score[SALIENT_ROWS];
    if (t->s.codec->salient_bits) salient_score(s, lane, row, keys, score);
    blocks_encode(t, lanes_block(t, block), keys, (const void *)(data + slot_value(s, at)), score);
    blocks_replace(s, lane, row, block, computed);
}
/* The same of both slots of a pair, the upper of which is s: they have become full in the same pass. */
static void blocks_merge_page(Slot *s, int lane, int row) {
    Slot *const pair[2] = {s->below, s};
    const RowCodec *c = s->t.s.codec;
    const int kdim = s->t.s.kdim, vdim = s->t.s.alias ? 0 : s->t.s.vdim;
    const real *keys[2], *values[2];
    void *to[2];
    int page[2], block[2];
    for (int of = 0; of < 2; of++) {
        Slot *own = pair[of];
        page[of] = *slot_entry(own, lane, row);
        CHECK(own->t.hi[lane] == s->t.hi[lane], "%d rows of a lane, %d of the other's", s->t.hi[lane], own->t.hi[lane]);
        if (page[of] < 0 || page[of] >= own->t.npages) return;
        const char *data = own->t.data.p;
        const size_t at = (size_t)page[of] * (size_t)own->t.P;
        keys[of] = (const void *)(data + slot_key(own, at)), values[of] = (const void *)(data + slot_value(own, at));
    }
    for (int of = 0; of < 2; of++)
        block[of] = slot_take_page(pair[of], true), to[of] = lanes_block(&pair[of]->t, block[of]);
    c->pair_encode(c, to, keys, values, kdim, vdim);
    for (int of = 0; of < 2; of++) blocks_replace(pair[of], lane, row, block[of], false);
    s->t.merged[block[1] - s->t.npages] = block[0];
}
void blocks_store(Slot *s, int lane, bool computed) {
    const int P = s->t.P, hi = s->t.hi[lane];
    const RowPair pair = s->t.s.codec->pair;
    if (!s->chosen && hi % P == 0 && hi > s->t.s0[lane]) {
        if (pair == PAIR_NONE) blocks_store_page(s, lane, hi - P, false);
        if (pair == PAIR_UPPER) blocks_merge_page(s, lane, hi - P); /* the lower one waits for it */
    }
    for (int row = s->chosen ? blocks_waiting(s, lane) : hi; row + P <= hi; row += P)
        blocks_store_page(s, lane, row, computed);
}
void blocks_pair(Slot *s, int nslots) {
    for (int i = 0, lower = -1; i < nslots; i++) {
        const KvShape *k = &s[i].t.s;
        if (!rows_together(k) || k->codec->pair == PAIR_NONE) continue;
        CHECK(!s[i].chosen && !k->window && !k->evicts, "slot %d: rows of a pair leave", i);
        if (k->codec->pair == PAIR_LOWER) {
            CHECK(lower < 0, "slots %d and %d are both lower ones", lower, i);
            lower = i;
            continue;
        }
        CHECK(lower >= 0 && s[lower].t.s.lanes == k->lanes && s[lower].t.s.kdim == k->kdim &&
                  s[lower].t.s.vdim == k->vdim && s[lower].t.s.alias == k->alias,
              "slot %d: no slot of its shape below", i);
        s[i].below = &s[lower], s[i].t.below = &s[lower].t;
        lower = -1;
    }
}
void blocks_join(Slot *s, int seq) {
    const int P = s->t.P, first = seq * s->t.s.lanes;
    for (int lane = first; lane < first + s->t.s.lanes; lane++)
        for (int row = s->t.lo[lane]; row < s->t.hi[lane]; row += P) {
            const int block = *slot_entry(s, lane, row), below = *slot_entry(s->below, lane, row);
            CHECK((block >= s->t.npages) == (below >= s->t.npages), "row %d is in a block of one slot alone", row);
            if (block >= s->t.npages) s->t.merged[block - s->t.npages] = below;
        }
}
size_t blocks_below_bytes(const Slot *s, int lane) {
    if (!s->below) return 0;
    return (size_t)(s->t.hi[lane] / s->t.P - s->t.lo[lane] / s->t.P) * merged_below_bytes(&s->t.s);
}
bool blocks_shape(Slot *s, bool once) {
    /* rows that wait fill less than two pages, and a document that begins has one more */
    int pages = 3, all;
    s->keeps_computed = once;
    if (once && __builtin_add_overflow(pages, s->t.maxpages, &pages)) return false;
    return !__builtin_mul_overflow(slot_lanes(s), pages, &s->t.npages) &&
           !__builtin_add_overflow(s->t.npages, s->t.nblocks, &all);
}

/* ---- rows that a policy lets go ----------------------------------------------------------------------------------*/

void blocks_decode(const Lanes *t, int page, real *keys, real *values) {
    const KvShape *s = &t->s;
    const RowCodec *c = s->codec;
    const size_t P = (size_t)t->P, D = (size_t)s->kdim, Dv = (size_t)s->vdim;
    if (page < t->npages) {
        const real *data = (const void *)((const char *)t->data.p + (size_t)page * P * row_bytes(s));
        memcpy(keys, data, P * D * sizeof *keys);
        if (values && !s->alias) memcpy(values, data + P * D, P * Dv * sizeof *values);
        return;
    }
    const char *in = lanes_block(t, page);
    real *element = xcalloc(D * P, sizeof *element);
    if (c->block_decode)
        c->block_decode(c, element, s->alias ? NULL : values, in, lanes_below(t, page), s->kdim,
                        s->alias ? 0 : s->vdim);
    for (size_t k = 0; k < D && !c->block_decode; k++, in += c->piece_bytes(c, c->block))
        c->piece_decode(c, element + k * P, in, c->block);
    if (t->turns) rows_turn(t->turns, element, 1);
    for (size_t j = 0; j < P; j++)
        for (size_t k = 0; k < D; k++) keys[j * D + k] = element[k * P + j];
    free(element);
    for (size_t j = 0; values && !s->alias && !c->block_decode && j < P; j++, in += c->piece_bytes(c, s->vdim))
        c->piece_decode(c, values + j * Dv, in, s->vdim);
}
int blocks_rows(const Slot *s, int lane) {
    int n = 0;
    for (int row = s->t.lo[lane]; row < s->t.hi[lane]; row++) n += s->t.pos[slot_place_of(s, lane, row)] != ROW_GONE;
    return n;
}
size_t blocks_computed_bytes(const Slot *s, int lane) {
    size_t n = 0;
    for (int e = 0; s->computed && e < s->t.maxpages; e++) n += *slot_computed(s, lane, e * s->t.P) >= 0;
    return n ? n * page_bytes(s) : 0;
}
void blocks_forget(Slot *s, int lane) {
    for (int e = 0; s->computed && e < s->t.maxpages; e++)
        if (*slot_computed(s, lane, e * s->t.P) >= 0) slot_leave_page(s, slot_computed(s, lane, e * s->t.P));
}
/* Rows out of their pages. */
typedef struct {
    int n, *pos;
    real *key, *value, *kept, *score;
} Loose;
/* Rows from..hi-1 that stay, as they were computed; their pages and blocks are given back. */
static Loose blocks_take(Slot *s, int lane, int from, int hi, const bool *keep) {
    const size_t D = (size_t)s->t.s.kdim, Dv = s->t.s.alias ? 0 : (size_t)s->t.s.vdim, P = (size_t)s->t.P,
                 rows = (size_t)(hi - from) + 1;
    Loose x = {.pos = xcalloc(rows, sizeof *x.pos), .key = xcalloc(rows * (D + Dv + 2), sizeof *x.key)};
    x.value = x.key + rows * D, x.kept = x.value + rows * Dv, x.score = x.kept + rows;
    for (int row = from; row < hi; row++) {
        const int page = *slot_entry(s, lane, row);
        const size_t own = (size_t)(page < s->t.npages ? page : *slot_computed(s, lane, row)) * P + (size_t)row % P,
                     at = slot_place_of(s, lane, row), n = (size_t)x.n;
        const char *data = s->t.data.p;
        if (!keep[row - from]) continue;
        memcpy(x.key + n * D, data + slot_key(s, own), D * sizeof(real));
        if (Dv) memcpy(x.value + n * Dv, data + slot_value(s, own), Dv * sizeof(real));
        x.pos[n] = s->t.pos[at];
        if (s->kept) x.kept[n] = s->kept[at];
        if (present(s->score)) x.score[n] = R(s->score)[at];
        x.n++;
    }
    for (int row = from; row < hi; row += s->t.P) {
        int *computed = slot_computed(s, lane, row);
        slot_leave_page(s, slot_entry(s, lane, row));
        if (computed && *computed >= 0) slot_leave_page(s, computed);
    }
    return x;
}
/* Rows that were taken become those from `at` on: whole blocks, and a page of what is left. Returns the new hi. */
static int blocks_put(Slot *s, int lane, int at, Loose *x) {
    Lanes *t = &s->t;
    const size_t D = (size_t)t->s.kdim, Dv = t->s.alias ? 0 : (size_t)t->s.vdim, P = (size_t)t->P;
    for (int from = 0; from < x->n; from += t->P) {
        const size_t n = (size_t)imin(x->n - from, t->P), f = (size_t)from;
        const bool block = n == P;
        const int page = slot_take_page(s, block);
        const size_t place = (size_t)page * P;
        if (block) {
            CHECK(!t->s.codec->salient_bits, "rows in %s that a policy chose", t->s.codec->name);
            blocks_encode(t, lanes_block(t, page), x->key + f * D, x->value + f * Dv, NULL);
        } else {
            memcpy((char *)t->data.p + slot_key(s, place), x->key + f * D, n * D * sizeof(real));
            if (Dv) memcpy((char *)t->data.p + slot_value(s, place), x->value + f * Dv, n * Dv * sizeof(real));
        }
        memcpy(t->pos + place, x->pos + from, n * sizeof *t->pos);
        if (s->kept) memcpy(s->kept + place, x->kept + f, n * sizeof(real));
        if (present(s->score)) memcpy(R(s->score) + place, x->score + f, n * sizeof(real));
        slot_set(s, slot_entry(s, lane, at + from), page);
    }
    free(x->pos), free(x->key);
    return at + x->n;
}
/* Marks rows of a block as gone; returns how many are left. */
static int blocks_mark(Slot *s, int lane, int row, const bool *keep) {
    const int P = s->t.P;
    const int *pos = s->t.pos + slot_place_of(s, lane, row);
    int left = 0, leave = 0;
    for (int j = 0; j < P; j++) left += pos[j] != ROW_GONE && keep[j], leave += pos[j] != ROW_GONE && !keep[j];
    if (!leave || !left) return left;
    slot_own_page(s, lane, row);
    const size_t at = slot_place_of(s, lane, row);
    for (int j = 0; j < P; j++)
        if (!keep[j]) slot_set_pos(s, at + (size_t)j, ROW_GONE);
    if (s->summed) s->summed[at / (size_t)P] = false;
    return left;
}
int blocks_evict(Slot *s, int lane, const bool *keep) {
    const int P = s->t.P, lo = s->t.lo[lane], hi = s->t.hi[lane];
    bool leave = false;
    for (int row = lo; row < hi; row++) leave |= !keep[row - lo] && s->t.pos[slot_place_of(s, lane, row)] != ROW_GONE;
    if (!leave) return hi;
    const int *computed = slot_computed(s, lane, lo);
    const int from = computed && *computed >= 0 ? lo : blocks_waiting(s, lane);
    Loose x = blocks_take(s, lane, from, hi, keep + (from - lo));
    int at = lo;
    for (int row = lo; row < from; row += P) {
        int *entry = slot_entry(s, lane, row), *to = slot_entry(s, lane, at);
        if (!blocks_mark(s, lane, row, keep + (row - lo))) {
            slot_leave_page(s, entry);
            continue;
        }
        if (to != entry) slot_set(s, to, *entry), slot_set(s, entry, -1);
        at += P;
    }
    return blocks_put(s, lane, at, &x);
}

/* ---- bytes, and the way back -------------------------------------------------------------------------------------*/

size_t blocks_bytes(const KvShape *s, int s0, int sinks, int lo, int hi) {
    const int P = s->codec->block, page = hi / P, newest = page * P; /* where rows are that are no block yet */
    const int whole = imax(0, page - lo / P), left = imax(0, imin((sinks + P - 1) / P, imin(page, lo / P)) - s0 / P),
              rows = hi - imax(lo, newest) + imax(0, sinks - imax(s0, newest));
    return (size_t)(whole + left) * block_bytes(s) + (size_t)rows * row_bytes(s);
}
size_t slot_lane_bytes(const Slot *s, int lane) {
    const int s0 = s->t.s0[lane], lo = s->t.lo[lane], hi = s->t.hi[lane], sinks = imax(s0, imin(s0 + s->t.s.sinks, lo));
    if (s->t.nblocks && s->chosen) {
        const int waiting = blocks_waiting(s, lane);
        return (size_t)((waiting - lo) / s->t.P) * block_bytes(&s->t.s) + (size_t)(hi - waiting) * row_bytes(&s->t.s);
    }
    if (s->t.nblocks) return blocks_bytes(&s->t.s, s0, sinks, lo, hi);
    return (size_t)(hi - lo + sinks - s0) * row_bytes(&s->t.s);
}
int blocks_rewind(const Slot *s, int seq, int to) {
    if (!s->t.nblocks) return to;
    const int lane = seq * s->t.s.lanes, n = s->t.hi[lane] - s->t.s0[lane], P = s->t.P;
    return to / P < n / P ? to / P * P : to;
}
