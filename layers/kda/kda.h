/* kda.h: Kimi Delta Attention: a matrix of K x V numbers per head instead of keys and values, with a decay per channel.
 *
 *   q, k, v = silu(conv(Wq x)), silu(conv(Wk x)), silu(conv(Wv x))     (H,K) (H,K) (HV,V) per token
 *   q, k <- q / |q|, k / |k|                                            eps 1e-6 beside the sum of squares
 *   z = Wfb (Wfa x) + dt_bias                                           (HV,K)
 *   g = -exp(A_log) softplus(z), or bound sigmoid(exp(A_log) z)         gate: standard | lower_bound
 *   beta = beta_max sigmoid(Wb x)                                       (HV)
 *   S <- Diag(e^g) S;  S <- S + k beta (v - S^T k)^T;  o = K^-1/2 S^T q ops/recur.h
 *   y = Wo [w rms(o) sigmoid(gate)],  gate = Wgb (Wga x) + bias, or Wg x
 * A document begins with S = 0 and an empty convolution. Per sequence HV K V + (W-1)(2 H K + HV V) numbers are kept,
 * however long the context. Positions do not enter: attention layers beside it may go without RoPE.
 * Source: arXiv:2510.26692; tensor names of Kimi-Linear-48B-A3B. */
#pragma once
#include "../mixer.h"

typedef struct {
    LayerCfg base;
    int heads, v_heads, head_dim, v_dim, conv, gate, gate_rank, out_gate, out_rank, beta_max;
    double bound;
    bool out_bias;
} KdaCfg;
enum { KDA_LOWER_BOUND, KDA_STANDARD };
enum { KDA_LOW_RANK, KDA_FULL };
