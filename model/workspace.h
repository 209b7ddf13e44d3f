/* workspace.h: a Workspace holds everything that passes over a model write; the passes are functions on it. There is
 * one per trainer or session; the Model stays constant.
 *
 * One thread at a time may use a workspace, and one thread at a time its device. On the CPU, workspaces with their own
 * devices run in parallel over one model. On a GPU all of them share the model's device and take turns. */
#pragma once
#include "layers/cache/cache.h"
#include "model.h"

/* Called between the forward and the backward of a training pass: from the mixers' statistics, stat (B,STATS,2), to the
 * derivative of the loss, dstat (B,STATS), zero before. After a pass without gradient dstat is absent. */
typedef void StatLoss(void *ctx, Tensor stat, Tensor dstat);

/* Called for the parts of a model that a training pass uses one after the other: unit 0 is the embedding with the
 * positions, unit 1 + l is layer l, unit L + 1 the norm before the head, with the head if it is not tied. Forward asks
 * for the weights of 0, 1, .., L + 1. In backward gradients become complete: units begin and end in the order L + 1, L,
 * .., 1, 0; a tied embedding, which is also the head, begins before all and ends last. */
typedef struct {
    void (*need)(void *ctx, int unit);  /* the pass is about to read m->w's fields of the unit for the first time */
    void (*begin)(void *ctx, int unit); /* the pass is about to add to m->g's fields of the unit */
    void (*done)(void *ctx, int unit);  /* it has added all */
    void *ctx;
} UnitHooks;

/* The head as a LossHook sees it: the rows before it, x (N,d), and its weights w (V,d). tgt: of every row, -1: none; g
 * (N): the derivative of the loss by the loss of each row. */
typedef struct {
    const Model *model;
    Tensor nll;   /* (N) to be written: cross-entropy of every row, 0 where there is no target */
    Tensor dx;    /* (N,d) zero: to be added to */
    Tensor dw, w; /* (V,d) dw: to be added to; may be absent */
    Tensor x;
    const int *tgt;
    const real *g;
} HeadView;
/* Layer l as the hook sees it: its output y (N,d), and the gradient dy, to which the hook adds. */
typedef struct {
    int l;
    Tensor y, dy;
    const int *tgt;
    const real *g;
} LossView;
/* Losses of a training pass in addition to the logits' loss, or replacing it, such as those against a teacher
 * (train/teach.h). model_train_with calls head, then for every layer from the last to the first stream and mixer, then
 * end; each may be NULL. A hook computes on its Run and may not wait for a GPU. In a measured pass no tensor has
 * memory, and ops only reserve scratch. */
typedef struct LossHook {
    void (*head)(void *ctx, Run *, const HeadView *);   /* replaces the cross-entropy */
    void (*stream)(void *ctx, Run *, const LossView *); /* y: the stream after a layer */
    void (*mixer)(void *ctx, Run *, const LossView *);  /* y: the mixer's output of a layer; called if */
    bool (*wants_mixer)(void *ctx, int l);              /* this returns true and the layer is no publisher */
    void (*end)(void *ctx, Run *);
    void *ctx;
} LossHook;

/* The activations of one layer in a pass. xn1, xn2: (N,d) normed inputs; mid: (N,d) the stream between mixer and
 * feed-forward part; made1, made2: (N,d) the outputs of the two parts, if they are normed before they are added. */
typedef struct {
    Tensor xn1, rstd1, mid, xn2, rstd2;
    Tensor made1, made1_rstd, made2, made2_rstd; /* present where norm_place is post or both */
    Kv kv;                                       /* unless other layers read it: then Workspace.kv */
    void *mix, *ffn;                             /* the mixer's and the feed-forward part's own structs */
} Act;
typedef struct {
    Device *dev;         /* the device that computes; its memory is shared with the model's */
    int L;               /* layers */
    Arena keep, scratch; /* keep: everything that lives from forward to backward */
    Arena host;          /* Run.host if the others are on a GPU; else unused */
    Act *act;            /* (L) */
    Kv *kv, *dkv;        /* (L) the K/V of the pass that other layers read, and its gradient */
    int *idx;            /* 0,1,2...: the list of all rows */
    int extend_rows;     /* rows of an extend pass for which scratch was reserved */
    Mark held;           /* between model_verify and model_commit: */
    Tensor *inputs;      /* (L) (N,d) in a layer with a state: the input of its mixer */
    Probe *probe;        /* (L) queries that a policy of the cache asks for; */
    int dry_looked;      /* while measuring: how many are looked at */
    int *asked, *looked; /* their rows; those and the wanted ones; (extend_rows) each */
    Tensor evicted;      /* on a GPU: all layers' Kv.evicted in one piece; absent: no layer evicts rows */
    Tensor novelty, xf;  /* Run.novelty and the rows before the head (N,d), if a policy of the cache asks for them; */
    int *target;         /* (extend_rows) the tokens whose novelty it is */
    /* Set by the owner before a pass: */
    uint64_t seed, step; /* seed of all noise */
    double progress;     /* of the training stage, see Run */
    unsigned mode;       /* added to the mode of training passes: RUN_SMOOTH in gradient checks */
    real *losses;        /* on a GPU, its owner's: (max_rows) for losses that stay there; NULL: none do */
    StatLoss *stat_loss; /* NULL: not called */
    void *stat_ctx;
    const UnitHooks *units; /* NULL: not called */
} Workspace;

