/* checkpoint.h: a whole run at one step, in a directory that is also a Hugging Face model.
 *
 *   config.json model.safetensors tokenizer.json generation_config.json    the model, as any reader of the family takes
 * it; a task instead of a text stands in config.json, and there is no tokenizer.json
 *   trainer/optimizer.safetensors  "exp_avg.<name>" and "exp_avg_sq.<name>": AdamW's moments of the weight <name>
 *   trainer/state.json             TrainState, CHECKPOINT_FORMAT
 *   trainer/config.yaml            the resolved settings */
#pragma once
#include "trainer.h"

enum { CHECKPOINT_FORMAT = 1 };

/* Write RUN/step-<state.step>: journals to disk, then the directory, then the links; then older ones are dropped. On
 * failure earlier checkpoints are intact and nothing unfinished stays. Refuses weights that are not finite. */
bool checkpoint_save(Trainer *, Err *);
/* Settings of `dir` agree with t->cfg in all that may not differ, and its state: cheap, before anything is allocated.
 */
bool checkpoint_peek(const char *dir, const Config *, TrainState *, Err *);
/* Weights and moments into an open trainer, state into t->state. Every file is checked. */
bool checkpoint_load(Trainer *, const char *dir, Err *);
/* Weights alone, for init_from, a model directory or run folder: the shape must be that of the trainer's model. */
bool checkpoint_load_weights(Trainer *, const char *model, Err *);
