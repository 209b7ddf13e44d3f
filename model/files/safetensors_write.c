/* safetensors_write.c: writes a list of tensors: the header as the reference writes it, data through a small buffer. */
#include "safetensors_file.h"
#include "ops/oom.h"

static uint16_t to_f16(double v) {
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    if (v != v) return sign | 0x7E00;
    if (a >= 65520) return sign | 0x7C00; /* half way to the first value that is not representable */
    if (a == 0) return sign;
    int exp;
    frexp(a, &exp); /* a = m 2^exp, m in [0.5,1): 11 bits of it are kept, fewer below 2^-14 */
    int unit = imax(exp - 11, -24);
    double m = rint(ldexp(a, -unit));
    return unit == -24 ? sign | (uint16_t)m : (uint16_t)(sign | ((unit + 25) << 10)) + (uint16_t)(m - 1024);
}

static double safetensors_write_number(Tensor t, size_t i) {
    if (t.dtype == BF16) return bf16_to(((uint16_t *)t.p)[i]);
    return t.dtype == F64 ? ((double *)t.p)[i] : ((float *)t.p)[i];
}

void st_encode(Tensor t, Dtype as, size_t a, size_t b, unsigned char *out) {
    for (size_t i = a; i < b; i++) {
        double v = safetensors_write_number(t, i);
        float f = (float)v;
        uint64_t w = 0;
        uint32_t s;
        if (as == F64)
            memcpy(&w, &v, 8);
        else if (as == F32)
            memcpy(&s, &f, 4), w = s;
        else
            w = as == BF16 ? bf16_from((float)v) : to_f16(v);
        for (size_t k = 0; k < dtype_size(as); k++, w >>= 8) *out++ = (unsigned char)w;
    }
}

/* Times that parts of unequal heights alternate. */
static int part_groups(const StItem *s) { return s->place.period ? s->place.all / s->place.period : 1; }
/* The part that stored row (column, if turned) k is of, and its row there. */
static const StPart *safetensors_write_part(const StItem *s, size_t k, size_t *row) {
    const size_t parts = (size_t)s->place.parts, block = (size_t)s->place.block;
    *row = k / (parts * block) * block + k % block;
    if (!s->place.all) return &s->part[k / block % parts];
    const size_t period = s->place.period ? (size_t)s->place.period : (size_t)s->place.all, group = k / period;
    int low = 0;
    k %= period;
    for (int high = s->nparts - 1; low < high;) {
        const int mid = (low + high + 1) / 2;
        if ((size_t)s->part[mid].first <= k)
            low = mid;
        else
            high = mid - 1;
    }
    *row = k - (size_t)s->part[low].first + group * (size_t)(s->part[low].rows / part_groups(s));
    return &s->part[low];
}
/* Copy a stored row of parts, as in memory, from column a to b-1. */
static void safetensors_write_gather(const StItem *s, size_t row, size_t a, size_t b, unsigned char *out) {
    const StPlace *p = &s->place;
    size_t size = dtype_size(s->t.dtype), width = (size_t)s->width, r;
    for (size_t c = a; c < b; c++, out += size) {
        size_t k = p->turned ? c : row, col = p->turned ? row : c;
        const char *from = safetensors_write_part(s, k, &r)->p;
        memcpy(out, from + (r * width + col) * size, p->turned ? size : (b - c) * size);
        if (!p->turned) return; /* a row of one part is contiguous */
    }
}
static void parts_given(const StItem *s) {
    int rows = 0;
    for (int k = 0; k < s->nparts; k++) {
        CHECK(s->part[k].p, "%s: part %d was not given", s->name, k);
        CHECK(!s->place.all || s->part[k].first == rows, "%s: no part has row %d", s->name, rows);
        rows += s->part[k].rows / part_groups(s);
    }
    CHECK(!s->place.all || rows * part_groups(s) == s->place.all, "%s: %d rows of %d were given", s->name, rows,
          s->place.all);
}
/* Row by row through a small buffer. */
static bool put_rows_of_parts(FileOut *o, const StItem *s, Err *e) {
    static const size_t step = 1 << 12;
    size_t all = tensor_count(s->t), w = s->place.turned ? (size_t)s->t.n[1] : (size_t)s->width, rows = all / w;
    unsigned char *row = xcalloc(step, 8), *buf = xcalloc(step, 8);
    bool ok = true;
    for (size_t r = 0; r < rows; r++)
        for (size_t a = 0; ok && a < w; a += step) {
            size_t n = zmin(step, w - a);
            safetensors_write_gather(s, r, a, a + n, row);
            st_encode(TENSOR(row, s->t.dtype, (int)n), s->as, 0, n, buf);
            ok = file_put(o, buf, n * dtype_size(s->as), e);
        }
    free(row);
    free(buf);
    return ok;
}

