/* products.c: the ops of the CUDA backend that are matrix products, and the losses made of them. As in table.c.
 *
 * Which products have their operands rounded is what it is on the CPU (gemm_use): a matter of the weights alone, and of
 * rows that are bf16 already. Packed rows begin at 16 bytes, as the library's kernels for bf16 like them best. Weights
 * of a model have a copy in bf16 that lies so (half.h), and so do activations of a multiple of eight numbers. */
#include "table.h"

static int packed(int n) { return (n + 7) / 8 * 8; }
static CudaPack pack_of(Run *r, Tensor t, int rows, int n, const char *name) {
    CudaPack p = {.rows = rows, .lanes = 1, .group = 1, .D = n, .ld = n, .to = packed(n), .narrow = t.dtype == BF16};
    p.y = arena_take(r->scratch, (size_t)rows * (size_t)p.to * sizeof(uint16_t), name);
    if (!measuring(r)) p.x = numbers(t);
    return p;
}
/* A weight matrix (O,I) as products take it: f32, or bf16, its own or packed to scratch. */
typedef struct {
    int O, I, ld;
    bool narrow;
    const void *p;
} Matrix;
static bool rounds(const Run *r, Tensor w, Tensor x) {
    return w.dtype == BF16 || x.dtype == BF16 || (r->dev->narrow && (int64_t)w.n[0] * w.n[1] >= r->dev->least);
}
static Matrix matrix(Run *r, Tensor w, bool narrow) {
    int O = w.n[0], I = w.n[1];
    if (w.dtype == BF16) return (Matrix){O, I, I, true, w.p};
    if (!narrow) return (Matrix){O, I, I, false, measuring(r) ? NULL : R(w)};
    if (w.halved && I % 8 == 0) return (Matrix){O, I, I, true, measuring(r) ? NULL : half_of(r->dev, w)};
    CudaPack p = pack_of(r, w, O, I, "weights in bf16");
    if (!measuring(r)) cuda_pack(C(r), 1, &p);
    return (Matrix){O, I, p.to, true, p.y};
}
/* Rows as products take them, `to` numbers apart where they are bf16: packed once for all matrices that round, unless
 * they lie so. */
