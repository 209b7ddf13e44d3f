/* attend_merged.c: attention over blocks of two layers that share directions (ops/merged.h); attend_blocks.c
 * includes it. Directions are decoded as pieces, and become rows by the layer's own norms; rows apart are put in their
 * places. */
#include "ops/merged.h"

/* Keys of a block (Dk,KB). row: room for one. */
static void merged_keys(real *to, const RowCodec *c, const MergedShape *s, const char *lower, const char *own, int of,
                        real *row) {
    const MergedPart *p = &s->part[0];
    const size_t Dk = (size_t)p->width;
    uint8_t place[MERGED_ROWS];
    real norm[KB];
    merged_places(s, p, lower, place);
    if (s->merged) pieces_decoded(to, KB, c, (Parts){lower + p->directions, p->piece, KB, c->group}, p->width);
    for (int j = 0; j < KB; j++) norm[j] = place[j] < s->apart ? 1 : merged_norm(c, p, own, of, place[j] - s->apart);
    for (size_t k = 0; s->merged && k < Dk; k++)
        for (size_t j = 0; j < KB; j++) to[k * KB + j] *= norm[j];
    for (size_t j = 0; j < KB; j++) {
        if (place[j] >= s->apart) continue;
        merged_row(c, p, row, own, of, place[j]);
        for (size_t k = 0; k < Dk; k++) to[k * KB + j] = row[k];
    }
}
/* Values of a block (KB,Dv). The merged ones are decoded together, and leave for their places from the last on. */
static void merged_values(real *to, const RowCodec *c, const MergedShape *s, const char *lower, const char *own,
                          int of) {
    const MergedPart *p = &s->part[1];
    const size_t Dv = (size_t)p->width;
    uint8_t place[MERGED_ROWS];
    merged_places(s, p, lower, place);
    pieces_decoded(to, Dv, c, (Parts){lower + p->directions, p->piece, p->width, c->group}, s->merged);
    for (int j = KB - 1; j >= 0; j--) {
        const int i = place[j] - s->apart;
        if (i < 0) continue;
        const real norm = merged_norm(c, p, own, of, i), *from = to + (size_t)i * Dv;
        for (size_t k = Dv; k-- > 0;) to[(size_t)j * Dv + k] = norm * from[k];
    }
    for (size_t j = 0; j < KB; j++)
        if (place[j] < s->apart) merged_row(c, p, to + j * Dv, own, of, place[j]);
}
/* A block's keys to k->kt; returns the values of n rows from `at` on, in `room`. */
static const real *merged_tile(const Block *k, const Lanes *t, int page, int at, int n, real *room) {
    const RowCodec *c = t->s.codec;
    const MergedShape s = merged_shape(c, k->Dk, t->s.alias ? 0 : k->Dv);
    const int of = c->pair == PAIR_UPPER;
    const char *own = lanes_block(t, page), *lower = of ? lanes_below(t, page) : own;
    merged_keys(k->kt, c, &s, lower, own, of, room);
    if (t->s.alias) {
        values_of_keys(k, room, at, NULL, n);
        return room;
    }
    merged_values(room, c, &s, lower, own, of);
    return room + at * k->Dv;
}
