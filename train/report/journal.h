/* journal.h: a journal is a text file of records, one per step, such as metrics.jsonl and samples.txt. The loop appends
 * to it; a resumed run cuts it back, so that each step is in it once.
 *
 * A record begins with a line of `mark` and the step's digits; lines without the mark belong to the record before. An
 * incomplete last line of a killed process is never kept. */
#pragma once
#include "train/save/run_dir.h"

typedef struct {
    FILE *f; /* NULL: not wanted */
    char *path;
} Journal;

/* Opens RUN/name for appending after cutting it at the first record beyond `step` or at the first torn line. step -1:
 * from the beginning. Makes a missing file if `wanted`; cuts an existing one in any case. If the cut removes more than
 * later records and a torn last line, or everything (there is no checkpoint), all of the file is kept first as
 * RUN/old-NAME, with a note on stderr. */
bool journal_open(Journal *, const RunDir *, const char *name, const char *mark, int64_t step, bool wanted, Err *);
/* The same for `name` in the folder `at` (`path`: for messages), keeping the first `keep` bytes. */
bool journal_append(Journal *, int at, const char *name, const char *path, size_t keep, Err *);
/* Append complete records, passed to the system at once. */
bool journal_put(Journal *, const char *text, size_t n, Err *);
bool journal_sync(Journal *, Err *); /* sync to disk: before a checkpoint whose step the records have reached */
void journal_close(Journal *);

/* One line of metrics.jsonl, mark METRICS_MARK. Values are printed to 10 digits; those of the clock come last (tok_s,
 * mfu, elapsed), so that `sed 's/,"tok_s":.*$/}/'` leaves the part that a repeated run repeats. mfu < 0 prints null. */
#define METRICS_MARK "{\"step\":"
/* The parts of the loss of a step with a teacher, means over targets without their weights; the names of
 * teacher.losses. A part without weight is not computed and not printed. */
typedef struct {
    bool teacher, has_kl, has_rkl, has_attention, has_hidden;
    double lm, kl, rkl, attention, hidden;
} TrainLosses;
typedef struct {
    int64_t step, tokens; /* tokens: read since step 0, whether they have a target or not */
    double loss, lr, grad_norm, tok_s, mfu;
    double elapsed;     /* seconds since the run began, resumed parts included */
    bool has_epoch;     /* the data are finite: */
    double epoch;       /* passes over them so far */
    TrainLosses parts;  /* with a teacher `loss` is their weighted sum, and they are printed after it */
    const char *stage;  /* NULL: not shown */
    bool reports;       /* some mixer reported its compression: */
    double cr, cr_loss; /* see compression.h; loss + cr_loss is minimised. Infinite prints null. */
    bool skipped;       /* the step was skipped, see skip.h: */
    double loss_z, norm_z;
    int64_t nskipped; /* so far; not printed */
} TrainRecord;
typedef struct {
    int64_t step, tokens; /* tokens: targets that the loss is the mean of */
    double loss;
    const char *stage;
    bool reports;
    double cr;
    bool task;      /* the following are known: */
    double acc;     /* fraction of targets that greedy decoding gets right */
    double acc_all; /* fraction of samples with every target right */
} ValRecord;
bool journal_train(Journal *, const TrainRecord *, Err *);
bool journal_val(Journal *, const ValRecord *, Err *);

/* One sample of samples.txt, mark SAMPLES_MARK: a head line, then the text, every line indented by two blanks so that
 * no text can look like a head; control characters are shown as \xNN, what is not UTF-8 as U+FFFD. */
#define SAMPLES_MARK "== step "
bool journal_sample(Journal *, int64_t step, const char *prompt, const char *text, size_t n, Err *);
