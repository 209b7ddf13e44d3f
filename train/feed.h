/* feed.h: a feeder makes the batches of a trainer: windows of a text, conversations, or samples of a task. The trainer
 * chooses one when it opens a stage; steps and validations call it. */
#pragma once
#include "trainer.h"

/* One of the three, chosen once for a stage: Trainer.feeder. A step calls `targets` and `train`, a validation calls
 * `val_count` and `val`. */
struct Feeder {
    bool (*open)(Trainer *, Err *); /* reads the training data; dry: only its size */
    /* Puts samples sample .. sample + b - 1 of the run into t->loader. */
    bool (*train)(Trainer *, uint64_t sample, int b, Err *);
    /* Returns how many rows of those have a target; overwrites the loader's batch. */
    int64_t (*targets)(Trainer *, uint64_t sample, int b);
    /* Samples in one pass over the data; 0: a task, whose samples never end. */
    uint64_t (*windows)(const Trainer *);
    /* Validation: the number of windows or samples, and some of them. A task's do not depend on the run's seed, so runs
     * with different seeds are measured on the same questions. */
    uint64_t (*val_count)(const Trainer *);
    bool (*val)(Trainer *, uint64_t at, int b, Err *);
};
const Feeder *feed_by(const DataCfg *);
extern const Feeder feed_sft; /* feed_sft.c */

/* Opens tokenizer and loader and sets the model's vocabulary in t->cfg; dry: only measures. */
bool feed_tokenizer(Trainer *, Err *);
bool feed_vocab(Trainer *, Err *);
bool feed_open_loader(Trainer *, Err *);
bool feed_is_sft(const Trainer *); /* conversations */
void feed_close_text(Trainer *);
/* Returns the ids of a sample's prompt, after the tokens that begin a text. In a run on conversations the prompt may
 * contain special tokens, and nothing comes before a leading one. Ends: ids that end the sample, at most 2; the result
 * is their number. */
bool feed_prompt(const Trainer *, const char *text, Ids *, Err *);
int feed_ends(const Trainer *, int end[2]);
/* Their template as Jinja, malloc'ed; NULL: not a run on conversations. */
char *feed_jinja(const Trainer *);
/* Prints, as a line of progress, how many conversations were used, cut or dropped, and that checkpoints get another
 * chat template. */
void feed_say(Trainer *);
/* How often `samples` samples read the whole training data. */
typedef struct {
    double passes, tokens; /* passes 0: a task makes its own samples */
    size_t bytes;          /* of text; 0: not only text, or conversations */
    bool about;            /* a dry trainer's are estimated */
    bool most;             /* the run ends by time, maybe long before */
} Passes;
enum { PASSES_MANY = 8 }; /* more passes than this cause a warning */
bool feed_passes(const Trainer *, int64_t samples, Passes *, Err *);
/* "3.8 passes over 2.16 million tokens (2.4 million bytes of text)" */
void feed_passes_say(const Passes *, char say[160]);
/* Warns on stderr of settings that are probably a mistake: many passes, a vocabulary far larger than the
 * tokenizer's. */
void feed_warn(const Trainer *, const Passes *);
bool feed_validates(const Trainer *); /* there is something to validate on */
size_t feed_loader_bytes(const Trainer *);

/* Checks that mapped files are unchanged since the run began: see stream_unchanged. Warns once if a path was
 * replaced. */
bool feed_unchanged(Trainer *, Err *);
