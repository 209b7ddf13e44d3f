/* ref.h: the reference of every op of ops.def in plain loops, for tests and for readers who want to know what an op
 * computes. Tests link it; the program does not have it.
 *
 * ref_OP has the arguments of Ops.OP and its contract, roles included, but sums in double and rounds an element once,
 * as it is stored. Tensors of `real`s may be F64 instead, so that a result is had before any rounding; so may BF16
 * ones. Operands are never rounded to bf16 (device_bf16). No scratch is used; what an op needs is allocated. Everything
 * is the definition, one loop for each index, and shares no code with ops/cpu but definitions: noise, frequencies of
 * Rope, codecs of rows. */
#pragma once
#include "ops/ops.h"

#define DEF(result, op, flops, ...) result ref_##op(Run *r OP_EACH(OP_PARAM, __VA_ARGS__));
#include "ops/ops.def"
/* These functions as a table; an op of it does nothing while a pass is measured. */
extern const Ops ops_ref;

/* A signature has arguments that the definition does not need: r, keep. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- elements of a tensor: by place, as [i][j] of the last two sizes, as [i][j][k] of the last three ---- */
static inline double get(Tensor t, long i) {
    if (t.dtype == BF16) return (double)bf16_to(((const uint16_t *)t.p)[i]);
    return t.dtype == F64 ? ((const double *)t.p)[i] : (double)((const float *)t.p)[i];
}
static inline void put(Tensor t, long i, double x) {
    if (t.dtype == BF16)
        ((uint16_t *)t.p)[i] = bf16_from((float)x);
    else if (t.dtype == F64)
        ((double *)t.p)[i] = x;
    else
        ((float *)t.p)[i] = (float)x;
}
/* A gradient's element: x is all that this call adds to it. */
static inline void put_into(Into y, long i, double x) {
    if (present(y.t)) put(y.t, i, y.overwrite ? x : get(y.t, i) + x);
}
static inline int size_of(Tensor t, int from_last) { return t.n[t.rank - 1 - from_last]; }
static inline long at2(Tensor t, long i, long j) { return i * size_of(t, 0) + j; }
static inline long at3(Tensor t, long i, long j, long k) { return (i * size_of(t, 1) + j) * size_of(t, 0) + k; }
static inline double get2(Tensor t, long i, long j) { return get(t, at2(t, i, j)); }
static inline double get3(Tensor t, long i, long j, long k) { return get(t, at3(t, i, j, k)); }
static inline void put2(Tensor t, long i, long j, double x) { put(t, at2(t, i, j), x); }
static inline void put3(Tensor t, long i, long j, long k, double x) { put(t, at3(t, i, j, k), x); }
static inline void put_into2(Into y, long i, long j, double x) {
    if (present(y.t)) put_into(y, at2(y.t, i, j), x);
}
static inline void put_into3(Into y, long i, long j, long k, double x) {
    if (present(y.t)) put_into(y, at3(y.t, i, j, k), x);
}
static inline long count(Tensor t) { return (long)tensor_count(t); }

/* For sums that several loops contribute to: zeros like t, which deposit puts into y, each element once, and frees. */
static inline double *zeros_like(Tensor t) { return xcalloc(tensor_count(t) + 1, sizeof(double)); }
static inline void deposit(Into y, double *sum) {
    for (long i = 0; i < count(y.t); i++) put_into(y, i, sum[i]);
    free(sum);
}

static inline double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }
static inline double silu_of(double x) { return x * sigmoid_of(x); }
static inline double silu_slope_of(double x) { return sigmoid_of(x) * (1 + x * (1 - sigmoid_of(x))); }
static inline double softplus_of(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
