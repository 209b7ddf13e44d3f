/* table.c: the op table of the CUDA backend, f32: shapes are checked and scratch taken here, as on the CPU; cuda.h
 * computes. Tensors and `real *` arguments lie on the device; ids, places, targets and Batch lie with the host, and are
 * copied to scratch by the op that reads them. */
#include "table.h"

/* ---- linear: the rest of it is products.c ---- */
static void linear_heads(Run *r, Tensor y, Tensor x, Tensor w, int row, int O, bool turned) {
    int M = x.n[0], H = x.n[1], I = w.n[1], each = w.n[0] / imax(1, H);
    CHECK(w.n[0] == H * each && row >= 0 && row + O <= each && y.n[0] == M && y.n[1] == H, "w (%d,%d), %d heads, y %d",
          w.n[0], I, H, y.n[1]);
    CHECK(x.n[2] >= (turned ? O : I) && y.n[2] >= (turned ? I : O), "x %d, y %d, W (%d,%d)", x.n[2], y.n[2], O, I);
    Mark mark = arena_mark(r->scratch);
    Tensor wide = w.dtype == BF16 ? SCRATCH(r, "heads' weights widened", w.n[0], I) : w;
    if (!measuring(r)) {
        CudaGemm g = {M, turned ? I : O, turned ? O : I, .lda = H * x.n[2], .ldb = I, .ldc = H * y.n[2], .tb = !turned};
        if (w.dtype == BF16) cuda_unhalve(C(r), tensor_count(w), R(wide), w.p, false);
        for (int h = 0; h < H; h++)
            cuda_gemm(C(r), g, R(y) + (size_t)h * (size_t)y.n[2], R(x) + (size_t)h * (size_t)x.n[2],
                      R(wide) + ((size_t)h * (size_t)each + (size_t)row) * (size_t)I);
    }
    arena_release(r->scratch, mark);
}
static void linear_steady(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    int O = w.n[0], I = w.n[1];
    x = tensor_rows(x, I), y = tensor_rows(y, O);
    CHECK(x.n[0] == y.n[0] && (!present(bias) || bias.n[0] == O), "x %d rows, y %d, w (%d,%d)", x.n[0], y.n[0], O, I);
    if (measuring(r)) return;
    cuda_dots(C(r), y.n[0], O, I, R(y), numbers(x), x.dtype == BF16, R(w), maybe(bias));
}

