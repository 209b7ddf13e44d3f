#include "run_dir.h"
#include "ops/file.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char TMP[] = ".tmp-";

char *run_dir_file(const RunDir *d, const char *name) { return xformat("%s/%s", d->path, name); }
char *run_dir_unfinished(const RunDir *d, int64_t step) {
    return xformat("%s/%sstep-%06lld", d->path, TMP, (long long)step);
}
char *run_dir_step(const RunDir *d, int64_t step) { return xformat("%s/step-%06lld", d->path, (long long)step); }

/* step-000500 -> 500; -1 for any other name. The digits must be those that run_dir_step prints. */
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) || strlen(name + 5) < 6 || strlen(name + 5) > 18) return -1;
    int64_t v = 0;
    for (const char *c = name + 5; *c; c++) {
        if (*c < '0' || *c > '9') return -1;
        v = v * 10 + (*c - '0');
    }
    char back[32];
    snprintf(back, sizeof back, "step-%06lld", (long long)v);
    return strcmp(back, name) ? -1 : v;
}

/* ---- trees ----------------------------------------------------------------------------------------------------------
 */

/* Remove what `name` in directory fd `at` is, without following links. */
static bool tree_remove(int at, const char *name) {
    if (!unlinkat(at, name, 0) || errno == ENOENT) return true;
    int fd = TEMP_FAILURE_RETRY(openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0) return false;
    Names l;
    Err why = {0};
    bool ok = file_names(&l, fd, name, &why);
    for (int i = 0; i < l.n; i++) ok &= tree_remove(fd, l.name[i]);
    names_free(&l);
    close(fd);
    return !unlinkat(at, name, AT_REMOVEDIR) && ok;
}

