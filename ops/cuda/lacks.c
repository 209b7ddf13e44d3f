/* lacks.c: see lacks.h. One line for every op of the ledger's list of missing ones, which the tests hold it to; an op
 * that lands takes its line along. */
#include "lacks.h"
#include "../host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define LACKS(op, ...) \
    static void op(Run *r, __VA_ARGS__) { device_lacks(r, #op); }

void cuda_lacks(Ops *o) {
#define SAY(op) \
    if (!o->op) o->op = op
    (void)o; /* lacks nothing */
}
