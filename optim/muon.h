/* muon.h: Muon: momentum whose matrices are made nearly orthogonal before they are stepped along.
 *
 *   m <- mu m + g;   u = g + mu m (nesterov) or m
 *   X_0 = u / (|u|_F + 1e-7);  X <- a X + (b A + c A^2) X with A = X X^T, `steps` times;  (a,b,c) =
 * (3.4445,-4.7750,2.0315) w <- w - lr (0.2 sqrt(max(rows, cols)) X + decay w) The iteration moves every singular value
 * into about [0.7, 1.2]. The factor gives the update the size of AdamW's, so that one learning rate serves both
 * (arXiv:2502.16982, 2.2). A matrix with more rows than columns is worked on transposed. Source of iteration and
 * coefficients: https://kellerjordan.github.io/posts/muon/. */
#pragma once
#include "../ops/ops.h"
#include "params.h"

typedef struct {
    double momentum, decay, scale; /* scale: the 0.2 above */
    bool nesterov;
    int steps;
    uint64_t seed; /* of the rounding of momentum that is BF16 */
} MuonCfg;

/* A matrix of a hidden layer: two dimensions, neither embedding nor head. It has no second moments. */
bool muon_takes(Tensor weight, unsigned flags);
bool muon_leaves(Tensor weight, unsigned flags); /* the reverse */
/* The t-th step, on a matrix that muon_takes; g is read times gscale and not changed; m is the momentum. */
void muon_step(Run *, const Param *, const MuonCfg *, double lr, double gscale, int64_t t);
