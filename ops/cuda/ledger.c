/* ledger.c: the ops that the CUDA backend does not have yet, each with its reason, and those whose kernels are right
 * but known to be slow. The tests hold the table to it: an entry is NULL if and only if it is listed as missing. */
#include "ledger.h"

#define MISSING(op, why) \
    { #op, offsetof(Ops, op), why }
static const CudaLedger missing[] = {
    MISSING(layernorm, "its kernels are not written"),
    MISSING(layernorm_backward, "as layernorm"),
    MISSING(gelu, "its kernels are not written"),
    MISSING(gelu_backward, "as gelu"),
    MISSING(attend, "our mma.sync flash attention is to be the general path and is not written"),
    MISSING(attend_backward, "as attend"),
    MISSING(attend_lanes, "the cache lives in the host's memory; comes with the paged cache on the device"),
    MISSING(narrow, "comes with a cache in bf16 on the device"),
    MISSING(merge, "DMC's scan along lanes is not written"),
    MISSING(merge_backward, "as merge"),
    MISSING(recur, "the delta family's three-kernel form is not written"),
    MISSING(recur_backward, "as recur"),
    MISSING(short_conv, "reads documents' borders and states of the host; comes with recur"),
    MISSING(short_conv_backward, "as short_conv"),
    MISSING(decay, "comes with recur"),
    MISSING(decay_backward, "as decay"),
    MISSING(gated_norm, "comes with recur"),
    MISSING(gated_norm_backward, "as gated_norm"),
    {NULL, 0, NULL},
};
#define SLOW(op, why) \
    { #op, offsetof(Ops, op), why }
static const CudaLedger slow[] = {
    SLOW(embed_backward, "one thread to a column walks through all rows"),
    SLOW(rmsnorm_backward, "the gains' gradient has one block to 32 columns, however many rows there are"),
    SLOW(linear_backward, "so has the bias's"),
    SLOW(linear_heads, "one product per head; a batched one would launch once"),
    SLOW(linear_groups, "one product per group"),
    SLOW(linear_xent, "ids and targets are copied to the device in every call; hits are waited for"),
    SLOW(sumsq, "waits for the result"),
    {NULL, 0, NULL},
};
const CudaLedger *cuda_missing(void) { return missing; }
const CudaLedger *cuda_slow(void) { return slow; }
