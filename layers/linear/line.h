/* line.h: the skeleton of the linear recurrences: projections, short convolution, feature map, recurrence, output.
 *
 *   q = Wq x, k = Wk x, v = Wv x            (H,K) (H,K) (HV,V) per token
 *   q, k, v <- silu(conv(.))                kinds with the delta rule
 *   q, k <- l2norm | rotated | elu + 1      by `map`
 *   g, beta                                 by `decay`, `delta`
 *   o = the recurrence of ops/recur.h       state S (HV,K,V), zero where a document begins
 *   y = Wo (rmsnorm(o) silu(Wg x)) | Wo rmsnorm(o) | Wo (o / normaliser)
 * A mixer is a LineKind, its table of keys, and a check that ends with line_check; everything else is here. Its state
 * blob: S (HV,K,V), then the last conv-1 inputs of the convolutions of q, k and v, (conv-1,C) each. Heads are
 * RMS-normed over V. */
#pragma once
#include "../mixer.h"

enum { LINE_CONSTANTS = 64 };
typedef enum { MAP_NONE, MAP_UNIT, MAP_ROTATE, MAP_ELU } LineMap;
typedef enum {
    DECAY_NONE,
    DECAY_CONSTANT, /* per head: LineCfg.constant */
    DECAY_HEAD,     /* log sigmoid(W x) / gate_divisor, one per head */
    DECAY_CHANNEL,  /* log sigmoid(W1 W0 x + bias) / gate_divisor, one per key channel */
    DECAY_RATE      /* -exp(A) softplus(W x + dt), one per value head */
} LineDecay;
typedef struct {
    bool delta; /* beta = sigmoid(Wb x) corrects, and q, k, v pass a convolution */
    LineMap map;
    LineDecay decay;
    bool quotient;          /* o is divided by phi(q).sum phi(k) + eps, the read of one more column of ones in v */
    bool fixed_gate;        /* the output gate is no setting */
    const char *norm, *out; /* public names of the norm's gain (NULL: none) and of the output projection */
} LineKind;

typedef struct {
    LayerCfg base;
    int heads, v_heads, head_dim, v_dim, conv, gate_rank, beta_max;
    bool gate;
    double gate_divisor, eps;
    RopeCfg rope;
    /* derived */
    const LineKind *kind;
    Rope table;
    double constant[LINE_CONSTANTS];
} LineCfg;

typedef struct {
    Tensor wq, wk, wv, cq, ck, cv; /* projections, convolutions (C,1,conv) */
    Tensor wa, wa0, ba, A, dt;     /* decay */
    Tensor wb, wg, norm, wo;       /* beta, output gate, gain (V), output */
} LineW;
typedef struct {
    Tensor q, k, v;     /* (N,H*K) (N,H*K) (N,HV*V) projected; rotated where the map says so */
    Tensor a, a0, beta; /* (N,HV,1) or (N,H,K) and (N,rank) before the decay's gate; (N,HV) */
    Tensor keep, o;     /* of the recurrence; (N,HV,V or V+1) */
    Tensor gate, rstd;  /* (M,HV*V), (M,HV): output, for the M wanted rows */
} LineS;

/* Widths by default, `v_per_k` values per key channel; sizes that fit. Fills the derived members. */
bool line_check(LineCfg *, const LineKind *, double v_per_k, Err *);
void line_weights(const void *cfg, void *w, Fields *);
void line_saved(const void *cfg, int N, void *s, Fields *);
void line_rows(const void *cfg, KvShape *);
void line_init(const void *cfg, void *w, uint64_t key);
void line_forward(Run *, const void *cfg, const void *w, Tensor x, Kv *, void *s, Tensor y);
void line_backward(Run *, const void *cfg, const void *w, void *dw, Tensor x, const Kv *, Kv *dkv, const void *s,
                   Tensor dy, Tensor dx);
void line_extend(Run *, const void *cfg, const void *w, Tensor x, Kv *, const Slot *, Tensor y);
double line_flops(const void *cfg, double context);

/* What every member's table of functions says. */
#define LINE_MIXER                                                                                                 \
    .cfg_size = sizeof(LineCfg), .w_size = sizeof(LineW), .s_size = sizeof(LineS), .weights = line_weights,        \
    .saved = line_saved, .rows = line_rows, .init = line_init, .forward = line_forward, .backward = line_backward, \
    .extend = line_extend, .flops = line_flops, .half = true
#define LINE_KEY_HEADS(most) \
    { "heads", KEY_INT, offsetof(LineCfg, heads), NULL, 1, most, "query and key heads", 0, 0 }
#define LINE_KEY_HEAD_DIM(dflt) \
    { "head_dim", KEY_INT, offsetof(LineCfg, head_dim), "0", 0, 1024, "key channels of a head; 0: " dflt, 0, 0 }
#define LINE_KEY_V_DIM(dflt) \
    { "v_dim", KEY_INT, offsetof(LineCfg, v_dim), "0", 0, 1024, "values of a head; 0: " dflt, 0, 0 }
#define LINE_KEY_CONV                                                                                            \
    {                                                                                                            \
        "conv", KEY_INT, offsetof(LineCfg, conv), "4", 0, 16,                                                    \
            "tokens that the convolutions of q, k and v see, the current one included; 0: no convolutions", 0, 0 \
    }
#define LINE_KEY_GATE(dflt) \
    { "gate", KEY_BOOL, offsetof(LineCfg, gate), dflt, 0, 0, "output gate silu(Wg x)", 0, 0 }
#define LINE_KEY_BETA_MAX                                                                                   \
    {                                                                                                       \
        "beta_max", KEY_INT, offsetof(LineCfg, beta_max), "1", 1, 2,                                        \
            "largest step of the delta rule; 2 lets the state's transition have negative eigenvalues", 0, 0 \
    }
#define LINE_KEY_ROPE \
    { "rope", KEY_TABLE, offsetof(LineCfg, rope), "", 0, 0, "rotation of q and k by position", 0, rope_keys }
