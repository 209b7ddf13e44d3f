/* bench_bus.h: simulates a bus that brings rows of a cache to a decoding step: `bench decode --bus` prints by it what a
 * step would wait for rows that come over a bus of that rate. Nothing is moved or measured here. */
#pragma once
#include "ops/base.h"

/* Seconds that a step waits for the rows of n slots, which it reads one after the other. compute[k]: from when it has
 * the rows of slot k - 1 (k = 0: from its begin) until it asks for those of slot k. The bus copies one slot at a time,
 * in bytes[k] / rate seconds:
 *     ahead   slot 0 from the step's begin on, slot k from when the step has the rows of slot k - 1 on
 *     else    each slot from when the step asks for it on
 * So a copy that is ahead costs max(0, bytes[k] / rate - compute[k]). rate: bytes a second, above 0. */
double bus_wait(double rate, bool ahead, int n, const double *bytes, const double *compute);
/* The same of slots that are alike: `bytes` and `compute` are those of a whole step, and before the first slot nothing
 * is computed. */
double bus_wait_alike(double rate, bool ahead, int n, double bytes, double compute);
