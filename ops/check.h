/* check.h: what an op asks of its arguments, stated once. Both backends call these before they compute, many already
 * while a pass is measured: they look at shapes and types, never at memory. What a list of the host may hold is checked
 * where it is read (check_token and the like). A failure is a mistake of ours: it prints file, line and values and
 * aborts. What one backend alone asks for, such as a width that its kernels have, that backend checks itself.
 *
 * They are inline because a tiny op takes less than a microsecond. */
#pragma once
#include "ops.h"

static inline int check_last(Tensor t) { return t.n[t.rank - 1]; }
/* The ALIKE tensors of a call (ops.def): all present ones have one type. Whether it is BF16. These three are macros, so
 * that a failure names the op's line. */
#define CHECK_ALIKE(...)                                                                     \
    check_alike(__FILE__, __LINE__, (int)(sizeof((Tensor[]){__VA_ARGS__}) / sizeof(Tensor)), \
                (const Tensor[]){__VA_ARGS__})
static inline bool check_alike(const char *file, int line, int n, const Tensor *t) {
    const Tensor *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!present(t[i])) continue;
        if (!first) first = &t[i];
        if (t[i].dtype != first->dtype)
            check_failed(file, line, "tensors of one type", "%s and %s", dtype_name(first->dtype),
                         dtype_name(t[i].dtype));
    }
    return first && first->dtype == BF16;
}
#define CHECK_SAME_COUNT(y, x) check_same_count(__FILE__, __LINE__, y, x)
static inline void check_same_count(const char *file, int line, Tensor y, Tensor x) {
    if (tensor_count(y) != tensor_count(x))
        check_failed(file, line, "as many elements", "%zu and %zu", tensor_count(y), tensor_count(x));
}
#define CHECK_SAME_WIDTH(y, x) check_same_width(__FILE__, __LINE__, y, x)
static inline void check_same_width(const char *file, int line, Tensor y, Tensor x) {
    if (x.n[1] != y.n[1]) check_failed(file, line, "rows of one width", "%d and %d", x.n[1], y.n[1]);
}

/* ---- products ---- */
/* One matrix of linear_many, for N rows of I; of its backward. */
static inline void check_linear(int N, int I, Projection p) {
    int O = p.w.n[0], rows = tensor_rows(p.y, O).n[0];
    CHECK(p.w.n[1] == I && rows == N && (!present(p.bias) || p.bias.n[0] == O), "x (%d,%d), y %d rows, w (%d,%d)", N, I,
          rows, O, p.w.n[1]);
}
static inline void check_linear_backward(int N, int I, Tensor dy, Tensor w) {
    CHECK(w.n[1] == I && dy.n[0] == N, "x (%d,%d), dy %d rows, w (%d,%d)", N, I, dy.n[0], w.n[0], w.n[1]);
}
/* Rows of w for each head. */
static inline int check_linear_heads(Tensor y, Tensor x, Tensor w, int row, int O, bool turned) {
    int M = x.n[0], H = x.n[1], I = w.n[1], each = w.n[0] / imax(1, H);
    CHECK(w.n[0] == H * each && row >= 0 && row + O <= each && y.n[0] == M && y.n[1] == H, "w (%d,%d), %d heads, y %d",
          w.n[0], I, H, y.n[1]);
    CHECK(x.n[2] >= (turned ? O : I) && y.n[2] >= (turned ? I : O), "x %d, y %d, W (%d,%d)", x.n[2], y.n[2], O, I);
    return each;
}
static inline void check_linear_steady(Tensor y, Tensor x, Tensor w, Tensor bias) {
    size_t O = (size_t)w.n[0], I = (size_t)w.n[1];
    CHECK(tensor_count(x) % I == 0 && tensor_count(y) == tensor_count(x) / I * O &&
              (!present(bias) || bias.n[0] == w.n[0]),
          "%zu elements in, %zu out, w (%d,%d)", tensor_count(x), tensor_count(y), w.n[0], w.n[1]);
}
/* y, or dy and dx. */
static inline void check_linear_groups(Tensor y, Tensor x, Tensor dx, Tensor w) {
    int O = w.n[0], I = w.n[1], M = y.n[0];
    CHECK(x.n[0] == M && x.n[1] == I && y.n[1] == O && (!present(dx) || dx.n[0] == M),
          "x (%d,%d), y (%d,%d), w (%d,%d)", x.n[0], x.n[1], M, y.n[1], O, I);
}
static inline void check_linear_xent(Tensor dx, Tensor dw, Tensor x, Tensor w) {
    CHECK(x.n[1] == w.n[1] && (present(dx) || !present(dw)), "x (%d,%d), w (%d,%d)", x.n[0], x.n[1], w.n[0], w.n[1]);
}
static inline void check_linear_distill(Tensor dx, Tensor dw, Tensor x, Tensor w, Tensor y, Tensor u) {
    check_linear_xent(dx, dw, x, w);
    CHECK(y.n[0] == x.n[0] && y.n[1] == u.n[1] && u.n[0] == w.n[0], "x (%d,%d), y (%d,%d), u (%d,%d)", x.n[0], x.n[1],
          y.n[0], y.n[1], u.n[0], u.n[1]);
}
static inline void check_token(int id, Tensor table) {
    CHECK(id >= 0 && id < table.n[0], "token %d of vocabulary %d", id, table.n[0]);
}
static inline void check_target(int id, int V) { CHECK(id < V, "target %d of vocabulary %d", id, V); }

