/* ops.h: the table of everything a backend computes. Forward beside backward.
 *
 * Contract of every op: outputs first; forward overwrites its outputs, backward ADDS to every d* argument; arguments do
 * not alias unless said; an ABSENT optional tensor is skipped; nothing is allocated but r->scratch, which is given back
 * before return; while measuring(r) an op takes its scratch and touches nothing else. Shapes are CHECKed.
 *
 * Tensors are REAL but where an op says more. On a device (device_half) activations and their gradients may be BF16 in
 * memory, each rounded to the nearest as it is stored: x, y and their gradients of linear, linear_many, linear_groups,
 * rmsnorm, layernorm, rope, rmsnorm_rope, swiglu, swiglu_rows (but not its s), gelu, add, copy, columns, spread,
 * collect and gather, x of linear_steady, x and dx of linear_xent, q, o and their gradients, k with v, dk with dv of
 * attend and attend_backward. Of one call of rmsnorm, rmsnorm_rope, swiglu, swiglu_rows or gelu all are BF16 or none,
 * but that rmsnorm and layernorm read x in REAL, or x and dx, beside a narrow y or dy. Around a recurrence the
 * following and their gradients may be, all of a call or none: x and y of short_conv (then without state), l2norm,
 * elu1, widen, quotient, step and skip, with z of gated_norm, z alone of decay, q, k, v and o of recur. What decides
 * how much stays REAL: g, beta, z of step, all of sigmoid, their gradients, states and keep. What is added to in BF16
 * is widened, added to in f32 and rounded, once for all shares of a call; on CUDA each product of a call is a share of
 * its own.
 *
 * dx of linear_backward, linear_many_backward, linear_groups_backward, swiglu_backward, gelu_backward,
 * rmsnorm_backward, rmsnorm_rope_backward and columns_backward, all three of swiglu_rows_backward, y of collect, dq and
 * dkv's k and v of attend_backward, all of d of recur_backward, and dx and dz of what stands around a recurrence
 * (short_conv, l2norm, decay, sigmoid, gated_norm, elu1, widen, quotient, step, skip) may be `fresh`: they are then
 * overwritten, not added to.
 *
 * Results do not depend on the number of threads unless said. */
#pragma once
#include "recur.h"
#include "rope.h"

/* Rows off[e]..off[e+1]-1 belong to group e, e < n; off[0] = 0. Not read while measuring. */
typedef struct {
    int n;
    const int *off;
} Groups;
/* Where noise enters: part of its key. */
typedef enum { DROP_EMBED, DROP_MIXER, DROP_FFN, NOISE_DECISION } DropSite;

/* Numbers stored as BF16 are rounded up or down by chance, so that the mean of what is stored is the number: with
 * x between the neighbours a < b, b is taken with the chance (x - a) / (b - a). The chance is drawn
 * from rng_mix(key, place), its lowest 16 bits (of a second moment: the next 16), where place is that in the whole
 * tensor: `at` + that in the argument. Source: arXiv:1502.02551. */
typedef struct {
    uint64_t key, at;
} Rounding;

/* AdamW's step t >= 1 of one tensor, decoupled decay (arXiv:1711.05101), with g scaled by gscale first:
 *   m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay w).
 * m and v may both be BF16: w takes its step by the numbers before they are rounded.
 * square: NULL, or on the device the square of a norm n, of which g is scaled as well: by most/n where most > 0 and
 * n > most. Where it is not finite nothing of the tensor changes. */
typedef struct {
    Tensor w, g, m, v;
    double lr, b1, b2, eps, decay, gscale;
    int64_t t;
    Rounding round;
    const double *square;
    double most;
} AdamwStep;

/* Weights of the losses of linear_distill, and the temperature T > 0 of the latter two. */
typedef struct {
    double lm, kl, rkl, temperature;
} Distill;

/* How hidden numbers decide about rows (layers/dmc/dmc.h): the decision's settings, what importances have added to
 * them, and query heads to a lane. */
typedef struct {
    double gain, offset, temperature, eps;
    int group;
} Decide;
/* One of several matrices that share an input, or the gradients of one: y = x w^T + bias. */
typedef struct {
    Tensor y, w, bias; /* (N,O) (O,I) (O), bias optional */
} Projection;
enum { LINEAR_MANY = 8 };
enum { HEAD_WIDEST = 1024 }; /* numbers of a head that is normed and rotated in one */

