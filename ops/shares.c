/* shares.c: see shares.h. The device's table of ops is replaced by one whose entries time those of the first. */
#include "shares.h"
#include "device.h"
#include "marks.h"

/* Op number i is entry i of the table. Entry 0 is the table's name: it stands for what is between ops. */
enum { BETWEEN = 0, MARKS_MOST = 8192 };
_Static_assert(offsetof(Ops, name) == 0, "the first entry is no op");
struct Shares {
    Ops table; /* first: Run.ops points here */
    const Ops *under;
    Device *dev;
    double inside; /* of the host's clock: seconds of ops called by the one that runs */
    Marks *marks;  /* of a device; NULL: by the host's clock */
    int running;   /* of a device: the op that asks */
    int *after;    /* of each mark: the op that asked from there on */
    int room;
    Share of[SHARES_MAX];
};

static void mark(Shares *s, int op) {
    int n = marks_count(s->marks);
    if (n == s->room) s->after = xrealloc(s->after, (size_t)(s->room = 2 * s->room + 256), sizeof *s->after);
    s->after[n] = s->running = op;
    marks_add(s->marks);
}
/* Times between marks go to the op that asked meanwhile. */
static void fold(Shares *s) {
    int n = s->marks ? marks_count(s->marks) : 0;
    if (!n) return;
    double *t = xcalloc((size_t)n, sizeof *t);
    marks_read(s->marks, t);
    for (int i = 0; i + 1 < n; i++) {
        Share *x = &s->of[s->after[i]];
        if (s->after[i] == BETWEEN) x->op = SHARES_BETWEEN, x->calls++;
        x->seconds += t[i];
    }
    free(t);
}

/* Of one call: when it began, and what ops around it had spent inside others. */
typedef struct {
    Shares *of;
    double start, inside;
    int outer;
} Call;
static Call call_begin(const Run *r, size_t at) {
    Shares *s = (Shares *)(uintptr_t)r->ops;
    Call c = {s, 0, s->inside, s->running};
    if (s->marks) {
        if (!measuring(r)) mark(s, (int)(at / sizeof(void *)));
        return c;
    }
    c.start = now_seconds();
    s->inside = 0;
    return c;
}
static void call_end(const Run *r, Call c, size_t at, const char *op, double flops) {
    Shares *s = c.of;
    double took = s->marks ? 0 : now_seconds() - c.start;
    Share *x = &s->of[at / sizeof(void *)];
    if (!measuring(r)) {
        x->op = op;
        x->calls++;
        x->seconds += took - (s->marks ? 0 : s->inside);
        x->flops += flops;
    }
    if (!s->marks)
        s->inside = c.inside + took;
    else if (!measuring(r)) {
        mark(s, c.outer);
        if (c.outer == BETWEEN && marks_count(s->marks) > MARKS_MOST) fold(s);
    }
}

/* ---- FLOPs of products ----------------------------------------------------------------------------------------- */
static double product(Tensor x, Tensor w) { return 2.0 * (double)tensor_rows(x, w.n[1]).n[0] * w.n[0] * w.n[1]; }
static double products(int n, const Projection *p, Tensor x) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += product(x, p[i].w);
    return sum;
}
static double products_back(Tensor dx, int n, const Projection *d, Tensor x, const Projection *p) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (present(dx) + present(d[i].w)) * product(x, p[i].w);
    return sum;
}
static double grouped(Tensor x, const Tensor *w) { return 2.0 * x.n[0] * w[0].n[0] * w[0].n[1]; }

