/* blend.c: computes the order of a blend's period, and looks samples up in it. */
#include "blend.h"

static uint64_t blend_gcd(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t r = a % b;
        a = b, b = r;
    }
    return a;
}
static bool blend_whole(double x) { return fabs(x - round(x)) <= 1e-9 * fabs(x); }

bool blend_weights(Blend *b, int n, const double *weight, Err *e) {
    uint64_t scaled[PARTS_MAX], common = 0, sum = 0;
    double scale = 1;
    CHECK(n >= 1 && n <= PARTS_MAX, "%d sets", n);
    *b = (Blend){.n = n};
    for (int digits = 0, i = 0; i < n && digits < 6; i++)
        if (!blend_whole(weight[i] * scale)) scale *= 10, digits++, i = -1; /* start again with the first */
    for (int i = 0; i < n; i++) {
        CHECK(weight[i] > 0 && weight[i] <= 1e9, "weight %g", weight[i]);
        if (!blend_whole(weight[i] * scale) || weight[i] * scale < 0.5)
            return err_input(e, "data.train: weight %.17g has more than 6 digits after the decimal point; give fewer",
                             weight[i]);
        scaled[i] = (uint64_t)llround(weight[i] * scale);
        common = blend_gcd(common, scaled[i]);
        sum += scaled[i];
    }
    sum /= common;
    if (sum > BLEND_PERIOD_MAX)
        return err_input(
            e, "data.train: the weights repeat after %llu samples, expected at most %d; give weights with fewer digits",
            (unsigned long long)sum, BLEND_PERIOD_MAX);
    for (int i = 0; i < n; i++) b->w[i] = (uint32_t)(scaled[i] / common);
    b->D = (uint32_t)sum;
    return true;
}

void blend_take(Blend *b, Arena *a) {
    b->of = arena_take(a, b->D * sizeof *b->of, "blend");
    b->rank = arena_take(a, b->D * sizeof *b->rank, "blend rank");
}

/* Place s (from 1) is given to one of the sets that lag at least 1/(2n - 2) behind their share: to the one with the
 * earliest deadline. Everything is in integers: shares are multiplied by D and by 2n - 2. */
void blend_fill(Blend *b) {
    int64_t D = b->D, m = b->n > 1 ? 2 * b->n - 2 : 1, taken[PARTS_MAX] = {0};
    for (int64_t s = 1; s <= D; s++) {
        int best = -1;
        int64_t left = 0; /* the time left for `best`, times w */
        for (int i = 0; i < b->n; i++) {
            int64_t owed = (int64_t)b->w[i] * s - D * taken[i], room = (m - 1) * D - m * owed;
            if (b->n > 1 && m * owed < D) continue;
            if (best < 0 || room * (int64_t)b->w[best] < left * (int64_t)b->w[i]) best = i, left = room;
        }
        CHECK(best >= 0, "place %lld of %lld is nobody's", (long long)s, (long long)D);
        b->of[s - 1] = (uint8_t)best;
        b->rank[s - 1] = (uint32_t)taken[best]++;
    }
    for (int i = 0; i < b->n; i++) CHECK(taken[i] == b->w[i], "set %d has %lld places", i, (long long)taken[i]);
}

void blend_at(const Blend *b, uint64_t s, int *part, uint64_t *k) {
    uint64_t at = s % b->D;
    *part = b->of[at];
    *k = s / b->D * b->w[*part] + b->rank[at];
}
