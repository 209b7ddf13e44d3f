/* hf_copy.c: what a model directory holds beside its settings and weights, taken along unchanged. */
#include "../ops/file.h"
#include "hf.h"
#include <dirent.h>
#include <errno.h>
#include <strings.h>
#include <sys/stat.h>

/* Tokenizers, templates, settings of sampling, licences. Not: what is written for every model, weights in any format,
 * and what tells of the training of another model. */
static bool taken(const char *name) {
    static const char *const not [] = {"config.json", "trainer_state.json", "all_results.json", "train_results.json",
                                       "eval_results.json"};
    static const char *const end[] = {".json", ".txt", ".model", ".jinja", ".bpe", ".tiktoken"};
    static const char *const begin[] = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (!strcmp(name, not [i])) return false;
    if (*name == '.' || !strncasecmp(name, "readme", 6)) return false;
    if (n >= 11 && !strcmp(name + n - 11, ".index.json")) return false;
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        if (!strncmp(name, begin[i], strlen(begin[i]))) return true;
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (n > strlen(end[i]) && !strcmp(name + n - strlen(end[i]), end[i])) return true;
    return false;
}

static bool copy(const char *from, const char *to, Err *e) {
    FileMap m;
    if (!file_map(&m, from, e)) return false;
    bool ok = file_write(to, m.p, m.n, e);
    file_unmap(&m);
    return ok;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

bool hf_copy(const char *from, const char *to, Err *e) {
    struct stat a, b;
    DIR *d = opendir(from);
    if (!d) return err_input(e, "cannot open %s: %s", from, strerror(errno));
    char **name = NULL;
    int n = 0;
    bool ok = true;
    for (struct dirent *x; (x = readdir(d));)
        if (taken(x->d_name) && file_exists(from, x->d_name)) {
            name = xrealloc(name, (size_t)n + 1, sizeof *name);
            name[n++] = xstrdup(x->d_name);
        }
    closedir(d);
    if (n) qsort(name, (size_t)n, sizeof *name, by_name); /* a failure is the same one every time */
    bool same = !stat(from, &a) && !stat(to, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    for (int i = 0; i < n; i++) {
        char *x = xformat("%s/%s", from, name[i]), *y = xformat("%s/%s", to, name[i]);
        ok = ok && (same || copy(x, y, e));
        free(x);
        free(y);
        free(name[i]);
    }
    free(name);
    return ok;
}