struct Ops {
    const char *name; /* "cpu" */

    /* y (N,O) = x (N,I) w^T + bias; w (O,I), bias (O) optional. May differ in the last bits between N's and between
     * thread counts (the GEMM library's choice of kernel). w may be BF16, as may be that of linear_heads, linear_groups
     * and linear_xent without gradient and the table of embed. In linear, _groups and _xent rows of x are then rounded
     * to bf16, too, sums are f32, and neither N nor the threads change a bit; this takes device_bf16. Of rows that are
     * BF16 in memory every matrix is rounded, however small. */
    void (*linear)(Run *, Tensor y, Tensor x, Tensor w, Tensor bias);
    /* dx += dy w; dw += dy^T x; dbias += sum over rows of dy. Each of dx, dw, dbias optional; x is read
     * for dw alone, w for dx alone. */
    void (*linear_backward)(Run *, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w);
    /* n <= LINEAR_MANY matrices of one input: the numbers are those of n calls of linear, of linear_backward in the
     * same order; what it saves is rounding x and waiting for each other n times. d[j]: the gradient of p[j].y, and
     * where those of its w and bias are added, each optional, as is dx; of p[j] only w is looked at. */
    void (*linear_many)(Run *, int n, const Projection *p, Tensor x);
    void (*linear_many_backward)(Run *, Tensor dx, int n, const Projection *d, Tensor x, const Projection *p);

    /* Every head has a matrix of its own: w (H*R,I) is seen as (H,R,I), W_h = rows row..row+O-1 of head h.
     *   y[m,h,o] = sum_i W_h[o,i] x[m,h,i];   turned: y[m,h,i] = sum_o W_h[o,i] x[m,h,o].
     * x (M,H,.) and y (M,H,.) may be wider: what lies behind is neither read nor written. For inference: no backward.
     */
    void (*linear_heads)(Run *, Tensor y, Tensor x, Tensor w, int row, int O, bool turned);
    /* linear whose numbers are each a function of their row of x and of w alone: the same bits whatever N and the
     * number of threads, and of x in BF16 those of the same numbers in REAL. For what hard decisions hang on;
     * slower. */
    void (*linear_steady)(Run *, Tensor y, Tensor x, Tensor w, Tensor bias);

    /* y (N,d) = scale table (V,d) [tok]; tok (N) in 0..V-1. */
    void (*embed)(Run *, Tensor y, Tensor table, const int *tok, double scale);
    void (*embed_backward)(Run *, Tensor dtable, Tensor dy, const int *tok, double scale);

    /* Per row of width d = w.n[0] (x is seen as (count/d, d)): rstd = (mean(x^2) + eps)^-1/2; y = x rstd w.
     * rstd (count/d). Source: arXiv:1910.07467. */
    void (*rmsnorm)(Run *, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps);
    /* x += z, then y and rstd of that: add and rmsnorm in one. x and z are REAL. */
    void (*add_rmsnorm)(Run *, Tensor y, Tensor rstd, Tensor x, Tensor z, Tensor w, double eps);
    /* With t = dy w: dx += rstd t - rstd^3 x (t.x)/d; dw += sum over rows of dy x rstd. */
    void (*rmsnorm_backward)(Run *, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd);
    /* The same with the row's mean taken out and a bias: u = x - mean(x), rstd = (mean(u^2) + eps)^-1/2,
     * y = u rstd w + b. Source: arXiv:1607.06450. */
    void (*layernorm)(Run *, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps);
    /* With t = dy w, n = u rstd (u is made again): dx += rstd (t - mean(t) - n mean(t n)); dw += sum over rows of dy n;
     * db += sum over rows of dy. */
    void (*layernorm_backward)(Run *, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd);

    /* In place: every head of every row of x (rows.n, heads, D) turns rope->n numbers from rope->at by sign * pos * f.
     * Row m of x is row rows.idx[m] of the batch. sign -1 is the transpose, which the backward needs. */
    void (*rope)(Run *, Tensor x, const Rope *, Pick rows, int sign);
    /* rmsnorm of every head and rope of that in one: y = rope(rmsnorm(x)), by w (D) and with sign 1; x, y (rows.n,
     * heads, D), rstd (rows.n, heads), D <= HEAD_WIDEST. Of a rotation with n = 0 rmsnorm alone. A number of BF16 is
     * rounded once, as y. */
    void (*rmsnorm_rope)(Run *, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps, const Rope *, Pick rows);
    /* rmsnorm_backward with what rope, sign -1, makes of dy, which stays as it is. */
    void (*rmsnorm_rope_backward)(Run *, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd, const Rope *,
                                  Pick rows);

