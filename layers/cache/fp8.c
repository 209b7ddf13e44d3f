/* fp8.c: rows in fp8 with a scale for each key and each value: see ops/fp8.h. */
#include "codec.h"
#include "ops/fp8.h"

static size_t codec_fp8_bytes(const RowCodec *c, int width) { return (void)c, fp8_bytes(width); }
static void fp8_encode(const RowCodec *c, void *part, const real *from, int width) {
    (void)c;
    const float scale = fp8_scale(codec_largest(from, width));
    uint8_t *code = (uint8_t *)part + FP8_HEAD;
    memcpy(part, &scale, sizeof scale);
    memset(code, 0, fp8_bytes(width) - FP8_HEAD);
    if (!(scale > 0)) return; /* nothing, or NaN, which the scale says */
    for (int k = 0; k < width; k++) code[k] = fp8_code((float)from[k] / scale);
}
static void fp8_decode(const RowCodec *c, real *to, const void *part, int width) {
    (void)c;
    const uint8_t *code = (const uint8_t *)part + FP8_HEAD;
    float scale;
    memcpy(&scale, part, sizeof scale);
    for (int k = 0; k < width; k++) to[k] = (real)(scale * fp8_number(code[k]));
}
const RowCodec codec_fp8 = {.name = "fp8",
                            .meaning = "e4m3 with a scale for each key and each value",
                            .as = ROWS_FP8,
                            .bytes = codec_fp8_bytes,
                            .encode = fp8_encode,
                            .decode = fp8_decode};
