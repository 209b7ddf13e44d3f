/* freeze.h: decides which tensors a run trains and at which rates: train.train_only, train.freeze, optim.groups. The
 * trainer calls it when it opens a stage.
 *
 * Patterns are globs over the tensors' names (fnmatch: * also crosses dots), as in the files of a checkpoint. A frozen
 * tensor has no moments, no step and no decay, and does not count in the gradient's norm. A frozen matrix has no
 * gradient either, and has train.frozen_dtype in memory. */
#pragma once
#include "model/model.h"
#include "optim/params.h"

/* True for tensors of train.train_only, if there are any, without those of train.freeze; false for all with adapters
 * (lora). ctx: Config. For ModelOpts.trained. */
bool freeze_trained(const void *config, const char *path);
/* True if never trained up to this stage of the run, so its values are those of its file. ctx: Trainer. For
 * ModelOpts.stored_bf16. */
bool freeze_stored(const void *trainer, const char *path);
/* Checks that every pattern matches a tensor of the model, those of groups a trained one, and that some tensor is
 * trained. EXIT_INPUT. */
bool freeze_check(const Model *, const Config *, Err *);
/* Sets Param.frozen of the model's tensors. */
void freeze_mark(Params *, const Model *);
/* Sets the rates of the first group that matches. */
void freeze_rates(Params *, const OptimCfg *);
/* Sets Param.since in stage k of the run: the step at which the stages begin that have trained a tensor until now. Its
 * moments begin there, and so must the count that corrects their bias. */
void freeze_since(Params *, const Config *run, int k);
size_t freeze_count(const Model *); /* elements of the tensors that are trained */
