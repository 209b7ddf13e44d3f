/* parts.h: small helpers that several mixers call in their passes and when they are initialised. */
#pragma once
#include "ops/ops.h"

/* The wanted rows of x (in.n, ...): (out.n, ...), in scratch, or x itself if all rows are wanted. */
static inline Tensor wanted_rows(Run *r, Tensor x) {
    if (r->in.n == r->out.n) return x;
    Tensor shape = x;
    shape.n[0] = r->out.n;
    Tensor y = scratch_tensor(r, "wanted rows", x.dtype, shape.rank, shape.n);
    r->ops->gather(r, y, x, r->in, r->out);
    return y;
}
/* x (N, heads width) as (N, heads, width): the same memory. */
static inline Tensor shaped(Tensor x, int heads, int width) { return TENSOR(x.p, x.dtype, x.n[0], heads, width); }
/* t in another dtype: t itself, or a copy in scratch. */
static inline Tensor tensor_as(Run *r, const char *name, Tensor t, Dtype dtype) {
    if (t.dtype == dtype) return t;
    Tensor copy = scratch_tensor(r, name, dtype, t.rank, t.n);
    r->ops->copy(r, copy, t);
    return copy;
}
/* Zeros of the shape and dtype of `like`, in scratch, for a gradient to be added to. An absent tensor gives an absent
 * one. */
static inline Tensor zeros_like(Run *r, const char *name, Tensor like) {
    if (!present(like)) return ABSENT;
    Tensor t = scratch_tensor(r, name, like.dtype, like.rank, like.n);
    r->ops->zero(r, t);
    return t;
}

/* Room of the shape and dtype of `like`, in scratch. An absent tensor gives an absent one. */
static inline Tensor scratch_like(Run *r, const char *name, Tensor like) {
    return present(like) ? scratch_tensor(r, name, like.dtype, like.rank, like.n) : ABSENT;
}

/* What a norm multiplies by: its weight w, or with `plus_one` 1 + w, in scratch. Of both the derivatives are the
 * same. */
static inline Tensor norm_gain(Run *r, Tensor w, bool plus_one) {
    if (!plus_one) return w;
    Tensor gain = SCRATCH(r, "1 + weight", w.n[0]);
    r->ops->repeat(r, TENSOR(gain.p, REAL, w.n[0], 1), &(const double){1});
    r->ops->axpby(r, gain, 1, w, 1);
    return gain;
}
/* Of the field of such a weight: the norm begins with factors of 1. */
static inline unsigned norm_gain_flags(bool plus_one) { return (plus_one ? FIELD_ZEROS : FIELD_ONES) | FIELD_NODECAY; }

/* ---- initial values of recurrences ------------------------------------------------------------------------------- */
/* w (C,1,W) or absent: U(-1,1)/sqrt(W), PyTorch's initial value for a depthwise convolution. It keeps the size of the
 * signal. */
static inline void begin_conv(Tensor w, uint64_t key) {
    for (size_t i = 0; i < tensor_count(w); i++)
        R(w)[i] = (real)((2 * rng_uniform(key, i) - 1) / sqrt(w.n[w.rank - 1]));
}
/* Where the initial decays of heads with one rate each come from. */
enum { RATES_SPREAD, RATES_DRAWN, RATES_EQUAL = RATES_DRAWN };
static const char *const rates_names[] __attribute__((unused)) = {"spread", "drawn", NULL};
#define RATES_MEANING \
    "initial decays: spread: half-lives of 1 to 512 tokens over the heads, evenly in the logarithm; drawn: by lot"
/* A (H) and dt (H): of a token without input, e^A softplus(dt) is the decay per token. Half-lives go from 1 to 512
 * tokens, from the first head to the last in equal steps of the logarithm, each moved by at most an eighth of a step.
 * Half of such a range are steps of 0.1 to 0.001, the rest rates of 7 to 1.3. */
static inline void begin_rates(Tensor A, Tensor dt, uint64_t key) {
    const size_t H = tensor_count(A);
    for (size_t h = 0; h < H; h++) {
        const double at = ((double)h + 0.5 + 0.25 * (rng_uniform(key, h) - 0.5)) / (double)H;
        const double step = 0.1 * pow(0.01, at);
        R(dt)[h] = (real)(step + log(-expm1(-step)));
        R(A)[h] = (real)(log(log(2)) - at * log(512) - log(step));
    }
}
/* The log decay per token of channel i of n. Half-lives go from 1 to 512 tokens, from the first channel to the last in
 * equal steps of the logarithm, each moved by at most an eighth of a step. For layers where the decay of every head or
 * channel has a bias (rates: spread). */
static inline double spread_decay(size_t i, size_t n, uint64_t key, size_t draw) {
    const double at = ((double)i + 0.5 + 0.25 * (rng_uniform(key, draw) - 0.5)) / (double)n;
    return -log(2) * pow(512, -at);
}
/* Values whose softplus is log-uniform in 0.001..0.1: decays of that many times the rate per token (Mamba's
 * dt_bias). */
static inline void begin_steps(Tensor dt, uint64_t key) {
    for (size_t i = 0; i < tensor_count(dt); i++) {
        double step = exp(log(1e-3) + rng_uniform(key, i) * log(1e-1 / 1e-3));
        R(dt)[i] = (real)(step + log(-expm1(-step)));
    }
}
