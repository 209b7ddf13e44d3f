/* half.h: copies in bf16 of f32 weights, for a device whose products round them (device_bf16): a matrix is rounded when
 * it has changed, not for every product. Values are rounded to the nearest, ties to even, so that results are to the
 * bit those of products that round for themselves.
 *
 * Ops.adamw writes the copy along with the weight. All else that changes a weight makes its copy stale: ops that may
 * write one, device_write, device_copy and device_zero see to it themselves; whoever writes a device's weights past
 * those says so by half_changed. A stale copy is made again by half_refresh, or by the first product that reads it. */
#pragma once
#include "tensor.h"

typedef struct Device Device;
/* A copy of this weight would serve products: it is a matrix of `real`s that they round, in rows of a multiple of eight
 * numbers. False on the CPU, in f32, and of FIELD_STEADY. */
bool half_wanted(const Device *, Tensor w, unsigned flags);
/* From now on `copy`, BF16 of w's shape on the device, is w's. Its owner sets w.halved in the tensor that passes use,
 * with memory or without: products of such a tensor take no scratch for its rounding. */
void half_keep(Device *, Tensor w, Tensor copy);
void half_drop(Device *, const void *from, size_t bytes);    /* forget copies of what lies there */
void half_changed(Device *, const void *from, size_t bytes); /* weights that lie there */
void half_refresh(Device *);                                 /* make all stale copies, without waiting */
/* The copy of the numbers of w, a matrix with one or rows of it; made first where it is stale. */
const uint16_t *half_of(Device *, Tensor w);
/* Where whoever writes n weights from w on has to write their copies; NULL: nowhere, and what is there is stale. */
uint16_t *half_written(Device *, const void *w, size_t n);
/* For tests: every copy that is not stale is that of its weights. Waits. */
bool half_check(Device *);
