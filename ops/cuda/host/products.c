/* products.c: the ops of the CUDA backend that are matrix products, and the losses made of them. As in table.c.
 *
 * A product's operands are rounded by the same rule as on the CPU (gemm_use): the number of weights decides, or rows
 * that are bf16 already. Packed rows are aligned to 16 bytes, which suits the library's bf16 kernels best. A model's
 * weights have a bf16 copy with this alignment (shadow.h), and so do activations with a multiple of eight elements. */
#include "table.h"

static int products_packed(int n) { return (n + 7) / 8 * 8; }
static CudaPack pack_of(Run *r, Tensor t, int rows, int n, const char *name) {
    CudaPack p = {
        .rows = rows, .lanes = 1, .group = 1, .D = n, .ld = n, .to = products_packed(n), .is_bf16 = t.dtype == BF16};
    p.y = arena_take(r->scratch, (size_t)rows * (size_t)p.to * sizeof(uint16_t), name);
    if (!measuring(r)) p.x = numbers(t);
    return p;
}
/* A weight matrix (O,I) as an operand: f32, or bf16, its own copy or packed to scratch. */
typedef struct {
    int O, I, ld;
    bool is_bf16;
    const void *p;
} Matrix;
static bool products_rounds(const Run *r, Tensor w, Tensor x) {
    return w.dtype == BF16 || x.dtype == BF16 || (r->dev->products_bf16 && (int64_t)w.n[0] * w.n[1] >= r->dev->least);
}
static Matrix products_matrix(Run *r, Tensor w, bool is_bf16) {
    int O = w.n[0], I = w.n[1];
    if (w.dtype == BF16) return (Matrix){O, I, I, true, w.p};
    if (!is_bf16) return (Matrix){O, I, I, false, measuring(r) ? NULL : R(w)};
    if (w.has_shadow && I % 8 == 0) return (Matrix){O, I, I, true, measuring(r) ? NULL : shadow_of(r->dev, w)};
    CudaPack p = pack_of(r, w, O, I, "weights in bf16");
    if (!measuring(r)) cuda_pack(C(r), 1, &p);
    return (Matrix){O, I, p.to, true, p.y};
}
/* Rows as an operand: bf16 rows are `to` elements apart. They are packed once for all matrices whose products round,
 * unless they are already laid out so. */