/* For passes of the kind and size that the model's options name: measures by running them without memory, then maps
 * (opts.dry: only measures; the arenas' peaks are the sizes). The model must outlive it. Plain pointers and logits in
 * the functions below are in host memory. EXIT_INPUT: the device lacks an op of one of the layers. EXIT_RUNTIME: no
 * memory. */
bool workspace_open(Workspace *, const Model *, Err *);
/* For model_extend alone, on this device, which must compute as the model's does (the same instruction set and
 * products). It has no memory before model_extend_reserve. */
void workspace_empty(Workspace *, const Model *, Device *);
void workspace_close(Workspace *);

/* One micro-batch. nll (N) receives every row's loss (0 if tgt < 0); with NULL a GPU leaves them in Workspace.losses,
 * without waiting. Adds to the gradients with g (N) = derivative of the loss by each nll. Dropout is keyed by seed and
 * step of the workspace and by b->id. */
void model_train(const Model *, Workspace *, const Batch *, const int *tok, const int *tgt, const real *g, real *nll);
/* Only the losses: no gradient, no dropout. */
void model_loss(const Model *, Workspace *, const Batch *, const int *tok, const int *tgt, real *nll);
/* The same, and hit (N, may be NULL): 1 if greedy decoding would predict the target, else 0. */
void model_score(const Model *, Workspace *, const Batch *, const int *tok, const int *tgt, real *nll, int *hit);
/* A pass without gradient or noise that writes each output that is wanted (not absent, not NULL; mix and out: a tensor
 * per layer, absent if not wanted): xf (N,d) the rows before the head, mix (N,d) the mixer's output of a layer (a
 * publisher: nothing), out (N,d) the stream after it. */
void model_states(const Model *, Workspace *, const Batch *, const int *tok, Tensor xf, Tensor *mix, Tensor *out);
/* model_train with the losses of a hook (NULL: none): adds the gradient of all of them. */
void model_train_with(const Model *, Workspace *, const Batch *, const int *tok, const int *tgt, const real *g,
                      real *nll, const LossHook *);

/* An extend pass for a session: n new tokens for each of B sequences. `want`: rows whose logits (want.n, V) are needed;
 * layers above the last writer run only for those rows. Returns kv_begin's failure. */
bool model_extend(const Model *, Workspace *, Cache *, const Batch *, const int *tok, RowList want, Tensor logits,
                  Err *);
/* The same, but the logits are not copied to the host: `see` gets them on the device, while the pass continues. `key`:
 * identifies what `see` does; its launches are the same for the same key (ops/graph.h). */
typedef void LogitsSee(void *ctx, Tensor logits);
bool model_extend_seen(const Model *, Workspace *, Cache *, const Batch *, const int *tok, RowList want, LogitsSee *see,
                       void *ctx, uint64_t key, Err *);
/* The same, but the rows do not become history yet (speculative verification): model_commit then appends the first
 * accept[b] rows of every sequence. Nothing else may use the workspace in between. */
bool model_verify(const Model *, Workspace *, Cache *, const Batch *, const int *tok, RowList want, Tensor logits,
                  Err *);
void model_commit(const Model *, Workspace *, Cache *, const Batch *, const int *accept);
/* Between passes: after one that repeats part of a context (kv_replayed); where a prompt of `next` tokens of sequence
 * seq ends (kv_prompt_ends), where rows leave by what a prompt of the policy's says (kv_prompt_asked). */
void model_replayed(Workspace *, Cache *, int from, int n, int lo, int hi);
void model_prompt_ends(Workspace *, Cache *, int seq, int next);
void model_prompt_asked(Workspace *, Cache *, int seq, int next);
/* Reserves scratch for a pass of max_rows rows with at most max_want wanted; call before the first model_extend
 * (grows). EXIT_INPUT: the device lacks an op of one of the layers. EXIT_RUNTIME: no memory. */
bool model_extend_reserve(const Model *, Workspace *, Cache *, int max_rows, int max_want, int max_seqs, Err *);
bool model_cache_open(const Model *, Cache *, int nseq, int max_tokens, int max_rows, int page_rows, bool dry, Err *);

/* ---- a model whose weights are in memory a piece at a time ----------------------------------------------------------
 * Opened dry with opts.max_rows; the caller places the fields of the layer that it runs (and w.norm), and kv of the
 * workspace for layers whose K/V others read. Passes without gradient, dropout and history, as model_loss. */
bool model_pieces(const Model *, Workspace *, Err *); /* maps activations of one block and scratch */
/* x (N,d) = rows tok of w.embed, which may hold some rows alone; with w.positions, where the model has them. */
void model_block_embed(const Model *, Workspace *, const Batch *, const int *tok, Tensor x);
/* y = block l of x. `see` (may be NULL) is shown what its mixer was given (N,d), the stream behind the mixer (N,d) and
 * the rows of K/V that it read. */
typedef void BlockSee(void *ctx, Tensor in, Tensor mid, const Kv *);
void model_block(const Model *, Workspace *, const Batch *, int l, Tensor x, Tensor y, BlockSee *see, void *ctx);
void model_block_norm(const Model *, Workspace *, const Batch *, Tensor x, Tensor xf); /* the norm before the head */
void model_block_logits(const Model *, Workspace *, const Batch *, Tensor xf, Tensor table,
                        Tensor logits); /* (N,R), table (R,d) */
