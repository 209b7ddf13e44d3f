/* test_pairs.c: the points by which pairs of elements are stored (layers/cache/pairs.h): that each is the mean of what
 * is nearest to it, and how small their error is; what the codec makes of normal numbers, and of any bytes.
 * tests/ops/test_ops_codec.c compares the bytes. */
#include <math.h>
#include "layers/cache/codec.h"
#include "layers/cache/pairs.h"
#include "tests/lib/check.h"

enum { SIZES = 3, MOST = 256 };
static const short (*points_of(int bits))[2] { return bits == 2 ? pairs16 : bits == 3 ? pairs64 : pairs256; }
static double below(double y) { return 0.5 * erfc(-y * M_SQRT1_2); }
static double density(double y) { return exp(-y * y / 2) / sqrt(2 * M_PI); }
/* Mass and mean of the cells: in a column of the plane the cell of a point is one interval. */
static void cells(const double (*p)[2], int n, double *mass, double (*mean)[2]) {
    const double step = 0.004;
    for (int i = 0; i < n; i++) mass[i] = mean[i][0] = mean[i][1] = 0;
    for (double x = -7 + step / 2; x < 7; x += step)
        for (int i = 0; i < n; i++) {
            double low = -9, high = 9;
            for (int j = 0; j < n && low < high; j++) {
                const double rise = p[j][1] - p[i][1],
                             more = pow(x - p[j][0], 2) - pow(x - p[i][0], 2) + p[j][1] * p[j][1] - p[i][1] * p[i][1];
                if (rise > 0) high = fmin(high, more / (2 * rise));
                if (rise < 0) low = fmax(low, more / (2 * rise));
                if (rise == 0 && (more < 0 || (more == 0 && j < i))) low = high;
            }
            if (low >= high) continue;
            const double m = (below(high) - below(low)) * density(x) * step;
            mass[i] += m, mean[i][0] += x * m, mean[i][1] += (density(low) - density(high)) * density(x) * step;
        }
    for (int i = 0; i < n; i++) mean[i][0] /= mass[i], mean[i][1] /= mass[i];
}
/* The mean squared error of an element, by the middles of small squares. */
static double error_of(const double (*p)[2], int n) {
    const double step = 0.04;
    double sum = 0;
    for (double x = -6 + step / 2; x < 6; x += step)
        for (double y = -6 + step / 2; y < 6; y += step) {
            double least = INFINITY;
            for (int i = 0; i < n; i++) {
                const double off = (x - p[i][0]) * (x - p[i][0]) + (y - p[i][1]) * (y - p[i][1]);
                least = off < least ? off : least;
            }
            sum += least * density(x) * density(y);
        }
    return sum * step * step / 2;
}
/* The furthest that a point is from the mean of its cell. */
static double furthest(const double (*p)[2], int n) {
    static double mass[MOST], mean[MOST][2];
    double off = 0;
    cells(p, n, mass, mean);
    for (int i = 0; i < n; i++) off = fmax(off, hypot(p[i][0] - mean[i][0], p[i][1] - mean[i][1]));
    return off;
}
/* Of the errors known, those of 4, 8 and 16 levels for one normal number (Max 1960) are 0.1175, 0.03454 and 0.009497;
 * no code of so many bits has less than 1/16, 1/64 and 1/256. */
Test(pairs, points_are_the_means_of_what_is_nearest, .timeout = 60) {
    static const double least[SIZES] = {0.1070, 0.0294, 0.00765}, most[SIZES] = {0.1080, 0.0297, 0.00780};
    for (int bits = 2; bits <= 4; bits++) {
        const int n = 1 << 2 * bits;
        double p[MOST][2];
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 2; k++) p[i][k] = (double)points_of(bits)[i][k] / PAIRS_UNIT;
        const double off = furthest(p, n), error = error_of(p, n);
        printf("%d points: %.2g from the means, error %.6f\n", n, off, error);
        cr_assert(off < 1e-3, "%d points: %g from the means", n, off);
        cr_assert(error > least[bits - 2] && error < most[bits - 2], "%d points: error %g", n, error);
        p[n / 3][0] += 0.01;
        cr_assert(furthest(p, n) > 2e-3, "%d points: a point in another place is not noticed", n);
    }
}
/* Groups of normal numbers have the error of the grid, or less, as each has a scale of its own; each pair has the
 * nearest point. */
