/* attend_blocks.c: attention over blocks of a codec that stores rows together (RowCodec.block); attend_lanes.c includes
 * it. A block's keys lie as the product of queries and keys wants them: of each element all rows. */
#include "ops/levels.h"

/* How a register reads pieces: where codes are whole numbers. */
static Read read_pieces(const RowCodec *c) {
    if (c->levels || REAL != F32) return READ_PART;
    if (c->merges && c->bits >= 8) return c->bits == 8 ? READ_INT8 : c->bits == 16 ? READ_BF16 : READ_PART;
    return read_packed(c->bits);
}
#if !defined(KV_DOUBLE) && defined(__AVX2__)
    #include <immintrin.h>
/* What codes mean, by a table of 16: a shuffle with the lowest 4 bits, or two with the lowest 3. */
typedef struct {
    Vec low, high;
} LevelTable;
INLINE LevelTable levels_loaded(const float *table) {
    return (LevelTable){*(const Vec *)table, *(const Vec *)(table + LEVELS_MOST - VL)};
}
INLINE Vec levels_numbers(int bits, LevelTable t, Word code) {
    #if VBYTES == 64
    (void)bits;
    return (Vec)_mm512_permutexvar_ps((__m512i)code, (__m512)t.low);
    #else
    const Vec low = (Vec)_mm256_permutevar8x32_ps((__m256)t.low, (__m256i)code);
    if (bits < 4) return low;
    const Vec high = (Vec)_mm256_permutevar8x32_ps((__m256)t.high, (__m256i)code);
    return (Vec)_mm256_blendv_ps((__m256)low, (__m256)high, (__m256)(code << 28));
    #endif
}
INLINE void levels_group(int bits, real *to, const float *table, const char *codes, int n) {
    const char *upper = codes + 4 * packed_words(2, n);
    const LevelTable t = levels_loaded(table);
    for (int k = 0; k < n; k += VL) {
        Word code = direct_fields(codes, packed_low(bits), k);
        if (bits == 3) code = (code & 3) | direct_fields(upper, 1, k) << 2;
        *(Vec *)(to + k) = levels_numbers(bits, t, code);
    }
}
/* A piece whose groups are whole vectors, as piece_decode has it. */
static void levels_decoded(const RowCodec *c, real *to, const void *piece, int width) {
    const uint32_t *group = piece;
    for (int at = 0, n; at < width; at += n) {
        float table[LEVELS_MOST] = {0};
        const char *codes = (const char *)group + levels_head(c);
        n = imin(c->group, width - at);
        levels_table(c, group, table);
        for (int q = 1 << c->bits; q < LEVELS_MOST; q++) table[q] = table[q & ((1 << c->bits) - 1)];
        if (c->bits == 4) levels_group(4, to + at, table, codes, n);
        if (c->bits == 3) levels_group(3, to + at, table, codes, n);
        if (c->bits == 2) levels_group(2, to + at, table, codes, n);
        levels_apart(c, group, to + at, n);
        group += levels_group_bytes(c, n) / 4;
    }
}
#else
static void levels_decoded(const RowCodec *c, real *to, const void *piece, int width) {
    c->piece_decode(c, to, piece, width);
}
#endif
/* n pieces, `ld` elements from one to the next. */
static void pieces_decoded(real *to, size_t ld, const RowCodec *c, Parts p, int n) {
    const Read as = read_pieces(c);
    if (as != READ_PART && p.width % VL == 0 && ld == (size_t)p.width)
        direct_decoded(to, as, p, n);
    else if (c->levels && p.width % VL == 0)
        for (int j = 0; j < n; j++) levels_decoded(c, to + (size_t)j * ld, p.first + (size_t)j * p.ld, p.width);
    else
        for (int j = 0; j < n; j++) c->piece_decode(c, to + (size_t)j * ld, p.first + (size_t)j * p.ld, p.width);
}
/* The keys of a block, (Dk,KB) in k->kt, and the values of a tile's rows, with pairs as those. */
static void tile_of_block(const Block *k, Tile *t, PairRoom room, const real *values) {
    t->kt = k->kt, t->values = values, t->ldv = (size_t)k->Dv, t->width = KB;
    if (!k->qp) return;
    pairs_below(room.turned, rows_wide(k->kt, KB), k->Dk, KB);
    pairs_below(room.below, rows_wide(values, t->ldv), t->n, k->Dv);
    t->turned = room.turned, t->below = room.below;
}
#include "attend_merged.c"
/* -inf for those of n rows of a block that a policy evicted; NULL if none is. */
static const real *gone_bias(real mem[KB], const Lanes *t, const int *pos, int n) {
    bool any = false;
    for (int j = 0; t->s.sparse && j < n; j++) {
        any |= pos[j] == ROW_GONE;
        mem[j] = pos[j] == ROW_GONE ? -INFINITY : 0;
    }
    return any ? mem : NULL;
}
/* Rows at..at+n-1 of a block one after the other: keys (n,Dk) and, unless NULL, values (n,Dv). room: (Dk,P). */
static void coded_rows(const Lanes *t, int page, int at, int n, real *keys, real *values, real *room) {
    const RowCodec *c = t->s.codec;
    const int P = t->P, Dk = t->s.kdim, Dv = t->s.vdim;
    const char *in = lanes_block(t, page);
    CHECK(!c->pair, "rows of one of two slots that are merged");
    if (c->salient_bits) {
        salient_rows_of(t, in, at, n, keys, values, room);
        return;
    }
    pieces_decoded(room, (size_t)P, c, (Parts){in, c->piece_bytes(c, P), P, c->group}, Dk);
    if (t->turns) rows_turn(t->turns, room, 1);
    for (int j = 0; j < n; j++)
        for (int k = 0; k < Dk; k++) keys[j * Dk + k] = room[k * P + at + j];
    if (!values || t->s.alias) return;
    const size_t vb = c->piece_bytes(c, Dv);
    pieces_decoded(values, (size_t)Dv, c, (Parts){in + block_key_bytes(&t->s) + (size_t)at * vb, vb, Dv, c->group}, n);
}
/* Whether a row of a lane is evicted in its block. */
static bool any_gone(const Lanes *t, int lane) {
    for (int row = t->lo[lane]; t->nblocks && t->s.sparse && row < t->hi[lane]; row++) {
        const int page = t->table[(size_t)lane * (size_t)t->maxpages + (size_t)(row / t->P % t->maxpages)];
        if (t->pos[(size_t)page * (size_t)t->P + (size_t)(row % t->P)] == ROW_GONE) return true;
    }
    return false;
}
/* Rows row..row+n-1 of a lane, of one block; those up to `to` are read. room: of decoded values. */
static void attend_block(Block *k, int blocks, const Lanes *t, int lane, int row, int n, int to, real *room,
                         PairRoom pairs) {
    const RowCodec *c = t->s.codec;
    const int *table = &t->table[(size_t)lane * (size_t)t->maxpages];
    const int P = t->P, page = table[row / P % t->maxpages], at = row % P;
    const int next = row + n < to ? table[(row + n) / P % t->maxpages] : -1;
    const ptrdiff_t ahead = next < t->npages ? 0 : (ptrdiff_t)(next - page) * (ptrdiff_t)block_bytes(&t->s);
    const char *in = lanes_block(t, page);
    real bias_mem[KB];
    Tile tile = {.row = row, .n = n, .at = at, .pos = t->pos + (size_t)page * (size_t)P + at};
    uint8_t place[SALIENT_ROWS];
    tile.bias = gone_bias(bias_mem, t, tile.pos, n);
    CHECK(P == KB, "blocks of %d rows", P);
    if (c->salient_bits) {
        tile.place = place;
        tile_of_block(k, &tile, pairs, salient_tile(k, t, in, at, n, place, room));
    } else if (c->pair) {
        tile_of_block(k, &tile, pairs, merged_tile(k, t, page, at, n, room));
    } else {
        const size_t kb = c->piece_bytes(c, P), vb = t->s.alias ? 0 : c->piece_bytes(c, k->Dv);
        const Parts keys = {in, kb, P, c->group},
                    values = {in + block_key_bytes(&t->s) + (size_t)at * vb, vb, k->Dv, c->group};
        const Read as = read_pieces(c);
        if (!t->s.alias && !t->turns && as != READ_INT8 && !k->qp &&
            direct(k, as)) { /* scales of pieces are those of queries */
            direct_channels(k, as, keys, ahead);
            scores_moved(k, at, n);
            soften(k, tile.pos, tile.bias, row, n);
            direct_values(k, as, values, n, ahead);
            return;
        }
        pieces_decoded(k->kt, KB, c, keys, k->Dk);
        if (t->turns) rows_turn(t->turns, k->kt, 1);
        if (t->s.alias)
            values_of_keys(k, room, at, NULL, n);
        else
            pieces_decoded(room, (size_t)k->Dv, c, values, n);
        tile_of_block(k, &tile, pairs, room);
    }
    tile_absorb(k, blocks, &tile);
}
