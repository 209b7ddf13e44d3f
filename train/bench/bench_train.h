/* bench_train.h: times the training steps of one model. The commands `bench train`, `bench tune` and `compare` call
 * it. */
#pragma once
#include "bench.h"
#include "model/cost.h"
#include "ops/profile.h"

/* Training steps on random tokens: gradients of one micro-batch of cfg, the norm for clipping, an AdamW step. vocab is
 * resolved. `cost` is of documents of data.seq_len tokens. False: EXIT_RUNTIME, no memory. */
bool bench_step(Device *, const Config *, double seconds, Timing *, Cost *, Err *);
/* Profile of such a step: means of as many steps as fit into `seconds`, at least one, op by op in turn (profile.h):
 * calls, seconds and FLOPs of one step. out: room for PROFILE_MAX. */
bool bench_profile(Device *, const Config *, double seconds, Share *out, int *n, Err *);
/* The same step with a teacher of the model's own shape and other weights: lm and kl (Ops.linear_distill). */
bool bench_distill(Device *, const Config *, double seconds, Timing *, Err *);
