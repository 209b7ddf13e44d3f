/* packed.c: rows in 4, 3 and 2 bits with a scale and a zero for each group of numbers: see ops/packed.h. */
#include "codec.h"
#include "ops/packed.h"

size_t codec_packed_bytes(const RowCodec *c, int width) { return packed_bytes(c->bits, c->group, width); }
void codec_packed_put(uint32_t *codes, int bits, int n, int k, int q) {
    const int low = packed_low(bits);
    codes[k * low / 32] |= ((uint32_t)q & ((1u << low) - 1)) << k * low % 32;
    if (bits == 3) codes[packed_words(low, n) + k / 32] |= (uint32_t)q >> 2 << k % 32;
}
void codec_packed_group(uint32_t *to, int bits, const float *x, int n) {
    const int top = (1 << bits) - 1;
    float least = x[0], most = x[0];
    uint32_t size = 0;
    for (int k = 0; k < n; k++) {
        const uint32_t magnitude = packed_float_bits(x[k]) & 0x7fffffffu;
        size = magnitude > size ? magnitude : size;
        least = x[k] < least ? x[k] : least, most = x[k] > most ? x[k] : most;
    }
    const PackedGroup g = packed_rule(least, most, size, top);
    memset(to, 0, packed_group_bytes(bits, n));
    *to = g.head;
    for (int k = 0; k < n && !g.flat; k++) codec_packed_put(to + 1, bits, n, k, packed_code(g, x[k], most, top));
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
