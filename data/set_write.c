/* set_write.c: writes sets of Megatron and llm.c under temporary names, then renames them together. */
#include "set_write.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { ROOM = 1 << 20, LLMC_HEADER = 1024 };
struct SetWriter {
    SetWriteCfg cfg;
    char *prefix;
    SetWritten sum;
    FileOut file[SET_SHARDS_MAX]; /* (nfile) */
    int nfile;
    FileOut set, count;     /* never finished: set_publishing(), with the lock on the whole set; `lengths` */
    bool keep;              /* temporary names are not removed: they stay to be published, or are another's by now */
    int64_t here, document; /* tokens of the last file, of the document */
    unsigned char *buf;
    size_t nbuf;
    FILE *lengths; /* Megatron: the length of each document as int32; closed with its file */
};

/* The name of shard i; shards 0: of the one file. malloc'ed. */
static char *part_path(const char *prefix, int shards, int i) {
    return shards ? xformat("%s_%06d.bin", prefix, i) : xformat("%s.bin", prefix);
}
static bool set_write_flush(SetWriter *w, Err *e) {
    size_t n = w->nbuf;
    w->nbuf = 0;
    return file_put(&w->file[w->nfile - 1], w->buf, n, e);
}
static bool set_write_put(SetWriter *w, const void *p, size_t n, Err *e) {
    if (w->nbuf + n > ROOM && !set_write_flush(w, e)) return false;
    memcpy(w->buf + w->nbuf, p, n);
    w->nbuf += n;
    return true;
}

static bool next_file(SetWriter *w, Err *e) {
    unsigned char head[LLMC_HEADER] = {0};
    if (w->nfile == SET_SHARDS_MAX)
        return err_input(e, "more than %d shards of %lld tokens; give a larger --shard-tokens", SET_SHARDS_MAX,
                         (long long)w->cfg.shard);
    char *path = part_path(w->prefix, w->cfg.shard ? SET_SHARDS_MAX : 0, w->nfile);
    bool ok = file_begin(&w->file[w->nfile], path, e);
    w->nfile += ok;
    w->here = 0;
    free(path);
    return ok && (w->cfg.kind != SET_LLMC || set_write_put(w, head, sizeof head, e));
}

static bool set_write_begin(FileOut *o, const char *prefix, const char *end, Err *e) {
    char *path = xformat("%s.%s", prefix, end);
    bool ok = file_begin(o, path, e);
    free(path);
    return ok;
}
/* If it cannot be locked, the error names the file that the user asked for. */
static bool lock_set(SetWriter *w, Err *e) {
    if (set_write_begin(&w->set, w->prefix, "set", e)) return true;
    char *set = xformat("%s.set", w->prefix), *at = e ? strstr(e->msg, set) : NULL;
    if (at) memcpy(at + strlen(w->prefix), ".bin", 4);
    free(set);
    return false;
}
static bool remove_one(char *path, Err *e) {
    char *tmp = file_unfinished(path);
    bool ok = !unlink(tmp) || errno == ENOENT || err_errno(e, "cannot remove unfinished", tmp);
    free(tmp);
    free(path);
    return ok;
}
/* Remove what a killed process left of a set of this name. The lock on the set is held, so nobody else writes it. */
static bool set_write_remove_left(const char *prefix, Err *e) {
    static const char *const ends[] = {"bin", "idx", "lengths"};
    bool ok = true;
    for (int i = 0; ok && i < 3; i++) ok = remove_one(xformat("%s.%s", prefix, ends[i]), e);
    for (int i = 0; ok && i < SET_SHARDS_MAX; i++) ok = remove_one(xformat("%s_%06d.bin", prefix, i), e);
    return ok;
}

/* ---- publication ----------------------------------------------------------------------------------------------------
 * A set of several files gets its names by several renames. All files are whole and on disk under their temporary names
 * before the first of them, and set_publishing() then says that they are. Where a kill or an error cuts the renames
 * off, the next writer of that name does the rest first, and readers refuse the set until then (set_kind). */

static const char publishing[] = "publishing %d %d\n"; /* SetKind, number of shards (0: one file) */

