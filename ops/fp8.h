/* fp8.h: rows of the cache in fp8, as every backend writes and reads them (ROWS_FP8).
 *
 * A part of w numbers is a f32 scale s and w codes of a byte each, padded to whole words of 4 bytes; a number is s c,
 * c an e4m3 number: sign, 4 bits of exponent with bias 7, 3 of fraction, subnormals, no infinity, largest 448 (OCP
 * 8-bit floating point, E4M3). s is max |x| / 448, rounded up to 16 significant bits, and c = x / s, rounded to the
 * nearest, ties to even. Every s c is exact in f32, so a part that is decoded and encoded again is the same to the bit.
 * A part whose scale would be below 2^-117 is zeros; one with a number that is not finite is NaN. */
#pragma once
#include "int8.h"

enum { FP8_HEAD = 4, FP8_LARGEST = 0x7e };
INT8_BOTH size_t fp8_bytes(int width) { return int8_bytes(width); }
INT8_BOTH float fp8_scale(uint32_t most) { return part_scale_of(most, 448, 0x05000000u, 0x7b124900u); }
/* The nearest e4m3 number. x is finite, and above 448 by no more than rounding. */
INT8_BOTH uint8_t fp8_code(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    uint32_t code;
    if (size < 0x3c800000u) { /* below 2^-6: steps of 2^-9, found by adding a number whose last bit is worth that */
        float y;
        memcpy(&y, &size, sizeof y);
        y += 16384.0f;
        memcpy(&code, &y, sizeof code);
        code -= 0x46800000u;
    } else
        code = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
    return (uint8_t)(sign | (code > FP8_LARGEST ? (uint32_t)FP8_LARGEST : code));
}
INT8_BOTH float fp8_number(uint8_t code) {
    const uint32_t size = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t bits = (size << 20) + (120u << 23);
    float x;
    if (size < 8) bits += 1u << 23; /* of a subnormal: 2^-6 too much */
    memcpy(&x, &bits, sizeof x);
    if (size < 8) x -= 0.015625f;
    memcpy(&bits, &x, sizeof bits);
    bits |= sign;
    memcpy(&x, &bits, sizeof x);
    return x;
}
