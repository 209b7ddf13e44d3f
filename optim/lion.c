/* lion.c: Lion: steps of one size, along the sign of a mean of gradients. The arithmetic is Ops.adamw's UPDATE_LION.
 *
 *   w <- w - lr (sign(beta1 m + (1 - beta1) g) + decay w);   m <- beta2 m + (1 - beta2) g
 *
 * One state. A step is larger than AdamW's: the paper's learning rates are 3 to 10 times smaller than those of AdamW,
 * and its decays as much larger. Source: arXiv:2302.06675. */
#include "optimizer.h"

static void lion_state(Fields *f, Tensor s[STATES_MAX], Tensor w) { state_field(f, &s[0], "exp_avg", 0, w); }

static void lion_apply(Run *r, const OptimizerCfg *c, int n, const ParamStep *x) {
    AdamwStep some[APPLY_MAX];
    for (int i = 0; i < n; i++) {
        const Param *p = x[i].p;
        some[i] = (AdamwStep){.rule = UPDATE_LION,
                              .w = p->t[PARAM_WEIGHT],
                              .g = p->t[PARAM_GRAD],
                              .m = p->state[0].t,
                              .lr = x[i].lr,
                              .b1 = c->set->beta1,
                              .b2 = c->set->beta2,
                              .decay = param_decay(p, c->set->weight_decay),
                              .gscale = x[i].gscale,
                              .t = x[i].t,
                              .round = param_rounding(p, c->seed, x[i].t),
                              .square = c->square,
                              .most = c->most};
    }
    r->ops->adamw(r, n, some);
}

const Optimizer lion_optimizer = {
    .name = "lion", .memory = {"first moments"}, .beta2 = 0.99, .state = lion_state, .apply = lion_apply};
