/* loader.h: tokens to the batch of a pass. A pure function of (tokens, seed, sample number): nothing is remembered, so
 * a run resumes by its step alone, and neither micro-batches nor ranks change what is read.
 *
 * A sample is a window of seq_len tokens and the seq_len tokens that follow each of them. A part of n tokens has
 *     W = floor((n - 1) / seq_len)
 * windows to train on, window w beginning at token w seq_len; up to seq_len tokens at the end stay unused. Without
 * weights the windows of all parts are numbered one part after the other; sample number s, counted over the whole run
 * from 0, reads in epoch s / W (W: all of them) the window rng_permute(key(seed, epoch), s mod W, W), so each epoch
 * reads every window once, in another order. With weights blend.h says which sample k of which part i sample s is, and
 * the part's windows are so permuted by k with a key of seed, epoch and i.
 *
 * Of a task (task.h) sample s is the one of that number, one document of T rows. */
#pragma once
#include "../ops/run.h"
#include "blend.h"
#include "sft.h"
#include "task.h"

typedef struct {
    Batch batch;          /* of the last fill; its arrays are the loader's */
    const int *tok, *tgt; /* (batch.N) input ids and the ids to predict; in a task -1 where nothing is asked */
    int seq_len, max_samples;
    const TaskCfg *task; /* NULL: windows of text */
    void *work;          /* the task's */
    Arena mem;
} Loader;

/* Arrays for max_samples windows of seq_len, once. EXIT_WORLD when memory is out. poison: see arena.h. */
bool loader_open(Loader *, int max_samples, int seq_len, bool poison, Err *);
void loader_close(Loader *);
size_t loader_bytes(int max_samples, int seq_len); /* what loader_open takes, before anything is allocated */

/* The same for samples of a task, whose settings must outlive the loader. */
bool loader_open_task(Loader *, const TaskCfg *, int max_samples, bool poison, Err *);
size_t loader_bytes_task(const TaskCfg *, int max_samples);
/* Samples sample .. sample + b - 1 of a stream of the task; batch.id is the sample's number. */
void loader_task(Loader *, TaskStream, uint64_t seed, uint64_t sample, int b);
/* How many targets those have; the batch is lost. b is not bounded by max_samples. */
int64_t loader_task_targets(Loader *, TaskStream, uint64_t seed, uint64_t sample, int b);

/* Windows of one epoch: W above, of all parts. */
uint64_t loader_windows(const Mix *, int seq_len);

/* Samples sample .. sample + b - 1 of a run with this seed; 1 <= b <= max_samples, every part has a window. A sample is
 * one sequence of the batch. Its first row begins a document (the rest of a document that began earlier is one for
 * itself), as does every row whose token is end-of-text and, in a set with an index, every row at which the index says
 * that a document begins unless end-of-text stands right before it; pos counts from there. batch.id is the sample's
 * number. EXIT_INPUT: an id outside the vocabulary. */
bool loader_train(Loader *, const Mix *, int eot, uint64_t seed, uint64_t sample, int b, Err *);

/* Validation: all disjoint windows in order, part by part, so that every token of a part but the first is predicted
 * once; the last window of a part may be shorter. eval_tokens > 0: only that many predictions, the first ones of every
 * part, shared out in proportion to the parts' own. */
uint64_t loader_val_windows(const Mix *, int seq_len, int64_t eval_tokens);
/* Windows window .. window + b - 1, within loader_val_windows; batch.id is the window's number. Rows as above. */
bool loader_val(Loader *, const Mix *, int eot, int64_t eval_tokens, uint64_t window, int b, Err *);

/* The same of conversations (sft.h), whose windows are packed already. batch.id is the sample's number, in validation
 * the window's; tgt is -1 where nothing is learned. A row with which a conversation begins begins a document. */
void loader_sft(Loader *, const Sft *, uint64_t seed, uint64_t sample, int b);
int64_t loader_sft_targets(const Sft *, uint64_t seed, uint64_t sample, int b); /* of those */
/* The windows to validate on: the first ones that have eval_tokens rows together; 0: all. */
uint64_t loader_sft_val_windows(const Sft *, int64_t eval_tokens);
void loader_sft_val(Loader *, const Sft *, uint64_t window, int b);