    /* Softmax attention of q (r->out.n, heads, kdim) over the K/V of this pass:
     *   s_ij = scale q_i.k_j over visible j (see Look), + bias_j where pos i - pos j > delay (see Kv); lse_i = log
     * sum_j exp s_ij; o_i = sum_j exp(s_ij - lse_i) v_j. o (out.n, heads, vdim), lse (out.n, heads). merge: (o, lse)
     * already holds a partial over other keys and becomes that of the union. Never forms T x T. Source:
     * arXiv:2205.14135. */
    void (*attend)(Run *, Tensor o, Tensor lse, Tensor q, const Kv *, Look, bool merge);
    /* delta_i = do_i.o_i; p = exp(s - lse); ds = p (do_i.v_j - delta_i) scale;
     * dq_i += sum_j ds k_j; dk_j += sum_i,h ds q_i; dv_j += sum_i,h p do_i; dbias_j += sum_i,h ds/scale over the i
     * that it was added for. All rows of the batch (in = out = N). */
    void (*attend_backward)(Run *, Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *, Look, Tensor o, Tensor lse);
    /* attend over the cached history of rows whose first is -1; other rows are untouched (merge) or become the empty
     * partial o = 0, lse = -inf (not merge). `pass`: the rows of this pass in the same slot, whose first may have
     * retired the newest cached one. */
    void (*attend_lanes)(Run *, Tensor o, Tensor lse, Tensor q, const Lanes *, const Kv *pass, Look, bool merge);

    /* Running weighted means over runs of rows, lane by lane (x, y (N,lanes,D); a, w, z (N,lanes), w > 0):
     *   y_t = sum_j p_tj w_j x_j / z_t, z_t = sum_j p_tj w_j, p_tj = a_t a_t-1 .. a_j+1,
     * over j = t, t-1, .. : at most `window` rows (0: all), none before t's document. Summed as (p w / z) x, so that a
     * row alone (a_t = 0) is x_t to the bit. `past` (nseq,lanes,R,C), may be absent: rows before this pass for those
     * whose first is -1, the newest last; x at number `at`, w and a at C-2 and C-1. Source: arXiv:2403.09636. */
    void (*merge)(Run *, Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at);
    /* With e_tj = (x_j - y_t).dy_t / z_t: dx_j += sum_t p_tj w_j/z_t dy_t; dw_j += sum_t p_tj e_tj;
     * da_m += sum_t sum_j<m w_j e_tj (p_tj without a_m), j and t in one window. No past. */
    void (*merge_backward)(Run *, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a,
                           Tensor w, int window);
    /* Every row i decides in each lane h about its predecessor, by u (N,G) or (N,2G), G lanes:
     *   l = (gain u[i,h] - offset + log(p/(1-p))) / temperature, p uniform by NOISE_DECISION, draw h, in training
     * without RUN_STILL, else 1/2;  alpha (N,G) = sigmoid(l) in training, else [l > 0];  gone = [l > 0]; both 0 where i
     * begins a document;  bias (N,G) of the predecessor in the pass: -softplus(l) in training, else 0 or -inf; 0 of
     * rows that none decides about;  omega (N,G), with u (N,2G) alone: sigmoid(u[i,G+h] + offset) + eps. r->stat, where
     * present: STAT_MERGED += gone (RUN_SMOOTH: alpha) and 1 for every decision. gone may be absent. */
    void (*decide)(Run *, Tensor alpha, Tensor omega, Tensor bias, Tensor gone, Tensor u, Decide);
    /* du[i,h] += gain/temperature ((dalpha + r->dstat) a (1-a) - a dbias[i-1]), 0 where i begins a document;
     * dm += domega o (1-o) / group, o = omega - eps: by each query's number of the mean. du, dm, dalpha, domega
     * (N,G); dm, dalpha, domega, omega absent when nothing is merged. */
    void (*decide_backward)(Run *, Tensor du, Tensor dm, Tensor dalpha, Tensor domega, Tensor dbias, Tensor alpha,
                            Tensor omega, Decide);
    /* Row g of y (n,d) = mean over i < k, in order, of rows (g k + i) each + at of w (.,d), which may be BF16; what
     * has one size only is a column. */
    void (*mean_rows)(Run *, Tensor y, Tensor w, int each, int at, int k);
    /* In place: column c of every row of x, seen by its last size, times m. */
    void (*scale_column)(Run *, Tensor x, int c, double m);

