/* dist.h: what the suites about several ranks share: short trainings of the shipped tiny settings on ranks that are
 * threads. */
#pragma once
#include "train/comm/comm_threads.h"
#include "train/trainer.h"
#include "check.h"

enum { DIST_STEPS = 50, DIST_RANKS = 8, DIST_OVER = 12 };
/* One run. over: key=value, NULL-ended; what every run is given besides: a text of its own, rows of 16, f32. */
typedef struct {
    const char *config;
    int stage_of_run; /* of settings with stages */
    int steps;
    const char *over[DIST_OVER];
    const char *from, *to;                            /* checkpoint directories to begin from, to end with, or NULL */
    bool (*each)(Trainer *, int step, void *, Err *); /* called after every step; may be NULL */
    void *ctx;
} DistJob;
typedef struct {
    size_t n;
    real *w; /* all weights, one tensor after the other */
    double loss[DIST_STEPS], norm[DIST_STEPS], val;
    Regions mapped, peaks;
    uint64_t log, calls;
    size_t sent; /* by the steps alone */
} DistRun;

/* The run on W ranks, W = 1: alone. run (W). False with each rank's line in e (W). */
bool dist_try(const DistJob *, int W, const CommFault *, int faults, DistRun *run, Err *e);
/* The same, and it must go well. */
void dist_train(const DistJob *, int W, DistRun *run);
void dist_free(int W, DistRun *);
/* Weights, losses, norms and validation are the same bits. */
void dist_same_run(const char *what, const DistJob *, const DistRun *got, const DistRun *want);
/* Settings as the runs have them, for the caller's own ends. */
void dist_config(Config *, const DistJob *);
