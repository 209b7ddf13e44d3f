/* divide.h: which rows of a pass each of several ranks computes (layers/cache/row_ranks.h). model_extend calls it. */
#pragma once
#include "model.h"

/* Once, for a cache of this model. */
void model_divide_open(const Model *, Cache *);
/* Divides a pass by what its rows cost; NULL: the rank makes all of them. */
RowRanks *model_divide(const Model *, Cache *, const Batch *);
/* For a pass that is measured: NULL if none is ever divided. */
RowRanks *model_shares(const Cache *);
