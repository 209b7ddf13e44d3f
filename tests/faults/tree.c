/* tree.c: see tree.h. */
#include "tree.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what, const char *path) {
    fprintf(stderr, "driver: %s %s: %s\n", what, path, strerror(errno));
    exit(3);
}

char *path_of(const char *dir, const char *name) {
    char *p;
    if (asprintf(&p, "%s/%s", dir, name) < 0) die("path", name);
    return p;
}
bool there(const char *path) {
    struct stat st;
    return !lstat(path, &st);
}
char *text_of(const char *path, int *n) {
    int fd = open(path, O_RDONLY), got = 0, k;
    struct stat st = {0};
    if (fd >= 0 && fstat(fd, &st)) die("stat", path);
    char *text = malloc((size_t)st.st_size + 1);
    while (fd >= 0 && got < st.st_size && (k = (int)read(fd, text + got, (size_t)(st.st_size - got))) > 0) got += k;
    if (fd >= 0) close(fd);
    text[got] = 0;
    if (n) *n = got;
    return text;
}

/* Names of a folder, sorted; none where it is none. */
static int dots(const struct dirent *d) { return strcmp(d->d_name, ".") && strcmp(d->d_name, ".."); }
static int names(const char *path, struct dirent ***list) {
    int n = scandir(path, list, dots, alphasort);
    return n < 0 ? 0 : n;
}
static void names_done(struct dirent **list, int n) {
    for (int i = 0; i < n; i++) free(list[i]);
    if (n) free(list);
}

void tree_copy(const char *from, const char *to) {
    struct stat st;
    struct dirent **list;
    if (lstat(from, &st)) die("no such file", from);
    if (S_ISLNK(st.st_mode)) {
        char target[400] = "";
        if (readlink(from, target, sizeof target - 1) < 0 || symlink(target, to)) die("link", to);
    } else if (S_ISDIR(st.st_mode)) {
        if (mkdir(to, 0777) && errno != EEXIST) die("mkdir", to);
        int n = names(from, &list);
        for (int i = 0; i < n; i++) {
            char *a = path_of(from, list[i]->d_name), *b = path_of(to, list[i]->d_name);
            tree_copy(a, b);
            free(a), free(b);
        }
        names_done(list, n);
    } else {
        int n, fd = open(to, O_WRONLY | O_CREAT | O_EXCL, 0666);
        char *text = text_of(from, &n);
        if (fd < 0 || write(fd, text, (size_t)n) != n) die("write", to);
        close(fd);
        free(text);
    }
}

void tree_remove(const char *path) {
    struct dirent **list;
    if (!unlink(path) || errno == ENOENT) return;
    int n = names(path, &list);
    for (int i = 0; i < n; i++) {
        char *a = path_of(path, list[i]->d_name);
        tree_remove(a);
        free(a);
    }
    names_done(list, n);
    if (rmdir(path)) die("rmdir", path);
}

/* ---- comparing
 * ------------------------------------------------------------------------------------------------------ */

static bool is(const char *path, const char *end) {
    size_t n = strlen(path), k = strlen(end);
    return n >= k && !strcmp(path + n - k, end);
}
/* What the case itself has written, and what a run that was killed before its first checkpoint had, which the next one
 * keeps. */
static bool skipped(const char *name) {
    if (!strncmp(name, "old-", 4) && (is(name, "metrics.jsonl") || is(name, "samples.txt"))) return true;
    return !strcmp(name, "out") || !strcmp(name, "err") || !strcmp(name, "started") || !strncmp(name, "counts.", 7);
}
static bool clocked(const char *path) {
    static const char *const ends[] = {"/run.jsonl", "/clock.json", "/results.json", "/speed.json",
                                       "/table.md",  "/table.html", "-seed-1.json",  "/converted.json"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (is(path, ends[i])) return true;
    return false;
}
/* Cut what the clock says out of every line: from `key` to the line's end. */
static void cut_lines(char *text, const char *key) {
    for (char *at = text; (at = strstr(at, key));) {
        size_t n = strcspn(at, "\n");
        memmove(at, at + n, strlen(at + n) + 1);
    }
}
static void without_clock(char *text) { cut_lines(text, ",\"tok_s\":"); }
static bool may_lack(const char *name) {
    return !strncmp(name, "step-", 5) || !strcmp(name, "best") || !strcmp(name, "last");
}

static bool differ(char why[300], const char *path, const char *what) {
    snprintf(why, 300, "%.200s: %s", path, what);
    return false;
}
static bool same_file(const char *a, const char *b, bool loose, char why[300]) {
    int n, m;
    if (clocked(a) || (loose && is(a, "/state.json"))) return true;
    char *x = text_of(a, &n), *y = text_of(b, &m);
    if (is(a, ".jsonl") || is(a, ".json")) {
        without_clock(x), without_clock(y);
        n = (int)strlen(x), m = (int)strlen(y);
    }
    bool same = n == m && !memcmp(x, y, (size_t)n);
    if (!same) {
        char what[60];
        snprintf(what, sizeof what, "other bytes (%d, expected %d)", n, m);
        differ(why, a, what);
    }
    free(x), free(y);
    return same;
}
bool tree_same(const char *a, const char *b, bool loose, char why[300]) {
    struct stat s, t;
    struct dirent **x, **y;
    if (lstat(a, &s)) return differ(why, a, "is missing");
    if (lstat(b, &t)) return differ(why, a, "is too much");
    if ((s.st_mode & S_IFMT) != (t.st_mode & S_IFMT)) return differ(why, a, "is of another type");
    if (S_ISLNK(s.st_mode)) {
        char p[400] = "", q[400] = "";
        if (readlink(a, p, sizeof p - 1) < 0 || readlink(b, q, sizeof q - 1) < 0) die("readlink", a);
        return !strcmp(p, q) || (loose && is(a, "/best")) || differ(why, a, "names another");
    }
    if (!S_ISDIR(s.st_mode)) return same_file(a, b, loose, why);
    int n = names(a, &x), m = names(b, &y), i = 0, j = 0;
    bool same = true;
    while (same && (i < n || j < m)) {
        int c = i == n ? 1 : j == m ? -1 : strcmp(x[i]->d_name, y[j]->d_name);
        const char *name = c <= 0 ? x[i]->d_name : y[j]->d_name;
        char *p = path_of(a, name), *q = path_of(b, name);
        if (!skipped(name) && c) {
            if (!(loose && may_lack(name))) same = differ(why, p, c < 0 ? "is too much" : "is missing");
        } else if (!skipped(name))
            same = tree_same(p, q, loose, why);
        i += c <= 0, j += c >= 0;
        free(p), free(q);
    }
    names_done(x, n), names_done(y, m);
    return same;
}

char *tree_left(const char *path) {
    struct dirent **x;
    struct stat st;
    char *found = NULL;
    if (lstat(path, &st) || !S_ISDIR(st.st_mode)) return NULL;
    int n = names(path, &x);
    for (int i = 0; i < n && !found; i++) {
        char *p = path_of(path, x[i]->d_name);
        if (strstr(x[i]->d_name, ".tmp") || !strncmp(x[i]->d_name, ".tmp-", 5))
            found = p;
        else
            found = tree_left(p), free(p);
    }
    names_done(x, n);
    return found;
}
