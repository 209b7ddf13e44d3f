/* levels.c: see levels.h. */
#include "levels.h"
#include "layers/parts.h"
#include "ops/host.h"

bool levels_check(int n, double size, Err *e) {
    const double most = 1 << 30;
    return levels_states(n) * size <= most ||
           err_input(e, "levels: %d states of %.0f values are more than %.0f in all; use fewer levels or smaller heads",
                     levels_states(n), size, most);
}

/* The pass as F_l's recurrence sees it: a document begins where a block of 2^l tokens does. Its list lies in r->host,
 * which the caller gives back. */
static Run *levels_run(Run *r, const Levels *c, int l, Stepped *p) {
    const Batch *b = r->batch;
    if (l == c->n - 1) return r;
    int *first = arena_take(r->host, (size_t)b->N * sizeof(int), "blocks of a level");
    p->run = *r;
    p->batch = *b;
    p->batch.first = first, p->batch.history = false;
    p->run.batch = &p->batch;
    const long rows = (long)steps_each(c->steps) << l;
    for (int i = 0; !measuring(r) && i < b->N; i++) {
        const long begin = i - b->pos[i] % rows;
        first[i] = begin >= b->off[b->of[i]] ? (int)begin : -1;
        p->batch.history |= first[i] < 0;
    }
    return &p->run;
}
/* F_l of tokens, to `o`; `as` is the pass in rows of steps. keep: as of Ops.recur. */
static void levels_read(Run *r, Run *as, const Levels *c, int l, Recur x, Tensor keep, Tensor state, int at, Tensor o) {
    RunMark mark = run_mark(r);
    Stepped blocks;
    Run *one = levels_run(as, c, l, &blocks);
    const int HV = x.v.n[1], V = x.v.n[2], size = HV * x.q.n[2] * V;
    Tensor rows = as == r ? o : SCRATCH(r, "o of steps", x.v.n[0], HV, V);
    if (l == 0 && c->n > 1) state = ABSENT;
    r->ops->recur(one, rows, keep, x, c->scale, state, at + imax(0, l - 1) * size);
    if (as != r) steps_reads(r, c->steps, rows, o, HV / c->steps.kv_heads * V, true);
    run_release(r, mark);
}
/* L delta (N,HV n), of which lambda is the softplus. */
static Tensor levels_logits(Run *r, Tensor delta, Tensor L) {
    const int n = delta.n[1];
    Tensor z = scratch_like(r, "logits of levels", delta);
    r->ops->zero(r, z);
    r->ops->skip(r, shaped(z, n, 1), shaped(delta, n, 1), TENSOR(L.p, L.dtype, n));
    return z;
}
/* Copy between column l of z (N,HV n) and one (N,HV). */
static void levels_column(Run *r, const Levels *c, Tensor z, int l, Tensor one, bool out) {
    Tensor all = tensor_rows(z, c->n), column = tensor_rows(one, 1);
    if (out)
        r->ops->columns(r, column, 0, all, l, 1);
    else
        r->ops->columns(r, all, l, column, 0, 1);
}
/* x in f32: sums and differences of levels are made before anything is rounded to bf16. */
static Recur levels_real(Run *r, Recur x) {
    x.q = tensor_as(r, "q of levels", x.q, REAL), x.k = tensor_as(r, "k of levels", x.k, REAL);
    x.v = tensor_as(r, "v of levels", x.v, REAL);
    if (present(x.e)) x.e = tensor_as(r, "e of levels", x.e, REAL);
    return x;
}
/* What both passes need of every level, (N,HV,V) in f32, and (N,HV). */
typedef struct {
    Tensor read, before; /* F_l; F_(l-1), which becomes their difference */
    Tensor part;         /* lambda times that, or its gradient */
    Tensor logit, logits, bias;
} LevelsRoom;
static LevelsRoom levels_room(Run *r, Tensor o, Tensor delta, Tensor L) {
    const int N = o.n[0], HV = o.n[1], V = o.n[2];
    LevelsRoom m = {.read = SCRATCH(r, "read of levels", N, HV, V),
                    .before = SCRATCH(r, "read of levels before", N, HV, V),
                    .part = SCRATCH(r, "part of a level", N, HV, V),
                    .logit = SCRATCH(r, "logits of a level", N, HV),
                    .bias = SCRATCH(r, "no bias", HV)};
    r->ops->zero(r, m.bias);
    m.logits = levels_logits(r, delta, L);
    return m;
}
/* Compute F_l, to m->before, and return F_l - F_(l-1). */
static Tensor levels_difference(Run *r, Run *as, const Levels *c, int l, Recur x, Tensor keep, Tensor state, int at,
                                LevelsRoom *m) {
    Tensor f = m->read, difference = m->before;
    levels_read(r, as, c, l, x, keep, state, at, f);
    if (l == 0)
        r->ops->copy(r, difference, f);
    else
        r->ops->axpby(r, difference, 1, f, -1);
    m->before = f, m->read = difference;
    return difference;
}

