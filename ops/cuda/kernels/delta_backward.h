/* delta_backward.h: shared code of the backward kernels of the recurrence, in delta_backward.cu and
 * delta_keys_backward.cu. With the names of delta.h, S the state before a chunk and dS' the gradient of that after it:
 *   du = P^T do + (k e_last) dS',  dr = beta du,  dS = Diag(c_last) dS' + (q c)^T do - W^T dr
 *   dP = do u^T below and on the diagonal,  dR = dr,  dW = -dr S^T              without delta dv = du, and no dr, dW
 * delta_backward.cu walks chunks from the last to the first and keeps dS of each (Delta.dkeep); delta_keys_backward.cu
 * then sums over pairs of rows for dq, dk and dg. Operands are bf16, sums and states f32. */
#pragma once
#include "delta.h"

enum { TILE64 = DELTA_ROWS * DELTA_ROWS };
/* Where the gradients go: the op's arguments, and dv as rows. */
struct DeltaGrad {
    CudaRecurGrad d;
    FlashOut v;
    bool keep;  /* dv is also rounded to x.v */
    bool pairs; /* states are aligned to 8 bytes */
};
/* Offset of the state (K,V) of head h of sequence s in the op's tensors of states, which Batch.seq numbers. */
DEVICE size_t seq_state(const Delta &x, int s, int h) {
    return ((size_t)x.a.seq[s] * (size_t)x.a.HV + (size_t)h) * (size_t)x.a.K * (size_t)x.a.V;
}
/* The gradient of the state after a chunk; NULL: zero. */
DEVICE const float *state_behind(const Delta &x, const DeltaGrad &y, const Chunk &c, int s, int h) {
    if (c.more) return x.dkeep + kept_at(x, c.t + DELTA_ROWS, h);
    return c.last && y.d.dend ? y.d.dend + seq_state(x, s, h) : nullptr;
}
/* Computes the sums over pairs of rows, after everything else: dq, dk and dg. */
void delta_keys_backward_all(Cuda *, const Delta *, const DeltaGrad *);