typedef struct {
    const float *x;
    const void *rounded;
    int to;
} Operand;
static Operand products_operand(Run *r, Tensor x, int I, bool is_bf16, const char *name) {
    if (!is_bf16) return (Operand){.x = measuring(r) ? NULL : R(x)};
    if (x.dtype == BF16 && I % 8 == 0) return (Operand){.rounded = x.p, .to = I};
    CudaPack p = pack_of(r, x, x.n[0], I, name);
    if (!measuring(r)) cuda_pack(C(r), 1, &p);
    return (Operand){.x = measuring(r) || x.dtype == BF16 ? NULL : R(x), .rounded = p.y, .to = p.to};
}
/* y = or += A B. A product in f32, or bf16 rows that are not aligned to 16 bytes, go through an f32 copy. */
static void products_multiply(Run *r, CudaGemm g, Tensor y, const void *A, const void *B) {
    bool by_way = y.dtype == BF16 && (!g.is_bf16 || g.ldc % 8);
    Mark mark = arena_mark(r->scratch);
    Tensor wide = by_way ? SCRATCH(r, "a product in f32", g.M, g.N) : y;
    if (!measuring(r)) {
        bool add = g.accumulate;
        size_t n = tensor_count(wide);
        writes(r, y);
        g.c_bf16 = y.dtype == BF16 && !by_way;
        if (by_way) g.accumulate = false;
        cuda_gemm(C(r), g, numbers(wide), A, B);
        if (by_way && add) cuda_add(C(r), n, y.p, R(wide), true, false);
        if (by_way && !add) cuda_cast_to_bf16(C(r), n, y.p, R(wide));
    }
    arena_release(r->scratch, mark);
}
/* y (N,O) = x w^T */
static void products_product(Run *r, Tensor y, Operand x, Matrix w) {
    CudaGemm g = {y.n[0],      w.O,        w.I,        .lda = w.is_bf16 ? x.to : w.I,
                  .ldb = w.ld, .ldc = w.O, .tb = true, .is_bf16 = w.is_bf16};
    products_multiply(r, g, y, w.is_bf16 ? x.rounded : x.x, w.p);
}
/* dx += dy w, dw += dy^T x of N rows. */
static void product_backward(Run *r, Into dx, Tensor dw, int N, Operand dy, Operand x, Matrix w) {
    int ldy = w.is_bf16 ? dy.to : w.O, ldx = w.is_bf16 ? x.to : w.I;
    const void *g = w.is_bf16 ? dy.rounded : dy.x, *rows = w.is_bf16 ? x.rounded : x.x;
    CudaGemm
        to_x = {N, w.I, w.O, .lda = ldy, .ldb = w.ld, .ldc = w.I, .accumulate = !dx.overwrite, .is_bf16 = w.is_bf16},
        to_w = {w.O, w.I, N, .lda = ldy, .ldb = ldx, .ldc = w.I, .ta = true, .accumulate = true, .is_bf16 = w.is_bf16};
    if (present(dx.t)) products_multiply(r, to_x, dx.t, g, w.p);
    if (present(dw)) products_multiply(r, to_w, dw, g, rows);
}
void cuda_op_linear_many(Run *r, int n, const Projection *p, Tensor x) {
    int I = p[0].w.n[1];
    bool is_bf16 = false;
    x = tensor_rows(x, I);
    for (int j = 0; j < n; j++) is_bf16 |= products_rounds(r, p[j].w, x);
    Mark all = arena_mark(r->scratch);
    Operand rows = products_operand(r, x, I, is_bf16, "rows in bf16");
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        Tensor y = tensor_rows(p[j].y, O), bias = p[j].bias;
        check_linear(x.n[0], I, p[j]);
        Mark mark = arena_mark(r->scratch);
        products_product(r, y, rows, products_matrix(r, p[j].w, products_rounds(r, p[j].w, x)));
        arena_release(r->scratch, mark);
        if (!measuring(r) && present(bias)) cuda_bias(C(r), y.n[0], O, numbers(y), R(bias), y.dtype == BF16);
    }
    arena_release(r->scratch, all);
}
void cuda_op_linear(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    cuda_op_linear_many(r, 1, &(Projection){y, w, bias}, x);
}
void cuda_column_sums_of(Run *r, int N, int O, Tensor out, Tensor x) {
    Mark mark = arena_mark(r->scratch);
    Tensor parts = SCRATCH(r, "sums of slices", cuda_slices((size_t)N, cuda_tiles(O)), O);
    if (!measuring(r)) cuda_column_sums(C(r), N, O, R(out), R(parts), numbers(x), x.dtype == BF16);
    arena_release(r->scratch, mark);
}
void cuda_op_linear_many_backward(Run *r, Into dx, int n, const Projection *d, Tensor x, const Projection *p) {
    int I = p[0].w.n[1];
    bool is_bf16 = x.dtype == BF16, weights = false;
    x = tensor_rows(x, I);
    for (int j = 0; j < n; j++) {
        is_bf16 |= present(d[j].w) && products_rounds(r, p[j].w, d[j].y);
        weights |= present(d[j].w);
    }
    Mark all = arena_mark(r->scratch);
    Operand rows = weights ? products_operand(r, x, I, is_bf16, "rows in bf16") : (Operand){0};
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        Tensor dy = tensor_rows(d[j].y, O);
        check_linear_backward(x.n[0], I, dy, p[j].w);
        Mark mark = arena_mark(r->scratch);
        if (present(dx.t) || present(d[j].w)) {
            bool rounded = products_rounds(r, p[j].w, x) || dy.dtype == BF16;
            Matrix w = present(dx.t) ? products_matrix(r, p[j].w, rounded) : (Matrix){O, I, 0, rounded, NULL};
            product_backward(r, dx, d[j].w, dy.n[0], products_operand(r, dy, O, w.is_bf16, "gradients in bf16"), rows,
                             w);
            dx.overwrite = false;
        }
        arena_release(r->scratch, mark);
        if (present(d[j].bias)) cuda_column_sums_of(r, dy.n[0], O, d[j].bias, dy);
    }
    arena_release(r->scratch, all);
}
void cuda_op_linear_backward(Run *r, Into dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w) {
    cuda_op_linear_many_backward(r, dx, 1, &(Projection){dy, dw, dbias}, x, &(Projection){dy, w, dbias});
}

