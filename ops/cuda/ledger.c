/* ledger.c: the ops that the CUDA backend does not have yet, each with its reason, and those whose kernels are right
 * but known to be slow. The tests hold the table to it: an entry is NULL if and only if it is listed as missing. */
#include "ledger.h"

#define MISSING(op, why) \
    { #op, offsetof(Ops, op), why }
static const CudaLedger missing[] = {
    {NULL, 0, NULL},
};
#define SLOW(op, why) \
    { #op, offsetof(Ops, op), why }
static const CudaLedger slow[] = {
    SLOW(recur,
         "f32, keys wider than 128 and sequences shorter than a chunk go row after row; by chunks in bf16 operands go "
         "through memory, 3 times the op's own bytes (4 times those of rows in bf16), and few heads of long sequences "
         "leave processors idle"),
    SLOW(recur_backward,
         "as recur; row after row, states of rows go through device memory, one block walks a head of a "
         "sequence; by chunks all is made again, and a decay per head is taken for one per channel"),
    SLOW(
        add,
        "a pass of its own, whose sum the norm behind it reads again: before LayerNorm and layers that are recomputed, "
        "inside blocks whose branches are parallel, in validation and a teacher's passes"),
    SLOW(rope, "a pass of its own behind the projection, as is rmsnorm_rope"),
    SLOW(mean_rows, "makes what a stage of training or a model keeps the same in every pass"),
    SLOW(merge, "without a window one thread to a channel walks through all rows; with one, members are met twice"),
    SLOW(merge_backward, "as merge"),
    SLOW(linear,
         "in bf16 a matrix whose rows are no multiple of eight numbers is rounded again for every product, and so "
         "are such rows; of those in bf16 results come by way of f32"),
    SLOW(linear_backward, "as linear"),
    SLOW(linear_many, "one product per matrix; rows in f32 are packed once for all"),
    SLOW(linear_many_backward, "as linear_many"),
    SLOW(linear_heads, "one product per head; a batched one would launch once; bf16 is widened and multiplied in f32"),
    SLOW(linear_groups,
         "one product per group, whose rows the host counts: such passes are not recorded; else as linear"),
    SLOW(linear_groups_backward, "as linear_groups"),
    SLOW(linear_xent, "hits of a validation are waited for; logits are f32 in memory, 268 MB at once and half as much "
                      "of their gradient in bf16"),
    SLOW(skip_backward, "the factors' gradient has one block to a head"),
    SLOW(attend, "f32, and keys or values wider than 256, on the plain units; in bf16 a warp has 16 rows, so that each "
                 "tile is read from shared memory by all four; rows in f32, or of no multiple of eight numbers, are "
                 "packed first, for cuDNN, too, whose results are then widened"),
    SLOW(attend_backward, "as attend, and scores are made twice; once more for each 128 columns beyond the first"),
    SLOW(attend_lanes, "f32, rows of no multiple of eight numbers or wider than 256 (a latent 576) on the plain units, "
                       "where keys are not read ahead; prefixes that sequences share are read for each"),
    SLOW(sumsq, "waits for the result, of each tensor before a checkpoint"),
    SLOW(sumsqs, "waits for the gradient's norm, once a step, where the host decides whether it is taken"),
    SLOW(normalise, "a matrix at a time"),
    {NULL, 0, NULL},
};
const CudaLedger *cuda_missing(void) { return missing; }
const CudaLedger *cuda_slow(void) { return slow; }
