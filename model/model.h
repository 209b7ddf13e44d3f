/* model.h: embedding, blocks by the layer map, head; owns every region of memory but the cache's.
 *
 * x = embed_scale embed[token] (+ positions[position], learned)
 * block:  x += mixer(norm(x));  x += ffn(norm(x));   parallel: x += mixer(norm(x)) + ffn(norm'(x))
 * head: logits = W_head norm(x).   norm: RMSNorm, or LayerNorm with bias. */
#pragma once
#include "../layers/cache.h"
#include "config.h"

typedef struct {
    const Kind *kind;
    const FfnKind *ffn;
    void *cfg; /* the kind's settings with this layer's LayerCfg */
    void *fcfg;
    int kv_from;
    bool owner, shared, publisher; /* shared: another layer reads its K/V */
    bool recompute;
    KvShape rows; /* as this layer's mixer declares it; in an owner, window and sinks are the retention */
} Layer;
typedef struct {
    Tensor norm1, norm2; /* (d) */
    Tensor bias1, bias2; /* (d) of a LayerNorm; absent in an RMSNorm */
    void *mix, *ffn;     /* the mixer's and the ffn's own structs */
} LayerWeights;
typedef struct {
    Tensor embed, norm, head;    /* (V,d) (d) (V,d); head absent when tied */
    Tensor positions, norm_bias; /* (P,d) learned, (d) of a LayerNorm; may be absent */
    LayerWeights *layer;
} Weights;
/* Between the forward and the backward of a training pass: from what the mixers reported, stat (B,STATS,2), to the
 * derivative of the loss, dstat (B,STATS), zero before. After a pass without gradient dstat is absent. */
typedef void StatLoss(void *ctx, Tensor stat, Tensor dstat);

/* Parts of a model that a training pass comes to one after the other: unit 0 is the embedding with the positions, unit
 * 1 + l is layer l, unit L + 1 the norm before the head, with the head where it is not tied. Forward asks for the
 * weights of 0, 1, .., L + 1. In backward gradients become complete: units begin and end in the order L + 1, L, .., 1,
 * 0; a tied embedding begins before all, being the head, and ends last. */
typedef struct {
    void (*need)(void *ctx, int unit);  /* the pass is about to read m->w's fields of the unit for the first time */
    void (*begin)(void *ctx, int unit); /* the pass is about to add to m->g's fields of the unit */
    void (*done)(void *ctx, int unit);  /* it has added all */
    void *ctx;
} UnitHooks;

/* Weights that a pass computes with in place of those that are stored, a unit at a time: sums with adapters
 * (train/lora.h). The calls come in every pass, measured ones included, with its Run; `rest` at its end. */
typedef struct {
    void (*need)(void *ctx, Run *, int unit);  /* the pass is about to read m->w of the unit; after others, again */
    void (*begin)(void *ctx, Run *, int unit); /* about to add to the gradients of m->g, */
    void (*done)(void *ctx, Run *, int unit);  /* has added all */
    void (*rest)(void *ctx);                   /* m->w is what is stored */
    /* For files: to (REAL, with the host; ABSENT: only asked) = the sum in place of the tensor that is stored at
     * `stored`; false: that has none. */
    bool (*merge)(void *ctx, const void *stored, Tensor to);
    void *ctx;
} SumHooks;

/* What a teacher made of a batch (model_states), and the losses of a student against it. In a pass that is measured
 * nothing has memory. Of the student's row i with a target, over its layers l in which both have a mixer's output
 * (attention) or over all (hidden):
 *   lm nll_i + kl KL_i + rkl RKL_i  (Ops.linear_distill)
 *   + attention mean_l err_i(what the mixer of l adds to the stream) + hidden mean_l err_i(the stream behind l)
 * with err of Ops.align, relative to the teacher's mean square in the sample: 0 equal, 1 as far off as 0 would be. */
typedef struct {
    Distill logits;
    double attention, hidden;
    Tensor xf, head;              /* (N,e), (V,e) rows before the teacher's head, and that; absent: kl = rkl = 0 */
    Tensor *mix, *out;            /* (N,d) per layer, absent in one without output; NULL: attention, hidden = 0 */
    real *kl, *rkl, *mixs, *outs; /* (N) receive every row's losses, without their weights; NULL where 0 */
} Teach;

