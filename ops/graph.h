/* graph.h: CUDA graphs: captures passes that are repeated on a GPU and replays them. Training, sessions and `bench`
 * run their steps through graphs_run.
 *
 * Without a graph the host pays for the launch of every op. With one, the first pass of a key runs normally, the
 * second is captured (ops/cuda/cuda.h), and later ones are replayed by one call. In a replay the host still walks
 * through the pass, but only to collect new inputs: ids, places, learning rates, noise keys. Results have the same
 * bits. On the CPU a pass simply runs. */
#pragma once
#include "ops.h"

typedef struct Graphs Graphs;
/* NULL if `dev` has no separate memory or no graphs; graphs_run then runs every pass directly. */
Graphs *graphs_open(Device *dev);
/* must come before the memory that its passes used is given back, and before the device closes */
void graphs_close(Graphs *);
/* Run work(ctx), captured or replayed as graph.h says. All calls with one key
 * - must launch the same kernels with the same arguments. Only these may differ: inputs given by ids or device_write,
 *   and the arguments of adamw, momentum, axpby, dropout, decide and scale_column that those ops pass as data;
 * - must wait for the device at the same places;
 * - must leave allocations as they found them.
 * The twelve graphs used last are kept. A key that ran only once needs no device memory and does not
 * count among them. */
void graphs_run(Graphs *, uint64_t key, void (*work)(void *ctx), void *ctx);
/* graphs_replayed: how many runs were replayed so far. graphs_begun: how many runs had a key that was not kept. */
long graphs_replayed(const Graphs *);
long graphs_begun(const Graphs *);
