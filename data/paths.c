/* paths.c: expands patterns and folders to sorted lists of files. */
#include "paths.h"
#include "ops/file.h"
#include "ops/oom.h"
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <sys/stat.h>

static bool paths_put(Paths *p, char *path, const char *key, Err *e) {
    if (p->n == FILES_MAX) {
        free(path);
        return err_input(e, "%s: more than %d files", key, FILES_MAX);
    }
    if ((p->n & (p->n - 1)) == 0) p->path = xrealloc(p->path, 2 * (size_t)imax(p->n, 1), sizeof *p->path);
    p->path[p->n++] = path;
    return true;
}

/* readdir for glob, which would mistake an error for the end of the folder. */
static struct dirent *next_name(void *dir) {
    errno = 0;
    struct dirent *x = readdir(dir);
    if (!x && errno) {
        char why[120];
        snprintf(why, sizeof why, "data: cannot list a folder of a glob pattern: %s", strerror(errno));
        oom_exit(why);
    }
    return x;
}

static void *open_folder(const char *path) {
    DIR *d;
    while (!(d = opendir(path)) && errno == EINTR) {}
    return d;
}
static void close_folder(void *dir) { closedir(dir); }

static bool paths_matching(Paths *p, const char *pattern, const char *key, Err *e) {
    glob_t g = {.gl_opendir = open_folder,
                .gl_readdir = next_name,
                .gl_closedir = close_folder,
                .gl_stat = stat,
                .gl_lstat = lstat};
    int r = glob(pattern, GLOB_ALTDIRFUNC, NULL, &g);
    bool ok = r == 0;
    int before = p->n;
    struct stat st;
    if (r == GLOB_NOMATCH)
        err_input(e, "%s: no file matches the pattern %.180s", key, pattern);
    else if (r)
        err_runtime(e, "%s: cannot read the files that match the pattern %.180s", key, pattern);
    for (size_t i = 0; ok && i < g.gl_pathc; i++) {
        bool there = file_look(g.gl_pathv[i], &st, e); /* a dangling link is reported when it is opened */
        ok = !e->status;
        if (ok && (!there || !S_ISDIR(st.st_mode))) ok = paths_put(p, xstrdup(g.gl_pathv[i]), key, e);
    }
    if (r == 0) globfree(&g);
    return ok && (p->n > before || err_input(e, "%s: only folders match the pattern %.180s", key, pattern));
}

static bool paths_ends(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n > k && !strcmp(name + n - k, tail);
}
static int is_text(const struct dirent *d) {
    static const char *const tails[] = {".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".txt.zst", ".jsonl.zst"};
    for (size_t i = 0; *d->d_name != '.' && i < sizeof tails / sizeof *tails; i++)
        if (paths_ends(d->d_name, tails[i])) return 1;
    return 0;
}
static int paths_by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}
static bool in_folder(Paths *p, const char *folder, const char *key, Err *e) {
    struct dirent **list;
    struct stat st;
    int n, before = p->n;
    while ((n = scandir(folder, &list, is_text, paths_by_name)) < 0 && errno == EINTR) {}
    bool ok = n >= 0 || err_errno(e, "cannot read", folder);
    for (int i = 0; i < n; i++) {
        char *path = xformat("%s%s%s", folder, paths_ends(folder, "/") ? "" : "/", list[i]->d_name);
        bool file = ok && file_look(path, &st, e) && S_ISREG(st.st_mode);
        ok = ok && !e->status;
        free(list[i]);
        if (ok && file)
            ok = paths_put(p, path, key, e);
        else
            free(path);
    }
    if (n >= 0) free(list);
    return ok &&
           (p->n > before || err_input(e,
                                       "%s: the folder %.150s has no file named .txt or .jsonl (.gz, .zst) in it; "
                                       "name the files, or give a pattern",
                                       key, folder));
}

bool paths_add(Paths *p, const char *word, const char *key, Err *e) {
    struct stat st;
    bool there = file_look(word, &st, e);
    if (e->status) return false;
    if (there && S_ISDIR(st.st_mode)) return in_folder(p, word, key, e);
    if (!there && strpbrk(word, "*?[")) return paths_matching(p, word, key, e);
    return paths_put(p, xstrdup(word), key, e);
}

void paths_free(Paths *p) {
    for (int i = 0; i < p->n; i++) free(p->path[i]);
    free(p->path);
    *p = (Paths){0};
}
