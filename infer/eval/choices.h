/* choices.h: finds which of several continuations of a context a model considers likeliest, by the rules of
 * EleutherAI's lm-evaluation-harness (lm_eval/api/model.py, models/huggingface.py, api/task.py; checked against
 * 0.4.13). The command `eval choices` calls it.
 *
 * A line of the data is an item: {"ctx": TEXT, "cont": [TEXT, ...], "gold": NUMBER}.
 *   Ids      White space at the end of ctx belongs to the continuation. With c = the number of ids of ctx, the ids of
 *            the continuation are those of ctx + continuation after the first c, whatever the ids before them are; the
 *            context's are those of ctx alone. Both have what the tokenizer's template puts around a text, unless
 *            the text begins with the prefix token's name. An empty ctx becomes the prefix token (the tokenizer's
 *            beginning-of-text, else its end-of-text), which a continuation that begins with it already contains.
 *   Window   Only the last `context` + 1 ids of context and continuation count.
 *   ll       sum over the continuation's ids of log softmax(logits)[id], nats, in double.
 *   choice   the first of the largest ll; choice_norm of the largest ll / characters of the continuation without the
 *            one blank that it may begin with. acc, acc_norm: the fraction of items for which it is gold; their
 *            standard error is the sample deviation / sqrt(n).
 * A context is computed once for consecutive continuations that see the same of it. */
#pragma once
#include "infer/engine.h"

typedef struct {
    const char *model, *data;
    int64_t context, limit; /* 0: the model's positions; all items */
    int batch, chunk;       /* contexts, then continuations, at the same time; rows of a pass over the cache */
    bool items;             /* the JSON has the result of each continuation */
} Choices;
/* EXIT_INPUT: a line that is not such an item, a continuation without ids of its own or with more than `context`; the
 * message names file and line. */
bool eval_choices(const Choices *, const Cli *, Err *);
