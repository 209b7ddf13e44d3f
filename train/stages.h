/* stages.h: runs of several stages: checks all stages before the first begins, and moves from one stage to the next.
 * The command `train` and the loop call it. */
#pragma once
#include "trainer.h"

/* Check that stages `from` and later can run one after the other: their settings agree with their texts, all have
 * tensors of the same names and shapes, and each fits into memory (EXIT_RUNTIME if not). `t` is scratch for it and is
 * closed afterwards. */
bool stages_check(Trainer *t, Config *run, int from, Err *);

/* Call when t's stage is over and saved: closes it and opens the next one of the run, with the weights, moments and
 * state of that checkpoint. On failure t is closed. */
bool stages_next(Trainer *, Err *);

/* The regions of the largest stage so far, this one or an earlier one. */
void stages_regions(const Trainer *, bool peaks, Regions *);
