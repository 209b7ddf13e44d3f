/* blend.h: which of several sets a sample comes from, by weights, as a function of its number alone.
 *
 * Weights w_i are whole numbers without a common divisor (0.7 0.2 0.1 is 7 2 1), D their sum. Among the first s samples
 * set i has A_i(s) with |A_i(s) - s w_i / D| <= 1 - 1/(2n - 2) for every s and every i, so after every D samples
 * exactly w_i. Source: R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980). The order of one
 * period is kept in memory, 5 bytes for each of its D places. */
#pragma once
#include "../ops/arena.h"
#include "tokens.h"

enum { BLEND_PERIOD_MAX = 1 << 20 };
typedef struct Blend {
    int n;
    uint32_t D, w[PARTS_MAX];
    uint8_t *of;    /* (D) the set of each place */
    uint32_t *rank; /* (D) samples of that set before it in the period */
} Blend;

/* w and D of `weight` (n numbers > 0 with at most 6 digits behind the point). EXIT_INPUT: D is more than
 * BLEND_PERIOD_MAX. */
bool blend_weights(Blend *, int n, const double *weight, Err *);
/* Take (or measure) the period's memory from `a`; then fill it. */
void blend_take(Blend *, Arena *a);
void blend_fill(Blend *);
/* Sample s of the run is sample *k of set *part. */
void blend_at(const Blend *, uint64_t s, int *part, uint64_t *k);
