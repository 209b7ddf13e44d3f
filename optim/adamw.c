/* adamw.c: the optimizer's step. */
#include "adamw.h"

void adamw_step(Run *r, const Param *p, const AdamwCfg *c, double lr, double gscale, int64_t t) {
    CHECK(t >= 1, "step %lld", (long long)t);
    if (p->flags & FIELD_BALANCE) /* without decay rates AdamW's step is g / |g|; its moments hold nothing */
        r->ops->adamw(r, p->t[PARAM_WEIGHT], p->t[PARAM_GRAD], p->t[PARAM_M], p->t[PARAM_V], c->balance, 0, 0, 1e-20, 0,
                      1, t);
    else
        r->ops->adamw(r, p->t[PARAM_WEIGHT], p->t[PARAM_GRAD], p->t[PARAM_M], p->t[PARAM_V], lr, c->beta1, c->beta2,
                      c->eps, param_decays(p) ? c->decay : 0, gscale, t);
}
