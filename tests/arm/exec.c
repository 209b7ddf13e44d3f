/* exec.c: linked into programs for aarch64 that an emulator of one process runs (qemu-aarch64): the kernel cannot start
 * another such program, so that exec of one starts the emulator with it. Its path is in ARM_QEMU. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

static int foreign(const char *path) {
    Elf64_Ehdr h;
    int f = open(path, O_RDONLY | O_CLOEXEC);
    if (f < 0) return 0;
    ssize_t n = read(f, &h, sizeof h);
    close(f);
    return n == (ssize_t)sizeof h && !memcmp(h.e_ident, ELFMAG, SELFMAG) && h.e_machine == EM_AARCH64;
}
int execve(const char *path, char *const argv[], char *const env[]) {
    const char *qemu = getenv("ARM_QEMU");
    char self[PATH_MAX];
    int n = 0;
    if (!strcmp(path, "/proc/self/exe")) { /* would be the emulator's own */
        ssize_t len = readlink(path, self, sizeof self - 1);
        if (len < 0) return -1;
        self[len] = 0, path = self;
    }
    if (!qemu || !foreign(path)) return (int)syscall(SYS_execve, path, argv, env);
    while (argv[n]) n++;
    const char *all[n + 5];
    all[0] = qemu, all[1] = "-0", all[2] = n ? argv[0] : path, all[3] = path;
    for (int i = 1; i <= n; i++) all[3 + i] = argv[i];
    if (!n) all[4] = NULL;
    return (int)syscall(SYS_execve, qemu, all, env);
}
int execv(const char *path, char *const argv[]) { return execve(path, argv, environ); }
int execvp(const char *name, char *const argv[]) {
    const char *dirs = getenv("PATH");
    char path[PATH_MAX];
    if (strchr(name, '/')) return execve(name, argv, environ);
    for (const char *d = dirs ? dirs : "/usr/bin:/bin"; *d; d += strspn(d, ":")) {
        size_t len = strcspn(d, ":");
        if (len + strlen(name) + 2 <= sizeof path) {
            memcpy(path, d, len), path[len] = '/', strcpy(path + len + 1, name);
            execve(path, argv, environ);
        }
        d += len;
    }
    errno = ENOENT;
    return -1;
}
