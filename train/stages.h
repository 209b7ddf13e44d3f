/* stages.h: a run that is several: what must hold before the first begins, and going from one to the next. */
#pragma once
#include "trainer.h"

/* Stages `from` and after can be run one after the other: their settings agree with their texts, tensors have the same
 * names and shapes in all, and every one's memory fits (EXIT_WORLD if not). `t` is free for use, before and after. */
bool stages_check(Trainer *t, Config *run, int from, Err *);

/* t's stage is over and saved: go on as the next one, with the weights, moments and state of that checkpoint. What is
 * of the run stays: folder, journals, progress, clock. On failure t is closed but for these. */
bool stages_next(Trainer *, Err *);

/* The regions of the stage that took most, this one or one before. */
void stages_regions(const Trainer *, bool peaks, Regions *);
