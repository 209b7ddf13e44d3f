/* inject.c: a library to preload that fails one call of the program, chosen by kind and number, and answers for the
 * world else. tests/faults/driver.c starts a program under it once for each command; the program stops at main and
 * makes a copy of itself (fork) for every case, which saves its start.
 *
 * Rules, each with its reason:
 *   before main     nothing is counted: the loader and constructors of libraries are not the program's
 *   libgomp, libdnnl, libstdc++, the loader: calls from their code are not counted; what they do about a failure is
 * theirs
 *   fsync           never reaches the disk: that the order of calls is right is what kill -9 shows, and cases stay
 * quick Environment: FAULT_SERVER=1 (the two descriptors of fault.h are open), or for programs that a command starts
 * again FAULT_SPEC="who kind n error sticky", of which the process `who` is meant. */
#include "fault.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int armed, failing, calls[FAULT_KINDS];
static FaultSpec spec = {.kind = -1};
static struct { char *from, *to; } theirs[64];
static int ntheirs;
static int (*program)(int, char **, char **);

/* The function that would have been called; looking for it is not the program's call of anything. */
#define NEXT(name)                                           \
    static __typeof__(name) *next_;                          \
    if (!next_) {                                            \
        const int was = atomic_exchange(&armed, 0);          \
        next_ = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
        armed = was;                                         \
    }

static int is_theirs(const void *caller) {
    for (int i = 0; i < ntheirs; i++)
        if ((const char *)caller >= theirs[i].from && (const char *)caller < theirs[i].to) return 1;
    return 0;
}

/* Does this call fail? Sets errno. */
static int fails(int kind, const void *caller) {
    if (!armed || is_theirs(caller)) return 0;
    int n = ++calls[kind];
    if (kind != spec.kind || n < spec.n || (n > spec.n && !spec.sticky)) return 0;
    failing = 1;
    errno = spec.error;
    return 1;
}
#define FAILS(kind) fails(kind, __builtin_return_address(0))

/* ---- memory
 * --------------------------------------------------------------------------------------------------------- */

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { return FAILS(FAULT_ALLOC) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return FAILS(FAULT_ALLOC) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return FAILS(FAULT_ALLOC) ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return FAILS(FAULT_ALLOC) ? NULL : __libc_memalign(a, n); }
void *memalign(size_t a, size_t n) { return FAILS(FAULT_ALLOC) ? NULL : __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) {
    *p = FAILS(FAULT_ALLOC) ? NULL : __libc_memalign(a, n);
    return *p ? 0 : ENOMEM;
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off) {
    NEXT(mmap)
    return FAILS(FAULT_MMAP) ? MAP_FAILED : next_(at, n, prot, flags, fd, off);
}

/* ---- files
 * ---------------------------------------------------------------------------------------------------------- */

#define MODE                                                              \
    va_list ap;                                                           \
    va_start(ap, how);                                                    \
    mode_t mode = how & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0; \
    va_end(ap);
