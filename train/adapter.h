/* adapter.h: the adapters of a run as a directory of the `peft` package (model/peft.h), written beside every
 * checkpoint's model and read where a run continues one (lora.init_from). train/lora.h trains them. */
#pragma once
#include "trainer.h"

/* Why this run's checkpoints have no adapter/; "": they have one, or lora.save does not ask for it. The run's first
 * line of it, where there is a reason. */
const char *adapter_missing(const Trainer *, char why[256]);
void adapter_say(Trainer *);
/* Sets t->base, before weights are read: links of a run folder may move while this run trains. `checkpoint`: the directory
 * that the run resumes from, whose adapter/ names the base; NULL: a new run. */
void adapter_base(Trainer *, const char *checkpoint);
/* DIR/adapter, where adapter_missing finds nothing in the way; Lora: as it is, or put aside. */
bool adapter_write(const Trainer *, Lora *, const char *dir, Err *);

/* lora.init_from can be read, and is of lora.rank: before anything is allocated. */
bool adapter_check(const Config *, Err *);
/* After lora_begin: A and B from lora.init_from. EXIT_INPUT: its matrices are not those of lora.targets,
 * or of another shape or rank. */
bool adapter_begin(Trainer *, Err *);
