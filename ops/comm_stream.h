/* comm_stream.h: a comm stream is a second queue of a GPU, next to the one that computes. train/comm/comm_nccl.h uses
 * it to move values between GPUs while kernels run, layers/cache/tier_host.c to copy rows from the host's memory. A
 * program without the CUDA backend has none: comm_stream_open returns an error.
 *
 * - Work runs in the stream's order. Only comm_stream_download and comm_stream_waited wait.
 * - Functions return false when the device fails; comm_stream_why then returns its message. */
#pragma once
#include "ops.h"

typedef struct CommStream CommStream;
enum { COMM_STREAM_MARKS = 4 };
/* Open a stream on device `number`, which becomes the calling thread's device. EXIT_RUNTIME: there are fewer than
 * `need` devices, or none. */
bool comm_stream_open(int number, int need, CommStream **, Err *);
/* The same on the GPU of an open device, which also waits for the stream (comm_stream_lead). Close it before the
 * device. */
bool comm_stream_open_at(Device *, CommStream **, Err *);
void comm_stream_close(CommStream *);
void *comm_stream_native(CommStream *);             /* a cudaStream_t */
void *comm_stream_take(CommStream *, size_t bytes); /* device memory; NULL: out of memory */
void comm_stream_give(CommStream *, void *);
/* Work added to the stream after this call starts when all work given to the device so far has ended. */
bool comm_stream_follow(CommStream *, Device *);
/* `from` may change once this returns. Pinned memory is read later, in the stream's order: it must stay as it is until
 * the stream reaches a mark after it. */
bool comm_stream_upload(CommStream *, void *to, const void *from, size_t bytes);
bool comm_stream_download(CommStream *, void *to, const void *from, size_t bytes); /* waits for the stream */
/* comm_stream_mark sets a mark after all work added so far. comm_stream_done: 1 when the stream has reached the mark,
 * 0 before, -1 when the device failed. */
bool comm_stream_mark(CommStream *, int slot);
int comm_stream_done(CommStream *, int slot);
/* Of comm_stream_open_at. Work given to its device after this call starts when the stream has reached the mark.
 * comm_stream_waited: seconds for which the device had nothing else to do than to wait there, of all calls so far. */
bool comm_stream_lead(CommStream *, int slot);
double comm_stream_waited(CommStream *);
const char *comm_stream_why(const CommStream *);
/* The file name of the NCCL library that can use this program's device memory. */
const char *comm_stream_library(void);

/* Round values in device memory to bf16 (to nearest, ties to even), and expand them back: overwriting `to`, or added
 * to it. Both run in the order of the device's own work. */
void device_round_to_bf16(Device *, uint16_t *to, const real *from, size_t n);
void device_cast_from_bf16(Device *, real *to, const uint16_t *from, size_t n, bool add);
