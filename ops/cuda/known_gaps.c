/* known_gaps.c: the ops whose CUDA kernels are right but known to be slow. (Every op has one: an op without
 * cuda_op_NAME does not link.) */
#include "known_gaps.h"

#define SLOW(op, why) \
    { #op, offsetof(Ops, op), why }
static const CudaGap slow[] = {
    SLOW(recur,
         "f32, keys wider than 128, erase keys (Gated DeltaNet-2, Comba) and sequences shorter than a chunk are "
         "computed row by row; in chunks, bf16 operands pass through memory, 3 times the op's own bytes (4 times those "
         "of bf16 rows), and few heads of long sequences leave SMs idle"),
    SLOW(recur_backward,
         "as recur; row by row, states of rows pass through device memory and one block handles a head of a sequence; "
         "in chunks, everything is recomputed, and a decay per head is treated as one per channel"),
    SLOW(add, "a separate kernel, whose sum the norm after it reads again: before LayerNorm and recomputed layers, "
              "inside parallel blocks, in validation and in a teacher's passes"),
    SLOW(rope, "a separate kernel after the projection, as is rmsnorm_rope"),
    SLOW(mean_rows, "recomputes in every pass what does not change within a training stage or a model"),
    SLOW(merge, "without a window one thread per channel visits all rows; with a window, members are visited twice"),
    SLOW(merge_backward, "as merge"),
    SLOW(linear, "in bf16, matrices and rows whose width is not a multiple of eight elements are rounded again for "
                 "every product; results of such bf16 rows go through f32"),
    SLOW(linear_backward, "as linear"),
    SLOW(linear_many, "one product per matrix; rows in f32 are packed once for all"),
    SLOW(linear_many_backward, "as linear_many"),
    SLOW(linear_heads,
         "one product per head; a batched one would launch once; bf16 is converted and multiplied in f32"),
    SLOW(linear_groups,
         "one product per group, whose rows the host counts, so such passes are not captured; else as linear"),
    SLOW(linear_groups_backward, "as linear_groups"),
    SLOW(linear_xent, "the host waits for the hits of a validation; logits are f32 in memory, 268 MB at once, and "
                      "their gradient in bf16 half as much"),
    SLOW(skip_backward, "the factors' gradient has one block per head"),
    SLOW(attend_sink_backward, "as skip_backward"),
    SLOW(attend, "f32, and keys or values wider than 256, without tensor cores; in bf16 a warp has 16 rows, so all "
                 "four warps read each tile from shared memory; f32 rows, or rows whose width is not a multiple of "
                 "eight elements, are packed first, also for cuDNN, whose results are then converted to f32; scores "
                 "with a cap never use tensor cores"),
    SLOW(attend_backward, "as attend, and scores are computed twice; once more for each 128 columns beyond the first"),
    SLOW(attend_lanes,
         "f32 rows, rows in codes (int8, fp8, int4 and below), rows whose width is not a multiple of eight elements or "
         "above 256 (a latent: 576) use no "
         "tensor cores, and their keys are not prefetched; prefixes that sequences share are read for each sequence"),
    SLOW(sumsq, "the host waits for the result, of each tensor before a checkpoint"),
    SLOW(sumsqs, "the host waits for the gradient's norm, once a step, if it decides whether to skip the step"),
    SLOW(normalise, "a matrix at a time"),
    {NULL, 0, NULL},
};
const CudaGap *cuda_slow(void) { return slow; }
