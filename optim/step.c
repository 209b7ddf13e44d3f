/* step.c: see step.h. */
#include "step.h"
#include "../ops/half.h"

enum { AT_ONCE = 256 }; /* tensors that one call of the op steps */

void optimizer_step(Run *r, const Params *s, const OptimizerCfg *c, double lr, double gscale, int64_t t) {
    AdamwStep some[AT_ONCE];
    int n = 0;
    CHECK(!c->muon || !c->square, "Muon's step takes its scale from the host");
    for (int i = 0; i < s->n; i++) {
        const Param *p = &s->p[i];
        if (p->frozen) continue;
        AdamwCfg adamw = c->adamw;
        MuonCfg muon = c->with;
        if (p->own_decay) adamw.decay = muon.decay = p->decay;
        const int64_t own = p->since ? t + c->skipped - p->since : t;
        if (c->muon && muon_takes(p->t[PARAM_WEIGHT], p->flags)) {
            muon_step(r, p, &muon, lr * p->lr_scale, gscale, own);
            continue;
        }
        some[n] = adamw_step(p, &adamw, lr * p->lr_scale, gscale, own);
        some[n].square = c->square, some[n].most = p->flags & FIELD_BALANCE ? 0 : c->most;
        if (++n == AT_ONCE) r->ops->adamw(r, n, some), n = 0;
    }
    if (n) r->ops->adamw(r, n, some);
    if (!measuring(r)) half_refresh(r->dev); /* Muon's: a step leaves no copy stale, recorded or not */
}
