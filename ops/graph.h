/* graph.h: passes that are asked for again and again, recorded on the device and replayed.
 *
 * On a device every op is a launch that the host pays for. A pass of the same shape asks for the same launches each
 * time: it is run once as it is, the next time captured (ops/cuda/cuda.h), and from then on replayed by one call, the
 * host only going through it to gather what is new: ids, places, learning rates, keys of noise. Results are the same
 * bits. Where nothing lies on a device a pass is simply run. */
#pragma once
#include "ops.h"

typedef struct Graphs Graphs;
/* NULL, which graphs_run takes for "as they come", where `dev` keeps nothing apart or has no graphs. */
Graphs *graphs_open(Device *dev);
void graphs_close(Graphs *); /* before the memory that its passes used is given back, and before the device */
/* Runs work(ctx). Works of one key ask for the same launches with the same arguments, but for what they give the device
 * by ids, device_write and the ops that say so (adamw, momentum, axpby, dropout, decide, scale_column); they wait at
 * the same places, and leave nothing else behind them than they found. A dozen
 * recordings are kept, the ones last used. A key that came once so far takes no memory and none of their places. */
void graphs_run(Graphs *, uint64_t key, void (*work)(void *ctx), void *ctx);
/* Of all runs so far, those that were replayed; and how often a key came that was not kept. */
long graphs_replayed(const Graphs *);
long graphs_begun(const Graphs *);
