/* compare_measure.h: measures what each row of a comparison costs in memory and time; `kvsmith compare` calls it when
 * the runs are over. It is above train/compare/compare.h because it also times training steps. */
#pragma once
#include "compare.h"

/* Cache bytes and speeds of every row that has a finished run, all together, in interleaved repetitions; the JSON of
 * DIR/speed.json. Keeps the last measurement if nothing would differ, unless `again`. NULL: failed. */
json_t *compare_measure(const Compare *, const RowResult *, bool again, const Cli *, Err *);
