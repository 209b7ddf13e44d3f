/* set_write.c: see set_write.h. */
#include "set_write.h"
#include <errno.h>
#include <unistd.h>

enum { ROOM = 1 << 20, LLMC_HEADER = 1024 };
struct SetWriter {
    SetWriteCfg cfg;
    char *prefix;
    SetWritten sum;
    FileOut file[SET_SHARDS_MAX]; /* (nfile) */
    int nfile;
    FileOut set, count;     /* never finished: the lock on the whole set; `lengths` */
    int64_t here, document; /* tokens of the last file, of the document */
    unsigned char *buf;
    size_t nbuf;
    FILE *lengths; /* Megatron: int32 of each document; its file goes with it */
};

static bool flush(SetWriter *w, Err *e) {
    size_t n = w->nbuf;
    w->nbuf = 0;
    return file_put(&w->file[w->nfile - 1], w->buf, n, e);
}
static bool put(SetWriter *w, const void *p, size_t n, Err *e) {
    if (w->nbuf + n > ROOM && !flush(w, e)) return false;
    memcpy(w->buf + w->nbuf, p, n);
    w->nbuf += n;
    return true;
}

static bool next_file(SetWriter *w, Err *e) {
    unsigned char head[LLMC_HEADER] = {0};
    if (w->nfile == SET_SHARDS_MAX)
        return err_input(e, "more than %d shards of %lld tokens; give a larger --shard-tokens", SET_SHARDS_MAX,
                         (long long)w->cfg.shard);
    char *path = w->cfg.shard ? xformat("%s_%06d.bin", w->prefix, w->nfile) : xformat("%s.bin", w->prefix);
    bool ok = file_begin(&w->file[w->nfile], path, e);
    w->nfile += ok;
    w->here = 0;
    free(path);
    return ok && (w->cfg.kind != SET_LLMC || put(w, head, sizeof head, e));
}