/* ---- norms, rotation ---- */
/* y, or dy, beside x, or x and dx. */
static inline void check_norm_types(Tensor y, Tensor x) {
    CHECK(y.dtype == BF16 || x.dtype == REAL, "y %s, x %s", dtype_name(y.dtype), dtype_name(x.dtype));
}
/* Both norms; the bias is LayerNorm's. */
static inline void check_norm(Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor bias) {
    int d = w.n[0], N = tensor_rows(x, d).n[0];
    check_norm_types(y, x);
    CHECK(tensor_rows(y, d).n[0] == N && tensor_count(rstd) == (size_t)N && (!present(bias) || bias.n[0] == d),
          "%d rows of %d, y %zu elements, rstd %zu", N, d, tensor_count(y), tensor_count(rstd));
}
static inline void check_add_rmsnorm(Tensor y, Tensor rstd, Tensor x, Tensor z, Tensor w) {
    check_norm(y, rstd, x, w, ABSENT);
    CHECK(!present(z) || (x.dtype == REAL && tensor_count(z) == tensor_count(x)), "x %s", dtype_name(x.dtype));
}
static inline void check_norm_backward(Tensor dx, Tensor dy, Tensor x) {
    check_norm_types(dy, x);
    CHECK(dx.dtype == x.dtype, "dx %s, x %s", dtype_name(dx.dtype), dtype_name(x.dtype));
}
static inline void check_rope(Tensor x, const Rope *p, RowList rows) {
    CHECK(x.rank == 3 && x.n[0] == rows.n && p->at >= 0 && p->at + p->n <= x.n[2], "rows %d of %d, %d..%d of %d",
          x.n[0], rows.n, p->at, p->at + p->n, x.n[2]);
}
/* Of x, with y, or dx and dy. */
static inline void check_rmsnorm_rope(Tensor x, Tensor y, Tensor w, Tensor rstd, const Rope *p, RowList rows) {
    check_rope(x, p, rows);
    CHECK(x.n[2] <= HEAD_WIDEST && w.n[0] == x.n[2], "heads of %d, w %d", x.n[2], w.n[0]);
    CHECK(y.dtype == x.dtype && tensor_count(y) == tensor_count(x), "%s and %s", dtype_name(y.dtype),
          dtype_name(x.dtype));
    CHECK(tensor_count(rstd) == (size_t)x.n[0] * (size_t)x.n[1], "%zu rows", tensor_count(rstd));
}

