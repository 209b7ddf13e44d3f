/* evict.c: rows that leave their lanes, when a pass ends by what a mixer decided, after it by what a policy chose. The
 * last rows move into the places that fall free: a lane is as long as what it shows, and no row moves but into such a
 * place. */
#include "slot.h"
/* Row `row` of a lane leaves, the last one, hi - 1, takes its place. Returns where that now lies; the caller makes the
 * lane one shorter. */
static size_t last_into(Cache *c, Slot *s, int lane, int row, int hi) {
    slot_own_page(s, lane, row);
    const size_t at = slot_place_of(s, lane, row);
    slot_move(c, s, at, slot_place_of(s, lane, hi - 1));
    return at;
}

/* True if no query at position `next` or later sees the row. */
static bool row_expired(const Slot *s, int lane, int row, int next) {
    const size_t at = slot_place_of(s, lane, row);
    return s->t.evicted[at] && next - s->t.pos[at] > s->t.s.delay;
}
static int row_order(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int evict_decided(Cache *c, Slot *s, int lane, int hi, int before, int next) {
    Lanes *t = &s->t;
    if (s->evicts[lane]) {
        slot_own_page(s, lane, t->tail[lane]);
        slot_set_evicted(s, slot_place_of(s, lane, t->tail[lane]), true);
    }
    /* Queries at `before` saw what may expire now; rows of the pass that have expired were not stored. */
    const int from = imax(0, before - imax(1, t->s.delay)), to = imin(before, next - t->s.delay);
    int n = 0;
    for (int pos = from; pos < to; pos++) {
        const int row = *slot_row_at(s, lane, pos);
        c->visited++;
        if (row_expired(s, lane, row, next)) s->leaving[n++] = row;
    }
    if (n > 1) qsort(s->leaving, (size_t)n, sizeof *s->leaving, row_order);
    for (int i = 0; i < n; i++) /* a row that moves into the place may itself have expired */
        while (s->leaving[i] < hi && row_expired(s, lane, s->leaving[i], next)) {
            const int row = s->leaving[i];
            if (hi - 1 > row) {
                const size_t last = slot_place_of(s, lane, hi - 1);
                const bool evicted = t->evicted[last];
                *slot_row_at(s, lane, t->pos[last]) = row;
                slot_set_evicted(s, last_into(c, s, lane, row, hi), evicted);
                if (s->tail_next[lane] == hi - 1) s->tail_next[lane] = row;
            }
            hi--;
        }
    return hi;
}

int evict_rows(Cache *c, Slot *s, int lane, int lo, int hi, bool *keep) {
    for (int row = lo; row < hi;) {
        if (keep[row - lo]) {
            row++;
            continue;
        }
        if (hi - 1 > row) last_into(c, s, lane, row, hi);
        keep[row - lo] = keep[--hi - lo];
    }
    return hi;
}