typedef struct {
    const float *x;
    const void *half;
    int to;
} Operand;
static Operand operand(Run *r, Tensor x, int I, bool narrow, const char *name) {
    if (!narrow) return (Operand){.x = measuring(r) ? NULL : R(x)};
    if (x.dtype == BF16 && I % 8 == 0) return (Operand){.half = x.p, .to = I};
    CudaPack p = pack_of(r, x, x.n[0], I, name);
    if (!measuring(r)) cuda_pack(C(r), 1, &p);
    return (Operand){.x = measuring(r) || x.dtype == BF16 ? NULL : R(x), .half = p.y, .to = p.to};
}
/* y = or += A B. A product in f32, or rows of bf16 that do not begin at 16 bytes, come by way of f32. */
static void multiply(Run *r, CudaGemm g, Tensor y, const void *A, const void *B) {
    bool by_way = y.dtype == BF16 && (!g.narrow || g.ldc % 8);
    Mark mark = arena_mark(r->scratch);
    Tensor wide = by_way ? SCRATCH(r, "a product in f32", g.M, g.N) : y;
    if (!measuring(r)) {
        bool add = g.accumulate;
        size_t n = tensor_count(wide);
        writes(r, y);
        g.half = y.dtype == BF16 && !by_way;
        if (by_way) g.accumulate = false;
        cuda_gemm(C(r), g, numbers(wide), A, B);
        if (by_way && add) cuda_add(C(r), n, y.p, R(wide), true, false);
        if (by_way && !add) cuda_halve(C(r), n, y.p, R(wide));
    }
    arena_release(r->scratch, mark);
}
/* y (N,O) = x w^T */
static void product(Run *r, Tensor y, Operand x, Matrix w) {
    CudaGemm g = {y.n[0],      w.O,        w.I,        .lda = w.narrow ? x.to : w.I,
                  .ldb = w.ld, .ldc = w.O, .tb = true, .narrow = w.narrow};
    multiply(r, g, y, w.narrow ? x.half : x.x, w.p);
}
/* dx += dy w, dw += dy^T x of N rows. */
static void product_backward(Run *r, Tensor dx, Tensor dw, int N, Operand dy, Operand x, Matrix w) {
    int ldy = w.narrow ? dy.to : w.O, ldx = w.narrow ? x.to : w.I;
    const void *g = w.narrow ? dy.half : dy.x, *rows = w.narrow ? x.half : x.x;
    CudaGemm to_x = {N, w.I, w.O, .lda = ldy, .ldb = w.ld, .ldc = w.I, .accumulate = !dx.fresh, .narrow = w.narrow},
             to_w = {
                 w.O, w.I, N, .lda = ldy, .ldb = ldx, .ldc = w.I, .ta = true, .accumulate = true, .narrow = w.narrow};
    if (present(dx)) multiply(r, to_x, dx, g, w.p);
    if (present(dw)) multiply(r, to_w, dw, g, rows);
}
void cuda_op_linear_many(Run *r, int n, const Projection *p, Tensor x) {
    int I = p[0].w.n[1];
    bool narrow = false;
    x = tensor_rows(x, I);
    for (int j = 0; j < n; j++) narrow |= rounds(r, p[j].w, x);
    Mark all = arena_mark(r->scratch);
    Operand rows = operand(r, x, I, narrow, "rows in bf16");
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        Tensor y = tensor_rows(p[j].y, O), bias = p[j].bias;
        CHECK(x.n[0] == y.n[0] && p[j].w.n[1] == I && (!present(bias) || bias.n[0] == O), "x %d rows, y %d, w (%d,%d)",
              x.n[0], y.n[0], O, I);
        Mark mark = arena_mark(r->scratch);
        product(r, y, rows, matrix(r, p[j].w, rounds(r, p[j].w, x)));
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
void cuda_op_linear_many_backward(Run *r, Tensor dx, int n, const Projection *d, Tensor x, const Projection *p) {
    int I = p[0].w.n[1];
    bool narrow = x.dtype == BF16, weights = false;
    x = tensor_rows(x, I);
    for (int j = 0; j < n; j++) {
        narrow |= present(d[j].w) && rounds(r, p[j].w, d[j].y);
        weights |= present(d[j].w);
    }
    Mark all = arena_mark(r->scratch);
    Operand rows = weights ? operand(r, x, I, narrow, "rows in bf16") : (Operand){0};
    for (int j = 0; j < n; j++) {
        int O = p[j].w.n[0];
        Tensor dy = tensor_rows(d[j].y, O);
        CHECK(x.n[0] == dy.n[0] && p[j].w.n[1] == I, "x %d rows, dy %d, w (%d,%d)", x.n[0], dy.n[0], O, I);
        Mark mark = arena_mark(r->scratch);
        if (present(dx) || present(d[j].w)) {
            bool rounded = rounds(r, p[j].w, x) || dy.dtype == BF16;
            Matrix w = present(dx) ? matrix(r, p[j].w, rounded) : (Matrix){O, I, 0, rounded, NULL};
            product_backward(r, dx, d[j].w, dy.n[0], operand(r, dy, O, w.narrow, "gradients in bf16"), rows, w);
            dx.fresh = false;
        }
        arena_release(r->scratch, mark);
        if (present(d[j].bias)) cuda_column_sums_of(r, dy.n[0], O, d[j].bias, dy);
    }
    arena_release(r->scratch, all);
}
void cuda_op_linear_backward(Run *r, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w) {
    cuda_op_linear_many_backward(r, dx, 1, &(Projection){dy, dw, dbias}, x, &(Projection){dy, w, dbias});
}

/* ---- rows in groups ---- */
/* Where group e of N rows begins, and its rows; while measuring all. */
static int group_at(const Run *r, Groups g, int e, int N, int *n) {
    *n = measuring(r) ? N : g.off[e + 1] - g.off[e];
    return measuring(r) ? 0 : g.off[e];
}
static Operand rows_from(Operand a, size_t at, int width) {
    return (Operand){a.x ? a.x + at * (size_t)width : NULL,
                     a.half ? (const uint16_t *)a.half + at * (size_t)a.to : NULL, a.to};
}
void cuda_op_linear_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    bool narrow = rounds(r, *w, x);
    Mark all = arena_mark(r->scratch);
    Operand rows = operand(r, x, w->n[1], narrow, "rows in bf16");
    for (int e = 0, n; e < g.n; e++) {
        int at = group_at(r, g, e, y.n[0], &n);
        Mark mark = arena_mark(r->scratch);
        if (n) product(r, tensor_part(y, at, n), rows_from(rows, (size_t)at, w->n[1]), matrix(r, w[e], narrow));
        arena_release(r->scratch, mark);
    }
    arena_release(r->scratch, all);
}
void cuda_op_linear_groups_backward(Run *r, Tensor dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w) {
    bool narrow = rounds(r, *w, dy) || (dw && x.dtype == BF16);
    Mark all = arena_mark(r->scratch);
    Operand grads = operand(r, dy, w->n[0], narrow, "gradients in bf16"),
            rows = dw ? operand(r, x, w->n[1], narrow, "rows in bf16") : (Operand){0};
    for (int e = 0, n; e < g.n; e++) {
        int at = group_at(r, g, e, dy.n[0], &n);
        Mark mark = arena_mark(r->scratch);
        if (n)
            product_backward(r, tensor_part(dx, at, n), dw ? dw[e] : ABSENT, n, rows_from(grads, (size_t)at, w->n[0]),
                             rows_from(rows, (size_t)at, w->n[1]), matrix(r, w[e], narrow));
        arena_release(r->scratch, mark);
    }
    arena_release(r->scratch, all);
}

