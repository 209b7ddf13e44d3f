/* side.h: a device's second queue of work, beside the one that computes: for a library that moves numbers between
 * devices while kernels go on (train/comm_nccl.h). A program without the CUDA backend has none: side_open says so.
 *
 * Everything is done in the queue's order and nothing waits but side_download. What the device refuses returns false,
 * and side_why has its words. */
#pragma once
#include "ops.h"

typedef struct Side Side;
enum { SIDE_MARKS = 4 };
/* On the device of that number, which is from now on this thread's. EXIT_WORLD: fewer than `need` devices, or none. */
bool side_open(int number, int need, Side **, Err *);
void side_close(Side *);
void *side_stream(Side *);             /* a cudaStream_t */
void *side_take(Side *, size_t bytes); /* memory of the device; NULL: there is none */
void side_give(Side *, void *);
/* What is asked of the queue from now on begins when all that was asked of the device has ended. */
bool side_follow(Side *, Device *);
bool side_upload(Side *, void *to, const void *from, size_t bytes);   /* `from` may change once this returns */
bool side_download(Side *, void *to, const void *from, size_t bytes); /* waits for the queue */
/* A mark behind all that was asked so far; 1 when the queue has reached it, 0 before, -1 when the device failed. */
bool side_mark(Side *, int slot);
int side_done(Side *, int slot);
const char *side_why(const Side *);
/* The name of the NCCL that knows the memory of this program's devices. */
const char *side_library(void);

/* Numbers of a device's memory as bf16, rounded to the nearest, ties to even; and back, in place of what is there or
 * added to it. In the order of the device's own work. */
void device_halve(Device *, uint16_t *to, const real *from, size_t n);
void device_unhalve(Device *, real *to, const uint16_t *from, size_t n, bool add);
