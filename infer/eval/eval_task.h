/* eval_task.h: measures how well a model answers the questions of a synthetic task (data/task.h). The command `eval`
 * calls it. */
#pragma once
#include "infer/engine.h"

typedef struct {
    const char *model, *name; /* name NULL: the task that the model was trained on */
    int batch, chunk;         /* samples at the same time; rows of a pass over the cache */
    bool decode;              /* through the cache, in pieces; otherwise in parallel, as in training */
    bool force;               /* also a model that was not trained on a task */
    bool agnostic;            /* of tasks of text: the prompt ends before the question */
    bool dense;               /* compare the cache with a dense one */
    int nword;
    char **word; /* key=value: samples, seed, T, the task's settings */
} EvalTask;
/* Prints samples, answers, accuracy (fraction of answers that greedy decoding gets right, given the true ones before
 * them) with its standard error over samples, sample_accuracy (fraction of samples with every answer right) and nll
 * (mean per answer, nats); a grid of lengths and depths; what differs from a dense cache. A task of text is asked in
 * text of a model that has a tokenizer (task_run.h). Samples are
 * those of TASK_TEST, which training never reads. EXIT_INPUT: no such task, a model that was not trained on one (its
 * ids mean something else), impossible settings, more ids than the model has. */
bool eval_task(const EvalTask *, const Cli *, Err *);
