/* recur.h: the data of the gated delta rule and its special cases. Linear mixers call Ops.recur and its backward with
 * it. Every value head has a K x V matrix S, which each row decays, corrects and reads. The decay is g <= 0 (natural
 * log), a_t = exp(g_t), one per key channel or one per head:
 *
 *   D = Diag(a_t) S_{t-1}
 *   S_t = D + k_t u_t^T,   u_t = beta_t (v_t - D^T e_t)  with beta or an erase key (delta rule),   u_t = v_t  without
 *   o_t = scale S_t^T q_t
 *
 * The erase key e is k where it is absent, and beta is 1. S is zero where a document begins. HV value heads (v, g,
 * beta, S); value head h uses the q, k and e of head h/(HV/H).
 *
 *   beta  g            is
 *   yes   per channel  Kimi Delta Attention (arXiv:2510.26692)
 *   no    per channel  with e = b k and v = w v', b and w in (0,1) per channel: Gated DeltaNet-2 (arXiv:2605.22791)
 *   yes   per head     with e = p: Comba (arXiv:2506.02475)
 *   yes   per head     Gated DeltaNet (arXiv:2412.06464)
 *   yes   absent       DeltaNet (arXiv:2406.06484)
 *   no    per channel  GLA (arXiv:2312.06635)
 *   no    per head     retention (arXiv:2307.08621; constant), gated retention (arXiv:2405.05254), Mamba-2's SSD
 *                      (arXiv:2405.21060; q = C, k = B, v = dt x, g = dt A, scale 1)
 *   no    absent       linear attention (arXiv:2006.16236; its denominator is one more column of ones in v) */
#pragma once
#include "run.h"

typedef struct {
    Tensor q, k; /* (N,H,K) */
    Tensor v;    /* (N,HV,V) */
    Tensor g;    /* (N,HV,K), or (N,HV,1): one for all channels; absent: no decay */
    Tensor beta; /* (N,HV) */
    Tensor e;    /* (N,H,K) the erase key; absent with beta: k. Both absent: no delta rule */
} Recur;
/* Their gradients, each or nowhere. */
typedef struct {
    Into q, k, v, g, beta, e;
} RecurInto;
static inline RecurInto recur_overwrite(Recur d) {
    return (RecurInto){overwrite(d.q), overwrite(d.k),    overwrite(d.v),
                       overwrite(d.g), overwrite(d.beta), overwrite(d.e)};
}
static inline RecurInto recur_add_to(Recur d) {
    return (RecurInto){add_to(d.q), add_to(d.k), add_to(d.v), add_to(d.g), add_to(d.beta), add_to(d.e)};
}
static inline bool recur_corrects(const Recur *x) { return present(x->beta) || present(x->e); }

/* For training passes in which sequences continue a history. Batch.seq indexes all three. */
typedef struct {
    Tensor start;  /* (nseq,HV,K,V) the states before the pass, of sequences whose first row has first = -1 */
    Tensor dstart; /* their gradient, added to; optional */
    Tensor dend;   /* the gradient of the states after the pass, of sequences with rows; optional */
} RecurEnds;

/* A pass processes rows in chunks of RECUR_CHUNK; a new chunk starts where a document starts. `keep`
 * (recur_keep(N),HV,K,V) holds the state before each chunk, except the first chunk of a document in this pass. The
 * state of the chunk that starts at row i has index i / RECUR_CHUNK - 1, which no two chunks share. */
enum { RECUR_CHUNK = 64 };
static inline int recur_keep(int N) { return imax(1, (N - 1) / RECUR_CHUNK); }

/* Gates. z (N,HV,K) or (N,HV,1), bias as one row of z, A (HV) is the logarithm of a rate. */
typedef enum {
    GATE_SOFTPLUS,  /* g = -exp(A) log(1 + exp(z + bias)); param is not used */
    GATE_BOUND,     /* g = param sigmoid(exp(A) (z + bias)), param < 0: the lower bound */
    GATE_LOGSIGMOID /* g = log(sigmoid(z + bias)) / param; A must be absent */
} GateKind;
typedef struct {
    GateKind kind;
    double param;
} Gate;

/* Gated RMSNorm of groups of `width` elements: rms(x) = x (mean x^2 + eps)^-1/2. */
typedef struct {
    int width;
    bool silu;   /* the gate is silu(z) = z sigmoid(z); otherwise sigmoid(z) */
    bool before; /* y = w rms(x gate(z)); otherwise y = w rms(x) gate(z) */
    double eps;
} GatedNorm;
