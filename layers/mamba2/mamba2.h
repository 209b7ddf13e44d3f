/* mamba2.h: Mamba-2: a selective state space model with one decay per head. The mixer mamba2 uses it; it has the
 * recurrence of ops/recur.h without correction (q = C, k = B, v = step x, scale 1).
 *
 *   [z x B C dt] = W_in x + b_in                      (H,P) (H,P) (G,N) (G,N) (H) per token
 *   x, B, C <- silu(conv(.) + bias)                   depthwise, causal, `conv` tokens
 *   step = softplus(dt + dt_bias), g = -exp(A_log) step
 *   S <- exp(g) S + B (step x)^T, o = S^T C + D x     S (N,P) per head; head h uses B and C of group h / (H/G)
 *   y = W_out (w rmsnorm(o silu(z))) + b_out          normed in G groups of H P / G elements; gate: sigmoid for silu
 * levels > 0: log-linear attention (layers/linear/levels.h); W_in has rows of the levels' weights after those of dt,
 * (H,levels) per token.
 * State blob: S (H,N,P), of each level in turn, then the last conv-1 inputs of the convolutions of x, B and C.
 * Source: arXiv:2405.21060; names and packing as Hugging Face's Mamba2. */
#pragma once
#include "layers/linear/levels.h"
#include "layers/mixer.h"

typedef struct {
    LayerCfg base;
    int heads, head_dim, state_size, groups, conv, gate, rates, levels;
    bool conv_bias, bias;
} Mamba2Cfg;
