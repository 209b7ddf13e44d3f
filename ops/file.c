/* file.c: mapping, bounded JSON, atomic writing. */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool file_map(FileMap *m, const char *path, Err *e) {
    *m = (FileMap){0};
    struct stat st;
    /* Without O_NONBLOCK a pipe would wait for a writer for ever. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_errno(e, "cannot open", path);
    if (fstat(fd, &st)) {
        err_errno(e, "cannot read", path);
        close(fd);
        return false;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return err_input(e, "%s: expected a file, found a %s", path,
                         S_ISDIR(st.st_mode) ? "directory" : "device or pipe");
    }
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            err_errno(e, "cannot map", path);
            close(fd);
            return false;
        }
        *m = (FileMap){p, (size_t)st.st_size};
    }
    close(fd);
    return true;
}

bool file_is_gguf(const char *path) {
    char magic[4] = "";
    FILE *f = fopen(path, "re");
    bool yes = f && fread(magic, 1, 4, f) == 4 && !memcmp(magic, "GGUF", 4);
    if (f) fclose(f);
    return yes;
}

void file_unmap(FileMap *m) {
    if (m->p) munmap((void *)m->p, m->n);
    *m = (FileMap){0};
}

bool file_exists(const char *dir, const char *name) {
    struct stat st;
    char *path = xformat("%s/%s", dir, name);
    bool yes = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return yes;
}

/* The parser spends up to a few hundred bytes on a value of two characters, so values are counted before it starts. */
static size_t count_values(const char *p, size_t n) {
    size_t c = 0;
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        if (text) {
            if (p[i] == '\\')
                i++;
            else if (p[i] == '"')
                text = false;
        } else if (p[i] == '"') {
            text = true;
        } else {
            c += p[i] == ',' || p[i] == '[' || p[i] == '{';
        }
    }
    return c;
}

bool json_bounded(const void *p, size_t n, const char *where, Err *e) {
    if (n > JSON_BYTES_MAX) return err_input(e, "%s: JSON of %zu bytes, at most %d are read", where, n, JSON_BYTES_MAX);
    return (n ? count_values(p, n) : 0) <= JSON_VALUES_MAX ||
           err_input(e, "%s: JSON of more than %d values", where, JSON_VALUES_MAX);
}

