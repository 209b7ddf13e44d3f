#include "shards.h"

/* ---- the list -------------------------------------------------------------------------------------------------------
 */

void manifest_add(Manifest *m, const char *name, FileSum sum) {
    m->file = xrealloc(m->file, (size_t)m->n + 1, sizeof *m->file);
    m->file[m->n++] = (struct Listed){xstrdup(name), sum};
}

void manifest_free(Manifest *m) {
    for (int i = 0; i < m->n; i++) free(m->file[i].name);
    free(m->file);
    *m = (Manifest){0};
}

bool manifest_write(const char *path, const Manifest *m, Err *e) {
    json_t *files = json_object(), *j = json_pack("{s:I, s:o}", "step", (json_int_t)m->step, "files", files);
    for (int i = 0; i < m->n; i++) {
        char hash[20];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)m->file[i].sum.hash);
        json_object_set_new(files, m->file[i].name,
                            json_pack("{s:I, s:s}", "bytes", (json_int_t)m->file[i].sum.bytes, "xxh64", hash));
    }
    bool ok = j ? json_write(path, j, e) : err_runtime(e, "cannot write %s: out of memory", path);
    json_decref(j);
    return ok;
}

/* A name that stays in the checkpoint's folder. */
static bool listed_name(const char *s) {
    if (!strcmp(s, "model.safetensors")) return true;
    if (strncmp(s, "trainer/", 8) || !s[8] || s[8] == '.' || strlen(s) > 200) return false;
    for (s += 8; *s; s++)
        if ((unsigned char)*s <= 32 || *s == 127 || *s == '/' || *s == '\\') return false;
    return true;
}

static bool listed_read(Manifest *m, const char *path, const char *name, const json_t *v, Err *e) {
    const json_t *bytes = json_object_get(v, "bytes");
    const char *hash = json_string_value(json_object_get(v, "xxh64"));
    if (!listed_name(name))
        return err_input(e, "%s: \"%.60s\": expected model.safetensors or a file of trainer/", path, name);
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0)
        return err_input(e, "%s: \"%s\": expected \"bytes\": a whole number", path, name);
    if (!hash || strlen(hash) != 16 || strspn(hash, "0123456789abcdef") != 16)
        return err_input(e, "%s: \"%s\": expected \"xxh64\": 16 hexadecimal digits", path, name);
    manifest_add(m, name, (FileSum){(uint64_t)json_integer_value(bytes), strtoull(hash, NULL, 16)});
    return true;
}

bool manifest_read(const char *path, Manifest *m, Err *e) {
    *m = (Manifest){0};
    json_t *j = json_read(path, e), *files = json_object_get(j, "files"), *step = json_object_get(j, "step"), *v;
    const char *name;
    bool ok = j != NULL;
    if (ok && (!json_is_integer(step) || json_integer_value(step) < 0))
        ok = err_input(e, "%s: \"step\": expected a whole number", path);
    if (ok && (!json_is_object(files) || json_object_size(files) > MANIFEST_FILES_MAX))
        ok = err_input(e, "%s: expected \"files\": {name: {\"bytes\": number, \"xxh64\": text}, ...}, at most %d", path,
                       MANIFEST_FILES_MAX);
    if (ok) m->step = json_integer_value(step);
    if (ok) json_object_foreach(files, name, v) {
            if (!(ok = listed_read(m, path, name, v, e))) break;
        }
    json_decref(j);
    if (!ok) manifest_free(m);
    return ok;
}

bool manifest_check(const Manifest *m, const char *dir, int part, int parts, Err *e) {
    bool ok = true;
    for (int i = part; ok && i < m->n; i += parts) {
        const FileSum *want = &m->file[i].sum;
        FileSum got;
        char *path = xformat("%s/%s", dir, m->file[i].name);
        ok = file_sum(path, &got, e);
        if (ok && got.bytes != want->bytes)
            ok = err_input(e, "%s: %llu bytes, but the checkpoint was written with %llu; use another checkpoint", path,
                           (unsigned long long)got.bytes, (unsigned long long)want->bytes);
        else if (ok && got.hash != want->hash)
            ok = err_input(e,
                           "%s: checksum %016llx, but the checkpoint was written with %016llx: the file is damaged or "
                           "from another checkpoint",
                           path, (unsigned long long)got.hash, (unsigned long long)want->hash);
        free(path);
    }
    return ok;
}

char *shard_name(int k, int n) {
    return n == 1 ? xstrdup("trainer/optimizer.safetensors")
                  : xformat("trainer/optimizer-%05d-of-%05d.safetensors", k + 1, n);
}
char *shard_entry(const char *prefix, const char *name, size_t from, size_t n, size_t all) {
    return n == all ? xformat("%s%s", prefix, name) : xformat("%s%s[%zu:%zu]", prefix, name, from, from + n);
}

/* ---- moments --------------------------------------------------------------------------------------------------------
 */

typedef struct Range Range;
struct Range {
    const StEntry *s;
    char *key;       /* the name without its range */
    size_t from, to; /* to 0: all of the tensor, whatever that is */
    bool used;
};

