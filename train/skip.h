/* skip.h: skips steps whose loss or gradient norm is a spike, far above the recent ones (train.skip_z). trainer_step
 * calls it after the losses of a step are known.
 *
 *   z(x) = (x - mean) / sd of the last W accepted steps, sd the population's; 0/0 = 0
 * A step whose loss or gradient norm (before clipping) has z > train.skip_z changes no weight and no moment; its data
 * count as read. No step is skipped before W steps were accepted. Source: llm.c, llmc/outlier_detector.h (-sl, -sg). */
#pragma once
#include "ops/base.h"

enum { SKIP_WINDOW_MAX = 1024 };
/* Part of a run's state. */
typedef struct {
    int64_t skipped; /* since step 0; AdamW's bias corrections do not count them */
    int row;         /* skipped steps since the last accepted one */
    int n;           /* the last accepted steps, oldest first */
    double loss[SKIP_WINDOW_MAX], norm[SKIP_WINDOW_MAX];
} Skips;

/* z of both; 0 while fewer than `window` steps were accepted. */
void skip_scores(const Skips *, int window, double loss, double norm, double *loss_z, double *norm_z);
void skip_accepted(Skips *, int window, double loss, double norm);
void skip_left_out(Skips *);
void skip_forget(Skips *); /* the window, not the count: losses differ between settings */
