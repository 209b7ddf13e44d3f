/* adamw.c: the optimizer's step. */
#include "adamw.h"

void adamw_step(Run *r, const Param *p, const AdamwCfg *c, double lr, double gscale, int64_t t) {
    const Tensor *x = p->t;
    Rounding round = param_rounding(p, c->seed, t);
    CHECK(t >= 1 && present(x[PARAM_V]), "step %lld of %s", (long long)t, p->name);
    if (p->flags & FIELD_BALANCE) /* without decay rates AdamW's step is g / |g|; its moments hold nothing */
        r->ops->adamw(r, x[PARAM_WEIGHT], x[PARAM_GRAD], x[PARAM_M], x[PARAM_V], c->balance, 0, 0, 1e-20, 0, 1, t,
                      round);
    else
        r->ops->adamw(r, x[PARAM_WEIGHT], x[PARAM_GRAD], x[PARAM_M], x[PARAM_V], lr, c->beta1, c->beta2, c->eps,
                      param_decays(p) ? c->decay : 0, gscale, t, round);
}
