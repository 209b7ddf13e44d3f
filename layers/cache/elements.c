/* elements.c: rows as elements, in f32 and in bf16. */
#include "codec.h"

size_t codec_f32_bytes(const RowCodec *c, int width) { return (void)c, (size_t)width * sizeof(real); }
void codec_f32_encode(const RowCodec *c, void *part, const real *from, int width) {
    memcpy(part, from, codec_f32_bytes(c, width));
}
void codec_f32_decode(const RowCodec *c, real *to, const void *part, int width) {
    memcpy(to, part, codec_f32_bytes(c, width));
}
const RowCodec codec_f32 = {.name = "f32",
                            .meaning = "as they are computed",
                            .as = ROWS_REAL,
                            .bytes = codec_f32_bytes,
                            .encode = codec_f32_encode,
                            .decode = codec_f32_decode};

static size_t bf16_bytes(const RowCodec *c, int width) { return (void)c, (size_t)width * sizeof(uint16_t); }
static void bf16_encode(const RowCodec *c, void *part, const real *from, int width) {
    uint16_t *to = part;
    (void)c;
    for (int k = 0; k < width; k++) to[k] = bf16_from((float)from[k]);
}
static void bf16_decode(const RowCodec *c, real *to, const void *part, int width) {
    const uint16_t *from = part;
    (void)c;
    for (int k = 0; k < width; k++) to[k] = (real)bf16_to(from[k]);
}
const RowCodec codec_bf16 = {.name = "bf16",
                             .meaning = "rounded to the nearest bf16",
                             .as = ROWS_BF16,
                             .bytes = bf16_bytes,
                             .encode = bf16_encode,
                             .decode = bf16_decode};