static bool put_parts(FileOut *o, const StItem *s, Err *e) {
    parts_given(s);
    if (!s->place.slices) return put_rows_of_parts(o, s, e);
    bool ok = true;
    for (int k = 0; ok && k < s->place.slices; k++) {
        StItem one = *s; /* the slice as a tensor of its own */
        one.t.rank--;
        for (int i = 0; i < one.t.rank; i++) one.t.n[i] = s->t.n[i + 1];
        one.nparts = s->place.parts, one.part = s->part + k * one.nparts;
        ok = put_rows_of_parts(o, &one, e);
    }
    return ok;
}

static bool put_data(FileOut *o, const StItem *s, Err *e) {
    static const size_t step = 1 << 16;
    if (!st_is_whole(s->place, s->t.rank)) return put_parts(o, s, e);
    const size_t n = tensor_count(s->t);
    const uint32_t one = 1;
    /* The common case writes memory to the file unchanged. */
    if (s->as == s->t.dtype && *(const unsigned char *)&one) return file_put(o, s->t.p, tensor_bytes(s->t), e);
    unsigned char *buf = xcalloc(step, 8);
    bool ok = true;
    for (size_t i = 0; ok && i < n; i += step) {
        size_t end = zmin(i + step, n);
        st_encode(s->t, s->as, i, end, buf);
        ok = file_put(o, buf, (end - i) * dtype_size(s->as), e);
    }
    free(buf);
    return ok;
}

/* True if the values must be made before writing: they differ in the file, or the parts differ in dtype (a frozen one
 * in bf16 next to a trained one). All parts of a joined tensor are then REAL, in their own memory. */
static bool wants_merge(const StItem *s, const StList *l) {
    parts_given(s);
    for (int k = 0; k < s->nparts; k++)
        if (s->part[k].dtype != s->t.dtype || (l->merge && l->merge(l->merge_ctx, s->part[k].p, ABSENT))) return true;
    return false;
}
/* Elements of a part. */
static size_t part_count(const StItem *s, int k) { return (size_t)s->part[k].rows * (size_t)s->width; }
static StPart *parts_copy(const StItem *s) {
    StPart *part = xcalloc((size_t)s->nparts, sizeof *part);
    memcpy(part, s->part, (size_t)s->nparts * sizeof *part);
    return part;
}
static bool put_merged(FileOut *o, const StItem *s, const StList *l, Err *e) {
    StItem view = *s;
    real *room = xcalloc(tensor_count(s->t), sizeof *room), *to = room;
    view.part = parts_copy(s);
    for (int k = 0; k < s->nparts; k++, to += part_count(s, k - 1)) {
        const size_t n = part_count(s, k);
        Tensor part = TENSOR((void *)s->part[k].p, s->part[k].dtype, (int)n);
        view.part[k].p = to;
        if (l->merge && l->merge(l->merge_ctx, s->part[k].p, TENSOR(to, REAL, (int)n))) continue;
        Tensor here = view_open(l->dev, part, true);
        tensor_read(here, 0, n, to);
        view_close(l->dev, part, here, false);
    }
    view.t.dtype = REAL;
    view.t.p = room;
    bool ok = put_data(o, &view, e);
    free(view.part);
    free(room);
    return ok;
}
/* The same for a device: one item at a time is copied to the host. */
static bool put_item(FileOut *o, const StItem *s, const StList *l, Err *e) {
    StItem view = *s;
    Device *dev = l->dev;
    if (wants_merge(s, l)) return put_merged(o, s, l, e);
    if (!device_apart(dev)) return put_data(o, s, e);
    Tensor *copy = xcalloc((size_t)s->nparts, sizeof *copy), *part = xcalloc((size_t)s->nparts, sizeof *part);
    view.part = parts_copy(s);
    for (int k = 0; k < s->nparts; k++) {
        part[k] = TENSOR((void *)s->part[k].p, s->t.dtype, (int)part_count(s, k));
        copy[k] = view_open(dev, part[k], true);
        view.part[k].p = copy[k].p;
    }
    view.t.p = copy[0].p;
    bool ok = put_data(o, &view, e);
    for (int k = 0; k < s->nparts; k++) view_close(dev, part[k], copy[k], false);
    free(view.part);
    free(copy);
    free(part);
    return ok;
}

