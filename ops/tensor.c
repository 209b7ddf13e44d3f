/* tensor.c: shapes and the declaration of fields. */
#include "tensor.h"

size_t dtype_size(Dtype t) { return t == F64 ? 8 : t == F32 ? 4 : 2; }
const char *dtype_name(Dtype t) { return t == F64 ? "F64" : t == F32 ? "F32" : t == BF16 ? "BF16" : "F16"; }

size_t tensor_bytes(Tensor t) { return tensor_count(t) * dtype_size(t.dtype); }

const char *tensor_shape(Tensor t, char buf[64]) {
    int at = snprintf(buf, 64, "(");
    for (int i = 0; i < t.rank; i++) at += snprintf(buf + at, 64 - (size_t)at, "%s%d", i ? "," : "", t.n[i]);
    snprintf(buf + at, 64 - (size_t)at, ")");
    return buf;
}

Tensor tensor_make(void *p, Dtype dtype, int rank, const int n[]) {
    Tensor t = {.p = p, .dtype = dtype, .rank = rank};
    CHECK(rank >= 1 && rank <= RANK_MAX, "rank %d", rank);
    for (int i = 0; i < rank; i++) {
        CHECK(n[i] >= 0, "size %d", n[i]);
        t.n[i] = n[i];
    }
    return t;
}

Tensor tensor_rows(Tensor t, int w) {
    size_t c = tensor_count(t);
    CHECK(w > 0 && c % (size_t)w == 0, "%zu elements as rows of %d", c, w);
    return TENSOR(t.p, t.dtype, (int)(c / (size_t)w), w);
}

Tensor tensor_part(Tensor t, int row, int n) {
    if (!present(t)) return t;
    CHECK(row >= 0 && n >= 0 && row + n <= t.n[0], "rows %d..%d of %d", row, row + n, t.n[0]);
    if (t.p && t.n[0]) t.p = (char *)t.p + (size_t)row * (tensor_bytes(t) / (size_t)t.n[0]);
    t.n[0] = n;
    return t;
}

void tensor_read(Tensor t, size_t at, size_t n, real *to) {
    CHECK(at + n <= tensor_count(t), "elements %zu..%zu of %zu", at, at + n, tensor_count(t));
    if (t.dtype != BF16) {
        memcpy(to, R(t) + at, n * sizeof *to);
        return;
    }
    const uint16_t *p = (const uint16_t *)t.p + at;
    for (size_t i = 0; i < n; i++) to[i] = (real)bf16_to(p[i]);
}

void field_declare(Fields *f, Tensor *t, const char *name, unsigned flags, int rank, const int n[]) {
    char path[192];
    const bool has_shadow = t->has_shadow;
    snprintf(path, sizeof path, "%s%s", f->scope, name);
    *t = tensor_make(t->p, REAL, rank, n);
    t->has_shadow = has_shadow;
    const bool matrix = rank == 2 && tensor_count(*t) >= BF16_LEAST;
    const bool is_bf16 = f->matrices_bf16 && matrix && (!f->only || f->only(f->only_ctx, path));
    if (!(flags & (FIELD_F32 | FIELD_INVARIANT)) && (f->acts_bf16 || is_bf16)) t->dtype = BF16;
    f->see(f, t, path, flags);
}
