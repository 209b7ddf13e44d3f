/* tensor.c: shapes and the declaration of fields. */
#include "tensor.h"

size_t dtype_size(Dtype t) { return t == F64 ? 8 : t == F32 ? 4 : 2; }
const char *dtype_name(Dtype t) { return t == F64 ? "F64" : t == F32 ? "F32" : t == BF16 ? "BF16" : "F16"; }

size_t tensor_count(Tensor t) {
    size_t c = t.rank > 0;
    for (int i = 0; i < t.rank; i++) c *= (size_t)t.n[i];
    return c;
}
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
    CHECK(w > 0 && c % (size_t)w == 0, "%zu numbers as rows of %d", c, w);
    return TENSOR(t.p, t.dtype, (int)(c / (size_t)w), w);
}

void field_declare(Fields *f, Tensor *t, const char *name, unsigned flags, int rank, const int n[]) {
    char path[192];
    *t = tensor_make(t->p, REAL, rank, n);
    snprintf(path, sizeof path, "%s%s", f->scope, name);
    f->see(f, t, path, flags);
}
