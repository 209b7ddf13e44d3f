/* loader.h: fills the batch of a pass with tokens. Training and validation call it for every micro-batch. It is a pure
 * function of (tokens, seed, sample number) without state. So a run resumes from its step alone, and neither
 * micro-batches nor ranks change what is read.
 *
 * A sample is a window of seq_len tokens, with the seq_len tokens that follow each of them as targets. A part of n
 * tokens has
 *     W = floor((n - 1) / seq_len)
 * windows to train on; window w begins at token w seq_len, and up to seq_len tokens at the end stay unused.
 * - Without weights, the windows of all parts (W in all) are numbered one part after the other. Sample s, counted over
 *   the whole run from 0, reads in epoch s / W the window rng_permute(key(seed, epoch), s mod W, W). So each epoch
 *   reads every window once, in another order.
 * - With weights, blend.h says that sample s is sample k of part i. The part's windows are permuted in the same way by
 *   k, with a key of seed, epoch and i.
 * - With a task (task.h), sample s is the task's sample of that number, one document of T rows. */
#pragma once
#include "ops/run.h"
#include "blend.h"
#include "sft.h"
#include "task.h"

typedef struct {
    Batch batch;          /* of the last fill; the loader owns its arrays */
    const int *tok, *tgt; /* (batch.N) input ids and the ids to predict; in a task -1 for rows without a question */
    int seq_len, max_samples;
    const TaskCfg *task; /* NULL: windows of text */
    void *work;          /* the task's */
    Arena mem;
} Loader;

/* Take the arrays for max_samples windows of seq_len, once. EXIT_RUNTIME: out of memory. poison: see arena.h. */
bool loader_open(Loader *, int max_samples, int seq_len, bool poison, Err *);
void loader_close(Loader *);
size_t loader_bytes(int max_samples, int seq_len); /* the bytes that loader_open takes */

/* The same for samples of a task. The settings must outlive the loader. */
bool loader_open_task(Loader *, const TaskCfg *, int max_samples, bool poison, Err *);
size_t loader_bytes_task(const TaskCfg *, int max_samples);
/* Fill with samples sample .. sample + b - 1 of a stream of the task; batch.id is the sample's number. */
void loader_task(Loader *, TaskStream, uint64_t seed, uint64_t sample, int b);
/* The number of targets of those samples. It overwrites the batch, and max_samples does not bound b. */
int64_t loader_task_targets(Loader *, TaskStream, uint64_t seed, uint64_t sample, int b);

/* The windows of one epoch: W above, over all parts. */
uint64_t loader_windows(const Mix *, int seq_len);

/* Fill with samples sample .. sample + b - 1 of a run with this seed. EXIT_INPUT: an id outside the vocabulary.
 * - 1 <= b <= max_samples, and every part must have a window.
 * - A sample is one sequence of the batch; batch.id is its number.
 * - A document begins at the sample's first row, also if that is in the middle of a document, and at every row whose
 *   token is end-of-text. In a set with an index it also begins at every row where the index begins a document, unless
 *   end-of-text is right before it. pos counts from there. */
bool loader_train(Loader *, const Mix *, int eot, uint64_t seed, uint64_t sample, int b, Err *);

/* Validation reads all disjoint windows in order, part by part, so every token of a part but the first is predicted
 * once. The last window of a part may be shorter. eval_tokens > 0: only that many predictions, the first ones of every
 * part, in proportion to the parts' sizes. */
uint64_t loader_val_windows(const Mix *, int seq_len, int64_t eval_tokens);
/* Fill with windows window .. window + b - 1, within loader_val_windows; batch.id is the window's number. Rows as
 * above. */
bool loader_val(Loader *, const Mix *, int eot, int64_t eval_tokens, uint64_t window, int b, Err *);

/* The same for conversations (sft.h), whose windows are packed already. batch.id is the sample's number, in validation
 * the window's; tgt is -1 for rows that are not learned. A document begins where a conversation does. */
void loader_sft(Loader *, const Sft *, uint64_t seed, uint64_t sample, int b);
int64_t loader_sft_targets(const Sft *, uint64_t seed, uint64_t sample, int b); /* the targets of those samples */
/* The number of windows to validate on: the first ones that have eval_tokens rows together; 0: all. */
uint64_t loader_sft_val_windows(const Sft *, int64_t eval_tokens);
void loader_sft_val(Loader *, const Sft *, uint64_t window, int b);
