/* begin.h: initial values that recurrences share. */
#pragma once
#include "../../ops/tensor.h"

/* w (C,1,W) or absent: U(-1,1)/sqrt(W), PyTorch's for a depthwise convolution, which keeps the size of what passes. */
static inline void begin_conv(Tensor w, uint64_t key) {
    for (size_t i = 0; i < tensor_count(w); i++)
        R(w)[i] = (real)((2 * rng_uniform(key, i) - 1) / sqrt(w.n[w.rank - 1]));
}
/* Where softplus is log-uniform in 0.001..0.1: decays of that many times the rate per token (Mamba's dt_bias). */
static inline void begin_steps(Tensor dt, uint64_t key) {
    for (size_t i = 0; i < tensor_count(dt); i++) {
        double step = exp(log(1e-3) + rng_uniform(key, i) * log(1e-1 / 1e-3));
        R(dt)[i] = (real)(step + log(-expm1(-step)));
    }
}
