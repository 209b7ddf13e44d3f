/* eval_ppl.h: perplexity of a text, in all and by position, and how far a compressed cache is from a dense one on it.
 * The command `eval` calls it. */
#pragma once
#include "infer/engine.h"

typedef struct {
    const char *model, *data, *separator;
    int64_t context, stride, batch, chunk; /* context 0: the model's positions; stride 0: the context */
    int64_t buckets;                       /* equal parts of the context, each with its own figures; 0, 1: none */
    bool bytes;                            /* the text may be any bytes */
    bool dense;                            /* compare the cache with a dense one */
} EvalPpl;
/* Prints perplexity, nll (mean per token, nats), bits per byte; of each bucket too: tokens by how many inputs of their
 * window come before; and KL(dense || this) and agreement of the likeliest token. EXIT_INPUT: a text that cannot be
 * read, a policy that waits for the end of a prompt. */
bool eval_ppl(const EvalPpl *, const Cli *, Err *);
