/* block.h: one block of the model, written once for training, scoring and decoding, with its gradient. model.c and
 * extend.c call it layer by layer.
 *
 *   mid = x + mixer(norm1(x));   y = mid + ffn(norm2(mid))
 *   parallel: mid as above;      y = mid + ffn(norm2(x))
 *   no feed-forward part: y = mid
 *   publisher: y = x; its mixer only writes K/V
 *   norm_place post: what mixer and ffn make is normed, before it is added, and their inputs are not; both: these too
 *   residual_scale: a factor on what is added
 *
 * A block starts from xn1 = norm1(x), which the caller makes, and leaves y without its last sum: block_end adds mid
 * and computes, in the same op, the norm that reads y next. x and y never alias. */
#pragma once
#include "inside.h"

/* The norm of the model's kind over rows x: y, rstd. b is absent where it has none. Without w rows stay as they are:
 * their norm is after the part that reads them. */
typedef struct {
    Tensor y, rstd, w, b;
} Norm;
void model_norm(const Model *, Run *, Norm, Tensor x);
/* norm1 of layer l, or for l = L the norm before the head: into y and rstd. */
Norm block_norm(const Model *, int l, Tensor y, Tensor rstd);
void model_norm_backward(const Model *, Run *, Into dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
                         Tensor rstd);

/* The losses of a training pass, for the backward of its blocks. */
typedef struct {
    const LossHook *hook; /* NULL: there are none but the logits' */
    const int *tgt;
    const real *g;
} LossPass;

/* ---- without a history: a training or scoring pass ---- */
/* Declares what backward reads of layer l and a replay of its forward pass makes again: everything except the block's
 * input and shared K/V. BF16 where device and layer allow it; the stream and statistics stay REAL. */
void block_fields(const Model *, Workspace *, int l, int N, Fields *);
/* Declares the K/V of layer l, which other layers read, and with `gradient` its gradient, to which all of them add. */
void block_shared_fields(const Model *, Workspace *, int l, int N, bool gradient, Fields *);
/* Declares Run.below, where the codec predicts rows from those of the layer below. */
void block_below_fields(const Model *, int N, Run *, Fields *);
/* Declares the stream between the blocks, x (L+1 tensors (N,d)), and what the norm before the head makes of it. */
void block_stream_fields(const Model *, int N, Tensor *x, Tensor *xf, Tensor *rstd, Fields *);
/* The K/V that layer l reads. */
Kv *block_kv(const Model *, Workspace *, int l);
/* norm1 of layer l, to where block_fields has put it. */
Norm block_kept_norm(const Model *, Workspace *, int l);
/* From norm1 of x, which block_kept_norm's tensors hold, to y without its last sum. */
void block_forward(const Model *, Workspace *, Run *, int l, Tensor x, Tensor y);
/* Adds that sum, and computes `next`, the norm that reads y (NULL: not yet). */
void block_end(const Model *, Workspace *, Run *, int l, Tensor y, const Norm *next);
/* All of it: y = block(x). */
void block_whole(const Model *, Workspace *, Run *, int l, Tensor x, Tensor y);
/* dx: in, the gradient of y; out, that of x. Adds to the weights' gradients. Shared K/V: its gradient is Workspace.dkv.
 * LossHook.mixer adds to the gradient of the mixer's output. */
void block_backward(const Model *, Workspace *, Run *, int l, Tensor x, Tensor dx, const LossPass *);
/* y = mid - x: what the mixer of a block added to the stream. */
void block_mixed(Run *, Tensor y, Tensor mid, Tensor x);

/* ---- over a history ---- */
/* y (out.n,d) = block(x (in.n,d)), its last sum included, and `next`, the norm that reads y. xn: norm1 of x. */
void block_extend(const Model *, Workspace *, Run *, const Cache *, int l, Tensor x, Tensor xn, Tensor y, Norm next);
