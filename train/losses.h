/* losses.h: collects the losses of a step's micro-batches on a GPU, and the norm of its gradient. Each pass leaves its
 * losses there, and one copy at the end reads all of them, so a step waits for the GPU once. On the CPU, where passes
 * leave their losses in host memory, it does nothing. Steps and validations call it. */
#pragma once
#include "ops/arena.h"
#include "ops/tensor.h"
#include "regions.h"

typedef struct Trainer Trainer;
/* The values that a step waits for, in one piece: the square of the gradient's norm, unless the host needs it earlier
 * (Stepper.on_device); one entry for every micro-batch, and another for each of its teacher's losses, one after the
 * other. */
typedef struct {
    double square;
    real row[];
} LossesOfStep;
typedef struct {
    Arena there;
    LossesOfStep *at;   /* on the device, after Workspace.losses, */
    LossesOfStep *host; /* and its copy, in Trainer.rows */
    int *rows;          /* (micros) of the host, too */
    int n;              /* micro-batches put aside */
    size_t room, used;
} Losses;

/* The host's part of it, taken from Trainer.rows. */
void losses_take(Trainer *);
/* Call after losses_take, which returns the size; a dry trainer's is only measured. EXIT_RUNTIME: no memory. */
bool losses_open(Trainer *, Err *);
void losses_close(Losses *);
void losses_regions(const Losses *, Regions *);
void losses_begin(Losses *); /* of a step */
/* Call after a pass over the loader's batch that asked for no losses (model_train's nll NULL): copies them without
 * waiting. */
void losses_aside(Trainer *);
/* Waits, and adds what was collected since losses_begin to the sums (dist_part) of micro-batches 0, 1, ... square, if
 * not NULL, is set to the step's. */
void losses_read(Trainer *, double *square);
