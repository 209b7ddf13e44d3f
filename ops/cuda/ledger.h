/* ledger.h: what the CUDA backend does not have yet, and what it has only slowly. */
#pragma once
#include "../ops.h"

typedef struct {
    const char *op;
    size_t at; /* of its entry in Ops */
    const char *why;
} CudaLedger;
/* Lists that end with op NULL. */
const CudaLedger *cuda_missing(void);
const CudaLedger *cuda_slow(void);
