/* fused.h: attention of training passes in bf16 by cuDNN (sdpa.h), where it has a plan for the pass. Private to
 * ops/cuda. */
#pragma once
#include "../ops.h"

struct Cuda;
typedef struct Fused Fused;
/* Opens cuDNN for a device; from now on plans are built as training passes are measured. A library that is missing, too
 * old or without a handle for this device is said once on stderr, and NULL returned: our own kernels do it all. */
Fused *fused_open(struct Cuda *, bool unordered);
void fused_close(Fused *);
/* While measuring: builds what there is to build for a pass of this size and takes its scratch; false, so that what
 * else the pass may need is measured, too. Otherwise true: done by cuDNN. False: nothing is done.
 *
 * Served are passes in training, all of whose rows are wanted, of sequences that all have the length that was measured;
 * without sinks, without a bias per key, whose values are no part of the keys. Their documents begin in the pass. */
bool fused_attend(Fused *, Run *, Tensor o, Tensor lse, Tensor q, const Kv *, Look);
bool fused_attend_backward(Fused *, Run *, Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *, Look, Tensor o,
                           Tensor lse);
/* Plans, and of those how many were run at least once. */
void fused_count(const Fused *, int *plans, int *ran);
