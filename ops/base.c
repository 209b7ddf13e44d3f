/* base.c: errors, checks, memory for bookkeeping, random numbers. */
#include "base.h"
#include "oom.h"
#include <errno.h>
#include <stdarg.h>
#include <time.h>

static void base_fill(Err *e, int status, const char *fmt, va_list ap) {
    if (!e) return;
    e->status = status;
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    if (n >= (int)sizeof e->msg) memcpy(e->msg + sizeof e->msg - 4, "...", 4);
    for (char *c = e->msg; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127) *c = '?';
}

bool err_input(Err *e, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    base_fill(e, EXIT_INPUT, fmt, ap);
    va_end(ap);
    return false;
}

bool err_runtime(Err *e, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    base_fill(e, EXIT_RUNTIME, fmt, ap);
    va_end(ap);
    return false;
}

bool err_diverged(Err *e, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    base_fill(e, EXIT_DIVERGED, fmt, ap);
    va_end(ap);
    return false;
}

bool err_errno(Err *e, const char *what, const char *path) {
    int n = errno;
    bool users = n == ENOENT || n == ENOTDIR || n == EISDIR || n == EACCES || n == ELOOP || n == ENAMETOOLONG;
    enum { END = 180 }; /* only the end of a long path, so that the reason still fits */
    size_t len = strlen(path);
    const char *cut = len > END ? "..." : "", *end = len > END ? path + len - END : path;
    return users ? err_input(e, "%s %s%s: %s", what, cut, end, strerror(n))
                 : err_runtime(e, "%s %s%s: %s", what, cut, end, strerror(n));
}

void check_failed(const char *file, int line, const char *cond, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "%s:%d: CHECK %s: ", file, line, cond);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

void *xcalloc(size_t n, size_t size) { return oom_check(calloc(n ? n : 1, size ? size : 1)); }
void *xrealloc(void *p, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return oom_check(NULL);
    return oom_check(realloc(p, bytes ? bytes : 1));
}
char *xstrdup(const char *s) { return oom_check(strdup(s)); }
char *xformat(const char *fmt, ...) {
    va_list ap;
    char *s = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return oom_check(n < 0 ? NULL : s);
}

uint64_t rng_name(uint64_t key, const char *name) {
    for (; *name; name++) key = rng_mix(key, (unsigned char)*name);
    return rng_mix(key, 256);
}
double rng_uniform(uint64_t key, uint64_t counter) { return ((double)(rng_mix(key, counter) >> 11) + 0.5) * 0x1p-53; }
double rng_normal(uint64_t key, uint64_t counter) {
    double u = rng_uniform(key, 2 * counter), v = rng_uniform(key, 2 * counter + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586476925 * v);
}
uint64_t rng_permute(uint64_t key, uint64_t i, uint64_t n) {
    CHECK(i < n, "%llu of %llu", (unsigned long long)i, (unsigned long long)n);
    int half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do { /* a permutation of 0..4^half-1, walked until it falls inside 0..n-1: at most 4 expected steps */
        uint64_t l = i >> half, r = i & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t t = l ^ (rng_mix(rng_mix(key, round), r) & mask);
            l = r;
            r = t;
        }
        i = l << half | r;
    } while (i >= n);
    return i;
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
