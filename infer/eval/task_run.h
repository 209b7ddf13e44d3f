/* task_run.h: runs samples of a task through the cache and scores the answers, with a policy or codec next to a dense
 * cache if wanted. `eval` calls it (eval_task.c), and `compare --policies` (train/compare/policies.c). */
#pragma once
#include "infer/engine.h"

typedef struct {
    int64_t samples, seed;
    int batch, chunk; /* samples at the same time; rows of a pass over the cache */
    bool agnostic;    /* of tasks of text: the prompt ends before the question, not after it */
} TaskHow;
typedef struct {
    int64_t samples, answers, right, whole; /* whole: samples with every answer right */
    double nll;                             /* sum over answers */
    double part, square;                    /* sums over samples of the fraction of right answers, and of its square */
    double bytes;                           /* sum over samples of the cache's bytes where the prompt has ended */
    double read;    /* sum over the rows after the prompt of the bytes of rows that each reads, with its own */
    int64_t rows;   /* these rows */
    int64_t prompt; /* sum over samples of the rows before them */
    double prompt_s, decode_s;
} TaskScore;
/* How far a cache's predictions are from those of a dense one, at the answers. */
typedef struct {
    int64_t answers, same; /* same: the first id of the largest logit is the same */
    double kl;             /* sum of KL(dense || this), nats */
    TaskScore dense;
} TaskAgainst;

/* Whether the model reads the text of the task's samples instead of their ids: a task of text, a model that has a
 * tokenizer and was not trained on a task. T is then the most tokens of a sample. */
bool task_spelled(const Engine *, const Task *);
/* Standard error of the mean over samples of the fraction of right answers; NaN of one sample. */
double task_stderr(const TaskScore *);
void task_score_add(TaskScore *to, const TaskScore *);
/* Adds to the score. dense: an engine of the same model without policy and codec, or NULL (then `against` too).
 * EXIT_INPUT: no sample fits into T tokens. */
bool task_run(Engine *, Engine *dense, const TaskCfg *, const TaskHow *, TaskScore *, TaskAgainst *against, Err *);
/* -log softmax(logits)[target] of a row of V; hit (may be NULL): the target is the first id of the largest logit. */
double logits_nll(const real *logits, int V, int target, bool *hit);
/* KL(p || q) of two rows of V logits, nats, and whether their largest logits agree. */
double logits_kl(const real *p, const real *q, int V, bool *same);
/* The same model with a dense cache: settings without policy and codec. */
bool engine_open_dense(Engine *, const Engine *of, const Cli *, Err *);
