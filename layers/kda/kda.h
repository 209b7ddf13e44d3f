/* kda.h: Kimi Delta Attention: each head keeps a matrix of K x V elements instead of keys and values, with a decay per
 * channel. The mixer kda (kda.c) uses it.
 *
 *   q, k, v = silu(conv(Wq x)), silu(conv(Wk x)), silu(conv(Wv x))     (H,K) (H,K) (HV,V) per token; conv_bias
 *   q, k <- q / |q|, k / |k|                                            eps 1e-6 is added to the sum of squares
 *   z = Wfb (Wfa x) + dt_bias, or Wf x + dt_bias                        (HV,K)  gate_proj: low_rank | full
 *   g = -exp(A_log) softplus(z), or bound sigmoid(exp(A_log) z)         gate: standard | lower_bound
 *   beta = beta_max sigmoid(Wb x)                                       (HV)
 *   S <- Diag(e^g) S;  S <- S + k beta (v - S^T k)^T;  o = K^-1/2 S^T q ops/recur.h
 * erase: channel is Gated DeltaNet-2: instead of beta, two gates decide channel by channel what is erased and written:
 *   b = beta_max sigmoid(Wb x)  (H,K),  w = sigmoid(Ww x)  (HV,V)
 *   S <- Diag(e^g) S;  S <- S + k (w v - S^T (b k))^T
 * Both:
 *   y = Wo [w rms(o) sigmoid(gate)],  gate = Wgb (Wga x) + bias, or Wg x; out_act: silu for sigmoid; out_gate: none
 * kv_heads G < H: query head h reads what key head h / (H/G) wrote, and there are HV G/H states, of which z, beta, k, v
 * have as many (layers/linear/steps.h).
 * levels n > 0: log-linear attention (layers/linear/levels.h): a state for every level of distance, weighed per value
 * head of a token by softplus(L (Wl x)), (HV,n); without levels every weight is 1 and there is one state.
 * A document begins with S = 0 and an empty convolution. Each sequence keeps HV K V + (W-1)(2 H K + HV V) elements for
 * any length of context, and n - 1 times HV K V with n > 2 levels. Positions are not used but by levels: attention
 * layers in the same model may go without RoPE.
 * Source: arXiv:2510.26692, arXiv:2605.22791 (Gated DeltaNet-2), arXiv:2506.04761 (levels); tensor names of
 * Kimi-Linear-48B-A3B and fla. */
#pragma once
#include "layers/mixer.h"

typedef struct {
    LayerCfg base;
    int heads, kv_heads, v_heads, head_dim, v_dim, conv, gate, gate_proj, gate_rank, out_gate, out_rank, out_act,
        beta_max, rates, erase, levels;
    double bound;
    bool out_bias, conv_bias;
} KdaCfg;
enum { KDA_LOWER_BOUND, KDA_STANDARD };
enum { KDA_LOW_RANK, KDA_FULL, KDA_NONE };
enum { KDA_SIGMOID, KDA_SILU };
enum { KDA_BY_HEAD, KDA_BY_CHANNEL };
