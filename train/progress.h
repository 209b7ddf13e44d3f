/* progress.h: what a run tells while it works: a live line on a terminal, plain lines elsewhere, nothing with -q.
 * It goes to stdout, or to stderr with --json, where stdout holds one JSON object only. */
#pragma once
#include "../model/cli.h"

typedef struct {
    FILE *out;
    bool quiet, live, open; /* open: a live line stands unfinished */
    int64_t first, total;   /* steps: where this process began, where it ends */
    double start, max_seconds, shown;
} Progress;

typedef struct {
    int64_t step;
    double loss, lr, grad_norm, tok_s;
    double val_loss; /* shown when has_val */
    bool has_val;
    const char *stage; /* NULL: none */
    bool reports;      /* of compression: */
    double cr;
    int64_t skipped; /* steps left out so far; 0 is not shown */
} Shown;

void progress_open(Progress *, const Cli *, int64_t first, int64_t total, double max_seconds);
/* A step is done. `log`: a plain line is due; a terminal's line is renewed at most ten times a second. */
void progress_step(Progress *, const Shown *, bool log);
/* A line that stays. */
void progress_say(Progress *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line on stderr, whatever is quiet: something went wrong that does not end the run. */
void progress_warn(Progress *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Seconds left by the mean of this process's steps so far, evaluations and checkpoints included. */
double progress_eta(const Progress *, int64_t step);
void progress_close(Progress *);
