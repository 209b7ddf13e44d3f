/* shadow.c: the list of bf16 shadow copies, sorted by address and found by binary search; there are a few hundred. */
#include "shadow.h"
#include "device.h"
#include "comm_stream.h"

bool shadow_wanted(const Device *d, Tensor w, unsigned flags) {
    return d && d->cuda && d->products_bf16 && w.dtype == REAL && w.rank == 2 && !(flags & FIELD_INVARIANT) &&
           tensor_count(w) >= (size_t)d->least && w.n[1] % 8 == 0;
}

/* The first one whose weights end after p. */
static int first_behind(const Device *d, const void *p) {
    int lo = 0, hi = d->shadows.n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        const Bf16Shadow *h = &d->shadows.at[mid];
        if ((const char *)(h->from + h->n) > (const char *)p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}
static Bf16Shadow *shadow_holder(const Device *d, const void *p, size_t n) {
    int i = first_behind(d, p);
    if (i == d->shadows.n) return NULL;
    Bf16Shadow *h = &d->shadows.at[i];
    const real *w = p;
    return w >= h->from && w + n <= h->from + h->n ? h : NULL;
}

void shadow_keep(Device *d, Tensor w, Tensor copy) {
    CHECK(copy.dtype == BF16 && tensor_count(copy) == tensor_count(w), "%zu elements", tensor_count(w));
    int at = first_behind(d, w.p);
    CHECK(at == d->shadows.n || d->shadows.at[at].from >= R(w) + tensor_count(w), "two copies of one weight");
    if (d->shadows.n == d->shadows.cap) {
        d->shadows.cap = imax(64, 2 * d->shadows.cap);
        d->shadows.at = xrealloc(d->shadows.at, (size_t)d->shadows.cap, sizeof *d->shadows.at);
    }
    memmove(d->shadows.at + at + 1, d->shadows.at + at, (size_t)(d->shadows.n++ - at) * sizeof *d->shadows.at);
    d->shadows.at[at] = (Bf16Shadow){R(w), tensor_count(w), copy.p, false};
}
void shadow_drop(Device *d, const void *from, size_t bytes) {
    if (!d || !from || !d->shadows.n) return;
    int at = first_behind(d, from), end = at;
    while (end < d->shadows.n && (const char *)d->shadows.at[end].from < (const char *)from + bytes) end++;
    memmove(d->shadows.at + at, d->shadows.at + end, (size_t)(d->shadows.n - end) * sizeof *d->shadows.at);
    d->shadows.n -= end - at;
}

void shadow_changed(Device *d, const void *from, size_t bytes) {
    if (!d->shadows.n || !bytes) return;
    for (int i = first_behind(d, from);
         i < d->shadows.n && (const char *)d->shadows.at[i].from < (const char *)from + bytes; i++)
        d->shadows.at[i].valid = false;
}
static void refresh(Device *d, Bf16Shadow *h) {
    if (!h->valid) d->backend->cast_to_bf16(d, h->to, h->from, h->n);
    h->valid = true;
}
void shadow_refresh(Device *d) {
    for (int i = 0; i < d->shadows.n; i++) refresh(d, &d->shadows.at[i]);
}
const uint16_t *shadow_of(Device *d, Tensor w) {
    Bf16Shadow *h = shadow_holder(d, w.p, tensor_count(w));
    CHECK(h, "a copy in bf16 of (%d,%d) is not there", w.n[0], w.n[1]);
    refresh(d, h);
    return h->to + (R(w) - h->from);
}
uint16_t *shadow_written(Device *d, const void *w, size_t n) {
    if (!d->shadows.n) return NULL;
    Bf16Shadow *h = shadow_holder(d, w, n);
    if (h && (h->valid || n == h->n)) {
        h->valid = true;
        return h->to + ((const real *)w - h->from);
    }
    shadow_changed(d, w, n * sizeof(real));
    return NULL;
}

bool shadow_check(Device *d) {
    bool ok = true;
    for (int i = 0; i < d->shadows.n && ok; i++) {
        const Bf16Shadow *h = &d->shadows.at[i];
        if (!h->valid) continue;
        real *w = xcalloc(h->n, sizeof *w);
        uint16_t *copy = xcalloc(h->n, sizeof *copy);
        d->backend->read(d, w, h->from, h->n * sizeof *w);
        d->backend->read(d, copy, h->to, h->n * sizeof *copy);
        for (size_t k = 0; k < h->n && ok; k++) ok = w[k] != w[k] || copy[k] == bf16_from((float)w[k]);
        free(w), free(copy);
    }
    return ok;
}
