/* provenance.h: records how a run was started: RUN/run.jsonl has one JSON object per line for every start. The command
 * `train` calls it; a resumed run appends, if steps are left.
 *
 *   started   "2026-01-31T12:00:00Z"           command  [word, ...] as it was given, "train" first
 *   version   of the program                   commit   of its source when it was built, "+" after it: with changes
 *   host      name of the machine                       that were not committed; null: unknown
 *   device    "cpu" or the device              isa      instruction set, or the device's name
 *   threads, ranks, dtype ("f32", "bf16")      step     from which it starts
 *   resumed   checkpoint, null: from nothing */
#pragma once
#include "train/trainer.h"

/* Call on rank 0 when the state from which the run starts is loaded. */
bool provenance_append(const Trainer *, int nword, char *const word[], const char *resumed, Err *);
