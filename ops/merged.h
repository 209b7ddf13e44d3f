/* merged.h: blocks of two layers whose rows share directions (RowCodec.merges), as layers/cache/minicache.c writes them
 * and who reads rows needs them.
 *
 * The slots of two layers are a pair: each has a block for the same 64 rows of the same lane. Keys and values are
 * merged separately, each by the same rule. Of the 64 rows `apart` ones, share * 64 rounded, are stored by both layers
 * for themselves; the others are merged: a row is its layer's norm times the direction that both share. A block is, in
 * words of 4 bytes, first of keys, then of values unless these are part of keys:
 *   the lower layer's:
 *     which rows are apart: a bit for each, from the lowest of the first word on; 2 words
 *     directions, if any row is merged: of keys a piece for each element, of that element in all 64 rows, 0 in those
 *       apart; of values a piece for each merged row, in their order
 *   the lower and the upper layer's:
 *     norms of the merged rows in their order: bf16, two to a word, or `real`s where bits are 32
 *     the rows apart in their order, each alone
 * A piece is piece_encode's: RowCodec.bits an element. Rows apart have 8 bits (int8.h) where pieces have fewer. */
#pragma once
#include "int8.h"
#include "run.h"

enum { MERGED_ROWS = 64, MERGED_MASK = 8 };
typedef struct {
    size_t mask, directions;   /* where they begin in the lower block, in bytes */
    size_t norms[2], alone[2]; /* in the lower and in the upper block */
    size_t piece, row;         /* bytes of a piece of directions, of a row apart */
    int width;
} MergedPart;
typedef struct {
    int apart, merged;  /* rows */
    MergedPart part[2]; /* keys; values: width 0 where they are part of keys */
    size_t bytes[2];    /* of the lower and of the upper block */
    size_t shared;      /* bytes of the lower one that the upper layer reads, too */
} MergedShape;
static inline bool merged_narrow(const RowCodec *c) { return c->bits < 8; } /* rows apart have more bits than pieces */
static inline size_t merged_norm_bytes(const RowCodec *c, int n) {
    return c->bits == 32 ? (size_t)n * sizeof(real) : ((size_t)n + 1) / 2 * 4;
}
static inline MergedShape merged_shape(const RowCodec *c, int kdim, int vdim) {
    const int apart = (int)(c->share * MERGED_ROWS + 0.5);
    MergedShape s = {.apart = apart, .merged = MERGED_ROWS - apart};
    for (int i = 0; i < 2; i++) {
        MergedPart *p = &s.part[i];
        const int width = p->width = i ? vdim : kdim;
        if (!width) continue;
        const size_t pieces = !s.merged ? 0 : i ? (size_t)s.merged : (size_t)width;
        p->piece = c->piece_bytes(c, i ? width : MERGED_ROWS);
        p->row = merged_narrow(c) ? int8_bytes(width) : c->piece_bytes(c, width);
        p->mask = s.bytes[0], p->directions = p->mask + MERGED_MASK;
        s.bytes[0] = p->directions + pieces * p->piece;
        s.shared += s.bytes[0] - p->mask;
        for (int of = 0; of < 2; of++) {
            p->norms[of] = s.bytes[of];
            p->alone[of] = p->norms[of] + merged_norm_bytes(c, s.merged);
            s.bytes[of] = p->alone[of] + (size_t)apart * p->row;
        }
    }
    return s;
}
/* place[j]: of row j among the rows apart, or `apart` more than that among the merged ones. A block from a damaged file
 * has another count of bits: each row gets a place of its own all the same. */
static inline void merged_places(const MergedShape *s, const MergedPart *p, const char *lower,
                                 uint8_t place[MERGED_ROWS]) {
    uint32_t mask[MERGED_ROWS / 32];
    int met[2] = {0};
    memcpy(mask, lower + p->mask, sizeof mask);
    for (int j = 0; j < MERGED_ROWS; j++) {
        const bool bit = mask[j / 32] >> j % 32 & 1;
        const int class = met[1] == s->merged || (bit && met[0] < s->apart) ? 0 : 1;
        place[j] = (uint8_t)((class ? s->apart : 0) + met[class]++);
    }
}
/* Norm i of the merged rows of a block; `of`: 0 lower, 1 upper. */
static inline real merged_norm(const RowCodec *c, const MergedPart *p, const char *block, int of, int i) {
    real x;
    uint16_t half;
    if (c->bits == 32)
        memcpy(&x, block + p->norms[of] + (size_t)i * sizeof x, sizeof x);
    else
        memcpy(&half, block + p->norms[of] + 2 * (size_t)i, sizeof half), x = (real)bf16_to(half);
    return x;
}
/* Row i of those apart. */
static inline void merged_row(const RowCodec *c, const MergedPart *p, real *to, const char *block, int of, int i) {
    const char *from = block + p->alone[of] + (size_t)i * p->row;
    float scale;
    if (!merged_narrow(c)) {
        c->piece_decode(c, to, from, p->width);
        return;
    }
    memcpy(&scale, from, sizeof scale);
    for (int k = 0; k < p->width; k++) to[k] = (real)scale * (real)((const int8_t *)from + INT8_HEAD)[k];
}
/* Bytes of the slot below that reading a block reads, too. */
static inline size_t merged_below_bytes(const KvShape *s) {
    if (!s->codec || s->codec->pair != PAIR_UPPER) return 0;
    return merged_shape(s->codec, s->kdim, s->alias ? 0 : s->vdim).shared;
}
