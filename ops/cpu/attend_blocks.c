/* attend_blocks.c: attention over blocks of a codec that stores rows together (RowCodec.block); attend_lanes.c includes
 * it. A block's keys lie as the product of queries and keys wants them: of each element all rows. */

/* How a register reads pieces: where codes are whole numbers. */
static Read read_pieces(const RowCodec *c) { return c->levels ? READ_PART : read_packed(c->bits); }
/* n pieces, `ld` elements from one to the next. */
static void pieces_decoded(real *to, size_t ld, const RowCodec *c, Parts p, int n) {
    const Read as = read_pieces(c);
    if (as != READ_PART && p.width % VL == 0 && ld == (size_t)p.width)
        direct_decoded(to, as, p, n);
    else
        for (int j = 0; j < n; j++) c->piece_decode(c, to + (size_t)j * ld, p.first + (size_t)j * p.ld, p.width);
}
/* Scores of the rows from `at` on become the first. */
static void scores_moved(Block *k, int at, int n) {
    for (int i = 0; at && i < k->n; i++) memmove(k->s + i * KB, k->s + i * KB + at, (size_t)n * sizeof(real));
}
/* Rows row..row+n-1 of a lane, of one block; those up to `to` are read. */
static void attend_block(Block *k, const Lanes *t, int lane, int row, int n, int to, real *room) {
    const RowCodec *c = t->s.codec;
    const int *table = &t->table[(size_t)lane * (size_t)t->maxpages];
    const int P = t->P, page = table[row / P % t->maxpages], at = row % P;
    const int next = row + n < to ? table[(row + n) / P % t->maxpages] : -1;
    const ptrdiff_t ahead = next < t->npages ? 0 : (ptrdiff_t)(next - page) * (ptrdiff_t)block_bytes(&t->s);
    const size_t kb = c->piece_bytes(c, P), vb = t->s.alias ? 0 : c->piece_bytes(c, k->Dv), Dv = (size_t)k->Dv;
    const char *in = lanes_block(t, page);
    const Parts keys = {in, kb, P, c->group},
                values = {in + block_key_bytes(&t->s) + (size_t)at * vb, vb, k->Dv, c->group};
    const int *pos = t->pos + (size_t)page * (size_t)P + at;
    const Read as = read_pieces(c);
    CHECK(P == KB, "blocks of %d rows", P);
    if (!t->s.alias && !t->turns && direct(k, as)) {
        direct_channels(k, as, keys, ahead);
        scores_moved(k, at, n);
        soften(k, pos, NULL, row, n);
        direct_values(k, as, values, n, ahead);
        return;
    }
    pieces_decoded(k->kt, KB, c, keys, k->Dk);
    if (t->turns) rows_turn(t->turns, k->kt, 1);
    memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
    tile_mm(k->s, KB, k->q, (size_t)k->Dk, 1, k->kt, KB, k->n, k->Dk, KB);
    scores_moved(k, at, n);
    if (!t->s.alias)
        pieces_decoded(room, Dv, c, values, n);
    else
        for (int j = 0; j < n; j++)
            for (size_t d = 0; d < Dv; d++) room[(size_t)j * Dv + d] = k->kt[d * KB + (size_t)(at + j)];
    absorb(k, room, Dv, NULL, pos, NULL, row, n);
}
