/* clip.h: clips gradients by their global norm. Steppers call it between the backward pass and the optimizer's step.
 * Source: arXiv:1211.5063.
 *
 *   norm = sqrt(sum of squares of every element of every gradient), in f64, tensors in order of declaration;
 *           FIELD_BALANCE tensors have no gradient and do not count
 *   scale = max_norm / norm where norm > max_norm, else 1 */
#pragma once
#include "ops/ops.h"
#include "params.h"

typedef struct {
    double norm;  /* before clipping; infinite or NaN if a gradient is: then no step may be made */
    double scale; /* for Optimizer.apply's gscale; NaN if norm is not finite */
} Clip;

/* max_norm 0: only the norm, scale 1. Gradients are not changed. */
Clip clip_norm(Run *, const Params *, double max_norm);
/* Leaves the norm's square on the device, without waiting. clip_scale of its root gives the same bits. */
void clip_there(Run *, const Params *, double *square);
Clip clip_scale(double norm, double max_norm); /* for a known norm */
