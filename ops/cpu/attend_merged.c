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
/* As attend_block. */
static void attend_merged(Block *k, const Lanes *t, int page, int at, int row, int n, const int *pos, real *room) {
    const RowCodec *c = t->s.codec;
    const size_t Dv = (size_t)k->Dv;
    const MergedShape s = merged_shape(c, k->Dk, t->s.alias ? 0 : k->Dv);
    const int of = c->pair == PAIR_UPPER;
    const char *own = lanes_block(t, page), *lower = of ? lanes_below(t, page) : own;
    real *values = room;
    merged_keys(k->kt, c, &s, lower, own, of, room);
    memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
    tile_mm(k->s, KB, k->q, (size_t)k->Dk, 1, k->kt, KB, k->n, k->Dk, KB);
    scores_moved(k, at, n);
    if (!t->s.alias) {
        merged_values(room, c, &s, lower, own, of);
        values += (size_t)at * Dv;
    } else {
        for (size_t j = 0; j < (size_t)n; j++)
            for (size_t d = 0; d < Dv; d++) room[j * Dv + d] = k->kt[d * KB + (size_t)at + j];
    }
    absorb(k, values, Dv, NULL, pos, NULL, row, n);
}
