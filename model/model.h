/* model.h: a Model is the settings, layers and weights of a model. Everything that holds a model includes it; code that
 * runs one includes workspace.h, which has the passes. No pass changes a Model: several workspaces, sessions and
 * threads may share it while its owner does not change it. (A training pass adds to the gradients, to which g points.)
 *
 * x = embed_scale embed[token] (+ positions[position], learned)
 * block:  x += mixer(norm(x));  x += ffn(norm(x));   parallel: x += mixer(norm(x)) + ffn(norm'(x))
 *         x += mixer(norm(x))                        where the layer has no feed-forward part (ffn: none)
 *         norm_place post, both: what is added is normed (both: its input, too); then it is times residual_scale
 * head: logits = W_head norm(x) / logits_divisor, capped.   norm: RMSNorm, or LayerNorm with bias. */
#pragma once
#include "layers/cache/cache.h"
#include "model/config/config.h"

typedef struct {
    const Kind *kind;
    const FfnKind *ffn;
    void *cfg; /* the kind's settings with this layer's LayerCfg */
    void *fcfg;
    int kv_from;
    bool owner, shared, publisher; /* shared: another layer reads its K/V */
    bool feeds;                    /* has a feed-forward part, with its norm */
    bool recompute;
    int heads,
        heads_at; /* query heads that see all rows; those of each lane that belong to earlier readers of the rows */
    KvShape rows; /* as this layer's mixer declares it; in an owner, window and sinks are the retention */
} Layer;
typedef struct {
    Tensor norm1, norm2; /* (d) before mixer and feed-forward part; absent where norm_place is post, norm1 where
                           * the mixer reads nothing */
    Tensor post1, post2; /* (d) after them; absent where it is pre */
    Tensor bias1, bias2; /* (d) of a LayerNorm; absent in an RMSNorm */
    void *mix, *ffn;     /* the mixer's and the ffn's own structs */
} LayerWeights;
typedef struct {
    Tensor embed, norm, head;    /* (V,d) (d) (V,d); head absent when tied */
    Tensor positions, norm_bias; /* (P,d) learned, (d) of a LayerNorm; may be absent */
    LayerWeights *layer;
} Weights;
/* Weights with which a pass computes in place of the stored ones, a unit at a time: sums with adapters
 * (train/adapt/lora.h). Every pass calls them, measured ones included, with its Run; `rest` at its end. */
typedef struct {
    void (*need)(void *ctx, Run *,
                 int unit); /* the pass is about to read m->w of the unit, perhaps again after others */
    void (*begin)(void *ctx, Run *, int unit); /* about to add to the gradients of m->g, */
    void (*done)(void *ctx, Run *, int unit);  /* has added all */
    void (*rest)(void *ctx);                   /* m->w is the stored weights */
    /* For files: to (REAL, in host memory; ABSENT: only a query) = the sum in place of the tensor stored at `stored`;
     * false: that has none. */
    bool (*merge)(void *ctx, const void *stored, Tensor to);
    void *ctx;
} SumHooks;

typedef struct Model Model;
/* Options that are not part of the model's shape. max_rows to loss, and measure: workspace_open measures passes with
 * them. */
typedef struct {
    bool train;   /* gradients and saved activations are wanted */
    int max_rows; /* rows of one training micro-batch; unused for inference */
    int max_samples;
    double dropout;
    int recompute; /* first layers recomputed; -1 all */
    bool poison;
    bool dry;                    /* measure only */
    bool states;                 /* without train: passes are only model_states, not model_loss */
    const struct LossHook *loss; /* train: passes have this hook; read only while opening */
    /* Without train: matrices (Fields.matrices_bf16) stay BF16 in memory. On the CPU products round their other operand
     * if device_bf16 is on, and convert the matrix to f32 if not; CUDA needs it on. */
    bool bf16_weights;
    const RowCodec *codec;   /* without train: how the cache stores its rows; NULL: as `real`s */
    const PolicyCfg *policy; /* without train: eviction policy of attention's rows, the caller's; NULL: keep all */
    const KvTier *tier;      /* without train: a limit of each cache's memory, the caller's; NULL: none */
    const KvRanks *ranks;    /* without train: ranks that divide the rows of caches, the caller's; NULL: none */
    /* Which weights are trained, by name; NULL: all. The other matrices have no gradient; vectors and kernels of
     * convolutions keep theirs, because backward passes always write them. */
    bool (*trained)(const void *ctx, const char *path);
    const void *trained_ctx;
    /* Which of the matrices that are not trained are BF16 in memory, as all are with bf16_weights; NULL: none. */
    bool (*stored_bf16)(const void *ctx, const char *path);
    const void *stored_ctx;
    bool without_grads; /* gradients have only shapes; the caller has their memory elsewhere */
    /* Measures other users of scratch between passes, such as the optimizer: workspace_open calls it with a measuring
     * Run before it measures the passes. NULL: nothing. */
    void (*measure)(Run *, void *ctx);
    void *measure_ctx;
} ModelOpts;

