/* heads.h: shared code of the targets that work on heads of keys and values. Private to convert/. */
#pragma once
#include "align.h"
#include "job.h"

/* Sums of outer products of the keys and values of one layer's heads over the calibration windows, and the gauges
 * computed from them, which layers that read the rows also need. */
typedef struct {
    int layer; /* the layer of the sums; -1: none yet */
    double *k, *v;
    int L;
    Gauge *gauge; /* (L) */
} Grams;
void grams_free(Grams *);
size_t grams_memory(const Job *, int l);
void grams_see(Job *, Grams *, int l, const Kv *);
/* The gauge of layer l's rows (its owner's), computed from the sums if l owns them. groups: heads after pooling. */
bool grams_gauge(Job *, Grams *, int l, int groups, bool similar, const Gauge **, Err *);

/* out rows [row, row+D) = scale sum over n heads of M_i W[head_i D ..]; M (D,D) each, NULL: the identity. W (heads D,
 * c) or (heads D). */
void heads_mix(Job *, Tensor out, int to, Tensor w, const int *head, int n, const double *const *M, int D,
               double scale);
/* Adapts queries and output projection of layer l after the KV heads moved to the order and the bases of `x`. */
void heads_follow(Job *, int l, const Gauge *x);
