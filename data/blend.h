/* blend.h: chooses, from weights, which of several datasets a sample comes from, as a function of the sample's number
 * alone. The loader calls blend_at for every sample of a run with weights.
 *
 * The weights w_i are integers without a common divisor (0.7 0.2 0.1 is 7 2 1), D is their sum. Of the first s
 * samples, set i gets A_i(s) with |A_i(s) - s w_i / D| <= 1 - 1/(2n - 2) for every s and i, so after every D samples
 * exactly w_i. The order of one period is kept in memory, 5 bytes for each of its D places. Source: R. Tijdeman, The
 * chairman assignment problem, Discrete Mathematics 32 (1980). */
#pragma once
#include "ops/arena.h"
#include "tokens.h"

enum { BLEND_PERIOD_MAX = 1 << 20 };
typedef struct Blend {
    int n;
    uint32_t D, w[PARTS_MAX];
    uint8_t *of;    /* (D) the set of each place */
    uint32_t *rank; /* (D) samples of that set before it in the period */
} Blend;

/* Compute w and D from `weight` (n values > 0 with at most 6 decimals). EXIT_INPUT: D is more than BLEND_PERIOD_MAX. */
bool blend_weights(Blend *, int n, const double *weight, Err *);
/* blend_take takes (or measures) the period's memory from `a`; blend_fill then fills it. */
void blend_take(Blend *, Arena *a);
void blend_fill(Blend *);
/* Sample s of the run is sample *k of set *part. */
void blend_at(const Blend *, uint64_t s, int *part, uint64_t *k);
