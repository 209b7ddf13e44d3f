/* provenance.h: what a run was: RUN/run.jsonl has one JSON object a line for every start, which a resumed run
 * appends where steps are left.
 *
 *   started   "2026-01-31T12:00:00Z"           command  [word, ...] as it was given, "train" first
 *   version   of the program                   commit   of its source when it was built, "+" behind it: with changes
 *   host      name of the machine                       that were not committed; null: not known
 *   device    "cpu" or the device              isa      instruction set, or the device's name
 *   threads, ranks, dtype ("f32", "bf16")      step     that it starts from
 *   resumed   checkpoint, null: from nothing   */
#pragma once
#include "trainer.h"

/* On rank 0, once the state that the run starts from is loaded. */
bool provenance_append(const Trainer *, int nword, char *const word[], const char *resumed, Err *);
