/* procs.h: the processors that this process may use. With OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY in the
 * environment the OpenMP library binds its first thread to one of them before main, and what that thread starts would
 * inherit the one. */
#pragma once
#include "base.h"

/* At least 1: those that the process was started on, however its threads are bound since. */
int procs(void);
/* Before this program starts itself again: the calling thread may run wherever the OpenMP library may place a thread.
 * Allocates nothing; may be called between fork and exec. */
void procs_unbind(void);
/* "NAME=value" binds threads. */
bool procs_variable(const char *text);