/* ---- rows in groups ---- */
/* The first row of group e of N rows, and its number of rows; while measuring all rows. */
static int group_at(const Run *r, Groups g, int e, int N, int *n) {
    *n = measuring(r) ? N : g.off[e + 1] - g.off[e];
    return measuring(r) ? 0 : g.off[e];
}
static Operand rows_from(Operand a, size_t at, int width) {
    return (Operand){a.x ? a.x + at * (size_t)width : NULL,
                     a.rounded ? (const uint16_t *)a.rounded + at * (size_t)a.to : NULL, a.to};
}
void cuda_op_linear_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    bool is_bf16 = products_rounds(r, *w, x);
    check_linear_groups(y, x, ABSENT, *w);
    Mark all = arena_mark(r->scratch);
    Operand rows = products_operand(r, x, w->n[1], is_bf16, "rows in bf16");
    for (int e = 0, n; e < g.n; e++) {
        int at = group_at(r, g, e, y.n[0], &n);
        Mark mark = arena_mark(r->scratch);
        if (n)
            products_product(r, tensor_part(y, at, n), rows_from(rows, (size_t)at, w->n[1]),
                             products_matrix(r, w[e], is_bf16));
        arena_release(r->scratch, mark);
    }
    arena_release(r->scratch, all);
}
void cuda_op_linear_groups_backward(Run *r, Into dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w) {
    bool is_bf16 = products_rounds(r, *w, dy) || (dw && x.dtype == BF16);
    check_linear_groups(dy, x, dx.t, *w);
    Mark all = arena_mark(r->scratch);
    Operand grads = products_operand(r, dy, w->n[0], is_bf16, "gradients in bf16"),
            rows = dw ? products_operand(r, x, w->n[1], is_bf16, "rows in bf16") : (Operand){0};
    for (int e = 0, n; e < g.n; e++) {
        int at = group_at(r, g, e, dy.n[0], &n);
        Mark mark = arena_mark(r->scratch);
        if (n)
            product_backward(r, into_part(dx, at, n), dw ? dw[e] : ABSENT, n, rows_from(grads, (size_t)at, w->n[0]),
                             rows_from(rows, (size_t)at, w->n[1]), products_matrix(r, w[e], is_bf16));
        arena_release(r->scratch, mark);
    }
    arena_release(r->scratch, all);
}

