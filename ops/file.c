/* file.c: mapping files, JSON with bounds, atomic writing. */
#include "file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

bool file_map(FileMap *m, const char *path, Err *e) {
    *m = (FileMap){0};
    struct stat st;
    /* Without O_NONBLOCK a pipe would wait for a writer for ever. */
    int fd = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
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

bool file_look(const char *path, struct stat *st, Err *e) {
    e->status = 0;
    if (!stat(path, st)) return true;
    return errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG /* nothing can be there */
               ? false
               : err_errno(e, "cannot look at", path);
}

bool file_exists(const char *dir, const char *name, Err *e) {
    struct stat st;
    char *path = xformat("%s/%s", dir, name);
    bool yes = file_look(path, &st, e) && S_ISREG(st.st_mode);
    free(path);
    return yes;
}

static int file_by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

bool file_names(Names *l, int fd, const char *dir, Err *e) {
    *l = (Names){0};
    int own = TEMP_FAILURE_RETRY(
        openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)); /* with its own position in the listing */
    DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        err_errno(e, "cannot list", dir);
        if (own >= 0) close(own);
        return false;
    }
    struct dirent *x;
    while ((errno = 0, x = readdir(d))) {
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, "..")) continue;
        if ((l->n & (l->n - 1)) == 0) l->name = xrealloc(l->name, 2 * (size_t)imax(l->n, 1), sizeof *l->name);
        l->name[l->n++] = xstrdup(x->d_name);
    }
    int why = errno;
    closedir(d);
    if (l->n) qsort(l->name, (size_t)l->n, sizeof *l->name, file_by_name);
    if (!why) return true;
    names_free(l);
    errno = why;
    return err_errno(e, "cannot list", dir);
}
void names_free(Names *l) {
    for (int i = 0; i < l->n; i++) free(l->name[i]);
    free(l->name);
    *l = (Names){0};
}

