/* sample.h: device_sample draws one token from each row of logits on the GPU, so that a decoding step copies only
 * tokens to the host. A session calls it on the logits of model_extend.
 *
 * The steps and their order are those of infer/sampler.h, in f64. Sums are taken in another order than there: a draw
 * within about 1e-13 of the border between two tokens may give the other token. */
#pragma once
#include "ops.h"

typedef struct {
    uint64_t key, draw; /* the draw is rng_uniform(key, draw) */
    double temperature, penalty, top_p, min_p;
    int top_k; /* 0: all */
    int slot;  /* row of `seen` */
} SampleRow;
typedef struct {
    int token; /* -1: the logit of token `at` is `value`, which is NaN or infinite; -2: all logits are -inf */
    int at;
    float value;
} Sampled;
/* Bytes of scratch that n rows of V logits need. */
size_t device_sample_bytes(int n, int V);
/* Draw a token for each of n rows of V logits. Waits for the device.
 * - logits, seen and mem must lie in device memory; mem: device_sample_bytes, aligned to 16.
 * - seen (slots,V): nonzero for tokens of the prompt and the output. The drawn tokens are added to it. NULL: no
 *   penalty.
 * - The device must be a GPU (or its emulation). */
void device_sample(Device *, int n, int V, const SampleRow *, const real *logits, unsigned char *seen, void *mem,
                   Sampled *out);
