/* skip.h: steps that are left out because their loss or their gradient is far above what was usual.
 *
 *   z(x) = (x - mean) / sd of the last W accepted steps, sd the population's; 0/0 = 0
 * A step whose loss or gradient norm (before clipping) has z > train.skip_z changes no weight and no moment; the data
 * goes on. Nothing is judged before W steps were accepted. Source: llm.c, llmc/outlier_detector.h (-sl, -sg). */
#pragma once
#include "../ops/base.h"

enum { SKIP_WINDOW_MAX = 1024 };
/* Part of a run's state. */
typedef struct {
    int64_t skipped; /* since step 0: what AdamW's corrections do not count */
    int row;         /* of them the last, without one between that was accepted */
    int n;           /* accepted steps that are remembered, oldest first */
    double loss[SKIP_WINDOW_MAX], norm[SKIP_WINDOW_MAX];
} Skips;

/* z of both; 0 while fewer than `window` steps are remembered. */
void skip_scores(const Skips *, int window, double loss, double norm, double *loss_z, double *norm_z);
void skip_accepted(Skips *, int window, double loss, double norm);
void skip_left_out(Skips *);
void skip_forget(Skips *); /* the window, not the count: other settings have other losses */
