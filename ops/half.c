/* half.c: see half.h. Copies by address, ascending; few hundred, found by halving. */
#include "half.h"
#include "device.h"
#include "side.h"

bool half_wanted(const Device *d, Tensor w, unsigned flags) {
    return d && d->cuda && d->narrow && w.dtype == REAL && w.rank == 2 && !(flags & FIELD_STEADY) &&
           tensor_count(w) >= (size_t)d->least && w.n[1] % 8 == 0;
}

/* The first whose weights end behind p. */
static int first_behind(const Device *d, const void *p) {
    int lo = 0, hi = d->halves.n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        const HalfCopy *h = &d->halves.at[mid];
        if ((const char *)(h->from + h->n) > (const char *)p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}
static HalfCopy *holder(const Device *d, const void *p, size_t n) {
    int i = first_behind(d, p);
    if (i == d->halves.n) return NULL;
    HalfCopy *h = &d->halves.at[i];
    const real *w = p;
    return w >= h->from && w + n <= h->from + h->n ? h : NULL;
}

void half_keep(Device *d, Tensor w, Tensor copy) {
    CHECK(copy.dtype == BF16 && tensor_count(copy) == tensor_count(w), "%zu numbers", tensor_count(w));
    int at = first_behind(d, w.p);
    CHECK(at == d->halves.n || d->halves.at[at].from >= R(w) + tensor_count(w), "two copies of one weight");
    if (d->halves.n == d->halves.cap) {
        d->halves.cap = imax(64, 2 * d->halves.cap);
        d->halves.at = xrealloc(d->halves.at, (size_t)d->halves.cap, sizeof *d->halves.at);
    }
    memmove(d->halves.at + at + 1, d->halves.at + at, (size_t)(d->halves.n++ - at) * sizeof *d->halves.at);
    d->halves.at[at] = (HalfCopy){R(w), tensor_count(w), copy.p, false};
}
void half_drop(Device *d, const void *from, size_t bytes) {
    if (!d || !from || !d->halves.n) return;
    int at = first_behind(d, from), end = at;
    while (end < d->halves.n && (const char *)d->halves.at[end].from < (const char *)from + bytes) end++;
    memmove(d->halves.at + at, d->halves.at + end, (size_t)(d->halves.n - end) * sizeof *d->halves.at);
    d->halves.n -= end - at;
}

void half_changed(Device *d, const void *from, size_t bytes) {
    if (!d->halves.n || !bytes) return;
    for (int i = first_behind(d, from);
         i < d->halves.n && (const char *)d->halves.at[i].from < (const char *)from + bytes; i++)
        d->halves.at[i].fresh = false;
}
static void refresh(Device *d, HalfCopy *h) {
    if (!h->fresh) device_halve(d, h->to, h->from, h->n);
    h->fresh = true;
}
void half_refresh(Device *d) {
    for (int i = 0; i < d->halves.n; i++) refresh(d, &d->halves.at[i]);
}
const uint16_t *half_of(Device *d, Tensor w) {
    HalfCopy *h = holder(d, w.p, tensor_count(w));
    CHECK(h, "a copy in bf16 of (%d,%d) is not there", w.n[0], w.n[1]);
    refresh(d, h);
    return h->to + (R(w) - h->from);
}
uint16_t *half_written(Device *d, const void *w, size_t n) {
    if (!d->halves.n) return NULL;
    HalfCopy *h = holder(d, w, n);
    if (h && (h->fresh || n == h->n)) {
        h->fresh = true;
        return h->to + ((const real *)w - h->from);
    }
    half_changed(d, w, n * sizeof(real));
    return NULL;
}

bool half_check(Device *d) {
    bool ok = true;
    for (int i = 0; i < d->halves.n && ok; i++) {
        const HalfCopy *h = &d->halves.at[i];
        if (!h->fresh) continue;
        real *w = xcalloc(h->n, sizeof *w);
        uint16_t *copy = xcalloc(h->n, sizeof *copy);
        device_read(d, w, h->from, h->n * sizeof *w);
        device_read(d, copy, h->to, h->n * sizeof *copy);
        for (size_t k = 0; k < h->n && ok; k++) ok = w[k] != w[k] || copy[k] == bf16_from((float)w[k]);
        free(w), free(copy);
    }
    return ok;
}
