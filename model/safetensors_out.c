/* safetensors_out.c: tensors written at known places, in any order. */
#include "safetensors_file.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

typedef struct StHole {
    char *name;
    Dtype as;
    int file;
    size_t at, bytes; /* of the data in the file */
    bool done;
} Hole;
typedef struct StSink {
    char *path;
    int fd;
} Sink;

void st_plan(StList *l, const char *name, Tensor shape, Dtype as) {
    CHECK(present(shape), "%s", name);
    shape.p = NULL;
    l->item = xrealloc(l->item, (size_t)l->n + 1, sizeof *l->item);
    l->item[l->n++] = (StItem){xstrdup(name), shape, as};
}

static bool put_at(const Sink *s, const void *p, size_t n, size_t at, Err *e) {
    for (const char *c = p; n;) {
        ssize_t w = pwrite(s->fd, c, zmin(n, (size_t)1 << 30), (off_t)at);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return err_world(e, "cannot write %s: %s", s->path, strerror(errno));
        c += w, at += (size_t)w, n -= (size_t)w;
    }
    return true;
}

/* The file of the items `l`, numbered k; its holes are appended. */
static bool begin_file(StOut *o, const StList *l, char *path, const char *const *meta, Err *e) {
    size_t len = 0, at;
    Sink *s = &o->file[o->nfile];
    StItem *item = st_file_order(l);
    char *head = st_header(item, l->n, meta, &len);
    *s = (Sink){path, open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    bool ok = s->fd >= 0 || err_errno(e, "cannot create", path);
    ok = ok && (head || err_world(e, "cannot write %s: out of memory", path));
    ok = ok && (len <= JSON_BYTES_MAX || err_input(e, "%s: %d tensors need a header of %zu bytes, the format allows %d",
                                                   path, l->n, len, JSON_BYTES_MAX));
    if (ok) {
        unsigned char size[8];
        for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)len >> 8 * i);
        ok = put_at(s, size, 8, 0, e) && put_at(s, head, len, 8, e);
    }
    at = 8 + len;
    for (int i = 0; i < l->n; i++) {
        Hole h = {xstrdup(item[i].name), item[i].as, o->nfile, at, st_item_bytes(&item[i]), false};
        at += h.bytes;
        o->hole[o->n++] = h;
    }
    o->nfile++;
    free(head);
    free(item);
    return ok;
}

static int by_name(const void *a, const void *b) { return strcmp(((const Hole *)a)->name, ((const Hole *)b)->name); }

bool st_out_begin(StOut *o, const char *dir, const StList *l, size_t limit, const char *const *meta, Err *e) {
    size_t bytes = 0;
    int n = 1;
    *o = (StOut){.dir = xstrdup(dir), .hole = xcalloc((size_t)l->n, sizeof *o->hole)};
    for (int i = 0; i < l->n; i++) bytes += st_item_bytes(&l->item[i]);
    o->shard = xcalloc((size_t)l->n, sizeof *o->shard);
    if (limit && bytes > limit) n = st_shards(l, limit, o->shard);
    o->file = xcalloc((size_t)n, sizeof *o->file);
    bool ok = n <= SHARDS_MAX || err_input(e, "%s: shards of at most %zu bytes would be %d, at most %d are made", dir,
                                           limit, n, SHARDS_MAX);
    StItem *item = xcalloc((size_t)l->n, sizeof *item);
    for (int k = 0; ok && k < n; k++) {
        StList some = {.item = item};
        for (int i = 0; i < l->n; i++)
            if (o->shard[i] == k) item[some.n++] = l->item[i];
        ok = begin_file(o, &some, n > 1 ? st_shard_name(dir, k, n) : xformat("%s/model.safetensors", dir), meta, e);
    }
    ok = ok && (n == 1 || st_index_write(dir, l, o->shard, n, e));
    free(item);
    if (o->n) qsort(o->hole, (size_t)o->n, sizeof *o->hole, by_name);
    if (!ok) st_out_drop(o);
    return ok;
}