/* ---- the table ------------------------------------------------------------------------------------------------- */
#define ARGS(...) __VA_ARGS__
/* op, its parameters behind Run, its arguments, its FLOPs */
#define OPS(X)                                                                                                         \
    X(linear, ARGS(Tensor y, Tensor x, Tensor w, Tensor b), ARGS(y, x, w, b), product(x, w))                           \
    X(linear_backward, ARGS(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w),                           \
      ARGS(dx, dw, db, dy, x, w), (present(dx) + present(dw)) * product(x, w))                                         \
    X(linear_many, ARGS(int n, const Projection *p, Tensor x), ARGS(n, p, x), products(n, p, x))                       \
    X(linear_many_backward, ARGS(Tensor dx, int n, const Projection *d, Tensor x, const Projection *p),                \
      ARGS(dx, n, d, x, p), products_back(dx, n, d, x, p))                                                             \
    X(linear_heads, ARGS(Tensor y, Tensor x, Tensor w, int row, int O, bool turned), ARGS(y, x, w, row, O, turned),    \
      2.0 * x.n[0] * x.n[1] * O * w.n[1])                                                                              \
    X(linear_steady, ARGS(Tensor y, Tensor x, Tensor w, Tensor b), ARGS(y, x, w, b), product(x, w))                    \
    X(linear_groups, ARGS(Tensor y, Tensor x, Groups g, const Tensor *w), ARGS(y, x, g, w), grouped(x, w))             \
    X(linear_groups_backward, ARGS(Tensor dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w),             \
      ARGS(dx, dw, dy, x, g, w), (present(dx) + (dw != NULL)) * grouped(x, w))                                         \
    X(linear_xent,                                                                                                     \
      ARGS(Tensor nll, int *hit, Tensor dx, Tensor dw, Tensor x, Tensor w, const int *tgt, const real *g),             \
      ARGS(nll, hit, dx, dw, x, w, tgt, g), (present(dx) ? 3 : 1) * product(x, w))                                     \
    X(linear_distill,                                                                                                  \
      ARGS(Tensor nll, Tensor kl, Tensor rkl, Tensor dx, Tensor dw, Tensor x, Tensor w, Tensor y, Tensor u,            \
           const int *tgt, const real *g, Distill d),                                                                  \
      ARGS(nll, kl, rkl, dx, dw, x, w, y, u, tgt, g, d), (present(dx) ? 3 : 1) * product(x, w) + product(y, u))        \
    X(embed, ARGS(Tensor y, Tensor table, const int *tok, double scale), ARGS(y, table, tok, scale), 0)                \
    X(embed_backward, ARGS(Tensor dtable, Tensor dy, const int *tok, double scale), ARGS(dtable, dy, tok, scale), 0)   \
    X(rmsnorm, ARGS(Tensor y, Tensor rstd, Tensor x, Tensor w, double eps), ARGS(y, rstd, x, w, eps), 0)               \
    X(add_rmsnorm, ARGS(Tensor y, Tensor rstd, Tensor x, Tensor z, Tensor w, double eps), ARGS(y, rstd, x, z, w, eps), \
      0)                                                                                                               \
    X(rmsnorm_backward, ARGS(Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd),                        \
      ARGS(dx, dw, dy, x, w, rstd), 0)                                                                                 \
    X(layernorm, ARGS(Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor b, double eps), ARGS(y, rstd, x, w, b, eps),   \
      0)                                                                                                               \
    X(layernorm_backward, ARGS(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor rstd),           \
      ARGS(dx, dw, db, dy, x, w, rstd), 0)                                                                             \
    X(rope, ARGS(Tensor x, const Rope *rope, Pick rows, int sign), ARGS(x, rope, rows, sign), 0)                       \
    X(rmsnorm_rope, ARGS(Tensor y, Tensor rstd, Tensor x, Tensor w, double eps, const Rope *rope, Pick rows),          \
      ARGS(y, rstd, x, w, eps, rope, rows), 0)                                                                         \
    X(rmsnorm_rope_backward,                                                                                           \
      ARGS(Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd, const Rope *rope, Pick rows),             \
      ARGS(dx, dw, dy, x, w, rstd, rope, rows), 0)                                                                     \
    X(attend, ARGS(Tensor o, Tensor lse, Tensor q, const Kv *kv, Look look, bool merge),                               \
      ARGS(o, lse, q, kv, look, merge), 0)                                                                             \
    X(attend_backward, ARGS(Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *kv, Look look, Tensor o, Tensor lse), \
      ARGS(dq, dkv, dout, q, kv, look, o, lse), 0)                                                                     \
    X(attend_lanes, ARGS(Tensor o, Tensor lse, Tensor q, const Lanes *l, const Kv *pass, Look look, bool merge),       \
      ARGS(o, lse, q, l, pass, look, merge), 0)                                                                        \
    X(merge, ARGS(Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at),                  \
      ARGS(y, z, x, a, w, window, past, at), 0)                                                                        \
    X(merge_backward,                                                                                                  \
      ARGS(Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a, Tensor w, int window),  \
      ARGS(dx, da, dw, dy, x, y, z, a, w, window), 0)                                                                  \
    X(decide, ARGS(Tensor alpha, Tensor omega, Tensor bias, Tensor gone, Tensor u, Decide d),                          \
      ARGS(alpha, omega, bias, gone, u, d), 0)                                                                         \
    X(decide_backward,                                                                                                 \
      ARGS(Tensor du, Tensor dm, Tensor dalpha, Tensor domega, Tensor dbias, Tensor alpha, Tensor omega, Decide d),    \
      ARGS(du, dm, dalpha, domega, dbias, alpha, omega, d), 0)                                                         \
    X(mean_rows, ARGS(Tensor y, Tensor w, int each, int at, int k), ARGS(y, w, each, at, k), 0)                        \
    X(scale_column, ARGS(Tensor x, int c, double m), ARGS(x, c, m), 0)                                                 \
    X(recur, ARGS(Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at),                                 \
      ARGS(o, keep, x, scale, state, at), 0)                                                                           \
    X(recur_backward, ARGS(const Recur *d, Tensor dout, Recur x, double scale, Tensor keep, const RecurEnds *ends),    \
      ARGS(d, dout, x, scale, keep, ends), 0)                                                                          \
    X(short_conv, ARGS(Tensor y, Tensor x, Tensor w, Tensor b, bool silu, Tensor state, int at),                       \
      ARGS(y, x, w, b, silu, state, at), 0)                                                                            \
    X(short_conv_backward, ARGS(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor b, bool silu),  \
      ARGS(dx, dw, db, dy, x, w, b, silu), 0)                                                                          \
    X(l2norm, ARGS(Tensor y, Tensor x, double eps), ARGS(y, x, eps), 0)                                                \
    X(l2norm_backward, ARGS(Tensor dx, Tensor dy, Tensor x, double eps), ARGS(dx, dy, x, eps), 0)                      \
    X(decay, ARGS(Tensor g, Tensor z, Tensor A, Tensor b, Gate gate), ARGS(g, z, A, b, gate), 0)                       \
    X(decay_backward, ARGS(Tensor dz, Tensor dA, Tensor db, Tensor dg, Tensor z, Tensor A, Tensor b, Gate gate),       \
      ARGS(dz, dA, db, dg, z, A, b, gate), 0)                                                                          \
    X(sigmoid, ARGS(Tensor y, Tensor x, double top), ARGS(y, x, top), 0)                                               \
    X(sigmoid_backward, ARGS(Tensor dx, Tensor dy, Tensor y, double top), ARGS(dx, dy, y, top), 0)                     \
    X(gated_norm, ARGS(Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n), ARGS(y, x, z, w, n), 0)                   \
    X(gated_norm_backward,                                                                                             \
      ARGS(Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w, GatedNorm n),                     \
      ARGS(dx, dz, dw, dy, x, z, w, n), 0)                                                                             \
    X(repeat, ARGS(Tensor y, const double *row), ARGS(y, row), 0)                                                      \
    X(elu1, ARGS(Tensor y, Tensor x), ARGS(y, x), 0)                                                                   \
    X(elu1_backward, ARGS(Tensor dx, Tensor dy, Tensor y), ARGS(dx, dy, y), 0)                                         \
    X(widen, ARGS(Tensor y, Tensor x), ARGS(y, x), 0)                                                                  \
    X(widen_backward, ARGS(Tensor dx, Tensor dy), ARGS(dx, dy), 0)                                                     \
    X(quotient, ARGS(Tensor y, Tensor x, double eps), ARGS(y, x, eps), 0)                                              \
    X(quotient_backward, ARGS(Tensor dx, Tensor dy, Tensor y, Tensor x, double eps), ARGS(dx, dy, y, x, eps), 0)       \
    X(step, ARGS(Tensor y, Tensor x, Tensor z, Tensor b), ARGS(y, x, z, b), 0)                                         \
    X(step_backward, ARGS(Tensor dx, Tensor dz, Tensor db, Tensor dy, Tensor x, Tensor z, Tensor b),                   \
      ARGS(dx, dz, db, dy, x, z, b), 0)                                                                                \
    X(skip, ARGS(Tensor y, Tensor x, Tensor w), ARGS(y, x, w), 0)                                                      \
    X(skip_backward, ARGS(Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w), ARGS(dx, dw, dy, x, w), 0)             \
    X(swiglu, ARGS(Tensor y, Tensor gate, Tensor up), ARGS(y, gate, up), 0)                                            \
    X(swiglu_backward, ARGS(Tensor y, Tensor dgate, Tensor dup, Tensor dy, Tensor gate, Tensor up),                    \
      ARGS(y, dgate, dup, dy, gate, up), 0)                                                                            \
    X(gelu, ARGS(Tensor y, Tensor x, bool tanh), ARGS(y, x, tanh), 0)                                                  \
    X(gelu_backward, ARGS(Tensor dx, Tensor dy, Tensor x, bool tanh), ARGS(dx, dy, x, tanh), 0)                        \
    X(add, ARGS(Tensor y, Tensor x), ARGS(y, x), 0)                                                                    \
    X(axpby, ARGS(Tensor y, double a, Tensor x, double b), ARGS(y, a, x, b), 0)                                        \
    X(copy, ARGS(Tensor y, Tensor x), ARGS(y, x), 0)                                                                   \
    X(spread, ARGS(Tensor y, Tensor x, const int *row), ARGS(y, x, row), 0)                                            \
    X(move, ARGS(Tensor y, const size_t *to, Tensor x, const size_t *from, int n, int w), ARGS(y, to, x, from, n, w),  \
      0)                                                                                                               \
    X(collect, ARGS(Tensor y, Tensor x, const int *place, int k), ARGS(y, x, place, k), 0)                             \
    X(swiglu_rows, ARGS(Tensor y, Tensor gate, Tensor up, Tensor s), ARGS(y, gate, up, s), 0)                          \
    X(swiglu_rows_backward, ARGS(Tensor dgate, Tensor dup, Tensor ds, Tensor dy, Tensor gate, Tensor up, Tensor s),    \
      ARGS(dgate, dup, ds, dy, gate, up, s), 0)                                                                        \
    X(narrow, ARGS(Tensor x), ARGS(x), 0)                                                                              \
    X(zero, ARGS(Tensor y), ARGS(y), 0)                                                                                \
    X(gather, ARGS(Tensor y, Tensor x, Pick from, Pick to), ARGS(y, x, from, to), 0)                                   \
    X(columns, ARGS(Tensor y, int to, Tensor x, int from, int n), ARGS(y, to, x, from, n), 0)                          \
    X(columns_backward, ARGS(Tensor dx, int from, Tensor dy, int to, int n), ARGS(dx, from, dy, to, n), 0)             \
    X(dropout, ARGS(Tensor x, DropSite site, double p), ARGS(x, site, p), 0)                                           \
    X(align, ARGS(Tensor err, Tensor dy, Tensor y, Tensor a, const int *tgt, const real *g, double c),                 \
      ARGS(err, dy, y, a, tgt, g, c), 0)                                                                               \
    X(normalise, ARGS(Tensor x, double eps), ARGS(x, eps), 0)                                                          \
    X(adamw, ARGS(int n, const AdamwStep *s), ARGS(n, s), 0)                                                           \
    X(sumsqs_there, ARGS(double *sum, bool more, int n, const Tensor *x), ARGS(sum, more, n, x), 0)                    \
    X(momentum, ARGS(Tensor u, Tensor m, Tensor g, double mu, double gscale, bool nesterov, Rounding rounding),        \
      ARGS(u, m, g, mu, gscale, nesterov, rounding), 0)

