/* ledger.c: the ops that the CUDA backend does not have yet, each with its reason, and those whose kernels are right
 * but known to be slow. The tests hold the table to it: an entry is NULL if and only if it is listed as missing. */
#include "ledger.h"

#define MISSING(op, why) \
    { #op, offsetof(Ops, op), why }
static const CudaLedger missing[] = {
    MISSING(narrow, "comes with a cache in bf16 on the device"),
    {NULL, 0, NULL},
};
#define SLOW(op, why) \
    { #op, offsetof(Ops, op), why }
static const CudaLedger slow[] = {
    SLOW(embed_backward, "one thread to a column walks through all rows"),
    SLOW(rmsnorm_backward, "the gains' gradient has one block to 32 columns, however many rows there are"),
    SLOW(layernorm_backward, "as rmsnorm_backward"),
    SLOW(recur, "row after row; the three-kernel form by chunks is not written"),
    SLOW(recur_backward, "as recur; states of rows go through device memory, one block walks a head of a sequence"),
    SLOW(mean_rows, "makes what a stage of training or a model keeps the same in every pass"),
    SLOW(merge, "without a window one thread to a channel walks through all rows; with one, members are met twice"),
    SLOW(merge_backward, "as merge"),
    SLOW(short_conv, "every tap looks for its row"),
    SLOW(short_conv_backward, "one block to 32 channels of a tap, however many rows there are"),
    SLOW(decay_backward, "the rate's gradient has one block to a head, the bias's one to 32 channels"),
    SLOW(gated_norm_backward, "the gains' gradient has one block to 32 columns"),
    SLOW(linear_backward, "so has the bias's"),
    SLOW(linear_many, "one product per matrix"),
    SLOW(linear_many_backward, "as linear_many"),
    SLOW(linear_heads, "one product per head; a batched one would launch once"),
    SLOW(linear_groups, "one product per group"),
    SLOW(linear_xent, "hits of a validation are waited for"),
    SLOW(attend, "f32 on the plain units, not on the matrix units"),
    SLOW(attend_backward, "as attend, and scores are made twice; once more for each 128 columns beyond the first"),
    SLOW(attend_lanes, "as attend; keys are not read ahead; prefixes that sequences share are read for each"),
    SLOW(linear_distill, "a row of logits is read five times"),
    SLOW(sumsq, "waits for the result: of each of Muon's matrices, and of each tensor before a checkpoint"),
    {NULL, 0, NULL},
};
const CudaLedger *cuda_missing(void) { return missing; }
const CudaLedger *cuda_slow(void) { return slow; }
