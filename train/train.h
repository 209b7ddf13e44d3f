/* train.h: the training loop over steps. The command `train` calls it for a loaded run. */
#pragma once
#include "trainer.h"

typedef enum { STOP_STEPS, STOP_TIME, STOP_SIGNAL, STOP_ACCURACY } Stop;
const char *stop_name(Stop); /* "steps", "time", "signal", "accuracy" */

/* The signals of signals.h end the run after the current step; a second SIGINT or SIGTERM ends the process at once
 * (130). */
void train_catch_signals(void);

/* Runs from t->state to train.steps, train.max_seconds or train.stop_at_acc, through the stages: steps, records,
 * validations, samples, checkpoints. `last` receives the last step's record. On success the state is saved, whatever
 * the reason to stop. A failure's message names the newest checkpoint, which is intact. */
bool train_loop(Trainer *, TrainRecord *last, Stop *, Err *);
