/* packed.h: rows of the cache in 4, 3 or 2 bits a number, as every backend writes and reads them (ROWS_PACKED).
 *
 * A part is cut into groups of RowCodec.group numbers, the last may be shorter. A group is a word, its head, and its
 * codes: the head has a scale s (upper half of a f32: a bf16) and a whole number z of 16 bits, and a number is
 * s (z + q) with a code q of 0..top, top = 2^bits - 1. Codes lie in words of 4 bytes, from the lowest bit on: those of
 * 4 and 2 bits one after the other, of those of 3 bits first the two lower bits of all, then the upper bit of all.
 *
 * The scale is (largest - smallest) / top, rounded up to a bf16; z = smallest / s and q + z = x / s, rounded to the
 * nearest, ties to even; the largest number has the code `top`. No number is further off than (1/2 + top/128) s.
 * |z| <= 2^14, so every s (z + q) is exact in f32 however it is computed, and a part that is decoded and encoded again
 * is the same to the bit. A group whose numbers differ by so little that z would be larger is flat: all of it is its
 * number of the largest magnitude, cut off after 14 bits. A scale below the smallest normal f32 counts as none. A group
 * with a number that is not finite, or that would reach beyond 2^126 when decoded, is NaN. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "int8.h"

enum { PACKED_MOST = 1 << 14, PACKED_HEAD = 4, PACKED_GROUP_MOST = 64 };
/* Words of n codes; of the lower bits alone; bytes of a group of n numbers, and of a part. */
INT8_BOTH int packed_words(int bits, int n) { return (n * bits + 31) / 32; }
INT8_BOTH int packed_low(int bits) { return bits == 3 ? 2 : bits; }
INT8_BOTH size_t packed_group_bytes(int bits, int n) {
    return PACKED_HEAD + 4 * (size_t)(packed_words(packed_low(bits), n) + (bits == 3 ? packed_words(1, n) : 0));
}
INT8_BOTH size_t packed_bytes(int bits, int group, int width) {
    const int rest = width % group;
    return (size_t)(width / group) * packed_group_bytes(bits, group) + (rest ? packed_group_bytes(bits, rest) : 0);
}
typedef struct {
    uint32_t head;
    float scale;
    int zero;
    bool flat; /* all codes are 0 */
} PackedGroup;
INT8_BOTH float packed_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
INT8_BOTH PackedGroup packed_group(uint32_t scale, int zero, bool flat) {
    const PackedGroup g = {(uint32_t)zero << 16 | scale >> 16, packed_float(scale), zero, flat};
    return g;
}
/* Of the smallest and the largest number of a group, and the bits of the largest magnitude, which NaN reaches, too. */
INT8_BOTH PackedGroup packed_rule(float least, float most, uint32_t size, int top) {
    const uint32_t nan = 0x7fc00000u, infinite = 0x7f800000u, normal = 0x00800000u, below = 0xffffu;
    uint32_t scale = part_float_bits((most * 0.5f - least * 0.5f) / (float)top * 2);
    scale = (scale + below) & ~below;
    if (size >= infinite) return packed_group(nan, 0, true);
    const float s = packed_float(scale), far = 0x1p126f;
    if (scale >= normal && packed_float(size) <= s * PACKED_MOST) {
        const float z = rintf(least / s);
        if (!(fabsf(s * z) <= far && fabsf(s * (z + (float)top)) <= far)) return packed_group(nan, 0, true);
        return packed_group(scale, (int)z, false);
    }
    if (size < 14 * normal) return packed_group(0, 0, true);
    scale = (size & infinite) - 13 * normal; /* |x| / s is in 2^13..2^14 */
    return packed_group(scale, (int)((part_float_bits(most) == size ? most : least) / packed_float(scale)), true);
}
INT8_BOTH int packed_code(PackedGroup g, float x, float most, int top) {
    if (g.flat) return 0;
    if (x == most) return top;
    const float q = rintf(x / g.scale) - (float)g.zero;
    return q < 0 ? 0 : q > (float)top ? top : (int)q;
}
INT8_BOTH float packed_number(uint32_t head, int code) {
    return packed_float(head << 16) * (float)((int16_t)(head >> 16) + code);
}
/* Code k of n, which follow a head. */
INT8_BOTH int packed_read(const uint32_t *codes, int bits, int n, int k) {
    const int low = packed_low(bits), at = k * low;
    int q = (int)(codes[at / 32] >> at % 32 & ((1u << low) - 1));
    if (bits == 3) q |= (int)(codes[packed_words(low, n) + k / 32] >> k % 32 & 1u) << 2;
    return q;
}
