/* compare_child.h: runs this program as a child process. `compare` starts every training run and conversion this way,
 * so that each has its own process memory and can be killed or interrupted separately. Private to train/compare. */
#pragma once
#include <sys/types.h>
#include "ops/base.h"

typedef struct {
    pid_t pid;
    int out, err; /* its stdout, a pipe; its stderr, a file in memory */
} Child;

/* Starts `kvsmith argv[1] argv[2] ..` (argv ends with NULL). It has its own process group, since Ctrl-C shall reach it
 * once, through us; and it gets a signal when this process dies. */
bool child_start(Child *, char *const argv[], Err *);
/* Shows every line that it prints, of any length, until it ends; passes our signals on. Returns waitpid's status. */
typedef void ChildLine(void *ctx, const char *line);
int child_follow(Child *, ChildLine *, void *ctx);
/* Its one line on stderr without the program's name. Call once, after child_follow. */
void child_said(Child *, char msg[301]);
/* All three: returns its stdout, malloc'ed, if it exits with status 0. *status: 0, or 130 after a signal (returns NULL
 * and leaves `e` unchanged). NULL: it failed, with its own message and status. */
char *child_output(char *const argv[], int *status, Err *);
