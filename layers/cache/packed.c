/* packed.c: rows in 4, 3 and 2 bits with a scale and a zero for each group of numbers: see ops/packed.h. */
#include "codec.h"
#include "ops/packed.h"

size_t codec_packed_bytes(const RowCodec *c, int width) { return packed_bytes(c->bits, c->group, width); }
void codec_packed_put(uint32_t *codes, int bits, int n, int k, int q) {
    const int low = packed_low(bits);
    codes[k * low / 32] |= ((uint32_t)q & ((1u << low) - 1)) << k * low % 32;
    if (bits == 3) codes[packed_words(low, n) + k / 32] |= (uint32_t)q >> 2 << k % 32;
}
/* The codes of n numbers, as packed_code has them one by one. Added and taken away, `whole` leaves the nearest whole
 * number of one below 2^22, ties to even: a loop without a call, several numbers at a time. */
static void packed_codes(int *code, PackedGroup g, const float *x, int n, float most, int top) {
    const float whole = 12582912.0f, zero = (float)g.zero, last = (float)top;
#pragma omp simd
    for (int k = 0; k < n; k++) {
        const float nearest = (x[k] / g.scale + whole) - whole, q = nearest - zero, least = q < 0 ? 0 : q;
        code[k] = x[k] == most ? top : (int)(least > last ? last : least);
    }
}
/* Words of n codes, `bits` of each from its bit `from` on. Each call has `bits` as a constant. */
static inline __attribute__((always_inline)) void packed_put_words(uint32_t *to, const int *code, int n, int bits,
                                                                   int from) {
    const int each = 32 / bits;
    for (int at = 0; at < n; at += each, to++) {
        uint32_t word = 0;
#pragma GCC unroll 32
        for (int k = 0; k < each; k++) word |= ((uint32_t)code[at + k] >> from & ((1u << bits) - 1)) << k * bits;
        *to = word;
    }
}
void codec_packed_group(uint32_t *to, int bits, const float *x, int n) {
    enum { SOME = 64 }; /* whole words of codes of any bits */
    const int top = (1 << bits) - 1;
    float least = x[0], most = x[0];
    int size = 0; /* the bits of a magnitude are no negative number */
#pragma omp simd reduction(min : least) reduction(max : most, size)
    for (int k = 0; k < n; k++) {
        const int magnitude = (int)(part_float_bits(x[k]) & 0x7fffffffu);
        size = magnitude > size ? magnitude : size;
        least = x[k] < least ? x[k] : least, most = x[k] > most ? x[k] : most;
    }
    const PackedGroup g = packed_rule(least, most, (uint32_t)size, top);
    uint32_t *upper = to + 1 + packed_words(2, n);
    *to++ = g.head;
    for (int at = 0; at < n; at += SOME) {
        const int some = imin(SOME, n - at);
        int code[SOME] = {0};
        if (!g.flat) packed_codes(code, g, x + at, some, most, top);
        if (bits == 4) packed_put_words(to + at / 8, code, some, 4, 0);
        if (bits < 4) packed_put_words(to + at / 16, code, some, 2, 0);
        if (bits == 3) packed_put_words(upper + at / 32, code, some, 1, 2);
    }
}
void codec_packed_encode(const RowCodec *c, void *part, const real *from, int width) {
    uint32_t *to = part;
    for (int at = 0, n; at < width; at += n) {
        float x[PACKED_GROUP_MOST];
        n = imin(c->group, width - at);
        for (int k = 0; k < n; k++) x[k] = (float)from[at + k];
        codec_packed_group(to, c->bits, x, n);
        to += packed_group_bytes(c->bits, n) / 4;
    }
}
void codec_packed_decode(const RowCodec *c, real *to, const void *part, int width) {
    const uint32_t *from = part;
    for (int at = 0, n; at < width; at += n) {
        n = imin(c->group, width - at);
        for (int k = 0; k < n; k++) to[at + k] = (real)packed_number(*from, packed_read(from + 1, c->bits, n, k));
        from += packed_group_bytes(c->bits, n) / 4;
    }
}
#define PACKED(bits_, means)                                                                     \
    {                                                                                            \
        .name = "int" #bits_, .meaning = means, .as = ROWS_PACKED, .bytes = codec_packed_bytes,  \
        .encode = codec_packed_encode, .decode = codec_packed_decode, .bits = bits_, .group = 32 \
    }
const RowCodec codec_int4 = PACKED(4, "in 4 bits, with a scale and a zero for each group of elements"),
               codec_int3 = PACKED(3, "in 3 bits, otherwise as int4"),
               codec_int2 = PACKED(2, "in 2 bits, otherwise as int4");
