/* safetensors_out.c: writes tensors to known places in files, in any order. */
#include "safetensors_file.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

typedef struct StHole {
    char *name;
    Dtype as;
    int file;
    size_t at, bytes, put; /* of the data in the file: place, length, bytes written so far */
    int width;             /* elements of the last axis; of a vector 1 */
} Hole;
typedef struct StSink {
    char *path;
    int fd;
} Sink;

void st_plan(StList *l, const char *name, Tensor shape, Dtype as) {
    CHECK(present(shape), "%s", name);
    shape.p = NULL;
    l->item = xrealloc(l->item, (size_t)l->n + 1, sizeof *l->item);
    l->item[l->n++] = (StItem){.name = xstrdup(name), .t = shape, .as = as, .place = ST_WHOLE};
}

static bool put_at(const Sink *s, const void *p, size_t n, size_t at, Err *e) {
    for (const char *c = p; n;) {
        ssize_t w = pwrite(s->fd, c, zmin(n, (size_t)1 << 30), (off_t)at);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return err_runtime(e, "cannot write %s: %s", s->path, strerror(errno));
        c += w, at += (size_t)w, n -= (size_t)w;
    }
    return true;
}

/* Read n bytes back; beyond the end of the file they are 0. */
static bool get_at(const Sink *s, void *p, size_t n, size_t at, Err *e) {
    for (char *c = p; n;) {
        ssize_t r = pread(s->fd, c, zmin(n, (size_t)1 << 30), (off_t)at);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return err_runtime(e, "cannot read back %s: %s", s->path, strerror(errno));
        if (!r) memset(c, 0, n);
        if (!r) return true;
        c += r, at += (size_t)r, n -= (size_t)r;
    }
    return true;
}

/* Begin file number k with the items of `l`; append its holes (places to fill). */
static bool begin_file(StOut *o, const StList *l, char *path, const char *const *meta, Err *e) {
    size_t len = 0, at;
    Sink *s = &o->file[o->nfile];
    StItem *item = st_file_order(l);
    char *head = st_header(item, l->n, meta, &len);
    *s = (Sink){path, TEMP_FAILURE_RETRY(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666))};
    bool ok = s->fd >= 0 || err_errno(e, "cannot create", path);
    ok = ok && (len <= JSON_BYTES_MAX || err_input(e, "%s: %d tensors need a header of %zu bytes, the format allows %d",
                                                   path, l->n, len, JSON_BYTES_MAX));
    if (ok) {
        unsigned char size[8];
        for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)len >> 8 * i);
        ok = put_at(s, size, 8, 0, e) && put_at(s, head, len, 8, e);
    }
    at = 8 + len;
    for (int i = 0; i < l->n; i++) {
        Tensor t = item[i].t;
        Hole h = {xstrdup(item[i].name),           item[i].as, o->nfile, at, st_item_bytes(&item[i]), 0,
                  t.rank > 1 ? t.n[t.rank - 1] : 1};
        at += h.bytes;
        o->hole[o->n++] = h;
    }
    o->nfile++;
    free(head);
    free(item);
    return ok;
}

static int safetensors_out_by_name(const void *a, const void *b) {
    return strcmp(((const Hole *)a)->name, ((const Hole *)b)->name);
}

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
    if (o->n) qsort(o->hole, (size_t)o->n, sizeof *o->hole, safetensors_out_by_name);
    if (!ok) st_out_drop(o);
    return ok;
}

/* Find the hole of that name and count n more elements. */
static Hole *safetensors_out_fill(StOut *o, const char *name, size_t n) {
    Hole key = {.name = (char *)name}, *h = bsearch(&key, o->hole, (size_t)o->n, sizeof key, safetensors_out_by_name);
    CHECK(h, "%s: not planned", name);
    h->put += n * dtype_size(h->as);
    CHECK(h->put <= h->bytes, "%s: %zu bytes, planned %zu", name, h->put, h->bytes);
    return h;
}

bool st_out_raw(StOut *o, const char *name, const void *p, size_t bytes, Err *e) {
    Hole *h = safetensors_out_fill(o, name, 0);
    CHECK(bytes == h->bytes && !h->put, "%s: %zu bytes, planned %zu", name, bytes, h->bytes);
    h->put = bytes;
    return put_at(&o->file[h->file], p, bytes, h->at, e);
}

size_t st_too_large(Tensor t, Dtype as, size_t n) {
    /* half way from the largest value to the one that would follow it */
    double most = as == F16 ? 65520 : as == BF16 ? 0x1.FFp127 : as == F32 ? 0x1.FFFFFFp127 : INFINITY;
    for (size_t i = 0; i < n && isfinite(most); i++) {
        double v = t.dtype == F64 ? ((double *)t.p)[i] : ((float *)t.p)[i];
        if (fabs(v) >= most && isfinite(v)) return i;
    }
    return n;
}

