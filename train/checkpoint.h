/* checkpoint.h: a whole run at one step, in a directory that is also a Hugging Face model.
 *
 *   config.json model.safetensors tokenizer.json generation_config.json    the model, as any reader of the family takes
 * it; a task instead of a text stands in config.json, and there is no tokenizer.json
 *   trainer/optimizer.safetensors  "exp_avg.<name>" and "exp_avg_sq.<name>": the optimizer's moments of the weight
 * <name>, in the dtype of optim.state_dtype; Muon's matrices have the first alone trainer/state.json TrainState,
 * CHECKPOINT_FORMAT trainer/config.yaml            the resolved settings of the run, with all its stages; config.json
 * is of the model as the stage of that step has it */
#pragma once
#include "trainer.h"

enum { CHECKPOINT_FORMAT = 1 };

/* Write RUN/step-<state.step>: journals to disk, then the directory, then the links; then older ones are dropped. On
 * failure earlier checkpoints are intact and nothing unfinished stays. Refuses weights that are not finite. */
bool checkpoint_save(Trainer *, Err *);
/* The same of numbers and state that were put aside, which are finite; the run goes on meanwhile, in another thread. Of
 * t only what a step does not change is read: settings, text, tokenizer, folder, and the journals' files. */
bool checkpoint_write(Trainer *t, const Model *numbers, const TrainState *, Keep, Err *);
Keep checkpoint_keep(const Trainer *); /* by settings and state */
/* Settings of `dir` agree with the run's in all that may not differ, and its state: cheap, before anything is
 * allocated. A dtype of auto becomes the one that the run was begun with. */
bool checkpoint_peek(const char *dir, Config *, TrainState *, Err *);
/* Weights and moments into an open trainer, state into t->state. Every file is checked. */
bool checkpoint_load(Trainer *, const char *dir, Err *);
/* Weights and moments alone, of a directory that this process wrote. */
bool checkpoint_load_numbers(Trainer *, const char *dir, Err *);
/* The ids of the model directory mean what those of `to` and of the tokenizer mean; tok NULL: ids are a task's. */
bool checkpoint_ids_fit(const char *dir, const ModelCfg *to, const Tokenizer *tok, Err *);
/* init_from, a model directory or a run folder (its best, else last): tensors are taken by name, each must be there
 * with its shape and no other; of another mixer they may be. Its ids must mean the same: vocabulary and tokenizer.json.
 * `fits` looks at headers alone, of the first stage's model; "" fits. */
bool checkpoint_fits(const char *init_from, const Config *, Err *);
bool checkpoint_load_weights(Trainer *, const char *init_from, Err *);