/* ---- embedding ---- */
static void embed(Run *r, Tensor y, Tensor table, const int *tok, double scale) {
    int N = y.n[0], d = table.n[1];
    Mark mark = arena_mark(r->scratch);
    int *ids = upload_ints(r, tok, N, "token ids");
    if (!measuring(r)) {
        for (int i = 0; i < N; i++)
            CHECK(tok[i] >= 0 && tok[i] < table.n[0], "token %d of vocabulary %d", tok[i], table.n[0]);
        cuda_embed(C(r), N, d, R(y), table.dtype == BF16 ? table.p : R(table), table.dtype == BF16, ids, (float)scale);
    }
    arena_release(r->scratch, mark);
}
static void embed_backward(Run *r, Tensor dtable, Tensor dy, const int *tok, double scale) {
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
static CudaNormOf norm_of(Tensor y, Tensor x) {
    CHECK(y.dtype == BF16 || x.dtype == REAL, "y %s, x %s", dtype_name(y.dtype), dtype_name(x.dtype));
    return x.dtype == BF16 ? CUDA_NORM_ALL : y.dtype == BF16 ? CUDA_NORM_OUT : CUDA_NORM_WIDE;
}
static void add_rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor z, Tensor w, double eps) {
    int d = w.n[0];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
    CHECK(y.n[0] == N && tensor_count(rstd) == (size_t)N, "%d rows", N);
    CHECK(!present(z) || (x.dtype == REAL && tensor_count(z) == tensor_count(x)), "x %s", dtype_name(x.dtype));
    if (!measuring(r))
        cuda_rmsnorm(C(r), N, d, numbers(y), R(rstd), numbers(x), present(z) ? R(z) : NULL, R(w), eps, norm_of(y, x));
}
static void rmsnorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps) {
    add_rmsnorm(r, y, rstd, x, ABSENT, w, eps);
}
static void rmsnorm_backward(Run *r, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0];
    x = tensor_rows(x, d);
    Mark mark = arena_mark(r->scratch);
    Tensor parts = SCRATCH(r, "sums of slices", cuda_slices((size_t)x.n[0], cuda_row_tiles(d)), d);
    CHECK(dx.dtype == x.dtype, "dx %s, x %s", dtype_name(dx.dtype), dtype_name(x.dtype));
    if (!measuring(r))
        cuda_rmsnorm_backward(C(r), x.n[0], d, numbers(dx), R(dw), R(parts), numbers(dy), numbers(x), R(w), R(rstd),
                              norm_of(dy, x), dx.fresh);
    arena_release(r->scratch, mark);
}
static void layernorm(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps) {
    int d = w.n[0];
    x = tensor_rows(x, d), y = tensor_rows(y, d);
    int N = x.n[0];
    CHECK(y.n[0] == N && tensor_count(rstd) == (size_t)N && b.n[0] == d, "%d rows", N);
    if (!measuring(r)) cuda_layernorm(C(r), N, d, numbers(y), R(rstd), R(x), R(w), R(b), eps, y.dtype == BF16);
}
static void layernorm_backward(Run *r, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    int d = w.n[0];
    x = tensor_rows(x, d);
    Mark mark = arena_mark(r->scratch);
    Tensor parts = SCRATCH(r, "sums of slices", 2, cuda_slices((size_t)x.n[0], cuda_row_tiles(d)), d);
    if (!measuring(r))
        cuda_layernorm_backward(C(r), x.n[0], d, R(dx), R(dw), R(db), R(parts), numbers(dy), R(x), R(w), R(rstd),
                                dy.dtype == BF16);
    arena_release(r->scratch, mark);
}
static void l2norm(Run *r, Tensor y, Tensor x, double eps) {
    int d = last(x);
    bool narrow = narrow_all(2, (Tensor[]){y, x});
    if (!measuring(r)) cuda_l2norm(C(r), (int)(tensor_count(x) / (size_t)d), d, numbers(y), numbers(x), eps, narrow);
}
static void l2norm_backward(Run *r, Tensor dx, Tensor dy, Tensor x, double eps) {
    int d = last(x);
    bool narrow = narrow_all(3, (Tensor[]){dx, dy, x});
    if (!measuring(r))
        cuda_l2norm_backward(C(r), (int)(tensor_count(x) / (size_t)d), d, numbers(dx), numbers(dy), numbers(x), eps,
                             narrow, dx.fresh);
}
/* What heads x turn by, and where their positions stand. */
typedef struct {
    CudaRope c;
    int *pos, *idx;
} Turn;
static Turn turn_of(Run *r, Tensor x, const Rope *p, Pick rows, int sign) {
    CHECK(x.rank == 3 && x.n[0] == rows.n && p->at >= 0 && p->at + p->n <= x.n[2], "rows %d of %d, %d..%d of %d",
          x.n[0], rows.n, p->at, p->at + p->n, x.n[2]);
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
static void rope(Run *r, Tensor x, const Rope *p, Pick rows, int sign) {
    if (p->n == 0 || rows.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    Turn t = turn_of(r, x, p, rows, sign);
    if (!measuring(r)) cuda_rope(C(r), &t.c, numbers(x), t.pos, t.idx, x.dtype == BF16);
    arena_release(r->scratch, mark);
}
/* Of x, with y, or dx and dy. */
static bool narrow_heads(Tensor x, Tensor y, Tensor w, Tensor rstd) {
    CHECK(x.n[2] <= HEAD_WIDEST && w.n[0] == x.n[2], "heads of %d, w %d", x.n[2], w.n[0]);
    CHECK(y.dtype == x.dtype && tensor_count(y) == tensor_count(x), "%s and %s", dtype_name(y.dtype),
          dtype_name(x.dtype));
    CHECK(tensor_count(rstd) == (size_t)x.n[0] * (size_t)x.n[1], "%zu rows", tensor_count(rstd));
    return x.dtype == BF16;
}
static void rmsnorm_rope(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps, const Rope *p, Pick rows) {
    if (rows.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    Turn t = turn_of(r, x, p, rows, 1);
    bool narrow = narrow_heads(x, y, w, rstd);
    if (!measuring(r)) cuda_norm_rope(C(r), &t.c, numbers(y), R(rstd), numbers(x), R(w), eps, t.pos, t.idx, narrow);
    arena_release(r->scratch, mark);
}
static void rmsnorm_rope_backward(Run *r, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd,
                                  const Rope *p, Pick rows) {
    if (rows.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    Turn t = turn_of(r, x, p, rows, -1);
    bool narrow = narrow_heads(x, dy, w, rstd);
    CHECK(dx.dtype == x.dtype, "dx %s, x %s", dtype_name(dx.dtype), dtype_name(x.dtype));
    Tensor parts = SCRATCH(r, "sums of slices", cuda_norm_rope_slices(rows.n, x.n[1]), x.n[2]);
    if (!measuring(r))
        cuda_norm_rope_backward(C(r), &t.c, numbers(dx), R(dw), R(parts), numbers(dy), numbers(x), R(w), R(rstd), t.pos,
                                t.idx, narrow, dx.fresh);
    arena_release(r->scratch, mark);
}

/* ---- one number at a time ---- */
static void swiglu(Run *r, Tensor y, Tensor gate, Tensor up) {
    bool narrow = narrow_all(3, (Tensor[]){y, gate, up});
    if (!measuring(r)) cuda_swiglu(C(r), tensor_count(y), numbers(y), numbers(gate), numbers(up), narrow);
}
static void swiglu_backward(Run *r, Tensor y, Tensor dgate, Tensor dup, Tensor dy, Tensor gate, Tensor up) {
    bool wanted = present(y), narrow = narrow_all(6, (Tensor[]){dgate, dup, dy, gate, up, wanted ? y : up});
    if (!measuring(r))
        cuda_swiglu_backward(C(r), tensor_count(dy), wanted ? numbers(y) : NULL, numbers(dgate), numbers(dup),
                             numbers(dy), numbers(gate), numbers(up), narrow, dgate.fresh, dup.fresh);
}
static void swiglu_rows(Run *r, Tensor y, Tensor gate, Tensor up, Tensor s) {
    int M = (int)tensor_count(s), d = M ? (int)(tensor_count(y) / (size_t)M) : 0;
    bool narrow = narrow_all(3, (Tensor[]){y, gate, up});
    if (!measuring(r)) cuda_swiglu_rows(C(r), M, d, numbers(y), numbers(gate), numbers(up), R(s), narrow);
}
static void swiglu_rows_backward(Run *r, Tensor dgate, Tensor dup, Tensor ds, Tensor dy, Tensor gate, Tensor up,
                                 Tensor s) {
    int M = (int)tensor_count(s), d = M ? (int)(tensor_count(dy) / (size_t)M) : 0;
    bool narrow = narrow_all(5, (Tensor[]){dgate, dup, dy, gate, up});
    if (!measuring(r))
        cuda_swiglu_rows_backward(C(r), M, d, numbers(dgate), numbers(dup), R(ds), numbers(dy), numbers(gate),
                                  numbers(up), R(s), narrow, dgate.fresh, dup.fresh, ds.fresh);
}
static void gelu(Run *r, Tensor y, Tensor x, bool tanh) {
    bool narrow = narrow_all(2, (Tensor[]){y, x});
    if (!measuring(r)) cuda_gelu(C(r), tensor_count(y), numbers(y), numbers(x), tanh, narrow);
}
static void gelu_backward(Run *r, Tensor dx, Tensor dy, Tensor x, bool tanh) {
    bool narrow = narrow_all(3, (Tensor[]){dx, dy, x});
    if (!measuring(r))
        cuda_gelu_backward(C(r), tensor_count(dx), numbers(dx), numbers(dy), numbers(x), tanh, narrow, dx.fresh);
}
static void axpby(Run *r, Tensor y, double a, Tensor x, double b) {
    size_t n = tensor_count(y);
    CHECK(tensor_count(x) == n, "%zu and %zu numbers", n, tensor_count(x));
    if (measuring(r)) return;
    writes(r, y);
    cuda_axpby(C(r), n, R(y), (float)a, R(x), (float)b);
}
static void add(Run *r, Tensor y, Tensor x) {
    size_t n = tensor_count(y);
    CHECK(tensor_count(x) == n, "%zu and %zu numbers", n, tensor_count(x));
    if (measuring(r)) return;
    writes(r, y);
    cuda_add(C(r), n, numbers(y), numbers(x), y.dtype == BF16, x.dtype == BF16);
}
static void copy(Run *r, Tensor y, Tensor x) {
    CHECK(tensor_count(y) == tensor_count(x), "%zu and %zu numbers", tensor_count(y), tensor_count(x));
    if (measuring(r)) return;
    writes(r, y);
    if (y.dtype == x.dtype)
        cuda_copy(C(r), y.p, x.p, tensor_bytes(y));
    else if (y.dtype == BF16)
        cuda_halve(C(r), tensor_count(y), y.p, R(x));
    else
        cuda_unhalve(C(r), tensor_count(y), R(y), x.p, false);
}
static void zero(Run *r, Tensor y) {
    if (measuring(r) || !tensor_bytes(y)) return;
    writes(r, y);
    cuda_fill(C(r), y.p, 0, tensor_bytes(y));
}
static void narrow(Run *r, Tensor x) {
    if (measuring(r)) return;
    writes(r, x);
    cuda_narrow(C(r), tensor_count(x), R(x));
}
static void repeat(Run *r, Tensor y, const double *row) {
    int N = y.n[0], w = N ? (int)(tensor_count(y) / (size_t)N) : 0;
    Mark mark = arena_mark(r->scratch);
    double *d = upload(r, row, w, sizeof *d, "row");
    if (!measuring(r)) cuda_repeat(C(r), tensor_count(y), (size_t)w, R(y), d);
    arena_release(r->scratch, mark);
}
static void elu1(Run *r, Tensor y, Tensor x) {
    bool narrow = narrow_all(2, (Tensor[]){y, x});
    if (!measuring(r)) cuda_elu1(C(r), tensor_count(x), numbers(y), numbers(x), narrow);
}
static void elu1_backward(Run *r, Tensor dx, Tensor dy, Tensor y) {
    bool narrow = narrow_all(3, (Tensor[]){dx, dy, y});
    if (!measuring(r))
        cuda_elu1_backward(C(r), tensor_count(y), numbers(dx), numbers(dy), numbers(y), narrow, dx.fresh);
}
static void sigmoid(Run *r, Tensor y, Tensor x, double top) {
    if (!measuring(r)) cuda_sigmoid(C(r), tensor_count(x), R(y), R(x), (float)top);
}
static void sigmoid_backward(Run *r, Tensor dx, Tensor dy, Tensor y, double top) {
    if (!measuring(r)) cuda_sigmoid_backward(C(r), tensor_count(y), R(dx), R(dy), R(y), (float)top, dx.fresh);
}
static void dropout(Run *r, Tensor x, DropSite site, double p) {
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
static void gather(Run *r, Tensor y, Tensor x, Pick from, Pick to) {
    Mark mark = arena_mark(r->scratch);
    int *f = upload_ints(r, from.idx, from.n, "rows that are there"), *t = upload_ints(r, to.idx, to.n, "rows wanted");
    if (!measuring(r)) {
        for (int m = 0, i = 0; m < to.n; m++, i++) {
            while (i < from.n && from.idx[i] != to.idx[m]) i++;
            CHECK(i < from.n, "row %d is not among the %d given", to.idx[m], from.n);
        }
        CHECK(y.dtype == x.dtype, "%s and %s", dtype_name(y.dtype), dtype_name(x.dtype));
        if (to.n)
            cuda_gather(C(r), to.n, tensor_count(y) / (size_t)to.n, numbers(y), numbers(x), f, from.n, t,
                        x.dtype == BF16);
    }
    arena_release(r->scratch, mark);
}
static void spread(Run *r, Tensor y, Tensor x, const int *row) {
    int n = y.n[0];
    Mark mark = arena_mark(r->scratch);
    int *at = upload_ints(r, row, n, "rows");
    if (!measuring(r) && n)
        cuda_spread(C(r), n, tensor_count(y) / (size_t)n, numbers(y), y.dtype == BF16, numbers(x), x.dtype == BF16, at);
    arena_release(r->scratch, mark);
}
static void move(Run *r, Tensor y, const size_t *to, Tensor x, const size_t *from, int n, int w) {
    Mark mark = arena_mark(r->scratch);
    size_t *t = upload(r, to, n, sizeof *t, "places to move to"),
           *f = upload(r, from, n, sizeof *f, "places to move from"), width = (size_t)w;
    if (!measuring(r) && n && w) {
        for (int i = 0; i < n; i++)
            CHECK(to[i] + width <= tensor_count(y) && from[i] + width <= tensor_count(x), "piece %d", i);
        writes(r, y);
        cuda_move(C(r), n, width, y.dtype == BF16 ? y.p : R(y), y.dtype == BF16, t, x.dtype == BF16 ? x.p : R(x),
                  x.dtype == BF16, f);
    }
    arena_release(r->scratch, mark);
}
static void collect(Run *r, Tensor y, Tensor x, const int *place, int k) {
    int n = y.n[0];
    Mark mark = arena_mark(r->scratch);
    int *at = upload_ints(r, place, n * k, "places");
    if (!measuring(r) && n)
        cuda_collect(C(r), n, tensor_count(y) / (size_t)n, numbers(y), y.dtype == BF16, y.fresh, numbers(x),
                     x.dtype == BF16, at, k);
    arena_release(r->scratch, mark);
}
/* Rows of x among rows of y. */
static bool columns_of(CudaColumns *c, Tensor y, int to, Tensor x, int from, int n) {
    int rows = (int)(tensor_count(y) / (size_t)last(y)), each = (int)(tensor_count(x) / (size_t)last(x));
    CHECK(to >= 0 && from >= 0 && n >= 0 && to + n <= last(y) && from + n <= last(x), "%d columns", n);
    CHECK(each == 0 ? rows == 0 : rows % each == 0, "%d rows of %d", rows, each);
    *c = (CudaColumns){rows, each ? rows / each : 1, last(y), to, last(x), from, n};
    return rows > 0 && n > 0;
}
static void columns(Run *r, Tensor y, int to, Tensor x, int from, int n) {
    CudaColumns c;
    if (!measuring(r) && columns_of(&c, y, to, x, from, n))
        cuda_columns(C(r), c, numbers(y), y.dtype == BF16, numbers(x), x.dtype == BF16);
}
static void columns_backward(Run *r, Tensor dx, int from, Tensor dy, int to, int n) {
    CudaColumns c;
    if (!measuring(r) && columns_of(&c, dy, to, dx, from, n))
        cuda_columns_backward(C(r), c, numbers(dx), dx.dtype == BF16, dx.fresh, numbers(dy), dy.dtype == BF16);
}

static void mean_rows(Run *r, Tensor y, Tensor w, int each, int at, int k) {
    int n = y.n[0], d = y.rank > 1 ? y.n[1] : 1;
    CHECK((w.rank > 1 ? w.n[1] : 1) == d && at >= 0 && k > 0 && ((long)n * k - 1) * each + at < w.n[0],
          "y (%d,%d), w (%d), rows %d k + %d of %d", n, d, w.n[0], each, at, k);
    bool narrow = w.dtype == BF16;
    if (!measuring(r)) cuda_mean_rows(C(r), n, d, R(y), narrow ? w.p : R(w), narrow, each, at, k);
}
static void scale_column(Run *r, Tensor x, int c, double m) {
    int w = last(x);
    CHECK(c >= 0 && c < w, "column %d of %d", c, w);
    if (measuring(r)) return;
    writes(r, x);
    cuda_scale_column(C(r), tensor_count(x) / (size_t)w, w, c, R(x), (float)m);
}

/* ---- linear attention, Mamba-2 ---- */
static size_t groups_of(Tensor narrow, Tensor wide) {
    size_t V = (size_t)last(narrow), M = tensor_count(narrow) / V;
    CHECK(tensor_count(wide) == M * (V + 1), "%zu groups of %zu", M, V);
    return M;
}
static void widen(Run *r, Tensor y, Tensor x) {
    bool narrow = narrow_all(2, (Tensor[]){y, x});
    if (!measuring(r)) cuda_widen(C(r), groups_of(x, y), last(x), numbers(y), numbers(x), narrow);
}
static void widen_backward(Run *r, Tensor dx, Tensor dy) {
    bool narrow = narrow_all(2, (Tensor[]){dx, dy});
    if (!measuring(r))
        cuda_widen_backward(C(r), groups_of(dx, dy), last(dx), numbers(dx), numbers(dy), narrow, dx.fresh);
}
static void quotient(Run *r, Tensor y, Tensor x, double eps) {
    bool narrow = narrow_all(2, (Tensor[]){y, x});
    if (!measuring(r)) cuda_quotient(C(r), groups_of(y, x), last(y), numbers(y), numbers(x), (float)eps, narrow);
}
static void quotient_backward(Run *r, Tensor dx, Tensor dy, Tensor y, Tensor x, double eps) {
    bool narrow = narrow_all(4, (Tensor[]){dx, dy, y, x});
    if (!measuring(r))
        cuda_quotient_backward(C(r), groups_of(y, x), last(y), numbers(dx), numbers(dy), numbers(y), numbers(x),
                               (float)eps, narrow, dx.fresh);
}
static void step(Run *r, Tensor y, Tensor x, Tensor z, Tensor bias) {
    int N = x.n[0], H = x.n[1], P = x.n[2];
    bool narrow = narrow_all(2, (Tensor[]){y, x});
    CHECK(tensor_count(z) == (size_t)N * (size_t)H && tensor_count(bias) == (size_t)H, "%d rows, %d heads", N, H);
    if (!measuring(r)) cuda_step(C(r), N, H, P, numbers(y), numbers(x), R(z), R(bias), narrow);
}
static void step_backward(Run *r, Tensor dx, Tensor dz, Tensor dbias, Tensor dy, Tensor x, Tensor z, Tensor bias) {
    int N = x.n[0], H = x.n[1], P = x.n[2];
    bool narrow = narrow_all(3, (Tensor[]){dx, dy, x});
    Mark mark = arena_mark(r->scratch);
    Tensor df = SCRATCH(r, "gradient of the step", N, H);
    if (!measuring(r))
        cuda_step_backward(C(r), N, H, P, numbers(dx), R(dz), R(df), numbers(dy), numbers(x), R(z), R(bias), narrow,
                           dx.fresh, dz.fresh);
    cuda_column_sums_of(r, N, H, dbias, df);
    arena_release(r->scratch, mark);
}
static void skip(Run *r, Tensor y, Tensor x, Tensor w) {
    bool narrow = narrow_all(2, (Tensor[]){y, x});
    CHECK(tensor_count(y) == tensor_count(x) && tensor_count(w) == (size_t)x.n[1], "%d heads", x.n[1]);
    if (!measuring(r)) cuda_skip(C(r), x.n[0], x.n[1], x.n[2], numbers(y), numbers(x), R(w), narrow);
}
static void skip_backward(Run *r, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    bool narrow = narrow_all(3, (Tensor[]){dx, dy, x});
    if (!measuring(r))
        cuda_skip_backward(C(r), x.n[0], x.n[1], x.n[2], numbers(dx), R(dw), numbers(dy), numbers(x), R(w), narrow,
                           dx.fresh);
}

/* ---- loss ---- */
static void align(Run *r, Tensor err, Tensor dy, Tensor y, Tensor a, const int *tgt, const real *g, double c) {
    const Batch *b = r->batch;
    int N = y.n[0], d = y.n[1];
    CHECK(N == b->N && a.n[0] == N && a.n[1] == d && err.n[0] == N && (!present(dy) || dy.n[1] == d),
          "y (%d,%d), a (%d,%d), %d rows", N, d, a.n[0], a.n[1], b->N);
    Mark mark = arena_mark(r->scratch);
    Tensor inv = SCRATCH(r, "sizes of sequences", imax(1, b->B));
    int *targets = upload_ints(r, tgt, N, "targets"), *off = upload_ints(r, b->off, b->B + 1, "first rows");
    if (!measuring(r)) cuda_align(C(r), N, b->B, d, R(err), maybe(dy), R(inv), R(y), R(a), targets, off, g, (float)c);
    arena_release(r->scratch, mark);
}
static const Ops ops_cuda = {
    .name = "cuda",
    .linear = cuda_op_linear,
    .linear_backward = cuda_op_linear_backward,
    .linear_many = cuda_op_linear_many,
    .linear_many_backward = cuda_op_linear_many_backward,
    .linear_heads = linear_heads,
    .linear_steady = linear_steady,
    .embed = embed,
    .embed_backward = embed_backward,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .rope = rope,
    .rmsnorm_rope = rmsnorm_rope,
    .rmsnorm_rope_backward = rmsnorm_rope_backward,
    .attend = cuda_op_attend,
    .attend_backward = cuda_op_attend_backward,
    .attend_lanes = cuda_op_attend_lanes,
    .merge = cuda_op_merge,
    .merge_backward = cuda_op_merge_backward,
    .decide = cuda_op_decide,
    .decide_backward = cuda_op_decide_backward,
    .mean_rows = mean_rows,
    .scale_column = scale_column,
    .recur = cuda_op_recur,
    .recur_backward = cuda_op_recur_backward,
    .short_conv = cuda_op_short_conv,
    .short_conv_backward = cuda_op_short_conv_backward,
    .decay = cuda_op_decay,
    .decay_backward = cuda_op_decay_backward,
    .gated_norm = cuda_op_gated_norm,
    .gated_norm_backward = cuda_op_gated_norm_backward,
    .l2norm = l2norm,
    .l2norm_backward = l2norm_backward,
    .sigmoid = sigmoid,
    .sigmoid_backward = sigmoid_backward,
    .repeat = repeat,
    .elu1 = elu1,
    .elu1_backward = elu1_backward,
    .widen = widen,
    .widen_backward = widen_backward,
    .quotient = quotient,
    .quotient_backward = quotient_backward,
    .step = step,
    .step_backward = step_backward,
    .skip = skip,
    .skip_backward = skip_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .add = add,
    .axpby = axpby,
    .copy = copy,
    .linear_groups = cuda_op_linear_groups,
    .linear_groups_backward = cuda_op_linear_groups_backward,
    .spread = spread,
    .move = move,
    .collect = collect,
    .swiglu_rows = swiglu_rows,
    .swiglu_rows_backward = swiglu_rows_backward,
    .narrow = narrow,
    .zero = zero,
    .gather = gather,
    .columns = columns,
    .columns_backward = columns_backward,
    .dropout = dropout,
    .linear_xent = cuda_op_linear_xent,
    .linear_distill = cuda_op_linear_distill,
    .align = align,
    .adamw = cuda_op_adamw,
    .momentum = cuda_op_momentum,
    .sumsq = cuda_op_sumsq,
    .normalise = cuda_op_normalise,
    .sumsqs = cuda_op_sumsqs,
    .sumsqs_there = cuda_op_sumsqs_there,
};
const Ops *cuda_ops(void) { return &ops_cuda; }
