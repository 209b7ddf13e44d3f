/* int8.h: rows of the cache in 8 bits, as every backend writes and reads them (ROWS_INT8).
 *
 * A part of w numbers is a f32 scale s and w codes q of a signed byte each, padded to whole words of 4 bytes; a number
 * is s q. s is max |x| / 127, rounded up to 16 significant bits, and q = x / s, rounded to the nearest, ties to even.
 * Such a scale makes every s q and 127 s exact in f32, so that a part which is decoded and encoded again is the same
 * to the bit; the scale stays so small that 127 s is finite. A part whose scale would be below the smallest normal f32
 * is zeros; one with a number that is not finite is NaN. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { INT8_HEAD = 4, INT8_MOST = 127 }; /* bytes before the codes; the largest code */
#ifdef __CUDACC__
    #define INT8_BOTH __host__ __device__ static inline
#else
    #define INT8_BOTH static inline
#endif
INT8_BOTH uint32_t part_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
INT8_BOTH size_t int8_bytes(int width) { return INT8_HEAD + ((size_t)width + 3) / 4 * 4; }
/* Of the bits of the largest |x| as f32, m: as whole numbers these are in the order of the numbers, with infinities and
 * NaN above all others. m / code, rounded up to 16 significant bits; 0 below `least`, no more than `top`, the largest
 * of 16 bits whose product with `code` is finite; both are bits of a f32. */
INT8_BOTH float part_scale_of(uint32_t most, int code, uint32_t least, uint32_t top) {
    const uint32_t infinite = 0x7f800000u, nan = 0x7fc00000u, below = 0xffu;
    float x, scale;
    uint32_t bits;
    memcpy(&x, &most, sizeof x);
    scale = x / (float)code;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + below) & ~below;
    if (bits > top) bits = top;
    if (most >= infinite) bits = nan;
    if (bits < least) bits = 0;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}
INT8_BOTH float int8_scale(uint32_t most) { return part_scale_of(most, INT8_MOST, 0x00800000u, 0x7c010200u); }