void st_add_part(StList *l, const char *name, Tensor t, StPlace p, Dtype as) {
    CHECK(present(t) && t.p && (t.dtype == F32 || t.dtype == F64 || t.dtype == BF16), "%s", name);
    CHECK(p.parts >= 1 && p.parts <= JOINED_MAX && p.part < p.parts && p.block > 0, "%s", name);
    CHECK(!p.all || (p.parts == 1 && p.first >= 0 && p.first + (p.period ? p.block : t.n[0]) <= p.all), "%s: row %d",
          name, p.first);
    StItem *s = NULL;
    for (int i = l->n - 1; (p.parts > 1 || p.all || p.slices) && !s && i >= 0; i--)
        if (!strcmp(l->item[i].name, name)) s = &l->item[i];
    p.turned &= t.rank == 2;
    const Tensor all = st_stored(t, p);
    if (!s) {
        l->item = xrealloc(l->item, (size_t)l->n + 1, sizeof *l->item);
        s = &l->item[l->n++];
        *s = (StItem){.name = xstrdup(name), .t = all, .as = as, .place = p};
        s->width = (int)(t.n[0] ? tensor_count(t) / (size_t)t.n[0] : 1);
        s->nparts = p.all ? 0 : p.parts * imax(1, p.slices);
        s->part = xcalloc((size_t)s->nparts, sizeof *s->part);
    }
    int at = p.slice * p.parts + p.part;
    if (p.all) { /* in order; equal ones are found when the item is written */
        s->part = xrealloc(s->part, (size_t)s->nparts + 1, sizeof *s->part);
        for (at = s->nparts++; at > 0 && s->part[at - 1].first > p.first; at--) s->part[at] = s->part[at - 1];
        s->part[at] = (StPart){0};
    }
    CHECK(!s->part[at].p && !memcmp(s->t.n, all.n, sizeof all.n), "%s: part %d", name, at);
    s->part[at] = (StPart){t.p, t.dtype, p.first, t.n[0]};
    if (dtype_size(as) > dtype_size(s->as)) s->as = as; /* an item is never stored with a smaller dtype than it has */
}
void st_add(StList *l, const char *name, Tensor t, Dtype as) { st_add_part(l, name, t, ST_WHOLE, as); }

static void list_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    StList *l = f->ctx;
    char own[192];
    StPlace p = ST_WHOLE;
    if (l->names) p = l->names->find(l->names, path, *t, own);
    char *name = xformat("%s%s", l->prefix ? l->prefix : "", l->names ? own : path);
    st_add_part(l, name, *t, p, l->own ? t->dtype : flags & FIELD_F32 && dtype_size(l->as) < 4 ? F32 : l->as);
    free(name);
}
Fields st_lister(StList *l) { return (Fields){.see = list_field, .ctx = l}; }

void st_list_free(StList *l) {
    for (int i = 0; i < l->n; i++) free(l->item[i].name), free(l->item[i].part);
    free(l->item);
    l->item = NULL;
    l->n = 0;
}

/* The reference sorts by its own order of dtypes, descending (F64, F32, BF16, F16), then by name. */
static int safetensors_write_by_rank(const void *a, const void *b) {
    const StItem *x = a, *y = b;
    return x->as != y->as ? (int)x->as - (int)y->as : strcmp(x->name, y->name);
}
static int safetensors_write_by_name(const void *a, const void *b) {
    return strcmp(((const StItem *)a)->name, ((const StItem *)b)->name);
}
_Static_assert(F64 < F32 && F32 < BF16 && BF16 < F16, "the order of Dtype is the order of the file");

static char *safetensors_write_quoted(const char *s) {
    json_t *j = json_string(s);
    CHECK(j, "not UTF-8: %s", s);
    char *q = json_dumps(j, JSON_ENCODE_ANY);
    json_decref(j);
    CHECK(q, "%s", s);
    return q;
}

char *st_header(const StItem *s, int n, const char *const *meta, size_t *len) {
    char *text = NULL;
    size_t at = 0;
    FILE *f = oom_stream(&text, len);
    fputs("{\"__metadata__\":{\"format\":\"pt\"", f);
    for (; meta && *meta; meta += 2) {
        char *key = safetensors_write_quoted(meta[0]), *value = safetensors_write_quoted(meta[1]);
        fprintf(f, ",%s:%s", key, value);
        free(key);
        free(value);
    }
    fputc('}', f);
    for (int i = 0; i < n; i++) {
        size_t bytes = tensor_count(s[i].t) * dtype_size(s[i].as);
        char *name = safetensors_write_quoted(s[i].name);
        fprintf(f, ",%s:{\"dtype\":\"%s\",\"shape\":[", name, dtype_name(s[i].as));
        for (int k = 0; k < s[i].t.rank; k++) fprintf(f, "%s%d", k ? "," : "", s[i].t.n[k]);
        fprintf(f, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        free(name);
        at += bytes;
    }
    fputc('}', f);
    fflush(f);
    for (size_t pad = (8 - *len % 8) % 8; pad--;) fputc(' ', f);
    fclose(f);
    return text;
}

StItem *st_file_order(const StList *l) {
    StItem *s = xcalloc((size_t)l->n, sizeof *s);
    if (l->n) memcpy(s, l->item, (size_t)l->n * sizeof *s);
    qsort(s, (size_t)l->n, sizeof *s, safetensors_write_by_name);
    for (int i = 1; i < l->n; i++) CHECK(strcmp(s[i].name, s[i - 1].name), "two tensors are named %s", s[i].name);
    qsort(s, (size_t)l->n, sizeof *s, safetensors_write_by_rank);
    return s;
}

bool st_write(const char *path, const StList *l, const char *const *meta, Err *e) {
    size_t len = 0;
    FileOut o;
    StItem *s = st_file_order(l);
    char *head = st_header(s, l->n, meta, &len);
    bool ok = len <= JSON_BYTES_MAX || err_input(e, "%s: %d tensors need a header of %zu bytes, the format allows %d",
                                                 path, l->n, len, JSON_BYTES_MAX);
    if (ok) {
        unsigned char size[8];
        for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)len >> 8 * i);
        ok = file_begin(&o, path, e) && file_put(&o, size, 8, e) && file_put(&o, head, len, e);
        for (int i = 0; ok && i < l->n; i++) ok = put_item(&o, &s[i], l, e);
        ok = ok && file_commit(&o, e);
    }
    free(head);
    free(s);
    return ok;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

