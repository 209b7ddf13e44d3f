/* schedule_free.c: schedule-free AdamW: gradients are taken at y, between the iterate z and its weighted mean x, which
 * is the model. The arithmetic is Ops.adamw's UPDATE_SCHEDULE_FREE.
 *
 *   y_t     = (1 - beta1) z_t + beta1 x_t,   g_t the gradient at y_t
 *   v_t     = beta2 v_{t-1} + (1 - beta2) g_t^2
 *   gamma_t = lr_t sqrt(1 - beta2^t)                              lr_t: with warmup, else constant
 *   z_{t+1} = z_t - gamma_t (g_t / (sqrt(v_t) + eps) + decay y_t)
 *   x_{t+1} = (1 - c_t) x_t + c_t z_{t+1},   c_t = gamma_t^2 / sum of gamma_i^2 over i <= t
 *
 * and x = y = z before the first step. The weights are y while steps are taken and x whenever they are evaluated or
 * saved; the state `y` holds whichever of the two they are not (Optimizer.other), so that no bit is lost between the
 * forms. On disk model.safetensors is x, and z, v and y are in trainer/. v may be BF16; y and z are as wide as weights.
 * Source: arXiv:2405.15682, Algorithm 1, with weights of lr^2 in the mean. */
#include "optimizer.h"

enum { Z, SQUARE, OTHER };
static void schedule_free_state(Fields *f, Tensor s[STATES_MAX], Tensor w) {
    state_field(f, &s[Z], "z", FIELD_F32, w);
    state_field(f, &s[SQUARE], "exp_avg_sq", 0, w);
    state_field(f, &s[OTHER], "y", FIELD_F32, w);
}
static double schedule_free_rate(const OptimCfg *c, double lr, int64_t t) {
    return lr * sqrt(1 - pow(c->beta2, (double)t));
}
static double schedule_free_weight(const OptimCfg *c, double lr, int64_t t) {
    return pow(schedule_free_rate(c, lr, t), 2);
}

static void schedule_free_apply(Run *r, const OptimizerCfg *c, int n, const ParamStep *x) {
    AdamwStep some[APPLY_MAX];
    for (int i = 0; i < n; i++) {
        const Param *p = x[i].p;
        some[i] = (AdamwStep){.rule = UPDATE_SCHEDULE_FREE,
                              .w = p->t[PARAM_WEIGHT],
                              .g = p->t[PARAM_GRAD],
                              .m = p->state[Z].t,
                              .v = p->state[SQUARE].t,
                              .x = p->state[OTHER].t,
                              .share = c->share,
                              .lr = schedule_free_rate(c->set, x[i].lr, x[i].t),
                              .b1 = c->set->beta1,
                              .b2 = c->set->beta2,
                              .eps = c->set->eps,
                              .decay = param_decay(p, c->set->weight_decay),
                              .gscale = x[i].gscale,
                              .t = x[i].t,
                              .round = param_rounding(p, c->seed, x[i].t),
                              .square = c->square,
                              .most = c->most};
    }
    r->ops->adamw(r, n, some);
}

const Optimizer schedule_free_optimizer = {.name = "schedule_free",
                                           .memory = {"iterates z", "second moments", "points of gradients y"},
                                           .beta2 = 0.999,
                                           .own_schedule = true,
                                           .begins = 1u << Z | 1u << OTHER,
                                           .other = 1 + OTHER,
                                           .state = schedule_free_state,
                                           .weight = schedule_free_weight,
                                           .apply = schedule_free_apply};
