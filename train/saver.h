/* saver.h: when a run saves, and by whom: by the loop itself, or (train.async_save) by a thread of its own from a copy
 * of the numbers, while training goes on.
 *
 * One checkpoint is under way at most: the next one waits for it. Both ways write the same bytes by the same code, so
 * that what holds for a killed process holds for both. A save by the thread that fails is told at once on stderr,
 * leaves no trace (unless only its links or the pruning of older ones failed), and the next save point tries again (at
 * the end of a stage and after a signal: at once); a second failure in a row ends the run. A save by the loop that
 * fails ends it at once.
 *
 * Of several ranks rank 0 writes, and all call these functions: the others hand over their moments where those are
 * spread over the ranks (dist.stage), a unit at a time, into a copy that rank 0 then has in any case. The files are the
 * same whatever ranks and stage. The others meet rank 0 again at the next collective and wait no longer than its
 * deadline, which the writing must not exceed unless train.async_save. */
#pragma once
#include "trainer.h"

/* Of an open trainer that needs a copy: its region; dry: measured. */
bool saver_open(Trainer *, Err *);
/* A save under way is waited for, its outcome dropped. */
void saver_close(Trainer *);
/* What is on disk now, as the run begins or goes on: t->state and its best. */
void saver_start(Trainer *);
const Arena *saver_region(const Trainer *); /* NULL: no copy */

/* A save point: the state is saved, or on its way. EXIT_WORLD when it failed, weights that are not finite included. */
bool saver_save(Trainer *, Err *);
/* Learn of a save that is over, without waiting. */
bool saver_poll(Trainer *, Err *);
/* Wait for what is under way. */
bool saver_wait(Trainer *, Err *);
/* The state is saved when it returns true. */
bool saver_finish(Trainer *, Err *);
