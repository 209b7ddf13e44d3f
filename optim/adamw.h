/* adamw.h: AdamW on one parameter. The arithmetic is Ops.adamw. Source: arXiv:1711.05101. */
#pragma once
#include "../ops/ops.h"
#include "params.h"

typedef struct {
    double beta1, beta2, eps;
    double decay;   /* of matrices (param_decays); other tensors have none */
    uint64_t seed;  /* of the rounding of moments that are BF16 */
    double balance; /* step of FIELD_BALANCE tensors: w -= balance sign(g); no schedule, no memory of earlier steps */
} AdamwCfg;

/* What Ops.adamw is told of its step, the t-th, t >= 1: bias corrections are 1 - beta^t. Gradients are read times
 * gscale (clipping) and not changed; weights and moments are updated in place. */
AdamwStep adamw_step(const Param *, const AdamwCfg *, double lr, double gscale, int64_t t);
