/* record.h: what of a training step a device records and replays (ops/graph.h): the zeros that gradients begin at, a
 * micro-batch, the norm, the optimizer's step; the latter two in one where the host need not decide between them
 * whether there is a step at all. */
#pragma once
#include "trainer.h"

/* After everything else of the trainer. What cannot be recorded is done as it comes. */
void record_open(Trainer *);
void record_close(Trainer *); /* before everything else */
void record_say(Trainer *);   /* once, in the progress: that it is so, or why not */

void record_begin(Trainer *);                      /* dist_begin */
void record_micro(Trainer *, TrainLosses *);       /* forward and backward of the loader's batch */
bool record_clip(Trainer *, Run *, Clip *, Err *); /* the gradient's norm */
bool record_update(Trainer *, Run *, const OptimizerCfg *, double lr, double gscale, int64_t number, Err *);
/* Whether the device can take the step without the host: then nobody waits before its losses are read. Not on the CPU,
 * where waiting costs nothing, nor where the host has a say: it scores the step (train.skip_z), or the norm is a sum
 * over ranks; nor with Muon. */
bool record_apart(const Trainer *);
/* record_clip and record_update in one; the norm's square stays in Losses.square, and where it is not finite nothing
 * has changed. The losses are judged behind it: one that is not finite beside a norm that is ends the run, too. */
bool record_step(Trainer *, Run *, const OptimizerCfg *, double lr, int64_t number, Err *);
