/* compare_lock.c: a lock for every row of a comparison, DIR/.lock-ROW. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include "compare_lock.h"
#include "ops/file.h"

/* *taken: it is ours. The descriptor is inherited, so that a run that we began holds the lock as long as it saves
 * itself. */
static bool lock_try(const Compare *c, int row, int *fd, bool *taken, Err *e) {
    char *path = xformat("%s/.lock-%s", c->dir, c->row[row].name);
    *taken = false;
    *fd = file_own(AT_FDCWD, path, O_RDWR | O_CREAT, path, e);
    bool ok = *fd >= 0 && (!fcntl(*fd, F_SETFD, 0) || err_errno(e, "cannot pass on", path));
    if (ok) *taken = !TEMP_FAILURE_RETRY(flock(*fd, LOCK_EX | LOCK_NB));
    if (ok && !*taken && errno != EWOULDBLOCK) ok = err_runtime(e, "cannot lock %s: %s", path, strerror(errno));
    if (!*taken && *fd >= 0) close(*fd), *fd = -1;
    free(path);
    return ok;
}

bool compare_lock(const Compare *c, const bool *wanted, double seconds, RowLocks *l, int *busy, Err *e) {
    const double start = now_seconds();
    bool ok = file_folders(c->dir, "folder", NULL, e);
    *busy = -1;
    for (int i = 0; i < c->nrows; i++) l->fd[i] = -1;
    for (int i = 0; ok && *busy < 0 && i < c->nrows; i++) {
        bool taken = !wanted[i];
        while (!taken && (ok = lock_try(c, i, &l->fd[i], &taken, e)) && !taken) {
            if (now_seconds() - start > seconds || compare_interrupted()) break;
            usleep(50000);
        }
        if (ok && !taken) *busy = i;
    }
    if (!ok || *busy >= 0) compare_unlock(c, l);
    return ok;
}

void compare_unlock(const Compare *c, RowLocks *l) {
    for (int i = 0; i < c->nrows; i++) {
        if (l->fd[i] >= 0) close(l->fd[i]);
        l->fd[i] = -1;
    }
}
