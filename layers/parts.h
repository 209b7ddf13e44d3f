/* parts.h: small steps that several mixers take. */
#pragma once
#include "../ops/ops.h"

/* The rows of x (in.n, ...) that are wanted: (out.n, ...), in scratch unless all are. */
static inline Tensor wanted_rows(Run *r, Tensor x) {
    if (r->in.n == r->out.n) return x;
    Tensor shape = x;
    shape.n[0] = r->out.n;
    Tensor y = scratch_tensor(r, "wanted rows", x.dtype, shape.rank, shape.n);
    r->ops->gather(r, y, x, r->in, r->out);
    return y;
}
/* x (N, heads width) as (N, heads, width): the same memory. */
static inline Tensor shaped(Tensor x, int heads, int width) {
    Tensor t = TENSOR(x.p, x.dtype, x.n[0], heads, width);
    t.fresh = x.fresh;
    return t;
}
/* t as numbers of another type: itself, or a copy in scratch. */
static inline Tensor tensor_as(Run *r, const char *name, Tensor t, Dtype dtype) {
    if (t.dtype == dtype) return t;
    Tensor copy = scratch_tensor(r, name, dtype, t.rank, t.n);
    r->ops->copy(r, copy, t);
    return copy;
}
/* Zeros of one's shape and type in scratch, for a gradient to be added to; absent of absent. */
static inline Tensor zeros_like(Run *r, const char *name, Tensor like) {
    if (!present(like)) return ABSENT;
    Tensor t = scratch_tensor(r, name, like.dtype, like.rank, like.n);
    r->ops->zero(r, t);
    return t;
}

/* Room for a gradient of one's shape and type that one op alone writes; absent of absent. */
static inline Tensor fresh_like(Run *r, const char *name, Tensor like) {
    return present(like) ? as_fresh(scratch_tensor(r, name, like.dtype, like.rank, like.n)) : ABSENT;
}

/* ---- initial values of recurrences ---------------------------------------------------------------------------------
 */
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
