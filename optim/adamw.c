/* adamw.c: the optimizer's step. */
#include "adamw.h"

AdamwStep adamw_step(const Param *p, const AdamwCfg *c, double lr, double gscale, int64_t t) {
    const Tensor *x = p->t;
    CHECK(t >= 1 && present(x[PARAM_V]), "step %lld of %s", (long long)t, p->name);
    AdamwStep s = {.w = x[PARAM_WEIGHT],
                   .g = x[PARAM_GRAD],
                   .m = x[PARAM_M],
                   .v = x[PARAM_V],
                   .lr = lr,
                   .b1 = c->beta1,
                   .b2 = c->beta2,
                   .eps = c->eps,
                   .decay = param_decays(p) ? c->decay : 0,
                   .gscale = gscale,
                   .t = t,
                   .round = param_rounding(p, c->seed, t)};
    if (p->flags & FIELD_BALANCE) { /* without decay rates AdamW's step is g / |g|; its moments hold nothing */
        s.lr = c->balance;
        s.b1 = s.b2 = s.decay = 0;
        s.eps = 1e-20;
        s.gscale = 1;
    }
    return s;
}
