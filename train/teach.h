/* teach.h: the losses of a student relative to another model's outputs on the same batch (model_states), as a LossHook
 * for model_train_with. The trainer's teacher (teacher.h) fills one; tests make their own.
 *
 * For the student's row i with a target, over the layers l in which both have a mixer's output (attention) or over all
 * layers (hidden):
 *   lm nll_i + kl KL_i + rkl RKL_i  (Ops.linear_distill)
 *   + attention mean_l err_i(the mixer's output of l) + hidden mean_l err_i(the stream after l)
 * with err of Ops.align, relative to the teacher's mean square in the sample: 0 is equal, 1 as far off as 0 would
 * be. */
#pragma once
#include "model/workspace.h"

typedef struct {
    Distill logits; /* but for the map of the model that learns */
    double attention, hidden;
    Tensor xf, head;              /* (N,e), (V,e) rows before the teacher's head, and that; absent: kl = rkl = 0 */
    Tensor *mix, *out;            /* (N,d) per layer, absent in a layer without output; NULL: attention, hidden = 0 */
    real *kl, *rkl, *mixs, *outs; /* (N) receive every row's losses, without their weights; NULL where 0 */
    int N, mixes, layers;         /* of the current pass: rows; layers with a loss on the mixer, and all */
} Teach;
/* The Teach must outlive the hook. While a pass is measured, its tensors need no memory. */
LossHook teach_hook(Teach *);
