/* bench.h: measuring, for `bench`: medians of repeated runs, and the two limits of a machine that all speeds are a
 * percentage of. */
#pragma once
#include "../ops/ops.h"

typedef struct {
    double median, best; /* seconds */
    int runs;
} Timing;
enum { BENCH_RUNS_MIN = 3, BENCH_RUNS_MAX = 1000 };
/* Once unmeasured, then until `seconds` have passed, at least 3 and at most 1,000 times, by device_seconds. What takes
 * a device less than a millisecond is asked of it several times in one measurement, so that the first launch's way to
 * it is no part of the time. */
Timing bench_time(Device *, void (*work)(void *), void *ctx, double seconds);
/* The same, each time alone and from asking to having: what the host and the device do together. */
Timing bench_whole(Device *, void (*work)(void *), void *ctx, double seconds);
/* The same, measured at most `most` times (3 to 1,000). */
Timing bench_some(Device *, void (*work)(void *), void *ctx, double seconds, int most);

typedef struct {
    int N, O, I;
    Timing time;
    double gflops; /* 2 N O I / median */
} Gemm;
/* y (N,O) = x (N,I) w^T by Ops.linear, of drawn values, in memory as a pass of training has them: of a device that
 * computes in bf16, x, y and w's copy are bf16, so that nothing but the product is timed. False: EXIT_WORLD, no memory.
 */
bool bench_gemm(Device *, int N, int O, int I, double seconds, Gemm *, Err *);
/* Rows and activations of a pass of training are bf16 in memory: of a device that computes in bf16. */
bool bench_narrow(Device *);
/* A device's cost of asking: kernels that do next to nothing, one after the other, replayed as one graph (`graph`) and
 * launched one by one (`apart`). */
typedef struct {
    int nodes;
    Timing graph, apart; /* of all nodes, by the device's clock */
    double host;         /* seconds of the host for one replay, from asking to having */
} Launches;
bool bench_launches(Device *, double seconds, Launches *, Err *);
/* Bytes per second: of the CPU of a read of `bytes` (rounded up to 1 MiB) by all threads; of a device apart of a copy
 * inside of it, which reads half of `bytes`, at most 1 GiB, and writes as many. */
bool bench_read(Device *, size_t bytes, double seconds, double *bytes_per_s, Err *);

/* Uniform values between low and high, drawn by key, wherever the tensor lies; REAL or BF16. */
void bench_fill(Device *, Tensor, uint64_t key, double low, double high);