/* ---- attention, running means, decisions ---- */
static inline void check_attend(const KvShape *s, AttnSpec spec, Tensor q, Tensor o) {
    CHECK(s->lanes > 0 && spec.heads % s->lanes == 0 && q.n[1] == spec.heads && q.n[2] == s->kdim && o.n[2] == s->vdim,
          "%d heads on %d lanes, q %d, o %d", spec.heads, s->lanes, q.n[2], o.n[2]);
}
static inline void check_colstat(Tensor stat, Tensor q, Tensor lse, const Lanes *t, const ColStat *c) {
    const KvShape *s = &t->s;
    CHECK(s->lanes > 0 && !s->evicts && !s->window, "%d lanes, window %d", s->lanes, s->window);
    CHECK(q.rank == 3 && q.n[1] % s->lanes == 0 && q.n[2] == s->kdim && stat.n[0] == s->lanes, "%d heads of %d on %d",
          q.n[1], q.n[2], s->lanes);
    CHECK(tensor_count(lse) == (size_t)q.n[0] * (size_t)q.n[1], "lse of %zu queries", tensor_count(lse));
    CHECK(c->from >= 0 && c->n >= 0 && c->n <= q.n[0] && c->seq >= 0 && c->seq < t->nseq && c->heads != COL_COUNT,
          "queries %d, %d of %d", c->from, c->n, q.n[0]);
    CHECK(!c->older || c->queries != COL_COUNT, "counts of queries %d, %d over older rows", c->from, c->n);
}
static inline void check_attend_backward(const Run *r, const KvShape *s, AttnSpec spec, Tensor q, Tensor o) {
    check_attend(s, spec, q, o);
    CHECK(r->out.n == r->batch->N, "%d of %d rows", r->out.n, r->batch->N);
    CHECK(!s->alias, "rows whose value is part of the key are attended to, not trained on");
}
static inline void check_merge(const Run *r, Tensor y, Tensor x) {
    CHECK(x.n[0] == r->batch->N && tensor_count(y) == tensor_count(x), "%d rows of %d", x.n[0], r->batch->N);
}
static inline void check_merge_backward(const Run *r, Tensor y, Tensor x) {
    check_merge(r, y, x);
    CHECK(!r->batch->history, "means are trained on whole documents");
}
static inline void check_decide(const Run *r, Tensor alpha, Tensor omega, Tensor bias, Tensor u, Tensor past,
                                Decide d) {
    int N = r->batch->N, G = alpha.n[1];
    CHECK(alpha.n[0] == N && u.n[0] == N && u.n[1] == (present(omega) ? 2 : 1) * G &&
              tensor_count(bias) == (size_t)N * (size_t)G,
          "%d rows, alpha (%d,%d), u (%d,%d)", N, alpha.n[0], G, u.n[0], u.n[1]);
    CHECK(!d.itself || (!present(omega) && (present(past) || !r->batch->history)),
          "decisions of rows about themselves");
}
static inline void check_decide_backward(const Run *r, Tensor du, Tensor dm, Tensor domega, Tensor alpha) {
    CHECK(alpha.n[0] == r->batch->N && tensor_count(du) == tensor_count(alpha) && present(dm) == present(domega),
          "%d rows of %d", alpha.n[0], r->batch->N);
}
static inline void check_mean_rows(Tensor y, Tensor w, int each, int at, int k) {
    int n = y.n[0], d = y.rank > 1 ? y.n[1] : 1;
    CHECK((w.rank > 1 ? w.n[1] : 1) == d && at >= 0 && k > 0 && ((long)n * k - 1) * each + at < w.n[0],
          "y (%d,%d), w (%d), rows %d k + %d of %d", n, d, w.n[0], each, at, k);
}
static inline void check_scale_column(Tensor x, int c) {
    CHECK(c >= 0 && c < check_last(x), "column %d of %d", c, check_last(x));
}

