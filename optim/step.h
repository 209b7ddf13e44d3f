/* step.h: one optimizer step over all parameters: AdamW, or Muon for the matrices of hidden layers and AdamW for the
 * rest. */
#pragma once
#include "adamw.h"
#include "muon.h"

typedef struct {
    bool muon; /* matrices that muon_takes are stepped by it */
    AdamwCfg adamw;
    MuonCfg with;
    int64_t skipped; /* steps of the run that were left out: Param.since counts them, t does not */
    /* Not with Muon: on the device the square of the gradients' norm (clip_there), by which they are clipped to `most`
     * as clip_norm says; where it is not finite nothing is changed. NULL: gscale is all. */
    const double *square;
    double most;
} OptimizerCfg;

/* The t-th step, t >= 1, at learning rate lr times each parameter's lr_scale; gradients are read times gscale and not
 * changed. A parameter that is trained since a later step is in its t + skipped - since th. While measuring, the roles
 * of the parameters need shapes alone. */
void optimizer_step(Run *, const Params *, const OptimizerCfg *, double lr, double gscale, int64_t t);
