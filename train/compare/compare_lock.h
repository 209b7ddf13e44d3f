/* compare_lock.h: rows of a comparison that a process has to itself, so that several processes train one comparison.
 * Only for train/compare. */
#pragma once
#include "compare.h"

typedef struct {
    int fd[ROWS_COMPARED_MAX]; /* -1: not ours */
} RowLocks;

/* Takes the rows that `wanted` marks, all or none; makes the folder. Waits so many seconds for rows that another
 * process has. *busy: one that it still has then, -1: all are ours. The children of this process inherit the locks. A
 * signal ends the wait. False: the folder cannot be made, or its files not be locked. */
bool compare_lock(const Compare *, const bool *wanted, double seconds, RowLocks *, int *busy, Err *);
void compare_unlock(const Compare *, RowLocks *);
