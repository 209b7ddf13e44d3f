/* feed.h: where a trainer's batches come from: windows of a text or of conversations, or samples of a task. */
#pragma once
#include "trainer.h"

/* Tokenizer, text, loader and the model's vocabulary of t->cfg; dry: only measured. */
bool feed_tokenizer(Trainer *, Err *);
bool feed_vocab(Trainer *, Err *);
bool feed_open_text(Trainer *, Err *);
bool feed_open_loader(Trainer *, Err *);
/* Conversations: whether, and the same for them. */
bool feed_is_sft(const Trainer *);
bool feed_open_sft(Trainer *, Err *);
void feed_close_text(Trainer *);
/* The ids of a sample's prompt with what begins a text before them; of conversations special tokens in it are found,
 * and nothing stands before one of those. Ends: ids that end the sample, at most 2; returns how many. */
bool feed_prompt(const Trainer *, const char *text, Ids *, Err *);
int feed_ends(const Trainer *, int end[2]);
/* Their template as Jinja, malloc'ed; NULL: no conversations. */
char *feed_jinja(const Trainer *);
/* What became of the conversations, as a line of progress; and that checkpoints get another chat template. */
void feed_say(Trainer *);
/* How often `samples` samples read all that there is to train on. */
typedef struct {
    double passes, tokens; /* passes 0: a task makes its own samples */
    size_t bytes;          /* of text; 0: not only text, or conversations */
    bool about;            /* a dry trainer's are estimated */
    bool most;             /* the run ends by time, maybe long before */
} Passes;
enum { PASSES_MANY = 8 }; /* more are said to be too many */
bool feed_passes(const Trainer *, int64_t samples, Passes *, Err *);
/* "3.8 passes over 2.16 million tokens (2.4 million bytes of text)" */
void feed_passes_say(const Passes *, char say[160]);
/* On stderr: what is probably not meant: many passes, a vocabulary far larger than the tokenizer's. */
void feed_warn(const Trainer *, const Passes *);
bool feed_validates(const Trainer *); /* there is something to validate on */
size_t feed_loader_bytes(const Trainer *);

/* Samples sample .. sample + b - 1 of the run into t->loader. */
bool feed_train(Trainer *, uint64_t sample, int b, Err *);
/* Samples that are one pass over the data; 0: a task, whose samples never end. */
uint64_t feed_windows(const Trainer *);
/* Rows with a target among those; the loader's batch is lost. */
int64_t feed_targets(Trainer *, uint64_t sample, int b);
/* Validation: how many windows or samples, and some of them. A task's do not depend on the run's seed, so that runs
 * with other seeds are measured by the same questions. */
uint64_t feed_val_count(const Trainer *);
bool feed_val(Trainer *, uint64_t at, int b, Err *);
/* What is mapped is still what the run began with: see stream_unchanged. A path that names another file by now is told
 * of, once. */
bool feed_unchanged(Trainer *, Err *);
