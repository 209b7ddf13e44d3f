/* hf_copy.c: copies the other files of a model directory (tokenizer, templates, licences) unchanged. */
#include "ops/file.h"
#include "hf.h"
#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

/* True for tokenizers, templates, sampling settings and licences. False for files that are written for every model,
 * weights in any format, and records of another model's training. */
static bool hf_copy_taken(const char *name) {
    static const char *const not [] = {"config.json",        "trainer_state.json", "all_results.json",
                                       "train_results.json", "eval_results.json",  "dms_metadata.json",
                                       "training_log.json"};
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

static bool hf_copy_copy(const char *from, const char *to, Err *e) {
    FileMap m;
    if (!file_map(&m, from, e)) return false;
    bool ok = file_write(to, m.p, m.n, e);
    file_unmap(&m);
    return ok;
}

bool hf_copy(const char *from, const char *to, Err *e) {
    struct stat a, b;
    Names l = {0};
    int fd = TEMP_FAILURE_RETRY(open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return err_errno(e, "cannot open", from);
    bool ok = file_names(&l, fd, from, e);
    close(fd);
    ok = ok && ((!stat(from, &a) && !stat(to, &b)) || err_errno(e, "cannot look at", to));
    const bool same = ok && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    for (int i = 0; ok && !same && i < l.n; i++) {
        char *x = xformat("%s/%s", from, l.name[i]), *y = xformat("%s/%s", to, l.name[i]);
        if (hf_copy_taken(l.name[i])) ok = file_exists(from, l.name[i], e) ? hf_copy_copy(x, y, e) : !e->status;
        free(x);
        free(y);
    }
    names_free(&l);
    return ok;
}
