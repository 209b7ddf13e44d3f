/* pairs.c: elements in pairs, one code for two: the nearest of 16, 64 or 256 points of the plane, which is 2, 3 or 4
 * bits an element. The points have the least mean squared distance from two independent normal numbers (pairs.h), and
 * residuals that have been mixed are near to normal. Source: HIGGS (arXiv:2411.17525), whose grids these are with
 * p = 2; it has one scale for 1,024 elements, here a group has one.
 *
 * A part is cut into groups of RowCodec.group elements, the last may be shorter. Its scales, a bf16 for each group,
 * come first, up to a whole word; then the codes of all pairs, 4, 6 or 8 bits each, one after the other from the lowest
 * bit on, up to a whole word. The elements of a pair are s times its point; of an odd number the last is s times the
 * first coordinate of its own. A product of a scale and a point is exact in f32.
 *
 * The scale is at first the root of the group's mean square. It is then that of the least squared error with the codes
 * chosen, PAIRS_FITS times. A scale below 2^-100 counts as 0. A group with an element that is not finite, or beyond
 * 2^125, is NaN. A group that is some scale times points has no error: the code is that of the first point, in the
 * order of the grid, which the first element that is not 0 can have. So what was decoded has the same bytes again. */
#include "codec.h"
#include "pairs.h"

enum { PAIRS_MOST = 256, PAIRS_GROUP = 64, PAIRS_FITS = 2 };
typedef struct {
    int n, bits; /* points; of a code */
    const short (*point)[2];
    float x[PAIRS_MOST], y[PAIRS_MOST]; /* the same as numbers */
} PairsGrid;
static const short (*pairs_points(int bits))[2] { return bits == 4 ? pairs256 : bits == 3 ? pairs64 : pairs16; }
static void pairs_grid(PairsGrid *g, int bits) {
    CHECK(bits >= 2 && bits <= 4, "%d bits", bits);
    g->bits = 2 * bits, g->n = 1 << g->bits, g->point = pairs_points(bits);
    for (int p = 0; p < g->n; p++) {
        g->x[p] = (float)g->point[p][0] / PAIRS_UNIT;
        g->y[p] = (float)g->point[p][1] / PAIRS_UNIT;
    }
}

/* ---- bytes -------------------------------------------------------------------------------------------------------*/

static size_t pairs_head(const RowCodec *c, int width) {
    return (size_t)((width + c->group - 1) / c->group + 1) / 2 * 4;
}
size_t codec_pairs_bytes(const RowCodec *c, int width) {
    return pairs_head(c, width) + (size_t)((width + 1) / 2 * 2 * c->bits + 31) / 32 * 4;
}
static void pairs_put(unsigned char *to, int bits, int i, int code) {
    const int at = i * bits;
    to[at / 8] |= (unsigned char)(code << at % 8);
    if (at % 8 + bits > 8) to[at / 8 + 1] |= (unsigned char)(code >> (8 - at % 8));
}
static inline int pairs_get(const unsigned char *from, int bits, int i) {
    const int at = i * bits;
    int word = from[at / 8];
    if (at % 8 + bits > 8) word |= from[at / 8 + 1] << 8;
    return word >> at % 8 & ((1 << bits) - 1);
}

/* ---- the nearest points ------------------------------------------------------------------------------------------*/