static const char *file_of(const Moments *m, const Range *r) { return m->st.file[r->s->file].path; }

/* Digits alone, none in vain. */
static bool shards_number(const char **s, size_t *v) {
    const char *p = *s;
    *v = 0;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9')) return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (*v > (SIZE_MAX - 9) / 10) return false;
        *v = *v * 10 + (size_t)(*p - '0');
    }
    *s = p;
    return true;
}

static bool range_read(const Moments *m, Range *r, Err *e) {
    const char *name = r->s->name, *open = strchr(name, '['), *p = open ? open + 1 : NULL;
    r->key = xstrdup(name);
    if (!open) return true;
    r->key[open - name] = 0;
    bool ok =
        shards_number(&p, &r->from) && *p++ == ':' && shards_number(&p, &r->to) && !strcmp(p, "]") && r->from < r->to;
    if (!ok) return err_input(e, "%s: tensor \"%.100s\": expected NAME or NAME[from:to]", file_of(m, r), name);
    return (r->s->rank == 1 && r->s->shape[0] == r->to - r->from) ||
           err_input(e, "%s: tensor \"%.100s\": expected one dimension of %zu elements", file_of(m, r), name,
                     r->to - r->from);
}

static int by_place(const void *a, const void *b) {
    const Range *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : x->from != y->from ? (x->from < y->from ? -1 : 1) : x->s->file - y->s->file;
}

bool moments_open(Moments *m, const char *path, char *const *file, int n, Err *e) {
    *m = (Moments){0};
    if (!st_open_files(&m->st, path, file, n, e)) return false;
    m->range = xcalloc((size_t)m->st.n, sizeof *m->range);
    for (; m->n < m->st.n; m->n++) {
        m->range[m->n].s = &m->st.entry[m->n];
        if (range_read(m, &m->range[m->n], e)) continue;
        m->n++;
        moments_close(m);
        return false;
    }
    if (m->n) qsort(m->range, (size_t)m->n, sizeof *m->range, by_place);
    return true;
}

void moments_close(Moments *m) {
    for (int i = 0; i < m->n; i++) free(m->range[i].key);
    free(m->range);
    st_close(&m->st);
    *m = (Moments){0};
}

/* The first range of the tensor, or n; *end: the one after its last. */
static int shards_find(const Moments *m, const char *prefix, const char *name, int *end) {
    char *key = xformat("%s%s", prefix, name);
    int lo = 0;
    for (int hi = m->n; lo < hi;) {
        int mid = lo + (hi - lo) / 2;
        if (strcmp(m->range[mid].key, key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *end = lo;
    while (*end < m->n && !strcmp(m->range[*end].key, key)) ++*end;
    free(key);
    return lo;
}

bool moments_fit(Moments *m, const char *prefix, const char *name, Tensor t, Err *e) {
    size_t at = 0, all = tensor_count(t);
    int end, i = shards_find(m, prefix, name, &end);
    if (i == end) return err_input(e, "%s: tensor \"%s%s\" is missing", m->st.path, prefix, name);
    for (; i < end; i++) {
        Range *r = &m->range[i];
        r->used = true;
        if (!r->to && !st_fits(&m->st, r->s, t, e)) return false;
        if (!r->to) r->to = all;
        if (r->from < at || r->to > all)
            return err_input(e, "%s: tensor \"%.100s\": %s", file_of(m, r), r->s->name,
                             r->to > all ? "ends after the tensor of that name"
                                         : "some elements of it are in two shards");
        if (r->from > at)
            return err_input(e, "%s: elements %zu to %zu of tensor \"%s%.100s\" are in no shard", m->st.path, at,
                             r->from - 1, prefix, name);
        at = r->to;
    }
    return at == all || err_input(e, "%s: elements %zu to %zu of tensor \"%s%.100s\" are in no shard", m->st.path, at,
                                  all - 1, prefix, name);
}

bool moments_read(const Moments *m, const char *prefix, const char *name, size_t from, Tensor to, Err *e) {
    enum { MOST = 1 << 30 };
    size_t n = tensor_count(to);
    int end, i = shards_find(m, prefix, name, &end);
    for (; i < end; i++) {
        const Range *r = &m->range[i];
        size_t a = zmax(from, r->from), b = zmin(from + n, r->to), size = r->s->bytes / (r->to - r->from);
        for (; a < b; a += zmin(MOST, b - a)) {
            uint64_t k = zmin(MOST, b - a);
            StEntry part = *r->s;
            part.rank = 1;
            part.shape = &k;
            part.p += (a - r->from) * size;
            part.bytes = k * size;
            char *dst = (char *)to.p + (a - from) * dtype_size(to.dtype);
            if (!st_read(&m->st, &part, TENSOR(dst, to.dtype, (int)k), e)) return false;
        }
    }
    return true;
}

bool moments_all_used(const Moments *m, Err *e) {
    for (int i = 0; i < m->n; i++)
        if (!m->range[i].used)
            return err_input(e, "%s: tensor \"%.150s\" does not belong to this model", file_of(m, &m->range[i]),
                             m->range[i].s->name);
    return true;
}
