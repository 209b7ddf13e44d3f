/* eval_task.h: how well a model answers the questions of a synthetic task (data/task.h). */
#pragma once
#include "engine.h"

typedef struct {
    const char *model, *name; /* name NULL: the task that the model was trained on */
    int batch, chunk;         /* samples at the same time; rows of a pass over the cache */
    bool decode;              /* through the cache, piece by piece; else in parallel, as in training */
    bool force;               /* also a model that was trained on no task */
    int nword;
    char **word; /* key=value: samples, seed, T, the task's settings */
} EvalTask;
/* Prints samples, answers, accuracy (part of the answers that greedy decoding would say, the true ones before them
 * given), sample_accuracy (part of the samples of which it would say all) and nll (mean per answer, nats). Samples are
 * those of TASK_TEST, which no training reads. EXIT_INPUT: no such task, a model that was trained on none (its ids mean
 * something else), settings that cannot be, more ids than the model has. */
bool eval_task(const EvalTask *, const Cli *, Err *);

/* -log softmax(logits)[target] of a row of V; hit (may be NULL): the target is the first id of the largest logit. */
double logits_nll(const real *logits, int V, int target, bool *hit);