/* Give the finished file its name; again: unless it has it already. Frees `path`. */
static bool rename_one(char *path, bool again, Err *e) {
    char *tmp = file_unfinished(path);
    bool ok = !rename(tmp, path) || (again && errno == ENOENT) ||
              err_runtime(e, "cannot rename %s to %s: %s; the next data tokenize to this name will do it", tmp, path,
                          strerror(errno));
    free(tmp);
    free(path);
    return ok;
}
/* An older set's index next to new ids would give wrong documents, or make an llm.c file look like a Megatron set. */
static bool drop_older_index(const char *prefix, SetKind kind, Err *e) {
    char *idx = xformat("%s.idx", prefix), *tmp = file_unfinished(idx);
    struct stat st;
    e->status = 0;
    bool older = kind != SET_MEGATRON || file_look(tmp, &st, e), ok = !e->status;
    if (ok && older)
        ok = !unlink(idx) || errno == ENOENT || err_runtime(e, "cannot replace %s: %s", idx, strerror(errno));
    free(tmp);
    free(idx);
    return ok;
}
/* A pattern that names all shards would also read those that an older, longer set of this name has left. The last one
 * goes first, so that those of which a kill leaves some still follow each other. */
static bool drop_older_shards(const char *prefix, int from, Err *e) {
    int n = from;
    bool ok = true, there = true;
    e->status = 0;
    for (; there && n < SET_SHARDS_MAX; n += there) {
        char *old = part_path(prefix, SET_SHARDS_MAX, n);
        struct stat st;
        there = file_look(old, &st, e);
        free(old);
    }
    while (ok && !e->status && n-- > from) {
        char *old = part_path(prefix, SET_SHARDS_MAX, n);
        ok = !unlink(old) || errno == ENOENT || err_errno(e, "cannot replace", old);
        free(old);
    }
    return ok && !e->status;
}
/* again: continue a publication that was interrupted at any point. */
static bool set_write_publish(const char *prefix, SetKind kind, int shards, bool again, Err *e) {
    bool ok = shards || drop_older_index(prefix, kind, e);
    for (int i = 0; ok && i < imax(shards, 1); i++) ok = rename_one(part_path(prefix, shards, i), again, e);
    if (ok && shards) ok = drop_older_shards(prefix, shards, e);
    /* The index last: without it the ids are not a set yet. */
    if (ok && kind == SET_MEGATRON) ok = rename_one(xformat("%s.idx", prefix), again, e);
    return ok && file_sync_folder(prefix, e);
}

/* The file has all its bytes on disk, and still its temporary name. */
static bool set_write_finish(const FileOut *o, Err *e) {
    if (TEMP_FAILURE_RETRY(fsync(o->fd)) && errno != EINVAL)
        return err_runtime(e, "cannot sync %s: %s", o->path, strerror(errno));
    if (file_is(o->fd, o->tmp, e)) return true;
    return !e->status && err_runtime(e, "%s: another process replaced %s meanwhile", o->path, o->tmp);
}
/* A single rename is all or nothing, so that a file of llm.c without an older index needs no such word. */
static bool publishing_begin(SetWriter *w, int shards, Err *e) {
    e->status = 0;
    struct stat st;
    char *idx = xformat("%s.idx", w->prefix), *text = xformat(publishing, (int)w->cfg.kind, shards);
    bool several = w->cfg.kind == SET_MEGATRON || shards || file_look(idx, &st, e), ok = !e->status;
    for (int i = 0; ok && i < w->nfile; i++) ok = set_write_finish(&w->file[i], e);
    if (ok && several)
        ok = w->keep =
            file_put(&w->set, text, strlen(text), e) && set_write_finish(&w->set, e) && file_sync_folder(w->prefix, e);
    free(text);
    free(idx);
    return ok;
}
/* Finishes a publication that a killed process had begun. */
static bool publishing_left(const char *prefix, Err *e) {
    char *tmp = set_publishing(prefix), *path = part_path(prefix, 0, 0), text[40] = "";
    int kind, shards, fd = file_own(AT_FDCWD, tmp, O_RDWR, tmp, e);
    bool ok = fd >= 0 || !e->status;
    if (fd >= 0 && file_lock(fd, false, tmp, path, e)) {
        ssize_t n = TEMP_FAILURE_RETRY(pread(fd, text, sizeof text - 1, 0));
        ok = n >= 0 || err_errno(e, "cannot read", tmp);
        if (ok && n && text[n - 1] == '\n' && sscanf(text, publishing, &kind, &shards) == 2 &&
            (kind == SET_MEGATRON || kind == SET_LLMC) && shards >= 0 && shards <= SET_SHARDS_MAX)
            ok = set_write_publish(prefix, (SetKind)kind, shards, true, e) &&
                 (!unlink(tmp) || err_errno(e, "cannot remove", tmp)) && file_sync_folder(prefix, e);
    } else if (fd >= 0) {
        ok = !e->status; /* another process has ended it by now */
    }
    if (fd >= 0) close(fd);
    free(tmp);
    free(path);
    return ok;
}

