/* lacks.c: see lacks.h. One line for every op of the ledger's list of missing ones, which the tests hold it to; an op
 * that lands takes its line along. */
#include "lacks.h"
#include "../host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define LACKS(op, ...) \
    static void op(Run *r, __VA_ARGS__) { device_lacks(r, #op); }

LACKS(layernorm, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps)
LACKS(layernorm_backward, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd)
LACKS(gelu, Tensor y, Tensor x, bool tanh)
LACKS(gelu_backward, Tensor dx, Tensor dy, Tensor x, bool tanh)
LACKS(attend_lanes, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, Look look, bool merge)
LACKS(merge, Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at)
LACKS(merge_backward, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a, Tensor w,
      int window)
LACKS(recur, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at)
LACKS(recur_backward, const Recur *d, Tensor dout, Recur x, double scale, Tensor keep, const RecurEnds *ends)
LACKS(short_conv, Tensor y, Tensor x, Tensor w, Tensor bias, bool silu, Tensor state, int at)
LACKS(short_conv_backward, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias, bool silu)
LACKS(decay, Tensor g, Tensor z, Tensor A, Tensor bias, Gate gate)
LACKS(decay_backward, Tensor dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias, Gate gate)
LACKS(gated_norm, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n)
LACKS(gated_norm_backward, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w, GatedNorm n)

void cuda_lacks(Ops *o) {
#define SAY(op) \
    if (!o->op) o->op = op
    SAY(layernorm);
    SAY(layernorm_backward);
    SAY(gelu);
    SAY(gelu_backward);
    SAY(attend_lanes);
    SAY(merge);
    SAY(merge_backward);
    SAY(recur);
    SAY(recur_backward);
    SAY(short_conv);
    SAY(short_conv_backward);
    SAY(decay);
    SAY(decay_backward);
    SAY(gated_norm);
    SAY(gated_norm_backward);
}
