/* compare_loss.h: where the loss of each run is; `kvsmith compare` calls it when the runs are over. */
#pragma once
#include "compare.h"

/* Sets `split` of all finished runs (of a row with marks: of the last mark's): the loss of their last checkpoints on
 * the first measure.loss_tokens predictions of the validation text, in windows of measure.loss_context tokens, through
 * the cache as in decoding. Keeps in DIR/losses.json what was computed before. Does nothing if loss_tokens is 0. */
bool compare_losses(const Compare *, RowResult *all, const Cli *, Err *);
/* Adds `losses` to a row's object: means and deviations over its runs. */
void compare_losses_json(const Compare *, const RowResult *, json_t *row);
/* The table of it; nothing if no row has any. */
void compare_losses_table(FILE *, const json_t *results);
