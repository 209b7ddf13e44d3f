/* stepper.h: a stepper turns batches into gradients and gradients into new weights. trainer_step (step.c) calls the
 * parts of its trainer's stepper from top to bottom. The stage of the run decides which stepper it has:
 *
 *   plain     one rank, or ranks that all keep everything (dist.stage 0): every tensor of the model
 *   sharded   dist.stage 1 and 2: each rank has its part of the norm and steps its part; weights are then exchanged
 *   adapters  lora.rank: the model is frozen; A and B of each adapter are stepped
 *
 * A captured stepper (capture.h) wraps one of these: a GPU replays the parts as CUDA graphs. On the CPU `micro` puts
 * its losses into Trainer.nll, one per row, or with a teacher into TrainLosses, as sums; on a GPU see losses.h. */
#pragma once
#include "optim/optimizer.h"
#include "train/report/journal.h"

typedef struct Trainer Trainer;
/* One step of the optimizer. */
typedef struct {
    OptimizerCfg how;
    double lr;
    int64_t number;  /* from 1; skipped steps do not count */
    double norm;     /* of the gradient before clipping */
    double averaged; /* for an optimizer that averages: the weights of all steps up to this one */
    double scale;    /* factor on gradients: 1, or less when they are clipped */
} Update;

typedef struct Stepper Stepper;
struct Stepper {
    void (*begin)(Stepper *);                 /* sets the gradients of the step to zero */
    void (*micro)(Stepper *, TrainLosses *);  /* forward and backward of the loader's batch */
    bool (*reduce)(Stepper *, Err *);         /* makes gradients the sums over micro-batches and ranks */
    bool (*norm)(Stepper *, Update *, Err *); /* sets `norm`, unless on_device */
    bool (*apply)(Stepper *, const Update *, Err *);
    void (*close)(Stepper *);
    Trainer *t;
    const Params *params; /* elements that are stepped, on all ranks together */
    /* The GPU clips and steps without the host: `norm` leaves the square in LossesOfStep.square. `apply`, called right
     * after it, clips by Update.how and changes nothing if the norm is not finite; nothing waits until the losses are
     * read. False on the CPU, where waiting costs nothing; if the host judges the step (train.skip_z); if the norm is a
     * sum over ranks; and for an optimizer that needs the norm (Optimizer.scale_by_host). */
    bool on_device;
};

/* For an open trainer, which must outlive it; close it with s->close(s). */
Stepper *stepper_open(Trainer *);
