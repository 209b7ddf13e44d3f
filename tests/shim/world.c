/* world.c: a library to preload that makes the world slow or full, so that tests can strike while a checkpoint is being
 * written. Its settings come by environment:
 *   WORLD_SLOW_US=n         every fsync and rename takes n microseconds longer
 *   WORLD_FULL_STEP=name    from the mkdir of a path with this in its name on, calls that need space are counted,
 *   WORLD_FULL_CALL=k       and the k-th (from 1) and all after it fail with ENOSPC
 *   WORLD_FULL_COUNT=n      of these only the first n
 *   WORLD_FULL_RANK=r       only in the process of this rank (KVSMITH_RANK), from its first open of such a path on
 *   WORLD_FULL_THREAD=1     only calls by threads other than the first are counted
 *   WORLD_FULL_LOG=file     holds the number of calls counted so far */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int counting, calls;

static int number(const char *name) {
    const char *v = getenv(name);
    return v ? atoi(v) : 0;
}

static void slow(void) {
    int us = number("WORLD_SLOW_US");
    if (us > 0) usleep((unsigned)us);
}

/* Does this call find the disk full? */
static int full(void) {
    if (!counting || (number("WORLD_FULL_THREAD") && gettid() == getpid())) return 0;
    calls++;
    const char *log = getenv("WORLD_FULL_LOG");
    if (log) {
        char line[16];
        int saved = counting;
        counting = 0;
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666), n = snprintf(line, sizeof line, "%d\n", calls);
        if (write(fd, line, (size_t)n) < 0) perror("world");
        counting = saved;
        close(fd);
    }
    int at = number("WORLD_FULL_CALL");
    int n = number("WORLD_FULL_COUNT");
    if (!at || calls < at || (n && calls >= at + n)) return 0;
    errno = ENOSPC;
    return 1;
}

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

static int meant(const char *path) {
    const char *step = getenv("WORLD_FULL_STEP");
    return step && *step && strstr(path, step);
}
int mkdir(const char *path, mode_t mode) {
    if (meant(path) && !getenv("WORLD_FULL_RANK")) counting = 1;
    return full() ? -1 : NEXT(int (*)(const char *, mode_t), "mkdir")(path, mode);
}
int open(const char *path, int how, ...) {
    const char *rank = getenv("WORLD_FULL_RANK"), *own = getenv("KVSMITH_RANK");
    va_list ap;
    va_start(ap, how);
    mode_t mode = how & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (rank && own && !strcmp(rank, own) && meant(path)) counting = 1;
    return (rank && counting && how & O_CREAT && full())
               ? -1
               : NEXT(int (*)(const char *, int, ...), "open")(path, how, mode);
}
ssize_t write(int fd, const void *p, size_t n) {
    return full() ? -1 : NEXT(ssize_t(*)(int, const void *, size_t), "write")(fd, p, n);
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
    return full() ? -1 : NEXT(ssize_t(*)(int, const void *, size_t, off_t), "pwrite")(fd, p, n, at);
}
int fsync(int fd) {
    slow();
    return full() ? -1 : NEXT(int (*)(int), "fsync")(fd);
}
int rename(const char *a, const char *b) {
    slow();
    return full() ? -1 : NEXT(int (*)(const char *, const char *), "rename")(a, b);
}
int renameat(int x, const char *a, int y, const char *b) {
    slow();
    return full() ? -1 : NEXT(int (*)(int, const char *, int, const char *), "renameat")(x, a, y, b);
}
int renameat2(int x, const char *a, int y, const char *b, unsigned how) {
    slow();
    return full() ? -1 : NEXT(int (*)(int, const char *, int, const char *, unsigned), "renameat2")(x, a, y, b, how);
}
int symlinkat(const char *a, int y, const char *b) {
    return full() ? -1 : NEXT(int (*)(const char *, int, const char *), "symlinkat")(a, y, b);
}