struct Model {
    ModelCfg cfg;
    ModelOpts opts;
    int L, last_writer; /* last_writer: the highest layer that owns rows or state */
    int last_asked;     /* the highest layer whose queries a policy asks for; -1: none */
    Layer *layer;
    Device *dev;
    Weights w, g;         /* weights, gradients */
    Arena aw, ag;         /* where they lie */
    Arena ah;             /* bf16 shadows of matrices (ops/shadow.h), if the device uses some */
    const SumHooks *sums; /* NULL: weights are used as stored */
    RowCodec *pair;       /* (2) the codec as lower and upper layers of pairs have it; NULL: it merges none */
    RowBasis *basis;      /* (L) of the codec's rows; NULL: it has none. Of the file: */
    uint64_t basis_sum;   /* its checksum */
    uint64_t basis_of;    /* fingerprint of the model that it was made for; 0: not known */
};

/* Checks the layer map and sets up the regions of weights and gradients (or measures them: opts.dry; the arenas' peaks
 * are then the sizes). Copies cfg shallowly; it must outlive the model. Regions are in the memory of the device. */
bool model_open(Model *, Device *, const ModelCfg *, ModelOpts, Err *);
void model_close(Model *);
/* Only the layer map: fills m->layer; refuses a kv_from that is not an earlier owner of equal row shape. */
bool model_map(Model *, const ModelCfg *, Err *);
/* Plan an open model for sequences of `length` tokens, before its first pass: rotations of type dynamic and longrope
 * whose settings give no length become those that transformers uses in one pass over so many. Until then they are those
 * of max_positions. Returns true if the model has such rotations. */
bool model_plan(Model *, int length);
void model_init(Model *, uint64_t seed); /* N(0, init_std), gains 1, biases 0, a mixer's own */
/* The same for the tensors of one layer that have memory in `w`. */
void model_layer_init(const Model *, int l, Weights *, uint64_t seed);
void model_stage_end(Model *); /* Mixer.stage_end on weights */
/* Mixer.stage_end of one layer on other tensors of its weights' shapes, such as an optimizer's states: the visitor gets
 * each with the weight's name, and sets its memory and dtype or makes it ABSENT. */
void model_layer_stage_end(const Model *, int l, Fields *);
void model_fields(const Model *, Weights *, Fields *); /* Hugging Face names */
/* Parts of them: a layer's; the learned positions', if there are any; those of the norm before the head. */
void model_layer_fields(const Model *, int l, Weights *, Fields *);
int model_units(const Model *); /* L + 2 */
void model_unit_fields(const Model *, int unit, Weights *, Fields *);
/* The addresses of all gradients of a unit, also those of frozen matrices, which are ABSENT before and after. */
void model_unit_grads(Model *, int unit, Fields *);
void model_positions_field(const Model *, Weights *, Fields *);
void model_norm_fields(const Model *, Weights *, Fields *);
size_t model_params(const Model *); /* without balancing biases, which no gradient trains, as in transformers */
void model_zero_grad(Model *);
/* How products of the head become logits. */
static inline LogitMap model_logits(const Model *m) { return (LogitMap){1 / m->cfg.logits_divisor, m->cfg.logits_cap}; }
/* The first layer whose passes launch different kernels each time, whatever their rows; -1: none. */
int model_varying(const Model *);
