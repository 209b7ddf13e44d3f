/* bench.h: measurements for the command `bench`: medians of repeated runs, and the two limits of a machine of which all
 * speeds are given as percentages. */
#pragma once
#include "ops/ops.h"

typedef struct {
    double median, best; /* seconds */
    int runs;
} Timing;
enum { BENCH_RUNS_MIN = 3, BENCH_RUNS_MAX = 1000 };
/* Runs `work` once without measuring, then until `seconds` have passed, at least 3 and at most 1,000 times, timed by
 * device_seconds. Work of less than a millisecond is launched several times per measurement, so that the first launch's
 * latency is not part of the time. */
Timing bench_time(Device *, void (*work)(void *), void *ctx, double seconds);
/* The same, each time alone, from the request to the result: host and device together. */
Timing bench_whole(Device *, void (*work)(void *), void *ctx, double seconds);
/* The same, measured at most `most` times (3 to 1,000). */
Timing bench_some(Device *, void (*work)(void *), void *ctx, double seconds, int most);

typedef struct {
    int N, O, I;
    Timing time;
    double gflops; /* 2 N O I / median */
} Gemm;
/* y (N,O) = x (N,I) w^T by Ops.linear, of random values, in memory as a training pass has them: on a device that
 * computes in bf16, x, y and w's copy are bf16, so only the product is timed. False: EXIT_RUNTIME, no memory. */
bool bench_gemm(Device *, int N, int O, int I, double seconds, Gemm *, Err *);
/* True if rows and activations of a training pass are bf16 in memory: on a device that computes in bf16. */
bool bench_bf16(Device *);
/* A device's cost of launches: kernels that do next to nothing, one after the other, replayed as one graph (`graph`)
 * and launched one by one (`apart`). */
typedef struct {
    int nodes;
    Timing graph, apart; /* of all nodes, by the device's clock */
    double host;         /* seconds of the host for one replay, from the request to the result */
} Launches;
bool bench_launches(Device *, double seconds, Launches *, Err *);
/* Bytes per second. CPU: a read of `bytes` (rounded up to 1 MiB) by all threads. GPU: a copy inside its memory, which
 * reads half of `bytes`, at most 1 GiB, and writes as many. */
bool bench_read(Device *, size_t bytes, double seconds, double *bytes_per_s, Err *);

/* Uniform values between low and high, drawn by key, wherever the tensor lies; REAL or BF16. */
void bench_fill(Device *, Tensor, uint64_t key, double low, double high);
