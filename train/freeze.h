/* freeze.h: which tensors a run trains, and at which rates: train.train_only, train.freeze, optim.groups.
 *
 * Patterns are globs over the tensors' names (fnmatch: * also crosses dots), as in the files of a checkpoint. A frozen
 * tensor has no moments, is not stepped, does not decay and counts nowhere in the gradient's norm; a frozen matrix has
 * no gradient either, and lies in memory as train.frozen_dtype says. */
#pragma once
#include "../model/model.h"
#include "../optim/params.h"

/* Of train.train_only, where there are any, and none of train.freeze; nothing beside adapters (lora). ctx: Config. For
 * ModelOpts.trained. */
bool freeze_trained(const void *config, const char *path);
/* Never trained up to this stage of the run, so that its numbers are those of its file. ctx: Trainer. For
 * ModelOpts.stored_bf16. */
bool freeze_stored(const void *trainer, const char *path);
/* Every pattern matches a tensor of the model, those of groups one that is trained; some tensor is trained. EXIT_INPUT.
 */
bool freeze_check(const Model *, const Config *, Err *);
/* Param.frozen of the model's tensors. */
void freeze_mark(Params *, const Model *);
/* The rates of the first group that matches. */
void freeze_rates(Params *, const OptimCfg *);
/* Param.since in stage k of the run: where the stages begin that have trained a tensor up to here. Its moments begin
 * there, and so must the count that corrects their bias. */
void freeze_since(Params *, const Config *run, int k);
size_t freeze_count(const Model *); /* numbers of the tensors that are trained */
