/* comm_stream.h: the second queue of CUDA's backend (open.c), for ops/comm_stream.h. */
#pragma once
#include "ops/backend.h"
#include "cuda.h"

extern const BackendCommStream cuda_comm_stream;