int open(const char *path, int how, ...) {
    NEXT(open)
    MODE return FAILS(FAULT_OPEN) ? -1 : next_(path, how, mode);
}
int openat(int at, const char *path, int how, ...) {
    NEXT(openat)
    MODE return FAILS(FAULT_OPEN) ? -1 : next_(at, path, how, mode);
}
FILE *fopen(const char *path, const char *how) {
    NEXT(fopen)
    return FAILS(FAULT_OPEN) ? NULL : next_(path, how);
}
FILE *fdopen(int fd, const char *how) {
    NEXT(fdopen)
    return FAILS(FAULT_OPEN) ? NULL : next_(fd, how);
}
DIR *opendir(const char *path) {
    NEXT(opendir)
    return FAILS(FAULT_OPEN) ? NULL : next_(path);
}
DIR *fdopendir(int fd) {
    NEXT(fdopendir)
    return FAILS(FAULT_OPEN) ? NULL : next_(fd);
}
int memfd_create(const char *name, unsigned how) {
    NEXT(memfd_create)
    return FAILS(FAULT_OPEN) ? -1 : next_(name, how);
}
int pipe2(int fd[2], int how) {
    NEXT(pipe2)
    return FAILS(FAULT_OPEN) ? -1 : next_(fd, how);
}
struct dirent *readdir(DIR *d) {
    NEXT(readdir)
    return FAILS(FAULT_READDIR) ? NULL : next_(d);
}
ssize_t read(int fd, void *p, size_t n) {
    NEXT(read)
    return FAILS(FAULT_READ) ? -1 : next_(fd, p, n);
}
size_t fread(void *p, size_t size, size_t n, FILE *f) {
    NEXT(fread)
    if (!FAILS(FAULT_READ)) return next_(p, size, n, f);
    f->_flags |= 0x20; /* what ferror looks at */
    return 0;
}
char *fgets(char *p, int n, FILE *f) {
    NEXT(fgets)
    if (!FAILS(FAULT_READ)) return next_(p, n, f);
    f->_flags |= 0x20;
    return NULL;
}
ssize_t pread(int fd, void *p, size_t n, off_t at) {
    NEXT(pread)
    return FAILS(FAULT_PREAD) ? -1 : next_(fd, p, n, at);
}
/* A full disk takes the first half of what it is given, and nothing the next time. */
static size_t half(size_t n) {
    return failing && spec.kind == FAULT_WRITE && spec.error == ENOSPC && n > 1 ? n / 2 : n;
}
ssize_t write(int fd, const void *p, size_t n) {
    NEXT(write)
    if (fd == 2 || !FAILS(FAULT_WRITE)) return next_(fd, p, n);
    if (spec.n & 1 && half(n) < n && spec.sticky) { /* a short write first */
        static atomic_int once;
        if (!once++) return next_(fd, p, half(n));
        errno = spec.error;
    }
    return -1;
}
size_t fwrite(const void *p, size_t size, size_t n, FILE *f) {
    NEXT(fwrite)
    if (f == stderr || fileno(f) < 0 || !FAILS(FAULT_WRITE)) return next_(p, size, n, f); /* < 0: in memory */
    f->_flags |= 0x20;
    return 0;
}
int fflush(FILE *f) {
    NEXT(fflush)
    if (!f || f == stderr || fileno(f) < 0 || !FAILS(FAULT_WRITE)) return next_(f);
    f->_flags |= 0x20;
    return EOF;
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
    NEXT(pwrite)
    return FAILS(FAULT_PWRITE) ? -1 : next_(fd, p, n, at);
}
int fsync(int fd) { return FAILS(FAULT_FSYNC) ? -1 : fcntl(fd, F_GETFD) < 0 ? -1 : 0; }
int ftruncate(int fd, off_t n) {
    NEXT(ftruncate)
    return FAILS(FAULT_FTRUNCATE) ? -1 : next_(fd, n);
}
int fallocate(int fd, int how, off_t at, off_t n) {
    NEXT(fallocate)
    return FAILS(FAULT_FTRUNCATE) ? -1 : next_(fd, how, at, n);
}
int sync_file_range(int fd, off_t at, off_t n, unsigned how) {
    NEXT(sync_file_range)
    return FAILS(FAULT_FSYNC) ? -1 : next_(fd, at, n, how);
}
int flock(int fd, int how) {
    NEXT(flock)
    return FAILS(FAULT_FLOCK) ? -1 : next_(fd, how);
}
int stat(const char *path, struct stat *st) {
    NEXT(stat)
    return FAILS(FAULT_STAT) ? -1 : next_(path, st);
}
int lstat(const char *path, struct stat *st) {
    NEXT(lstat)
    return FAILS(FAULT_STAT) ? -1 : next_(path, st);
}
int fstat(int fd, struct stat *st) {
    NEXT(fstat)
    return FAILS(FAULT_STAT) ? -1 : next_(fd, st);
}
int fstatat(int at, const char *path, struct stat *st, int how) {
    NEXT(fstatat)
    return FAILS(FAULT_STAT) ? -1 : next_(at, path, st, how);
}
int access(const char *path, int how) {
    NEXT(access)
    return FAILS(FAULT_STAT) ? -1 : next_(path, how);
}
int faccessat(int at, const char *path, int how, int more) {
    NEXT(faccessat)
    return FAILS(FAULT_STAT) ? -1 : next_(at, path, how, more);
}
char *realpath(const char *path, char *to) {
    NEXT(realpath)
    return FAILS(FAULT_STAT) ? NULL : next_(path, to);
}
ssize_t readlink(const char *path, char *to, size_t n) {
    NEXT(readlink)
    return FAILS(FAULT_STAT) ? -1 : next_(path, to, n);
}
int rename(const char *a, const char *b) {
    NEXT(rename)
    return FAILS(FAULT_RENAME) ? -1 : next_(a, b);
}
int renameat(int x, const char *a, int y, const char *b) {
    NEXT(renameat)
    return FAILS(FAULT_RENAME) ? -1 : next_(x, a, y, b);
}
int renameat2(int x, const char *a, int y, const char *b, unsigned how) {
    NEXT(renameat2)
    return FAILS(FAULT_RENAME) ? -1 : next_(x, a, y, b, how);
}
int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir)
    return FAILS(FAULT_MKDIR) ? -1 : next_(path, mode);
}
int mkdirat(int at, const char *path, mode_t mode) {
    NEXT(mkdirat)
    return FAILS(FAULT_MKDIR) ? -1 : next_(at, path, mode);
}
int symlinkat(const char *a, int y, const char *b) {
    NEXT(symlinkat)
    return FAILS(FAULT_LINK) ? -1 : next_(a, y, b);
}
int unlink(const char *path) {
    NEXT(unlink)
    return FAILS(FAULT_UNLINK) ? -1 : next_(path);
}
int unlinkat(int at, const char *path, int how) {
    NEXT(unlinkat)
    return FAILS(FAULT_UNLINK) ? -1 : next_(at, path, how);
}
int rmdir(const char *path) {
    NEXT(rmdir)
    return FAILS(FAULT_UNLINK) ? -1 : next_(path);
}
pid_t fork(void) {
    NEXT(fork)
    return FAILS(FAULT_FORK) ? -1 : next_();
}
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
    NEXT(pthread_create)
    return FAILS(FAULT_FORK) ? spec.error : next_(t, a, f, x);
}

