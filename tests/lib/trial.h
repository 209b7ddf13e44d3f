/* trial.h: a trainer that a test opens inside its own process, with its folder and text in the test's directory. */
#pragma once
#include "train/save/checkpoint.h"

/* A run of these settings and a trainer of its stage k, as trainer_open makes it; end both with trial_trainer_close. */
bool trial_trainer(Trainer *, Config *, int k, bool dry, Err *);
void trial_trainer_close(Trainer *);
/* Settings from YAML whose first %s is the run's folder and whose second, where there is one, a text of 1,200 letters,
 * and n overrides. */
void trial_config(Config *cfg, const char *yaml, int n, const char *const over[]);
/* The same and a trainer with these settings, parameters drawn. */
Trainer *trial_open(Config *cfg, const char *yaml, int n, const char *const over[]);
void trial_close(Trainer *, Config *cfg);
