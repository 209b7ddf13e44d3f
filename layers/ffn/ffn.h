/* ffn.h: settings and weights of the feed-forward parts (swiglu, geglu, gelu, relu2, moe, none), and the router of moe.
 * The readers and writers of Hugging Face models use the structs; layers/mixers.c lists the parts. */
#pragma once
#include "layers/mixer.h"

/* swiglu: y = Wdown (silu(Wgate x) * (Wup x)). Source: arXiv:2002.05202. */
typedef struct {
    LayerCfg base;
    int hidden;
    int act; /* geglu: GELU_TANH or GELU_ERF */
} SwigluCfg;
typedef struct {
    Tensor gate, up, down; /* (F,d) (F,d) (d,F) */
} SwigluWeights;
typedef struct {
    Tensor gate, up; /* (N,F) */
} SwigluSaved;
extern const Ffn swiglu_ffn;
/* geglu: the same with gelu, in the form that `act` says, for silu. */
extern const Ffn geglu_ffn;

/* gelu: y = Wdown gelu(Wup x + b_up) + b_down, the biases by a setting. Source: arXiv:1606.08415. */
enum { GELU_TANH, GELU_ERF };
typedef struct {
    LayerCfg base;
    int hidden, act;
    bool bias;
} GeluCfg;
extern const Ffn gelu_ffn;
/* relu2: the same with max(0, .)^2 for gelu; `act` is not used. Source: arXiv:2109.08668. */
extern const Ffn relu2_ffn;

/* none: the block is its mixer alone, without a second norm. */
typedef struct {
    LayerCfg base;
} NoneCfg;
extern const Ffn none_ffn;

/* moe: a mixture of `experts` swiglus, and a router that chooses top_k of them for every token. Every token also goes
 * through `shared` more. With logits l = Wrouter x + brouter, e over experts:
 *
 *   p = softmax(l) or sigmoid(l)                        over all experts
 *   c = p + b                                           b: the balancing bias (bias_balance), for the choice alone
 *   groups of experts/groups neighbours: the top_groups of highest score stay; a group's score is the sum of its two
 *       highest c (sigmoid, DeepSeek-V3) or its highest c (softmax, DeepSeek-V2)
 *   chosen: the top_k of highest c among the experts of those groups; of equals the lower number
 *   w_e = scale p_e / (sum over chosen p + 1e-20) if norm_topk, else scale p_e
 *   y = sum over chosen w_e swiglu_e(x) + g swiglu_shared(x)
 *   act relu2: experts and shared ones are Wdown max(0, Wup x)^2 instead, without a gate    (Nemotron-3)
 *   latent: the experts, not the shared ones, see Win x of that width, and their sum goes through Wout
 *   swiglu_shared: one of width shared x shared_hidden, which is `hidden` where it is 0
 *   g = 1, or with shared_gate sigmoid(wgate . x)                   (Qwen2-MoE)
 *   brouter: with router_bias; trained
 *   expert_bias: gate, up and down of a chosen expert have biases
 *   limit: with a = min(gate, limit) and u = up within -limit..limit, a chosen expert has (u + 1) a sigmoid(alpha a)
 *       in the place of silu(gate) up                               (gpt-oss)
 *
 * No token is ever dropped. The choice has no gradient; p and, with norm_topk, the sum have one. b is a FIELD_BALANCE:
 * its "gradient" is experts load_e - sum of loads (the load above the mean, times experts: integers), and the
 * optimizer moves it by optim.balance_rate against the sign.
 * Sources: arXiv:2401.04088 (softmax over the chosen), 2405.04434 (V2: groups), 2408.15664 (the bias), 2412.19437
 * section 2.1.2 (V3). */
enum { EXPERTS_MAX = 512 };
enum { ROUTER_SOFTMAX, ROUTER_SIGMOID };
enum { EXPERT_SWIGLU, EXPERT_RELU2 };
typedef struct {
    LayerCfg base;
    int experts, top_k, hidden, shared, shared_hidden, router, groups, top_groups, act, latent;
    bool norm_topk, bias_balance, shared_gate, router_bias, expert_bias;
    double scale, limit, alpha;
} MoeCfg;
extern const Ffn moe_ffn;

/* The assignment of the N rows to experts, K = top_k for each, so M = N K pairs. Each pair has a place among all
 * pairs, sorted by expert and then by row. */
typedef struct {
    int *expert;   /* (N,K) ascending in a row */
    int *place;    /* (N,K) */
    int *row;      /* (M) the row of each place */
    int *off;      /* (experts+1) first place of each expert */
    Tensor weight; /* (M) */
} Route;

/* p (N,experts) = router(x w^T + bias); bias ABSENT: none. */
void route_scores(Run *, const MoeCfg *, Tensor p, Tensor x, Tensor w, Tensor bias);
/* Choose experts from p and the bias (experts; ABSENT: none): a pure function of them. The result's memory is scratch
 * that the caller gives back. With NaN among the scores the choice is arbitrary but valid. */
Route route_choose(Run *, const MoeCfg *, Tensor p, Tensor bias);
/* Overwrite dlogits (N,experts) from dweight (M, by place), the derivative by the weights. */
void route_backward(Run *, const MoeCfg *, const Route *, Tensor dlogits, Tensor dweight, Tensor p);
