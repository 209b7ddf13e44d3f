/* sample.h: a token from each row of logits, drawn where they lie: on a device, so that a decoding step brings the host
 * no more than its tokens. The steps and their order are those of infer/sampler.h, in f64; sums are taken in another
 * order than there, so that a draw within about 1e-13 of the border between two tokens may fall on the other side. */
#pragma once
#include "ops.h"

typedef struct {
    uint64_t key, draw; /* the draw is rng_uniform(key, draw) */
    double temperature, penalty, top_p, min_p;
    int top_k; /* 0: all */
    int slot;  /* row of `seen` */
} SampleRow;
typedef struct {
    int token; /* -1: the logit of token `at` is `value`, which is no number; -2: all are -inf */
    int at;
    float value;
} Sampled;
/* Of scratch, for n rows of V. */
size_t device_sample_bytes(int n, int V);
/* seen (slots,V): nonzero for tokens of prompt and output, to which those drawn are added; NULL: no penalty. logits,
 * seen and mem (device_sample_bytes, aligned to 16) lie on the device, which must be one that keeps tensors apart.
 * Waits. */
void device_sample(Device *, int n, int V, const SampleRow *, const real *logits, unsigned char *seen, void *mem,
                   Sampled *out);