    /* o (N,HV,V) by the recurrence of recur.h over all rows of the batch (in = N). state (nseq,n) or absent: blob
     * Batch.seq of sequence s holds its S (HV,K,V) from number `at` on; it is read where first = -1 and written at the
     * end of the pass unless RUN_HOLD. Rows with first = -1 need it. keep: recur_keep's, for the backward, or absent.
     */
    void (*recur)(Run *, Tensor o, Tensor keep, Recur, double scale, Tensor state, int at);
    /* d->q, d->k, d->v, d->g, d->beta += the gradients; each optional. do = dout (N,HV,V). ends: NULL where every row's
     * document began in this pass. With dS the gradient of S_t by what comes later, per row from the last to the first:
     *   dS += scale q do^T; dq = scale S do; du = dS^T k; dbeta = du.(v - D^T k); dv = beta du;
     *   dD = dS - k dv^T; dk = dS u - D dv; dg = rowsum(dD * D); dS <- Diag(a) dD. */
    void (*recur_backward)(Run *, const Recur *d, Tensor dout, Recur, double scale, Tensor keep, const RecurEnds *ends);
    /* Depthwise causal convolution: y_t = act(bias + sum_j w[c,j] x_{t-(W-1)+j}), x (N,C), w (C,..,W), bias (C)
     * optional, act = silu or none; w absent: y = act(x). Rows before the document are zero; before a pass that
     * continues it the last W-1 rows of x, oldest first, lie in the state blob (see recur) from number `at` on:
     * (W-1,C), read where first = -1, written unless RUN_HOLD. */
    void (*short_conv)(Run *, Tensor y, Tensor x, Tensor w, Tensor bias, bool silu, Tensor state, int at);
    /* Of passes without history. dx, dw, dbias optional. */
    void (*short_conv_backward)(Run *, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias,
                                bool silu);
    /* Per group of x.n[rank-1] numbers: y = x (sum x^2 + eps)^-1/2 = x r; dx += r (dy - y (y.dy)). */
    void (*l2norm)(Run *, Tensor y, Tensor x, double eps);
    void (*l2norm_backward)(Run *, Tensor dx, Tensor dy, Tensor x, double eps);
    /* g from z by the formulas of recur.h; A (HV) and bias optional. dz, dA, dbias optional. */
    void (*decay)(Run *, Tensor g, Tensor z, Tensor A, Tensor bias, Gate);
    void (*decay_backward)(Run *, Tensor dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias, Gate);
    /* y = top sigmoid(x); dx += dy y (1 - y/top). */
    void (*sigmoid)(Run *, Tensor y, Tensor x, double top);
    void (*sigmoid_backward)(Run *, Tensor dx, Tensor dy, Tensor y, double top);
    /* Gated RMSNorm of recur.h; y, x, z of one shape; w a whole number of groups of n.width that rows of groups share
     * in turn ((V): every head alike; (HV,V) or (HV*V): each its own), or absent (1). */
    void (*gated_norm)(Run *, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n);
    void (*gated_norm_backward)(Run *, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w,
                                GatedNorm n);

    /* Every row of y = row, which no weight makes. */
    void (*repeat)(Run *, Tensor y, const double *row);
    /* y = elu(x) + 1: x + 1 where x > 0, e^x elsewhere; dx += dy min(1, y). Source: arXiv:2006.16236. */
    void (*elu1)(Run *, Tensor y, Tensor x);
    void (*elu1_backward)(Run *, Tensor dx, Tensor dy, Tensor y);
    /* Linear attention's denominator: groups of V numbers become V+1, the last of them 1; behind the recurrence groups
     * of V+1 become V: y_c = x_c / (x_V + eps); dx_c += dy_c / (x_V + eps), dx_V -= sum dy_c y_c / (x_V + eps). */
    void (*widen)(Run *, Tensor y, Tensor x);
    void (*widen_backward)(Run *, Tensor dx, Tensor dy);
    void (*quotient)(Run *, Tensor y, Tensor x, double eps);
    void (*quotient_backward)(Run *, Tensor dx, Tensor dy, Tensor y, Tensor x, double eps);
    /* x (N,H,P), z (N,H), bias (H): y = log(1 + exp(z + bias)) x; Mamba-2's input times its step. */
    void (*step)(Run *, Tensor y, Tensor x, Tensor z, Tensor bias);
    void (*step_backward)(Run *, Tensor dx, Tensor dz, Tensor dbias, Tensor dy, Tensor x, Tensor z, Tensor bias);
    /* x (N,H,P), w (H): y += w x; dx += w dy; dw += sums of dy x. */
    void (*skip)(Run *, Tensor y, Tensor x, Tensor w);
    void (*skip_backward)(Run *, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w);