/* Write n elements of t from element `from` on, to stored elements from `to` on. */
static bool put_numbers(StOut *o, const Hole *h, size_t to, Tensor t, size_t from, size_t n, unsigned char *buf,
                        size_t room, Err *e) {
    const size_t size = dtype_size(h->as);
    for (size_t i = 0; i < n; i += room) {
        size_t some = zmin(room, n - i);
        st_encode(t, h->as, from + i, from + i + some, buf);
        if (!put_at(&o->file[h->file], buf, some * size, h->at + (to + i) * size, e)) return false;
    }
    return true;
}
/* The same for a part of a slice, which begins at stored element `to` and in whose rows the elements of parts
 * alternate: t's columns, from column `first` of this part on, in every row. The rows are read back, filled and written
 * again. */
static bool put_slice(StOut *o, const Hole *h, size_t to, Tensor t, StPlace p, size_t first, Err *e) {
    const Sink *s = &o->file[h->file];
    const size_t n = (size_t)t.n[0], rows = tensor_count(t) / n, size = dtype_size(h->as),
                 width = t.rank > 1 ? (size_t)h->width : h->bytes / size / (size_t)p.slices,
                 some = zmax(1, ((size_t)1 << 22) / (width * size));
    unsigned char *buf = xcalloc(some * width, size);
    bool ok = true;
    for (size_t r = 0, k; ok && r < rows; r += k) {
        k = zmin(some, rows - r);
        const size_t bytes = k * width * size, at = h->at + (to + r * width) * size;
        ok = get_at(s, buf, bytes, at, e);
        for (size_t i = 0; ok && i < k; i++)
            for (size_t c = 0; c < n; c++) {
                const size_t from = c * rows + r + i, column = (first + c) * (size_t)p.parts + (size_t)p.part;
                st_encode(t, h->as, from, from + 1, buf + (i * width + column) * size);
            }
        ok = ok && put_at(s, buf, bytes, at, e);
    }
    free(buf);
    return ok;
}
/* The same for column c of rows from..from+n-1 of t. */
static bool put_column(StOut *o, const Hole *h, size_t to, Tensor t, size_t from, size_t n, size_t c,
                       unsigned char *buf, size_t room, Err *e) {
    const size_t width = (size_t)t.n[1], size = dtype_size(h->as);
    for (size_t i = 0; i < n; i += room) {
        size_t some = zmin(room, n - i);
        for (size_t k = 0; k < some; k++) {
            size_t at = (from + i + k) * width + c;
            st_encode(t, h->as, at, at + 1, buf + k * size);
        }
        if (!put_at(&o->file[h->file], buf, some * size, h->at + (to + i) * size, e)) return false;
    }
    return true;
}

bool st_out_part(StOut *o, const char *name, size_t row, Tensor t, StPlace p, Err *e) {
    static const size_t room = 1 << 16;
    const size_t n = tensor_count(t), rows = (size_t)t.n[0], width = n / rows;
    const Hole *h = safetensors_out_fill(o, name, n);
    const size_t slice = p.slices ? h->bytes / dtype_size(h->as) / (size_t)p.slices * (size_t)p.slice : 0;
    size_t bad = st_too_large(t, h->as, n);
    if (bad < n)
        return err_input(e, "%s: tensor \"%s\": number %zu is too large for %s", o->file[h->file].path, name,
                         row * width + bad, dtype_name(h->as));
    if (p.slices) {
        CHECK(p.block == 1 && (p.turned || t.rank == 1), "%s", name);
        return put_slice(o, h, slice, t, p, row, e);
    }
    unsigned char *buf = xcalloc(room, 8);
    bool ok = true, turned = p.turned && t.rank == 2;
    const size_t block = p.parts == 1 && !p.period ? rows + row : (size_t)p.block;
    if (p.parts == 1) p.block = (int)block;
    for (size_t r = 0, some; ok && r < rows; r += some) { /* rows that are contiguous in the file */
        const size_t at = row + r, stored = st_row(p, at);
        some = zmin(rows - r, block - at % block);
        if (!turned) ok = put_numbers(o, h, stored * width, t, r * width, some * width, buf, room, e);
        for (size_t c = 0; turned && ok && c < width; c++)
            ok = put_column(o, h, c * (size_t)h->width + stored, t, r, some, c, buf, room, e);
    }
    free(buf);
    return ok;
}

bool st_out_end(StOut *o, Err *e) {
    bool ok = true;
    for (int i = 0; i < o->n; i++)
        CHECK(o->hole[i].put == o->hole[i].bytes, "%s: %zu bytes of %zu came", o->hole[i].name, o->hole[i].put,
              o->hole[i].bytes);
    for (int i = 0; ok && i < o->nfile; i++) {
        Sink *s = &o->file[i];
        ok = TEMP_FAILURE_RETRY(fsync(s->fd)) == 0 || errno == EINVAL ||
             err_runtime(e, "cannot sync %s: %s", s->path, strerror(errno));
        int fd = s->fd;
        s->fd = -1;
        ok =
            (close(fd) == 0 || errno == EINTR || err_runtime(e, "cannot close %s: %s", s->path, strerror(errno))) && ok;
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
