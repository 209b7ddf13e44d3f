/* saver.h: the saver decides when a run saves, and writes the checkpoint: in the loop itself, or asynchronously
 * (train.async_save), in a thread that writes a copy while training continues. The training loop calls it.
 *
 * At most one checkpoint is being written; the next one waits for it. Both ways write the same bytes by the same code,
 * so the same holds for a killed process in both. If an asynchronous save fails, a line is printed at once on stderr,
 * nothing of it stays (unless only its links or the pruning of older ones failed), and the next save point tries again
 * (at the end of a stage and after a signal: at once); a second failure in a row ends the run. A failing save in the
 * loop ends it at once.
 *
 * With several ranks all call these functions. At stage 0 only rank 0 writes. If moments are shared among the ranks
 * (dist.stage 1 and 2) each writes its own, from their place or from its copy; rank 0 writes the rest and, when all
 * have reported that theirs is on disk, the list that makes it a checkpoint. A rank that cannot write makes it fail on
 * all, with its line: no rank ever has more than its part of the moments. Ranks communicate at the save point and, with
 * train.async_save, after each step until the checkpoint is complete; they wait no longer than the deadline, which the
 * writing must not exceed unless train.async_save is set. */
#pragma once
#include "train/trainer.h"

/* Opens it for an open trainer: allocates the copies, which are regions; dry: measures. */
bool saver_open(Trainer *, Err *);
/* Waits for a save in progress and ignores its outcome. */
void saver_close(Trainer *);
/* Sets the state on disk when the run begins or continues: t->state and its best. */
void saver_start(Trainer *);
const Arena *saver_region(const Trainer *);     /* rank 0's copy of the weights; NULL: none */
const Arena *saver_state(const Trainer *);      /* copy of the optimizer's state that this rank writes; NULL: none */
void saver_regions(const Trainer *, Regions *); /* all copies */

/* A save point: the state is saved, or a save is in progress. EXIT_RUNTIME if it failed, EXIT_DIVERGED if weights are
 * not finite. */
bool saver_save(Trainer *, Err *);
/* Collects the outcome of a finished save, without waiting. */
bool saver_poll(Trainer *, Err *);
/* Waits for a save in progress. */
bool saver_wait(Trainer *, Err *);
/* The same if ranks can no longer be asked: an unfinished checkpoint is given up. */
void saver_end(Trainer *);
/* The state is saved if it returns true. */
bool saver_finish(Trainer *, Err *);
