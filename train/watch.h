/* watch.h: what is looked at while a run goes on: its memory, and whether its numbers still are any. */
#pragma once
#include "trainer.h"

/* The number after `name` in a file of "name: number kB" lines, in bytes; a bare number for name "". 0: not there. */
size_t watch_bytes(const char *path, const char *name);
/* Highest anonymous resident memory so far, by looking now. */
void watch_memory(Trainer *);
/* EXIT_DIVERGED when a weight is not finite. */
bool watch_finite(Trainer *, Err *);
