/* host.c: copies between the host and a device, by tensor. */
#include "host.h"
#include "device.h"

Tensor view_open(Device *d, Tensor t, bool read) {
    if (!device_apart(d)) return t;
    size_t n = tensor_bytes(t);
    Tensor view = t;
    view.p = xcalloc(n ? n : 1, 1);
    if (read && n) device_read(d, view.p, t.p, n);
    return view;
}
void view_close(Device *d, Tensor t, Tensor view, bool write) {
    if (!device_apart(d)) return;
    if (write) device_write(d, t.p, view.p, tensor_bytes(t));
    free(view.p);
}

void host_copy(Device *d, void *to, const void *from, size_t n) {
    enum { PIECE = 1 << 22 };
    size_t pieces = (n + PIECE - 1) / PIECE;
    if (device_apart(d)) {
        device_read(d, to, from, n);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(device_threads(d)) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        memcpy((char *)to + i * PIECE, (const char *)from + i * PIECE, zmin(PIECE, n - i * PIECE));
}

Tensor host_view(Run *r, Tensor t, bool read) {
    if (!device_apart(r->dev)) return t;
    Tensor view = t;
    view.p = arena_take(r->host, tensor_bytes(t), "view of the host");
    if (read && !measuring(r)) device_read(r->dev, view.p, t.p, tensor_bytes(t));
    return view;
}
void host_write(Run *r, Tensor t, Tensor view) {
    if (device_apart(r->dev) && !measuring(r)) device_write(r->dev, t.p, view.p, tensor_bytes(t));
}

static size_t host_aligned(size_t n) { return (n + 15) & ~(size_t)15; }
void run_give(Run *r, int n, const Given *more) {
    const Batch *b = r->batch;
    if (!device_apart(r->dev)) return;
    const size_t N = (size_t)b->N, B = (size_t)b->B, one = sizeof(int);
    Given all[GIVEN_MOST] = {{b->off, (B + 1) * one}, {b->seq, B * one},   {b->of, N * one},
                             {b->pos, N * one},       {b->first, N * one}, {b->id, B * sizeof *b->id}};
    int count = 6;
    CHECK(count + n <= GIVEN_MOST, "%d more", n);
    for (int i = 0; i < n; i++) all[count++] = more[i];
    size_t total = 0, at = 0;
    for (int i = 0; i < count; i++) total += host_aligned(all[i].bytes);
    char *there = arena_take(r->scratch, total, "what the pass is given");
    Mark mark = arena_mark(r->host);
    char *here = arena_take(r->host, total, "what the pass is given");
    r->given.n = 0;
    for (int i = 0; i < count && !measuring(r); i++) {
        if (!all[i].p || !all[i].bytes) continue;
        memset(here + at, 0, host_aligned(all[i].bytes));
        memcpy(here + at, all[i].p, all[i].bytes);
        r->given.at[r->given.n].host = all[i].p;
        r->given.at[r->given.n].there = there + at;
        r->given.at[r->given.n++].bytes = all[i].bytes;
        at += host_aligned(all[i].bytes);
    }
    if (at) device_write(r->dev, there, here, at);
    arena_release(r->host, mark);
}

static void host_see_zero(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path, (void)flags;
    device_zero(f->ctx, t->p, tensor_bytes(*t));
}
Fields fields_zero_at(Device *d) { return device_apart(d) ? (Fields){.see = host_see_zero, .ctx = d} : fields_zero(); }

void device_lacks(Run *r, const char *what) {
    CHECK(measuring(r), "layer %d runs %s, which device %s does not have", r->layer, what, r->ops->name);
    if (r->dev->lacks) return;
    r->dev->lacks = what;
    r->dev->lacks_layer = r->layer;
}
const char *device_lack(Device *d, int *layer) {
    const char *what = d->lacks;
    *layer = d->lacks_layer;
    d->lacks = NULL;
    return what;
}
