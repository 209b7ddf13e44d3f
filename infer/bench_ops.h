/* bench_ops.h: ops that are bound by memory, for `bench ops`. */
#pragma once
#include "bench.h"

typedef struct {
    const char *name;
    Timing time;
    double bytes;   /* moved: an array that is read counts once, one that is written or updated twice, since a line is
                       fetched before it is written */
    double percent; /* of a read at bytes_per_s */
} OpTime;
enum { OP_TIMES_MAX = 64 };
/* Arrays of 12.6 million numbers, which no cache holds. out: room for OP_TIMES_MAX. False: EXIT_WORLD, no memory. */
bool bench_elementwise(Device *, double seconds, double bytes_per_s, OpTime *out, int *n, Err *);