json_t *json_parse(const void *p, size_t n, const char *where, enum json_error_code *why, Err *e) {
    json_error_t je;
    enum json_error_code none;
    if (!why) why = &none;
    *why = json_error_unknown;
    if (!json_bounded(p, n, where, e)) return NULL;
    json_t *j = json_loadb(n ? p : "", n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    if (!j) {
        *why = json_error_code(&je);
        if (*why == json_error_out_of_memory)
            err_world(e, "%s: out of memory while reading JSON of %zu bytes", where, n);
        else if (*why == json_error_null_byte_in_key) /* valid JSON, but jansson ends a key at NUL */
            err_input(e,
                      "%s: the key at line %d, column %d holds the character \\u0000, which is not supported; in a "
                      "tokenizer.json, take that token out of model.vocab",
                      where, je.line, je.column);
        else
            err_input(e, "%s: not valid JSON at line %d, column %d: %s", where, je.line, je.column, je.text);
        return NULL;
    }
    if (!json_is_object(j)) {
        *why = json_error_wrong_type;
        err_input(e, "%s: expected a JSON object, found an array", where);
        json_decref(j);
        return NULL;
    }
    return j;
}

json_t *json_read(const char *path, Err *e) {
    FileMap m;
    if (!file_map(&m, path, e)) return NULL;
    json_t *j = json_parse(m.p, m.n, path, NULL, e);
    file_unmap(&m);
    return j;
}

/* Remove what was begun; the reason is errno of the call that failed. */
static bool out_failed(FileOut *o, const char *what, Err *e) {
    int n = errno;
    err_world(e, "cannot %s %s: %s", what, o->path, strerror(n));
    file_drop(o);
    return false;
}

void file_drop(FileOut *o) {
    if (o->fd >= 0) close(o->fd);
    if (o->tmp) unlink(o->tmp);
    free(o->tmp);
    free(o->path);
    *o = (FileOut){.fd = -1};
}

bool file_begin(FileOut *o, const char *path, Err *e) {
    const int how = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    struct stat st;
    *o = (FileOut){.fd = -1};
    if (!*path) return err_input(e, "the name of the file to write is empty");
    /* The rename would put a file in the place of a device or pipe. */
    if (!lstat(path, &st) && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return err_input(e, "%s: expected a file to write, found a %s", path,
                         S_ISDIR(st.st_mode) ? "directory" : "device or pipe");
    *o = (FileOut){.fd = -1, .path = xstrdup(path), .tmp = xformat("%s.tmp%ld", path, (long)getpid())};
    o->fd = open(o->tmp, how, 0666);
    /* A process of the same number died here once; whatever stands there is a leftover. */
    if (o->fd < 0 && errno == EEXIST && unlink(o->tmp) == 0) o->fd = open(o->tmp, how, 0666);
    if (o->fd >= 0) return true;
    err_errno(e, "cannot create", path);
    free(o->tmp);
    free(o->path);
    *o = (FileOut){.fd = -1};
    return false;
}

bool file_put(FileOut *o, const void *p, size_t n, Err *e) {
    for (const char *c = p; n;) {
        ssize_t w = write(o->fd, c, zmin(n, (size_t)1 << 30));
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return out_failed(o, "write", e);
        c += w;
        n -= (size_t)w;
    }
    return true;
}

/* A rename is only durable once its directory is synced; systems that cannot sync a directory say EINVAL. */
static bool sync_dir(const char *path) {
    char *copy = xstrdup(path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    if (fd < 0) return false;
    bool ok = fsync(fd) == 0 || errno == EINVAL;
    int n = errno;
    close(fd);
    errno = n;
    return ok;
}

bool file_commit(FileOut *o, Err *e) {
    if (fsync(o->fd) && errno != EINVAL) return out_failed(o, "sync", e);
    int fd = o->fd;
    o->fd = -1;
    if (close(fd)) return out_failed(o, "close", e);
    if (rename(o->tmp, o->path)) return out_failed(o, "rename the finished file to", e);
    free(o->tmp);
    o->tmp = NULL;
    if (!sync_dir(o->path)) return out_failed(o, "sync the directory of", e);
    file_drop(o);
    return true;
}

bool file_write(const char *path, const void *p, size_t n, Err *e) {
    FileOut o;
    return file_begin(&o, path, e) && file_put(&o, p, n, e) && file_commit(&o, e);
}

/* The fewest digits, at least `least`, that give every number back: 1e-5 and not 1.0000000000000001e-5. */
static int digits(json_t *j, int least) {
    char text[32];
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach(j, key, v) least = digits(v, least);
    json_array_foreach(j, i, v) least = digits(v, least);
    for (; json_is_real(j) && least < 17; least++) {
        snprintf(text, sizeof text, "%.*g", least, json_real_value(j));
        if (strtod(text, NULL) == json_real_value(j)) break;
    }
    return least;
}

bool json_write(const char *path, json_t *j, Err *e) {
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(digits(j, 1)));
    if (!text) return err_world(e, "cannot write %s: out of memory", path);
    char *line = xformat("%s\n", text);
    bool ok = file_write(path, line, strlen(line), e);
    free(line);
    free(text);
    return ok;
}

bool file_folders(const char *path, const char *what, int *made, Err *e) {
    char *p = xstrdup(path), say[64];
    bool ok = true;
    int n = 0;
    for (char *c = p + !!*p; ok; c++) {
        if (*c != '/' && *c) continue;
        char was = *c;
        *c = 0;
        if (!mkdir(p, 0777)) {
            n++;
        } else if (errno != EEXIST) {
            snprintf(say, sizeof say, "cannot make %s", what);
            ok = err_errno(e, say, p);
        }
        *c = was;
        if (!was) break;
    }
    free(p);
    if (made) *made = n;
    return ok;
}