int file_own(int at, const char *name, int how, const char *say, Err *e) {
    struct stat st;
    e->status = 0;
    int fd = TEMP_FAILURE_RETRY(openat(at, name, how | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    if (fd < 0 && errno == ELOOP)
        err_input(e, "%s: is a link; expected a regular file, because it is written in place", say);
    if (fd < 0 && errno == ENXIO) err_input(e, "%s: expected a file, found a device or pipe", say);
    if (fd < 0 && errno != ELOOP && errno != ENXIO && (errno != ENOENT || how & O_CREAT))
        err_errno(e, "cannot open", say);
    if (fd < 0) return -1;
    bool ok = !fstat(fd, &st) || err_errno(e, "cannot look at", say);
    if (ok && !S_ISREG(st.st_mode)) ok = err_input(e, "%s: expected a file, found a device or pipe", say);
    if (ok) return fd;
    close(fd);
    return -1;
}

int file_unnamed(const char *dir, Err *e) {
    int fd = TEMP_FAILURE_RETRY(open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (fd >= 0) return fd;
    if (errno != EOPNOTSUPP && errno != EISDIR) {
        err_errno(e, "cannot create a file in", dir);
        return -1;
    }
    /* a file system where every file has a name, if only for a moment */
    for (int i = 0; fd < 0 && i < 1000; i++) {
        char *name = xformat("%s/rows.%d.%d.tmp-kvsmith", dir, (int)getpid(), i);
        fd = TEMP_FAILURE_RETRY(open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        const int why = errno;
        if (fd >= 0 && unlink(name)) {
            err_errno(e, "cannot remove the name of", name);
            close(fd);
            fd = -1, i = 1000;
        } else if (fd < 0 && why != EEXIST) {
            errno = why;
            err_errno(e, "cannot create a file in", dir);
            i = 1000;
        }
        free(name);
    }
    if (fd < 0 && e && !e->status) err_runtime(e, "cannot create a file in %.200s: its names are all taken", dir);
    return fd;
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
    if (n > JSON_BYTES_MAX) return err_input(e, "%s: JSON of %zu bytes, expected at most %d", where, n, JSON_BYTES_MAX);
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
            err_runtime(e, "%s: out of memory while reading JSON of %zu bytes", where, n);
        else if (*why == json_error_null_byte_in_key) /* valid JSON, but jansson ends a key at NUL */
            err_input(e,
                      "%s: the key at line %d, column %d contains the character \\u0000, which is not supported; in a "
                      "tokenizer.json, remove that token from model.vocab",
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

/* A copy of n bytes of JSON with the words that Python writes for numbers without digits as texts; NULL: there are
 * none. Lines stay what they are. */
static char *json_words(const char *p, size_t n, size_t *out) {
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    char *copy = NULL;
    size_t to = 0;
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        const char *word = NULL;
        for (int k = 0; k < 3 && !text && !word; k++)
            if (n - i >= strlen(words[k]) && !memcmp(p + i, words[k], strlen(words[k]))) word = words[k];
        if (word && !copy) copy = xcalloc(2 * n, 1), memcpy(copy, p, to = i);
        if (word) {
            to += (size_t)sprintf(copy + to, "\"%s\"", word);
            i += strlen(word) - 1;
            continue;
        }
        if (p[i] == '"') text = !text;
        if (copy) copy[to++] = p[i];
        if (text && p[i] == '\\' && i + 1 < n) {
            i++;
            if (copy) copy[to++] = p[i];
        }
    }
    *out = to;
    return copy;
}
json_t *json_read(const char *path, Err *e) {
    FileMap m;
    size_t n = 0;
    if (!file_map(&m, path, e)) return NULL;
    char *copy = m.n <= JSON_BYTES_MAX ? json_words((const char *)m.p, m.n, &n) : NULL;
    json_t *j = copy ? json_parse(copy, n, path, NULL, e) : json_parse(m.p, m.n, path, NULL, e);
    free(copy);
    file_unmap(&m);
    return j;
}

/* Remove the unfinished file; the reason is the errno of the call that failed. */
static bool out_failed(FileOut *o, const char *what, Err *e) {
    int n = errno;
    err_runtime(e, "cannot %s %s: %s", what, o->path, strerror(n));
    file_drop(o);
    return false;
}

void file_drop(FileOut *o) {
    if (o->tmp) unlink(o->tmp); /* while it is locked */
    if (o->fd >= 0) close(o->fd);
    free(o->tmp);
    free(o->path);
    *o = (FileOut){.fd = -1};
}

char *file_unfinished(const char *path) { return xformat("%s.tmp-kvsmith", path); }

bool file_is(int fd, const char *path, Err *e) {
    struct stat a, b;
    e->status = 0;
    if (fstat(fd, &a)) return err_errno(e, "cannot look at", path);
    if (lstat(path, &b)) return errno == ENOENT || errno == ENOTDIR ? false : err_errno(e, "cannot look at", path);
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}
bool file_lock(int fd, bool made, const char *tmp, const char *path, Err *e) {
    e->status = 0;
    int r = TEMP_FAILURE_RETRY(flock(fd, LOCK_EX | LOCK_NB));
    if (r && errno == EWOULDBLOCK)
        return err_input(e, "%s: another process is writing it (it locks %s); wait for it, or choose another name",
                         path, tmp);
    const bool none = r && (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP);
    if (r && !none) return err_errno(e, "cannot lock", tmp);
    /* On a file system without locks the name belongs to the process that created it. */
    if (none && !made)
        return err_input(e, "%s: %s exists, and this file system has no locks; remove it if no process is writing",
                         path, tmp);
    /* Another process may have renamed or removed it meanwhile. */
    return file_is(fd, tmp, e);
}

/* Remove what a dead process left at `tmp`; a process that still writes it is an error. */
static void file_remove_left(const char *tmp, const char *path, Err *e) {
    int fd = file_own(AT_FDCWD, tmp, O_WRONLY, tmp, e);
    if (fd < 0) return;
    if (file_lock(fd, false, tmp, path, e) && unlink(tmp)) err_errno(e, "cannot remove unfinished", tmp);
    close(fd);
}

bool file_begin(FileOut *o, const char *path, Err *e) {
    struct stat st;
    Err why = {0};
    *o = (FileOut){.fd = -1};
    if (!*path) return err_input(e, "the name of the file to write is empty");
    if (lstat(path, &st)) {
        if (errno != ENOENT && errno != ENOTDIR) return err_errno(e, "cannot look at", path);
    } else if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) /* the rename would put a file in its place */
        return err_input(e, "%s: expected a file to write, found a %s", path,
                         S_ISDIR(st.st_mode) ? "directory" : "device or pipe");
    *o = (FileOut){.fd = -1, .path = xstrdup(path), .tmp = file_unfinished(path)};
    while (o->fd < 0 && !why.status) {
        o->fd = TEMP_FAILURE_RETRY(open(o->tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
        if (o->fd < 0 && errno != EEXIST)
            err_errno(&why, "cannot create", path);
        else if (o->fd < 0)
            file_remove_left(o->tmp, path, &why);
        else if (!file_lock(o->fd, true, o->tmp, path,
                            &why)) { /* between the two calls another process took it for a leftover */
            close(o->fd);
            o->fd = -1;
        }
    }
    if (o->fd >= 0) return true;
    free(o->tmp);
    free(o->path);
    *o = (FileOut){.fd = -1};
    if (e) *e = why;
    return false;
}

bool file_put(FileOut *o, const void *p, size_t n, Err *e) {
    for (const char *c = p; n;) {
        ssize_t w = write(o->fd, c, zmin(n, (size_t)1 << 30));
        if (w < 0 && errno == EINTR) continue;
        if (w == 0) errno = EIO; /* it would be 0 for ever */
        if (w <= 0) return out_failed(o, "write", e);
        c += w;
        n -= (size_t)w;
    }
    return true;
}

/* A rename is only durable when its directory is synced; systems that cannot sync a directory return EINVAL. */
bool file_sync_folder(const char *path, Err *e) {
    char *copy = xstrdup(path);
    int fd = TEMP_FAILURE_RETRY(open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    free(copy);
    /* nor can a folder that may be written but not read be synced */
    bool ok = fd >= 0 ? TEMP_FAILURE_RETRY(fsync(fd)) == 0 || errno == EINVAL : errno == EACCES;
    if (!ok) err_runtime(e, "cannot sync the folder of %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

bool file_rename_new(const char *tmp, const char *to, Err *e) {
    if (!renameat2(AT_FDCWD, tmp, AT_FDCWD, to, RENAME_NOREPLACE)) return true;
    if ((errno == EINVAL || errno == ENOSYS) && !rename(tmp, to)) return true; /* a file system without the flag */
    if (errno == EEXIST || errno == ENOTEMPTY)
        return err_input(e, "%s: was created meanwhile; give a new name, or remove it", to);
    return err_runtime(e, "cannot rename what is finished to %s: %s", to, strerror(errno));
}

bool file_commit(FileOut *o, Err *e) {
    if (TEMP_FAILURE_RETRY(fsync(o->fd)) && errno != EINVAL) return out_failed(o, "sync", e);
    int fd = o->fd;
    o->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);                             /* holds the lock until the name is the file's */
    if (close(fd) && errno != EINTR) return out_failed(o, "close", e); /* it is closed, and all is on disk */
    Err why = {0};
    if (o->fd >= 0 && !file_is(o->fd, o->tmp, &why)) {
        if (!why.status) err_runtime(&why, "%s: another process replaced %s meanwhile", o->path, o->tmp);
        if (e) *e = why;
        if (why.status) free(o->tmp), o->tmp = NULL; /* it belongs to another process now */
        file_drop(o);
        return false;
    }
    if (o->fresh && !file_rename_new(o->tmp, o->path, e)) {
        file_drop(o);
        return false;
    }
    if (!o->fresh && rename(o->tmp, o->path)) return out_failed(o, "rename the finished file to", e);
    free(o->tmp);
    o->tmp = NULL;
    bool ok = file_sync_folder(o->path, e);
    file_drop(o);
    return ok;
}

bool file_write(const char *path, const void *p, size_t n, Err *e) {
    FileOut o;
    return file_begin(&o, path, e) && file_put(&o, p, n, e) && file_commit(&o, e);
}

/* The fewest digits, at least `least`, that reproduce every value: 1e-5 and not 1.0000000000000001e-5. */
static int file_digits(json_t *j, int least) {
    char text[32];
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach(j, key, v) least = file_digits(v, least);
    json_array_foreach(j, i, v) least = file_digits(v, least);
    for (; json_is_real(j) && least < 17; least++) {
        snprintf(text, sizeof text, "%.*g", least, json_real_value(j));
        if (strtod(text, NULL) == json_real_value(j)) break;
    }
    return least;
}

bool json_write(const char *path, json_t *j, Err *e) {
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(file_digits(j, 1)));
    if (!text) return err_runtime(e, "cannot write %s: out of memory", path);
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
            ok = file_sync_folder(p, e);
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
