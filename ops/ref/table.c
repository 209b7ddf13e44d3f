/* table.c: the reference as a table of ops. An op of ops.def without a reference does not link. */
#include "ref.h"

#define RETURN_void
#define RETURN_double return
#define NOTHING_void
#define NOTHING_double 0
#define DEF(result, op, flops, ...)                                              \
    static result op##_unless_measuring(Run *r OP_EACH(OP_PARAM, __VA_ARGS__)) { \
        if (measuring(r)) return NOTHING_##result;                               \
        RETURN_##result ref_##op(r OP_EACH(OP_ARG, __VA_ARGS__));                \
    }
#include "ops/ops.def"

const Ops ops_ref = {
    .name = "ref",
#define DEF(result, op, ...) .op = op##_unless_measuring,
#include "ops/ops.def"
};