static bool begin(FileOut *o, const char *prefix, const char *end, Err *e) {
    char *path = xformat("%s.%s", prefix, end);
    bool ok = file_begin(o, path, e);
    free(path);
    return ok;
}
/* One that cannot be had is told by the file that was asked for. */
static bool lock_set(SetWriter *w, Err *e) {
    if (begin(&w->set, w->prefix, "set", e)) return true;
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
/* What a killed process has left of a set of this name. The lock on the set is held, so nobody writes these. */
static bool remove_left(const char *prefix, Err *e) {
    static const char *const ends[] = {"bin", "idx", "lengths"};
    bool ok = true;
    for (int i = 0; ok && i < 3; i++) ok = remove_one(xformat("%s.%s", prefix, ends[i]), e);
    for (int i = 0; ok && i < SET_SHARDS_MAX; i++) ok = remove_one(xformat("%s_%06d.bin", prefix, i), e);
    return ok;
}

SetWriter *set_write_open(const SetWriteCfg *cfg, const char *prefix, Err *e) {
    SetWriter *w = xcalloc(1, sizeof *w);
    CHECK(cfg->kind == SET_LLMC || (cfg->kind == SET_MEGATRON && !cfg->shard), "kind %d", cfg->kind);
    w->cfg = *cfg;
    w->set.fd = w->count.fd = -1;
    w->prefix = xstrdup(prefix);
    w->buf = xcalloc(ROOM, 1);
    w->sum.type = cfg->kind == SET_LLMC ? (cfg->vocab <= 65536 ? ID_16 : ID_32) : cfg->vocab < 65500 ? ID_16 : ID_S32;
    bool ok = lock_set(w, e) && remove_left(prefix, e) && next_file(w, e);
    if (ok && cfg->kind == SET_MEGATRON) { /* beside the set, where there is room for it */
        ok = begin(&w->count, prefix, "lengths", e);
        w->lengths = ok ? fdopen(dup(w->count.fd), "w+b") : NULL;
        if (ok && !w->lengths) ok = err_errno(e, "cannot create", w->count.tmp);
    }
    if (ok) return w;
    set_write_close(w);
    return NULL;
}

void set_write_close(SetWriter *w) {
    if (!w) return;
    for (int i = 0; i < w->nfile; i++) file_drop(&w->file[i]);
    if (w->lengths) fclose(w->lengths);
    file_drop(&w->count);
    file_drop(&w->set);
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
            return err_input(e,
                             "more than %d tokens, which is the most that an llm.c file can count; give "
                             "--shard-tokens",
                             SHARD_TOKENS_MAX);
        if (full && (!flush(w, e) || !next_file(w, e))) return false;
        if (!put(w, &id[i], width, e)) return false; /* little-endian: the low bytes come first */
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
        return err_world(e, "cannot write %s: %s", w->prefix, strerror(errno));
    return true;
}

/* ---- the end --------------------------------------------------------------------------------------------------------
 */

/* Header of each file, now that its tokens are counted. */
static bool llmc_heads(SetWriter *w, Err *e) {
    for (int i = 0; i < w->nfile; i++) {
        int64_t n = i + 1 < w->nfile ? w->cfg.shard : w->here;
        int32_t head[3] = {w->sum.type == ID_16 ? 20240520 : 20240801, w->sum.type == ID_16 ? 1 : 7, (int32_t)n};
        if (pwrite(w->file[i].fd, head, sizeof head, 0) != (ssize_t)sizeof head)
            return err_world(e, "cannot write %s: %s", w->file[i].path, strerror(errno));
    }
    return true;
}

typedef struct {
    FileOut *o;
    unsigned char *buf;
    size_t n;
} Out;
static bool out8(Out *o, const void *p, size_t n, Err *e) {
    if (o->n + n > ROOM) {
        if (!file_put(o->o, o->buf, o->n, e)) return false;
        o->n = 0;
    }
    memcpy(o->buf + o->n, p, n);
    o->n += n;
    return true;
}

/* The lengths are read twice: as they stand in the index, and summed up to places. */
static bool index_body(SetWriter *w, Out *o, Err *e) {
    uint64_t n = (uint64_t)w->sum.documents, head[3] = {1, n, n + 1}, at = 0;
    unsigned char code = w->sum.type == ID_16 ? 8 : 4;
    if (!out8(o, "MMIDIDX\0", 9, e) || !out8(o, &head[0], 8, e) || !out8(o, &code, 1, e) || !out8(o, &head[1], 16, e))
        return false;
    for (int pass = 0; pass < 2; pass++) {
        rewind(w->lengths);
        for (uint64_t i = 0; i < n; i++) {
            int32_t k;
            if (fread(&k, sizeof k, 1, w->lengths) != 1)
                return err_world(e, "cannot read back the lengths of %s: %s", w->prefix, strerror(errno));
            if (!(pass ? out8(o, &at, 8, e) : out8(o, &k, 4, e))) return false;
            at = pass ? at + (uint64_t)k * id_bytes(w->sum.type) : 0;
        }
    }
    for (uint64_t i = 0; i <= n; i++)
        if (!out8(o, &i, 8, e)) return false;
    return file_put(o->o, o->buf, o->n, e);
}

/* A pattern that names all shards would also read those that an older, longer set of this name has left. */
static bool drop_older_shards(const SetWriter *w, int from, Err *e) {
    for (int i = from; i < SET_SHARDS_MAX; i++) {
        char *old = xformat("%s_%06d.bin", w->prefix, i);
        bool there = !unlink(old), gone = there || errno == ENOENT || err_errno(e, "cannot replace", old);
        free(old);
        if (!there) return gone;
    }
    return true;
}

static bool drop(FileOut *o, Err *e) {
    bool ok = !o->tmp || !unlink(o->tmp) || err_errno(e, "cannot remove unfinished", o->tmp);
    free(o->tmp);
    o->tmp = NULL;
    file_drop(o);
    return ok;
}

bool set_write_commit(SetWriter *w, SetWritten *sum, Err *e) {
    FileOut idx = {.fd = -1};
    if (!w->sum.tokens) return err_input(e, "no text in the input: there is nothing to write");
    if (!flush(w, e)) return false;
    bool megatron = w->cfg.kind == SET_MEGATRON;
    if (megatron) {
        char *path = xformat("%s.idx", w->prefix);
        Out o = {.o = &idx, .buf = w->buf};
        bool ok = !fflush(w->lengths) || err_world(e, "cannot write %s: %s", path, strerror(errno));
        ok = ok && file_begin(&idx, path, e);
        free(path);
        if (ok && !index_body(w, &o, e)) {
            file_drop(&idx);
            ok = false;
        }
        if (!ok) return false;
    } else if (!llmc_heads(w, e)) {
        return false;
    }
    w->sum.shards = w->nfile;
    *sum = w->sum;
    /* An older set's index beside new ids would tell other documents, or that an llm.c file is a Megatron set. */
    if (!w->cfg.shard) {
        char *old = xformat("%s.idx", w->prefix);
        bool gone = !unlink(old) || errno == ENOENT || err_world(e, "cannot replace %s: %s", old, strerror(errno));
        free(old);
        if (!gone) {
            if (megatron) file_drop(&idx);
            return false;
        }
    }
    /* The index last: without it the ids are not a set yet. */
    for (int i = 0; i < w->nfile; i++)
        if (!file_commit(&w->file[i], e)) {
            if (megatron) file_drop(&idx);
            return false;
        }
    w->nfile = 0;
    if (w->cfg.shard && !drop_older_shards(w, sum->shards, e)) return false;
    return (!megatron || file_commit(&idx, e)) && drop(&w->count, e) && drop(&w->set, e);
}
