/* zipcache.c: blocks of 64 rows of which the salient ones have more bits than the others: see ops/salient.h for the
 * bytes, salient.c for which rows are salient. Keys have a scale and a zero for each element and each of the two kinds
 * of rows. Values are divided by a scale of each element, the square root of its largest magnitude in the block; then
 * each has one scale and one zero. Source: ZipCache (arXiv:2405.14256, sections 3.2 to 3.4), which orders all rows of a
 * prompt by what its last queries and random ones say; here a block's rows are ordered when it is full, by queries of
 * the block. */
#include "codec.h"
#include "ops/salient.h"

static size_t zipcache_bytes(const RowCodec *c, int kdim, int vdim) { return salient_shape(c, kdim, vdim).bytes; }
/* The rows with the highest scores: their bits. Of equal scores older rows; NaN last. */
static void zipcache_choose(const SalientShape *s, const real *score, uint32_t mask[SALIENT_ROWS / 32]) {
    real x[SALIENT_ROWS];
    for (int j = 0; j < SALIENT_ROWS; j++) x[j] = score[j] == score[j] ? score[j] : -(real)INFINITY;
    for (int j = 0; j < SALIENT_ROWS; j++) {
        int before = 0;
        for (int i = 0; i < SALIENT_ROWS; i++) before += x[i] > x[j] || (x[i] == x[j] && i < j);
        if (before < s->n[0]) mask[j / 32] |= 1u << j % 32;
    }
}
static void zipcache_keys(const SalientShape *s, char *to, const real *keys, int kdim, const uint8_t *place) {
    for (int k = 0; k < kdim; k++, keys += SALIENT_ROWS) {
        float x[SALIENT_ROWS];
        for (int j = 0; j < SALIENT_ROWS; j++) x[place[j]] = (float)keys[j];
        for (int i = 0; i < 2; to += s->key[i++])
            if (s->n[i]) codec_packed_group((uint32_t *)to, s->bits[i], x + i * s->n[0], s->n[i]);
    }
}
/* 1 where all are 0 or one is not finite, which then stays so. */
static float zipcache_scale(const real *values, int vdim) {
    float most = 0;
    for (int j = 0; j < SALIENT_ROWS; j++) {
        const float x = fabsf((float)values[(size_t)j * (size_t)vdim]);
        if (!(x < INFINITY)) return 1;
        most = fmaxf(most, x);
    }
    return most > 0 ? bf16_to(bf16_from(sqrtf(most))) : 1;
}
static void zipcache_values(const SalientShape *s, char *block, const real *values, int vdim, const uint8_t *place) {
    const size_t D = (size_t)vdim;
    float *scale = xcalloc(2 * D, sizeof *scale), *x = scale + D;
    for (size_t k = 0; k < D; k++) {
        scale[k] = zipcache_scale(values + k, vdim);
        const uint16_t half = bf16_from(scale[k]);
        memcpy(block + s->scales + 2 * k, &half, sizeof half);
    }
    for (size_t j = 0; j < SALIENT_ROWS; j++) {
        for (size_t k = 0; k < D; k++) x[k] = (float)values[j * D + k] / scale[k];
        codec_packed_group((uint32_t *)(block + salient_value(s, place[j])), s->bits[place[j] >= s->n[0]], x, vdim);
    }
    free(scale);
}
static void zipcache_encode(const RowCodec *c, void *block, const real *keys, const real *values, int kdim, int vdim,
                            const real *score) {
    const SalientShape s = salient_shape(c, kdim, vdim);
    uint32_t mask[SALIENT_ROWS / 32] = {0};
    uint8_t place[SALIENT_ROWS];
    memset(block, 0, s.bytes);
    zipcache_choose(&s, score, mask);
    memcpy(block, mask, sizeof mask);
    salient_places(&s, block, place);
    zipcache_keys(&s, (char *)block + s.keys, keys, kdim, place);
    if (vdim) zipcache_values(&s, block, values, vdim, place);
}
static void zipcache_decode(const RowCodec *c, real *keys, real *values, const void *block, const void *below, int kdim,
                            int vdim) {
    const SalientShape s = salient_shape(c, kdim, vdim);
    (void)below;
    const char *in = (const char *)block;
    uint8_t place[SALIENT_ROWS];
    salient_places(&s, block, place);
    for (int k = 0; keys && k < kdim; k++)
        for (int j = 0; j < SALIENT_ROWS; j++) {
            const int class = place[j] >= s.n[0];
            const uint32_t *group =
                (const void *)(in + s.keys + (size_t)k * (s.key[0] + s.key[1]) + (class ? s.key[0] : 0));
            const int code = packed_read(group + 1, s.bits[class], s.n[class], place[j] - class * s.n[0]);
            keys[k * SALIENT_ROWS + j] = (real)packed_number(*group, code);
        }
    for (int j = 0; values && vdim && j < SALIENT_ROWS; j++) {
        const uint32_t *group = (const void *)(in + salient_value(&s, place[j]));
        for (int k = 0; k < vdim; k++) {
            const float x = packed_number(*group, packed_read(group + 1, s.bits[place[j] >= s.n[0]], vdim, k));
            values[(size_t)j * (size_t)vdim + (size_t)k] = (real)(salient_scale(&s, in, k) * x);
        }
    }
}
const RowCodec codec_zipcache = {.name = "zipcache",
                                 .meaning =
                                     "64 rows together, those with the most attention in 4 bits, the others in 2",
                                 .as = ROWS_REAL,
                                 .bytes = codec_f32_bytes,
                                 .encode = codec_f32_encode,
                                 .decode = codec_f32_decode,
                                 .bits = 2,
                                 .salient_bits = 4,
                                 .share = 0.6,
                                 .probes = 8,
                                 .block = SALIENT_ROWS,
                                 .block_bytes = zipcache_bytes,
                                 .block_encode = zipcache_encode,
                                 .block_decode = zipcache_decode};
