/* compare_spread.c: mean and deviation of runs, which rows they set apart, and which rows no other dominates. */
#include "compare.h"

Spread compare_spread(int n, const double *x) {
    Spread s = {.n = n, .mean = NAN, .sd = NAN};
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    if (n > 0) s.mean = sum / n;
    for (int i = 0; i < n; i++) square += (x[i] - s.mean) * (x[i] - s.mean);
    if (n > 1) s.sd = sqrt(square / (n - 1));
    return s;
}

void compare_rank(int n, const Spread *s, Rank *rank) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (s[i].n && (best < 0 || s[i].mean < s[best].mean)) best = i;
    for (int i = 0; i < n; i++) {
        rank[i] = RANK_NONE;
        if (!s[i].n) continue;
        /* fmax returns the other value for a NaN, and one sd is not enough */
        bool known = isfinite(s[i].sd) && isfinite(s[best].sd);
        bool apart = known && s[i].mean - s[best].mean >= 2 * fmax(s[i].sd, s[best].sd);
        rank[i] = i == best ? RANK_BEST : apart ? RANK_WORSE : RANK_TIE;
    }
}

void compare_front(int n, const double *loss, const double *bytes, const bool *kind, bool *front) {
    for (int i = 0; i < n; i++) {
        front[i] = isfinite(loss[i]) && isfinite(bytes[i]);
        for (int k = 0; front[i] && k < n; k++) /* comparisons with a NaN are false */
            if (kind[k] == kind[i] && loss[k] <= loss[i] && bytes[k] <= bytes[i] &&
                (loss[k] < loss[i] || bytes[k] < bytes[i]))
                front[i] = false;
    }
}
