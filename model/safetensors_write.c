/* safetensors_write.c: the writer: header as the reference writes it, data streamed through a small buffer. */
#include "safetensors_file.h"
#include "../ops/oom.h"

static uint16_t to_bf16(double v) {
    uint32_t u;
    float f = (float)v;
    memcpy(&u, &f, 4);
    if (f != f) return (uint16_t)(u >> 16 | 64); /* a NaN whose payload sits low must not become infinite */
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static uint16_t to_f16(double v) {
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    if (v != v) return sign | 0x7E00;
    if (a >= 65520) return sign | 0x7C00; /* half way to the first number that does not exist */
    if (a == 0) return sign;
    int exp;
    frexp(a, &exp); /* a = m 2^exp, m in [0.5,1): 11 bits of it are kept, fewer below 2^-14 */
    int unit = imax(exp - 11, -24);
    double m = rint(ldexp(a, -unit));
    return unit == -24 ? sign | (uint16_t)m : (uint16_t)(sign | ((unit + 25) << 10)) + (uint16_t)(m - 1024);
}

static double number(Tensor t, size_t i) {
    if (t.dtype == BF16) {
        uint32_t u = (uint32_t)((uint16_t *)t.p)[i] << 16;
        float f;
        return memcpy(&f, &u, 4), f;
    }
    return t.dtype == F64 ? ((double *)t.p)[i] : ((float *)t.p)[i];
}

void st_encode(Tensor t, Dtype as, size_t a, size_t b, unsigned char *out) {
    for (size_t i = a; i < b; i++) {
        double v = number(t, i);
        float f = (float)v;
        uint64_t w = 0;
        uint32_t s;
        if (as == F64)
            memcpy(&w, &v, 8);
        else if (as == F32)
            memcpy(&s, &f, 4), w = s;
        else
            w = as == BF16 ? to_bf16(v) : to_f16(v);
        for (size_t k = 0; k < dtype_size(as); k++, w >>= 8) *out++ = (unsigned char)w;
    }
}

/* A stored row of parts, as they lie in memory, from column a to b-1. */
static void gather(const StItem *s, size_t row, size_t a, size_t b, unsigned char *out) {
    const StPlace *p = &s->place;
    size_t size = dtype_size(s->t.dtype), parts = (size_t)p->parts, block = (size_t)p->block;
    size_t width = s->t.rank < 2 ? 1 : (size_t)s->t.n[p->turned ? 0 : 1];
    for (size_t c = a; c < b; c++, out += size) {
        size_t k = p->turned ? c : row, col = p->turned ? row : c;
        const char *from = s->part[k / block % parts];
        size_t r = k / (parts * block) * block + k % block;
        memcpy(out, from + (r * width + col) * size, p->turned ? size : (b - c) * size);
        if (!p->turned) return; /* a row of one part lies in one piece */
    }
}
/* Row by row through a small buffer. */
static bool put_parts(FileOut *o, const StItem *s, Err *e) {
    static const size_t step = 1 << 12;
    size_t rows = (size_t)s->t.n[0], w = s->t.rank < 2 ? 1 : (size_t)s->t.n[1];
    unsigned char *row = xcalloc(step, 8), *buf = xcalloc(step, 8);
    bool ok = true;
    for (int k = 0; k < s->place.parts; k++) CHECK(s->part[k], "%s: part %d was not given", s->name, k);
    for (size_t r = 0; r < rows; r++)
        for (size_t a = 0; ok && a < w; a += step) {
            size_t n = zmin(step, w - a);
            gather(s, r, a, a + n, row);
            st_encode(TENSOR(row, s->t.dtype, (int)n), s->as, 0, n, buf);
            ok = file_put(o, buf, n * dtype_size(s->as), e);
        }
    free(row);
    free(buf);
    return ok;
}

static bool put_data(FileOut *o, const StItem *s, Err *e) {
    static const size_t step = 1 << 16;
    if (s->place.parts > 1 || s->place.turned) return put_parts(o, s, e);
    const size_t n = tensor_count(s->t);
    const uint32_t one = 1;
    /* The common case goes to the file as it lies in memory. */
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

/* The same of numbers that are made for the file, and of parts that differ in dtype (a frozen one in bf16 beside one that
 * is trained): all parts of a joined tensor are then REAL, in memory of their own. */
static bool wants_merge(const StItem *s, const StList *l) {
    for (int k = 0; k < s->place.parts; k++) {
        CHECK(s->part[k], "%s: part %d was not given", s->name, k);
        if (s->dtype[k] != s->t.dtype || (l->merge && l->merge(l->merge_ctx, s->part[k], ABSENT))) return true;
    }
    return false;
}
static bool put_merged(FileOut *o, const StItem *s, const StList *l, Err *e) {
    StItem view = *s;
    const size_t n = tensor_count(s->t) / (size_t)s->place.parts;
    real *room = xcalloc(n * (size_t)s->place.parts, sizeof *room);
    for (int k = 0; k < s->place.parts; k++) {
        Tensor part = TENSOR((void *)s->part[k], s->dtype[k], (int)n);
        real *to = room + (size_t)k * n;
        view.part[k] = to;
        if (l->merge && l->merge(l->merge_ctx, s->part[k], TENSOR(to, REAL, (int)n))) continue;
        Tensor here = view_open(l->dev, part, true);
        tensor_read(here, 0, n, to);
        view_close(l->dev, part, here, false);
    }
    view.t.dtype = REAL;
    view.t.p = room;
    bool ok = put_data(o, &view, e);
    free(room);
    return ok;
}
/* The same from a device: one item at a time lies with the host. */
static bool put_item(FileOut *o, const StItem *s, const StList *l, Err *e) {
    StItem view = *s;
    Device *dev = l->dev;
    Tensor part = ABSENT, copy[JOINED_MAX];
    if (wants_merge(s, l)) return put_merged(o, s, l, e);
    if (!device_apart(dev)) return put_data(o, s, e);
    for (int k = 0; k < s->place.parts; k++) {
        CHECK(s->part[k], "%s: part %d was not given", s->name, k);
        part = TENSOR((void *)s->part[k], s->t.dtype, (int)(tensor_count(s->t) / (size_t)s->place.parts));
        copy[k] = view_open(dev, part, true);
        view.part[k] = copy[k].p;
    }
    view.t.p = copy[0].p;
    bool ok = put_data(o, &view, e);
    for (int k = 0; k < s->place.parts; k++) view_close(dev, part, copy[k], false);
    return ok;
}

void st_add_part(StList *l, const char *name, Tensor t, StPlace p, Dtype as) {
    CHECK(present(t) && t.p && (t.dtype == F32 || t.dtype == F64 || t.dtype == BF16), "%s", name);
    CHECK(p.parts >= 1 && p.parts <= JOINED_MAX && p.part < p.parts && p.block > 0 && (p.parts == 1 || t.rank <= 2),
          "%s", name);
    Tensor all = t;
    StItem *s = NULL;
    for (int i = l->n - 1; p.parts > 1 && !s && i >= 0; i--)
        if (!strcmp(l->item[i].name, name)) s = &l->item[i];
    p.turned &= t.rank == 2;
    all.n[0] *= p.parts;
    if (p.turned) all.n[1] = all.n[0], all.n[0] = t.n[1];
    if (!s) {
        l->item = xrealloc(l->item, (size_t)l->n + 1, sizeof *l->item);
        s = &l->item[l->n++];
        *s = (StItem){.name = xstrdup(name), .t = all, .as = as, .place = p};
    }
    CHECK(!s->part[p.part] && !memcmp(s->t.n, all.n, sizeof all.n), "%s: part %d", name, p.part);
    s->part[p.part] = t.p;
    s->dtype[p.part] = t.dtype;
    if (dtype_size(as) > dtype_size(s->as)) s->as = as; /* none is stored narrower than it is */
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
    for (int i = 0; i < l->n; i++) free(l->item[i].name);
    free(l->item);
    l->item = NULL;
    l->n = 0;
}

/* The reference sorts by its own order of dtypes, descending (F64, F32, BF16, F16), then by name. */
static int by_rank(const void *a, const void *b) {
    const StItem *x = a, *y = b;
    return x->as != y->as ? (int)x->as - (int)y->as : strcmp(x->name, y->name);
}
static int by_name(const void *a, const void *b) {
    return strcmp(((const StItem *)a)->name, ((const StItem *)b)->name);
}
_Static_assert(F64 < F32 && F32 < BF16 && BF16 < F16, "the order of Dtype is the order of the file");

static char *quoted(const char *s) {
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
        char *key = quoted(meta[0]), *value = quoted(meta[1]);
        fprintf(f, ",%s:%s", key, value);
        free(key);
        free(value);
    }
    fputc('}', f);
    for (int i = 0; i < n; i++) {
        size_t bytes = tensor_count(s[i].t) * dtype_size(s[i].as);
        char *name = quoted(s[i].name);
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
    qsort(s, (size_t)l->n, sizeof *s, by_name);
    for (int i = 1; i < l->n; i++) CHECK(strcmp(s[i].name, s[i - 1].name), "two tensors are named %s", s[i].name);
    qsort(s, (size_t)l->n, sizeof *s, by_rank);
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

/* ---- shards --------------------------------------------------------------------------------------------------------
 */

size_t st_item_bytes(const StItem *s) { return tensor_count(s->t) * dtype_size(s->as); }

int st_shards(const StList *l, size_t limit, int *shard) {
    int n = 0, open = 0; /* items of the shard that is being filled */
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
        s[i].t.n[0] = shard[i]; /* the shape is not needed any more */
        bytes += st_item_bytes(&l->item[i]), numbers += tensor_count(l->item[i].t);
    }
    qsort(s, (size_t)l->n, sizeof *s, by_name);
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
