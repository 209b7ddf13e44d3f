/* dmc.h: DMC and DMS: attention in which each head decides which rows its cache keeps. DMC merges a token into the row
 * of its predecessor; DMS evicts the predecessor some positions later. The projections are those of gqa, and no weight
 * is added: one element of every head (the lane, "last" D-1 or "first" 0) is removed from attention and used for the
 * decision.
 *
 *   u_t = k_t[lane] (merge), q_t[lane] of the first query head of the group (evict), before the rotation
 *   l_t = (gain u_t - offset + noise) / temperature      noise ~ logistic, in training only
 *   alpha_t = sigmoid(l_t) in training, [l_t > 0] in evaluation; 0 where a document begins
 *   merge:  omega_t = sigmoid(mean over the group of q_t[lane] + offset) + 2^-7
 *           k~_t, v~_t = means of the un-rotated k_j, v_j with weights omega_j alpha_j+1 .. alpha_t over the last
 *           `window` rows (Ops.merge);  evict: k~ = k, v~ = v
 *   q, k~ are rotated with their lane at 0 before and after (evict: the lane of the deciding query head alone)
 *   s_ij = q_i.k~_j / sqrt(D) + [i - j > delay] log(1 - alpha_j+1), over j <= i: the next token decides about row j
 * The cache (KvShape.evicts) therefore appends row t and, if alpha_t = 1, evicts row t-1 `delay` positions later.
 *
 * The phases of a retrofit:
 * - `zero`: plain attention whose lane fades. It is multiplied by max(0, 1 - progress/0.8) before and after the
 *   rotation (0 in evaluation); when the stage ends its weights are 0.
 * - `soft`: everything above.
 *
 * `decide: adapter` (evict alone): a projection of its own decides, u_t = Wd x_t + bd of the mixer's input x, one
 * element a lane. No element is removed from attention, so there is no phase zero, and QK-norm and rotations of a part
 * of a head are supported. Wd and bd begin as zeros: nothing is evicted, and the model is the plain one.
 *
 * `governs: itself` (evict alone, as FastDMS): alpha_t is about row t, and the pass of token t+1 applies it: until then
 * row t is visible anyway, unless delay is 0, which hides it from all others. So it is the decision of token t+1 by
 * u_t: Ops.decide reads u a row earlier, and a lane carries its last u. `lane_turned`: the rotation refills the lane of
 * the deciding query head, which is 0 before it alone.
 *
 * With qk_norm an evicting lane decides by its normed value, as in NVIDIA's published Qwen3; merging and phase zero
 * have no norms.
 *
 * train/ computes the loss that asks for compression from STAT_MERGED, the sum of [l > 0] over lanes and rows. Its
 * gradient is that of alpha.
 * Sources: arXiv:2403.09636 with NVIDIA/Megatron-LM branch dmc, megatron/contrib/dmc; arXiv:2506.05345 with
 * NVIDIA/Model-Optimizer experimental/dms (both variants; its adapter has a norm of the stream before the layer's own
 * norm, whose gain here is part of Wd). */
#pragma once
#include "layers/gqa/gqa.h"

enum { DMC_ZERO, DMC_SOFT };
enum { DMC_LAST, DMC_FIRST };
enum { DMC_MERGE, DMC_EVICT };
enum { DMC_LANE, DMC_ADAPTER };
enum { DMC_PREVIOUS, DMC_ITSELF };
enum { DMC_WINDOW = 12 }; /* the default, which tables of keys have as text */
typedef struct {
    GqaCfg g; /* first */
    int phase, decide, lane, action, window, delay, governs;
    bool lane_turned;
    double temperature, offset, gain; /* gain 0: 1 to merge, 100 to evict */
} DmcCfg;
typedef struct {
    GqaW g;        /* first */
    Tensor wd, bd; /* (G,d) (G) of `decide: adapter` */
} DmcW;
extern const char *const dmc_actions[], *const dmc_lanes[], *const dmc_deciders[],
                                                                *const dmc_governs[]; /* NULL-ended */

/* What a retrofit can move. Under Adam the d_model weights of a decision channel change by about `rate` each in a step,
 * so a decision moves by at most about gain rate d_model (inputs have a mean square of 1), whatever the weight of the
 * loss. Published: DMC 0.12 a step over 6,000 steps for each unit of compression, DMS 12 over 34. Where decisions
 * could move by 3.3 offsets not one row merged; with 20 small models merged two to six rows into one, and DMC at a
 * target of 4 in 240 steps did not reach it (docs/uptrain.md). So dmc_gain gives 20, and a conversion refuses less than
 * DMC_REACH, which lies between. */
#define DMC_REACH 10.0
static inline double dmc_moves(double gain, double rate, int d_model, int steps) {
    return gain * rate * d_model * steps;
}
static inline double dmc_gain(double offset, double rate, int d_model, int steps) {
    return 2 * DMC_REACH * fmax(1, offset) / (rate * d_model * steps);
}