#define TIMED(op, params, args, flops)                    \
    static void op##_timed(Run *r, params) {              \
        Call call = call_begin(r, offsetof(Ops, op));     \
        call.of->under->op(r, args);                      \
        call_end(r, call, offsetof(Ops, op), #op, flops); \
    }
OPS(TIMED)

static double sumsq_timed(Run *r, Tensor x) {
    Call call = call_begin(r, offsetof(Ops, sumsq));
    double sum = call.of->under->sumsq(r, x);
    call_end(r, call, offsetof(Ops, sumsq), "sumsq", 0);
    return sum;
}
static double sumsqs_timed(Run *r, double start, int n, const Tensor *x) {
    Call call = call_begin(r, offsetof(Ops, sumsqs));
    double sum = call.of->under->sumsqs(r, start, n, x);
    call_end(r, call, offsetof(Ops, sumsqs), "sumsqs", 0);
    return sum;
}

#define ENTRY(op, ...) .op = op##_timed,
static const Ops timed = {OPS(ENTRY).sumsq = sumsq_timed, .sumsqs = sumsqs_timed};

Shares *shares_begin(Device *d) {
    Shares *s = xcalloc(1, sizeof *s);
    s->table = timed;
    s->table.name = d->ops->name;
    s->under = d->ops;
    s->dev = d;
    s->marks = marks_open(d);
    d->ops = &s->table;
    return s;
}
void shares_clear(Shares *s) {
    fold(s);
    memset(s->of, 0, sizeof s->of);
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const Share *)a)->seconds, y = ((const Share *)b)->seconds;
    return (x < y) - (x > y);
}
int shares_read(Shares *s, Share *out) {
    int n = 0;
    fold(s);
    for (int i = 0; i < SHARES_MAX; i++)
        if (s->of[i].calls) out[n++] = s->of[i];
    qsort(out, (size_t)n, sizeof *out, by_seconds);
    return n;
}
void shares_end(Shares *s) {
    CHECK(s->dev->ops == &s->table, "the ops of a device were replaced while they were timed");
    s->dev->ops = s->under;
    marks_close(s->marks);
    free(s->after);
    free(s);
}