typedef struct Model Model;
enum { MODEL_GRADS = 1, MODEL_MOMENTS = 2 };
/* Options that are not part of the model's shape. */
typedef struct {
    bool train;   /* gradients, optimizer state and saved activations are wanted */
    int max_rows; /* rows of one training micro-batch; unused for inference */
    int max_samples;
    double dropout;
    int recompute; /* first layers recomputed; -1 all */
    bool poison;
    bool dry;           /* measure only */
    bool states;        /* not train: passes are model_states alone, not model_loss */
    const Teach *teach; /* train: passes are model_teach with this; read while opening alone */
    /* Not train: matrices (Fields.narrow) stay BF16 in memory; the cache keeps its rows as BF16. On the CPU products
     * round their other operand where device_bf16 is on, and widen the matrix where it is not; CUDA wants it on. */
    bool narrow_weights, narrow_cache;
    /* Moments as BF16, but those of FIELD_F32 tensors; and which weights have second moments (NULL: all). */
    bool narrow_moments;
    bool (*second)(Tensor weight, unsigned flags);
    /* Which weights are trained, by name; NULL: all. The others have no moments, and matrices among them no gradient;
     * vectors and kernels of convolutions keep theirs, which backward passes write in any case. */
    bool (*trained)(const void *ctx, const char *path);
    const void *trained_ctx;
    /* Which matrices of those that are not trained are BF16 in memory, as all are by narrow_weights; NULL: none. */
    bool (*stored_bf16)(const void *ctx, const char *path);
    const void *stored_ctx;
    unsigned
        without; /* MODEL_GRADS, MODEL_MOMENTS: these have shapes alone; whoever asks for that has them elsewhere */
    /* What else will take scratch while nothing else does, such as the optimizer: called with a Run that measures,
     * after weights, gradients and moments have their shapes and before the passes are measured: it may set m->sums.
     * NULL: nothing. */
    void (*measure)(Model *, Run *, void *ctx);
    void *measure_ctx;
} ModelOpts;

struct Model {
    ModelCfg cfg;
    ModelOpts opts;
    int L, last_writer; /* last_writer: the highest layer that owns rows or state */
    Layer *layer;
    Device *dev;
    Weights w, g, m, v;                  /* weights, gradients, AdamW's two moments */
    Arena ah;                            /* copies of matrices in bf16 (ops/half.h), where the device takes some */
    Arena aw, ag, am, av, keep, scratch; /* keep: what lives from forward to backward */
    Arena host;                          /* Run.host where the others are a device's; else unused */
    struct Act *act;                     /* per layer; see act.h */
    Kv *kv, *dkv;                        /* per layer: the K/V of the pass that other layers read, and its gradient */
    int *idx;                            /* 0,1,2...: the pick of all rows */
    int extend_rows;                     /* rows of a pass over history that scratch was reserved for */
    Mark held;                           /* between model_verify and model_commit: */
    Tensor *inputs;                      /* (N,d) per layer with a state: what its mixer was given */
    Tensor gone;                         /* of a device: all layers' Kv.gone in one piece; absent: no row retires */
    uint64_t seed, step;                 /* key of all noise */
    double progress;                     /* of the training stage, see Run */
    unsigned mode;                       /* added to the mode of training passes: RUN_SMOOTH in gradient checks */
    real *losses;                        /* of a device, its owner's: (max_rows) for losses that stay; NULL: none do */
    StatLoss *stat_loss;                 /* NULL: nobody asks */
    void *stat_ctx;
    const UnitHooks *units; /* NULL: nobody asks */
    const SumHooks *sums;   /* NULL: weights are as they are stored */
};

/* Check the layer map and set up all regions (or measure them: opts.dry, then arenas' peak are the sizes). cfg is
 * copied shallowly and must outlive the model. Regions lie where the device computes; what the functions below take and
 * give as plain pointers and as logits lies with the host. EXIT_INPUT: the device lacks an op of one of the layers. */
bool model_open(Model *, Device *, const ModelCfg *, ModelOpts, Err *);
void model_close(Model *);
/* Layer map alone: fills m->layer; refuses kv_from that is not an earlier owner of equal row shape. */
bool model_map(Model *, const ModelCfg *, Err *);
/* Plan an open model for sequences of `length` tokens, before its first pass: rotations of type dynamic and longrope,
 * whose settings give no length of their own, become those that transformers uses in one pass over so many. Until then
 * they are those of max_positions. Returns whether the model has such rotations. */
