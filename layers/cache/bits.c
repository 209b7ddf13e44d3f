/* bits.c: a part in RowCodec.bits bits an element, for codecs that let the user choose: as `real`s (32), in bf16 (16),
 * as int8 (8) or in packed codes (4, 3 and 2). In whole words. */
#include "codec.h"

size_t codec_bits_bytes(const RowCodec *c, int width) {
    if (c->bits == 32) return codec_f32_bytes(c, width);
    if (c->bits == 16) return ((size_t)width + 1) / 2 * 4;
    return c->bits == 8 ? codec_int8.bytes(c, width) : codec_packed_bytes(c, width);
}
void codec_bits_encode(const RowCodec *c, void *part, const real *from, int width) {
    uint16_t *to = part;
    if (c->bits == 32) codec_f32_encode(c, part, from, width);
    if (c->bits == 8) codec_int8.encode(c, part, from, width);
    if (c->bits < 8) codec_packed_encode(c, part, from, width);
    if (c->bits != 16) return;
    for (int k = 0; k < width; k++) to[k] = bf16_from((float)from[k]);
    if (width % 2) to[width] = 0;
}
void codec_bits_decode(const RowCodec *c, real *to, const void *part, int width) {
    const uint16_t *from = part;
    if (c->bits == 32) codec_f32_decode(c, to, part, width);
    if (c->bits == 8) codec_int8.decode(c, to, part, width);
    if (c->bits < 8) codec_packed_decode(c, to, part, width);
    for (int k = 0; c->bits == 16 && k < width; k++) to[k] = (real)bf16_to(from[k]);
}
