/* cpu.c: the CPU's op table, for one instruction set. Compiled once per OPS_ISA (baseline, avx2, avx512, avx512bf16);
 * everything but the table is static, so that the sets live side by side in one program. */
#include <omp.h>
#include "vec.h"

#include "linear.c"
#include "norm.c"
#include "rotate.c"
#include "attend.c"
#include "attend_lanes.c"
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
#include "gates.c"
#include "lines.c"

#ifndef OPS_ISA
    #define OPS_ISA baseline
#endif
#define TABLE_(isa) ops_cpu_##isa
#define TABLE(isa)  TABLE_(isa)

const Ops TABLE(OPS_ISA) = {
    .name = "cpu",
    .linear = linear,
    .linear_backward = linear_backward,
    .linear_many = linear_many,
    .linear_many_backward = linear_many_backward,
    .linear_heads = linear_heads,
    .linear_steady = linear_steady,
    .embed = embed,
    .embed_backward = embed_backward,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .rope = rope,
    .rmsnorm_rope = rmsnorm_rope,
    .rmsnorm_rope_backward = rmsnorm_rope_backward,
    .attend = attend,
    .attend_backward = attend_backward,
    .attend_lanes = attend_lanes,
    .recur = recur,
    .recur_backward = recur_backward,
    .short_conv = short_conv,
    .short_conv_backward = short_conv_backward,
    .l2norm = l2norm,
    .l2norm_backward = l2norm_backward,
    .decay = decay,
    .decay_backward = decay_backward,
    .sigmoid = sigmoid,
    .sigmoid_backward = sigmoid_backward,
    .gated_norm = gated_norm,
    .gated_norm_backward = gated_norm_backward,
    .repeat = repeat,
    .elu1 = elu1,
    .elu1_backward = elu1_backward,
    .widen = widen,
    .widen_backward = widen_backward,
    .quotient = quotient,
    .quotient_backward = quotient_backward,
    .step = step,
    .step_backward = step_backward,
    .skip = skip,
    .skip_backward = skip_backward,
    .merge = merge,
    .merge_backward = merge_backward,
    .decide = decide,
    .decide_backward = decide_backward,
    .mean_rows = mean_rows,
    .scale_column = scale_column,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .linear_groups = linear_groups,
    .linear_groups_backward = linear_groups_backward,
    .spread = spread,
    .move = move,
    .collect = collect,
    .swiglu_rows = swiglu_rows,
    .swiglu_rows_backward = swiglu_rows_backward,
    .add = add,
    .axpby = axpby,
    .copy = copy,
    .narrow = narrow,
    .zero = zero,
    .gather = gather,
    .columns = columns,
    .columns_backward = columns_backward,
    .dropout = dropout,
    .linear_xent = linear_xent,
    .linear_distill = linear_distill,
    .align = align,
    .adamw = adamw,
    .momentum = momentum,
    .sumsq = sumsq,
    .normalise = normalise,
    .sumsqs = sumsqs,
    .sumsqs_there = sumsqs_there,
};
