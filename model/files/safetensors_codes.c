/* safetensors_codes.c: the values of quantised entries: a code of 8 or 4 bits times the scale of its block. */
#include "ops/fp8.h"
#include "safetensors_scale.h"

static float scale_factor(const StScale *q, size_t i) {
    uint32_t w = 0;
    float f;
    if (q->is_mxfp4) return ldexpf(1, q->factor[i] - 127); /* 128: infinity, as in PyTorch */
    const size_t size = dtype_size(q->as);
    for (size_t k = size; k-- > 0;) w = w << 8 | q->factor[i * size + k];
    if (q->as == BF16) return bf16_to((uint16_t)w);
    memcpy(&f, &w, 4);
    return f;
}
static float scale_code(const StScale *q, size_t i) {
    static const float e2m1[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    if (q->is_mxfp4) return e2m1[q->code[i / 2] >> i % 2 * 4 & 15];
    return (q->code[i] & 0x7F) == 0x7F ? NAN : fp8_number(q->code[i]);
}
void st_scaled(const StEntry *s, size_t from, size_t step, size_t n, float *out) {
    const StScale *q = s->scale;
    from += (size_t)(s->p - q->code) * (q->is_mxfp4 ? 2 : 1); /* of rows of an entry, of which s begins later */
    for (size_t i = 0, run; i < n; i += run) {
        const size_t at = from + i * step, row = at / q->width, col = at % q->width;
        const float factor = scale_factor(q, row / q->rows * q->across + col / q->cols);
        run = step == 1 ? zmin(n - i, zmin(q->cols - col % q->cols, q->width - col)) : 1;
        for (size_t k = 0; k < run; k++) out[i + k] = scale_code(q, at + k) * factor;
    }
}

Dtype st_scaled_as(const StEntry *s) { return s->scale->is_mxfp4 ? BF16 : F32; }
