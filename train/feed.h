/* feed.h: where a trainer's batches come from: windows of a text, or samples of a task. */
#pragma once
#include "trainer.h"

/* Tokenizer, text, loader and the model's vocabulary of t->cfg; dry: only measured. */
bool feed_tokenizer(Trainer *, Err *);
bool feed_vocab(Trainer *, Err *);
bool feed_open_text(Trainer *, Err *);
bool feed_open_loader(Trainer *, Err *);
size_t feed_loader_bytes(const Trainer *);

/* Samples sample .. sample + b - 1 of the run into t->loader. */
bool feed_train(Trainer *, uint64_t sample, int b, Err *);
/* Rows with a target among those; the loader's batch is lost. */
int64_t feed_targets(Trainer *, uint64_t sample, int b);
/* Validation: how many windows or samples, and some of them. A task's do not depend on the run's seed, so that runs
 * with other seeds are measured by the same questions. */
uint64_t feed_val_count(const Trainer *);
bool feed_val(Trainer *, uint64_t at, int b, Err *);
/* What is mapped is still what the run began with: see stream_unchanged. A path that names another file by now is told
 * of, once. */
bool feed_unchanged(Trainer *, Err *);
