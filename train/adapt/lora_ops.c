/* lora_ops.c: two tables of ops around the device's: one adds to adapters' gradients, one reads adapted matrices. */
#include "lora_ops.h"
#include "ops/host.h"

/* The table calls the one around which it is, with r->ops as it was: ops call others, and a profile looks there. */
static Lora *lora_enter(Run *r) {
    LoraOps *o = (LoraOps *)(uintptr_t)r->ops;
    r->ops = o->under;
    return o->lora;
}
static void lora_leave(const Lora *l, Run *r) { r->ops = &l->ops.table; }

/* The part whose dW, or whose matrix as it is stored, holds the memory; NULL: another tensor. */
static LoraPart *lora_part_of(const Lora *l, const void *p, bool base) {
    for (int i = l->ops.from; i < l->ops.to; i++) {
        const Tensor t = base ? l->part[i].base : l->part[i].dw;
        if ((const char *)p >= (const char *)t.p && (const char *)p < (const char *)t.p + tensor_bytes(t))
            return &l->part[i];
    }
    return NULL;
}

static void lora_scale(const Lora *l, Run *r, Tensor t) { r->ops->axpby(r, t, 0, t, l->scale); }
Tensor lora_scaled(const Lora *l, Run *r, const LoraPart *p) {
    Tensor b = SCRATCH(r, "scaled B", p->b[0].n[0], p->b[0].n[1]);
    r->ops->copy(r, b, p->b[0]);
    lora_scale(l, r, b);
    return b;
}
void lora_sum(const Lora *l, Run *r, const LoraPart *p) {
    Mark mark = arena_mark(r->scratch);
    Tensor b = lora_scaled(l, r, p);
    r->ops->copy(r, p->sum, p->base);
    r->ops->linear_backward(r, add_to(p->sum), ABSENT, ABSENT, b, p->base, p->a[0]); /* += s B A */
    arena_release(r->scratch, mark);
}

/* ==== backward ==================================================================================================== */

/* An op is about to write the tensor, or read it. */
static void lora_form(const Lora *l, Run *r, Tensor t) {
    LoraPart *p = present(t) && !measuring(r) ? lora_part_of(l, t.p, false) : NULL;
    if (!p || p->formed) return;
    r->ops->zero(r, p->dw);
    p->formed = true;
}

/* ---- any op ------------------------------------------------------------------------------------------------------ */

static void lora_see_tensor(const Lora *l, Run *r, Tensor t) { lora_form(l, r, t); }
static void lora_see_into(const Lora *l, Run *r, Into x) { lora_form(l, r, x.t); }
static void lora_see_nothing(const Lora *l, Run *r, ...) { (void)l, (void)r; }
#define SEE(type, name, ...) \
    _Generic((name), Tensor : lora_see_tensor, Into : lora_see_into, default : lora_see_nothing)(lora_, r, name);
#define KEEP_void
#define KEEP_double double result =
#define GIVE_void
#define GIVE_double return result;
#define DEF(type, op, flops, ...)                                         \
    static type op##_seen(Run *r OP_EACH(OP_PARAM, __VA_ARGS__)) {        \
        const Lora *lora_ = lora_enter(r);                                \
        OP_EACH(SEE, __VA_ARGS__)                                         \
        KEEP_##type lora_->ops.under->op(r OP_EACH(OP_ARG, __VA_ARGS__)); \
        lora_leave(lora_, r);                                             \
        GIVE_##type                                                       \
    }
#include "ops/ops.def"
static const Ops seen = {
#define DEF(type, op, ...) .op = op##_seen,
#include "ops/ops.def"
};

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Adapters and their gradients that belong to the rows of a matrix whose gradient is dw. */
typedef struct {
    Tensor a, b, da, db;
} LowRank;
static LowRank lora_low_rank(const Lora *l, const Run *r, Tensor dw) {
    const int rank = l->part[0].a[0].n[0], O = dw.n[0], I = dw.n[1];
    Tensor a = TENSOR(NULL, REAL, rank, I), b = TENSOR(NULL, REAL, O, rank);
    if (measuring(r)) return (LowRank){a, b, a, b};
    const LoraPart *p = lora_part_of(l, dw.p, false);
    CHECK(p && p->dw.n[1] == I, "a gradient (%d,%d) of no adapted matrix", O, I);
    const int row = (int)((size_t)(R(dw) - R(p->dw)) / (size_t)I);
    return (LowRank){p->a[PARAM_WEIGHT], tensor_part(p->b[PARAM_WEIGHT], row, O), p->a[PARAM_GRAD],
                     tensor_part(p->b[PARAM_GRAD], row, O)};
}

