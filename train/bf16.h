/* bf16.h: the upper half of a float, for sums between ranks. */
#pragma once
#include <stdint.h>

static inline float bf16_value(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)h << 16};
    return x.f;
}
/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t bf16_round(float v) {
    union {
        float f;
        uint32_t u;
    } x = {v};
    if (v != v) return (uint16_t)(x.u >> 16 | 64);
    return (uint16_t)((x.u + 0x7FFF + (x.u >> 16 & 1)) >> 16);
}