/* ---- main
 * ----------------------------------------------------------------------------------------------------------- */

static int see_library(struct dl_phdr_info *l, size_t size, void *ctx) {
    static const char *const names[] = {"libgomp", "libdnnl", "libstdc++", "ld-linux", "libpthread"};
    (void)size, (void)ctx;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int k = 0; strstr(l->dlpi_name, names[i]) && k < l->dlpi_phnum && ntheirs < 64; k++)
            if (l->dlpi_phdr[k].p_type == PT_LOAD && l->dlpi_phdr[k].p_flags & PF_X) {
                theirs[ntheirs].from = (char *)l->dlpi_addr + l->dlpi_phdr[k].p_vaddr;
                theirs[ntheirs].to = theirs[ntheirs].from + l->dlpi_phdr[k].p_memsz;
                ntheirs++;
            }
    return 0;
}

/* How many calls of each kind an undisturbed process has made: file counts.WHO. */
static int who;
static void tell_counts(void) {
    char name[32], line[FAULT_KINDS * 12];
    int n = 0;
    armed = 0;
    if (spec.kind >= 0) return;
    snprintf(name, sizeof name, "counts.%d", who);
    for (int k = 0; k < FAULT_KINDS; k++) n += snprintf(line + n, sizeof line - (size_t)n, "%d\n", calls[k]);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n) abort();
    close(fd);
}

/* The number of this process among those that a command has started, 1 for the first. Ranks are told apart by
 * theirs. */
static int ordinal(void) {
    const char *rank = getenv("KVSMITH_RANK");
    if (rank) return 1 + atoi(rank);
    int fd = open("started", O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, "x", 1) != 1) abort();
    off_t at = lseek(fd, 0, SEEK_CUR);
    close(fd);
    return (int)at;
}

static void serve(void) {
    FaultSpec s;
    while (read(FAULT_REQUESTS, &s, sizeof s) == (ssize_t)sizeof s) {
        int pid = fork(), status;
        if (pid == 0) {
            char text[100];
            setpgid(0, 0);
            close(FAULT_REQUESTS), close(FAULT_REPLIES);
            if (chdir(s.cwd)) abort();
            int out = open("out", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666),
                err = open("err", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
            if (out < 0 || err < 0) abort();
            dup2(out, 1), dup2(err, 2);
            close(out), close(err);
            snprintf(text, sizeof text, "%d %d %d %d %d", s.who, s.kind, s.n, s.error, s.sticky);
            setenv("FAULT_SPEC", text, 1);
            unsetenv("FAULT_SERVER");
            spec = s;
            if (s.who) spec.kind = s.kind < 0 ? -1 : FAULT_KINDS; /* another process's */
            return;
        }
        setpgid(pid, pid);
        if (write(FAULT_REPLIES, &pid, sizeof pid) < 0) break;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
        if (write(FAULT_REPLIES, &status, sizeof status) < 0) break;
    }
    _exit(0);
}

static int armed_main(int argc, char **argv, char **env) {
    const char *text = getenv("FAULT_SPEC");
    if (getenv("FAULT_SERVER")) {
        serve();
    } else if (text) {
        who = ordinal();
        if (sscanf(text, "%d %d %d %d %d", &spec.who, &spec.kind, &spec.n, &spec.error, &spec.sticky) != 5) abort();
        if (spec.who != who) spec.kind = spec.kind < 0 ? -1 : FAULT_KINDS;
    }
    dl_iterate_phdr(see_library, NULL);
    for (int k = 0; k < FAULT_KINDS; k++) calls[k] = 0;
    atexit(tell_counts);
    if (text || spec.n || spec.kind < 0) armed = 1;
    return program(argc, argv, env);
}
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *end) {
    int (*start)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *) =
        dlsym(RTLD_NEXT, "__libc_start_main");
    program = main;
    return start(armed_main, argc, argv, init, fini, rtld_fini, end);
}
