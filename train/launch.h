/* launch.h: one start of N processes of this program on this machine, as ranks of one run.
 *
 * Each gets KVSMITH_RANK, _WORLD, _RESTART, _JOB, _FD (memory to share) and _DEADLINE_MS, and no other launcher's
 * variables. Rank 0 has this process's stdout and stderr; what others write goes to stderr line by line behind their
 * rank, and error lines that say the same are written once. The signals of signals.h are handed to every rank, which are
 * process groups of their own so that a terminal does not do the same; a third SIGINT or SIGTERM kills them. The first rank
 * that fails is marked in the memory that they share, so that the others end at once, even if it never came that far; they
 * have the deadline to do so. A stopped one is ended at once then, whoever is left afterwards, too.
 * When this process dies they are killed by the system. */
#pragma once
#include "../model/cli.h"

typedef struct {
    int ranks, restart;
    double deadline;
    char **words; /* of the command, NULL-ended */
    /* Results: */
    int status;       /* 0; 2 if any rank says so; 1; 130 */
    bool interrupted; /* a signal was handed on */
    bool keeps_pipe;  /* SIGPIPE was ignored before, and is for the ranks */
    char why[200];    /* "rank 2 (process 4711) was killed by signal 9 (Killed)" */
} Launch;

/* Start them and wait until all have ended. False: they could not be started. */
bool launch_run(Launch *, Err *);
/* Ranks to start where no number is given: one for each of `gpus` if the command computes there, as its settings and options
 * say, otherwise one for each of `procs`. spec: of the command; word: "train", CONFIG.yaml, ... */
int launch_default(const CliSpec *spec, int nword, char *const word[], int gpus, int procs);
