/* palu.c: rows as coefficients of a calibrated basis of their layer (ops/row_basis.h), in `bits` bits (bits.c).
 * Source: PALU (arXiv:2407.21118), whose factors of the projections, whitened by the calibration text, give the same
 * rows: the least squared error of what a matrix makes of the text is that of its results projected on the leading
 * directions of their second moment. Its groups are of as many heads as the calibration says, and all of a layer have
 * one rank. Where coefficients are rounded, model/basis.c mixes the directions, as the paper does by a Hadamard matrix.
 *
 * What is stored is the code of the coefficients that a pass made its own rows of (Kv.coef), so a row is never coded
 * twice: products with the basis round, and need not give the same code again. Coefficients that are decoded and
 * encoded again are the same bytes. */
#include "basis.h"
#include "codec.h"

const RowCodec codec_palu = {.name = "palu",
                             .meaning = "as coefficients of directions that a calibration chose for each head or group "
                                        "of heads, in bf16 or fewer bits",
                             .as = ROWS_CODED,
                             .bytes = codec_bits_bytes,
                             .encode = codec_bits_encode,
                             .decode = codec_bits_decode,
                             .bits = 16,
                             .group = 32,
                             .rank = 0.5};

int codec_rank(const RowCodec *c, int width, bool value) {
    const double share = value && c->value_rank > 0 ? c->value_rank : c->rank;
    return share > 0 ? imax(1, (int)floor(share * width + 0.5)) : width;
}

void basis_turns(RowBasis *b, const Rope *r) {
    free(b->pair), free(b->cos);
    b->pairs = r ? r->n / 2 : 0, b->pair = NULL, b->cos = b->sin = NULL;
    if (!b->pairs) return;
    const size_t n = (size_t)b->pairs, turns = (size_t)TURN_DIGITS * TURN_STEPS;
    b->pair = xcalloc(n, sizeof *b->pair);
    b->cos = xcalloc(2 * turns * n, sizeof *b->cos), b->sin = b->cos + turns * n;
    for (int i = 0; i < b->pairs; i++) {
        const int first = r->at + (r->interleaved ? 2 * i : i);
        b->pair[i][0] = first, b->pair[i][1] = first + (r->interleaved ? 1 : b->pairs);
        for (size_t t = 0; t < turns; t++) {
            const double angle = ldexp((double)(t % TURN_STEPS), TURN_BITS * (int)(t / TURN_STEPS)) * r->f[i];
            b->cos[t * n + (size_t)i] = (real)cos(angle), b->sin[t * n + (size_t)i] = (real)sin(angle);
        }
    }
}
void basis_free(RowBasis *b) {
    free(b->pair), free(b->cos);
    for (int i = 0; i < 2; i++) free(b->part[i].direction), free(b->part[i].weight), free(b->part[i].bias);
    *b = (RowBasis){0};
}
