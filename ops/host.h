/* host.h: views give the host access to tensors that may lie in a GPU's memory. Loading, saving and the few ops that
 * run on the host use them. On the CPU, or without a device (NULL), a view is the tensor itself and costs nothing. */
#pragma once
#include "ops.h"

/* The device has its own memory, which the host cannot read. */
static inline bool device_apart(Device *d) { return d && device_memory(d, false); }

/* A tensor of t's shape that the host can use, with t's values if `read`: t itself, or a copy made after all work
 * given to the device. view_close frees the copy, after writing it to t if `write`. For opening, loading and saving;
 * in a pass use host_view. */
Tensor view_open(Device *, Tensor t, bool read);
void view_close(Device *, Tensor t, Tensor view, bool write);
/* Bytes of memory where the device computes into memory of the host, by all threads. */
void host_copy(Device *, void *to, const void *from, size_t bytes);

/* The same in a pass. The copy is taken from r->host; while measuring nothing else happens. host_view waits for a
 * device. */
Tensor host_view(Run *, Tensor t, bool read);
void host_write(Run *, Tensor t, Tensor view);
/* Copies the batch and further host arrays that the ops of a pass will read to device scratch, in one copy. Without it
 * each op copies what it reads. Does nothing on the CPU.
 * - Ops use the copies until the scratch is released; the arrays must not change before that.
 * - After the caller releases the scratch it must not run an op with this Run. */
typedef struct {
    const void *p; /* NULL: nothing */
    size_t bytes;
} Given;
void run_give(Run *, int n, const Given *more);

/* The positions of both scratch stacks of a Run, to release them together. */
typedef struct {
    Mark scratch, host;
} RunMark;
static inline RunMark run_mark(const Run *r) { return (RunMark){arena_mark(r->scratch), arena_mark(r->host)}; }
static inline void run_release(Run *r, RunMark m) {
    arena_release(r->scratch, m.scratch);
    if (r->host != r->scratch) arena_release(r->host, m.host);
}

/* Visitor that writes zeros to fields in the device's memory (NULL: the host's); see fields_zero. */
Fields fields_zero_at(Device *);

/* What a pass asks for and the device does not have: an op of a size that its kernels cannot do. Said while
 * the pass is measured: whoever opens the model then asks device_lack (NULL: nothing) and refuses it, in place of
 * failing when it runs. The first is kept, with the layer it was asked for in; asking clears it. */
void device_lacks(Run *, const char *what);
const char *device_lack(Device *, int *layer);
