/* choices.h: which of some continuations of a context a model finds the likeliest, by the rules of EleutherAI's
 * lm-evaluation-harness (lm_eval/api/model.py, models/huggingface.py, api/task.py; checked against 0.4.13).
 *
 * A line of the data is an item: {"ctx": TEXT, "cont": [TEXT, ...], "gold": NUMBER}.
 *   Ids      White space at the end of ctx belongs to the continuation. With c = the number of ids of ctx, the ids of
 *            the continuation are those of ctx + continuation behind the first c, whatever the ids before them are; the
 *            context's are those of ctx alone. Both come with what the tokenizer's template puts around a text, unless
 *            the text begins with the prefix token's name. Without ctx the context is the prefix token (the tokenizer's
 *            beginning-of-text, else its end-of-text), which a continuation that begins with it brings along itself.
 *   Window   Of context and continuation the last `context` + 1 ids count.
 *   ll       sum over the continuation's ids of log softmax(logits)[id], nats, in double.
 *   choice   the first of the largest ll; choice_norm of the largest ll / characters of the continuation without the
 *            one blank that it may begin with. acc, acc_norm: the part of the items where it is gold; their standard
 *            error is the sample deviation / sqrt(n).
 * A context is computed once for the continuations that follow each other and see the same of it. */
#pragma once
#include "engine.h"

typedef struct {
    const char *model, *data;
    int64_t context, limit; /* 0: the model's positions; all items */
    int batch, chunk;       /* contexts, then continuations, at the same time; rows of a pass over the cache */
    bool items;             /* the JSON has what each continuation got */
} Choices;
/* EXIT_INPUT: a line that is not such an item, a continuation without ids of its own or with more than `context`; the
 * message names file and line. */
bool eval_choices(const Choices *, const Cli *, Err *);
