/* differ.h: a gradient compared with five-point differences of the loss, for suites that check whole models in double.
 *
 * A difference along a direction checks all entries that the direction moves. differ_tensor() splits the entries of a
 * tensor into groups of up to 16 and moves each group at once, every entry by its own factor of magnitude 1 to 1.5 and
 * random sign. A single wrong entry shows at least as much as it would alone. Several wrong entries of one group would
 * have to cancel under factors that know nothing of them, in every group, to go unseen. */
#pragma once
#include "check.h"

enum { DIFFER_GROUP = 16 };
typedef double DifferLoss(void *ctx); /* the loss as the tensor's entries are now */
typedef struct {
    double error;   /* worst |analytic - numeric| of a direction */
    double numeric; /* largest |numeric| of a direction; 0: the loss does not depend on the tensor */
    double largest; /* largest |entry| of the gradient */
    size_t at;      /* with an error beyond the bound: the entry that is most wrong in the worst direction, */
    double want;    /* and its own difference */
} Differ;
/* The step of an entry: with it, rounding and the fifth derivative are below 3e-8 of the largest entry in every model
 * of the zoo. */
#define DIFFER_STEP 5e-5
/* `gradient` holds as many entries as x, whose entries are as before afterwards. bound: of error / largest. */
Differ differ_tensor(Tensor x, const real *gradient, double bound, DifferLoss *loss, void *ctx);