size_t st_item_bytes(const StItem *s) { return tensor_count(s->t) * dtype_size(s->as); }

int st_shards(const StList *l, size_t limit, int *shard) {
    int n = 0, open = 0; /* items of the shard being filled */
    size_t used = 0;
    for (int i = 0; i <= l->n; i++) {
        size_t bytes = i < l->n ? st_item_bytes(&l->item[i]) : SIZE_MAX;
        if (i < l->n && bytes > limit) {
            shard[i] = n++;
            continue;
        }
        if (open && (i == l->n || used + bytes > limit)) {
            for (int k = 0; k < i; k++)
                if (shard[k] < 0) shard[k] = n;
            n++, open = 0, used = 0;
        }
        if (i < l->n) shard[i] = -1, open++, used += bytes;
    }
    return n;
}

char *st_shard_name(const char *dir, int k, int n) {
    return xformat("%s%smodel-%05d-of-%05d.safetensors", dir, *dir ? "/" : "", k + 1, n);
}

bool st_index_write(const char *dir, const StList *l, const int *shard, int n, Err *e) {
    char *path = xformat("%s/model.safetensors.index.json", dir);
    StItem *s = xcalloc((size_t)l->n, sizeof *s);
    size_t bytes = 0, numbers = 0;
    for (int i = 0; i < l->n; i++) {
        s[i] = l->item[i];
        s[i].t.n[0] = shard[i]; /* the shape is no longer needed */
        bytes += st_item_bytes(&l->item[i]), numbers += tensor_count(l->item[i].t);
    }
    qsort(s, (size_t)l->n, sizeof *s, safetensors_write_by_name);
    json_t *map = json_object(), *j = json_pack("{s{sI sI} so}", "metadata", "total_parameters", (json_int_t)numbers,
                                                "total_size", (json_int_t)bytes, "weight_map", map);
    for (int i = 0; i < l->n; i++) {
        char *name = st_shard_name("", s[i].t.n[0], n);
        json_object_set_new(map, s[i].name, json_string(name));
        free(name);
    }
    bool ok = json_write(path, j, e);
    json_decref(j);
    free(s);
    free(path);
    return ok;
}

static bool shards_write(const char *dir, const StList *l, size_t limit, Err *e) {
    if (file_exists(dir, "model.safetensors", e))
        return err_input(e, "%s: holds a model.safetensors, which would be read instead of shards; remove it", dir);
    if (e->status) return false;
    int *shard = xcalloc((size_t)l->n, sizeof *shard), n = st_shards(l, limit, shard);
    StItem *item = xcalloc((size_t)l->n, sizeof *item);
    bool ok = n <= SHARDS_MAX || err_input(e, "%s: shards of at most %zu bytes would be %d, at most %d are made", dir,
                                           limit, n, SHARDS_MAX);
    for (int k = 0; ok && k < n; k++) {
        StList some = {.item = item, .dev = l->dev, .merge = l->merge, .merge_ctx = l->merge_ctx};
        for (int i = 0; i < l->n; i++)
            if (shard[i] == k) item[some.n++] = l->item[i];
        char *path = st_shard_name(dir, k, n);
        ok = st_write(path, &some, NULL, e);
        free(path);
    }
    ok = ok && st_index_write(dir, l, shard, n, e);
    free(item);
    free(shard);
    return ok;
}

bool st_write_dir(const char *dir, const StList *l, size_t limit, Err *e) {
    size_t bytes = 0;
    for (int i = 0; i < l->n; i++) bytes += st_item_bytes(&l->item[i]);
    if (limit && bytes > limit) return shards_write(dir, l, limit, e);
    char *path = xformat("%s/model.safetensors", dir);
    bool ok = st_write(path, l, NULL, e);
    free(path);
    return ok;
}
