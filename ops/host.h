/* host.h: the host's view of tensors that may lie on a device. With the CPU, or without a device (NULL), a view is the
 * tensor itself and costs nothing. */
#pragma once
#include "ops.h"

/* The device's tensors are out of the host's reach. */
static inline bool device_apart(Device *d) { return d && device_memory(d, false); }

/* A tensor of t's shape and, if `read`, numbers that the host can use: t itself, or a copy in memory of its own, made
 * after everything that was asked of the device. view_close gives the copy back, after writing it to t if `write`.
 * For opening, loading and saving; in a pass see Run.host. */
Tensor view_open(Device *, Tensor t, bool read);
void view_close(Device *, Tensor t, Tensor view, bool write);

/* The same in a pass, the copy in r->host; while measuring only that is taken. host_view waits for a device. */
Tensor host_view(Run *, Tensor t, bool read);
void host_write(Run *, Tensor t, Tensor view);
/* Copies the batch, and what else of the host's ints or ids the ops of a pass will be given, to scratch, by one copy.
 * Until that scratch is released, or other numbers stand at these addresses, ops take them from there, where by
 * themselves each would copy what it reads. Nothing on the CPU. The caller gives the scratch back and then makes no op
 * with this Run. */
typedef struct {
    const void *p; /* NULL: nothing */
    size_t bytes;
} Given;
void run_give(Run *, int n, const Given *more);

/* Both stacks of a Run. */
typedef struct {
    Mark scratch, host;
} RunMark;
static inline RunMark run_mark(const Run *r) { return (RunMark){arena_mark(r->scratch), arena_mark(r->host)}; }
static inline void run_release(Run *r, RunMark m) {
    arena_release(r->scratch, m.scratch);
    if (r->host != r->scratch) arena_release(r->host, m.host);
}

/* Visitor that writes zeros to fields that lie on the device (NULL: with the host); see fields_zero. */
Fields fields_zero_at(Device *);

/* What a pass asks for and the device does not have: an op of the ledger, or one of a size that it has not. Said while
 * the pass is measured: whoever opens the model then asks device_lack (NULL: nothing) and refuses it, in place of
 * failing when it runs. The first is kept, with the layer it was asked for in; asking clears it. */
void device_lacks(Run *, const char *what);
const char *device_lack(Device *, int *layer);
