/* bench.h: measuring, for `bench`: medians of repeated runs, and the two limits of a machine that all speeds are a
 * percentage of. */
#pragma once
#include "../ops/ops.h"

typedef struct {
    double median, best; /* seconds */
    int runs;
} Timing;
enum { BENCH_RUNS_MIN = 3, BENCH_RUNS_MAX = 1000 };
/* Once unmeasured, then until `seconds` have passed, at least 3 and at most 1,000 times. */
Timing bench_time(void (*work)(void *), void *ctx, double seconds);

typedef struct {
    int N, O, I;
    Timing time;
    double gflops; /* 2 N O I / median */
} Gemm;
/* y (N,O) = x (N,I) w^T by Ops.linear. False: EXIT_WORLD, no memory. */
bool bench_gemm(Device *, int N, int O, int I, double seconds, Gemm *, Err *);
/* Bytes per second of a read of `bytes` (rounded up to 1 MiB) by all threads of the device. */
bool bench_read(Device *, size_t bytes, double seconds, double *bytes_per_s, Err *);