/* ---- recurrences and what stands around them ---- */
static inline bool check_recur(const Run *r, const Recur *x) {
    int N = r->batch->N, H = x->q.n[1], K = x->q.n[2], HV = x->v.n[1];
    CHECK(r->in.n == N && x->q.n[0] == N && x->v.n[0] == N && HV % H == 0 && x->k.n[1] == H && x->k.n[2] == K,
          "%d rows, q (%d,%d,%d), v (%d,%d,%d)", N, x->q.n[0], H, K, x->v.n[0], HV, x->v.n[2]);
    CHECK(!present(x->g) || (x->g.n[1] == HV && (x->g.n[2] == 1 || x->g.n[2] == K)), "g (%d,%d,%d)", x->g.n[0],
          x->g.n[1], x->g.n[2]);
    CHECK(!present(x->e) || (x->e.n[0] == N && x->e.n[1] == H && x->e.n[2] == K), "e (%d,%d,%d)", x->e.n[0], x->e.n[1],
          x->e.n[2]);
    return CHECK_ALIKE(x->q, x->k, x->v, x->e);
}
static inline bool check_short_conv(Tensor y, Tensor x, Tensor w, Tensor state) {
    CHECK(tensor_count(y) == tensor_count(x) && (!present(w) || w.n[0] == x.n[1]), "x (%d,%d)", x.n[0], x.n[1]);
    CHECK(x.dtype != BF16 || !present(state), "x is %s with a state", dtype_name(x.dtype));
    return CHECK_ALIKE(y, x);
}
static inline void check_decay(Tensor z, Tensor A, Tensor bias, Gate k) {
    CHECK(z.rank == 3 && (!present(A) || tensor_count(A) == (size_t)z.n[1]) &&
              (!present(bias) || tensor_count(bias) == (size_t)z.n[1] * (size_t)z.n[2]),
          "z (%d,%d,%d)", z.n[0], z.n[1], z.n[2]);
    CHECK(k.kind != GATE_LOGSIGMOID || !present(A), "this gate has no rate");
}
/* Groups of x. */
static inline size_t check_gated_norm(Tensor x, Tensor w, GatedNorm n) {
    size_t width = (size_t)n.width, M = tensor_count(x) / width, gains = tensor_count(w);
    CHECK(M * width == tensor_count(x), "groups of %d", n.width);
    CHECK(!present(w) || (gains % width == 0 && M % (gains / width) == 0), "%zu gains, %zu groups of %d", gains, M,
          n.width);
    return M;
}
/* Groups of widen and quotient: those of `is_bf16` have one element less than those of `wide`. */
static inline size_t check_widened(Tensor is_bf16, Tensor wide) {
    size_t V = (size_t)check_last(is_bf16), M = tensor_count(is_bf16) / V;
    CHECK(tensor_count(is_bf16) == M * V && tensor_count(wide) == M * (V + 1), "%zu groups of %zu", M, V);
    return M;
}
static inline void check_step(Tensor x, Tensor z, Tensor bias) {
    size_t N = (size_t)x.n[0], H = (size_t)x.n[1];
    CHECK(tensor_count(z) == N * H && tensor_count(bias) == H, "%zu rows, %zu heads", N, H);
}
static inline void check_skip(Tensor y, Tensor x, Tensor w) {
    CHECK(tensor_count(y) == tensor_count(x) && tensor_count(w) == (size_t)x.n[1], "%d heads", x.n[1]);
}

static inline void check_sink(Tensor o, Tensor lse, Tensor w) {
    CHECK(tensor_count(lse) == (size_t)o.n[0] * (size_t)o.n[1] && tensor_count(w) == (size_t)o.n[1], "%d heads",
          o.n[1]);
}
static inline void check_gate(Tensor y, Tensor x, Tensor z) {
    CHECK(tensor_count(y) == tensor_count(x) && tensor_count(z) == tensor_count(x), "%zu and %zu elements of %zu",
          tensor_count(y), tensor_count(z), tensor_count(x));
}

/* ---- rows and columns ---- */
static inline void check_piece(int i, Tensor y, size_t to, Tensor x, size_t from, size_t width) {
    CHECK(to + width <= tensor_count(y) && from + width <= tensor_count(x), "piece %d", i);
}
/* Rows of y to each row of x; *rows: those of y. */
static inline int check_columns(Tensor y, int to, Tensor x, int from, int n, int *rows) {
    int wide = check_last(y), each = (int)(tensor_count(x) / (size_t)check_last(x));
    *rows = (int)(tensor_count(y) / (size_t)wide);
    CHECK(to >= 0 && from >= 0 && n >= 0 && to + n <= wide && from + n <= check_last(x), "%d columns", n);
    CHECK(each == 0 ? *rows == 0 : *rows % each == 0, "%d rows of %d", *rows, each);
    return each ? *rows / each : 1;
}
static inline void check_swiglu_rows(Tensor y, Tensor s, Tensor ds) {
    size_t M = tensor_count(s);
    CHECK((size_t)y.n[0] == M && (!present(ds) || tensor_count(ds) == M), "%zu weights of %d rows", M, y.n[0]);
}

/* ---- losses, optimizers ---- */
static inline void check_align(const Run *r, Tensor err, Tensor dy, Tensor y, Tensor a) {
    int N = y.n[0], d = y.n[1];
    CHECK(N == r->batch->N && a.n[0] == N && a.n[1] == d && err.n[0] == N && (!present(dy) || dy.n[1] == d),
          "y (%d,%d), a (%d,%d), %d rows", N, d, a.n[0], a.n[1], r->batch->N);
}
static inline void check_adamw(const AdamwStep *s) {
    CHECK(s->rule != UPDATE_ADAMW || s->m.dtype == s->v.dtype, "%s and %s", dtype_name(s->m.dtype),
          dtype_name(s->v.dtype));
}
static inline void check_momentum(Tensor u, Tensor m, Tensor g) {
    CHECK_SAME_COUNT(m, u);
    CHECK_SAME_COUNT(g, u);
}
