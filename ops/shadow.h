/* shadow.h: a shadow is the bf16 copy of an f32 weight, for a device that rounds the inputs of matrix products
 * (device_bf16). With it a weight is rounded only when it has changed, not for every product. Rounding is to nearest,
 * ties to even, so results have the same bits as products that round their own inputs.
 *
 * - Ops.adamw writes the shadow together with the weight.
 * - Every other change of a weight makes its shadow stale. Ops that may write a weight, device_write, device_copy and
 *   device_zero mark it themselves. Code that writes device weights in any other way must call shadow_changed.
 * - shadow_refresh, or the first product that reads a stale shadow, rounds it again. */
#pragma once
#include "tensor.h"

typedef struct Device Device;
/* A shadow of this weight would be used: w is a matrix of `real`s whose products are rounded, with rows of a multiple
 * of eight elements. Always false on the CPU, in f32 and for FIELD_INVARIANT. */
bool shadow_wanted(const Device *, Tensor w, unsigned flags);
/* Make `copy` (BF16, the shape of w, on the device) the shadow of w. The owner must set w.has_shadow in the tensor
 * that passes use, also while it measures: products of such a tensor need no scratch for rounding. */
void shadow_keep(Device *, Tensor w, Tensor copy);
void shadow_drop(Device *, const void *from, size_t bytes);    /* forget the shadows of weights in this range */
void shadow_changed(Device *, const void *from, size_t bytes); /* mark the shadows of weights in this range stale */
void shadow_refresh(Device *);                                 /* round every stale shadow again; does not wait */
/* The shadow of w, which is a matrix that has one, or rows of such a matrix. Rounds it first if it is stale. */
const uint16_t *shadow_of(Device *, Tensor w);
/* Called by an op that overwrites n weights from w on: the place where it must write their bf16 copies. NULL: there is
 * none to write; the shadow, if there is one, is now stale. */
uint16_t *shadow_written(Device *, const void *w, size_t n);
/* For tests: every shadow that is not stale equals its rounded weights. Waits. */
bool shadow_check(Device *);
