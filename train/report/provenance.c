#include "provenance.h"
#include "infer/text.h"
#include "model/cli.h"
#include "ops/file.h"
#include "ops/host.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <time.h>
#include <unistd.h>

#ifndef KVSMITH_COMMIT /* the Makefile gives it where it knows; "" where it does not */
    #define KVSMITH_COMMIT ""
#endif

/* Words and names are bytes of any kind; JSON is UTF-8. */
static json_t *text_json(const char *s) {
    size_t n;
    char *clean = utf8_clean(s, strlen(s), &n);
    json_t *j = json_stringn(clean, n);
    free(clean);
    return j;
}

bool provenance_append(const Trainer *t, int nword, char *const word[], const char *resumed, Err *e) {
    char started[32], host[256] = "";
    time_t now = time(NULL);
    struct tm utc;
    gethostname(host, sizeof host - 1);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *j = json_object(), *command = json_array();
    for (int i = 0; i < nword; i++) json_array_append_new(command, text_json(word[i]));
    json_object_set_new(j, "started", json_string(started));
    json_object_set_new(j, "command", command);
    json_object_set_new(j, "version", json_string(KVSMITH_VERSION));
    json_object_set_new(j, "commit", *KVSMITH_COMMIT ? json_string(KVSMITH_COMMIT) : json_null());
    json_object_set_new(j, "host", text_json(host));
    json_object_set_new(j, "device", json_string(device_apart(t->dev) ? "cuda" : "cpu"));
    json_object_set_new(j, "isa", json_string(device_isa(t->dev)));
    json_object_set_new(j, "threads", json_integer(device_threads(t->dev)));
    json_object_set_new(j, "ranks", json_integer(dist_world(t->run->comm)));
    json_object_set_new(j, "dtype", json_string(t->cfg->train.dtype == DTYPE_BF16 ? "bf16" : "f32"));
    json_object_set_new(j, "step", json_integer((json_int_t)t->run->state.step));
    json_object_set_new(j, "resumed", resumed ? text_json(resumed) : json_null());
    char *line = json_dumps(j, JSON_COMPACT), *path = run_dir_file(&t->run->dir, "run.jsonl");
    json_decref(j);
    int fd = file_own(t->run->dir.fd, "run.jsonl", O_WRONLY | O_CREAT | O_APPEND, path, e);
    bool ok = fd >= 0;
    if (ok) { /* in one piece, or torn by a full disk */
        char *whole = xformat("%s\n", line);
        ssize_t n = (ssize_t)strlen(whole), put = TEMP_FAILURE_RETRY(write(fd, whole, (size_t)n));
        ok = put == n || err_runtime(e, "cannot write %s: %s", path, strerror(put < 0 ? errno : ENOSPC));
        if (close(fd) && errno != EINTR && ok) ok = err_runtime(e, "cannot write %s: %s", path, strerror(errno));
        free(whole);
    }
    free(line);
    free(path);
    return ok;
}
