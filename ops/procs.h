/* procs.h: the processors that this process may use. device_open chooses the number of threads by it; commands that
 * start processes call procs_unbind. With OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY set, the OpenMP library binds
 * its first thread to one processor before main; processes that this thread starts would inherit that one. */
#pragma once
#include "base.h"

/* At least 1. If threads are bound: the processors that the OpenMP library places threads on; otherwise those that the
 * process was started on. */
int procs(void);
/* The threads that OMP_NUM_THREADS asks a process for, the first number of its list; 0: it is not set, or is no number
 * from 1 to 1024. */
int procs_asked(void);
/* The threads of a process that is not told how many: procs_asked, else one per processor. */
int procs_threads(void);
/* Let the calling thread, and every process that it starts or becomes by exec, run on any processor that the library
 * may use. Allocates nothing; may be called between fork and exec. */
void procs_unbind(void);
/* The environment entry "NAME=value" makes the OpenMP library bind threads. */
bool procs_variable(const char *text);
