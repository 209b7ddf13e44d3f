/* losses.h: the losses of a step's micro-batches where a device computes them, and the norm of its gradient. What each
 * pass leaves is put aside there, and all of it is read by one copy, so that a step waits for its losses once. On the
 * CPU, whose passes leave them with the host, there is nothing to do. */
#pragma once
#include "../ops/arena.h"
#include "../ops/tensor.h"

typedef struct Trainer Trainer;
/* A piece of every micro-batch, and another of each of its teacher's losses, one behind the other. */
typedef struct {
    Arena there;
    real *at;       /* (room) on the device, behind Model.losses */
    double *square; /* of the gradient's norm, on the device, where the host does not ask for it (record_apart) */
    real *all;      /* (room) of the host, in Trainer.rows */
    int *rows;      /* (micros) of the host, too */
    int n;          /* micro-batches put aside */
    size_t room, used;
} Losses;

/* The host's part of it, from Trainer.rows. */
void losses_take(Trainer *);
/* Behind losses_take, which says how much it is; a dry trainer's is measured. EXIT_WORLD: no memory. */
bool losses_open(Trainer *, Err *);
void losses_close(Losses *);
void losses_begin(Losses *); /* of a step */
/* Behind the pass over the loader's batch, which asked for no losses (model_train's nll NULL): copies them,
 * unwaited. */
void losses_aside(Trainer *);
/* Waits, and writes what was put aside since losses_begin to the sums (dist_part) of micro-batches 0, 1, ...
 * square, where not NULL: becomes Losses.square's number. */
void losses_read(Trainer *, double *square);