/* The point nearest to (u,v), of `two` false to u alone; of those that are equally near the first. They ascend by x. */
static int pairs_near(const PairsGrid *g, float u, float v, bool two) {
    float least = INFINITY;
    int at = 0, above = 0;
    for (int step = g->n / 2; step; step /= 2) above += g->x[above + step - 1] < u ? step : 0;
    for (int way = 1; way >= -1; way -= 2)
        for (int p = way > 0 ? above : above - 1; p >= 0 && p < g->n; p += way) {
            const float a = u - g->x[p], b = two ? v - g->y[p] : 0, off = a * a + b * b;
            if (!(a * a <= least)) break;
            if (off < least || (off == least && p < at)) least = off, at = p;
        }
    return at;
}
/* The codes of n elements. */
static void pairs_nearest(const PairsGrid *g, const float *x, int n, float scale, int *code) {
    for (int i = 0; i < n; i += 2) {
        const bool two = i + 1 < n;
        code[i / 2] = pairs_near(g, x[i] / scale, two ? x[i + 1] / scale : 0, two);
    }
}
/* A bf16, and neither negative nor too small. */
static bool pairs_scales(float scale) {
    return isfinite(scale) && scale >= 0x1p-100f && bf16_to(bf16_from(scale)) == scale;
}
/* The scale and the codes of n elements that are a scale times points; false: they are not. */
static bool pairs_again(const PairsGrid *g, const float *x, int n, float *scale, int *code) {
    int k = 0;
    while (k < n && x[k] == 0) k++;
    for (int p = 0; p < g->n && k < n; p++) {
        const double by = (double)g->point[p][k % 2] / PAIRS_UNIT, s = by != 0 ? (double)x[k] / by : 0;
        bool same = s > 0 && (double)(float)s == s && pairs_scales((float)s);
        if (!same) continue;
        pairs_nearest(g, x, n, (float)s, code);
        for (int i = 0; i < n && same; i++) same = x[i] == (float)s * (i % 2 ? g->y[code[i / 2]] : g->x[code[i / 2]]);
        if (same) return *scale = (float)s, true;
    }
    return false;
}
/* The scale with the least squared error, these codes given; as it was, where there is none. */
static float pairs_fit(const PairsGrid *g, const float *x, int n, float scale, const int *code) {
    double with = 0, own = 0;
    for (int i = 0; i < n; i++) {
        const double p = (double)(i % 2 ? g->y[code[i / 2]] : g->x[code[i / 2]]);
        with += p * (double)x[i], own += p * p;
    }
    const float to = own > 0 ? bf16_to(bf16_from((float)(with / own))) : 0;
    return pairs_scales(to) ? to : scale;
}
/* x is used up. */
static uint16_t pairs_group(const PairsGrid *g, float *x, int n, int *code) {
    double square = 0;
    float scale;
    for (int i = 0; i < n; i++) {
        if (!(fabsf(x[i]) <= 0x1p125f)) return 0x7fc0;
        square += (double)x[i] * (double)x[i];
    }
    if (pairs_again(g, x, n, &scale, code)) return bf16_from(scale);
    scale = bf16_to(bf16_from((float)sqrt(square / n)));
    if (!pairs_scales(scale)) return 0;
    pairs_nearest(g, x, n, scale, code);
    for (int i = 0; i < PAIRS_FITS; i++) {
        scale = pairs_fit(g, x, n, scale, code);
        pairs_nearest(g, x, n, scale, code);
    }
    for (int i = 0; i < n; i++) x[i] = scale * (i % 2 ? g->y[code[i / 2]] : g->x[code[i / 2]]);
    return pairs_again(g, x, n, &scale, code) ? bf16_from(scale) : 0; /* false: all of them are 0 */
}
void codec_pairs_encode(const RowCodec *c, void *part, const real *from, int width) {
    PairsGrid g;
    unsigned char *to = (unsigned char *)part + pairs_head(c, width);
    pairs_grid(&g, c->bits);
    memset(part, 0, codec_pairs_bytes(c, width));
    for (int at = 0, n; at < width; at += n) {
        float x[PAIRS_GROUP];
        int code[PAIRS_GROUP / 2] = {0};
        n = imin(c->group, width - at);
        for (int k = 0; k < n; k++) x[k] = (float)from[at + k];
        const uint16_t scale = pairs_group(&g, x, n, code);
        memcpy((char *)part + at / c->group * 2, &scale, sizeof scale);
        for (int i = 0; i < (n + 1) / 2 && scale && scale != 0x7fc0; i++) pairs_put(to, g.bits, at / 2 + i, code[i]);
    }
}
void codec_pairs_decode(const RowCodec *c, real *to, const void *part, int width) {
    const unsigned char *from = (const unsigned char *)part + pairs_head(c, width);
    const short(*point)[2] = pairs_points(c->bits);
    for (int at = 0, n; at < width; at += n) {
        uint16_t scale;
        memcpy(&scale, (const char *)part + at / c->group * 2, sizeof scale);
        const float s = bf16_to(scale) / PAIRS_UNIT;
        n = imin(c->group, width - at);
        for (int k = 0; k < n; k++) {
            const int code = pairs_get(from, 2 * c->bits, (at + k) / 2);
            to[at + k] = (real)(s * (float)point[code][k % 2]);
        }
    }
}
