/* schedule.h: computes the learning rate of every step. trainer_step calls it. All are functions of the position alone,
 * without memory.
 *
 * The position t is the number of steps done (in a stage, from its beginning), or more if time drives the schedule
 * (below). With W = warmup, S = steps, D = decay:
 *   warmup      lr (t + 1) / (W + 1)                                         t < W
 *   cosine      min_lr + (lr - min_lr) (1 + cos(pi (t - W) / (S - W))) / 2   W <= t < S
 *   linear      min_lr + (lr - min_lr) (1 - (t - W) / (S - W))               W <= t < S
 *   wsd         lr                                                           W <= t < S - D
 *               min_lr + (lr - min_lr) (S - t) / D                           S - D <= t < S
 *   these three min_lr                                                       t >= S
 *   constant    lr                                                           t >= W
 * Cosine and linear are lr at t = W, half way between at the middle, and would reach min_lr at t = S. Warmup comes
 * first, so a warmup of S steps or more has no decay. Source of the cosine: arXiv:1608.03983, without restarts; of wsd
 * (warmup, stable, decay): arXiv:2404.06395, with the linear decay of arXiv:2405.18392.
 *
 * optim.schedule_by: time. With e seconds elapsed since the run began, e0 of them when the stage began, and the run
 * ending after E seconds (train.max_seconds):
 *   share       p = (e - e0) / (E - e0), at least 0, and 1 from e = E on
 *   position    t = max(steps done, p S)
 * so warmup and decay take their fractions of the time, and the schedule is complete at whichever end comes first. */
#pragma once
#include "ops/base.h"

typedef struct {
    double lr, min_lr;            /* 0 <= min_lr <= lr */
    int64_t warmup, steps, decay; /* >= 0; decay: for wsd */
} ScheduleCfg;
typedef struct {
    const char *name;                            /* as in optim.schedule */
    double (*lr)(const ScheduleCfg *, double t); /* t: a position; whole numbers below 2^53 are exact */
} Schedule;

enum { SCHEDULES = 4 };
extern const Schedule schedules[SCHEDULES]; /* in the order of the choices of optim.schedule */
/* NULL if there is none of this name. */
const Schedule *schedule_find(const char *name);
/* p above; 0 <= began. With optim.schedule_by: steps it is 0. */
double schedule_share(double elapsed, double began, double most);
/* t above; share 0 gives `done`. */
double schedule_position(const ScheduleCfg *, int64_t done, double share);
