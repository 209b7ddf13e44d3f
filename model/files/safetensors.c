/* safetensors.c: the reader: the reference implementation's checks in its order, shards, conversion of values. */
#include "safetensors.h"

/* Sorted in the reference's own order. */
static const struct {
    const char *name;
    int bits;
} dtypes[] = {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
              {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
              {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
              {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
enum { NDTYPE = sizeof dtypes / sizeof *dtypes };

static const char *shape_text(const StEntry *t, char buf[96]) {
    int at = snprintf(buf, 96, "(");
    for (int i = 0; i < t->rank && at < 64; i++) at += snprintf(buf + at, 24, "%s%lu", i ? "," : "", t->shape[i]);
    snprintf(buf + at, 8, at < 64 ? ")" : "...)");
    return buf;
}

static bool safetensors_plain(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < 32 || *s == 127) return false;
    return true;
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

typedef struct {
    StEntry *t;
    uint64_t begin, end;
    int bits;
} Span;

static bool index_of(const json_t *j, uint64_t *out) {
    if (!json_is_integer(j) || json_integer_value(j) < 0) return false;
    *out = (uint64_t)json_integer_value(j);
    return true;
}

/* Check 5 for one entry. */
static bool entry_read(const char *path, const char *name, const json_t *j, Span *s, Err *e) {
    const json_t *dtype = json_object_get(j, "dtype"), *shape = json_object_get(j, "shape");
    const json_t *off = json_object_get(j, "data_offsets");
    const char *kind = "(InvalidHeaderDeserialization)";
    StEntry *t = s->t;
    if (!safetensors_plain(name))
        return err_input(e, "%s: tensor name \"%s\" has control characters %s", path, name, kind);
    t->name = xstrdup(name);
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(off) || json_array_size(off) != 2)
        return err_input(
            e, "%s: tensor \"%s\": expected {\"dtype\": text, \"shape\": list, \"data_offsets\": [begin, end]} %s",
            path, name, kind);
    for (int i = 0; i < NDTYPE; i++)
        if (json_string_length(dtype) == strlen(dtypes[i].name) && !strcmp(json_string_value(dtype), dtypes[i].name)) {
            t->dtype = dtypes[i].name;
            s->bits = dtypes[i].bits;
        }
    if (!t->dtype)
        return err_input(e, "%s: tensor \"%s\": unknown dtype \"%.40s\" %s", path, name, json_string_value(dtype),
                         kind);
    t->rank = (int)json_array_size(shape);
    t->shape = xcalloc((size_t)t->rank, sizeof *t->shape);
    bool ok = index_of(json_array_get(off, 0), &s->begin) && index_of(json_array_get(off, 1), &s->end);
    for (int i = 0; i < t->rank; i++) ok = ok && index_of(json_array_get(shape, (size_t)i), &t->shape[i]);
    return ok ||
           err_input(e, "%s: tensor \"%s\": shape and data_offsets must be whole numbers from 0 %s", path, name, kind);
}

static int by_offset(const void *a, const void *b) {
    const Span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->t->name, y->t->name);
}

/* Checks 6 to 9 for the entry that must begin at `at`. */
static bool span_check(const char *path, const Span *s, uint64_t at, Err *e) {
    const StEntry *t = s->t;
    char shape[96];
    uint64_t count = 1, bits;
    if (s->begin != at || s->end < s->begin)
        return err_input(
            e,
            "%s: tensor \"%s\": data_offsets [%lu,%lu], expected to begin at %lu where the last tensor ended "
            "(InvalidOffset)",
            path, t->name, s->begin, s->end, at);
    bool over = false;
    for (int i = 0; i < t->rank; i++) over |= __builtin_mul_overflow(count, t->shape[i], &count);
    over |= __builtin_mul_overflow(count, (uint64_t)s->bits, &bits);
    shape_text(t, shape);
    if (over)
        return err_input(e, "%s: tensor \"%s\": shape %s of %s does not fit 64 bits (ValidationOverflow)", path,
                         t->name, shape, t->dtype);
    if (bits % 8)
        return err_input(e, "%s: tensor \"%s\": shape %s of %s is not a whole number of bytes (MisalignedSlice)", path,
                         t->name, shape, t->dtype);
    if (s->end - s->begin != bits / 8)
        return err_input(
            e, "%s: tensor \"%s\": %s of %s takes %lu bytes, data_offsets [%lu,%lu] hold %lu (TensorInvalidInfo)", path,
            t->name, shape, t->dtype, bits / 8, s->begin, s->end, s->end - s->begin);
    return true;
}

static bool metadata_read(StFile *f, json_t *j, Err *e) {
    const char *key;
    json_t *v;
    if (json_is_null(j)) return true;
    bool ok = json_is_object(j);
    json_object_foreach(j, key, v) ok = ok && json_is_string(v);
    if (!ok) return err_input(e, "%s: __metadata__ must be an object of texts (InvalidHeaderDeserialization)", f->path);
    f->metadata = json_incref(j);
    return true;
}

static bool entries_read(St *st, int file, json_t *head, const unsigned char *data, uint64_t size, Err *e) {
    StFile *f = &st->file[file];
    size_t n = json_object_size(head), i = 0;
    const char *name;
    json_t *j;
    bool ok = true;
    st->entry = xrealloc(st->entry, (size_t)st->n + n, sizeof *st->entry);
    memset(st->entry + st->n, 0, n * sizeof *st->entry);
    Span *span = xcalloc(n, sizeof *span);
    json_object_foreach(head, name, j) {
        if (!strcmp(name, "__metadata__")) {
            ok = metadata_read(f, j, e);
        } else {
            span[i].t = &st->entry[st->n++];
            span[i].t->file = file;
            ok = entry_read(f->path, name, j, &span[i++], e);
        }
        if (!ok) break;
    }
    if (ok) qsort(span, i, sizeof *span, by_offset);
    uint64_t at = 0;
    for (size_t k = 0; ok && k < i; at = span[k++].end) ok = span_check(f->path, &span[k], at, e);
    if (ok && at != size)
        ok = err_input(
            e,
            "%s: the header describes %lu bytes of data, the file holds %lu: it is truncated or has something "
            "appended; fetch it again (MetadataIncompleteBuffer)",
            f->path, at, size);
    for (size_t k = 0; ok && k < i; k++) {
        span[k].t->p = data + span[k].begin;
        span[k].t->bytes = (size_t)(span[k].end - span[k].begin);
    }
    free(span);
    return ok;
}

/* Add one more file; its entries are appended. */
static bool safetensors_add_file(St *st, const char *path, Err *e) {
    int file = st->nfile++;
    st->file = xrealloc(st->file, (size_t)st->nfile, sizeof *st->file);
    StFile *f = &st->file[file];
    *f = (StFile){.path = xstrdup(path)};
    if (!file_map(&f->map, path, e)) return false;
    const unsigned char *p = f->map.p;
    size_t n = f->map.n;
    if (n < 8) return err_input(e, "%s: %zu bytes, a safetensors file has at least 8 (HeaderTooSmall)", path, n);
    uint64_t head = 0;
    for (int i = 7; i >= 0; i--) head = head << 8 | p[i];
    if (head > JSON_BYTES_MAX)
        return err_input(
            e, "%s: header of %lu bytes, at most %d are allowed; is this a safetensors file? (HeaderTooLarge)", path,
            head, JSON_BYTES_MAX);
    if (head > n - 8)
        return err_input(
            e, "%s: header of %lu bytes in a file of %zu: it is truncated; fetch it again (InvalidHeaderLength)", path,
            head, n);
    enum json_error_code why;
    Err inner = {0};
    json_t *j = json_parse(p + 8, (size_t)head, path, &why, &inner);
    if (!j) {
        if (e) *e = inner;
        return inner.status == EXIT_RUNTIME
                   ? false
                   : err_input(e, "%.230s (%s)", inner.msg,
                               why == json_error_invalid_utf8       ? "InvalidHeader"
                               : why == json_error_numeric_overflow ? "ValidationOverflow"
                                                                    : "InvalidHeaderDeserialization");
    }
    bool ok = entries_read(st, file, j, p + 8 + head, n - 8 - head, e);
    json_decref(j);
    return ok;
}

static int safetensors_by_name(const void *a, const void *b) {
    const StEntry *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    return c ? c : x->file - y->file;
}

static void sort_entries(St *st) {
    if (st->n) qsort(st->entry, (size_t)st->n, sizeof *st->entry, safetensors_by_name);
}

bool st_open(St *st, const char *path, Err *e) {
    *st = (St){.path = xstrdup(path)};
    bool ok = safetensors_add_file(st, path, e);
    if (ok)
        sort_entries(st);
    else
        st_close(st);
    return ok;
}

bool st_open_files(St *st, const char *path, char *const *file, int n, Err *e) {
    *st = (St){.path = xstrdup(path)};
    for (int i = 0; i < n; i++)
        if (!safetensors_add_file(st, file[i], e)) {
            st_close(st);
            return false;
        }
    sort_entries(st);
    return true;
}

static void entry_free(StEntry *t) {
    free(t->name);
    free(t->shape);
    free(t->made);
}
void st_replace(St *st, const char *name, const char *as, Tensor t) {
    const StEntry *old = st_find(st, name);
    CHECK(old && (!as || (t.dtype == F32 && t.rank <= 2)), "%s", name);
    StEntry s = {.name = as ? xstrdup(as) : NULL,
                 .dtype = "F32",
                 .rank = t.rank,
                 .file = old->file,
                 .p = t.p,
                 .bytes = as ? tensor_bytes(t) : 0,
                 .made = t.p};
    StEntry *place = &st->entry[old - st->entry];
    entry_free(place);
    if (as) {
        s.shape = xcalloc((size_t)t.rank, sizeof *s.shape);
        for (int i = 0; i < t.rank; i++) s.shape[i] = (uint64_t)t.n[i];
        *place = s;
    } else {
        memmove(place, place + 1, (size_t)(&st->entry[--st->n] - place) * sizeof *place);
    }
    qsort(st->entry, (size_t)st->n, sizeof *st->entry, safetensors_by_name);
}

void st_close(St *st) {
    for (int i = 0; i < st->n; i++) entry_free(&st->entry[i]);
    for (int i = 0; i < st->nfile; i++) {
        file_unmap(&st->file[i].map);
        json_decref(st->file[i].metadata);
        free(st->file[i].path);
    }
    for (int i = 0; i < st->nwarn; i++) free(st->warn[i]);
    free(st->entry);
    free(st->file);
    free(st->warn);
    free(st->scale);
    free(st->path);
    *st = (St){0};
}

const StEntry *st_find(const St *st, const char *name) {
    for (int lo = 0, hi = st->n; lo < hi;) {
        int mid = lo + (hi - lo) / 2, c = strcmp(name, st->entry[mid].name);
        if (!c) return &st->entry[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* True for a name that stays in its directory. */
static bool shard_name(const json_t *v) {
    const char *s = json_string_value(v);
    return s && *s && strlen(s) == json_string_length(v) && strlen(s) < 256 && !strchr(s, '/') && !strchr(s, '\\') &&
           !strstr(s, "..") && safetensors_plain(s);
}

static void safetensors_warn(St *st, char *line) {
    st->warn = xrealloc(st->warn, (size_t)st->nwarn + 1, sizeof *st->warn);
    st->warn[st->nwarn++] = line;
}

/* Check that index and shards agree: each name of the map is in its file, and no name is there twice. Entries that the
 * map omits are dropped. */
static bool match_map(St *st, const char *index, json_t *map, Err *e) {
    const char *name, *base;
    json_t *v;
    for (int i = 1; i < st->n; i++)
        if (!strcmp(st->entry[i].name, st->entry[i - 1].name))
            return err_input(e, "tensor \"%s\" is in two shards: %s and %s", st->entry[i].name,
                             st->file[st->entry[i - 1].file].path, st->file[st->entry[i].file].path);
    json_object_foreach(map, name, v) {
        const StEntry *t = st_find(st, name);
        base = t ? strrchr(st->file[t->file].path, '/') + 1 : "";
        if (strcmp(base, json_string_value(v)))
            return err_input(e, "%s: tensor \"%s\" is not in %s, where the index says it is", index, name,
                             json_string_value(v));
    }
    int kept = 0;
    for (int i = 0; i < st->n; i++) {
        StEntry *t = &st->entry[i];
        if (json_object_get(map, t->name)) {
            st->entry[kept++] = *t;
        } else {
            safetensors_warn(st, xformat("%s: tensor \"%s\" is not in the index and is ignored", st->file[t->file].path,
                                         t->name));
            entry_free(t);
        }
    }
    st->n = kept;
    return true;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool open_shards(St *st, const char *dir, const char *index, json_t *j, Err *e) {
    json_t *map = json_object_get(j, "weight_map"), *v;
    const char *name;
    if (!json_is_object(map) || !json_object_size(map))
        return err_input(e, "%s: expected \"weight_map\": {tensor: file, ...}", index);
    const char **file = xcalloc(json_object_size(map), sizeof *file);
    size_t n = 0, k = 0;
    bool ok = true;
    json_object_foreach(map, name, v) {
        file[n++] = json_string_value(v);
        if (!shard_name(v)) {
            ok = err_input(
                e, "%s: file of tensor \"%s\": expected the name of a file in the same directory, found %s%.60s%s",
                index, name, json_is_string(v) ? "\"" : "", json_is_string(v) ? json_string_value(v) : "no text",
                json_is_string(v) ? "\"" : "");
            break;
        }
    }
    if (ok) qsort(file, n, sizeof *file, by_text);
    for (size_t i = 0; ok && i < n; i++)
        if (!i || strcmp(file[i], file[k - 1])) file[k++] = file[i];
    if (ok && k > SHARDS_MAX) ok = err_input(e, "%s: %zu shards, at most %d are read", index, k, SHARDS_MAX);
    for (size_t i = 0; ok && i < k; i++) {
        char *path = xformat("%s/%s", dir, file[i]);
        ok = safetensors_add_file(st, path, e);
        free(path);
    }
    free(file);
    if (!ok) return false;
    sort_entries(st);
    return match_map(st, index, map, e);
}

bool st_open_dir(St *st, const char *dir, Err *e) {
    bool ok = false;
    if (file_exists(dir, "model.safetensors", e)) {
        char *path = xformat("%s/model.safetensors", dir);
        ok = st_open(st, path, e);
        free(path);
        return ok;
    }
    *st = (St){.n = 0};
    if (e->status) return false;
    st->path = xstrdup(dir);
    if (!file_exists(dir, "model.safetensors.index.json", e)) {
        Err ignored = {0};
        if (!e->status)
            err_input(
                e, "%.100s: %s", dir,
                file_exists(dir, "pytorch_model.bin", &ignored)
                    ? "pytorch_model.bin is not read; run there: python3 -c \"import torch as t,safetensors.torch as "
                      "s;s.save_file({k:v.contiguous().clone() for k,v in "
                      "t.load('pytorch_model.bin').items()},'model.safetensors')\""
                    : "neither model.safetensors nor model.safetensors.index.json is there");
    } else {
        char *index = xformat("%s/model.safetensors.index.json", dir);
        json_t *j = json_read(index, e);
        ok = j && open_shards(st, dir, index, j, e);
        json_decref(j);
        free(index);
    }
    if (!ok) st_close(st);
    return ok;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static double safetensors_half(uint16_t h) {
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp == 31 ? (man ? NAN : INFINITY) : exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return h >> 15 ? -v : v;
}

/* Element i of the entry as a double, which holds all four dtypes exactly. */
static inline double element(const unsigned char *p, Dtype d, size_t i) {
    uint64_t w = 0;
    uint32_t s;
    float f;
    double v;
    const size_t b = dtype_size(d);
    for (size_t k = b; k-- > 0;) w = w << 8 | p[i * b + k];
    if (d == F64) return memcpy(&v, &w, 8), v;
    if (d == F16) return safetensors_half((uint16_t)w);
    s = d == BF16 ? (uint32_t)w << 16 : (uint32_t)w;
    return memcpy(&f, &s, 4), f;
}

/* One loop per pair of dtypes, so that the compiler knows both: n elements from `from` on, `step` apart, to elements
 * `to`.. of t. Returns the first that does not fit, or n. */
#define CONVERT(D, T)                                   \
    for (size_t i = 0; i < n; i++) {                    \
        double v = element(p, D, from + i * step);      \
        T *out = (T *)t.p + to + i;                     \
        *out = (T)v;                                    \
        if (isinf((double)*out) && !isinf(v)) return i; \
    }                                                   \
    return n
#define CONVERT_TO(D)       \
    if (t.dtype == F64) {   \
        CONVERT(D, double); \
    } else {                \
        CONVERT(D, float);  \
    }
static size_t safetensors_convert(const unsigned char *p, Dtype d, size_t from, size_t step, Tensor t, size_t to,
                                  size_t n) {
    switch (d) {
    case F64: CONVERT_TO(F64);
    case F32: CONVERT_TO(F32);
    case BF16: CONVERT_TO(BF16);
    case F16: CONVERT_TO(F16);
    }
    return 0;
}

/* The first stored element of the slice in which a tensor of n elements lies. */
static size_t slice_begin(StPlace p, size_t n) { return (size_t)p.slice * (size_t)p.parts * n; }

static const Dtype floats[] = {F64, F32, BF16, F16};

/* Index into `floats`; -1: another dtype. */
static int float_of(const StEntry *s) {
    for (int i = 0; i < 4; i++)
        if (!strcmp(s->dtype, dtype_name(floats[i]))) return i;
    return -1;
}

/* safetensors_convert of an entry, which may be quantised. */
static size_t entry_convert(const StEntry *s, size_t from, size_t step, Tensor t, size_t to, size_t n) {
    float some[256];
    if (!s->scale) return safetensors_convert(s->p, floats[float_of(s)], from, step, t, to, n);
    if (t.dtype == F32) {
        st_scaled(s, from, step, n, (float *)t.p + to);
        return n;
    }
    for (size_t i = 0, k; i < n; i += k) {
        k = zmin(n - i, sizeof some / sizeof *some);
        st_scaled(s, from + i * step, step, k, some);
        for (size_t j = 0; j < k; j++) ((double *)t.p)[to + i + j] = some[j];
    }
    return n;
}

bool st_fits_part(const St *st, const StEntry *s, Tensor t, StPlace p, Err *e) {
    return st_fits(st, s, st_stored(t, p), e);
}
Tensor st_stored(Tensor t, StPlace p) {
    Tensor all = t;
    all.n[0] = p.all ? p.all : t.n[0] * p.parts;
    if (p.turned && t.rank == 2) all.n[1] = all.n[0], all.n[0] = t.n[1];
    if (p.deep && t.rank == 1) all.rank = 4, all.n[0] = all.n[1] = all.n[3] = 1, all.n[2] = t.n[0];
    if (!p.stack && !p.slices) return all;
    CHECK(!p.slices || (!p.stack && !p.all && !p.deep && p.slice < p.slices && t.rank < RANK_MAX), "%d slices",
          p.slices);
    CHECK(p.slices || (p.all && p.all % p.stack == 0 && !p.turned && t.rank < RANK_MAX), "%d rows in a stack of %d",
          p.all, p.stack);
    for (int i = all.rank++; i > 0; i--) all.n[i] = all.n[i - 1];
    all.n[0] = p.slices ? p.slices : p.stack;
    if (p.stack) all.n[1] = p.all / p.stack;
    return all;
}
bool st_fits(const St *st, const StEntry *s, Tensor t, Err *e) {
    const char *path = st->file[s->file].path;
    char want[64], got[96];
    bool same = s->rank == t.rank;
    for (int i = 0; same && i < t.rank; i++) same = s->shape[i] == (uint64_t)t.n[i];
    if (!same)
        return err_input(e, "%s: tensor \"%s\": expected shape %s, found %s", path, s->name, tensor_shape(t, want),
                         shape_text(s, got));
    return s->scale || float_of(s) >= 0 ||
           err_input(e, "%s: tensor \"%s\": expected dtype F64, F32, F16 or BF16, found %s", path, s->name, s->dtype);
}

bool st_patched(const St *st, const StEntry *s) { return st->patch && st->patch->has(st->patch, s); }
/* Add the patch's values; `s` may be some rows of an entry. */
static void safetensors_patch(const St *st, const StEntry *s, Tensor t, StPlace p) {
    if (!st_patched(st, s)) return;
    const StEntry *all = st_find(st, s->name);
    st->patch->add(st->patch, all, (size_t)(s->p - all->p) / (all->bytes / (size_t)all->shape[0]), t, p);
}
/* Read into BF16: the sum is computed in f32 and rounded once. */
static bool read_patched(const St *st, const StEntry *s, Tensor t, StPlace p, Err *e) {
    float *sum = xcalloc(tensor_count(t), sizeof *sum);
    bool ok = st_read_part(st, s, tensor_make(sum, F32, t.rank, t.n), p, e);
    for (size_t i = 0; ok && i < tensor_count(t); i++) {
        uint16_t h = ((uint16_t *)t.p)[i] = bf16_from(sum[i]);
        if (isfinite(sum[i]) && (h & 0x7FFF) == 0x7F80)
            ok = err_input(e, "%s: tensor \"%s\" with its adapter: number %zu is too large for BF16",
                           st->file[s->file].path, s->name, i);
    }
    free(sum);
    return ok;
}

bool st_read_part(const St *st, const StEntry *s, Tensor t, StPlace p, Err *e) {
    CHECK(t.p && t.dtype != F16, "%s", s->name);
    if (!st_fits_part(st, s, t, p, e)) return false;
    if (t.dtype == BF16 && st_patched(st, s)) return read_patched(st, s, t, p, e);
    bool whole = st_is_whole(p, t.rank);
    if (t.dtype == BF16) {
        CHECK(whole, "%s", s->name);
        if (strcmp(s->dtype, "BF16"))
            return err_input(e, "%s: tensor \"%s\": expected dtype BF16, found %s", st->file[s->file].path, s->name,
                             s->dtype);
        for (size_t i = 0; i < tensor_count(t); i++)
            ((uint16_t *)t.p)[i] = (uint16_t)(s->p[2 * i] | s->p[2 * i + 1] << 8);
        return true;
    }
    size_t n = tensor_count(t), rows = whole ? 1 : (size_t)t.n[0], w = rows ? n / rows : 0;
    size_t all = p.all ? (size_t)p.all : rows * (size_t)p.parts;
    for (size_t r = 0; r < rows; r++) {
        size_t k = whole ? 0 : st_row(p, r);
        bool turned = p.turned && t.rank == 2;
        size_t from = slice_begin(p, n) + (turned ? k : k * w), step = turned ? all : 1;
        size_t at = entry_convert(s, from, step, t, r * w, w);
        if (at < w)
            return err_input(e, "%s: tensor \"%s\": number %zu is too large for %s", st->file[s->file].path, s->name,
                             from + at * step, dtype_name(t.dtype));
    }
    safetensors_patch(st, s, t, p);
    return true;
}
bool st_read_round(const St *st, const StEntry *s, Tensor t, StPlace p, Err *e) {
    CHECK(t.p && t.dtype == BF16 && t.rank == 2, "%s", s->name);
    bool bf16 = !strcmp(s->dtype, "BF16"), whole = st_is_whole(p, t.rank);
    if ((bf16 && whole) || st_patched(st, s)) return st_read_part(st, s, t, p, e);
    if (!st_fits_part(st, s, t, p, e)) return false;
    size_t rows = (size_t)t.n[0], w = (size_t)t.n[1], all = p.all ? (size_t)p.all : rows * (size_t)p.parts;
    float *row = xcalloc(w, sizeof *row);
    uint16_t *out = t.p;
    bool ok = true;
    for (size_t r = 0; r < rows && ok; r++) {
        size_t k = st_row(p, r), from = slice_begin(p, rows * w) + (p.turned ? k : k * w), step = p.turned ? all : 1;
        size_t at = entry_convert(s, from, step, TENSOR(row, F32, (int)w), 0, w);
        for (size_t i = 0; i < at; i++) {
            uint16_t h = out[r * w + i] = bf16_from(row[i]);
            if (isfinite(row[i]) && (h & 0x7FFF) == 0x7F80) at = i; /* this also ends the loop */
        }
        if (at < w)
            ok = err_input(e, "%s: tensor \"%s\": number %zu is too large for BF16", st->file[s->file].path, s->name,
                           from + at * step);
    }
    free(row);
    return ok;
}
bool st_read(const St *st, const StEntry *s, Tensor t, Err *e) { return st_read_part(st, s, t, ST_WHOLE, e); }

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static bool read_at(const StLoad *l, const StEntry *s, Tensor t, StPlace p) {
    Tensor view = view_open(l->dev, t, false);
    bool ok = (l->round && t.dtype == BF16 ? st_read_round : st_read_part)(l->st, s, view, p, l->err);
    view_close(l->dev, t, view, ok);
    return ok;
}
static void take_field(StLoad *l, Tensor t, const char *path, unsigned flags, bool read) {
    char own[192];
    StPlace p = ST_WHOLE;
    if (l->failed) return;
    if (l->names) p = l->names->find(l->names, path, t, own);
    char *name = xformat("%s%s", l->prefix, l->names ? own : path);
    const StEntry *s = st_find(l->st, name);
    if (s) {
        l->used[s - l->st->entry] = true;
        l->failed = !(read ? read_at(l, s, t, p) : st_fits_part(l->st, s, t, p, l->err));
    } else if (!(flags & FIELD_OPTIONAL)) {
        l->failed = !err_input(l->err, "%s: tensor \"%s\" is missing", l->st->path, name);
    }
    free(name);
}

static void load_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    take_field(f->ctx, *t, path, flags, true);
}
static void check_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    take_field(f->ctx, *t, path, flags, false);
}

void st_load_begin(StLoad *l, const St *st, const char *prefix, Err *e) {
    *l = (StLoad){.st = st, .prefix = prefix ? prefix : "", .err = e, .used = xcalloc((size_t)st->n, 1)};
}
Fields st_loader(StLoad *l) { return (Fields){.see = load_field, .ctx = l}; }
Fields st_checker(StLoad *l) { return (Fields){.see = check_field, .ctx = l}; }

bool st_load_end(StLoad *l, bool (*rest)(const char *name)) {
    for (int i = 0; rest && i < l->st->n && !l->failed; i++) {
        const StEntry *s = &l->st->entry[i];
        bool ours = !strncmp(s->name, l->prefix, strlen(l->prefix)) && !rest(s->name + strlen(l->prefix));
        /* an entry that an adapter changes must be read */
        if (l->used[i] || (!ours && !st_patched(l->st, s))) continue;
        l->failed =
            !err_input(l->err, "%s: tensor \"%s\" has no place in this model", l->st->file[s->file].path, s->name);
    }
    free(l->used);
    l->used = NULL;
    return !l->failed;
}
