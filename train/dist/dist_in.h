/* dist_in.h: the interface that the files of train/dist share. Private to train/dist. */
#pragma once
#include "dist.h"

enum { DIST_CUT = -1, DIST_NONE = -2 };
static inline const char *dist_title(const Dist *d, int unit, char buf[24]) {
    if (unit > 0 && unit <= d->m->L)
        snprintf(buf, 24, "layer %d", unit - 1);
    else
        snprintf(buf, 24, "%s", unit ? "the head" : "the embedding");
    return buf;
}
/* Where own range k begins in its unit's exchange. */
static inline size_t dist_at(const Dist *d, int k) { return d->place[d->of[k]].at + d->own.p[k].at; }
/* n elements as a tensor. */
static inline Tensor dist_run(void *p, Dtype dtype, size_t n) {
    CHECK(n <= INT32_MAX, "%zu elements", n);
    return TENSOR(p, dtype, (int)n);
}
/* to = from, n elements, by the ops of the device, for any n. */
void dist_copy(const Dist *, real *to, const real *from, size_t n);
void dist_hook(Dist *);             /* the hooks of passes, if the model needs any */
size_t dist_count_branches(Dist *); /* the largest share of the norm's sums on one rank */
