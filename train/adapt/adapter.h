/* adapter.h: reads and writes a run's adapters as a directory of the `peft` package (model/files/peft.h). Saving writes
 * it next to every checkpoint's model, and a run that continues adapters reads it (lora.init_from). train/adapt/lora.h
 * trains them. */
#pragma once
#include "train/trainer.h"

/* Why this run's checkpoints have no adapter/; "": they have one, or lora.save does not ask for it. adapter_say prints
 * the reason, if there is one, once at the start. */
const char *adapter_missing(const Trainer *, char why[256]);
void adapter_say(Trainer *);
/* Sets t->base, before weights are read, because links of a run folder may move while this run trains. `checkpoint`:
 * the directory from which the run resumes, whose adapter/ names the base; NULL: a new run. */
void adapter_base(Trainer *, const char *checkpoint);
/* Writes DIR/adapter, if adapter_missing finds no reason against it. Lora: the current one, or a copy. */
bool adapter_write(const Trainer *, Lora *, const char *dir, Err *);

/* Checks, before anything is allocated, that lora.init_from can be read and has lora.rank. */
bool adapter_check(const Config *, Err *);
/* Call after lora_begin: reads A and B from lora.init_from. EXIT_INPUT: its matrices are not those of lora.targets, or
 * have another shape or rank. */
bool adapter_begin(Trainer *, Err *);