/* ---- the writer -----------------------------------------------------------------------------------------------------
 */

SetWriter *set_write_open(const SetWriteCfg *cfg, const char *prefix, Err *e) {
    SetWriter *w = xcalloc(1, sizeof *w);
    CHECK(cfg->kind == SET_LLMC || (cfg->kind == SET_MEGATRON && !cfg->shard), "kind %d", cfg->kind);
    w->cfg = *cfg;
    w->set.fd = w->count.fd = -1;
    w->prefix = xstrdup(prefix);
    w->buf = xcalloc(ROOM, 1);
    w->sum.type = cfg->kind == SET_LLMC ? (cfg->vocab <= 65536 ? ID_16 : ID_32) : cfg->vocab < 65500 ? ID_16 : ID_S32;
    bool ok = publishing_left(prefix, e) && lock_set(w, e) && set_write_remove_left(prefix, e) && next_file(w, e);
    if (ok && cfg->kind == SET_MEGATRON) { /* next to the set, where there is room for it */
        ok = set_write_begin(&w->count, prefix, "lengths", e);
        w->lengths = ok ? fdopen(dup(w->count.fd), "w+b") : NULL;
        if (ok && !w->lengths) ok = err_errno(e, "cannot create", w->count.tmp);
    }
    if (ok) return w;
    set_write_close(w);
    return NULL;
}

static void let_go(const SetWriter *w, FileOut *o) {
    if (w->keep) free(o->tmp), o->tmp = NULL;
    file_drop(o);
}
void set_write_close(SetWriter *w) {
    if (!w) return;
    for (int i = 0; i < w->nfile; i++) let_go(w, &w->file[i]);
    if (w->lengths) fclose(w->lengths);
    file_drop(&w->count);
    let_go(w, &w->set);
    free(w->prefix);
    free(w->buf);
    free(w);
}

bool set_write_ids(SetWriter *w, const int *id, size_t n, Err *e) {
    size_t width = id_bytes(w->sum.type);
    int64_t most = w->cfg.kind == SET_LLMC && w->cfg.shard ? w->cfg.shard : SHARD_TOKENS_MAX;
    for (size_t i = 0; i < n; i++) {
        bool full = w->cfg.kind == SET_LLMC && w->here == most;
        if (full && !w->cfg.shard)
            return err_input(e, "more than %d tokens, the limit of an llm.c file; give --shard-tokens",
                             SHARD_TOKENS_MAX);
        if (full && (!set_write_flush(w, e) || !next_file(w, e))) return false;
        if (!set_write_put(w, &id[i], width, e)) return false; /* little-endian: the low bytes come first */
        w->here++;
    }
    w->document += (int64_t)n;
    w->sum.tokens += (int64_t)n;
    return true;
}

