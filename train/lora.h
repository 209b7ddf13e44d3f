/* lora.h: low-rank adapters: W = W_0 + (alpha / rank) B A on chosen matrices, of which A and B alone are trained.
 *
 * A (rank, in) begins at random, B (out, rank) at 0. The model's own weights hold the sum: it is made once per
 * optimizer step, so that no mixer knows of adapters, passes cost what they cost without, and every checkpoint is a
 * plain model. The gradient of W, which the model computes as always, gives dA = s B^T dW and dB = s dW A^T, s = alpha
 * / rank. Memory beside the model's weights and gradients: W_0 of the chosen matrices, and A, B, their gradients and
 * moments. Source: arXiv:2106.09685. */
#pragma once
#include "../model/model.h"
#include "../optim/params.h"

typedef struct {
    char name[192];                        /* of the matrix: "model.layers.0.self_attn.q_proj.weight" */
    Tensor w, g;                           /* the model's: the sum, its gradient (out,in) */
    Tensor base;                           /* W_0 */
    Tensor a[PARAM_ROLES], b[PARAM_ROLES]; /* (rank,in), (out,rank), named NAME.lora_A.weight and NAME.lora_B.weight */
} LoraPart;
typedef struct {
    int n; /* 0: none */
    LoraPart *part;
    double scale;
    const ModelOpts *opts; /* of the model: which moments there are */
    Device *dev;           /* the model's, where the numbers lie; NULL: with the host */
    Arena state, grads;    /* bases, adapters, moments; gradients of adapters */
} Lora;

/* The parts of a model whose weights and gradients are declared, and the bytes of both regions. Without rank: none. */
void lora_declare(Lora *, Model *, const LoraCfg *);
/* EXIT_INPUT: several ranks, a pattern without a matrix, a rank larger than one, a
 * mixer that changes its weights by itself; a group of optim.groups without an adapter. */
bool lora_check(const Lora *, const Model *, const Config *, int ranks, Err *);
bool lora_open(Lora *, Err *); /* maps the regions */
void lora_close(Lora *);
/* Adapters of one role, in order; moments as ModelOpts want them. */
void lora_fields(Lora *, ParamRole, Fields *);
/* W_0 under the names of the matrices. */
void lora_bases(Lora *, Fields *);

/* W_0 = the model's weights as they are, A drawn by seed and name, B = 0, no moments. */
void lora_begin(Lora *, uint64_t seed);
void lora_gradients(Run *, Lora *); /* of A and B from that of the sums */
void lora_apply(Run *, Lora *);     /* the sums from W_0, A and B */

/* A second set of the state's numbers. */
bool lora_copy_open(Lora *copy, const Lora *, bool dry, Err *);
void lora_copy_take(Lora *copy, const Lora *);
