/* minicache.c: blocks of 64 rows of two neighbouring layers that are merged: ops/merged.h has the bytes. Of a row whose
 * keys (or values) in the lower and the upper layer are x0 and x1:
 *   u0 = x0 / |x0|,  u1 = x1 / |x1|,  a = the angle between them
 *   e = sin((1 - t) a) / sin a * u0 + sin(t a) / sin a * u1       t: RowCodec.toward
 *   x0' = |x0| e,  x1' = |x1| e
 * Where sin a is at most 1e-6, e = (1 - t) u0 + t u1. Where one of both is 0, e is the direction of the other. The rows
 * with the largest angles stay apart; of equal angles older rows; rows that are not finite before all others. Source:
 * MiniCache (arXiv:2405.14366, section 4), which merges whole prompts and keeps rows apart by a threshold of the angle.
 * Here each block of 64 rows has the same number of them, and is merged when both layers have filled it. */
#include "codec.h"
#include "ops/merged.h"

static const double MERGED_FLAT = 1e-6; /* a sine of an angle that counts as none */
typedef struct {
    double norm[2][MERGED_ROWS];
    double cosine[MERGED_ROWS]; /* NaN: a row is not finite */
} Compared;
static double minicache_norm(const real *x, int n) {
    double most = 0, sum = 0;
    for (int k = 0; k < n; k++) {
        const double size = fabs((double)x[k]);
        if (!(size <= most)) most = size;
        if (size != size) return NAN;
    }
    if (!(most > 0 && most < INFINITY)) return most;
    for (int k = 0; k < n; k++) sum += (double)x[k] / most * ((double)x[k] / most);
    return most * sqrt(sum);
}
static void minicache_compare(Compared *to, const real *const x[2], int width) {
    for (int j = 0; j < MERGED_ROWS; j++) {
        const real *row[2] = {x[0] + (size_t)j * (size_t)width, x[1] + (size_t)j * (size_t)width};
        double dot = 0;
        for (int of = 0; of < 2; of++) to->norm[of][j] = minicache_norm(row[of], width);
        const double a = to->norm[0][j], b = to->norm[1][j];
        for (int k = 0; k < width && a > 0 && b > 0; k++) dot += (double)row[0][k] / a * ((double)row[1][k] / b);
        to->cosine[j] = a == 0 || b == 0 ? 1 : dot > 1 ? 1 : dot < -1 ? -1 : dot;
        if (!(a < INFINITY && b < INFINITY)) to->cosine[j] = NAN;
    }
}
static void minicache_choose(const Compared *x, int apart, uint32_t mask[MERGED_ROWS / 32]) {
    double cosine[MERGED_ROWS];
    for (int j = 0; j < MERGED_ROWS; j++) cosine[j] = x->cosine[j] == x->cosine[j] ? x->cosine[j] : -2;
    for (int j = 0; j < MERGED_ROWS; j++) {
        int before = 0;
        for (int i = 0; i < MERGED_ROWS; i++) before += cosine[i] < cosine[j] || (cosine[i] == cosine[j] && i < j);
        if (before < apart) mask[j / 32] |= 1u << j % 32;
    }
}
/* The direction of row j that both layers share. */
static void minicache_merge(const RowCodec *c, real *to, const Compared *x, const real *const rows[2], int j,
                            int width) {
    const double t = c->toward, angle = acos(x->cosine[j]), sine = sin(angle);
    double w[2] = {1 - t, t};
    if (sine > MERGED_FLAT) w[0] = sin((1 - t) * angle) / sine, w[1] = sin(t * angle) / sine;
    if (x->norm[0][j] == 0) w[0] = 0, w[1] = 1;
    if (x->norm[1][j] == 0) w[0] = 1, w[1] = 0;
    for (int k = 0; k < width; k++) {
        double sum = 0;
        for (int of = 0; of < 2; of++)
            if (x->norm[of][j] != 0)
                sum += w[of] * ((double)rows[of][(size_t)j * (size_t)width + (size_t)k] / x->norm[of][j]);
        to[k] = (real)sum;
    }
}
static void minicache_put_norm(const RowCodec *c, const MergedPart *p, char *block, int of, int i, double norm) {
    const real x = (real)norm;
    const uint16_t half = bf16_from((float)norm);
    if (c->bits == 32)
        memcpy(block + p->norms[of] + (size_t)i * sizeof x, &x, sizeof x);
    else
        memcpy(block + p->norms[of] + 2 * (size_t)i, &half, sizeof half);
}
static void minicache_put_row(const RowCodec *c, const MergedPart *p, char *block, int of, int i, const real *row) {
    char *to = block + p->alone[of] + (size_t)i * p->row;
    if (merged_narrow(c))
        codec_int8.encode(&codec_int8, to, row, p->width);
    else
        c->piece_encode(c, to, row, p->width);
}
/* Keys (by_element) or values of both layers, x (64,width). */
static void minicache_part(const RowCodec *c, const MergedShape *s, const MergedPart *p, char *const block[2],
                           const real *const x[2], bool by_element) {
    const size_t width = (size_t)p->width;
    real *e = xcalloc(MERGED_ROWS * width + MERGED_ROWS, sizeof *e), *piece = e + MERGED_ROWS * width;
    uint32_t mask[MERGED_ROWS / 32] = {0};
    uint8_t place[MERGED_ROWS];
    Compared y;
    minicache_compare(&y, x, p->width);
    minicache_choose(&y, s->apart, mask);
    memcpy(block[0] + p->mask, mask, sizeof mask);
    merged_places(s, p, block[0], place);
    for (int j = 0; j < MERGED_ROWS; j++) {
        const int i = place[j] - s->apart;
        for (int of = 0; of < 2; of++) {
            if (i < 0) minicache_put_row(c, p, block[of], of, place[j], x[of] + (size_t)j * width);
            if (i >= 0) minicache_put_norm(c, p, block[of], of, i, y.norm[of][j]);
        }
        if (i < 0) continue;
        minicache_merge(c, e + (size_t)j * width, &y, x, j, p->width);
        if (!by_element)
            c->piece_encode(c, block[0] + p->directions + (size_t)i * p->piece, e + (size_t)j * width, p->width);
    }
    for (size_t k = 0; by_element && s->merged && k < width; k++) {
        for (size_t j = 0; j < MERGED_ROWS; j++) piece[j] = e[j * width + k];
        c->piece_encode(c, block[0] + p->directions + k * p->piece, piece, MERGED_ROWS);
    }
    free(e);
}
static void minicache_encode(const RowCodec *c, void *const block[2], const real *const keys[2],
                             const real *const values[2], int kdim, int vdim) {
    const MergedShape s = merged_shape(c, kdim, vdim);
    char *const to[2] = {block[0], block[1]};
    for (int of = 0; of < 2; of++) memset(to[of], 0, s.bytes[of]);
    minicache_part(c, &s, &s.part[0], to, keys, true);
    if (vdim) minicache_part(c, &s, &s.part[1], to, values, false);
}
static size_t minicache_bytes(const RowCodec *c, int kdim, int vdim) {
    return merged_shape(c, kdim, vdim).bytes[c->pair == PAIR_UPPER];
}
static void minicache_keys(const RowCodec *c, const MergedShape *s, real *to, const char *lower, const char *own,
                           int of) {
    const MergedPart *p = &s->part[0];
    real *row = xcalloc((size_t)p->width, sizeof *row);
    uint8_t place[MERGED_ROWS];
    merged_places(s, p, lower, place);
    for (int k = 0; k < p->width && s->merged; k++)
        c->piece_decode(c, to + (size_t)k * MERGED_ROWS, lower + p->directions + (size_t)k * p->piece, MERGED_ROWS);
    for (int j = 0; j < MERGED_ROWS; j++) {
        const int i = place[j] - s->apart;
        const real norm = i < 0 ? 0 : merged_norm(c, p, own, of, i);
        if (i < 0) merged_row(c, p, row, own, of, place[j]);
        for (size_t k = 0; k < (size_t)p->width; k++) {
            real *x = to + k * MERGED_ROWS + (size_t)j;
            *x = i < 0 ? row[k] : norm * *x;
        }
    }
    free(row);
}
static void minicache_values(const RowCodec *c, const MergedShape *s, real *to, const char *lower, const char *own,
                             int of) {
    const MergedPart *p = &s->part[1];
    uint8_t place[MERGED_ROWS];
    merged_places(s, p, lower, place);
    for (int j = 0; j < MERGED_ROWS; j++, to += p->width) {
        const int i = place[j] - s->apart;
        if (i < 0) {
            merged_row(c, p, to, own, of, place[j]);
            continue;
        }
        const real norm = merged_norm(c, p, own, of, i);
        c->piece_decode(c, to, lower + p->directions + (size_t)i * p->piece, p->width);
        for (int k = 0; k < p->width; k++) to[k] *= norm;
    }
}
static void minicache_decode(const RowCodec *c, real *keys, real *values, const void *block, const void *below,
                             int kdim, int vdim) {
    const MergedShape s = merged_shape(c, kdim, vdim);
    const int of = c->pair == PAIR_UPPER;
    const char *lower = of ? below : block;
    if (keys) minicache_keys(c, &s, keys, lower, block, of);
    if (values && vdim) minicache_values(c, &s, values, lower, block, of);
}
RowCodec codec_paired(const RowCodec *c, RowPair pair) {
    RowCodec own = *c;
    CHECK(c->merges && pair != PAIR_NONE, "%s as one of a pair", c->name);
    own.pair = pair, own.block_bytes = minicache_bytes, own.block_decode = minicache_decode;
    return own;
}
const RowCodec codec_minicache = {.name = "minicache",
                                  .meaning =
                                      "64 rows together, in bf16 or fewer bits; two deep layers share directions",
                                  .as = ROWS_REAL,
                                  .bytes = codec_f32_bytes,
                                  .encode = codec_f32_encode,
                                  .decode = codec_f32_decode,
                                  .bits = 16,
                                  .group = 32,
                                  .block = MERGED_ROWS,
                                  .piece_bytes = codec_bits_bytes,
                                  .piece_encode = codec_bits_encode,
                                  .piece_decode = codec_bits_decode,
                                  .merges = true,
                                  .from = 0.5,
                                  .toward = 0.6,
                                  .share = 0.1,
                                  .pair_encode = minicache_encode};
