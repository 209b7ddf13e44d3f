/* checkpoint.h: reads and writes a checkpoint: a whole run at one step, in a directory that is also a Hugging Face
 * model. The saver writes it, the command `train` reads it.
 *
 *   config.json model.safetensors tokenizer.json generation_config.json
 *                                   the model, as any reader of the family reads it; a task instead of a text is
 *                                   in config.json, and there is no tokenizer.json
 *   adapter/                        of a run with adapters, see adapter.h
 *   trainer/optimizer*.safetensors  the optimizer's state of each weight, under the names that it declares
 *                                   (optim/optimizer.h): "exp_avg.NAME". One file, or at dist.stage 1 and 2 one of each
 *                                   rank: see shards.h
 *   trainer/lora.safetensors        of a run with adapters: NAME.lora_A.weight and NAME.lora_B.weight, and
 *                                   "base.<name>", the matrices without them; the optimizer's state of adapters is in
 *                                   its own file, the model's file has the sums
 *   trainer/weights.safetensors     with train.save_dtype bf16, when the model's file is rounded: the weights as they
 *                                   are trained, by their own names
 *   trainer/state.json              TrainState, CHECKPOINT_FORMAT
 *   trainer/config.yaml             the resolved settings of the run, with all its stages; config.json is of the model
 *                                   in the stage of that step
 *   trainer/manifest.json           sizes and checksums of the tensor files; written last
 *
 * Format 1 had neither manifest.json nor shards; it is still read. */
#pragma once
#include "ops/checksum.h"
#include "train/trainer.h"

enum { CHECKPOINT_FORMAT = 2 };

/* Writes RUN/step-<state.step>: journals to disk, then the directory, then the links; then deletes older ones. On
 * failure earlier checkpoints are intact and nothing unfinished stays. Refuses weights that are not finite. */
bool checkpoint_save(Trainer *, Err *);
/* The contents to write: the current state of a run, or a copy of it, finite. With a copy the run continues in another
 * thread, and only the unchanging part of its trainer is read: settings, text, tokenizer, folder, and the journals'
 * files. */
typedef struct {
    const Model *model;
    Lora *lora;
    const Params *own; /* this rank's part of the optimizer's state (trainer_state) */
    const TrainState *state;
} CheckpointOf;
/* checkpoint_save of these contents. */
bool checkpoint_write(Trainer *, const CheckpointOf *, Keep, Err *);
/* The same by several ranks, in three parts, after each of which all ranks must agree; a rank that fails leaves the
 * folder to run_dir_abandon by rank 0. Rank 0: journals to disk, and the folder; all: their files, synced, with their
 * checksums; rank 0: the list of them, where moments (world) are all ranks', and the renaming that publishes the
 * checkpoint. */
typedef struct {
    FileSum moments, model, lora, weights; /* all but the first of rank 0 */
} CheckpointSums;
bool checkpoint_begin(Trainer *, int64_t step, Err *);
bool checkpoint_files(Trainer *, const CheckpointOf *, CheckpointSums *, Err *);
bool checkpoint_commit(Trainer *, const CheckpointOf *, const CheckpointSums *, const FileSum *moments, Keep, Err *);
Keep checkpoint_keep(const Trainer *); /* by settings and state */
/* Checks that settings of `dir` agree with the run's in everything that may not differ, and its state: cheap, before
 * anything is allocated. A dtype of auto becomes the run's original one. */
bool checkpoint_peek(const char *dir, Config *, TrainState *, Err *);
/* Reads weights and moments into an open trainer, state into t->state. Checks every file. All ranks succeed or fail
 * together. */
bool checkpoint_load(Trainer *, const char *dir, Err *);
/* Reads only weights and moments, from a directory that this process wrote. was: the settings with which it was
 * written, if they trained other tensors: moments of newly trained tensors are 0. NULL: the trainer's. */
bool checkpoint_load_numbers(Trainer *, const char *dir, const Config *was, Err *);
/* Reads init_from, a model directory or a run folder (its best, else last): tensors are found by name, and each must
 * exist with its shape and no other; other mixers may have theirs. Its ids must mean the same: vocabulary and
 * tokenizer.json. `fits` reads only headers, of the first stage's model, prints deviations from the source's settings
 * on stderr and refuses those that init_change does not name (model/files/source.h); "" fits. */
bool checkpoint_fits(const char *init_from, const Config *, Err *);
bool checkpoint_load_weights(Trainer *, const char *init_from, Err *);
