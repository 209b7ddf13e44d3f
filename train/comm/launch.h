/* launch.h: starts N processes of this program on this machine as ranks of one run, once, and waits for them. The
 * command `launch` calls it for every start.
 *
 * Each gets KVSMITH_RANK, _WORLD, _RESTART, _JOB, _FD (memory to share) and _DEADLINE_MS, and no other launcher's
 * variables. Rank 0 has this process's stdout and stderr; the others' output goes to stderr line by line after the
 * rank's name, and identical error lines are printed once. The signals of signals.h are passed on to every rank; the
 * ranks are process groups of their own, so that a terminal does not send them, too. A third SIGINT or SIGTERM kills
 * them. The first rank that fails is marked in the shared memory, so the others end at once, even if it never got that
 * far; they have the deadline to do so. A stopped rank is then killed at once, as are ranks left after the deadline. If
 * this process dies, the system kills them. */
#pragma once
#include "model/cli.h"

typedef struct {
    int ranks, restart;
    double deadline;
    char **words; /* of the command, NULL-ended */
    /* Results: */
    int status;       /* 0; 2 if any rank exits with it; 1; 130 */
    bool interrupted; /* a signal was passed on */
    bool keeps_pipe;  /* SIGPIPE was ignored before, and stays so for the ranks */
    char why[200];    /* "rank 2 (process 4711) was killed by signal 9 (Killed)" */
} Launch;

/* Starts them and waits until all have ended. False: they could not be started. */
bool launch_run(Launch *, Err *);
/* Number of ranks to start if none is given: one for each of `gpus` if the command computes there, by its settings and
 * options, otherwise one for each of `procs`. spec: of the command; word: "train", CONFIG.yaml, ... */
int launch_default(const CliSpec *spec, int nword, char *const word[], int gpus, int procs);
