/* run_dir.h: the run folder: who may use it, its checkpoints' names and links, what is kept.
 *
 *   RUN/config.yaml     resolved settings             RUN/lock          held by flock while a process trains
 *   RUN/step-000500/    a complete checkpoint         RUN/last, best    links to checkpoints, replaced whole
 *   RUN/metrics.jsonl, RUN/samples.txt                RUN/.tmp-*        unfinished; removed by the next owner
 *   RUN/run.jsonl      every start: provenance.h
 *
 * A name step-* appears by one rename after everything in it is on disk, and disappears by one rename before anything
 * in it is removed; so a checkpoint that can be seen is whole, wherever the process is killed. */
#pragma once
#include "../ops/base.h"

typedef struct {
    char *path;
    int fd, lock; /* descriptors of the folder and of its lock file */
    int made;     /* folders at the end of `path` that this process created */
    bool used;    /* something was stored: close leaves the folder */
} RunDir;

/* Which checkpoints stay: the keep_last newest (0: all) and, when keep_best, that of step best (-1: none yet). */
typedef struct {
    int keep_last;
    bool keep_best;
    int64_t best;
} Keep;

/* Make the folder where needed, lock it and remove what a killed owner left unfinished. EXIT_INPUT: another process
 * holds the lock, or the folder holds a run (config.yaml or step-*) and resume is false. */
bool run_dir_open(RunDir *, const char *path, bool resume, Err *);
/* Unlock; folders that were made but never used are removed again. */
void run_dir_close(RunDir *);
char *run_dir_file(const RunDir *, const char *name); /* malloc'ed RUN/name */
char *run_dir_step(const RunDir *, int64_t step);     /* malloc'ed RUN/step-000500 */

/* The highest step-* directory with a trainer/state.json; -1: none. */
bool run_dir_newest(const RunDir *, int64_t *step, Err *);
/* Start over from `step`: checkpoints beyond it belong to a future that is given up and are renamed to old-step-*,
 * never removed; links and pruning as after publishing. from_here: RUN's own checkpoint of `step` is what the run goes
 * on from; otherwise it starts from nothing or from elsewhere and a checkpoint of that step goes aside too. */
bool run_dir_rewind(RunDir *, int64_t step, bool from_here, Keep, Err *);

/* An empty directory RUN/.tmp-step-000500, malloc'ed path; NULL with `e` filled on failure. */
char *run_dir_begin(RunDir *, int64_t step, Err *);
/* fsync everything in the directory made by begin, rename it to step-000500, move the links, prune. Before the
 * rename a failure removes the directory and leaves earlier checkpoints as they were; after it the new checkpoint is
 * whole and stays, and links may still name the one before. */
bool run_dir_publish(RunDir *, int64_t step, Keep, Err *);
void run_dir_abandon(RunDir *, int64_t step);           /* remove what begin made */
char *run_dir_unfinished(const RunDir *, int64_t step); /* its path, malloc'ed */
/* False with `e` clear: it has not. */
bool run_dir_has_step(const RunDir *, int64_t step, Err *);
/* A name that is free for keeping RUN/name aside: old-NAME, old-2-NAME, ... malloc'ed; NULL with `e` filled. */
char *run_dir_aside(const RunDir *, const char *name, Err *);

/* Write a file of RUN through a temporary name, fsync, rename, fsync the folder. */
bool run_dir_write(RunDir *, const char *name, const char *text, Err *);
