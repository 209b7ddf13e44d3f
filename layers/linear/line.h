/* line.h: the common implementation of the linear recurrences: projections, short convolution, feature map,
 * recurrence, output. linear, retention, gated_retention, gla, gdn and deltanet are each a LineKind, a table of keys,
 * and a check that ends with line_check.
 *
 *   q = Wq x, k = Wk x, v = Wv x            (H,K) (H,K) (HV,V) per token
 *   q, k, v <- silu(conv(.) + bias)         kinds with the delta rule, and all others where conv > 0
 *   q, k <- l2norm | rotated | elu + 1      by `map`
 *   g, beta                                 by `decay`, `delta`
 *   e = sigmoid(decay) k                    inner_decay: the delta rule erases by it (Comba)
 *   q <- q - D sigmoid(decay) k             output_correction: before l2norm; without inner_decay q - D k
 *   o = the recurrence of ops/recur.h       state S (HV,K,V), zero where a document begins
 *   y = Wo (rmsnorm(o) gate(Wg x)) | Wo rmsnorm(o) | Wo (o / normaliser)
 *
 * kv_heads < H: query head h reads what key head h / (H / kv_heads) wrote; there are HV kv_heads / H states.
 * householders > 1: a token has that many keys, values and betas, (householders,heads,width), and the delta rule is
 * applied once with each, after one decay; the output is read after the last. Both run the recurrence on several rows
 * per token (steps.h): rows that only read have k = 0, v = 0, beta = 0 and no decay.
 * levels > 0: log-linear attention, a state for every level of distance (levels.h), weighed by softplus(L (Wl x)) per
 * value head.
 *
 * State blob: S (states,K,V), of each level in turn, then the last conv-1 inputs of the convolutions of q, k and v,
 * (conv-1,C) each. Heads are RMS-normed over V. */
#pragma once
#include "layers/mixer.h"
#include "levels.h"

enum { LINE_CONSTANTS = 64 };
typedef enum { MAP_NONE, MAP_UNIT, MAP_ROTATE, MAP_ELU } LineMap;
typedef enum {
    DECAY_NONE,
    DECAY_CONSTANT, /* per head: LineCfg.constant */
    DECAY_HEAD,     /* log sigmoid(W x + bias) / gate_divisor, one per head; the bias with rates: spread alone */
    DECAY_CHANNEL,  /* log sigmoid(W1 W0 x + bias) / gate_divisor, one per key channel */
    DECAY_RATE      /* -exp(A) softplus(W x + dt), one per value head */
} LineDecay;
typedef struct {
    bool delta; /* beta = sigmoid(Wb x) corrects, and q, k, v go through SiLU without a convolution too */
    LineMap map;
    LineDecay decay;
    bool divide_by_last; /* o is divided by phi(q).sum phi(k) + eps, read from an extra column of ones in v */
    /* Public names of the norm's gain (NULL: none), of the same with a gate that is not silu (NULL: `norm`), and of
     * the output projection. */
    const char *norm, *other_norm, *out;
} LineKind;

typedef struct {
    LayerCfg base;
    int heads, kv_heads, v_heads, head_dim, v_dim, conv, gate_rank, beta_max, gate, rates, householders, levels;
    bool conv_bias, inner_decay, output_correction;
    double gate_divisor, eps;
    RopeCfg rope;
    /* derived */
    const LineKind *kind;
    Rope table;
    double constant[LINE_CONSTANTS];
} LineCfg;

typedef struct {
    Tensor wq, wk, wv, cq, ck, cv; /* projections, convolutions (C,1,conv) */
    Tensor bq, bk, bv;             /* biases of the convolutions */
    Tensor wa, wa0, ba, A, dt;     /* decay */
    Tensor wb, wg, norm, wo;       /* beta, output gate, gain (V), output */
    Tensor decay, D;               /* (H) of inner_decay and output_correction */
    Tensor wl, L;                  /* (HV levels,d), (HV,levels): weights of levels */
} LineW;
typedef struct {
    Tensor q, k, v; /* (N,H*K), keys and values of a token: projected; rotated where no convolution comes before */
    Tensor a, a0,
        beta;       /* (N,states,1) or (N,kv_heads,K) and (N,rank) before the decay's gate; (N,householders*states) */
    Tensor keep, o; /* of the recurrence, absent with levels; (N,HV,V or V+1) */
    Tensor delta;   /* (N,HV levels): Wl x */
    Tensor gate, rstd; /* (M,HV*V), (M,HV): output, for the M wanted rows */
} LineS;

/* Fill in default widths, with `v_per_k` values per key channel, check that sizes fit, and fill the derived members. */
bool line_check(LineCfg *, const LineKind *, double v_per_k, Err *);
void line_weights(const void *cfg, void *w, Fields *);
void line_saved(const void *cfg, int N, void *s, Fields *);
void line_rows(const void *cfg, KvShape *);
void line_init(const void *cfg, void *w, uint64_t key);
void line_forward(Run *, const void *cfg, const void *w, Tensor x, Kv *, void *s, Tensor y);
void line_backward(Run *, const void *cfg, const void *w, void *dw, Tensor x, const Kv *, const KvInto *dkv,
                   const void *s, Tensor dy, Into dx);
