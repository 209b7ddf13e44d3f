/* kvquant.c: blocks of 64 rows in 4, 3 and 2 bits, as kivi.c has them, with three differences:
 * - levels: a code means one of 2^bits levels, which lie closer together near the middle of a group than at its ends;
 * - apart: of each group the number furthest from the others is stored by itself, in bf16, and the others share a scale
 *   that it does not widen;
 * - turned: keys are stored before their rotation by position, up to one that all keys of a block have in common: a key
 *   is turned back by its place in the block. Elements that are rotated fast then differ as little from row to row as
 *   the others.
 * Source: KVQuant (arXiv:2401.18079, sections 3.2 to 3.5). Its levels come from a calibration for each layer; these are
 * the same for all: the means of k-means clusters of normal numbers, 64 at a time without the furthest one, scaled to
 * -1..1 (tests/golden/make_codecs.py computes them). Its keys have their scales from a calibration, too, and the first
 * token of a text stays as it is.
 *
 * ops/levels.h says how a group is stored. Its scale and zero are
 *   s = max((most - least) / 2, |middle| / 128), rounded up to a bf16;  z = middle / s in 64ths, to the nearest;
 * least, most and middle without the number apart. The nearest level has the code, of two the lower. A scale below
 * 2^-100 counts as 0. A group with a number that is not finite, or beyond 2^120, is NaN. */
#include "codec.h"
#include "ops/levels.h"

static size_t kvquant_bytes(const RowCodec *c, int width) {
    const int rest = width % c->group;
    return (size_t)(width / c->group) * levels_group_bytes(c, c->group) + (rest ? levels_group_bytes(c, rest) : 0);
}
/* The place of the number without which the others differ least; of two the largest's. */
static int kvquant_furthest(const float *x, int n) {
    int least = 0, most = 0;
    for (int k = 1; k < n; k++) {
        if (x[k] < x[least]) least = k;
        if (x[k] > x[most]) most = k;
    }
    float low = x[most], high = x[least];
    for (int k = 0; k < n; k++) {
        if (k != least && x[k] < low) low = x[k];
        if (k != most && x[k] > high) high = x[k];
    }
    return x[most] - high >= low - x[least] ? most : least;
}
/* The head of a group's numbers without number `apart`. */
static PackedGroup kvquant_scale(const float *x, int n, int apart) {
    float least = INFINITY, most = -INFINITY, size = 0;
    for (int k = 0; k < n; k++) {
        size = fabsf(x[k]) <= 0x1p120f ? fmaxf(size, fabsf(x[k])) : INFINITY;
        if (k != apart) least = fminf(least, x[k]), most = fmaxf(most, x[k]);
        if (size == INFINITY) return packed_group(0x7fc00000u, 0, true);
    }
    if (least > most) return packed_group(0, 0, true); /* there are no others */
    const float middle = (least + most) * 0.5f, half = (most - least) * 0.5f;
    const uint32_t bits = part_float_bits(fmaxf(half, fabsf(middle) / 128)), scale = (bits + 0xffffu) & ~0xffffu;
    const float s = packed_float(scale);
    if (s < 0x1p-100f) return packed_group(0, 0, true);
    return packed_group(scale, (int)rintf(middle / s * 64), false);
}
static int kvquant_code(const RowCodec *c, PackedGroup g, float x) {
    const float at = x / g.scale * LEVELS_UNIT - (float)(4 * g.zero);
    int q = 0;
    while (q + 1 < 1 << c->bits && (float)(c->levels[q] + c->levels[q + 1]) * 0.5f < at) q++;
    return q;
}
static void kvquant_encode(const RowCodec *c, void *piece, const real *from, int width) {
    uint32_t *to = piece;
    memset(piece, 0, kvquant_bytes(c, width));
    for (int at = 0, n; at < width; at += n) {
        float x[PACKED_GROUP_MOST];
        n = imin(c->group, width - at);
        for (int k = 0; k < n; k++) x[k] = (float)from[at + k];
        const int apart = c->apart ? kvquant_furthest(x, n) : -1;
        const PackedGroup g = kvquant_scale(x, n, apart);
        to[0] = g.head;
        if (c->apart) to[1] = (uint32_t)bf16_from(x[apart]) << 16 | (uint32_t)apart;
        for (int k = 0; k < n && !g.flat; k++)
            if (k != apart) codec_packed_put(to + levels_head(c) / 4, c->bits, n, k, kvquant_code(c, g, x[k]));
        to += levels_group_bytes(c, n) / 4;
    }
}
/* Elements of the codes that follow a head. Each call has its bits as a constant. */
static inline void kvquant_read(real *to, const float *table, const uint32_t *codes, int bits, int n) {
    for (int k = 0; k < n; k++) to[k] = (real)table[packed_read(codes, bits, n, k)];
}
static void kvquant_decode(const RowCodec *c, real *to, const void *piece, int width) {
    const uint32_t *from = piece;
    for (int at = 0, n; at < width; at += n) {
        const uint32_t *codes = from + levels_head(c) / 4;
        float table[LEVELS_MOST];
        n = imin(c->group, width - at);
        levels_table(c, from, table);
        if (c->bits == 4) kvquant_read(to + at, table, codes, 4, n);
        if (c->bits == 3) kvquant_read(to + at, table, codes, 3, n);
        if (c->bits == 2) kvquant_read(to + at, table, codes, 2, n);
        levels_apart(c, from, to + at, n);
        from += levels_group_bytes(c, n) / 4;
    }
}

static const short levels4[16] = {-247, -203, -164, -130, -99, -70, -41, -14, 14, 41, 70, 99, 130, 164, 203, 247},
                   levels3[8] = {-227, -148, -85, -28, 28, 85, 148, 227}, levels2[4] = {-178, -54, 54, 178};
#define KVQUANT(bits_, means)                                                                            \
    {                                                                                                    \
        .name = "kvquant" #bits_, .meaning = means, .as = ROWS_REAL, .bytes = codec_f32_bytes,           \
        .encode = codec_f32_encode, .decode = codec_f32_decode, .bits = bits_, .group = 64, .block = 64, \
        .turned = true, .apart = true, .levels = levels##bits_, .piece_bytes = kvquant_bytes,            \
        .piece_encode = kvquant_encode, .piece_decode = kvquant_decode                                   \
    }
const RowCodec codec_kvquant4 = KVQUANT(4, "as kivi4, with uneven levels, keys as before their rotation, one of 64 "
                                           "elements apart"),
               codec_kvquant3 = KVQUANT(3, "in 3 bits, otherwise as kvquant4"),
               codec_kvquant2 = KVQUANT(2, "in 2 bits, otherwise as kvquant4");
