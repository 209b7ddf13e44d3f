/* optim_cfg.h: the settings of `optim`: their struct and their tables. model/config/config.h holds an OptimCfg; what an
 * optimizer sets beyond the shared keys is a member here and a line in optim_cfg.c. */
#pragma once
#include "ops/key.h"

/* Tensors with rates of their own; the first that matches counts. */
enum { GROUPS_MAX = 32 };
typedef struct {
    char match[KEY_TEXT_MAX];
    double lr_scale, weight_decay;
} OptimGroup;
typedef struct {
    int ngroups;
    OptimGroup group[GROUPS_MAX];
    int kind, state_dtype; /* kind: of `optimizers` (optimizer.h) */
    double muon_momentum, muon_scale;
    int muon_steps;
    bool muon_nesterov;
    double lr, min_lr, weight_decay, clip, beta1, beta2, eps, balance_rate;
    Length warmup, schedule_steps, decay_steps; /* schedule_steps 0: train.steps; see config_schedule */
    int schedule, schedule_by;
} OptimCfg;

/* The order of the choices in optim_cfg.c. */
enum { STATE_F32, STATE_BF16 };
enum { SCHEDULE_BY_STEPS, SCHEDULE_BY_TIME };
enum { SCHEDULE_COSINE, SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_WSD };

extern const Key optim_keys[], group_keys[];
