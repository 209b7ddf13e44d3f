/* fused.h: attention of training passes in bf16 by cuDNN (sdpa.h), for passes that it has a plan for. The CUDA
 * attention ops call it before their own kernels. Private to ops/cuda. */
#pragma once
#include "ops/ops.h"

struct Cuda;
typedef struct Fused Fused;
/* Open cuDNN for a device; from then on plans are built when training passes are measured. NULL, with one line on
 * stderr: the library is missing, too old, or gives no handle for this device. Our own kernels then do all the work. */
Fused *fused_open(struct Cuda *, bool unordered);
void fused_close(Fused *);
/* While measuring: builds the plan that a pass of this size needs, takes its scratch and returns false, so that our
 * own kernels' needs are measured too. Otherwise: true if cuDNN did the work, false if nothing was done.
 *
 * Accepted are training passes
 * - in which all rows are wanted and all sequences have the measured length;
 * - without sinks and without a bias per key;
 * - whose values are no part of the keys;
 * - whose documents begin in the pass. */
bool fused_attend(Fused *, Run *, Tensor o, Tensor lse, Tensor q, const Kv *, AttnSpec);
bool fused_attend_backward(Fused *, Run *, Into dq, const KvInto *dkv, Tensor dout, Tensor q, const Kv *, AttnSpec,
                           Tensor o, Tensor lse);
/* The number of plans, and how many of them ran at least once. */
void fused_count(const Fused *, int *plans, int *ran);