    /* y = silu(gate) up, silu(a) = a/(1+exp(-a)). All of one shape. Source: arXiv:2002.05202.
     * Backward: y, optional, is made again on the way. */
    void (*swiglu)(Run *, Tensor y, Tensor gate, Tensor up);
    void (*swiglu_backward)(Run *, Tensor y, Tensor dgate, Tensor dup, Tensor dy, Tensor gate, Tensor up);

    /* y = x P(x): P(x) = (1 + erf(x/sqrt 2))/2, the normal distribution's, or, `tanh`, its approximation
     * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))/2. dx += dy (P(x) + x P'(x)). Source: arXiv:1606.08415. */
    void (*gelu)(Run *, Tensor y, Tensor x, bool tanh);
    void (*gelu_backward)(Run *, Tensor dx, Tensor dy, Tensor x, bool tanh);

    void (*add)(Run *, Tensor y, Tensor x);                       /* y += x; its own backward */
    void (*axpby)(Run *, Tensor y, double a, Tensor x, double b); /* y = a x + b y; x may be y */
    void (*copy)(Run *, Tensor y, Tensor x);                      /* y = x */
    /* Rows in groups, each with a matrix of its own: rows off[e]..off[e+1]-1 of x (M,I) and y (M,O) belong to w[e]
     * (O,I), all of one shape. A group may be empty, off[n] = M.   y row = w[e] x row. Backward: dx += dy w[e];
     * dw[e] += dy^T x over the group's rows. Each of dx, dw (NULL) optional. Operands are rounded to bf16 where those
     * of `linear` with one of the matrices would be (device_bf16). */
    void (*linear_groups)(Run *, Tensor y, Tensor x, Groups, const Tensor *w);
    void (*linear_groups_backward)(Run *, Tensor dx, Tensor *dw, Tensor dy, Tensor x, Groups, const Tensor *w);
    /* y row j = x row row[j]; in any order, repeats too. BF16 of REAL is rounded, equal types are copied. */
    void (*spread)(Run *, Tensor y, Tensor x, const int *row);
    /* n pieces of w numbers: those of y from number to[i] on become those of x from number from[i] on. Pieces of y do
     * not overlap; the rest of y stays. Each of y and x may be BF16: numbers go to the nearest. */
    void (*move)(Run *, Tensor y, const size_t *to, Tensor x, const size_t *from, int n, int w);
    /* y row i += sum over j < k, in order, of x row place[i k + j]; rounded once, when all k are there. */
    void (*collect)(Run *, Tensor y, Tensor x, const int *place, int k);
    /* SwiGLU with a factor s (M) for each row: y = s silu(gate) up. Backward: ds += sum over the row of dy silu(gate)
     * up, the others as those of swiglu with s dy. */
    void (*swiglu_rows)(Run *, Tensor y, Tensor gate, Tensor up, Tensor s);
    void (*swiglu_rows_backward)(Run *, Tensor dgate, Tensor dup, Tensor ds, Tensor dy, Tensor gate, Tensor up,
                                 Tensor s);

