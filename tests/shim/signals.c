/* signals.c: a library to preload that lets single calls of the program fail, by environment:
 *   SHIM_NO_MAP=n     mmap of exactly n bytes finds no memory
 *   SHIM_EINTR=name   every other call of fsync, open, openat, flock, read, write, pread, pwrite, ftruncate, poll,
 * connect,
 *                     accept4, recvmsg, sendmsg or waitpid, whichever is named (or "all"), is interrupted, and then a
 * line
 *                     on descriptor SHIM_TOLD names it
 *   SHIM_KILL=n       the process is killed instead of the n-th call of rename, unlink or fsync (counted together,
 * unlink
 *                     of what is there)
 *   SHIM_NO_RENAME=n  the n-th rename fails */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

void *mmap(void *at, size_t n, int prot, int how, int fd, off_t from) {
    const char *no = getenv("SHIM_NO_MAP");
    if (no && fd < 0 && strtoull(no, NULL, 10) == n) return errno = ENOMEM, MAP_FAILED;
    return NEXT(void *(*)(void *, size_t, int, int, int, off_t), "mmap")(at, n, prot, how, fd, from);
}
static int interrupted(const char *name, int *calls) {
    const char *v = getenv("SHIM_EINTR"), *told = getenv("SHIM_TOLD");
    if (!v || (strcmp(v, name) && strcmp(v, "all")) || ++*calls % 2 == 0) return 0;
    if (told && *calls == 1) dprintf(atoi(told), "%s\n", name);
    errno = EINTR;
    return 1;
}
static void die_here(void) {
    static int calls;
    const char *n = getenv("SHIM_KILL");
    if (n && ++calls == atoi(n)) kill(getpid(), SIGKILL);
}
int rename(const char *from, const char *to) {
    static int calls;
    const char *n = getenv("SHIM_NO_RENAME");
    die_here();
    if (n && ++calls == atoi(n)) return errno = EIO, -1;
    return NEXT(int (*)(const char *, const char *), "rename")(from, to);
}
int unlink(const char *path) {
    if (!access(path, F_OK)) die_here(); /* most calls are for names that may be there */
    return NEXT(int (*)(const char *), "unlink")(path);
}
int fsync(int fd) {
    static int calls;
    die_here();
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
/* The same for calls whose arguments are only handed on. */
#define HANDED_ON(type, name, args, ...)                                                             \
    type name args {                                                                                 \
        static int calls;                                                                            \
        return interrupted(#name, &calls) ? (type)-1 : NEXT(__typeof__(name) *, #name)(__VA_ARGS__); \
    }
HANDED_ON(ssize_t, read, (int fd, void *p, size_t n), fd, p, n)
HANDED_ON(ssize_t, write, (int fd, const void *p, size_t n), fd, p, n)
HANDED_ON(ssize_t, pread, (int fd, void *p, size_t n, off_t at), fd, p, n, at)
HANDED_ON(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t at), fd, p, n, at)
HANDED_ON(int, ftruncate, (int fd, off_t n), fd, n)
HANDED_ON(int, poll, (struct pollfd * p, nfds_t n, int ms), p, n, ms)
HANDED_ON(int, connect, (int s, __CONST_SOCKADDR_ARG a, socklen_t n), s, a, n)
HANDED_ON(int, accept4, (int s, __SOCKADDR_ARG a, socklen_t *n, int how), s, a, n, how)
HANDED_ON(ssize_t, recvmsg, (int s, struct msghdr *m, int how), s, m, how)
HANDED_ON(ssize_t, sendmsg, (int s, const struct msghdr *m, int how), s, m, how)
HANDED_ON(pid_t, waitpid, (pid_t pid, int *status, int how), pid, status, how)
