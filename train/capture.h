/* capture.h: a captured stepper records the parts of another stepper as CUDA graphs and replays them (ops/graph.h). A
 * trainer wraps its stepper in one when it opens on a GPU.
 *
 * The parts are: zeroing the gradients, forward and backward of a micro-batch, the norm, and the optimizer's step. The
 * last two are one graph unless the host decides between them. Work that cannot be captured runs without a graph. */
#pragma once
#include "ops/graph.h"
#include "stepper.h"

/* Wraps `inner` and owns it, if t's device replays anything; otherwise returns `inner` itself. */
Stepper *capture_open(Stepper *inner);
/* NULL: this stepper is not captured. */
Graphs *capture_graphs(const Stepper *);
void capture_say(Trainer *); /* Prints once, in the progress, that passes are replayed, or why not. */
