/* int8.c: rows in 8 bits with a scale for each key and each value: see ops/int8.h. */
#include "codec.h"
#include "ops/int8.h"

static size_t codec_int8_bytes(const RowCodec *c, int width) { return (void)c, int8_bytes(width); }
uint32_t codec_largest(const real *x, int n) {
    int most = 0; /* the bits of a magnitude are no negative number */
#pragma omp simd reduction(max : most)
    for (int k = 0; k < n; k++) {
        const int magnitude = (int)(part_float_bits((float)x[k]) & 0x7fffffffu);
        most = magnitude > most ? magnitude : most;
    }
    return (uint32_t)most;
}
static void int8_encode(const RowCodec *c, void *part, const real *from, int width) {
    (void)c;
    /* Added and taken away, it leaves the nearest whole number of a small one, ties to even. */
    const real whole = (real)(REAL == F64 ? 6755399441055744.0 : 12582912.0);
    const float scale = int8_scale(codec_largest(from, width));
    int8_t *code = (int8_t *)part + INT8_HEAD;
    memcpy(part, &scale, sizeof scale);
    memset(code, 0, int8_bytes(width) - INT8_HEAD);
    if (!(scale > 0)) return; /* nothing, or NaN, which the scale says */
#pragma omp simd
    for (int k = 0; k < width; k++) {
        const real q = from[k] / (real)scale + whole - whole;
        code[k] = (int8_t)(q > INT8_MOST ? INT8_MOST : q < -INT8_MOST ? -INT8_MOST : q);
    }
}
static void int8_decode(const RowCodec *c, real *to, const void *part, int width) {
    (void)c;
    const int8_t *code = (const int8_t *)part + INT8_HEAD;
    float scale;
    memcpy(&scale, part, sizeof scale);
    for (int k = 0; k < width; k++) to[k] = (real)scale * (real)code[k];
}
const RowCodec codec_int8 = {.name = "int8",
                             .meaning = "in 8 bits, with a scale for each key and each value",
                             .as = ROWS_INT8,
                             .bytes = codec_int8_bytes,
                             .encode = int8_encode,
                             .decode = int8_decode};
