/* gguf_read.h: a reader of GGUF files for tests, written from the format's description; it checks the container while
 * it reads: no key twice, no tensor name of 64 bytes or more, tensors one after the other at multiples of 32 bytes. */
#pragma once
#include "converts.h"
#include "ops/file.h"

typedef struct {
    const unsigned char *at; /* of the value */
    uint32_t type, of;       /* of: elements of a list */
    uint64_t n;              /* bytes of a text, elements of a list */
} Value;
typedef struct {
    char *name;
    Value v;
} Found;
typedef struct {
    char name[65];
    uint32_t rank, type;
    uint64_t n[4], count; /* n: the fastest first */
    const unsigned char *p;
    bool seen;
} Block;
typedef struct {
    FileMap map;
    const unsigned char *at;
    uint64_t nkey, ntensor;
    Found *key;
    Block *tensor;
} File;

static inline uint64_t number(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}
static inline const unsigned char *take(File *f, uint64_t n) {
    const unsigned char *p = f->at;
    cr_assert(n <= (uint64_t)(f->map.p + f->map.n - p), "the file ends early");
    f->at += n;
    return p;
}
static inline uint64_t next(File *f, int bytes) { return number(take(f, (uint64_t)bytes), bytes); }
static inline int gguf_bytes(uint32_t type) {
    static const int bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, -1, -1, 8, 8, 8};
    cr_assert(type < 13 && type != 9, "type %u", type);
    return bytes[type];
}
static inline void skip_value(File *f, uint32_t type) {
    uint64_t n = type == 8 ? next(f, 8) : (uint64_t)gguf_bytes(type);
    take(f, n);
}
static inline uint64_t gguf_block_bytes(const Block *t) {
    cr_assert(t->type == 0 || t->type == 1 || t->type == 8 || t->type == 30, "%s: type %u", t->name, t->type);
    return t->type == 8 ? t->count / 32 * 34 : t->count * (t->type ? 2 : 4);
}
static inline void file_open(File *f, const char *path) {
    Err e = {0};
    *f = (File){0};
    cr_assert(file_map(&f->map, path, &e), "%s", e.msg);
    f->at = f->map.p;
    cr_assert(!memcmp(take(f, 4), "GGUF", 4) && next(f, 4) == 3);
    f->ntensor = next(f, 8), f->nkey = next(f, 8);
    f->key = xcalloc(f->nkey, sizeof *f->key), f->tensor = xcalloc(f->ntensor, sizeof *f->tensor);
    for (uint64_t i = 0; i < f->nkey; i++) {
        Found *k = &f->key[i];
        uint64_t n = next(f, 8);
        k->name = xformat("%.*s", (int)n, (const char *)take(f, n));
        for (uint64_t j = 0; j < i; j++) cr_assert_str_neq(k->name, f->key[j].name);
        k->v.type = (uint32_t)next(f, 4);
        if (k->v.type == 9) k->v.of = (uint32_t)next(f, 4);
        if (k->v.type == 8 || k->v.type == 9) k->v.n = next(f, 8);
        k->v.at = f->at;
        if (k->v.type == 8) take(f, k->v.n);
        for (uint64_t j = 0; k->v.type == 9 && j < k->v.n; j++) skip_value(f, k->v.of);
        if (k->v.type < 8) take(f, (uint64_t)gguf_bytes(k->v.type));
    }
    uint64_t *place = xcalloc(f->ntensor, sizeof *place), end = 0;
    for (uint64_t i = 0; i < f->ntensor; i++) {
        Block *t = &f->tensor[i];
        uint64_t n = next(f, 8);
        cr_assert(n < 64); /* ggml's GGML_MAX_NAME with its NUL */
        memcpy(t->name, take(f, n), n);
        t->rank = (uint32_t)next(f, 4), t->count = 1;
        cr_assert(t->rank >= 1 && t->rank <= 4);
        for (uint32_t d = 0; d < t->rank; d++) t->count *= t->n[d] = next(f, 8);
        t->type = (uint32_t)next(f, 4), place[i] = next(f, 8);
        cr_assert(t->type != 8 || t->n[0] % 32 == 0, "%s: blocks across rows", t->name);
    }
    const size_t data = ((size_t)(f->at - f->map.p) + 31) / 32 * 32;
    for (uint64_t i = 0; i < f->ntensor; i++) { /* one after the other, each at a multiple of 32 */
        cr_assert_eq(place[i], (end + 31) / 32 * 32, "%s", f->tensor[i].name);
        f->tensor[i].p = f->map.p + data + place[i];
        end = place[i] + gguf_block_bytes(&f->tensor[i]);
    }
    cr_assert_eq(f->map.n, data + (end + 31) / 32 * 32);
    free(place);
}
static inline void file_close(File *f) {
    for (uint64_t i = 0; i < f->nkey; i++) free(f->key[i].name);
    free(f->key), free(f->tensor);
    file_unmap(&f->map);
}

