/* journal.h: a text file of records, each of a step, that a resumed run cuts back, so that each step stands once.
 *
 * A record begins with a line of `mark` and the step's digits; lines without the mark belong to the record before. What
 * a killed process left of a last line is never kept. */
#pragma once
#include "run_dir.h"

typedef struct {
    FILE *f; /* NULL: not wanted */
    char *path;
} Journal;

/* Open RUN/name for appending after cutting it at the first record beyond `step` or at the first torn line. step -1:
 * from the beginning. A file that is not there is made if `wanted`; one that is there is cut in any case. Where the cut
 * takes more than later records and a torn last line, all of the file is kept first as RUN/old-NAME, with a note on
 * stderr. */
bool journal_open(Journal *, const RunDir *, const char *name, const char *mark, int64_t step, bool wanted, Err *);
/* The same of `name` in the folder `at` (`path`: for messages), keeping the first `keep` bytes. */
bool journal_append(Journal *, int at, const char *name, const char *path, size_t keep, Err *);
/* Append; whole records at a time, handed to the system at once. */
bool journal_put(Journal *, const char *text, size_t n, Err *);
bool journal_sync(Journal *, Err *); /* to disk: before a checkpoint whose step the records reach */
void journal_close(Journal *);

/* One line of metrics.jsonl, mark METRICS_MARK. Numbers are printed to 10 digits; the clock's are last (tok_s, mfu,
 * elapsed), so that `sed 's/,"tok_s":.*$/}/'` leaves what a repeated run repeats. mfu < 0 prints null. */
#define METRICS_MARK "{\"step\":"
/* The parts of the loss of a step with a teacher, means over targets without their weights; the names of
 * teacher.losses. What has no weight is not computed, and not printed. */
typedef struct {
    bool teacher, has_kl, has_rkl, has_attention, has_hidden;
    double lm, kl, rkl, attention, hidden;
} TrainLosses;
typedef struct {
    int64_t step, tokens; /* tokens: read since step 0, whether they have a target or not */
    double loss, lr, grad_norm, tok_s, mfu;
    double elapsed;     /* seconds since the run began, resumed parts added up */
    bool has_epoch;     /* the data are finite: */
    double epoch;       /* passes over them so far */
    TrainLosses parts;  /* with a teacher `loss` is their weighted sum, and they are printed behind it */
    const char *stage;  /* NULL: not shown */
    bool reports;       /* some mixer reported its compression: */
    double cr, cr_loss; /* see compression.h; what is minimised is loss + cr_loss. Infinite prints null. */
    bool skipped;       /* the step was left out, see skip.h: */
    double loss_z, norm_z;
    int64_t nskipped; /* so far; not printed */
} TrainRecord;
typedef struct {
    int64_t step, tokens; /* tokens: targets that the loss is the mean of */
    double loss;
    const char *stage;
    bool reports;
    double cr;
    bool task;      /* these are known: */
    double acc;     /* part of the targets that greedy decoding would say */
    double acc_all; /* part of the samples of which it would say all */
} ValRecord;
bool journal_train(Journal *, const TrainRecord *, Err *);
bool journal_val(Journal *, const ValRecord *, Err *);

/* One sample of samples.txt, mark SAMPLES_MARK: a head line, then the text, every line indented by two blanks so that
 * no text can look like a head; control characters are shown as \xNN, what is not UTF-8 as U+FFFD. */
#define SAMPLES_MARK "== step "
bool journal_sample(Journal *, int64_t step, const char *prompt, const char *text, size_t n, Err *);
