/* signals.c: a library to preload that lets single calls of the program fail, by environment:
 *   SHIM_NO_MAP=n     mmap of exactly n bytes finds no memory
 *   SHIM_EINTR=name   every other call of fsync, open, openat or flock, whichever is named (or "all"), is interrupted */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

void *mmap(void *at, size_t n, int prot, int how, int fd, off_t from) {
    const char *no = getenv("SHIM_NO_MAP");
    if (no && fd < 0 && strtoull(no, NULL, 10) == n) return errno = ENOMEM, MAP_FAILED;
    return NEXT(void *(*)(void *, size_t, int, int, int, off_t), "mmap")(at, n, prot, how, fd, from);
}
static int interrupted(const char *name, int *calls) {
    const char *v = getenv("SHIM_EINTR");
    if (!v || (strcmp(v, name) && strcmp(v, "all")) || ++*calls % 2 == 0) return 0;
    errno = EINTR;
    return 1;
}
int fsync(int fd) {
    static int calls;
    return interrupted("fsync", &calls) ? -1 : NEXT(int (*)(int), "fsync")(fd);
}
int flock(int fd, int how) {
    static int calls;
    return interrupted("flock", &calls) ? -1 : NEXT(int (*)(int, int), "flock")(fd, how);
}
int open(const char *path, int how, ...) {
    static int calls;
    va_list ap;
    va_start(ap, how);
    mode_t mode = how & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return interrupted("open", &calls) ? -1 : NEXT(int (*)(const char *, int, ...), "open")(path, how, mode);
}
int openat(int at, const char *path, int how, ...) {
    static int calls;
    va_list ap;
    va_start(ap, how);
    mode_t mode = how & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (interrupted("openat", &calls)) return -1;
    return NEXT(int (*)(int, const char *, int, ...), "openat")(at, path, how, mode);
}
