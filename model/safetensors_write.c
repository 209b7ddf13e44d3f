/* safetensors_write.c: the writer: header as the reference writes it, data streamed through a small buffer. */
#include "safetensors.h"

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

/* Numbers a..b-1 of `t` as `as`, little-endian. F64 as BF16 rounds twice, by way of F32. */
static void encode(Tensor t, Dtype as, size_t a, size_t b, unsigned char *out) {
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

static bool put_data(FileOut *o, const StItem *s, Err *e) {
    static const size_t step = 1 << 16;
    const size_t n = tensor_count(s->t);
    const uint32_t one = 1;
    /* The common case goes to the file as it lies in memory. */
    if (s->as == s->t.dtype && *(const unsigned char *)&one) return file_put(o, s->t.p, tensor_bytes(s->t), e);
    unsigned char *buf = xcalloc(step, 8);
    bool ok = true;
    for (size_t i = 0; ok && i < n; i += step) {
        size_t end = zmin(i + step, n);
        encode(s->t, s->as, i, end, buf);
        ok = file_put(o, buf, (end - i) * dtype_size(s->as), e);
    }
    free(buf);
    return ok;
}

void st_add(StList *l, const char *name, Tensor t, Dtype as) {
    CHECK(present(t) && t.p && (t.dtype == F32 || t.dtype == F64 || (t.dtype == BF16 && as == BF16)), "%s", name);
    l->item = xrealloc(l->item, (size_t)l->n + 1, sizeof *l->item);
    l->item[l->n++] = (StItem){xstrdup(name), t, as};
}

static void list_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    StList *l = f->ctx;
    char *name = xformat("%s%s", l->prefix ? l->prefix : "", path);
    st_add(l, name, *t, l->own ? t->dtype : flags & FIELD_F32 && dtype_size(l->as) < 4 ? F32 : l->as);
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

/* The header's JSON, padded; `n` items in file order. */
static char *header(const StItem *s, int n, const char *const *meta, size_t *len) {
    char *text = NULL;
    size_t at = 0;
    FILE *f = open_memstream(&text, len);
    if (!f) return NULL;
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
    bool ok = !ferror(f);
    if (fclose(f) || !ok) {
        free(text);
        return NULL;
    }
    return text;
}

bool st_write(const char *path, const StList *l, const char *const *meta, Err *e) {
    size_t len = 0;
    FileOut o;
    StItem *s = xcalloc((size_t)l->n, sizeof *s);
    if (l->n) memcpy(s, l->item, (size_t)l->n * sizeof *s);
    qsort(s, (size_t)l->n, sizeof *s, by_name);
    for (int i = 1; i < l->n; i++) CHECK(strcmp(s[i].name, s[i - 1].name), "two tensors are named %s", s[i].name);
    qsort(s, (size_t)l->n, sizeof *s, by_rank);
    char *head = header(s, l->n, meta, &len);
    bool ok = head || err_world(e, "cannot write %s: out of memory", path);
    ok = ok && (len <= JSON_BYTES_MAX || err_input(e, "%s: %d tensors need a header of %zu bytes, the format allows %d",
                                                   path, l->n, len, JSON_BYTES_MAX));
    if (ok) {
        unsigned char size[8];
        for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)len >> 8 * i);
        ok = file_begin(&o, path, e) && file_put(&o, size, 8, e) && file_put(&o, head, len, e);
        for (int i = 0; ok && i < l->n; i++) ok = put_data(&o, &s[i], e);
        ok = ok && file_commit(&o, e);
    }
    free(head);
    free(s);
    return ok;
}
