/* run_dir.h: the run folder: locks it, names its checkpoints and links, and decides which checkpoints to keep.
 * Training, the saver and the journals call it.
 *
 *   RUN/config.yaml     resolved settings             RUN/lock          held by flock while a process trains
 *   RUN/step-000500/    a complete checkpoint         RUN/last, best    links to checkpoints, replaced whole
 *   RUN/metrics.jsonl, RUN/samples.txt                RUN/.tmp-*        unfinished; removed by the next owner
 *   RUN/run.jsonl      every start: provenance.h
 *
 * A name step-* appears by one rename after everything in it is on disk, and disappears by one rename before anything
 * in it is removed; so a visible checkpoint is complete, wherever the process is killed. */
#pragma once
#include "ops/base.h"

typedef struct {
    char *path;
    int fd, lock; /* descriptors of the folder and of its lock file */
    int made;     /* folders at the end of `path` that this process created */
    bool used;    /* something was stored: run_dir_close keeps the folder */
} RunDir;

/* The checkpoints to keep: the keep_last newest (0: all) and, with keep_best, that of step best (-1: none yet). */
typedef struct {
    int keep_last;
    bool keep_best;
    int64_t best;
} Keep;

/* Makes the folder if needed, locks it and removes what a killed owner left unfinished. EXIT_INPUT: another process
 * holds the lock, or the folder has a run (config.yaml or step-*) and resume is false. */
bool run_dir_open(RunDir *, const char *path, bool resume, Err *);
/* Unlocks; removes folders that were made but never used. */
void run_dir_close(RunDir *);
char *run_dir_file(const RunDir *, const char *name); /* malloc'ed RUN/name */
char *run_dir_step(const RunDir *, int64_t step);     /* malloc'ed RUN/step-000500 */

/* The highest step-* directory with a trainer/state.json; -1: none. */
bool run_dir_newest(const RunDir *, int64_t *step, Err *);
/* Restarts from `step`: later checkpoints belong to an abandoned future and are renamed to old-step-*, never removed;
 * links and pruning as after publishing. from_here: the run continues from RUN's own checkpoint of `step`; otherwise it
 * starts from nothing or from elsewhere, and a checkpoint of that step is renamed, too. */
bool run_dir_rewind(RunDir *, int64_t step, bool from_here, Keep, Err *);

/* Makes an empty directory RUN/.tmp-step-000500, malloc'ed path; NULL with `e` set on failure. */
char *run_dir_begin(RunDir *, int64_t step, Err *);
/* Syncs everything in the directory made by begin, renames it to step-000500, moves the links, prunes. Before the
 * rename a failure removes the directory and leaves earlier checkpoints unchanged; after it the new checkpoint is
 * complete and stays, and links may still name the one before. */
bool run_dir_publish(RunDir *, int64_t step, Keep, Err *);
void run_dir_abandon(RunDir *, int64_t step);           /* remove what begin made */
char *run_dir_unfinished(const RunDir *, int64_t step); /* its path, malloc'ed */
/* False with `e` clear: it does not exist. */
bool run_dir_has_step(const RunDir *, int64_t step, Err *);
/* A free name for keeping RUN/name: old-NAME, old-2-NAME, ... malloc'ed; NULL with `e` set. */
char *run_dir_aside(const RunDir *, const char *name, Err *);

/* Writes a file of RUN through a temporary name, syncs it, renames it, syncs the folder. */
bool run_dir_write(RunDir *, const char *name, const char *text, Err *);