void line_extend(Run *, const void *cfg, const void *w, Tensor x, Kv *, const Slot *, Tensor y);
double line_flops(const void *cfg, double context);

/* feedback.c. Forward: the erase key of k (N,H,K), absent without inner_decay; q (N,H*K) without its part of k (N,H*K),
 * or q itself. Backward: add to the gradients of k and of the factors; dq stays as it is. */
Tensor line_erase_key(Run *, const LineCfg *, const LineW *, Tensor k);
void line_erase_key_backward(Run *, const LineCfg *, const LineW *, LineW *dw, Tensor dk, Tensor de, Tensor k);
Tensor line_correct_query(Run *, const LineCfg *, const LineW *, Tensor q, Tensor k);
void line_correct_query_backward(Run *, const LineCfg *, const LineW *, LineW *dw, Tensor dq, Tensor dk, Tensor k);

/* The entries that every mixer of this family has in its table of functions. */
#define LINE_MIXER                                                                                                 \
    .cfg_size = sizeof(LineCfg), .w_size = sizeof(LineW), .s_size = sizeof(LineS), .weights = line_weights,        \
    .saved = line_saved, .rows = line_rows, .init = line_init, .forward = line_forward, .backward = line_backward, \
    .extend = line_extend, .flops = line_flops, .takes_bf16 = true
#define LINE_KEY_HEADS(most) \
    { "heads", KEY_INT, offsetof(LineCfg, heads), NULL, 1, most, "query and key heads", 0, 0 }
#define LINE_KEY_KV_HEADS                                                                                    \
    {                                                                                                        \
        "kv_heads", KEY_INT, offsetof(LineCfg, kv_heads), "0", 0, 1024,                                      \
            "key heads, a divisor of heads: that many query heads read one state; 0: as many as heads", 0, 0 \
    }
#define LINE_KEY_HOUSEHOLDERS                                                                                       \
    {                                                                                                               \
        "householders", KEY_INT, offsetof(LineCfg, householders), "1", 1, 16,                                       \
            "keys and values of a token, with each of which the delta rule is applied in turn (DeltaProduct)", 0, 0 \
    }
#define LINE_KEY_LEVELS LEVELS_KEY(LineCfg)
#define LINE_KEY_HEAD_DIM(dflt) \
    { "head_dim", KEY_INT, offsetof(LineCfg, head_dim), "0", 0, 1024, "key channels of a head; 0: " dflt, 0, 0 }
#define LINE_KEY_V_DIM(dflt) \
    { "v_dim", KEY_INT, offsetof(LineCfg, v_dim), "0", 0, 1024, "values of a head; 0: " dflt, 0, 0 }
/* Two keys; `more` says what is left without a convolution. */
#define LINE_KEY_CONV(dflt, more)                                                                              \
    {"conv",                                                                                                   \
     KEY_INT,                                                                                                  \
     offsetof(LineCfg, conv),                                                                                  \
     dflt,                                                                                                     \
     0,                                                                                                        \
     16,                                                                                                       \
     "tokens that the convolutions of q, k and v see, the current one included; 0: no convolutions" more,      \
     0,                                                                                                        \
     0},                                                                                                       \
    {                                                                                                          \
        "conv_bias", KEY_BOOL, offsetof(LineCfg, conv_bias), "false", 0, 0, "biases of the convolutions", 0, 0 \
    }
/* The last two values of `gate` are how older files spell the first two. */
enum { LINE_GATE_NONE, LINE_GATE_SILU, LINE_GATE_SIGMOID, LINE_GATE_FALSE, LINE_GATE_TRUE };
extern const char *const line_gates[];
extern const char *const line_rates[]; /* RATES_SPREAD, RATES_EQUAL */
#define LINE_KEY_GATE(dflt)                                                                                            \
    {                                                                                                                  \
        "gate", KEY_CHOICE, offsetof(LineCfg, gate), dflt, 0, 0,                                                       \
            "factor of the normed output, a function of Wg x; false and true are read as none and silu", line_gates, 0 \
    }
/* Where every decay has a bias: what it is at first. */
#define LINE_KEY_RATES(of, equal)                                                              \
    {                                                                                          \
        "rates", KEY_CHOICE, offsetof(LineCfg, rates), "equal", 0, 0,                          \
            "initial decays: equal: " equal "; spread: half-lives of 1 to 512 tokens over " of \
            ", evenly in the logarithm",                                                       \
            line_rates, 0                                                                      \
    }
#define LINE_KEY_BETA_MAX                                                                                   \
    {                                                                                                       \
        "beta_max", KEY_INT, offsetof(LineCfg, beta_max), "1", 1, 2,                                        \
            "largest step of the delta rule; 2 lets the state's transition have negative eigenvalues", 0, 0 \
    }
#define LINE_KEY_ROPE \
    { "rope", KEY_TABLE, offsetof(LineCfg, rope), "", 0, 0, "rotation of q and k by position", 0, rope_keys }