/* d[j].w += d[j].y^T x, of which d[j].w is the gradient of an adapted matrix. */
static void lora_add_low_rank(const Lora *l, Run *r, int n, const Projection *d, Tensor x) {
    LowRank of[LINEAR_MANY];
    Projection down[LINEAR_MANY], back[LINEAR_MANY], a[LINEAR_MANY];
    if (!n) return;
    Mark mark = arena_mark(r->scratch);
    for (int j = 0; j < n; j++) {
        of[j] = lora_low_rank(l, r, d[j].w);
        const int rank = of[j].a.n[0], N = tensor_rows(x, of[j].a.n[1]).n[0];
        down[j] = (Projection){.y = SCRATCH(r, "x A^T", N, rank), .w = of[j].a};
        back[j] = (Projection){.y = SCRATCH_OF(r, "dy B", REAL, N, rank), .w = of[j].da};
        a[j] = (Projection){.w = of[j].a};
    }
    r->ops->linear_many(r, n, down, x);
    for (int j = 0; j < n; j++) {
        lora_scale(l, r, down[j].y);
        r->ops->linear_backward(r, overwrite(back[j].y), of[j].db, ABSENT, d[j].y, down[j].y, of[j].b);
        lora_scale(l, r, back[j].y);
    }
    r->ops->linear_many_backward(r, NOWHERE, n, back, x, a);
    arena_release(r->scratch, mark);
}
static void linear_many_backward_low(Run *r, Into dx, int n, const Projection *d, Tensor x, const Projection *p) {
    const Lora *l = lora_enter(r);
    Projection rest[LINEAR_MANY], low[LINEAR_MANY];
    int nlow = 0;
    bool biases = false;
    CHECK(n <= LINEAR_MANY, "%d matrices", n);
    for (int j = 0; j < n; j++) {
        rest[j] = d[j], rest[j].w = ABSENT;
        biases |= present(d[j].bias);
        if (present(d[j].w)) low[nlow++] = d[j];
    }
    if (present(dx.t) || biases) r->ops->linear_many_backward(r, dx, n, rest, x, p);
    lora_add_low_rank(l, r, nlow, low, x);
    lora_leave(l, r);
}
static void linear_backward_low(Run *r, Into dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w) {
    const Lora *l = lora_enter(r);
    if (present(dx.t) || present(dbias)) r->ops->linear_backward(r, dx, ABSENT, dbias, dy, x, w);
    lora_add_low_rank(l, r, present(dw), &(Projection){dy, dw, ABSENT}, x);
    lora_leave(l, r);
}
/* Room for four tensors of each expert, which measured passes have made already. */
static Tensor *lora_experts_room(Lora *l, int n) {
    LoraOps *o = &l->ops;
    if (4 * n > o->most) o->room = xrealloc(o->room, (size_t)(o->most = 4 * n), sizeof *o->room);
    return o->room;
}
/* Experts, if all of them are adapted; where some are, their dW are formed. Their biases, which come as matrices of one
 * column, never are. While measuring nobody knows which they are. */
