/* procs.c: reads the OpenMP library's places, and lifts a thread's binding to one of them. */
#include "procs.h"
#include <omp.h>
#include <sched.h>
#include <stdlib.h>

/* The processors of all places; returns their number, 0 if threads are not bound. */
static int procs_places(cpu_set_t *set) {
    enum { MOST = 1024 };
    int ids[MOST];
    CPU_ZERO(set);
    for (int p = 0; p < omp_get_num_places(); p++) {
        int n = omp_get_place_num_procs(p);
        if (n > MOST) return 0;
        omp_get_place_proc_ids(p, ids);
        for (int i = 0; i < n; i++)
            if (ids[i] >= 0 && ids[i] < CPU_SETSIZE) CPU_SET((unsigned)ids[i], set);
    }
    return CPU_COUNT(set);
}

int procs(void) {
    cpu_set_t set;
    int n = procs_places(&set);
    return n ? n : imax(1, omp_get_num_procs());
}

int procs_asked(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;
    return n >= 1 && n <= 1024 && (!*end || *end == ',') ? (int)n : 0;
}

int procs_threads(void) {
    const int asked = procs_asked();
    return asked ? asked : procs();
}

void procs_unbind(void) {
    cpu_set_t set;
    if (procs_places(&set)) sched_setaffinity(0, sizeof set, &set);
}

bool procs_variable(const char *text) {
    static const char *const names[] = {"OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(text, names[i], strlen(names[i]))) return true;
    return false;
}
