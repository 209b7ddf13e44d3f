/* cpu.c: the CPU's op table, for one instruction set. Compiled once per OPS_ISA (baseline, avx2, avx512, avx512bf16);
 * everything but the table is static, so that the sets live side by side in one program. */
#include <omp.h>
#include "vec.h"

#include "few_rows.c"
#include "linear.c"
#include "norm.c"
#include "rotate.c"
#include "attend.c"
#include "attend_lanes.c"
#include "colstat.c"
#include "attend_backward.c"
#include "merge.c"
#include "decide.c"
#include "elementwise.c"
#include "loss.c"
#include "distill.c"
#include "update.c"
#include "groups.c"
#include "recur.c"
#include "conv.c"
#include "rows.c"
#include "gates.c"
#include "lines.c"

#ifndef OPS_ISA
    #define OPS_ISA baseline
#endif
#define TABLE_(isa) ops_cpu_##isa
#define TABLE(isa)  TABLE_(isa)

const Ops TABLE(OPS_ISA) = {
    .name = "cpu",
#define DEF(result, op, ...) .op = op,
#include "ops/ops.def"
};
