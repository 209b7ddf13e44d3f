/* lora.h: low-rank adapters: W = W_0 + (alpha / rank) B A on chosen matrices, where only A and B are trained. The
 * trainer opens them with the model if lora.rank is set.
 *
 * A (rank, in) begins at random, B (out, rank) at 0. The model stores W_0, in bf16 if ModelOpts.stored_bf16 says so. A
 * pass computes with sums that exist for one layer at a time (SumHooks): they are made before the layer's forward pass
 * and again before its backward pass, so no mixer knows about adapters. In the backward pass, products add to dA and dB
 * in place of dW (lora_ops.h). A layer's room for dW is for other ops that add to it; it then gives dA += s B^T dW and
 * dB += s dW A^T, s = alpha / rank. Adapted matrices outside of the layers (embedding, head) have their sums during the
 * whole pass, and a dW. Making a sum costs 2 rank FLOPs per element of W, a pass over N tokens 4 N. Memory in addition
 * to the model's: A, B and their gradients; one layer's sums and dW in f32. The optimizer's state of A and B belongs to
 * the trainer. Source: arXiv:2106.09685. */
#pragma once
#include "model/model.h"
#include "optim/params.h"
#include "train/regions.h"

typedef struct {
    char name[192];                        /* name of the matrix: "model.layers.0.self_attn.q_proj.weight" */
    int unit;                              /* of the model, see UnitHooks */
    Tensor *w, *g;                         /* the model's own: W_0 or, in a pass, the sum; absent, or its gradient */
    Tensor base;                           /* W_0, as the model stores it */
    Tensor sum, dw;                        /* (out,in) the memory of the layer's sum and gradient */
    bool formed;                           /* backward: an op adds to dw; in a sample: the sum exists */
    Tensor a[PARAM_ROLES], b[PARAM_ROLES]; /* (rank,in), (out,rank), named NAME.lora_A.weight and NAME.lora_B.weight */
} LoraPart;
/* Private to lora_ops.c. */
typedef struct {
    Ops table; /* first: Run.ops points here */
    const Ops *under;
    struct Lora *lora;
    int from, to; /* the layer's parts */
    Tensor *room; /* of a mixture's experts */
    int most;     /* tensors in it */
} LoraOps;
typedef struct Lora {
    int n; /* 0: none */
    LoraPart *part;
    double scale;
    int units, at;            /* of the model; the layer's unit whose sums exist now, -1: none */
    bool reads;               /* passes read W_0 and add the adapters' part: lora_reads */
    const ModelOpts *opts;    /* of the model */
    Device *dev;              /* the model's, where the tensors lie; NULL: host memory */
    Arena state, grads, sums; /* adapters; their gradients; sums and dW */
    SumHooks hooks;
    LoraOps ops;
} Lora;

/* Finds the adapted parts of a model whose weights and gradients are declared, and sets the bytes of the regions and
 * m->sums. Without rank: none. The Lora must not move while the model is open. */
void lora_declare(Lora *, Model *m, const LoraCfg *);
/* EXIT_INPUT: several ranks, a pattern that matches no matrix, a rank larger than one, a mixer that changes its weights
 * itself, a group of optim.groups without an adapter. */
bool lora_check(const Lora *, const Model *, const Config *, int ranks, Err *);
bool lora_open(Lora *, Err *); /* maps the regions */
void lora_close(Lora *);
void lora_regions(const Lora *, Regions *);
/* The adapters of one role, in order. */
void lora_fields(Lora *, ParamRole, Fields *);
/* W_0 under the names of the matrices. */
void lora_bases(Lora *, Fields *);
size_t lora_params(const Lora *); /* elements of A and B */

/* Until the next call: passes of few rows that only read weights, as a sample's are, make no sums of layers; they would
 * be made again for every token. Such passes are measured in this form, too. */
void lora_reads(Lora *, bool);

/* Draws A by seed and name, sets B = 0. */
void lora_begin(Lora *, uint64_t seed);
void lora_zero_grad(Lora *);
/* to (out,in) of REAL, in host memory = W_0 + s B A of part i, whose tensors are in host memory. */
void lora_merge(const Lora *, int i, Tensor to);

/* A copy of the adapters at one moment; `view`, a copy of the model (model/copy.h), has the bases and gets the hooks of
 * the copy, for its files. */
bool lora_copy_open(Lora *copy, const Lora *, Model *view, bool dry, Err *);
void lora_copy_take(Lora *copy, const Lora *);
