/* blocks.c: rows that a codec stores together (RowCodec.block): the newest page of a lane, when it is full, becomes a
 * block.
 *
 * A query sees the rows of its own block as they were computed, and earlier ones as the codec leaves them. Where blocks
 * begin follows from positions alone, and passes end with them (kv_cut); so a text gives the same result however it is
 * cut. */
#include "slot.h"

int blocks_first(const Slot *s, int row) { return (row + s->t.P - 1) / s->t.P * s->t.P; }
void blocks_begin(Slot *s, int lane, const Batch *b, int q) {
    const int hi = s->t.hi[lane], from = b->off[q], end = b->off[q + 1];
    if (from == end) return;
    if (b->first[from] < 0) slot_own_page(s, lane, hi);
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
static void blocks_encode(const Lanes *t, char *to, const real *keys, const real *values) {
    const KvShape *s = &t->s;
    const RowCodec *c = s->codec;
    const size_t rows = (size_t)c->block, D = (size_t)s->kdim, key = c->piece_bytes(c, c->block),
                 value = s->alias ? 0 : c->piece_bytes(c, s->vdim);
    real *element = xcalloc(D * rows, sizeof *element);
    for (size_t j = 0; j < rows; j++)
        for (size_t k = 0; k < D; k++) element[k * rows + j] = keys[j * D + k];
    if (t->turns) rows_turn(t->turns, element, -1);
    for (size_t k = 0; k < D; k++, to += key) c->piece_encode(c, to, element + k * rows, c->block);
    free(element);
    for (int j = 0; value && j < c->block; j++, to += value)
        c->piece_encode(c, to, values + (size_t)j * (size_t)s->vdim, s->vdim);
}
void blocks_store(Slot *s, int lane) {
    Lanes *t = &s->t;
    const size_t P = (size_t)t->P;
    const int hi = t->hi[lane];
    if (hi % t->P || hi == t->s0[lane]) return;
    int *entry = slot_entry(s, lane, hi - 1), page = *entry;
    if (page < 0 || page >= t->npages) return; /* a window has let it go; or nothing was stored in this pass */
    const int block = slot_take_page(s, true);
    const size_t at = (size_t)page * P;
    const char *data = t->data.p;
    blocks_encode(t, lanes_block(t, block), (const void *)(data + slot_key(s, at)),
                  (const void *)(data + slot_value(s, at)));
    memcpy(t->pos + (size_t)block * P, t->pos + at, P * sizeof *t->pos);
    slot_leave_page(s, entry);
    slot_set(s, entry, block);
}

size_t blocks_bytes(const KvShape *s, int s0, int sinks, int lo, int hi) {
    const int P = s->codec->block, page = hi / P, newest = page * P; /* where rows are that are no block yet */
    const int whole = imax(0, page - lo / P), left = imax(0, imin((sinks + P - 1) / P, imin(page, lo / P)) - s0 / P),
              rows = hi - imax(lo, newest) + imax(0, sinks - imax(s0, newest));
    return (size_t)(whole + left) * block_bytes(s) + (size_t)rows * row_bytes(s);
}
size_t slot_lane_bytes(const Slot *s, int lane) {
    const int s0 = s->t.s0[lane], lo = s->t.lo[lane], hi = s->t.hi[lane], sinks = imax(s0, imin(s0 + s->t.s.sinks, lo));
    if (s->t.nblocks) return blocks_bytes(&s->t.s, s0, sinks, lo, hi);
    return (size_t)(hi - lo + sinks - s0) * row_bytes(&s->t.s);
}
int blocks_rewind(const Slot *s, int seq, int to) {
    if (!s->t.nblocks) return to;
    const int lane = seq * s->t.s.lanes, n = s->t.hi[lane] - s->t.s0[lane], P = s->t.P;
    return to / P < n / P ? to / P * P : to;
}