static Hole *hole_of(StOut *o, const char *name) {
    Hole key = {.name = (char *)name}, *h = bsearch(&key, o->hole, (size_t)o->n, sizeof key, by_name);
    CHECK(h && !h->done, "%s: %s", name, h ? "written twice" : "not planned");
    return h;
}

bool st_out_raw(StOut *o, const char *name, const void *p, size_t bytes, Err *e) {
    Hole *h = hole_of(o, name);
    CHECK(bytes == h->bytes, "%s: %zu bytes, planned %zu", name, bytes, h->bytes);
    h->done = true;
    return put_at(&o->file[h->file], p, bytes, h->at, e);
}

/* The first number that is finite and would be stored as an infinity; n: none. */
static size_t too_large(Tensor t, Dtype as, size_t n) {
    /* half way from the largest number to the next that there would be */
    double most = as == F16 ? 65520 : as == BF16 ? 0x1.FFp127 : as == F32 ? 0x1.FFFFFFp127 : INFINITY;
    for (size_t i = 0; i < n && isfinite(most); i++) {
        double v = t.dtype == F64 ? ((double *)t.p)[i] : ((float *)t.p)[i];
        if (fabs(v) >= most && isfinite(v)) return i;
    }
    return n;
}

bool st_out_rows(StOut *o, const char *name, size_t row, Tensor t, Err *e) {
    static const size_t step = 1 << 16;
    Hole *h = hole_of(o, name);
    const size_t n = tensor_count(t), size = dtype_size(h->as), width = t.rank > 1 ? n / (size_t)t.n[0] : 1;
    size_t at = row * width * size;
    CHECK(at + n * size <= h->bytes, "%s: %zu bytes, planned %zu", name, at + n * size, h->bytes);
    h->done = at + n * size == h->bytes;
    size_t bad = too_large(t, h->as, n);
    if (bad < n)
        return err_input(e, "%s: tensor \"%s\": number %zu is too large for %s", o->file[h->file].path, name,
                         row * width + bad, dtype_name(h->as));
    unsigned char *buf = xcalloc(step, 8);
    bool ok = true;
    for (size_t i = 0; ok && i < n; i += step) {
        size_t end = zmin(i + step, n);
        st_encode(t, h->as, i, end, buf);
        ok = put_at(&o->file[h->file], buf, (end - i) * size, h->at + at + i * size, e);
    }
    free(buf);
    return ok;
}

bool st_out_put(StOut *o, const char *name, Tensor t, Err *e) {
    CHECK(tensor_count(t) * dtype_size(hole_of(o, name)->as) == hole_of(o, name)->bytes, "%s", name);
    return st_out_rows(o, name, 0, t, e);
}

bool st_out_end(StOut *o, Err *e) {
    bool ok = true;
    for (int i = 0; i < o->n; i++) CHECK(o->hole[i].done, "%s was never written", o->hole[i].name);
    for (int i = 0; ok && i < o->nfile; i++) {
        Sink *s = &o->file[i];
        ok = fsync(s->fd) == 0 || errno == EINVAL || err_world(e, "cannot sync %s: %s", s->path, strerror(errno));
        int fd = s->fd;
        s->fd = -1;
        ok = (close(fd) == 0 || err_world(e, "cannot close %s: %s", s->path, strerror(errno))) && ok;
    }
    st_out_drop(o);
    return ok;
}

void st_out_drop(StOut *o) {
    for (int i = 0; i < o->nfile; i++) {
        if (o->file[i].fd >= 0) close(o->file[i].fd);
        free(o->file[i].path);
    }
    for (int i = 0; i < o->n; i++) free(o->hole[i].name);
    free(o->file);
    free(o->hole);
    free(o->shard);
    free(o->dir);
    *o = (StOut){0};
}
