/* cost.h: computes what a model costs, from its declarations alone: parameters and step memory from a walk over the
 * fields, FLOPs from the matrices and Mixer.flops, cache bytes from Mixer.rows. `info`, `convert`, `bench` and `--plan`
 * call it. Nothing here knows a mixer by name. */
#pragma once
#include "workspace.h"

typedef struct {
    size_t params;    /* N_all: every element of every weight; a tied embedding once */
    size_t active;    /* N_active: those that one token uses: all except the experts it does not choose */
    size_t embedding; /* elements of the embedding table, shared with the head or not */
    size_t
        matmul;  /* N_matmul: active matrices that multiply a token; a tied head counts, the looked-up table does not */
    int context; /* C: tokens of a document for the figures below */
    /* FLOPs of one token at a document of C tokens, forward + backward = 3 forward; multiply-add = 2.
     * forward:   2 N_matmul + mean over t = 1..C of sum over layers of Mixer.flops(t): causal, windows counted exactly
     * itemised:  3 forward
     * all_half:  6 N_active + 6 L d_model C            (llm.c: causal half, windows not counted)
     * matmul_full: 6 N_matmul + 12 sum over layers of H Dh min(C, window), written as 3 Mixer.flops(C)
     *                                                  (nanoGPT, nanochat: full square) */
    double forward, itemised, all_half, matmul_full;
    double decode; /* FLOPs of the C-th token with a cache of the C-1 before it: 2 N_matmul + Mixer.decode_flops(C) */
} Cost;
/* The model may be opened dry. context >= 1. */
Cost cost_model(const Model *, int context);
/* FLOPs of one token of a prompt of C tokens whose logits are not needed, mean over the prompt: the layers below the
 * last one that writes to the cache, as above; that layer's own keys and values do not count. */
double cost_prefill(const Model *, int context);

typedef struct {
    int rows;           /* rows kept in one lane after `context` tokens: all, or at most window - 1 + sinks; where rows
                           evict, the most there can be: none did */
    size_t token_bytes; /* of one token's row over all lanes; 0 in a layer that reads another's */
    size_t state_bytes; /* per sequence: states and carried rows */
    size_t bytes;       /* rows * token_bytes + state_bytes */
} LayerCache;
typedef struct {
    int L, context;
    size_t bytes_per_token; /* sum of token_bytes, and once_per_token: growth per token before any window is full */
    size_t once_per_token;  /* of rows that layers do not have each: those of one as `real`s, of the codec aqua */
    size_t grows_per_token; /* the part that still grows beyond every window */
    size_t state_bytes, bytes_at_context; /* of one sequence */
    bool at_most; /* rows of some layer are evicted: the bytes are for a text in which none is */
    size_t mha_bytes_per_token,
        mha_bytes_at_context; /* the same width without sharing or windows: 2 L d_model elements */
    LayerCache layer[LAYERS_MAX];
} CacheCost;
void cost_cache(const Model *, int context, CacheCost *);

/* Exact bytes of the regions of one training step by AdamW (or only of the weights if opts.train is false), guards
 * included: the mapped bytes of model_open and workspace_open, and the optimizer's two regions. */
typedef struct {
    size_t weights, gradients, moment1, moment2, saved, scratch, total;
} StepMemory;
StepMemory cost_regions(const Model *, const Workspace *); /* workspace NULL: there is none */
/* The same for a model that is not open yet. */
bool cost_step(Device *, const ModelCfg *, ModelOpts, StepMemory *, Err *);
/* Bytes that a cache of this size maps. */
bool cost_cache_mapped(const Model *, int nseq, int max_tokens, int max_rows, size_t *bytes, Err *);
