/* known_gaps.h: what the CUDA backend has only slowly. For people and tests; no program reads it. */
#pragma once
#include "ops/ops.h"

typedef struct {
    const char *op;
    size_t at; /* of its entry in Ops */
    const char *why;
} CudaGap;
/* A list that ends with op NULL. */
const CudaGap *cuda_slow(void);