static void linear_groups_backward_low(Run *r, Into dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w) {
    Lora *l = lora_enter(r);
    bool all = dw;
    for (int e = 0; dw && e < g.n; e++)
        all = all && present(dw[e]) && (measuring(r) || lora_part_of(l, dw[e].p, false));
    for (int e = 0; dw && !all && e < g.n; e++) lora_form(l, r, dw[e]);
    r->ops->linear_groups_backward(r, dx, all && !measuring(r) ? NULL : dw, dy, x, g, w);
    if (all) {
        Mark mark = arena_mark(r->scratch);
        Tensor *a = lora_experts_room(l, g.n), *b = a + g.n, *da = b + g.n, *db = da + g.n;
        const int rank = l->part[0].a[0].n[0], M = dy.n[0];
        for (int e = 0; e < g.n; e++) {
            LowRank one = lora_low_rank(l, r, dw[e]);
            a[e] = one.a, b[e] = one.b, da[e] = one.da, db[e] = one.db;
        }
        Tensor down = SCRATCH(r, "x A^T", M, rank), back = SCRATCH(r, "dy B", M, rank);
        r->ops->linear_groups(r, down, x, g, a);
        lora_scale(l, r, down);
        r->ops->linear_groups_backward(r, overwrite(back), db, dy, down, g, b);
        lora_scale(l, r, back);
        r->ops->linear_groups_backward(r, NOWHERE, da, back, x, g, a);
        arena_release(r->scratch, mark);
    }
    lora_leave(l, r);
}

/* ==== reading ===================================================================================================== */

/* Make the sum of a part that is not there yet. */
static void lora_read_sum(const Lora *l, Run *r, LoraPart *p) {
    if (p->formed) return;
    lora_sum(l, r, p);
    p->formed = !measuring(r);
}
/* A tensor as an op is to read it: the sum in place of what is stored. While measuring nobody knows which it is. */
static Tensor lora_read_as(const Lora *l, Run *r, Tensor t) {
    if (!present(t)) return t;
    for (int i = l->ops.from; measuring(r) && i < l->ops.to; i++) lora_read_sum(l, r, &l->part[i]);
    LoraPart *p = measuring(r) ? NULL : lora_part_of(l, t.p, true);
    if (!p) return t;
    lora_read_sum(l, r, p);
    t.p = R(p->sum) + ((const char *)t.p - (const char *)p->base.p) / (ptrdiff_t)dtype_size(t.dtype);
    t.dtype = REAL, t.has_shadow = false;
    return t;
}
static void lora_read_tensor(const Lora *l, Run *r, Tensor *t) { *t = lora_read_as(l, r, *t); }
static void lora_read_nothing(const Lora *l, Run *r, ...) { (void)l, (void)r; }
#define READ(type, name, ...) _Generic((name), Tensor : lora_read_tensor, default : lora_read_nothing)(lora_, r, &name);
#define DEF(type, op, flops, ...)                                         \
    static type op##_read(Run *r OP_EACH(OP_PARAM, __VA_ARGS__)) {        \
        const Lora *lora_ = lora_enter(r);                                \
        OP_EACH(READ, __VA_ARGS__)                                        \
        KEEP_##type lora_->ops.under->op(r OP_EACH(OP_ARG, __VA_ARGS__)); \
        lora_leave(lora_, r);                                             \
        GIVE_##type                                                       \
    }
#include "ops/ops.def"
static const Ops reads = {
#define DEF(type, op, ...) .op = op##_read,
#include "ops/ops.def"
};

