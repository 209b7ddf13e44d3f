/* fuzz.h: what the fuzz targets share. Each target is LLVMFuzzerTestOneInput of libFuzzer; tests/cli/test_fuzz.c runs
 * the same entries on seeded mutations, without clang. A target aborts when a promise is broken. */
#pragma once
#include "ops/base.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a refusal must look like: bad input is never the world's failure, and the message is one line that is there. */
static inline void refusal(const Err *e) {
    CHECK(e->status == EXIT_INPUT && *e->msg && strlen(e->msg) <= 300 && !strchr(e->msg, '\n'), "status %d: %s",
          e->status, e->msg);
}

/* The input as a file in memory; `path` holds at least 32 bytes. The descriptor is kept for the next input. */
static inline void as_file(int *fd, char *path, const uint8_t *p, size_t n) {
    if (*fd < 0) *fd = memfd_create("input", MFD_CLOEXEC);
    CHECK(*fd >= 0 && !ftruncate(*fd, 0) && pwrite(*fd, p, n, 0) == (ssize_t)n, "input of %zu bytes", n);
    snprintf(path, 32, "/proc/self/fd/%d", *fd);
}

/* A directory in which `name` is a link to the file in memory; removed when the process ends by itself. */
typedef struct {
    char dir[64], *file;
} Around;
static Around around_one;
static inline void around_end(void) {
    unlink(around_one.file);
    rmdir(around_one.dir);
    free(around_one.file);
}
static inline const char *around(const char *name, const char *target) {
    Around *a = &around_one;
    if (*a->dir) return a->dir;
    snprintf(a->dir, sizeof a->dir, "%s/kvsmith-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    CHECK(mkdtemp(a->dir), "%s", a->dir);
    a->file = xformat("%s/%s", a->dir, name);
    CHECK(!symlink(target, a->file) && !atexit(around_end), "%s", a->file);
    return a->dir;
}