    /* In place: every number to the nearest bf16, ties to even; NaN stays NaN. What a cache in bf16 would hold. */
    void (*narrow)(Run *, Tensor x);
    void (*zero)(Run *, Tensor y);
    /* y row m = x row m', for the rows `to` among the rows `from` of the batch (both ascending, to inside from). */
    void (*gather)(Run *, Tensor y, Tensor x, Pick from, Pick to);
    /* n columns from rows of one width to rows of another, each seen by its last size; y has k times the rows of x:
     *   y[i, to + c] = x[i / k, from + c].   Backward: dx[i / k, from + c] += dy[i, to + c].
     * Numbers of BF16 are rounded once, those of dx when the shares of all k rows are there. Of a fresh dx the n
     * columns are overwritten, others stay. */
    void (*columns)(Run *, Tensor y, int to, Tensor x, int from, int n);
    void (*columns_backward)(Run *, Tensor dx, int from, Tensor dy, int to, int n);
    /* In place: x *= keep/(1-p), keep ~ Bernoulli(1-p), a pure function of (seed, step, layer, site, sample, row in
     * sample, column). Applied to a gradient it is its own backward. */
    void (*dropout)(Run *, Tensor x, DropSite, double p);

    /* Linear head and cross-entropy in chunks of rows; the (N,V) logits never exist at once.
     *   nll_i = log sum_v exp(x_i.w_v) - x_i.w_tgt[i];  0 where tgt[i] < 0.   nll (N).
     * hit (N), optional: 1 where the target is the first id of the largest logit, else 0.
     * With dx and dw (both or neither): given g (N), the loss' derivative by nll_i, adds the gradients. */
    void (*linear_xent)(Run *, Tensor nll, int *hit, Tensor dx, Tensor dw, Tensor x, Tensor w, const int *tgt,
                        const real *g);

    /* The same with a teacher beside: y (N,e) are its rows before its head u (V,e). Two chunks of logits exist at once.
     * With z = x_i w^T, p = softmax(z / T) and q = softmax(y_i u^T / T), where tgt[i] >= 0, all 0 elsewhere:
     *   nll_i as above;  kl_i = T^2 sum_v q log(q / p);  rkl_i = T^2 sum_v p log(p / q).
     * dx and dw (both or neither) receive the gradients of sum_i g_i (lm nll_i + kl kl_i + rkl rkl_i), none goes to the
     * teacher: dz = g (lm (softmax(z) - onehot) + kl T (p - q) + rkl T p (log(p / q) - sum_v p log(p / q))).
     * Source: arXiv:1503.02531 (T^2 keeps the gradient's size); the reverse form as in arXiv:2306.08543. */
    void (*linear_distill)(Run *, Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w, Tensor y,
                           Tensor u, const int *tgt, const real *g, Distill);
    /* Distance of the rows of y from those of a (N,d), relative to a's mean size in the row's sequence s:
     *   err_i += |y_i - a_i|^2 / m_s,  m_s = mean over rows j of s with tgt[j] >= 0 of |a_j|^2 (1 where that is 0);
     * rows with tgt[i] < 0 are untouched. dy (optional) += 2 c g_i (y_i - a_i) / m_s: of sum_i c g_i err_i. err (N). */
    void (*align)(Run *, Tensor err, Tensor dy, Tensor y, Tensor a, const int *tgt, const real *g, double c);

    /* One step for each of n tensors, which lie apart. */
    void (*adamw)(Run *, int n, const AdamwStep *);
    /* m = mu m + gscale g; u = mu m + gscale g (nesterov) or m. m may be BF16: u is of the number before rounding. */
    void (*momentum)(Run *, Tensor u, Tensor m, Tensor g, double mu, double gscale, bool nesterov, Rounding);
    /* Sum of squares in f64; synchronises. Blocks of 65,536 numbers are added in order; within a block by a tree over
     * runs of 256, so that ranks that share a block can each sum a branch. */
    double (*sumsq)(Run *, Tensor x);
    /* x /= |x| + eps, |x| the root of sumsq(x). Nobody waits for it. */
    void (*normalise)(Run *, Tensor x, double eps);
    /* start + sumsq of each of n tensors, added in order, with one synchronisation for all. */
    double (*sumsqs)(Run *, double start, int n, const Tensor *x);
    /* The same left on the device, where nobody waits for it: *sum = (more ? *sum : 0) + ... */
    void (*sumsqs_there)(Run *, double *sum, bool more, int n, const Tensor *x);
};

/* For an op that can only add. */
static inline void begin_sum(Run *r, Tensor t) {
    if (t.fresh) r->ops->zero(r, t);
}

/* Open a backend by name: "cpu", or "cuda" in a program that was built with it (ops/cuda/ledger.h: which ops it lacks).
 * threads 0: as many as there are processors this process may run on. */
