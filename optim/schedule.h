/* schedule.h: the learning rate of every step. Functions of the step alone: nothing is remembered.
 *
 * With step t counted from 0, W = warmup, S = steps:
 *   warmup      lr (t + 1) / (W + 1)                                        t < W
 *   cosine      min_lr + (lr - min_lr) (1 + cos(pi (t - W) / (S - W))) / 2   W <= t < S
 *               min_lr                                                       t >= S
 *   constant    lr                                                           t >= W
 * The cosine is lr at t = W, half way between at the middle, and would reach min_lr at t = S. Warmup counts first, so
 * that a warmup of S steps or more has no cosine. Source of the cosine: arXiv:1608.03983, without restarts. */
#pragma once
#include "../ops/base.h"

typedef struct {
    double lr, min_lr;     /* 0 <= min_lr <= lr */
    int64_t warmup, steps; /* >= 0 */
} ScheduleCfg;
typedef struct {
    const char *name; /* as in optim.schedule */
    double (*lr)(const ScheduleCfg *, int64_t t);
} Schedule;

enum { SCHEDULES = 2 };
extern const Schedule schedules[SCHEDULES]; /* in the order of the choices of optim.schedule: cosine, constant */
/* NULL when there is none of this name. */
const Schedule *schedule_find(const char *name);
