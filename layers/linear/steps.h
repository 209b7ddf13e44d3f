/* steps.h: several rows of the recurrence per token, for recurrent mixers whose query heads share a state, or which
 * write several keys and values per token. line.c and kda.c call these in every pass.
 *
 * The first `householders` steps of a token write, the last of them and all after it read: one for each query head of
 * a key head. Steps that only read have key, value and beta 0, and no decay. With one step per token nothing is
 * copied. */
#pragma once
#include "ops/ops.h"

typedef struct {
    int kv_heads, group, householders; /* group: query heads of a key head */
} Steps;
static inline int steps_each(Steps c) { return c.householders + c.group - 1; }

/* The pass as the recurrence sees it, with steps_each rows per token; the pass itself where that is one. Its lists lie
 * in r->host, which the caller gives back. */
typedef struct {
    Run run;
    Batch batch;
} Stepped;
Run *steps_run(Run *, Steps, Stepped *);

/* x (N,..) as the rows of steps, (N steps,heads,width): step 0 and those after it have what lies in x, others zero. And
 * the gradient of x from that of the result. */
Tensor steps_placed(Run *, Steps, Tensor x, int heads, int width);
Tensor steps_placed_backward(Run *, Steps, Tensor d, Tensor x);
/* Copy between the heads of a token and the steps that read them: head (k group + j) `width` wide is part k of step
 * householders - 1 + j. out: from steps to heads. */
void steps_reads(Run *, Steps, Tensor steps, Tensor heads, int width, bool out);
/* x (N,heads,width) as what the steps read, zero in those that do not. */
Tensor steps_read_by(Run *, Steps, Tensor x, int states, int width);