bool model_plan(Model *, int length);
void model_init(Model *, uint64_t seed); /* N(0, init_std), gains 1, biases 0, a mixer's own */
/* The same for the tensors of one layer that have memory in `w`. */
void model_layer_init(const Model *, int l, Weights *, uint64_t seed);
void model_stage_end(Model *); /* Mixer.stage_end on weights and the moments that it has */
void model_layer_stage_end(const Model *, int l, Weights *); /* of one layer's weights or moments */
void model_fields(const Model *, Weights *, Fields *);       /* Hugging Face names */
/* Parts of them: a layer's; the learned positions', if there are any; those of the norm before the head. */
void model_layer_fields(const Model *, int l, Weights *, Fields *);
int model_units(const Model *); /* L + 2 */
void model_unit_fields(const Model *, int unit, Weights *, Fields *);
/* The places of all gradients of a unit, those of frozen matrices, too, which are ABSENT before and after. */
void model_unit_grads(Model *, int unit, Fields *);
void model_positions_field(const Model *, Weights *, Fields *);
void model_norm_fields(const Model *, Weights *, Fields *);
/* The same for moments, first or second, with their dtype; those that there are not become ABSENT and are not seen. */
void model_moments(const Model *, Weights *, bool second, Fields *);
size_t model_params(const Model *);

/* One micro-batch. nll (N) receives every row's loss (0 where tgt < 0); with NULL those of a device go to m->losses,
 * which lies there, and nobody waits for them. Adds to the gradients with g (N) = derivative of the loss by each nll.
 * Dropout is keyed by m->seed, m->step and b->id. */
void model_train(Model *, const Batch *, const int *tok, const int *tgt, const real *g, real *nll);
void model_loss(Model *, const Batch *, const int *tok, const int *tgt, real *nll); /* no gradient, no dropout */
/* The same, and hit (N, may be NULL): 1 where the target is what greedy decoding would say, else 0. */
void model_score(Model *, const Batch *, const int *tok, const int *tgt, real *nll, int *hit);
void model_zero_grad(Model *);
/* A teacher's pass, without gradient or noise: leaves what Teach's xf, mix and out hold, each where it is wanted (not
 * absent, not NULL). */
void model_states(Model *, const Batch *, const int *tok, Tensor xf, Tensor *mix, Tensor *out);
/* model_train with the losses of Teach: adds the gradient of sum_i g_i (all of them). nll (N) without its weight. */
void model_teach(Model *, const Batch *, const int *tok, const int *tgt, const real *g, real *nll, const Teach *);

/* A pass over history for a session: n new tokens for each of B sequences. `want`: rows whose logits (want.n, V) are
 * needed. Layers above the last writer run for those rows alone. kv_begin's failure is returned. */
bool model_extend(Model *, Cache *, const Batch *, const int *tok, Pick want, Tensor logits, Err *);
/* The same; the logits are not brought to the host, but shown where they lie, while the pass goes on. `key`: of what
 * `see` does, whose launches are the same for the same key (ops/graph.h). */
typedef void LogitsSee(void *ctx, Tensor logits);
bool model_extend_seen(Model *, Cache *, const Batch *, const int *tok, Pick want, LogitsSee *see, void *ctx,
                       uint64_t key, Err *);
/* The same, but nothing becomes history yet (speculative verification): model_commit then appends the first accept[b]
 * rows of every sequence. Nothing else may run on the model in between. */
bool model_verify(Model *, Cache *, const Batch *, const int *tok, Pick want, Tensor logits, Err *);
void model_commit(Model *, Cache *, const Batch *, const int *accept);
/* The first layer whose passes ask a device for other launches each time, whatever their rows; -1: none. */
int model_varying(const Model *);
/* Scratch that a pass of max_rows rows with at most max_want wanted needs; call before the first model_extend (grows).
 */
bool model_extend_reserve(Model *, Cache *, int max_rows, int max_want, int max_seqs, Err *);
bool model_cache_open(const Model *, Cache *, int nseq, int max_tokens, int max_rows, int page_rows, bool dry, Err *);

/* ---- a model whose weights are in memory a piece at a time ----------------------------------------------------------
 * Opened dry with opts.max_rows; the caller places the fields of the layer that it runs (and w.norm), and m->kv of
 * layers whose K/V others read. Passes without gradient, dropout and history, as model_loss. */
bool model_pieces(Model *, Err *); /* maps activations of one block and scratch */
/* x (N,d) = rows tok of w.embed, which may hold some rows alone; with w.positions, where the model has them. */
void model_block_embed(Model *, const Batch *, const int *tok, Tensor x);
/* y = block l of x. `see` (may be NULL) is shown what its mixer was given (N,d), the stream behind the mixer (N,d) and
 * the rows of K/V that it read. */
typedef void BlockSee(void *ctx, Tensor in, Tensor mid, const Kv *);
void model_block(Model *, const Batch *, int l, Tensor x, Tensor y, BlockSee *see, void *ctx);
void model_block_norm(Model *, const Batch *, Tensor x, Tensor xf);                      /* the norm before the head */
void model_block_logits(Model *, const Batch *, Tensor xf, Tensor table, Tensor logits); /* (N,R), table (R,d) */
