/* adamw.c: AdamW. The arithmetic is Ops.adamw. Source: arXiv:1711.05101. Bias corrections are 1 - beta^t. */
#include "optimizer.h"

enum { MEAN, SQUARE };
static void adamw_state(Fields *f, Tensor s[STATES_MAX], Tensor w) {
    state_field(f, &s[MEAN], "exp_avg", 0, w);
    state_field(f, &s[SQUARE], "exp_avg_sq", 0, w);
}

static AdamwStep adamw_one(const ParamStep *x, const OptimizerCfg *c) {
    const Param *p = x->p;
    const OptimCfg *o = c->set;
    AdamwStep s = {.w = p->t[PARAM_WEIGHT],
                   .g = p->t[PARAM_GRAD],
                   .m = p->state[MEAN].t,
                   .v = p->state[SQUARE].t,
                   .lr = x->lr,
                   .b1 = o->beta1,
                   .b2 = o->beta2,
                   .eps = o->eps,
                   .decay = param_decay(p, o->weight_decay),
                   .gscale = x->gscale,
                   .t = x->t,
                   .round = param_rounding(p, c->seed, x->t),
                   .square = c->square,
                   .most = c->most};
    if (p->flags & FIELD_BALANCE) { /* w -= balance_rate sign(g): without decay rates AdamW's step is g / |g|; its
                                       states hold nothing, and neither schedule nor clipping has a part */
        s.lr = o->balance_rate;
        s.b1 = s.b2 = s.decay = s.most = 0;
        s.eps = 1e-20;
        s.gscale = 1;
    }
    return s;
}
static void adamw_apply(Run *r, const OptimizerCfg *c, int n, const ParamStep *x) {
    AdamwStep some[APPLY_MAX];
    for (int i = 0; i < n; i++) some[i] = adamw_one(&x[i], c);
    r->ops->adamw(r, n, some);
}

const Optimizer adamw_optimizer = {.name = "adamw",
                                   .memory = {"first moments", "second moments"},
                                   .state = adamw_state,
                                   .apply = adamw_apply};
