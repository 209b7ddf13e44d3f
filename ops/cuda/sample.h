/* sample.h: the kernel of ops/sample.h; device_sample calls it. p, id (n,V): scratch. */
#pragma once
#include "ops/sample.h"
#include "cuda.h"

#ifdef __cplusplus
extern "C"
#endif
    void
    cuda_sample(Cuda *, int n, int V, const SampleRow *rows, const float *logits, unsigned char *seen, double *p,
                int *id, Sampled *out);
