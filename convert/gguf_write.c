/* gguf_write.c: the container of GGUF files: keys, tensors, and values rounded to the types of a file. */
#include "gguf.h"
#include "model/files/safetensors.h"

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void put_number(Buf *b, uint64_t v, int bytes) {
    unsigned char le[8];
    for (int i = 0; i < bytes; i++) le[i] = (unsigned char)(v >> 8 * i);
    buf_put(b, (const char *)le, (size_t)bytes);
}
static void put_text(Buf *b, const char *s) {
    put_number(b, strlen(s), 8);
    buf_put(b, s, strlen(s));
}
static void put_float(Buf *b, float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    put_number(b, u, 4);
}
static void put_key(Gguf *g, const char *name, GgufValue type) {
    char *full = xformat("%s%s", *name == '.' ? g->arch : "", name);
    put_text(&g->keys, full);
    put_number(&g->keys, type, 4);
    g->nkeys++;
    free(full);
}
void gguf_u32(Gguf *g, const char *name, uint32_t v) {
    put_key(g, name, GGUF_U32);
    put_number(&g->keys, v, 4);
}
void gguf_float(Gguf *g, const char *name, double v) {
    put_key(g, name, GGUF_FLOAT);
    put_float(&g->keys, (float)v);
}
void gguf_bool(Gguf *g, const char *name, bool v) {
    put_key(g, name, GGUF_BOOL);
    put_number(&g->keys, v, 1);
}
void gguf_text(Gguf *g, const char *name, const char *text) {
    put_key(g, name, GGUF_TEXT);
    put_text(&g->keys, text);
}
void gguf_list(Gguf *g, const char *name, GgufValue of, uint64_t n) {
    put_key(g, name, GGUF_ARRAY);
    put_number(&g->keys, of, 4);
    put_number(&g->keys, n, 8);
}
void gguf_element_text(Gguf *g, const char *text) { put_text(&g->keys, text); }
void gguf_element_int(Gguf *g, int32_t v) { put_number(&g->keys, (uint32_t)v, 4); }
void gguf_element_float(Gguf *g, float v) { put_float(&g->keys, v); }
void gguf_element_bool(Gguf *g, bool v) { put_number(&g->keys, v, 1); }

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static uint64_t ggml_bytes(GgmlType type, uint64_t n) {
    return type == GGML_Q8_0 ? n / GGUF_BLOCK * GGUF_BLOCK_BYTES : type == GGML_F32 ? 4 * n : 2 * n;
}
static uint64_t gguf_aligned(uint64_t at) { return (at + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN; }

bool gguf_tensor(Gguf *g, const char *name, int rank, const uint64_t *n, GgmlType type, Err *e) {
    const uint64_t most = UINT64_MAX / 16; /* of elements, and of bytes of a file */
    GgufTensor t = {.rank = rank, .type = type};
    uint64_t count = 1;
    bool small = (size_t)snprintf(t.name, sizeof t.name, "%s", name) < sizeof t.name;
    for (int i = 0; i < rank; i++) {
        t.n[i] = n[i];
        small = small && !__builtin_mul_overflow(count, n[i], &count) && count <= most;
    }
    CHECK(!small || type != GGML_Q8_0 || n[rank - 1] % GGUF_BLOCK == 0, "%s: rows of %llu", name,
          (unsigned long long)n[rank - 1]);
    t.at = gguf_aligned(g->bytes);
    t.bytes = small ? ggml_bytes(type, count) : 0;
    if (!small || t.bytes > most - t.at)
        return err_input(e, "--to gguf: tensor %.80s: its name is longer than %zu bytes, or the file than 2^60", name,
                         sizeof t.name - 1);
    g->bytes = t.at + t.bytes;
    g->tensor = xrealloc(g->tensor, (size_t)g->n + 1, sizeof *g->tensor);
    g->tensor[g->n++] = t;
    return true;
}

/* Zeros up to the next multiple of the alignment. */
static bool put_padding(Gguf *g, uint64_t at, Err *e) {
    static const char zeros[GGUF_ALIGN];
    return file_put(&g->out, zeros, (size_t)(gguf_aligned(at) - at), e);
}

bool gguf_begin(Gguf *g, const char *path, Err *e) {
    Buf head = {0}, info = {0};
    buf_put(&head, "GGUF", 4);
    put_number(&head, 3, 4);
    put_number(&head, (uint64_t)g->n, 8);
    put_number(&head, g->nkeys, 8);
    for (int i = 0; i < g->n; i++) {
        const GgufTensor *t = &g->tensor[i];
        put_text(&info, t->name);
        put_number(&info, (uint64_t)t->rank, 4);
        for (int d = t->rank - 1; d >= 0; d--) put_number(&info, t->n[d], 8);
        put_number(&info, t->type, 4);
        put_number(&info, t->at, 8);
    }
    const uint64_t bytes = (uint64_t)head.n + g->keys.n + info.n;
    bool ok = file_begin(&g->out, path, e);
    g->out.fresh = true;
    ok = ok && file_put(&g->out, head.at, head.n, e) && file_put(&g->out, g->keys.at, g->keys.n, e) &&
         file_put(&g->out, info.at, info.n, e) && put_padding(g, bytes, e);
    buf_free(&head), buf_free(&info);
    return ok;
}

/* 32 values as a scale and 32 signed bytes; false: one is not finite, or the scale is more than F16 holds. */
static bool q8_block(Tensor t, size_t from, unsigned char *out) {
    float x[GGUF_BLOCK], most = 0;
    for (int i = 0; i < GGUF_BLOCK; i++) {
        x[i] = (float)R(t)[from + (size_t)i];
        if (!isfinite(x[i])) return false;
        most = fmaxf(most, fabsf(x[i]));
    }
    float d = most / 127, inverse = d > 0 ? 1 / d : 0;
    if (!isfinite(inverse)) inverse = 0; /* the scale is stored as 0 */
    const Tensor scale = TENSOR(&d, F32, 1);
    if (st_too_large(scale, F16, 1) < 1) return false;
    st_encode(scale, F16, 0, 1, out);
    for (int i = 0; i < GGUF_BLOCK; i++) out[2 + i] = (unsigned char)(int8_t)roundf(x[i] * inverse);
    return true;
}

/* Elements a..b-1 as `type`; the first that does not fit, else b. */
static size_t ggml_encode(Tensor t, GgmlType type, size_t a, size_t b, unsigned char *out) {
    if (type == GGML_Q8_0) {
        for (; a < b; a += GGUF_BLOCK, out += GGUF_BLOCK_BYTES)
            if (!q8_block(t, a, out)) return a;
        return b;
    }
    const Dtype as = type == GGML_F32 ? F32 : type == GGML_F16 ? F16 : BF16;
    const Tensor some = TENSOR(R(t) + a, REAL, (int)(b - a));
    const size_t bad = st_too_large(some, as, b - a);
    if (bad < b - a) return a + bad;
    st_encode(some, as, 0, b - a, out);
    return b;
}

bool gguf_put(Gguf *g, Tensor t, Err *e) {
    enum { STEP = 1 << 14 };
    CHECK(g->now < g->n, "%d tensors were declared", g->n);
    const GgufTensor *to = &g->tensor[g->now];
    const size_t n = tensor_count(t);
    unsigned char *buf = xcalloc(STEP, 4);
    bool ok = true;
    for (size_t a = 0, b; ok && a < n; a = b) {
        b = zmin(a + STEP, n);
        const size_t bad = ggml_encode(t, to->type, a, b, buf), bytes = (size_t)ggml_bytes(to->type, b - a);
        if (bad < b)
            ok =
                err_input(e, "%s: tensor \"%s\": a value (%s %zu) is too large for %s, or not a number; give dtype=f32",
                          g->out.path, to->name, to->type == GGML_Q8_0 ? "in the block from" : "number",
                          (size_t)(g->put / ggml_bytes(to->type, GGUF_BLOCK)) * GGUF_BLOCK + bad,
                          to->type == GGML_Q8_0  ? "Q8_0"
                          : to->type == GGML_F16 ? "F16"
                                                 : "this type");
        CHECK(g->put + bytes <= to->bytes, "%s: more than %llu bytes", to->name, (unsigned long long)to->bytes);
        ok = ok && file_put(&g->out, buf, bytes, e);
        if (ok) g->put += bytes;
    }
    free(buf);
    if (ok && g->put == to->bytes) {
        ok = put_padding(g, to->bytes, e);
        g->now++, g->put = 0;
    }
    return ok;
}

bool gguf_end(Gguf *g, Err *e) {
    CHECK(g->now == g->n, "%d tensors of %d came", g->now, g->n);
    bool ok = file_commit(&g->out, e);
    gguf_drop(g);
    return ok;
}
void gguf_drop(Gguf *g) {
    if (g->out.path) file_drop(&g->out);
    buf_free(&g->keys);
    free(g->tensor);
    *g = (Gguf){.out = {.fd = -1}};
}
