/* team.c: a parallel region of one thread is a plain call.
 *
 * libgomp makes a team for every region, `if (false)` or not, and ends it by asking the kernel to wake those who wait:
 * nobody, in a team of one. Most ops of a small model are such regions. The linker hands all regions of this program to
 * __wrap_GOMP_parallel (--wrap in the Makefile). Where it does not, or the runtime is another one, this file is without
 * effect. */
#include <omp.h>

typedef void Region(void *data);
void __wrap_GOMP_parallel(Region *f, void *data, unsigned threads, unsigned flags);
void __real_GOMP_parallel(Region *f, void *data, unsigned threads, unsigned flags) __attribute__((weak));

void __wrap_GOMP_parallel(Region *f, void *data, unsigned threads, unsigned flags) {
    /* Within a region thread numbers are those of its team: there a team of one must be a team. */
    if (threads == 1 && omp_get_level() == 0)
        f(data);
    else
        __real_GOMP_parallel(f, data, threads, flags);
}
