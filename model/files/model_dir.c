/* model_dir.c: the directory that a user means by the name of a model. */
#include "model_dir.h"
#include "ops/file.h"
#include "ops/text.h"
#include "peft.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static bool model_dir_has_config(const char *dir, Err *e) {
    char *p = xformat("%s/config.json", dir);
    struct stat st;
    bool ok = file_look(p, &st, e);
    free(p);
    return ok;
}

/* The directory that a run folder's link names, if it holds config.json. A run that saves meanwhile may have moved the
 * link and removed the old directory. */
static bool model_dir_follow(const char *run, const char *name, char out[4096], Err *e) {
    char *link = xformat("%s/%s", run, name), to[1024], before[1024] = "";
    bool found = false;
    for (int tries = 0; tries < 100 && !found && !e->status; tries++) {
        ssize_t n = readlink(link, to, sizeof to - 1);
        if (n < 0 && errno != ENOENT && errno != EINVAL && errno != ENOTDIR) err_errno(e, "cannot read link", link);
        if (n < 0) break;
        to[n] = 0;
        if (!strcmp(to, before)) break; /* the same as a moment ago */
        strcpy(before, to);
        snprintf(out, 4096, *to == '/' ? "%.0s%s" : "%.2048s/%s", run, to);
        found = model_dir_has_config(out, e);
    }
    if (!*before && !e->status) { /* a folder with the link's name */
        snprintf(out, 4096, "%s", link);
        found = model_dir_has_config(out, e);
    }
    free(link);
    return found;
}

bool model_dir_resolve(const char *path, char out[4096], Err *e) {
    struct stat st;
    if (strlen(path) > 2048) return err_input(e, "model path: longer than 2048 bytes");
    if (stat(path, &st)) {
        char hub[200];
        int why = errno;
        if (why == ENOENT && *hub_text(path, "", hub)) return err_input(e, "model %s: no such directory%s", path, hub);
        errno = why;
        return err_errno(e, "model", path);
    }
    if (!S_ISDIR(st.st_mode))
        return err_input(e, "model %.150s: expected a directory with config.json or a run folder, got a %sfile%s", path,
                         file_is_gguf(path) ? "GGUF " : "",
                         file_is_gguf(path) ? "; give the Hugging Face directory that it was made from" : "");
    snprintf(out, 4096, "%s", path);
    Err why = {0};
    if (model_dir_has_config(path, &why)) return true;
    if (!why.status && peft_is(path)) {
        char *base = peft_base(path, e);
        bool ok = base && model_dir_resolve(base, out, e);
        free(base);
        return ok;
    }
    if (!why.status &&
        (model_dir_follow(path, "best", out, &why) || (!why.status && model_dir_follow(path, "last", out, &why))))
        return true;
    if (why.status) {
        if (e) *e = why;
        return false;
    }
    return err_input(e, "model %.180s: has no config.json, nor has its best or last checkpoint", path);
}
