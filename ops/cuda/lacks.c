/* lacks.c: see lacks.h. One line for every op of the ledger's list of missing ones, which the tests hold it to; an op
 * that lands takes its line along. */
#include "lacks.h"
#include "../host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define LACKS(op, ...) \
    static void op(Run *r, __VA_ARGS__) { device_lacks(r, #op); }

LACKS(attend_lanes, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, Look look, bool merge)
LACKS(merge, Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at)
LACKS(merge_backward, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a, Tensor w,
      int window)
LACKS(recur, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at)
LACKS(recur_backward, const Recur *d, Tensor dout, Recur x, double scale, Tensor keep, const RecurEnds *ends)

void cuda_lacks(Ops *o) {
#define SAY(op) \
    if (!o->op) o->op = op
    SAY(attend_lanes);
    SAY(merge);
    SAY(merge_backward);
    SAY(recur);
    SAY(recur_backward);
}