bool set_write_document(SetWriter *w, Err *e) {
    int32_t n = (int32_t)w->document;
    if (w->cfg.kind == SET_MEGATRON && w->document > INT32_MAX)
        return err_input(e, "a document of %lld tokens; at most %d fit into the index", (long long)w->document,
                         INT32_MAX);
    w->document = 0;
    w->sum.documents++;
    if (w->lengths && fwrite(&n, sizeof n, 1, w->lengths) != 1)
        return err_runtime(e, "cannot write %s: %s", w->prefix, strerror(errno));
    return true;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Write the header of each file, now that its tokens are counted. */
static bool llmc_heads(SetWriter *w, Err *e) {
    for (int i = 0; i < w->nfile; i++) {
        int64_t n = i + 1 < w->nfile ? w->cfg.shard : w->here;
        int32_t head[3] = {w->sum.type == ID_16 ? 20240520 : 20240801, w->sum.type == ID_16 ? 1 : 7, (int32_t)n};
        if (TEMP_FAILURE_RETRY(pwrite(w->file[i].fd, head, sizeof head, 0)) != (ssize_t)sizeof head)
            return err_runtime(e, "cannot write %s: %s", w->file[i].path, strerror(errno));
    }
    return true;
}

typedef struct {
    FileOut *o;
    unsigned char *buf;
    size_t n;
} Out;
static bool set_write_out8(Out *o, const void *p, size_t n, Err *e) {
    if (o->n + n > ROOM) {
        if (!file_put(o->o, o->buf, o->n, e)) return false;
        o->n = 0;
    }
    memcpy(o->buf + o->n, p, n);
    o->n += n;
    return true;
}

/* Lengths are read twice: as the index holds them, and summed to places. */
static bool index_body(SetWriter *w, Out *o, Err *e) {
    uint64_t n = (uint64_t)w->sum.documents, head[3] = {1, n, n + 1}, at = 0;
    unsigned char code = w->sum.type == ID_16 ? 8 : 4;
    if (!set_write_out8(o, "MMIDIDX\0", 9, e) || !set_write_out8(o, &head[0], 8, e) ||
        !set_write_out8(o, &code, 1, e) || !set_write_out8(o, &head[1], 16, e))
        return false;
    for (int pass = 0; pass < 2; pass++) {
        rewind(w->lengths);
        for (uint64_t i = 0; i < n; i++) {
            int32_t k;
            if (fread(&k, sizeof k, 1, w->lengths) != 1)
                return err_runtime(e, "cannot read back the lengths of %s: %s", w->prefix, strerror(errno));
            if (!(pass ? set_write_out8(o, &at, 8, e) : set_write_out8(o, &k, 4, e))) return false;
            at = pass ? at + (uint64_t)k * id_bytes(w->sum.type) : 0;
        }
    }
    for (uint64_t i = 0; i <= n; i++)
        if (!set_write_out8(o, &i, 8, e)) return false;
    return file_put(o->o, o->buf, o->n, e);
}

static bool set_write_drop(FileOut *o, Err *e) {
    bool ok = !o->tmp || !unlink(o->tmp) || err_errno(e, "cannot remove unfinished", o->tmp);
    free(o->tmp);
    o->tmp = NULL;
    file_drop(o);
    return ok;
}

static bool index_file(SetWriter *w, Err *e) {
    if (fflush(w->lengths)) return err_runtime(e, "cannot write %s.idx: %s", w->prefix, strerror(errno));
    if (!set_write_begin(&w->file[w->nfile], w->prefix, "idx", e)) return false;
    return index_body(w, &(Out){.o = &w->file[w->nfile++], .buf = w->buf}, e);
}

bool set_write_commit(SetWriter *w, SetWritten *sum, Err *e) {
    if (!w->sum.tokens) return err_input(e, "no text in the input: there is nothing to write");
    if (!set_write_flush(w, e)) return false;
    w->sum.shards = w->nfile;
    *sum = w->sum;
    int shards = w->cfg.shard ? w->nfile : 0;
    if (!(w->cfg.kind == SET_MEGATRON ? index_file(w, e) : llmc_heads(w, e))) return false;
    if (!publishing_begin(w, shards, e) || !set_write_publish(w->prefix, w->cfg.kind, shards, false, e)) return false;
    w->keep = true;
    return set_write_drop(&w->count, e) && set_write_drop(&w->set, e) && file_sync_folder(w->prefix, e);
}
