/* table.c: the op table of the CUDA backend, f32: shapes are checked and scratch taken here, as on the CPU; cuda.h
 * computes. Tensors and `real *` arguments lie on the device; ids, places, targets and Batch lie with the host, and are
 * copied to scratch by the op that reads them. */
#include "table.h"

/* ---- linear: the rest of it is products.c ---- */
void cuda_op_linear_heads(Run *r, Tensor y, Tensor x, Tensor w, int row, int O, bool turned) {
    int M = x.n[0], H = x.n[1], I = w.n[1], each = check_linear_heads(y, x, w, row, O, turned);
    Mark mark = arena_mark(r->scratch);
    Tensor wide = w.dtype == BF16 ? SCRATCH(r, "heads' weights widened", w.n[0], I) : w;
    if (!measuring(r)) {
        CudaGemm g = {M, turned ? I : O, turned ? O : I, .lda = H * x.n[2], .ldb = I, .ldc = H * y.n[2], .tb = !turned};
        if (w.dtype == BF16) cuda_cast_from_bf16(C(r), tensor_count(w), R(wide), w.p, false);
        for (int h = 0; h < H; h++)
            cuda_gemm(C(r), g, R(y) + (size_t)h * (size_t)y.n[2], R(x) + (size_t)h * (size_t)x.n[2],
                      R(wide) + ((size_t)h * (size_t)each + (size_t)row) * (size_t)I);
    }
    arena_release(r->scratch, mark);
}
void cuda_op_linear_invariant(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    int O = w.n[0], I = w.n[1];
    x = tensor_rows(x, I), y = tensor_rows(y, O);
    check_linear_steady(y, x, w, bias);
    if (measuring(r)) return;
    cuda_dots(C(r), y.n[0], O, I, R(y), numbers(x), x.dtype == BF16, R(w), maybe(bias));
}

/* ---- embedding ---- */
void cuda_op_embed(Run *r, Tensor y, Tensor table, const int *tok, double scale) {
    int N = y.n[0], d = table.n[1];
    Mark mark = arena_mark(r->scratch);
    int *ids = upload_ints(r, tok, N, "token ids");
    if (!measuring(r)) {
        for (int i = 0; i < N; i++) check_token(tok[i], table);
        cuda_embed(C(r), N, d, R(y), table.dtype == BF16 ? table.p : R(table), table.dtype == BF16, ids, (float)scale);
    }
    arena_release(r->scratch, mark);
}
void cuda_op_embed_backward(Run *r, Tensor dtable, Tensor dy, const int *tok, double scale) {
    int N = dy.n[0], d = dtable.n[1], V = dtable.n[0], runs = (N + CUDA_EMBED_RUN - 1) / CUDA_EMBED_RUN;
    size_t list = (size_t)N * sizeof(int);
    Mark mark = arena_mark(r->scratch);
    int *ids = upload_ints(r, tok, N, "token ids");
    CudaEmbed m;
    for (int i = 0; i < 2; i++) {
        m.ids[i] = arena_take(r->scratch, list, "sorted ids");
        m.rows[i] = arena_take(r->scratch, list, "rows by id");
    }
    m.counts = arena_take(r->scratch, (size_t)CUDA_EMBED_BINS * CUDA_EMBED_TILES * sizeof(int), "counts of ids");
    Tensor parts = SCRATCH(r, "sums of runs", runs, 2, d);
    if (!measuring(r)) {
        m.parts = R(parts);
        cuda_embed_backward(C(r), N, d, V, R(dtable), m, R(dy), ids, (float)scale);
    }
    arena_release(r->scratch, mark);
}

