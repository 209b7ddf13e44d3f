/* procs.h: the processors that this process may use. With OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY in the
 * environment the OpenMP library binds its first thread to one of them before main, and what that thread starts would
 * inherit the one. */
#pragma once
#include "base.h"

/* At least 1: those that the OpenMP library places threads on; of threads that are not bound those that the process was
 * started on. */
int procs(void);
/* The calling thread, and what it starts or becomes by exec, may run wherever the library may place a thread. Allocates
 * nothing; may be called between fork and exec. */
void procs_unbind(void);
/* "NAME=value" binds threads. */
bool procs_variable(const char *text);
