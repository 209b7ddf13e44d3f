/* folder.c: see folder.h. */
#include "folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../model/hf.h"
#include "../model/task_cfg.h"

bool folder_free(const char *dst, Err *e) {
    struct stat s;
    size_t n = strlen(dst);
    if (!n) return err_input(e, "the name of the folder to write is empty");
    if (n > 4000) return err_input(e, "a folder's name of %zu bytes, at most 4000 are taken", n);
    if (!lstat(dst, &s)) return err_input(e, "%s: exists; give a new name, or remove it", dst);
    if (errno != ENOENT) return err_errno(e, "cannot make folder", dst);
    char *copy = xstrdup(dst), *above = dirname(copy);
    bool ok = (!stat(above, &s) && S_ISDIR(s.st_mode)) || err_input(e, "%s: no such folder to write %s in", above, dst);
    free(copy);
    return ok;
}

/* The folder holds files alone. */
static void remove_all(const char *dir) {
    DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        char *path = xformat("%s/%s", dir, x->d_name);
        unlink(path);
        free(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

bool folder_begin(const char *dst, char tmp[4200], Err *e) {
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/') n--;
    snprintf(tmp, 4200, "%.*s.tmp%ld", (int)n, dst, (long)getpid());
    if (!mkdir(tmp, 0777)) return true;
    if (errno == EEXIST) { /* a process of the same number died here once */
        remove_all(tmp);
        if (!mkdir(tmp, 0777)) return true;
    }
    return err_errno(e, "cannot make folder", tmp);
}

bool folder_copy(const char *src, const char *tmp, Err *e) {
    TaskCfg task = {0};
    return hf_copy(src, tmp, e) && task_cfg_load(&task, src, e) && (!task.kind || task_cfg_save(&task, tmp, e));
}

static bool sync_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = fsync(fd) == 0 || errno == EINVAL;
    int n = errno;
    close(fd);
    errno = n;
    return ok;
}

bool folder_end(const char *tmp, const char *dst, bool ok, Err *e) {
    if (ok && !sync_folder(tmp)) ok = err_world(e, "cannot sync %s: %s", tmp, strerror(errno));
    if (ok && renameat2(AT_FDCWD, tmp, AT_FDCWD, dst, RENAME_NOREPLACE)) {
        if (errno == EINVAL || errno == ENOSYS) /* a file system without the flag */
            ok = !rename(tmp, dst);
        else
            ok = false;
        if (!ok) err_world(e, "cannot rename the finished folder to %s: %s", dst, strerror(errno));
    }
    if (!ok) {
        remove_all(tmp);
        return false;
    }
    char *copy = xstrdup(dst);
    ok = sync_folder(dirname(copy)) || err_world(e, "cannot sync the folder of %s: %s", dst, strerror(errno));
    free(copy);
    return ok;
}