/* ---- norms, rotation ---- */
/* y, or dy, and x, with dx. */
static CudaNormOf table_norm_of(Tensor y, Tensor x) {
    return x.dtype == BF16 ? CUDA_NORM_ALL : y.dtype == BF16 ? CUDA_NORM_OUT : CUDA_NORM_WIDE;
}
void cuda_op_add_rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor z, Tensor w, double eps) {
    int d = w.n[0];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
    check_add_rmsnorm(y, rstd, x, z, w);
    if (!measuring(r))
        cuda_rmsnorm(C(r), N, d, numbers(y), R(rstd), numbers(x), present(z) ? R(z) : NULL, R(w), eps,
                     table_norm_of(y, x));
}
void cuda_op_rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps) {
    cuda_op_add_rmsnorm(r, y, rstd, x, ABSENT, w, eps);
}
void cuda_op_rmsnorm_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0];
    x = tensor_rows(x, d);
    Mark mark = arena_mark(r->scratch);
    Tensor parts = SCRATCH(r, "sums of slices", cuda_slices((size_t)x.n[0], cuda_row_tiles(d)), d);
    check_norm_backward(dx.t, dy, x);
    if (!measuring(r))
        cuda_rmsnorm_backward(C(r), x.n[0], d, numbers(dx.t), R(dw), R(parts), numbers(dy), numbers(x), R(w), R(rstd),
                              table_norm_of(dy, x), dx.overwrite);
    arena_release(r->scratch, mark);
}
void cuda_op_layernorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps) {
    int d = w.n[0];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
    check_norm(y, rstd, x, w, b);
    if (!measuring(r)) cuda_layernorm(C(r), N, d, numbers(y), R(rstd), R(x), R(w), R(b), eps, y.dtype == BF16);
}
void cuda_op_layernorm_backward(Run *r, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0];
    x = tensor_rows(x, d);
    Mark mark = arena_mark(r->scratch);
    Tensor parts = SCRATCH(r, "sums of slices", 2, cuda_slices((size_t)x.n[0], cuda_row_tiles(d)), d);
    if (!measuring(r))
        cuda_layernorm_backward(C(r), x.n[0], d, R(dx), R(dw), R(db), R(parts), numbers(dy), R(x), R(w), R(rstd),
                                dy.dtype == BF16);
    arena_release(r->scratch, mark);
}
void cuda_op_l2norm(Run *r, Tensor y, Tensor x, double eps) {
    int d = check_last(x);
    bool is_bf16 = CHECK_ALIKE(y, x);
    if (!measuring(r)) cuda_l2norm(C(r), (int)(tensor_count(x) / (size_t)d), d, numbers(y), numbers(x), eps, is_bf16);
}
void cuda_op_l2norm_backward(Run *r, Into dx, Tensor dy, Tensor x, double eps) {
    int d = check_last(x);
    bool is_bf16 = CHECK_ALIKE(dx.t, dy, x);
    if (!measuring(r))
        cuda_l2norm_backward(C(r), (int)(tensor_count(x) / (size_t)d), d, numbers(dx.t), numbers(dy), numbers(x), eps,
                             is_bf16, dx.overwrite);
}
/* The angles of the rotation of heads x, and the address of their positions. */
typedef struct {
    CudaRope c;
    int *pos, *idx;
} Turn;
static Turn turn_of(Run *r, Tensor x, const Rope *p, RowList rows, int sign) {
    Turn t = {{.N = rows.n,
               .heads = x.n[1],
               .D = x.n[2],
               .at = p->at,
               .n = p->n,
               .interleaved = p->interleaved,
               .sign = sign,
               .factor = p->factor},
              upload_ints(r, r->batch->pos, r->batch->N, "positions"),
              upload_ints(r, rows.idx, rows.n, "rows")};
    memcpy(t.c.f, p->f, sizeof t.c.f);
    return t;
}
void cuda_op_rope(Run *r, Tensor x, const Rope *p, RowList rows, int sign) {
    if (p->n == 0 || rows.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    check_rope(x, p, rows);
    Turn t = turn_of(r, x, p, rows, sign);
    if (!measuring(r)) cuda_rope(C(r), &t.c, numbers(x), t.pos, t.idx, x.dtype == BF16);
    arena_release(r->scratch, mark);
}
void cuda_op_rmsnorm_rope(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps, const Rope *p, RowList rows) {
    if (rows.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    check_rmsnorm_rope(x, y, w, rstd, p, rows);
    Turn t = turn_of(r, x, p, rows, 1);
    bool is_bf16 = CHECK_ALIKE(x, y);
    if (!measuring(r)) cuda_norm_rope(C(r), &t.c, numbers(y), R(rstd), numbers(x), R(w), eps, t.pos, t.idx, is_bf16);
    arena_release(r->scratch, mark);
}
void cuda_op_rmsnorm_rope_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd,
                                   const Rope *p, RowList rows) {
    if (rows.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    check_rmsnorm_rope(x, dy, w, rstd, p, rows);
    Turn t = turn_of(r, x, p, rows, -1);
    bool is_bf16 = CHECK_ALIKE(dx.t, x, dy);
    Tensor parts = SCRATCH(r, "sums of slices", cuda_norm_rope_slices(rows.n, x.n[1]), x.n[2]);
    if (!measuring(r))
        cuda_norm_rope_backward(C(r), &t.c, numbers(dx.t), R(dw), R(parts), numbers(dy), numbers(x), R(w), R(rstd),
                                t.pos, t.idx, is_bf16, dx.overwrite);
    arena_release(r->scratch, mark);
}

/* ---- one number at a time ---- */
void cuda_op_swiglu(Run *r, Tensor y, Tensor gate, Tensor up) {
    bool is_bf16 = CHECK_ALIKE(y, gate, up);
    if (!measuring(r)) cuda_swiglu(C(r), tensor_count(y), numbers(y), numbers(gate), numbers(up), is_bf16);
}
void cuda_op_swiglu_backward(Run *r, Tensor y, Into dgate, Into dup, Tensor dy, Tensor gate, Tensor up) {
    bool wanted = present(y), is_bf16 = CHECK_ALIKE(dgate.t, dup.t, dy, gate, up, wanted ? y : up);
    if (!measuring(r))
        cuda_swiglu_backward(C(r), tensor_count(dy), wanted ? numbers(y) : NULL, numbers(dgate.t), numbers(dup.t),
                             numbers(dy), numbers(gate), numbers(up), is_bf16, dgate.overwrite, dup.overwrite);
}
void cuda_op_swiglu_rows(Run *r, Tensor y, Tensor gate, Tensor up, Tensor s) {
    int M = (int)tensor_count(s), d = M ? (int)(tensor_count(y) / (size_t)M) : 0;
    bool is_bf16 = CHECK_ALIKE(y, gate, up);
    check_swiglu_rows(y, s, ABSENT);
    if (!measuring(r)) cuda_swiglu_rows(C(r), M, d, numbers(y), numbers(gate), numbers(up), R(s), is_bf16);
}
void cuda_op_swiglu_rows_backward(Run *r, Into dgate, Into dup, Into ds, Tensor dy, Tensor gate, Tensor up, Tensor s) {
    int M = (int)tensor_count(s), d = M ? (int)(tensor_count(dy) / (size_t)M) : 0;
    bool is_bf16 = CHECK_ALIKE(dgate.t, dup.t, dy, gate, up);
    check_swiglu_rows(dy, s, ds.t);
    if (!measuring(r))
        cuda_swiglu_rows_backward(C(r), M, d, numbers(dgate.t), numbers(dup.t), R(ds.t), numbers(dy), numbers(gate),
                                  numbers(up), R(s), is_bf16, dgate.overwrite, dup.overwrite, ds.overwrite);
}
void cuda_op_relu2(Run *r, Tensor y, Tensor x, Tensor s) {
    bool is_bf16 = CHECK_ALIKE(y, x), by_row = present(s);
    if (by_row) check_swiglu_rows(y, s, ABSENT);
    if (!measuring(r)) cuda_relu2(C(r), y.n[0], y.n[1], numbers(y), numbers(x), by_row ? R(s) : NULL, is_bf16);
}
void cuda_op_relu2_backward(Run *r, Into dx, Into ds, Tensor dy, Tensor x, Tensor s) {
    bool is_bf16 = CHECK_ALIKE(dx.t, dy, x), by_row = present(s);
    if (by_row) check_swiglu_rows(dy, s, ds.t);
    if (!measuring(r))
        cuda_relu2_backward(C(r), dy.n[0], dy.n[1], numbers(dx.t), present(ds.t) ? R(ds.t) : NULL, numbers(dy),
                            numbers(x), by_row ? R(s) : NULL, is_bf16, dx.overwrite, ds.overwrite);
}
void cuda_op_gelu(Run *r, Tensor y, Tensor x, bool tanh) {
    bool is_bf16 = CHECK_ALIKE(y, x);
    if (!measuring(r)) cuda_gelu(C(r), tensor_count(y), numbers(y), numbers(x), tanh, is_bf16);
}
void cuda_op_gelu_backward(Run *r, Into dx, Tensor dy, Tensor x, bool tanh) {
    bool is_bf16 = CHECK_ALIKE(dx.t, dy, x);
    if (!measuring(r))
        cuda_gelu_backward(C(r), tensor_count(dx.t), numbers(dx.t), numbers(dy), numbers(x), tanh, is_bf16,
                           dx.overwrite);
}
void cuda_op_geglu(Run *r, Tensor y, Tensor gate, Tensor up, bool tanh) {
    bool is_bf16 = CHECK_ALIKE(y, gate, up);
    if (!measuring(r)) cuda_geglu(C(r), tensor_count(y), numbers(y), numbers(gate), numbers(up), tanh, is_bf16);
}
void cuda_op_geglu_backward(Run *r, Tensor y, Into dgate, Into dup, Tensor dy, Tensor gate, Tensor up, bool tanh) {
    bool wanted = present(y), is_bf16 = CHECK_ALIKE(dgate.t, dup.t, dy, gate, up, wanted ? y : up);
    if (!measuring(r))
        cuda_geglu_backward(C(r), tensor_count(dy), wanted ? numbers(y) : NULL, numbers(dgate.t), numbers(dup.t),
                            numbers(dy), numbers(gate), numbers(up), tanh, is_bf16, dgate.overwrite, dup.overwrite);
}
void cuda_op_axpby(Run *r, Tensor y, double a, Tensor x, double b) {
    size_t n = tensor_count(y);
    CHECK_SAME_COUNT(y, x);
    if (measuring(r)) return;
    writes(r, y);
    cuda_axpby(C(r), n, R(y), (float)a, R(x), (float)b);
}
void cuda_op_add(Run *r, Tensor y, Tensor x) {
    size_t n = tensor_count(y);
    CHECK_SAME_COUNT(y, x);
    if (measuring(r)) return;
    writes(r, y);
    cuda_add(C(r), n, numbers(y), numbers(x), y.dtype == BF16, x.dtype == BF16);
}
void cuda_op_copy(Run *r, Tensor y, Tensor x) {
    CHECK_SAME_COUNT(y, x);
    if (measuring(r)) return;
    writes(r, y);
    if (y.dtype == x.dtype)
        cuda_copy(C(r), y.p, x.p, tensor_bytes(y));
    else if (y.dtype == BF16)
        cuda_cast_to_bf16(C(r), tensor_count(y), y.p, R(x));
    else
        cuda_cast_from_bf16(C(r), tensor_count(y), R(y), x.p, false);
}
void cuda_op_zero(Run *r, Tensor y) {
    if (measuring(r) || !tensor_bytes(y)) return;
    writes(r, y);
    cuda_fill(C(r), y.p, 0, tensor_bytes(y));
}
void cuda_op_round_to_bf16(Run *r, Tensor x) {
    if (measuring(r)) return;
    writes(r, x);
    cuda_round_to_bf16(C(r), tensor_count(x), R(x));
}
void cuda_op_hadamard(Run *r, Tensor x) {
    const int n = hadamard_width(check_last(x));
    if (measuring(r) || n == 1) return;
    writes(r, x);
    cuda_hadamard(C(r), tensor_count(x) / (size_t)n, n, numbers(x), x.dtype == BF16);
}
void cuda_op_repeat(Run *r, Tensor y, const double *row) {
    int N = y.n[0], w = N ? (int)(tensor_count(y) / (size_t)N) : 0;
    Mark mark = arena_mark(r->scratch);
    double *d = upload(r, row, w, sizeof *d, "row");
    if (!measuring(r)) cuda_repeat(C(r), tensor_count(y), (size_t)w, R(y), d);
    arena_release(r->scratch, mark);
}
void cuda_op_elu1(Run *r, Tensor y, Tensor x) {
    bool is_bf16 = CHECK_ALIKE(y, x);
    if (!measuring(r)) cuda_elu1(C(r), tensor_count(x), numbers(y), numbers(x), is_bf16);
}
void cuda_op_elu1_backward(Run *r, Into dx, Tensor dy, Tensor y) {
    bool is_bf16 = CHECK_ALIKE(dx.t, dy, y);
    if (!measuring(r))
        cuda_elu1_backward(C(r), tensor_count(y), numbers(dx.t), numbers(dy), numbers(y), is_bf16, dx.overwrite);
}
void cuda_op_sigmoid(Run *r, Tensor y, Tensor x, double top) {
    if (!measuring(r)) cuda_sigmoid(C(r), tensor_count(x), R(y), R(x), (float)top);
}
void cuda_op_sigmoid_backward(Run *r, Into dx, Tensor dy, Tensor y, double top) {
    if (!measuring(r)) cuda_sigmoid_backward(C(r), tensor_count(y), R(dx.t), R(dy), R(y), (float)top, dx.overwrite);
}
void cuda_op_dropout(Run *r, Tensor x, DropSite site, double p) {
    if (p <= 0) return;
    int N = x.n[0], d = (int)(tensor_count(x) / (size_t)imax(1, N));
    const Batch *b = r->batch;
    Mark mark = arena_mark(r->scratch);
    int *idx = upload_ints(r, r->out.idx, N, "rows"), *of = upload_ints(r, b->of, b->N, "sequences of rows");
    int *off = upload_ints(r, b->off, b->B + 1, "first rows");
    uint64_t *id = upload(r, b->id, b->B, sizeof *id, "samples");
    if (!measuring(r))
        cuda_dropout(C(r), N, d, R(x),
                     (CudaDrop){noise_key(r, site), (uint64_t)(p * 4294967296.0), (float)(1 / (1 - p))}, idx, of, off,
                     id);
    arena_release(r->scratch, mark);
}

/* ---- rows and columns ---- */
void cuda_op_gather(Run *r, Tensor y, Tensor x, RowList from, RowList to) {
    Mark mark = arena_mark(r->scratch);
    int *f = upload_ints(r, from.idx, from.n, "rows that are there"), *t = upload_ints(r, to.idx, to.n, "rows wanted");
    if (!measuring(r)) {
        for (int m = 0, i = 0; m < to.n; m++, i++) {
            while (i < from.n && from.idx[i] != to.idx[m]) i++;
            CHECK(i < from.n, "row %d is not among the %d given", to.idx[m], from.n);
        }
        CHECK_ALIKE(y, x);
        if (to.n)
            cuda_gather(C(r), to.n, tensor_count(y) / (size_t)to.n, numbers(y), numbers(x), f, from.n, t,
                        x.dtype == BF16);
    }
    arena_release(r->scratch, mark);
}
void cuda_op_spread(Run *r, Tensor y, Tensor x, const int *row) {
    int n = y.n[0];
    CHECK_SAME_WIDTH(y, x);
    Mark mark = arena_mark(r->scratch);
    int *at = upload_ints(r, row, n, "rows");
    if (!measuring(r) && n)
        cuda_spread(C(r), n, tensor_count(y) / (size_t)n, numbers(y), y.dtype == BF16, numbers(x), x.dtype == BF16, at);
    arena_release(r->scratch, mark);
}
void cuda_op_move(Run *r, Tensor y, const size_t *to, Tensor x, const size_t *from, int n, int w) {
    Mark mark = arena_mark(r->scratch);
    size_t *t = upload(r, to, n, sizeof *t, "places to move to"),
           *f = upload(r, from, n, sizeof *f, "places to move from"), width = (size_t)w;
    if (!measuring(r) && n && w) {
        for (int i = 0; i < n; i++) check_piece(i, y, to[i], x, from[i], width);
        writes(r, y);
        cuda_move(C(r), n, width, y.dtype == BF16 ? y.p : R(y), y.dtype == BF16, t, x.dtype == BF16 ? x.p : R(x),
                  x.dtype == BF16, f);
    }
    arena_release(r->scratch, mark);
}
void cuda_op_encode_rows(Run *r, Tensor data, const size_t *to, Tensor x, const size_t *from, int n, int w,
                         const RowCodec *c) {
    CHECK(cuda_coded(c), "no kernel writes rows in %s", c->name);
    Mark mark = arena_mark(r->scratch);
    size_t *t = upload(r, to, n, sizeof *t, "bytes to store at"), *f = upload(r, from, n, sizeof *f, "rows to store");
    if (!measuring(r) && n && w) {
        for (int i = 0; i < n; i++)
            CHECK(to[i] + c->bytes(c, w) <= tensor_bytes(data) && from[i] + (size_t)w <= tensor_count(x), "part %d", i);
        writes(r, data);
        switch (cuda_coded(c)) {
        case CUDA_INT8: cuda_int8_encode(C(r), n, w, data.p, t, R(x), f); break;
        case CUDA_FP8: cuda_fp8_encode(C(r), n, w, data.p, t, R(x), f); break;
        default: cuda_packed_encode(C(r), c->bits, c->group, n, w, data.p, t, R(x), f);
        }
    }
    arena_release(r->scratch, mark);
}
void cuda_op_recode_rows(Run *r, Tensor x, const RowCodec *c) {
    const int w = x.n[x.rank - 1];
    CHECK(cuda_coded(c), "no kernel writes rows in %s", c->name);
    if (measuring(r) || !tensor_count(x)) return;
    const int n = (int)(tensor_count(x) / (size_t)w);
    writes(r, x);
    switch (cuda_coded(c)) {
    case CUDA_INT8: cuda_int8_recode(C(r), n, w, R(x)); break;
    case CUDA_FP8: cuda_fp8_recode(C(r), n, w, R(x)); break;
    default: cuda_packed_recode(C(r), c->bits, c->group, n, w, R(x));
    }
}
void cuda_op_collect(Run *r, Into y, Tensor x, const int *place, int k) {
    int n = y.t.n[0];
    CHECK_SAME_WIDTH(y.t, x);
    Mark mark = arena_mark(r->scratch);
    int *at = upload_ints(r, place, n * k, "places");
    if (!measuring(r) && n)
        cuda_collect(C(r), n, tensor_count(y.t) / (size_t)n, numbers(y.t), y.t.dtype == BF16, y.overwrite, numbers(x),
                     x.dtype == BF16, at, k);
    arena_release(r->scratch, mark);
}
/* Rows of x among rows of y. */
static bool columns_of(CudaColumns *c, Tensor y, int to, Tensor x, int from, int n) {
    int rows, ratio = check_columns(y, to, x, from, n, &rows);
    *c = (CudaColumns){rows, ratio, check_last(y), to, check_last(x), from, n};
    return rows > 0 && n > 0;
}
void cuda_op_columns(Run *r, Tensor y, int to, Tensor x, int from, int n) {
    CudaColumns c;
    if (!measuring(r) && columns_of(&c, y, to, x, from, n))
        cuda_columns(C(r), c, numbers(y), y.dtype == BF16, numbers(x), x.dtype == BF16);
}
void cuda_op_columns_backward(Run *r, Into dx, int from, Tensor dy, int to, int n) {
    CudaColumns c;
    if (!measuring(r) && columns_of(&c, dy, to, dx.t, from, n))
        cuda_columns_backward(C(r), c, numbers(dx.t), dx.t.dtype == BF16, dx.overwrite, numbers(dy), dy.dtype == BF16);
}

void cuda_op_mean_rows(Run *r, Tensor y, Tensor w, int each, int at, int k) {
    int n = y.n[0], d = y.rank > 1 ? y.n[1] : 1;
    check_mean_rows(y, w, each, at, k);
    bool is_bf16 = w.dtype == BF16;
    if (!measuring(r)) cuda_mean_rows(C(r), n, d, R(y), is_bf16 ? w.p : R(w), is_bf16, each, at, k);
}
void cuda_op_scale_column(Run *r, Tensor x, int c, double m) {
    int w = check_last(x);
    check_scale_column(x, c);
    if (measuring(r)) return;
    writes(r, x);
    cuda_scale_column(C(r), tensor_count(x) / (size_t)w, w, c, R(x), (float)m);
}

/* ---- linear attention, Mamba-2 ---- */
void cuda_op_append_ones(Run *r, Tensor y, Tensor x) {
    bool is_bf16 = CHECK_ALIKE(y, x);
    if (!measuring(r)) cuda_append_ones(C(r), check_widened(x, y), check_last(x), numbers(y), numbers(x), is_bf16);
}
void cuda_op_append_ones_backward(Run *r, Into dx, Tensor dy) {
    bool is_bf16 = CHECK_ALIKE(dx.t, dy);
    if (!measuring(r))
        cuda_append_ones_backward(C(r), check_widened(dx.t, dy), check_last(dx.t), numbers(dx.t), numbers(dy), is_bf16,
                                  dx.overwrite);
}
void cuda_op_divide_by_last(Run *r, Tensor y, Tensor x, double eps) {
    bool is_bf16 = CHECK_ALIKE(y, x);
    if (!measuring(r))
        cuda_divide_by_last(C(r), check_widened(y, x), check_last(y), numbers(y), numbers(x), (float)eps, is_bf16);
}
void cuda_op_divide_by_last_backward(Run *r, Into dx, Tensor dy, Tensor y, Tensor x, double eps) {
    bool is_bf16 = CHECK_ALIKE(dx.t, dy, y, x);
    if (!measuring(r))
        cuda_divide_by_last_backward(C(r), check_widened(y, x), check_last(y), numbers(dx.t), numbers(dy), numbers(y),
                                     numbers(x), (float)eps, is_bf16, dx.overwrite);
}
void cuda_op_step(Run *r, Tensor y, Tensor x, Tensor z, Tensor bias) {
    int N = x.n[0], H = x.n[1], P = x.n[2];
    bool is_bf16 = CHECK_ALIKE(y, x);
    check_step(x, z, bias);
    if (!measuring(r)) cuda_step(C(r), N, H, P, numbers(y), numbers(x), R(z), R(bias), is_bf16);
}
void cuda_op_step_backward(Run *r, Into dx, Into dz, Tensor dbias, Tensor dy, Tensor x, Tensor z, Tensor bias) {
    int N = x.n[0], H = x.n[1], P = x.n[2];
    bool is_bf16 = CHECK_ALIKE(dx.t, dy, x);
    Mark mark = arena_mark(r->scratch);
    Tensor df = SCRATCH(r, "gradient of the step", N, H);
    if (!measuring(r))
        cuda_step_backward(C(r), N, H, P, numbers(dx.t), R(dz.t), R(df), numbers(dy), numbers(x), R(z), R(bias),
                           is_bf16, dx.overwrite, dz.overwrite);
    cuda_column_sums_of(r, N, H, dbias, df);
    arena_release(r->scratch, mark);
}
void cuda_op_skip(Run *r, Tensor y, Tensor x, Tensor w) {
    bool is_bf16 = CHECK_ALIKE(y, x);
    check_skip(y, x, w);
    if (!measuring(r)) cuda_skip(C(r), x.n[0], x.n[1], x.n[2], numbers(y), numbers(x), R(w), is_bf16);
}
void cuda_op_skip_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    bool is_bf16 = CHECK_ALIKE(dx.t, dy, x);
    if (!measuring(r))
        cuda_skip_backward(C(r), x.n[0], x.n[1], x.n[2], numbers(dx.t), R(dw), numbers(dy), numbers(x), R(w), is_bf16,
                           dx.overwrite);
}
void cuda_op_attend_sink(Run *r, Tensor o, Tensor lse, Tensor w) {
    check_sink(o, lse, w);
    if (!measuring(r)) cuda_attend_sink(C(r), o.n[0], o.n[1], o.n[2], numbers(o), R(lse), R(w), o.dtype == BF16);
}
void cuda_op_attend_sink_backward(Run *r, Tensor dw, Tensor dout, Tensor o, Tensor lse, Tensor w) {
    bool is_bf16 = CHECK_ALIKE(dout, o);
    check_sink(o, lse, w);
    if (!measuring(r))
        cuda_attend_sink_backward(C(r), o.n[0], o.n[1], o.n[2], R(dw), numbers(dout), numbers(o), R(lse), R(w),
                                  is_bf16);
}
void cuda_op_sigmoid_gate(Run *r, Tensor y, Tensor x, Tensor z) {
    bool is_bf16 = CHECK_ALIKE(y, x, z);
    check_gate(y, x, z);
    if (!measuring(r)) cuda_sigmoid_gate(C(r), tensor_count(y), numbers(y), numbers(x), numbers(z), is_bf16);
}
void cuda_op_sigmoid_gate_backward(Run *r, Into dx, Into dz, Tensor dy, Tensor x, Tensor z) {
    bool is_bf16 = CHECK_ALIKE(dx.t, dz.t, dy, x, z);
    check_gate(dy, x, z);
    if (!measuring(r))
        cuda_sigmoid_gate_backward(C(r), tensor_count(dy), numbers(dx.t), numbers(dz.t), numbers(dy), numbers(x),
                                   numbers(z), is_bf16, dx.overwrite, dz.overwrite);
}
void cuda_op_swiglu_limit(Run *r, Tensor y, Tensor gate, Tensor up, Tensor s, double alpha, double limit) {
    int M = (int)tensor_count(s), d = M ? (int)(tensor_count(y) / (size_t)M) : 0;
    bool is_bf16 = CHECK_ALIKE(y, gate, up);
    check_swiglu_rows(y, s, ABSENT);
    if (!measuring(r))
        cuda_swiglu_limit(C(r), M, d, numbers(y), numbers(gate), numbers(up), R(s), (float)alpha, (float)limit,
                          is_bf16);
}
void cuda_op_swiglu_limit_backward(Run *r, Into dgate, Into dup, Into ds, Tensor dy, Tensor gate, Tensor up, Tensor s,
                                   double alpha, double limit) {
    int M = (int)tensor_count(s), d = M ? (int)(tensor_count(dy) / (size_t)M) : 0;
    bool is_bf16 = CHECK_ALIKE(dgate.t, dup.t, dy, gate, up);
    check_swiglu_rows(dy, s, ds.t);
    if (!measuring(r))
        cuda_swiglu_limit_backward(C(r), M, d, numbers(dgate.t), numbers(dup.t), R(ds.t), numbers(dy), numbers(gate),
                                   numbers(up), R(s), (float)alpha, (float)limit, is_bf16, dgate.overwrite,
                                   dup.overwrite, ds.overwrite);
}

/* ---- loss ---- */
void cuda_op_align(Run *r, Tensor err, Tensor dy, Tensor y, Tensor a, const int *tgt, const real *g, double c) {
    const Batch *b = r->batch;
    int N = y.n[0], d = y.n[1];
    check_align(r, err, dy, y, a);
    Mark mark = arena_mark(r->scratch);
    Tensor inv = SCRATCH(r, "sizes of sequences", imax(1, b->B));
    int *targets = upload_ints(r, tgt, N, "targets"), *off = upload_ints(r, b->off, b->B + 1, "first rows");
    if (!measuring(r)) cuda_align(C(r), N, b->B, d, R(err), maybe(dy), R(inv), R(y), R(a), targets, off, g, (float)c);
    arena_release(r->scratch, mark);
}
const Ops cuda_table = {
    .name = "cuda",
#define DEF(result, op, ...) .op = cuda_op_##op,
#include "ops/ops.def"
};
