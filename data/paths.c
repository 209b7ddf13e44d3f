/* paths.c: see paths.h. */
#include "paths.h"
#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>

static bool put(Paths *p, char *path, const char *key, Err *e) {
    if (p->n == FILES_MAX) {
        free(path);
        return err_input(e, "%s: more than %d files", key, FILES_MAX);
    }
    if ((p->n & (p->n - 1)) == 0) p->path = xrealloc(p->path, 2 * (size_t)imax(p->n, 1), sizeof *p->path);
    p->path[p->n++] = path;
    return true;
}

static bool matching(Paths *p, const char *pattern, const char *key, Err *e) {
    glob_t g = {0};
    int r = glob(pattern, 0, NULL, &g);
    bool ok = r == 0;
    int before = p->n;
    struct stat st;
    if (r == GLOB_NOMATCH)
        err_input(e, "%s: no file matches the pattern %.180s", key, pattern);
    else if (r)
        err_world(e, "%s: cannot read what matches the pattern %.180s", key, pattern);
    for (size_t i = 0; ok && i < g.gl_pathc; i++)
        if (stat(g.gl_pathv[i], &st) || !S_ISDIR(st.st_mode)) ok = put(p, xstrdup(g.gl_pathv[i]), key, e);
    if (r == 0) globfree(&g);
    return ok && (p->n > before || err_input(e, "%s: only folders match the pattern %.180s", key, pattern));
}

static bool ends(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n > k && !strcmp(name + n - k, tail);
}
static int is_text(const struct dirent *d) {
    static const char *const tails[] = {".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".txt.zst", ".jsonl.zst"};
    for (size_t i = 0; *d->d_name != '.' && i < sizeof tails / sizeof *tails; i++)
        if (ends(d->d_name, tails[i])) return 1;
    return 0;
}
static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static bool in_folder(Paths *p, const char *folder, const char *key, Err *e) {
    struct dirent **list;
    struct stat st;
    int n = scandir(folder, &list, is_text, by_name), before = p->n;
    bool ok = n >= 0 || err_errno(e, "cannot read", folder);
    for (int i = 0; i < n; i++) {
        char *path = xformat("%s%s%s", folder, ends(folder, "/") ? "" : "/", list[i]->d_name);
        bool file = !stat(path, &st) && S_ISREG(st.st_mode);
        free(list[i]);
        if (ok && file)
            ok = put(p, path, key, e);
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
    bool there = !stat(word, &st);
    if (there && S_ISDIR(st.st_mode)) return in_folder(p, word, key, e);
    if (!there && strpbrk(word, "*?[")) return matching(p, word, key, e);
    return put(p, xstrdup(word), key, e);
}

void paths_free(Paths *p) {
    for (int i = 0; i < p->n; i++) free(p->path[i]);
    free(p->path);
    *p = (Paths){0};
}
