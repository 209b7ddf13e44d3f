/* dmc.h: attention that decides, head by head, which rows its cache keeps: DMC merges a token into its predecessor's
 * row, DMS evicts the predecessor some positions later. The projections are gqa's; no weight is added: one number of
 * every head (the lane, "last" D-1 or "first" 0) is taken from attention and given to the decision.
 *
 *   u_t = k_t[lane] (merge), q_t[lane] of the first query head of the group (evict), before the rotation
 *   l_t = (gain u_t - offset + noise) / temperature      noise ~ logistic, in training only
 *   alpha_t = sigmoid(l_t) in training, [l_t > 0] in evaluation; 0 where a document begins
 *   merge:  omega_t = sigmoid(mean over the group of q_t[lane] + offset) + 2^-7
 *           k~_t, v~_t = means of the un-rotated k_j, v_j with weights omega_j alpha_j+1 .. alpha_t over the last
 *           `window` rows (Ops.merge);  evict: k~ = k, v~ = v
 *   q, k~ are rotated with their lane at 0 before and after (evict: the lane of the deciding query head alone)
 *   s_ij = q_i.k~_j / sqrt(D) + [i - j > delay] log(1 - alpha_j+1), over j <= i: the next token decides about row j
 * The cache (KvShape.retire) therefore appends row t and, if alpha_t = 1, row t-1 leaves `delay` positions later.
 *
 * Phases of a retrofit: `zero`: plain attention whose lane fades: times max(0, 1 - progress/0.8) before and after the
 * rotation (0 in evaluation); when the stage ends its weights are 0. `soft`: all of the above. The loss that asks for
 * compression is made in train/ of STAT_MERGED: sum of [l > 0] (its gradient that of alpha) over lanes and rows.
 * Sources: arXiv:2403.09636 with NVIDIA/Megatron-LM branch dmc, megatron/contrib/dmc; arXiv:2506.05345 with
 * NVIDIA/Model-Optimizer experimental/dms (the form that borrows a query's number). */
#pragma once
#include "../gqa/gqa.h"

enum { DMC_ZERO, DMC_SOFT };
enum { DMC_LAST, DMC_FIRST };
enum { DMC_MERGE, DMC_EVICT };
typedef struct {
    GqaCfg g; /* first */
    int phase, lane, action, window, delay;
    double temperature, offset, gain; /* gain 0: 1 to merge, 100 to evict */
} DmcCfg;