/* Adapters of rows of a matrix as it is stored; false: it has none. */
static bool lora_read_low(const Lora *l, const Run *r, Tensor w, LowRank *to) {
    const int rank = l->part[0].a[0].n[0], O = w.n[0], I = w.n[1];
    *to = (LowRank){.a = TENSOR(NULL, REAL, rank, I), .b = TENSOR(NULL, REAL, O, rank)};
    if (measuring(r)) return true;
    const LoraPart *p = lora_part_of(l, w.p, true);
    if (!p || p->base.n[1] != I) return false;
    const size_t at = (size_t)((const char *)w.p - (const char *)p->base.p) / dtype_size(w.dtype);
    to->a = p->a[PARAM_WEIGHT];
    to->b = tensor_part(p->b[PARAM_WEIGHT], (int)(at / (size_t)I), O);
    return true;
}
static void linear_many_low(Run *r, int n, const Projection *p, Tensor x) {
    const Lora *l = lora_enter(r);
    LowRank of[LINEAR_MANY];
    Projection stored[LINEAR_MANY], down[LINEAR_MANY];
    Tensor y[LINEAR_MANY];
    int k = 0;
    CHECK(n <= LINEAR_MANY, "%d matrices", n);
    Mark mark = arena_mark(r->scratch);
    for (int j = 0; j < n; j++) {
        stored[j] = p[j];
        if (!lora_read_low(l, r, p[j].w, &of[k])) {
            stored[j].w = lora_read_as(l, r, p[j].w);
            continue;
        }
        if (measuring(r)) lora_read_as(l, r, p[j].w);
        down[k] = (Projection){.w = of[k].a};
        down[k].y = SCRATCH(r, "x A^T", tensor_rows(x, p[j].w.n[1]).n[0], of[k].a.n[0]);
        y[k++] = tensor_rows(p[j].y, p[j].w.n[0]);
    }
    r->ops->linear_many(r, n, stored, x);
    if (k) r->ops->linear_many(r, k, down, x);
    for (int j = 0; j < k; j++) {
        Mark inner = arena_mark(r->scratch);
        Tensor up = SCRATCH(r, "x A^T B^T", y[j].n[0], y[j].n[1]);
        lora_scale(l, r, down[j].y);
        r->ops->linear(r, up, down[j].y, of[j].b, ABSENT);
        r->ops->add(r, y[j], up);
        arena_release(r->scratch, inner);
    }
    arena_release(r->scratch, mark);
    lora_leave(l, r);
}
static void linear_low(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    linear_many_low(r, 1, &(Projection){y, w, bias}, x);
}
static void linear_groups_low(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    Lora *l = lora_enter(r);
    Mark mark = arena_mark(r->scratch);
    Tensor *a = lora_experts_room(l, g.n), *b = a + g.n;
    bool all = true;
    for (int e = 0; all && e < g.n; e++) {
        LowRank one;
        all = lora_read_low(l, r, w[e], &one);
        a[e] = one.a, b[e] = one.b;
    }
    if (all) {
        const int rank = l->part[0].a[0].n[0], M = tensor_rows(x, w->n[1]).n[0];
        Tensor down = SCRATCH(r, "x A^T", M, rank), up = SCRATCH(r, "x A^T B^T", M, w->n[0]);
        r->ops->linear_groups(r, y, x, g, w);
        r->ops->linear_groups(r, down, x, g, a);
        lora_scale(l, r, down);
        r->ops->linear_groups(r, up, down, g, b);
        r->ops->add(r, y, up);
    }
    if (!all || measuring(r)) {
        for (int e = 0; e < g.n; e++) a[e] = lora_read_as(l, r, w[e]);
        r->ops->linear_groups(r, y, x, g, a);
    }
    arena_release(r->scratch, mark);
    lora_leave(l, r);
}

/* ==== tables ====================================================================================================== */

static void lora_ops_use(Lora *l, Run *r, const Ops *table, int from, int to) {
    CHECK(r->ops != &l->ops.table, "a layer's pass in another's");
    l->ops = (LoraOps){*table, r->ops, l, from, to, l->ops.room, l->ops.most};
    l->ops.table.name = r->ops->name;
    for (int i = from; i < to; i++) l->part[i].formed = false;
    r->ops = &l->ops.table;
}
void lora_ops_begin(Lora *l, Run *r, int from, int to) {
    lora_ops_use(l, r, &seen, from, to);
    l->ops.table.linear_backward = linear_backward_low;
    l->ops.table.linear_many_backward = linear_many_backward_low;
    l->ops.table.linear_groups_backward = linear_groups_backward_low;
}
void lora_ops_read(Lora *l, Run *r, int from, int to) {
    lora_ops_use(l, r, &reads, from, to);
    l->ops.table.linear = linear_low;
    l->ops.table.linear_many = linear_many_low;
    l->ops.table.linear_groups = linear_groups_low;
}
void lora_ops_end(Lora *l, Run *r) {
    CHECK(r->ops == &l->ops.table, "another table of ops at a layer's end");
    r->ops = l->ops.under;
}