/* ---- losses ---- */
/* Rows whose logits exist at once. */
static int logit_rows(const Run *r, int N, int V) {
    enum { LEAST = 32 };
    int64_t rows = r->dev->logits / imax(1, V);
    return rows >= N ? N : imin(N, imax(LEAST, (int)rows));
}
static void targets_below(const Run *r, const int *tgt, int from, int n, int V) {
    for (int i = from; i < from + n && !measuring(r); i++) CHECK(tgt[i] < V, "target %d of vocabulary %d", tgt[i], V);
}
void cuda_op_linear_xent(Run *r, Tensor nll, int *hit, Tensor dx, Tensor dw, Tensor x, Tensor w, const int *tgt,
                         const real *g) {
    int N = x.n[0], V = w.n[0], d = w.n[1];
    CHECK(x.n[1] == d && (present(dx) || !present(dw)), "x (%d,%d), w (%d,%d)", N, x.n[1], V, d);
    int rows = logit_rows(r, N, V);
    bool back = present(dx);
    Mark mark = arena_mark(r->scratch);
    Tensor chunk = SCRATCH(r, "logits", rows, V);
    Matrix head = matrix(r, w, rounds(r, w, x));
    Operand dl = {.x = measuring(r) ? NULL : R(chunk), .to = packed(V)};
    void *half = NULL; /* their gradient, where products round it */
    if (back && head.narrow)
        half = arena_take(r->scratch, (size_t)rows * (size_t)dl.to * sizeof(uint16_t), "gradients in bf16");
    dl.half = half;
    int *targets = upload_ints(r, tgt, N, "targets"), *hits = NULL;
    if (hit) hits = arena_take(r->scratch, (size_t)N * sizeof *hits, "hits");
    for (int from = 0; from < N; from += rows) {
        int n = imin(rows, N - from);
        Tensor l = tensor_part(chunk, 0, n), xs = tensor_part(x, from, n);
        Mark each = arena_mark(r->scratch);
        Operand in = operand(r, xs, d, head.narrow, "rows in bf16");
        targets_below(r, tgt, from, n, V);
        product(r, l, in, head);
        if (!measuring(r))
            cuda_xent(C(r), n, V, R(l), half, dl.to, R(nll) + from, hits ? hits + from : NULL, targets + from,
                      back ? g + from : NULL);
        if (back) product_backward(r, tensor_part(dx, from, n), dw, n, dl, in, head);
        arena_release(r->scratch, each);
    }
    if (hit && !measuring(r)) cuda_download(C(r), hit, hits, (size_t)N * sizeof *hits);
    arena_release(r->scratch, mark);
}
void cuda_op_linear_distill(Run *r, Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w,
                            Tensor y, Tensor u, const int *tgt, const real *g, Distill d) {
    int N = x.n[0], V = w.n[0], I = w.n[1], e = u.n[1];
    CHECK(x.n[1] == I && y.n[0] == N && y.n[1] == e && u.n[0] == V && (present(dx) || !present(dw)),
          "x (%d,%d), w (%d,%d), y (%d,%d), u (%d,%d)", N, x.n[1], V, I, y.n[0], y.n[1], u.n[0], e);
    int rows = logit_rows(r, N, V);
    CudaDistill c = {(float)d.lm, (float)d.kl, (float)d.rkl, (float)d.temperature};
    Mark mark = arena_mark(r->scratch);
    Tensor own = SCRATCH(r, "logits", rows, V), other = SCRATCH(r, "teacher's logits", rows, V);
    Matrix head = matrix(r, w, rounds(r, w, x)), its = matrix(r, u, rounds(r, u, y));
    int *targets = upload_ints(r, tgt, N, "targets");
    for (int from = 0; from < N; from += rows) {
        int n = imin(rows, N - from);
        Tensor z = tensor_part(own, 0, n), zu = tensor_part(other, 0, n);
        Mark each = arena_mark(r->scratch);
        Operand in = operand(r, tensor_part(x, from, n), I, head.narrow, "rows in bf16"),
                taught = operand(r, tensor_part(y, from, n), e, its.narrow, "teacher's rows in bf16");
        targets_below(r, tgt, from, n, V);
        product(r, z, in, head);
        product(r, zu, taught, its);
        if (!measuring(r))
            cuda_distill(C(r), n, V, R(z), R(zu), R(nll) + from, R(kl) + from, R(rkl) + from, targets + from,
                         present(dx) ? g + from : NULL, c);
        if (present(dx))
            product_backward(r, tensor_part(dx, from, n), dw, n, operand(r, z, V, head.narrow, "gradients in bf16"), in,
                             head);
        arena_release(r->scratch, each);
    }
    arena_release(r->scratch, mark);
}
