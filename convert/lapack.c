/* lapack.c: see lapack.h. */
#include "lapack.h"
#include <dlfcn.h>

static bool lapack_find(void *library, const char *name, void *to, Err *e) {
    void *at = dlsym(library, name);
    memcpy(to, &at, sizeof at); /* a function's address from an object's: POSIX allows it, C has no cast for it */
    return at || err_runtime(e, "liblapacke.so.3 lacks %s; install LAPACKE of LAPACK 3", name);
}

bool lapack_open(Lapack *l, Err *e) {
    void *library = dlopen("liblapacke.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_runtime(e, "this conversion needs LAPACKE: %.150s; install liblapacke and a BLAS", dlerror());
    return lapack_find(library, "LAPACKE_dgesvd", &l->dgesvd, e) &&
           lapack_find(library, "LAPACKE_dpotrf", &l->dpotrf, e) &&
           lapack_find(library, "LAPACKE_dtrtrs", &l->dtrtrs, e) &&
           lapack_find(library, "LAPACKE_dsyevd", &l->dsyevd, e);
}
