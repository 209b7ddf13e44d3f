/* bench_ops.h: times the ops that are bound by memory. The command `bench ops` calls it. */
#pragma once
#include "bench.h"

typedef struct {
    const char *name;
    Timing time;
    double
        bytes; /* bytes moved: each array once; twice when updated or, on the CPU, written (a line is fetched before) */
    double percent; /* of a read at bytes_per_s */
    double flops;   /* 0: not counted */
    Dtype dtype;    /* BF16: rows of activations are, as layers have them; tensors that stay f32 there are f32 here */
} OpTime;
enum { OP_TIMES_MAX = 64, BENCH_ROWS = 16384 };
/* Arrays of rows * 768 elements; no cache holds BENCH_ROWS of them. Ops that the device lacks are left out. out: room
 * for OP_TIMES_MAX. False: EXIT_RUNTIME, no memory. */
bool bench_elementwise(Device *, int rows, double seconds, double bytes_per_s, OpTime *out, int *n, Err *);
/* The same for ops that compute more than they move, at the shapes of a training step of 124 million parameters: width
 * 768, 12 heads of 64, feed-forward 3072, a vocabulary of 50,304 (that many only with BENCH_ROWS), sequences of 1,024
 * rows. FLOPs are those of the causal half of attention, and of the recurrences by rows. */
bool bench_heavy(Device *, int rows, double seconds, double bytes_per_s, OpTime *out, int *n, Err *);