/* ---- losses ---- */
/* The number of rows whose logits exist at once. */
static int logit_rows(const Run *r, int N, int V) {
    enum { LEAST = 32 };
    int64_t rows = r->dev->logits / imax(1, V);
    return rows >= N ? N : imin(N, imax(LEAST, (int)rows));
}
static void targets_below(const Run *r, const int *tgt, int from, int n, int V) {
    for (int i = from; i < from + n && !measuring(r); i++) check_target(tgt[i], V);
}
static CudaLogits cuda_logits(LogitMap m) {
    return (CudaLogits){(float)m.scale, (float)m.cap, m.cap > 0 ? (float)(1 / (m.cap * m.cap)) : 0};
}
void cuda_op_map_logits(Run *r, Tensor x, LogitMap m) {
    if (!measuring(r)) cuda_map_logits(C(r), tensor_count(x), R(x), cuda_logits(m));
}
void cuda_op_linear_xent(Run *r, Tensor nll, int *hit, Into dx, Tensor dw, Tensor x, Tensor w, LogitMap map,
                         const int *tgt, const real *g) {
    int N = x.n[0], V = w.n[0], d = w.n[1];
    check_linear_xent(dx.t, dw, x, w);
    int rows = logit_rows(r, N, V);
    bool back = present(dx.t);
    Mark mark = arena_mark(r->scratch);
    Tensor chunk = SCRATCH(r, "logits", rows, V);
    Matrix head = products_matrix(r, w, products_rounds(r, w, x));
    Operand dl = {.x = measuring(r) ? NULL : R(chunk), .to = products_packed(V)};
    void *rounded = NULL; /* their gradient, if products round it */
    if (back && head.is_bf16)
        rounded = arena_take(r->scratch, (size_t)rows * (size_t)dl.to * sizeof(uint16_t), "gradients in bf16");
    dl.rounded = rounded;
    int *targets = upload_ints(r, tgt, N, "targets"), *hits = NULL;
    if (hit) hits = arena_take(r->scratch, (size_t)N * sizeof *hits, "hits");
    for (int from = 0; from < N; from += rows) {
        int n = imin(rows, N - from);
        Tensor l = tensor_part(chunk, 0, n), xs = tensor_part(x, from, n);
        Mark each = arena_mark(r->scratch);
        Operand in = products_operand(r, xs, d, head.is_bf16, "rows in bf16");
        targets_below(r, tgt, from, n, V);
        products_product(r, l, in, head);
        if (!logits_plain(map)) r->ops->map_logits(r, l, map);
        if (!measuring(r))
            cuda_xent(C(r), n, V, R(l), rounded, dl.to, R(nll) + from, hits ? hits + from : NULL, targets + from,
                      back ? g + from : NULL, cuda_logits(map));
        if (back) product_backward(r, into_part(dx, from, n), dw, n, dl, in, head);
        arena_release(r->scratch, each);
    }
    if (hit && !measuring(r)) cuda_download(C(r), hit, hits, (size_t)N * sizeof *hits);
    arena_release(r->scratch, mark);
}
void cuda_op_linear_distill(Run *r, Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w,
                            Tensor y, Tensor u, const int *tgt, const real *g, Distill d) {
    int N = x.n[0], V = w.n[0], I = w.n[1], e = u.n[1];
    check_linear_distill(dx, dw, x, w, y, u);
    int rows = logit_rows(r, N, V);
    CudaDistill c = {(float)d.lm, (float)d.kl, (float)d.rkl, (float)d.temperature, cuda_logits(d.map)};
    Mark mark = arena_mark(r->scratch);
    Tensor own = SCRATCH(r, "logits", rows, V), other = SCRATCH(r, "teacher's logits", rows, V);
    Matrix head = products_matrix(r, w, products_rounds(r, w, x)),
           its = products_matrix(r, u, products_rounds(r, u, y));
    int *targets = upload_ints(r, tgt, N, "targets");
    for (int from = 0; from < N; from += rows) {
        int n = imin(rows, N - from);
        Tensor z = tensor_part(own, 0, n), zu = tensor_part(other, 0, n);
        Mark each = arena_mark(r->scratch);
        Operand in = products_operand(r, tensor_part(x, from, n), I, head.is_bf16, "rows in bf16"),
                taught = products_operand(r, tensor_part(y, from, n), e, its.is_bf16, "teacher's rows in bf16");
        targets_below(r, tgt, from, n, V);
        products_product(r, z, in, head);
        products_product(r, zu, taught, its);
        if (!logits_plain(d.map)) r->ops->map_logits(r, z, d.map);
        if (!logits_plain(d.teacher_map)) r->ops->map_logits(r, zu, d.teacher_map);
        if (!measuring(r))
            cuda_distill(C(r), n, V, R(z), R(zu), R(nll) + from, R(kl) + from, R(rkl) + from, targets + from,
                         present(dx) ? g + from : NULL, c);
        if (present(dx))
            product_backward(r, add_to(tensor_part(dx, from, n)), dw, n,
                             products_operand(r, z, V, head.is_bf16, "gradients in bf16"), in, head);
        arena_release(r->scratch, each);
    }
    arena_release(r->scratch, mark);
}
