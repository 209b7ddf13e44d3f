/* blend.c: see blend.h. */
#include "blend.h"

static uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t r = a % b;
        a = b, b = r;
    }
    return a;
}
static bool whole(double x) { return fabs(x - round(x)) <= 1e-9 * fabs(x); }

bool blend_weights(Blend *b, int n, const double *weight, Err *e) {
    uint64_t scaled[PARTS_MAX], common = 0, sum = 0;
    double scale = 1;
    CHECK(n >= 1 && n <= PARTS_MAX, "%d sets", n);
    *b = (Blend){.n = n};
    for (int digits = 0, i = 0; i < n && digits < 6; i++)
        if (!whole(weight[i] * scale)) scale *= 10, digits++, i = -1; /* from the first again */
    for (int i = 0; i < n; i++) {
        CHECK(weight[i] > 0 && weight[i] <= 1e9, "weight %g", weight[i]);
        if (!whole(weight[i] * scale) || weight[i] * scale < 0.5)
            return err_input(e, "data.train: weight %.17g has more than 6 digits behind the point; give fewer",
                             weight[i]);
        scaled[i] = (uint64_t)llround(weight[i] * scale);
        common = gcd(common, scaled[i]);
        sum += scaled[i];
    }
    sum /= common;
    if (sum > BLEND_PERIOD_MAX)
        return err_input(
            e,
            "data.train: the weights repeat after %llu samples, at most %d are kept; give weights of fewer "
            "digits",
            (unsigned long long)sum, BLEND_PERIOD_MAX);
    for (int i = 0; i < n; i++) b->w[i] = (uint32_t)(scaled[i] / common);
    b->D = (uint32_t)sum;
    return true;
}

void blend_take(Blend *b, Arena *a) {
    b->of = arena_take(a, b->D * sizeof *b->of, "blend");
    b->rank = arena_take(a, b->D * sizeof *b->rank, "blend rank");
}

/* At place s (from 1) the sets that have fallen behind their share by 1/(2n - 2) at least may have it; of those the one
 * whose time runs out first gets it. All in whole numbers: of shares times D, times 2n - 2. */
void blend_fill(Blend *b) {
    int64_t D = b->D, m = b->n > 1 ? 2 * b->n - 2 : 1, taken[PARTS_MAX] = {0};
    for (int64_t s = 1; s <= D; s++) {
        int best = -1;
        int64_t left = 0; /* of best, times w */
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
