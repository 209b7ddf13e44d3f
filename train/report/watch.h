/* watch.h: watches a run's memory, and whether its weights are finite. The loop calls it after steps and before
 * saving. */
#pragma once
#include "train/trainer.h"

/* The value after `name` in a file of "name: number kB" lines, in bytes; a bare number for name "". 0: missing. */
size_t watch_bytes(const char *path, const char *name);
/* Highest anonymous resident memory so far; reads it now. */
void watch_memory(Trainer *);
/* EXIT_DIVERGED when a weight is not finite. */
bool watch_finite(Trainer *, Err *);
