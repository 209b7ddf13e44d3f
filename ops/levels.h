/* levels.h: groups of codes that mean uneven levels (RowCodec.levels), as layers/cache/kvquant.c writes them and the
 * CPU's kernels read them.
 *
 * A group of n elements is a word, its head, with RowCodec.apart a second one, then codes as in packed.h. The head has
 * a scale s (upper half of a f32, lower half of the word) and a whole number z of 16 bits (upper half): code q means
 * s (4 z + levels[q]) / 256, |z| <= 2^13, which is exact in f32. The second word has the place (lower half) of the
 * element that is stored by itself, and its value (bf16, upper half). */
#pragma once
#include "run.h"
#include "packed.h"

enum { LEVELS_MOST = 16, LEVELS_UNIT = 256 };
static inline size_t levels_head(const RowCodec *c) { return c->apart ? 8 : 4; }
static inline size_t levels_group_bytes(const RowCodec *c, int n) {
    return packed_group_bytes(c->bits, n) - PACKED_HEAD + levels_head(c);
}
/* What each code of a group means. */
static inline void levels_table(const RowCodec *c, const uint32_t *group, float table[LEVELS_MOST]) {
    const float s = packed_float(*group << 16) / LEVELS_UNIT;
    const int zero = 4 * (int16_t)(*group >> 16);
    for (int q = 0; q < 1 << c->bits; q++) table[q] = s * (float)(zero + c->levels[q]);
}
/* Puts the element that is stored by itself in its place, if the group is not NaN. */
static inline void levels_apart(const RowCodec *c, const uint32_t *group, real *to, int n) {
    const float s = packed_float(*group << 16);
    if (c->apart && s == s) to[(int)(group[1] & 0xffffu) % n] = (real)packed_float(group[1] & 0xffff0000u);
}
