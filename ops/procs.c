#include "procs.h"
#include <omp.h>
#include <sched.h>

int procs(void) { return imax(1, omp_get_num_procs()); }

void procs_unbind(void) {
    enum { MOST = 1024 };
    int ids[MOST];
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int p = 0; p < omp_get_num_places(); p++) {
        int n = omp_get_place_num_procs(p);
        if (n > MOST) return;
        omp_get_place_proc_ids(p, ids);
        for (int i = 0; i < n; i++)
            if (ids[i] >= 0 && ids[i] < CPU_SETSIZE) CPU_SET((unsigned)ids[i], &set);
    }
    if (CPU_COUNT(&set)) sched_setaffinity(0, sizeof set, &set);
}

bool procs_variable(const char *text) {
    static const char *const names[] = {"OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(text, names[i], strlen(names[i]))) return true;
    return false;
}
