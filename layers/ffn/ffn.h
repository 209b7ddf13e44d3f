/* ffn.h: settings and weights of the feed-forward parts. */
#pragma once
#include "../mixer.h"

/* swiglu: y = Wdown (silu(Wgate x) * (Wup x)). Source: arXiv:2002.05202. */
typedef struct {
    LayerCfg base;
    int hidden;
} SwigluCfg;
typedef struct {
    Tensor gate, up, down; /* (F,d) (F,d) (d,F) */
} SwigluWeights;
typedef struct {
    Tensor gate, up; /* (N,F) */
} SwigluSaved;
extern const Ffn swiglu_ffn;

/* gelu: y = Wdown gelu(Wup x + b_up) + b_down, the biases by a setting. Source: arXiv:1606.08415. */
enum { GELU_TANH, GELU_ERF };
typedef struct {
    LayerCfg base;
    int hidden, act;
    bool bias;
} GeluCfg;
extern const Ffn gelu_ffn;

/* moe: a mixture of `experts` swiglus, of which a router chooses top_k for every token, and of `shared` more that every
 * token meets. With logits l = Wrouter x, e over experts:
 *
 *   p = softmax(l) or sigmoid(l)                        over all experts
 *   c = p + b                                           b: the balancing bias (bias_balance), for the choice alone
 *   groups of experts/groups neighbours: the top_groups of highest score stay; a group's score is the sum of its two
 *       highest c (sigmoid, DeepSeek-V3) or its highest c (softmax, DeepSeek-V2)
 *   chosen: the top_k of highest c among the experts of those groups; of equals the lower number
 *   w_e = scale p_e / (sum over chosen p + 1e-20) if norm_topk, else scale p_e
 *   y = sum over chosen w_e swiglu_e(x) + swiglu_shared(x)          swiglu_shared: one of width shared hidden
 *
 * No token is ever dropped. The choice has no gradient; p, and with norm_topk the sum, have. b is a FIELD_BALANCE: its
 * "gradient" is experts load_e - sum of loads (the load in excess of the mean, times experts: whole numbers), and the
 * optimizer moves it by optim.balance_rate against the sign.
 * Sources: arXiv:2401.04088 (softmax over the chosen), 2405.04434 (V2: groups), 2408.15664 (the bias), 2412.19437
 * section 2.1.2 (V3). */
enum { EXPERTS_MAX = 512 };
enum { ROUTER_SOFTMAX, ROUTER_SIGMOID };
typedef struct {
    LayerCfg base;
    int experts, top_k, hidden, shared, router, groups, top_groups;
    bool norm_topk, bias_balance;
    double scale;
} MoeCfg;
extern const Ffn moe_ffn;

/* Which of the N rows go to which experts, K = top_k each, so M = N K pairs. A pair has a place among all pairs, sorted
 * by expert and then by row. */
typedef struct {
    int *expert;   /* (N,K) ascending in a row */
    int *place;    /* (N,K) */
    int *row;      /* (M) the row of each place */
    int *off;      /* (experts+1) first place of each expert */
    Tensor weight; /* (M) */
} Route;

/* p (N,experts) = router(x w^T). */
void route_scores(Run *, const MoeCfg *, Tensor p, Tensor x, Tensor w);
/* Choose from p and the bias (experts; ABSENT: none), a pure function of them; memory is scratch that the caller gives
 * back. NaN among the scores gives some choice. */
Route route_choose(Run *, const MoeCfg *, Tensor p, Tensor bias);
/* dlogits (N,experts), overwritten, from the derivative by the weights, dweight (M, by place). */
void route_backward(Run *, const MoeCfg *, const Route *, Tensor dlogits, Tensor dweight, Tensor p);
