/* cpu.c: the CPU's op table, for one instruction set. Compiled once per OPS_ISA (baseline, avx2, avx512); everything
 * but the table is static, so that the sets live side by side in one program. */
#include <omp.h>
#include "vec.h"

#include "linear.c"
#include "norm.c"
#include "rotate.c"
#include "attend.c"
#include "elementwise.c"
#include "loss.c"

#ifndef OPS_ISA
    #define OPS_ISA baseline
#endif
#define TABLE_(isa) ops_cpu_##isa
#define TABLE(isa)  TABLE_(isa)

const Ops TABLE(OPS_ISA) = {
    .name = "cpu",
    .linear = linear,
    .linear_backward = linear_backward,
    .embed = embed,
    .embed_backward = embed_backward,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .attend = attend,
    .attend_backward = attend_backward,
    .attend_lanes = attend_lanes,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .add = add,
    .axpby = axpby,
    .copy = copy,
    .zero = zero,
    .gather = gather,
    .dropout = dropout,
    .linear_xent = linear_xent,
    .adamw = adamw,
    .sumsq = sumsq,
};
