/* step.c: see step.h. */
#include "step.h"
#include "../ops/half.h"

void optimizer_step(Run *r, const Params *s, const OptimizerCfg *c, double lr, double gscale, int64_t t) {
    for (int i = 0; i < s->n; i++) {
        const Param *p = &s->p[i];
        if (p->frozen) continue;
        AdamwCfg adamw = c->adamw;
        MuonCfg muon = c->with;
        if (p->own_decay) adamw.decay = muon.decay = p->decay;
        const int64_t own = p->since ? t + c->skipped - p->since : t;
        if (c->muon && muon_takes(p->t[PARAM_WEIGHT], p->flags))
            muon_step(r, p, &muon, lr * p->lr_scale, gscale, own);
        else
            adamw_step(r, p, &adamw, lr * p->lr_scale, gscale, own);
    }
    if (!measuring(r)) half_refresh(r->dev); /* Muon's: a step leaves no copy stale, recorded or not */
}
