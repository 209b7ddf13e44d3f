/* flow.h: runs a model over windows of text, a layer at a time, and reads its weights from the mapped files as needed.
 * Conversions use it for calibration and for comparing two models that do not fit into memory. */
#pragma once
#include "model/files/hf.h"
#include "model/workspace.h"

/* n windows of T ids each; the first `calib` of them calibrate, those from `check` on are compared. */
typedef struct {
    int n, T, calib, check;
    int *id;          /* (n,T) */
    const char *text; /* see ConvertCheck */
} Windows;
/* Makes them from a text (NULL: a built-in one) with the tokenizer of DIR; without a tokenizer and a text: random ids.
 * The last quarter of the windows, at least one and at most `check` tokens, is for comparing; a single window is for
 * both. */
bool windows_read(Windows *, const char *dir, const ModelCfg *, const char *text, int context, int calib, int check,
                  Err *);
void windows_free(Windows *);

/* A block's pass over one window: x (T,d) its input, in: normed, for the mixer; mid: the stream after the mixer; the
 * rows of keys and values that the mixer read. */
typedef struct {
    int l, window;
    Tensor x, in, mid;
    const Kv *kv;
} FlowView;
typedef void FlowSee(void *ctx, const FlowView *);
typedef struct {
    const HfFiles *files;
    const Windows *w;
    int from, to; /* windows that it runs */
    Model m;
    Workspace work;
    ModelCfg cfg; /* owned by the caller's Model */
    Arena rows, weights, shared;
    Tensor x, y; /* (n T, d) the stream; (T,d) */
    Kv *kv;      /* (L, n) of layers whose rows others read */
    Batch batch; /* of one window */
    int *ints;
    size_t memory; /* mapped at most so far */
    /* Set after flow_open: every element of the stream is moved by up to this fraction of itself, up or down, before
     * each layer and the head; 0: not. */
    double nudge;
    bool normed;
} Flow;
/* Embeds the windows from..to-1. */
bool flow_open(Flow *, Device *, const HfFiles *, const ModelCfg *, const Windows *, int from, int to, Err *);
/* Runs layer l over every window; layers run in order, from 0. `see` may be NULL. */
bool flow_layer(Flow *, int l, FlowSee *, void *ctx, Err *);
void flow_close(Flow *);

/* Compares two models on the windows that both ran to the end; see ConvertCheck. Their streams are then normed for the
 * head: they may be compared again, with other models, but no layer can follow. */
typedef struct {
    int tokens;
    double logit_diff, logit_max, kl, nll_a, nll_b, top1; /* means except the first two */
} FlowScore;
bool flow_compare(Flow *a, Flow *b, FlowScore *, Err *);
/* The distance of neighbouring values at 1: of F32, or of F64 if no tensor of the model has a smaller dtype. A run
 * nudged by it draws every rounding of a model anew. */
double flow_unit(bool f64);
/* The largest difference of logits that counts as rounding, if `again` compares a run with one nudged by `unit`: see
 * convert.h. */
double flow_rounding(const FlowScore *again, double unit);
