/* lacks.c: see lacks.h. One line for every op of the ledger's list of missing ones, which the tests hold it to; an op
 * that lands takes its line along. */
#include "lacks.h"
#include "../host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define LACKS(op, ...) \
    static void op(Run *r, __VA_ARGS__) { device_lacks(r, #op); }

LACKS(linear_distill, Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w, Tensor y, Tensor u,
      const int *tgt, const real *g, Distill weights)
LACKS(align, Tensor err, Tensor dy, Tensor y, Tensor a, const int *tgt, const real *g, double c)

void cuda_lacks(Ops *o) {
#define SAY(op) \
    if (!o->op) o->op = op
    SAY(linear_distill);
    SAY(align);
}
