/* ops.h: the table of everything a backend computes. Forward beside backward.
 *
 * Contract of every op: outputs first; forward overwrites its outputs, backward ADDS to every d* argument; arguments do
 * not alias unless said; an ABSENT optional tensor is skipped; nothing is allocated but r->scratch, which is given back
 * before return; while measuring(r) an op takes its scratch and touches nothing else. Shapes are CHECKed.
 * Results do not depend on the number of threads unless said. */
#pragma once
#include "rope.h"
#include "run.h"

typedef enum { DROP_EMBED, DROP_MIXER, DROP_FFN } DropSite;

struct Ops {
    const char *name; /* "cpu" */

    /* y (N,O) = x (N,I) w^T + bias; w (O,I), bias (O) optional. May differ in the last bits between N's and between
     * thread counts (the GEMM library's choice of kernel). */
    void (*linear)(Run *, Tensor y, Tensor x, Tensor w, Tensor bias);
    /* dx += dy w; dw += dy^T x; dbias += sum over rows of dy. Each of dx, dw, dbias optional. */
    void (*linear_backward)(Run *, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w);

    /* y (N,d) = scale table (V,d) [tok]; tok (N) in 0..V-1. */
    void (*embed)(Run *, Tensor y, Tensor table, const int *tok, double scale);
    void (*embed_backward)(Run *, Tensor dtable, Tensor dy, const int *tok, double scale);

    /* Per row of width d = w.n[0] (x is seen as (count/d, d)): rstd = (mean(x^2) + eps)^-1/2; y = x rstd w.
     * rstd (count/d). Source: arXiv:1910.07467. */
    void (*rmsnorm)(Run *, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps);
    /* With t = dy w: dx += rstd t - rstd^3 x (t.x)/d; dw += sum over rows of dy x rstd. */
    void (*rmsnorm_backward)(Run *, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd);

    /* In place: every head of every row of x (rows.n, heads, D) turns its first rope->n numbers by sign * pos * f.
     * Row m of x is row rows.idx[m] of the batch. sign -1 is the transpose, which the backward needs. */
    void (*rope)(Run *, Tensor x, const Rope *, Pick rows, int sign);

    /* Softmax attention of q (r->out.n, heads, kdim) over the K/V of this pass:
     *   s_ij = scale q_i.k_j over visible j (see Look); lse_i = log sum_j exp s_ij; o_i = sum_j exp(s_ij - lse_i) v_j.
     * o (out.n, heads, vdim), lse (out.n, heads). merge: (o, lse) already holds a partial over other keys and becomes
     * that of the union. Never forms T x T. Source: arXiv:2205.14135. */
    void (*attend)(Run *, Tensor o, Tensor lse, Tensor q, const Kv *, Look, bool merge);
    /* delta_i = do_i.o_i; p = exp(s - lse); ds = p (do_i.v_j - delta_i) scale;
     * dq_i += sum_j ds k_j; dk_j += sum_i,h ds q_i; dv_j += sum_i,h p do_i. All rows of the batch (in = out = N). */
    void (*attend_backward)(Run *, Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *, Look, Tensor o, Tensor lse);
    /* attend over the cached history of rows whose first is -1; other rows are untouched (merge) or become the empty
     * partial o = 0, lse = -inf (not merge). */
    void (*attend_lanes)(Run *, Tensor o, Tensor lse, Tensor q, const Lanes *, Look, bool merge);

    /* y = silu(gate) up, silu(a) = a/(1+exp(-a)). All of one shape. Source: arXiv:2002.05202. */
    void (*swiglu)(Run *, Tensor y, Tensor gate, Tensor up);
    void (*swiglu_backward)(Run *, Tensor dgate, Tensor dup, Tensor dy, Tensor gate, Tensor up);

    void (*add)(Run *, Tensor y, Tensor x);                       /* y += x; its own backward */
    void (*axpby)(Run *, Tensor y, double a, Tensor x, double b); /* y = a x + b y; x may be y */
    void (*copy)(Run *, Tensor y, Tensor x);                      /* y = x */
    void (*zero)(Run *, Tensor y);
    /* y row m = x row m', for the rows `to` among the rows `from` of the batch (both ascending, to inside from). */
    void (*gather)(Run *, Tensor y, Tensor x, Pick from, Pick to);
    /* In place: x *= keep/(1-p), keep ~ Bernoulli(1-p), a pure function of (seed, step, layer, site, sample, row in
     * sample, column). Applied to a gradient it is its own backward. */
    void (*dropout)(Run *, Tensor x, DropSite, double p);

    /* Linear head and cross-entropy in chunks of rows; the (N,V) logits never exist at once.
     *   nll_i = log sum_v exp(x_i.w_v) - x_i.w_tgt[i];  0 where tgt[i] < 0.   nll (N).
     * hit (N), optional: 1 where the target is the first id of the largest logit, else 0.
     * With dx and dw (both or neither): given g (N), the loss' derivative by nll_i, adds the gradients. */
    void (*linear_xent)(Run *, Tensor nll, int *hit, Tensor dx, Tensor dw, Tensor x, Tensor w, const int *tgt,
                        const real *g);

    /* One AdamW step t >= 1 on one tensor, decoupled decay (arXiv:1711.05101), with g scaled by gscale first:
     *   m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay w). */
    void (*adamw)(Run *, Tensor w, Tensor g, Tensor m, Tensor v, double lr, double b1, double b2, double eps,
                  double decay, double gscale, int64_t t);
    double (*sumsq)(Run *, Tensor x); /* sum of squares in f64; synchronises */
};

/* Open a backend by name: "cpu". threads 0: as many as there are processors this process may run on. */
bool device_open(Device **, const char *name, int threads, Err *);
void device_close(Device *);
const Ops *device_ops(const Device *);
int device_threads(const Device *);
const char *device_isa(const Device *); /* instruction set the kernels were chosen for: "avx512", "avx2", "baseline" */
/* A Run on this device with nothing but ops, dev and scratch set. */
Run run_make(Device *, Arena *scratch);
