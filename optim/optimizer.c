/* optimizer.c: who keeps what of which parameter, and a step of all. */
#include "optimizer.h"
#include "ops/shadow.h"

const Optimizer *optimizer_of(const OptimCfg *c) { return optimizers[c->kind]; }

typedef struct {
    Param *p;
    const Tensor *s; /* (STATES_MAX), as the optimizer was given them */
} Declaring;
static void optimizer_see_state(Fields *f, Tensor *t, const char *name, unsigned flags) {
    const Declaring *d = f->ctx;
    const ptrdiff_t k = t - d->s;
    (void)flags;
    CHECK(k >= 0 && k < STATES_MAX && !present(d->p->state[k].t), "%s of %s", name, d->p->name);
    CHECK(strlen(name) < sizeof d->p->state[k].name, "%s", name);
    strcpy(d->p->state[k].name, name);
    d->p->state[k].t = *t;
}
void optimizer_declare(Params *s, const OptimCfg *c) {
    const Optimizer *o = optimizer_of(c);
    for (int i = 0; i < s->n; i++) {
        Param *p = &s->p[i];
        const Tensor w = p->t[PARAM_WEIGHT];
        Tensor t[STATES_MAX] = {{0}};
        Declaring d = {p, t};
        memset(p->state, 0, sizeof p->state);
        p->by = NULL;
        if (p->frozen) continue;
        const bool takes = !(p->flags & FIELD_BALANCE) && (!o->takes || o->takes(w, p->flags));
        p->by = takes ? o : &adamw_optimizer;
        /* The states of a FIELD_F32 weight are f32, too. */
        Fields f = {.see = optimizer_see_state,
                    .ctx = &d,
                    .acts_bf16 = c->state_dtype == STATE_BF16 && !(p->flags & FIELD_F32)};
        p->by->state(&f, t, w);
    }
}

static void step_by(const Optimizer *o, Run *r, const Params *s, const OptimizerCfg *c, double lr, double gscale,
                    int64_t t) {
    ParamStep some[APPLY_MAX];
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        const Param *p = &s->p[i];
        if (p->by != o) continue;
        some[n++] = (ParamStep){p, lr * p->lr_scale, gscale, p->since ? t + c->skipped - p->since : t};
        if (n == APPLY_MAX) o->apply(r, c, n, some), n = 0;
    }
    if (n) o->apply(r, c, n, some);
}
void optimizer_step(Run *r, const Params *s, const OptimizerCfg *c, double lr, double gscale, int64_t t) {
    const Optimizer *o = optimizer_of(c->set);
    CHECK(t >= 1 && !(o->scale_by_host && c->square), "step %lld by %s", (long long)t, o->name);
    step_by(o, r, s, c, lr, gscale, t);
    if (o != &adamw_optimizer) step_by(&adamw_optimizer, r, s, c, lr, gscale, t);
    if (!measuring(r)) shadow_refresh(r->dev); /* a step leaves no copy of a weight stale, captured or not */
}

/* ---- two forms of the weights -------------------------------------------------------------------------------------
 */

void optimizer_begin(Run *r, const Params *s) {
    for (int i = 0; i < s->n; i++) {
        const Param *p = &s->p[i];
        for (int k = 0; p->by && k < STATES_MAX; k++)
            if (p->by->begins >> k & 1) r->ops->copy(r, p->state[k].t, p->t[PARAM_WEIGHT]);
    }
}

/* Values from..from+n-1 of t, which lies anywhere while measuring. */
static Tensor optimizer_part_of(Tensor t, size_t from, size_t n) {
    return TENSOR(t.p ? (char *)t.p + from * dtype_size(t.dtype) : NULL, t.dtype, (int)n);
}
void optimizer_exchange(Run *r, const Params *s) {
    enum { PIECE = 1 << 18 };
    for (int i = 0; i < s->n; i++) {
        const Param *p = &s->p[i];
        if (!p->by || !p->by->other) continue;
        const Tensor w = p->t[PARAM_WEIGHT], x = p->state[p->by->other - 1].t;
        const size_t all = tensor_count(w), most = zmin(PIECE, all);
        Mark mark = arena_mark(r->scratch);
        Tensor aside = SCRATCH(r, "exchange of weights", (int)most);
        for (size_t at = 0; at < all; at += most) {
            const size_t n = zmin(most, all - at);
            r->ops->copy(r, optimizer_part_of(aside, 0, n), optimizer_part_of(w, at, n));
            r->ops->copy(r, optimizer_part_of(w, at, n), optimizer_part_of(x, at, n));
            r->ops->copy(r, optimizer_part_of(x, at, n), optimizer_part_of(aside, 0, n));
        }
        arena_release(r->scratch, mark);
    }
}