bool device_open(Device **, const char *name, int threads, Err *);
void device_close(Device *);
const Ops *device_ops(const Device *);
int device_threads(const Device *);
/* What the kernels were chosen for: the instruction set "avx512bf16+amx", "avx512bf16", "neon", ... "baseline"; of
 * "cuda" its name. */
const char *device_isa(const Device *);
/* Where the tensors of its ops lie, for arena_open_at; NULL: with the host, as `const int *` arguments always do.
 * host_too: memory that the host may use as well, between device_sync and the next op; for tests, since its pages
 * wander between the two as they are touched. */
const Memory *device_memory(Device *, bool host_too);
void device_sync(Device *); /* wait until everything that was asked for is done */
void device_write(Device *, void *to, const void *from, size_t bytes); /* `to` on the device; `from` is free at once */
void device_read(Device *, void *to, const void *from, size_t bytes);  /* `from` on the device; waits */
void device_copy(Device *, void *to, const void *from, size_t bytes);  /* both on the device, apart from each other */
void device_zero(Device *, void *p, size_t bytes);
/* Seconds that `work` takes: of the CPU by its clock, of "cuda" by the device's own, from the first kernel to the last.
 * Waits before and after. */
double device_seconds(Device *, void (*work)(void *), void *ctx);
struct Tuning; /* tuning.h */
/* Take the choices of a file (tuning.h), which changes no result but its last bits. A file of another device or
 * library, or a damaged one, is said on stderr in one line and ignored. False (EXIT_INPUT): no such file, or the device
 * is the CPU. */
bool device_tuning(Device *, const char *path, Err *);
/* Measure the algorithms for every product that was asked for since the device was opened, `seconds` for each, keep the
 * fastest, and write them to `path` (NULL: nowhere). The caller frees `out`. False: EXIT_INPUT for the CPU, EXIT_WORLD
 * when nothing could be measured or written. */
bool device_tune(Device *, double seconds, const char *path, struct Tuning *out, Err *);
/* What a device says of itself, one call for each fact: a number, or a text where it is not NULL. Of the CPU its
 * instruction set and threads; of "cuda" what ops/cuda/cuda.h lists. */
typedef void DeviceSee(void *ctx, const char *name, long long number, const char *text);
void device_facts(Device *, DeviceSee *, void *ctx);
/* Matrix products (the ops linear and linear_groups, and those made of them) of matrices with NARROW_LEAST weights and
 * more round their operands to bf16 and add in f32, forward and backward; everything else, the numbers in memory
 * included, stays f32, but that attend and attend_backward round theirs, too: on CUDA of up to 256 numbers a head, on a
 * CPU that has the instruction of a multiple of 16; that on these activations of training are BF16 in memory where a
 * layer takes them so (device_half, layers/mixer.h); and that on CUDA N may change a bit (the library's choice of
 * kernel). Passes that were measured before have too little scratch. false: f32 again, as a device is opened.
 * EXIT_INPUT in the double build. */
bool device_bf16(Device *, bool on, Err *);
/* Whether a pass keeps activations in BF16, which the ops named at the top take: while device_bf16 is on, on CUDA and
 * on a CPU that has the instruction. */
bool device_half(const Device *);
/* Whose kernels attention in bf16 takes in training: our own (as a device is opened), or cuDNN's, where it is installed
 * and has a plan for the pass, which it makes while the pass is measured: afterwards passes have to be measured again.
 * ATTENTION_CUDNN repeats its results to the bit, as all else does; UNORDERED does not, for less workspace and time.
 * What is not to be had is said on stderr, and our own kernels do it. EXIT_INPUT: the CPU, or operands in f32. */
typedef enum { ATTENTION_AUTO, ATTENTION_OWN, ATTENTION_CUDNN, ATTENTION_CUDNN_UNORDERED } AttentionBy;
bool device_attention(Device *, AttentionBy, Err *);
/* Whether a training step is faster so. Of the CPU measured on products in about 0.1 s, where the processor has an
 * instruction for it, else false. Always on CUDA, where nothing is measured, so that every run decides alike: each
 * device that can be opened has matrix units for bf16, by its maker's figures 2 to 16 times as fast as f32. */
bool device_bf16_pays(Device *);
/* A Run on this device with nothing but ops, dev, scratch and host (the same) set. */
Run run_make(Device *, Arena *scratch);
