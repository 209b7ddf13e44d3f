/* compare_child.h: this program as a child process: a run has a process's memory for itself, and is killed or
 * interrupted as any. Private to infer/. */
#pragma once
#include <sys/types.h>
#include "../ops/base.h"

typedef struct {
    pid_t pid;
    int out, err; /* its stdout, a pipe; its stderr, a file in memory */
} Child;

/* Start `kvsmith argv[1] argv[2] ..` (argv ends with NULL). It is alone in its process group, since Ctrl-C shall reach
 * it once, through us; and it is told when we die. */
bool child_start(Child *, char *const argv[], Err *);
/* Show every line that it prints, of any length, until it ends; hand our signals on. Returns waitpid's status. */
typedef void ChildLine(void *ctx, const char *line);
int child_follow(Child *, ChildLine *, void *ctx);
/* Its one line on stderr without the program's name. Once, after child_follow. */
void child_said(Child *, char msg[301]);
/* All three: its stdout, malloc'ed, when it ends with status 0. *status: 0, or 130 when a signal came (NULL is
 * returned and `e` is as it was). NULL: it failed, by its own message and status. */
char *child_output(char *const argv[], int *status, Err *);
