/* delta_backward.h: what the kernels of delta_backward.cu and delta_keys_backward.cu share. */
#pragma once
#include "delta.h"

enum { TILE64 = DELTA_ROWS * DELTA_ROWS };
struct DeltaGrad {
    CudaRecurGrad d;
    FlashOut v;
    bool keep;  /* dv is rounded to x.v, too */
    bool pairs; /* states lie at 8 bytes */
};
DEVICE size_t seq_state(const Delta &x, int s, int h) {
    return ((size_t)x.a.seq[s] * (size_t)x.a.HV + (size_t)h) * (size_t)x.a.K * (size_t)x.a.V;
}
/* The gradient of the state behind a chunk; NULL: zero. */
DEVICE const float *state_behind(const Delta &x, const DeltaGrad &y, const Chunk &c, int s, int h) {
    if (c.more) return x.dkeep + kept_at(x, c.t + DELTA_ROWS, h);
    return c.last && y.d.dend ? y.d.dend + seq_state(x, s, h) : nullptr;
}
/* What sums over pairs of rows, behind everything else: dq, dk and dg. */
void delta_keys_backward_all(Cuda *, const Delta *, const DeltaGrad *);
