/* clip.h: clipping by the global norm of the gradient. Source: arXiv:1211.5063.
 *
 *   norm = sqrt(sum of squares of every number of every gradient), in f64, tensors in order of declaration;
 *           FIELD_BALANCE tensors have no gradient and do not count
 *   scale = max_norm / norm where norm > max_norm, else 1 */
#pragma once
#include "../ops/ops.h"
#include "params.h"

typedef struct {
    double norm;  /* before clipping; infinite or NaN where a gradient is: then no step may be taken */
    double scale; /* for adamw_step's gscale; NaN where norm is not finite */
} Clip;

/* max_norm 0: the norm alone, scale 1. Gradients are not changed. */
Clip clip_norm(Run *, const Params *, double max_norm);
/* The norm's square left on the device, where nobody waits for it; clip_scale's, of its root, to the bit. */
void clip_there(Run *, const Params *, double *square);
Clip clip_scale(double norm, double max_norm); /* of a norm that is known */
