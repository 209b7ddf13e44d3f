/* lora.h: low-rank adapters: W = W_0 + (alpha / rank) B A on chosen matrices, of which A and B alone are trained.
 *
 * A (rank, in) begins at random, B (out, rank) at 0. The model stores W_0, in bf16 where ModelOpts.stored_bf16 says so.
 * A pass computes with sums that exist for one layer at a time (SumHooks): they are made before the layer's forward pass
 * and again before its backward pass, so that no mixer knows of adapters. With them comes room for the gradients dW of
 * that layer's sums, which give dA += s B^T dW and dB += s dW A^T, s = alpha / rank. Adapted matrices outside of the
 * layers (embedding, head) have their sums during the whole pass. Making a sum costs 2 rank FLOPs per number of W, a
 * pass over N tokens 6 N. Memory besides the model's: A, B, their gradients and moments; one layer's sums and dW in
 * f32. Source: arXiv:2106.09685. */
#pragma once
#include "../model/model.h"
#include "../optim/params.h"

typedef struct {
    char name[192];                        /* of the matrix: "model.layers.0.self_attn.q_proj.weight" */
    int unit;                              /* of the model, see UnitHooks */
    Tensor *w, *g;                         /* the model's own: W_0 or, in a pass, the sum; absent, or its gradient */
    Tensor base;                           /* W_0, as the model stores it */
    Tensor sum, dw;                        /* (out,in) the memory that the layer's sum and gradient take */
    Tensor a[PARAM_ROLES], b[PARAM_ROLES]; /* (rank,in), (out,rank), named NAME.lora_A.weight and NAME.lora_B.weight */
} LoraPart;
typedef struct {
    int n; /* 0: none */
    LoraPart *part;
    double scale;
    int units, at;            /* of the model; the layer's unit whose sums there are, -1: none */
    const ModelOpts *opts;    /* of the model: which moments there are */
    Device *dev;              /* the model's, where the numbers lie; NULL: with the host */
    Arena state, grads, sums; /* adapters and their moments; their gradients; sums and dW */
    SumHooks hooks;
} Lora;

/* The parts of a model whose weights and gradients are declared, the bytes of the regions, and m->sums. Without rank:
 * none. The Lora stays where it is while the model is open. */
void lora_declare(Lora *, Model *m, const LoraCfg *);
/* EXIT_INPUT: several ranks, a pattern without a matrix, a rank larger than one, a
 * mixer that changes its weights by itself; a group of optim.groups without an adapter. */
bool lora_check(const Lora *, const Model *, const Config *, int ranks, Err *);
bool lora_open(Lora *, Err *); /* maps the regions */
void lora_close(Lora *);
/* Adapters of one role, in order; moments as ModelOpts want them. */
void lora_fields(Lora *, ParamRole, Fields *);
/* W_0 under the names of the matrices. */
void lora_bases(Lora *, Fields *);
size_t lora_params(const Lora *); /* elements of A and B */

/* A drawn by seed and name, B = 0, no moments. */
void lora_begin(Lora *, uint64_t seed);
void lora_zero_grad(Lora *);
/* to (out,in) of REAL, with the host = W_0 + s B A of part i, whose numbers lie with the host. */
void lora_merge(const Lora *, int i, Tensor to);

/* Adapters and moments put aside at one moment; `view`, a copy of the model (model/copy.h), has the bases and gets the
 * hooks of the copy, for its files. */
bool lora_copy_open(Lora *copy, const Lora *, Model *view, bool dry, Err *);
void lora_copy_take(Lora *copy, const Lora *);
