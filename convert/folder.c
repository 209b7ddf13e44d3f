/* folder.c: see folder.h. */
#include "folder.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/stat.h>
#include <unistd.h>
#include "model/files/hf.h"
#include "model/config/task_cfg.h"
#include "ops/file.h"

bool folder_free(const char *dst, Err *e) {
    struct stat s;
    size_t n = strlen(dst);
    if (!n) return err_input(e, "the name of the folder to write is empty");
    if (n > 4000) return err_input(e, "the folder's name has %zu bytes, expected at most 4000", n);
    if (!lstat(dst, &s)) return err_input(e, "%s: exists; give a new name, or remove it", dst);
    if (errno != ENOENT) return err_errno(e, "cannot make folder", dst);
    char *copy = xstrdup(dst), *above = dirname(copy);
    bool ok = (file_look(above, &s, e) && S_ISDIR(s.st_mode)) || e->status ||
              err_input(e, "%s: no such folder; cannot write %s in it", above, dst);
    free(copy);
    return ok && !e->status;
}

/* The folder, which holds files alone, and which this process has locked. */
static bool remove_all(int fd, const char *dir, Err *e) {
    Names l;
    bool ok = file_names(&l, fd, dir, e);
    for (int i = 0; ok && i < l.n; i++)
        ok = !unlinkat(fd, l.name[i], 0) || err_runtime(e, "cannot remove %s/%s: %s", dir, l.name[i], strerror(errno));
    names_free(&l);
    return ok && (!rmdir(dir) || err_runtime(e, "cannot remove %s: %s", dir, strerror(errno)));
}

bool folder_begin(const char *dst, Folder *f, Err *e) {
    int n = (int)strlen(dst);
    while (n > 1 && dst[n - 1] == '/') n--;
    char *to = xformat("%.*s", n, dst), *tmp = file_unfinished(to);
    Err why = {0};
    bool mine = false;
    *f = (Folder){.fd = -1};
    snprintf(f->tmp, sizeof f->tmp, "%s", tmp);
    while (!mine && !why.status) {
        bool made = !mkdir(tmp, 0777);
        if (!made && errno != EEXIST) err_errno(&why, "cannot make folder", tmp);
        if (!why.status) f->fd = TEMP_FAILURE_RETRY(open(tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!why.status && f->fd < 0 && errno != ENOENT) err_errno(&why, "cannot open", tmp);
        bool locked = f->fd >= 0 && file_lock(f->fd, made, tmp, to, &why);
        mine = locked && made;
        if (locked && !made) remove_all(f->fd, tmp, &why); /* left by a process that no longer exists */
        if (!mine && f->fd >= 0) close(f->fd);
        if (!mine) f->fd = -1;
    }
    free(to);
    free(tmp);
    if (!mine) *e = why;
    return mine;
}

bool folder_copy(const char *src, const char *tmp, Err *e) {
    TaskCfg task = {0};
    return hf_copy(src, tmp, e) && task_cfg_load(&task, src, e) && (!task.kind || task_cfg_save(&task, tmp, e));
}

bool folder_end(Folder *f, const char *dst, bool ok, Err *e) {
    Err ignored = {0};
    if (ok && TEMP_FAILURE_RETRY(fsync(f->fd)) && errno != EINVAL)
        ok = err_runtime(e, "cannot sync %s: %s", f->tmp, strerror(errno));
    if (ok && !file_is(f->fd, f->tmp, &ignored))
        ok = err_runtime(e, "%s: another process replaced %s meanwhile", dst, f->tmp);
    ok = ok && file_rename_new(f->tmp, dst, e);
    if (ok)
        ok = file_sync_folder(dst, e);
    else
        remove_all(f->fd, f->tmp, &ignored);
    close(f->fd);
    f->fd = -1;
    return ok;
}
