/* sums.cpp: how matrix units add. One step of a sum, of an accumulator and up to 16 products, in two ways:
 *
 * - rounded: f32, one product after the other, each sum rounded to the nearest;
 * - truncated (SIMT_SUMS=truncated, simt_truncate): as matrix units do. The accumulator and the products, which are
 *   exact, are aligned to the largest of their exponents, cut off behind the last bit that a float of that exponent
 *   has, and added without error; of the sum the bits beyond a float's are cut off.
 *
 * Source: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 2021, section 4: no
 * rounding but truncation, one normalisation a step, 0 more bits than a float has on V100, at least 1 and 2 on later
 * devices, steps of 4, 8 and 16 products. This takes the fewest bits, so that what holds here holds on any of them.
 *
 * Error of a sum of K products in steps of 16, with S the largest of the magnitudes that a step aligns to: a step cuts
 * off less than 17 units (of 2^-23 S) before, and less than 17 after the addition, which has at most 5 bits to lose;
 * rounding to the nearest has 16 halves of them. Errors have the sign of what was cut off: where all products have one,
 * they add up. */
#include "core.h"
#include <cstdlib>

static int truncating = -1; /* not yet known */
void simt_truncate(bool on) { truncating = on; }
bool simt_truncates() {
    if (truncating < 0) {
        const char *said = getenv("SIMT_SUMS");
        truncating = said && !strcmp(said, "truncated");
    }
    return truncating;
}
float simt_truncated_sum(float c, const double *product, int n) {
    double largest = fabs((double)c), plain = (double)c;
    for (int k = 0; k < n; k++) {
        largest = fmax(largest, fabs(product[k]));
        plain += product[k];
    }
    if (!std::isfinite(plain) || largest < 0x1p-100 || largest > 0x1p127) return (float)plain;
    int e;
    frexp(largest, &e);
    const double unit = ldexp(1, e - 24), units = ldexp(1, 24 - e);
    int64_t s = (int64_t)((double)c * units);
    for (int k = 0; k < n; k++) s += (int64_t)(product[k] * units);
    int beyond = 0; /* bits that a float has no room for */
    for (int64_t m = s < 0 ? -s : s; m >> beyond >= 1 << 24;) beyond++;
    s = s < 0 ? -(-s >> beyond << beyond) : s >> beyond << beyond;
    return (float)((double)s * unit);
}