static inline const Value *key_of(const File *f, const char *name) {
    for (uint64_t i = 0; i < f->nkey; i++)
        if (!strcmp(f->key[i].name, name)) return &f->key[i].v;
    return NULL;
}
static inline double scalar(const File *f, const char *name) {
    const Value *v = key_of(f, name);
    cr_assert(v && (v->type == 4 || v->type == 6 || v->type == 7), "no number %s", name);
    float x;
    memcpy(&x, v->at, v->type == 6 ? sizeof x : 1);
    return v->type == 6 ? (double)x : (double)number(v->at, v->type == 7 ? 1 : 4);
}
static inline char *text_of(const File *f, const char *name) {
    const Value *v = key_of(f, name);
    cr_assert(v && v->type == 8, "no text %s", name);
    return xformat("%.*s", (int)v->n, (const char *)v->at);
}
static inline void text_is(const File *f, const char *name, const char *want) {
    char *s = text_of(f, name);
    cr_expect_str_eq(s, want, "%s is %s", name, s);
    free(s);
}
/* Element i of a list of texts. */
static inline char *text_at(const File *f, const char *name, uint64_t i) {
    const Value *v = key_of(f, name);
    cr_assert(v && v->type == 9 && v->of == 8 && i < v->n, "no text %s[%d]", name, (int)i);
    const unsigned char *p = v->at;
    for (; i; i--) p += 8 + number(p, 8);
    return xformat("%.*s", (int)number(p, 8), (const char *)p + 8);
}
static inline void text_at_is(const File *f, const char *name, uint64_t i, const char *want) {
    char *s = text_at(f, name, i);
    cr_expect_str_eq(s, want, "%s[%d] is %s", name, (int)i, s);
    free(s);
}
static inline double number_at(const File *f, const char *name, uint64_t i) {
    const Value *v = key_of(f, name);
    cr_assert(v && v->type == 9 && (v->of == 5 || v->of == 6) && i < v->n, "no number %s[%d]", name, (int)i);
    float x;
    memcpy(&x, v->at + 4 * i, sizeof x);
    return v->of == 6 ? (double)x : (double)(int32_t)number(v->at + 4 * i, 4);
}

static inline Block *tensor_of(const File *f, const char *name) {
    for (uint64_t i = 0; i < f->ntensor; i++)
        if (!strcmp(f->tensor[i].name, name)) return &f->tensor[i];
    return NULL;
}
static inline double half_value(uint16_t h) {
    const int exp = h >> 10 & 31, m = h & 1023;
    const double x = exp == 31 ? (m ? NAN : INFINITY) : exp ? ldexp(1024 + m, exp - 25) : ldexp(m, -24);
    return h >> 15 ? -x : x;
}
/* Element i; *scale: that of its block, else 0. */
static inline double element(const Block *t, uint64_t i, double *scale) {
    float x;
    *scale = 0;
    if (t->type == 0) return memcpy(&x, t->p + 4 * i, 4), (double)x;
    if (t->type == 1) return half_value((uint16_t)number(t->p + 2 * i, 2));
    if (t->type == 30) return (double)bf16_to((uint16_t)number(t->p + 2 * i, 2));
    const unsigned char *b = t->p + i / 32 * 34;
    *scale = half_value((uint16_t)number(b, 2));
    return *scale * (int8_t)b[2 + i % 32];
}
