/* table.h: what the parts of the op table (table.c, products.c, sequence.c, optimizer.c) share, and the ops of all but
 * the first. */
#pragma once
#include "../device.h"
#include "../half.h"
#include "cuda.h"
#include "ledger.h"

static inline Cuda *C(Run *r) { return r->dev->cuda; }
static inline int last(Tensor t) { return t.n[t.rank - 1]; }
/* n numbers of the host: where the pass has them already, or in scratch; NULL while measuring, which takes room for
 * those that a pass of another caller does not have. */
static inline void *upload(Run *r, const void *from, int n, size_t size, const char *name) {
    for (int i = 0; i < r->given.n; i++)
        if (r->given.at[i].host == from && r->given.at[i].bytes >= (size_t)n * size) return r->given.at[i].there;
    void *p = arena_take(r->scratch, (size_t)n * size, name);
    if (!measuring(r)) cuda_upload(C(r), p, from, (size_t)n * size);
    return p;
}
static inline int *upload_ints(Run *r, const int *from, int n, const char *name) {
    return upload(r, from, n, sizeof(int), name);
}
/* Of what an op writes: it may be weights, whose copies in bf16 are then stale. */
static inline void writes(Run *r, Tensor t) {
    if (present(t)) half_changed(r->dev, t.p, tensor_bytes(t));
}
/* Of a tensor that may be BF16, or absent. */
static inline void *numbers(Tensor t) { return t.dtype == BF16 || !present(t) ? t.p : R(t); }
static inline CudaRows rows_of(Tensor t) { return (CudaRows){t.p, t.dtype == BF16, t.fresh}; }
/* Of tensors that are BF16 together or not at all; those that are absent are like any. */
static inline bool narrow_all(int n, const Tensor *t) {
    const Tensor *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!present(t[i])) continue;
        if (!first) first = &t[i];
        CHECK(t[i].dtype == first->dtype, "%s and %s", dtype_name(first->dtype), dtype_name(t[i].dtype));
    }
    return first && first->dtype == BF16;
}
static inline real *maybe(Tensor t) { return present(t) ? R(t) : NULL; }

/* out (O) += the sums over the N rows of x. */
void cuda_column_sums_of(Run *r, int N, int O, Tensor out, Tensor x);
void cuda_op_linear(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias);
void cuda_op_linear_backward(Run *r, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w);
void cuda_op_linear_many(Run *r, int n, const Projection *p, Tensor x);
void cuda_op_linear_many_backward(Run *r, Tensor dx, int n, const Projection *d, Tensor x, const Projection *p);
void cuda_op_linear_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w);
void cuda_op_linear_groups_backward(Run *r, Tensor dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w);
void cuda_op_linear_xent(Run *r, Tensor nll, int *hit, Tensor dx, Tensor dw, Tensor x, Tensor w, const int *tgt,
                         const real *g);
void cuda_op_linear_distill(Run *r, Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w,
                            Tensor y, Tensor u, const int *tgt, const real *g, Distill d);
void cuda_op_decide(Run *r, Tensor alpha, Tensor omega, Tensor bias, Tensor gone, Tensor u, Decide d);
void cuda_op_decide_backward(Run *r, Tensor du, Tensor dm, Tensor dalpha, Tensor domega, Tensor dbias, Tensor alpha,
                             Tensor omega, Decide d);
void cuda_op_attend(Run *r, Tensor o, Tensor lse, Tensor q, const Kv *kv, Look look, bool merge);
void cuda_op_attend_backward(Run *r, Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *kv, Look look, Tensor o,
                             Tensor lse);
void cuda_op_attend_lanes(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, Look look,
                          bool merge);
void cuda_op_short_conv(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias, bool silu, Tensor state, int at);
void cuda_op_short_conv_backward(Run *r, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias,
                                 bool silu);
void cuda_op_decay(Run *r, Tensor g, Tensor z, Tensor A, Tensor bias, Gate k);
void cuda_op_decay_backward(Run *r, Tensor dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias,
                            Gate k);
void cuda_op_gated_norm(Run *r, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n);
void cuda_op_gated_norm_backward(Run *r, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w,
                                 GatedNorm n);
void cuda_op_recur(Run *r, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at);
void cuda_op_recur_backward(Run *r, const Recur *d, Tensor dout, Recur x, double scale, Tensor keep,
                            const RecurEnds *ends);
void cuda_op_merge(Run *r, Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at);
void cuda_op_merge_backward(Run *r, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a,
                            Tensor w, int window);
void cuda_op_adamw(Run *r, int n, const AdamwStep *a);
void cuda_op_momentum(Run *r, Tensor u, Tensor m, Tensor g, double mu, double gscale, bool nesterov, Rounding round);
double cuda_op_sumsq(Run *r, Tensor x);
double cuda_op_sumsqs(Run *r, double start, int n, const Tensor *x);
void cuda_op_sumsqs_there(Run *r, double *sum, bool more, int n, const Tensor *x);
void cuda_op_normalise(Run *r, Tensor x, double eps);
