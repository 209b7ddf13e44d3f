/* saver.h: when a run saves, and by whom: by the loop itself, or (train.async_save) by a thread of its own from a copy
 * of the numbers, while training goes on.
 *
 * One checkpoint is under way at most: the next one waits for it. Both ways write the same bytes by the same code, so
 * that what holds for a killed process holds for both. A save by the thread that fails is told at once on stderr,
 * leaves no trace (unless only its links or the pruning of older ones failed), and the next save point tries again (at
 * the end of a stage and after a signal: at once); a second failure in a row ends the run. A save by the loop that
 * fails ends it at once.
 *
 * Of several ranks all call these functions. At stage 0 rank 0 writes alone. Where moments are spread over the ranks
 * (dist.stage 1 and 2) each writes its own, from where they are or from its copy; rank 0 writes the rest, and when all
 * have said that theirs is on disk the list that makes it a checkpoint. A rank that cannot write makes it fail on all,
 * with its line: nobody has more than its part of the moments at any time. Ranks meet at the save point and, with
 * train.async_save, behind each step until the checkpoint is there; they wait no longer than the deadline, which the
 * writing must not exceed unless train.async_save. */
#pragma once
#include "trainer.h"

/* Of an open trainer: what it needs besides, copies being regions; dry: measured. */
bool saver_open(Trainer *, Err *);
/* A save under way is waited for, its outcome dropped. */
void saver_close(Trainer *);
/* What is on disk now, as the run begins or goes on: t->state and its best. */
void saver_start(Trainer *);
const Arena *
saver_region(const Trainer *); /* rank 0's, of weights, and of moments that are not spread; NULL: no copy */
const Arena *saver_moments(const Trainer *);  /* of moments that are spread; NULL: no copy */
const Arena *saver_adapters(const Trainer *); /* of adapters; NULL: none */

/* A save point: the state is saved, or on its way. EXIT_WORLD when it failed, EXIT_DIVERGED when weights are not
 * finite. */
bool saver_save(Trainer *, Err *);
/* Learn of a save that is over, without waiting. */
bool saver_poll(Trainer *, Err *);
/* Wait for what is under way. */
bool saver_wait(Trainer *, Err *);
/* The same when ranks can no longer be asked: what is not yet a checkpoint is given up. */
void saver_end(Trainer *);
/* The state is saved when it returns true. */
bool saver_finish(Trainer *, Err *);