Test(pairs, normal_numbers_have_the_error_of_the_grid, .timeout = 60) {
    static const double grid[SIZES] = {0.1076, 0.02954, 0.00774};
    enum { WIDTH = 128, ROWS = 400 };
    for (int how = 0; how < 2 * SIZES; how++) {
        RowCodec c = codec_aqua;
        c.bits = 2 + how / 2, c.group = how % 2 ? 32 : 64, c.pairs = true;
        const short(*p)[2] = points_of(c.bits);
        const int n = 1 << 2 * c.bits;
        double off = 0, all = 0;
        for (uint64_t row = 0; row < ROWS; row++) {
            real x[WIDTH], y[WIDTH];
            uint32_t part[WIDTH];
            cr_assert(codec_pairs_bytes(&c, WIDTH) <= sizeof part);
            for (int k = 0; k < WIDTH; k++) x[k] = (real)(float)(3 * rng_normal(rng_mix(51, row), (uint64_t)k));
            codec_pairs_encode(&c, part, x, WIDTH);
            codec_pairs_decode(&c, y, part, WIDTH);
            for (int k = 0; k < WIDTH; k++) off += pow((double)x[k] - (double)y[k], 2), all += pow((double)x[k], 2);
            for (int k = 0; k < WIDTH; k += 2) {
                uint16_t half;
                memcpy(&half, (const char *)part + k / c.group * 2, sizeof half);
                const double s = (double)bf16_to(half) / PAIRS_UNIT;
                const double have = pow((double)(x[k] - y[k]), 2) + pow((double)(x[k + 1] - y[k + 1]), 2);
                double least = INFINITY;
                for (int i = 0; i < n; i++)
                    least = fmin(least, pow((double)x[k] - s * p[i][0], 2) + pow((double)x[k + 1] - s * p[i][1], 2));
                cr_assert(have <= least + 1e-5 * s * PAIRS_UNIT * s * PAIRS_UNIT, "row %d, pair at %d: %g, not %g",
                          (int)row, k, have, least);
            }
        }
        const double share = off / all / grid[c.bits - 2];
        printf("%d bits, group %d: %.4f of the grid's error\n", c.bits, c.group, share);
        cr_assert(share > 0.8 && share < 1, "%d bits, group %d: %.4f of the grid's error", c.bits, c.group, share);
    }
}
/* Bytes of a damaged file: whatever they are, decoding reads them and no others (a sanitizer says whether it does), and
 * what it makes of them is stored and read again unchanged. */
Test(pairs, any_bytes_are_codes) {
    int groups = 0, same = 0;
    for (int turn = 0; turn < 600; turn++) {
        RowCodec c = codec_aqua;
        const int width = 1 + turn % 131;
        c.bits = 2 + turn % 3, c.group = turn % 2 ? 32 : 64, c.pairs = true;
        const size_t bytes = codec_pairs_bytes(&c, width);
        char *part = xcalloc(bytes, 1), *again = xcalloc(bytes, 1);
        real *x = xcalloc((size_t)width, sizeof *x), *y = xcalloc((size_t)width, sizeof *y);
        for (size_t i = 0; i < bytes; i++) part[i] = (char)(turn < 3 ? -1 : (int)rng_mix((uint64_t)turn, i));
        codec_pairs_decode(&c, x, part, width);
        codec_pairs_encode(&c, again, x, width);
        codec_pairs_decode(&c, y, again, width);
        for (int at = 0; at < width; at += c.group) {
            uint16_t half;
            memcpy(&half, part + at / c.group * 2, sizeof half);
            const float s = bf16_to(half);
            groups++;
            if (!(s >= 0x1p-100f && s <= 0x1p120f)) continue; /* negative, or too large or small to be encoded */
            for (int k = at; k < imin(at + c.group, width); k++)
                cr_assert(x[k] == y[k], "%d bits, width %d, element %d: %g, then %g", c.bits, width, k, (double)x[k],
                          (double)y[k]);
            same++;
        }
        free(part), free(again), free(x), free(y);
    }
    cr_assert(same > groups / 4, "%d of %d groups", same, groups);
}
