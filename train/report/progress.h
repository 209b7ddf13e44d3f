/* progress.h: prints the progress of a run: a live line on a terminal, plain lines elsewhere, nothing with -q. The loop
 * calls it. It prints to stdout, or to stderr with --json, where stdout has one JSON object only. */
#pragma once
#include "model/cli.h"

typedef struct {
    FILE *out;
    bool quiet, live, open; /* open: a live line is unfinished */
    int64_t first, total;   /* steps: where this process began, where it ends */
    double start, max_seconds, shown;
} Progress;

typedef struct {
    int64_t step;
    double loss, lr, grad_norm, tok_s;
    double mfu;      /* below 0: unknown, above 1: the machine was busy when its peak was measured; not shown */
    double val_loss; /* shown when has_val */
    bool has_val;
    const char *stage; /* NULL: none */
    bool reports;      /* of compression: */
    double cr;
    int64_t skipped; /* steps skipped so far; 0 is not shown */
} Shown;

void progress_open(Progress *, const Cli *, int64_t first, int64_t total, double max_seconds);
/* Call after a step. `log`: print a plain line; a terminal's line is renewed at most ten times a second. */
void progress_step(Progress *, const Shown *, bool log);
/* That line. On `width` columns (0: any) fields that do not fit are left out, mfu first; the ETA stays. */
enum { PROGRESS_LINE = 1024 };
void progress_line(const Progress *, const Shown *, double eta, int width, char out[PROGRESS_LINE]);
/* A sign of life, because a first step may need minutes: micro-batch `micro` (from 0) of `of` is about to be computed.
 * The first is always printed, the others every 0.2 s on a terminal, every 10 s elsewhere. */
void progress_first(Progress *, int micro, int of);
/* v with `least` decimals, or with four significant digits if it is so small that these are more. Returns out. */
const char *progress_number(char out[32], double v, int least);
/* A line that stays. */
void progress_say(Progress *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line on stderr, even with -q: an error that does not end the run. */
void progress_warn(Progress *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Seconds left by the mean of this process's steps so far, evaluations and checkpoints included. */
double progress_eta(const Progress *, int64_t step);
void progress_close(Progress *);