/* fsync every file and directory below and at `name`. */
static bool tree_sync(int at, const char *name, Err *e) {
    int fd = TEMP_FAILURE_RETRY(openat(at, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        err_errno(e, "cannot read back", name);
        if (fd >= 0) close(fd);
        return false;
    }
    if (TEMP_FAILURE_RETRY(fsync(fd))) {
        int why = errno;
        close(fd);
        return err_runtime(e, "cannot sync %s to disk: %s; free some space or check the disk", name, strerror(why));
    }
    if (!S_ISDIR(st.st_mode)) {
        close(fd);
        return true;
    }
    Names l;
    bool ok = file_names(&l, fd, name, e);
    for (int i = 0; ok && i < l.n; i++) ok = tree_sync(fd, l.name[i], e);
    names_free(&l);
    close(fd);
    return ok;
}

/* Call `see` for every name in the folder. The names are collected first, as `see` may rename or remove. */
typedef bool See(RunDir *, const char *name, void *ctx, Err *);
static bool run_dir_each(const RunDir *d, See *see, void *ctx, Err *e) {
    Names l;
    bool ok = file_names(&l, d->fd, d->path, e);
    for (int i = 0; ok && i < l.n; i++) ok = see((RunDir *)d, l.name[i], ctx, e);
    names_free(&l);
    return ok;
}

static bool sync_folder(const RunDir *d, Err *e) {
    if (TEMP_FAILURE_RETRY(fsync(d->fd)))
        return err_runtime(e, "cannot sync run folder %s: %s", d->path, strerror(errno));
    return true;
}

/* ---- opening and closing --------------------------------------------------------------------------------------------
 */

static void unmake_folders(const RunDir *d) {
    char *p = xstrdup(d->path);
    for (int i = 0; i < d->made && !rmdir(p); i++) {
        char *slash = strrchr(p, '/');
        if (!slash || slash == p) break;
        *slash = 0;
    }
    free(p);
}

/* A run that was killed a moment ago, or its ranks, may still be ending: its lock has a second to be free. */
static int lock_soon(int fd) {
    const struct timespec nap = {.tv_nsec = 20000000};
    for (int naps = 0;; naps++) {
        if (!TEMP_FAILURE_RETRY(flock(fd, LOCK_EX | LOCK_NB))) return 0;
        if (errno != EWOULDBLOCK || naps == 50) return -1;
        nanosleep(&nap, NULL);
    }
}
/* flock the file RUN/lock. Its owner removes the file when it ends, so what was locked must still be what the name
 * means. */
static bool take_lock(RunDir *d, Err *e) {
    for (;;) {
        d->lock = TEMP_FAILURE_RETRY(openat(d->fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
        if (d->lock < 0) {
            char *p = run_dir_file(d, "lock");
            err_errno(e, "cannot open lock", p);
            free(p);
            return false;
        }
        if (lock_soon(d->lock)) {
            int why = errno;
            char pid[24] = "?";
            ssize_t n = TEMP_FAILURE_RETRY(pread(d->lock, pid, sizeof pid - 1, 0));
            pid[n > 0 ? n : 1] = 0;
            pid[strcspn(pid, "\n")] = 0;
            close(d->lock);
            d->lock = -1;
            if (why != EWOULDBLOCK) return err_runtime(e, "cannot lock %s/lock: %s", d->path, strerror(why));
            return err_input(e,
                             "run.dir %s is in use by process %s (its lock is held); wait for it or choose another "
                             "run.dir",
                             d->path, pid);
        }
        struct stat a, b;
        bool mine = !fstat(d->lock, &a), there = mine && !fstatat(d->fd, "lock", &b, AT_SYMLINK_NOFOLLOW);
        bool lost = !mine || (!there && errno != ENOENT);
        if (lost) err_runtime(e, "cannot stat %s/lock: %s", d->path, strerror(errno));
        if (there && a.st_ino == b.st_ino && a.st_dev == b.st_dev) break;
        close(d->lock);
        d->lock = -1;
        if (lost) return false;
    }
    char pid[24] = "";
    /* of a process that was killed, or a file of the user's */
    ssize_t had = TEMP_FAILURE_RETRY(pread(d->lock, pid, sizeof pid - 1, 0));
    if (had < 0 || pid[strspn(pid, "0123456789\n")]) {
        int why = errno;
        close(d->lock);
        d->lock = -1;
        if (had < 0) return err_runtime(e, "cannot read %s/lock: %s", d->path, strerror(why));
        return err_input(e, "%s/lock: expected a lock file with a process id, found another file; move it away",
                         d->path);
    }
    int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (TEMP_FAILURE_RETRY(ftruncate(d->lock, 0)) || TEMP_FAILURE_RETRY(pwrite(d->lock, pid, n, 0)) != n)
        return err_runtime(e, "cannot write %s/lock: %s", d->path, strerror(errno));
    return true;
}

static bool see_run(RunDir *d, const char *name, void *found, Err *e) {
    (void)d, (void)e;
    if (step_of(name) >= 0 || !strcmp(name, "config.yaml") || !strcmp(name, "metrics.jsonl") ||
        !strcmp(name, "run.jsonl") || !strcmp(name, "samples.txt") || !strcmp(name, "tb"))
        *(bool *)found = true;
    return true;
}

static bool see_unfinished(RunDir *d, const char *name, void *ctx, Err *e) {
    (void)ctx;
    if (!strncmp(name, TMP, strlen(TMP)) && !tree_remove(d->fd, name))
        return err_runtime(e, "cannot remove unfinished %s/%s: %s", d->path, name, strerror(errno));
    return true;
}

bool run_dir_open(RunDir *d, const char *path, bool resume, Err *e) {
    *d = (RunDir){.path = xstrdup(path), .fd = -1, .lock = -1};
    size_t n = strlen(d->path);
    while (n > 1 && d->path[n - 1] == '/') d->path[--n] = 0;
    if (!n) {
        run_dir_close(d);
        return err_input(e, "run.dir is empty; give a folder, for example run.dir=runs/demo");
    }
    if (file_folders(d->path, "run folder", &d->made, e)) {
        d->fd = TEMP_FAILURE_RETRY(open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (d->fd < 0) err_errno(e, "cannot open run folder", d->path);
    }
    bool run = false;
    bool ok = d->fd >= 0 && take_lock(d, e) && run_dir_each(d, see_run, &run, e);
    if (ok && run && !resume)
        ok = err_input(e, "run.dir %s already holds a run; continue it with --resume auto or choose another run.dir",
                       d->path);
    ok = ok && run_dir_each(d, see_unfinished, NULL, e);
    d->used = run;
    if (!ok) run_dir_close(d);
    return ok;
}

void run_dir_close(RunDir *d) {
    if (d->lock >= 0) {
        if (unlinkat(d->fd, "lock",
                     0)) /* before the lock is released: see take_lock; no process holds a remaining lock file */
            fprintf(stderr, "kvsmith: note: cannot remove %s/lock: %s\n", d->path, strerror(errno));
        close(d->lock);
    }
    if (d->fd >= 0) close(d->fd);
    if (d->path && !d->used) unmake_folders(d);
    free(d->path);
    *d = (RunDir){.fd = -1, .lock = -1};
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------------
 */

/* False with `e` clear: no checkpoint; a step-* that the disk does not show is not that. */
static bool run_dir_has_state(const RunDir *d, const char *name, Err *e) {
    struct stat st;
    char *p = xformat("%s/%s/trainer/state.json", d->path, name);
    bool yes = file_look(p, &st, e);
    free(p);
    return yes;
}

bool run_dir_has_step(const RunDir *d, int64_t step, Err *e) {
    char name[32];
    snprintf(name, sizeof name, "step-%06lld", (long long)step);
    e->status = 0;
    return step >= 0 && run_dir_has_state(d, name, e);
}

static bool see_newest(RunDir *d, const char *name, void *ctx, Err *e) {
    int64_t *best = ctx, s = step_of(name);
    if (s <= *best) return true;
    if (run_dir_has_state(d, name, e)) *best = s;
    return !e->status;
}

bool run_dir_newest(const RunDir *d, int64_t *step, Err *e) {
    *step = -1;
    return run_dir_each(d, see_newest, step, e);
}

/* A symbolic link has no state between old and new when a finished one is renamed over it. */
static bool run_dir_point(RunDir *d, const char *link, int64_t step, Err *e) {
    char to[32], tmp[32];
    snprintf(to, sizeof to, "step-%06lld", (long long)step);
    snprintf(tmp, sizeof tmp, "%s%s", TMP, link);
    unlinkat(d->fd, tmp, 0);
    if (symlinkat(to, d->fd, tmp) || renameat(d->fd, tmp, d->fd, link))
        return err_runtime(e, "cannot set link %s/%s: %s", d->path, link, strerror(errno));
    return true;
}

static bool run_dir_unpoint(RunDir *d, const char *link, Err *e) {
    return !unlinkat(d->fd, link, 0) || errno == ENOENT ||
           err_runtime(e, "cannot remove link %s/%s: %s", d->path, link, strerror(errno));
}

typedef struct {
    Keep keep;
    int64_t newest, from; /* from: the oldest that stays by number */
    int n;
    int64_t *all;
} Prune;

static bool see_step(RunDir *d, const char *name, void *ctx, Err *e) {
    Prune *p = ctx;
    int64_t s = step_of(name);
    if (s < 0) return true;
    if (!run_dir_has_state(d, name, e)) return !e->status;
    p->all = xrealloc(p->all, p->n + 1, sizeof *p->all);
    p->all[p->n++] = s;
    return true;
}

static int run_dir_ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Move the links, then drop what need not stay. Nothing is removed before the links no longer mean it. */
static bool run_dir_settle(RunDir *d, Keep keep, Err *e) {
    Prune p = {.keep = keep};
    e->status = 0;
    bool ok = run_dir_each(d, see_step, &p, e);
    bool best = ok && keep.keep_best && run_dir_has_step(d, keep.best, e);
    if (!ok || e->status) {
        free(p.all);
        return false;
    }
    if (p.n > 1) qsort(p.all, p.n, sizeof *p.all, run_dir_ascending);
    ok = p.n ? run_dir_point(d, "last", p.all[p.n - 1], e) : run_dir_unpoint(d, "last", e);
    ok = ok && (best ? run_dir_point(d, "best", keep.best, e) : run_dir_unpoint(d, "best", e)) && sync_folder(d, e);
    for (int i = 0; ok && keep.keep_last > 0 && i < p.n - keep.keep_last; i++) {
        if (best && p.all[i] == keep.best) continue;
        char name[32], tmp[48];
        snprintf(name, sizeof name, "step-%06lld", (long long)p.all[i]);
        snprintf(tmp, sizeof tmp, "%sdrop-%s", TMP, name);
        if (renameat(d->fd, name, d->fd, tmp) || !tree_remove(d->fd, tmp))
            ok = err_runtime(e, "cannot remove old checkpoint %s/%s: %s", d->path, name, strerror(errno));
    }
    free(p.all);
    return ok;
}

typedef struct {
    int64_t step;
    bool from_here;
} Rewind;

char *run_dir_aside(const RunDir *d, const char *name, Err *e) {
    e->status = 0;
    for (int i = 1; i < 10000; i++) {
        char *to = i == 1 ? xformat("old-%s", name) : xformat("old-%d-%s", i, name);
        struct stat st;
        if (fstatat(d->fd, to, &st, AT_SYMLINK_NOFOLLOW)) {
            if (errno == ENOENT) return to;
            err_runtime(e, "cannot stat %s/%s: %s", d->path, to, strerror(errno));
        }
        free(to);
        if (e->status) return NULL;
    }
    err_runtime(e, "cannot set aside %s/%s: old-9999-%s exists; remove old-* directories that you do not need", d->path,
                name, name);
    return NULL;
}

static bool see_future(RunDir *d, const char *name, void *ctx, Err *e) {
    const Rewind *r = ctx;
    int64_t s = step_of(name);
    if (s < 0) return true;
    if (s < r->step || (s == r->step && r->from_here)) {
        if (run_dir_has_state(d, name, e)) return true;
        if (e->status) return false;
    }
    char *to = run_dir_aside(d, name, e);
    bool ok = to && (!renameat(d->fd, name, d->fd, to) ||
                     err_runtime(e, "cannot set aside %s/%s: %s", d->path, name, strerror(errno)));
    free(to);
    return ok;
}

bool run_dir_rewind(RunDir *d, int64_t step, bool from_here, Keep keep, Err *e) {
    Rewind r = {step, from_here};
    d->used = true;
    return run_dir_each(d, see_future, &r, e) && run_dir_settle(d, keep, e);
}

char *run_dir_begin(RunDir *d, int64_t step, Err *e) {
    run_dir_abandon(d, step);
    char *p = run_dir_unfinished(d, step);
    d->used = true;
    if (!mkdir(p, 0777)) return p;
    err_runtime(e, "cannot make %s: %s", p, strerror(errno));
    free(p);
    return NULL;
}

void run_dir_abandon(RunDir *d, int64_t step) {
    char tmp[48];
    snprintf(tmp, sizeof tmp, "%sstep-%06lld", TMP, (long long)step);
    tree_remove(d->fd, tmp);
}

bool run_dir_publish(RunDir *d, int64_t step, Keep keep, Err *e) {
    char name[32], tmp[48];
    snprintf(name, sizeof name, "step-%06lld", (long long)step);
    snprintf(tmp, sizeof tmp, "%s%s", TMP, name);
    e->status = 0;
    bool ok = tree_sync(d->fd, tmp, e);
    int why = ok && renameat(d->fd, tmp, d->fd, name) ? errno : 0;
    if ((why == ENOTEMPTY || why == EEXIST) && run_dir_has_step(d, step, e)) {
        run_dir_abandon(d, step); /* an earlier try got so far: the same step, the same bytes */
        why = 0;
    }
    if (why && !e->status) ok = err_runtime(e, "cannot rename %s/%s to %s: %s", d->path, tmp, name, strerror(why));
    ok = ok && !e->status;
    if (!ok) run_dir_abandon(d, step);
    return ok && sync_folder(d, e) && run_dir_settle(d, keep, e);
}

bool run_dir_write(RunDir *d, const char *name, const char *text, Err *e) {
    char *tmp = xformat("%s/%s%s", d->path, TMP, name), *to = run_dir_file(d, name);
    d->used = true;
    bool ok = file_write(tmp, text, strlen(text), e);
    if (ok && rename(tmp, to)) {
        ok = err_runtime(e, "cannot rename %s to %s: %s", tmp, to, strerror(errno));
        unlink(tmp);
    }
    ok = ok && sync_folder(d, e);
    free(tmp);
    free(to);
    return ok;
}
