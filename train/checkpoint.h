/* checkpoint.h: a whole run at one step, in a directory that is also a Hugging Face model.
 *
 *   config.json model.safetensors tokenizer.json generation_config.json
 *                                   the model, as any reader of the family takes it; a task instead of a text stands
 *                                   in config.json, and there is no tokenizer.json
 *   adapter/                        of a run with adapters, see adapter.h
 *   trainer/optimizer*.safetensors  the optimizer's moments, in the dtype of optim.state_dtype; Muon's matrices have
 *                                   the first alone. One file, or at dist.stage 1 and 2 one of each rank: see shards.h
 *   trainer/lora.safetensors        of a run with adapters: NAME.lora_A.weight and NAME.lora_B.weight, and
 *                                   "base.<name>", the matrices without them; their moments stand with the others,
 *                                   the model's file holds the sums
 *   trainer/weights.safetensors     with train.save_dtype bf16, where the model's file is rounded: the weights as they
 *                                   are trained, by their own names
 *   trainer/state.json              TrainState, CHECKPOINT_FORMAT
 *   trainer/config.yaml             the resolved settings of the run, with all its stages; config.json is of the model
 *                                   as the stage of that step has it
 *   trainer/manifest.json           sizes and checksums of the files of numbers; comes last
 *
 * Format 1 had neither manifest.json nor shards; it is read. */
#pragma once
#include "../ops/checksum.h"
#include "trainer.h"

enum { CHECKPOINT_FORMAT = 2 };

/* Write RUN/step-<state.step>: journals to disk, then the directory, then the links; then older ones are dropped. On
 * failure earlier checkpoints are intact and nothing unfinished stays. Refuses weights that are not finite. */
bool checkpoint_save(Trainer *, Err *);
/* What is written: of a run as it is, or put aside, finite; then the run goes on meanwhile, in another thread, and of
 * its trainer only what a step does not change is read: settings, text, tokenizer, folder, and the journals' files. */
typedef struct {
    const Model *model;
    Lora *lora;
    const Params *own; /* the moments that this rank steps, where each has its part (Dist.own); NULL: the model's */
    const TrainState *state;
} CheckpointOf;
/* checkpoint_save, of such. */
bool checkpoint_write(Trainer *, const CheckpointOf *, Keep, Err *);
/* The same by several ranks, in three parts with all ranks' consent between them; whoever fails leaves the folder to
 * run_dir_abandon by rank 0. Rank 0: journals to disk, and the folder; all: their files, synced, with their sums;
 * rank 0: the list of them, moments (world) being all ranks', and what publishes the checkpoint. */
typedef struct {
    FileSum moments, model, lora, weights; /* all but the first of rank 0 */
} CheckpointSums;
bool checkpoint_begin(Trainer *, int64_t step, Err *);
bool checkpoint_files(Trainer *, const CheckpointOf *, CheckpointSums *, Err *);
bool checkpoint_commit(Trainer *, const CheckpointOf *, const CheckpointSums *, const FileSum *moments, Keep, Err *);
Keep checkpoint_keep(const Trainer *); /* by settings and state */
/* Settings of `dir` agree with the run's in all that may not differ, and its state: cheap, before anything is
 * allocated. A dtype of auto becomes the one that the run was begun with. */
bool checkpoint_peek(const char *dir, Config *, TrainState *, Err *);
/* Weights and moments into an open trainer, state into t->state. Every file is checked. All ranks, which succeed or
 * fail as one. */
bool checkpoint_load(Trainer *, const char *dir, Err *);
/* Weights and moments alone, of a directory that this process wrote. was: the settings that it was written with, where
 * they may have trained other tensors: moments of tensors that are trained from now on are 0. NULL: the trainer's. */
bool checkpoint_load_numbers(Trainer *, const char *dir, const Config *was, Err *);
/* init_from, a model directory or a run folder (its best, else last): tensors are taken by name, each must be there
 * with its shape and no other; of another mixer they may be. Its ids must mean the same: vocabulary and tokenizer.json.
 * `fits` looks at headers alone, of the first stage's model, prints what deviates from the source's settings on stderr
 * and refuses what init_change does not name (model/source.h); "" fits. */
bool checkpoint_fits(const char *init_from, const Config *, Err *);
bool checkpoint_load_weights(Trainer *, const char *init_from, Err *);