void levels_forward(Run *r, const Levels *c, Recur x, Tensor delta, Tensor L, Tensor state, int at, Tensor o) {
    RunMark mark = run_mark(r);
    Stepped steps;
    Run *as = steps_run(r, c->steps, &steps);
    x = levels_real(r, x);
    LevelsRoom m = levels_room(r, o, delta, L);
    Tensor sum = o.dtype == REAL ? o : SCRATCH(r, "sum of levels", o.n[0], o.n[1], o.n[2]);
    for (int l = 0; l < c->n; l++) {
        Tensor d = levels_difference(r, as, c, l, x, ABSENT, state, at, &m);
        levels_column(r, c, m.logits, l, m.logit, true);
        r->ops->step(r, l ? m.part : sum, d, m.logit, m.bias);
        if (l) r->ops->add(r, sum, m.part);
    }
    if (o.dtype != REAL) r->ops->copy(r, o, sum);
    run_release(r, mark);
}

static Recur levels_grads(Run *r, const Recur *d) {
    Recur g = *d;
    Tensor *of[] = {&g.q, &g.k, &g.v, &g.e};
    for (int i = 0; i < 4; i++)
        if (present(*of[i]) && of[i]->dtype != REAL)
            *of[i] = scratch_tensor(r, "gradients of levels", REAL, of[i]->rank, of[i]->n);
    return g;
}
static void levels_grads_done(Run *r, const Recur *d, const Recur *g) {
    const Tensor *to[] = {&d->q, &d->k, &d->v, &d->e}, *from[] = {&g->q, &g->k, &g->v, &g->e};
    for (int i = 0; i < 4; i++)
        if (to[i]->p != from[i]->p) r->ops->copy(r, *to[i], *from[i]);
}
/* With t_l = lambda_l dout: dF_l = t_l - t_(l+1), and step's backward gives t_l with the gradient of the logits. */
void levels_backward(Run *r, const Levels *c, const Recur *d, Tensor ddelta, Tensor dL, Tensor dout, Recur x,
                     Tensor delta, Tensor L) {
    RunMark mark = run_mark(r);
    Stepped steps, blocks;
    const Ops *op = r->ops;
    Run *as = steps_run(r, c->steps, &steps);
    x = levels_real(r, x);
    LevelsRoom m = levels_room(r, dout, delta, L);
    const int HV = x.v.n[1], V = x.v.n[2], n = delta.n[1];
    Recur g = levels_grads(r, d);
    Tensor dy = tensor_as(r, "d sum of levels", dout, REAL), later = scratch_like(r, "part of a later level", m.part),
           dz = scratch_like(r, "d logits of levels", delta), done = scratch_like(r, "d logits of a level", m.logit),
           dbias = zeros_like(r, "d no bias", m.bias),
           keep = SCRATCH(r, "states", recur_keep(x.v.n[0]), HV, x.q.n[2], V);
    for (int l = 0; l < c->n; l++) {
        RunMark level = run_mark(r);
        Tensor difference = levels_difference(r, as, c, l, x, keep, ABSENT, 0, &m);
        levels_column(r, c, m.logits, l, m.logit, true);
        op->step_backward(r, overwrite(m.part), overwrite(done), dbias, dy, difference, m.logit, m.bias);
        levels_column(r, c, dz, l, done, false);
        if (l < c->n - 1) {
            levels_column(r, c, m.logits, l + 1, m.logit, true);
            op->step(r, later, dy, m.logit, m.bias);
            op->axpby(r, m.part, -1, later, 1);
        }
        const RecurInto into = l ? recur_add_to(g) : recur_overwrite(g);
        op->recur_backward(levels_run(as, c, l, &blocks), &into, steps_read_by(r, c->steps, m.part, HV, V), x, c->scale,
                           keep, NULL);
        run_release(r, level);
    }
    levels_grads_done(r, d, &g);
    op->skip_backward(r, overwrite(shaped(ddelta, n, 1)), TENSOR(dL.p, dL.dtype, n), shaped(dz, n, 1),
                      shaped(delta, n, 1), TENSOR(L.p, L.dtype, n));
    run_release(r, mark);
}

double levels_flops(const Levels *c, double state, double pair, double context) {
    const int rows = steps_each(c->steps);
    double sum = 0;
    for (int l = 0; l < c->n; l++) {
        const double reach = l == c->n - 1 ? context : ldexp(1, l);
        sum += rows * (state + rows * fmin(reach, RECUR_CHUNK / rows) * pair);
    }
    return sum;
}
