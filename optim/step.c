/* step.c: see step.h. */
#include "step.h"

void optimizer_step(Run *r, const Params *s, const OptimizerCfg *c, double lr, double gscale, int64_t t) {
    for (int i = 0; i < s->n; i++) {
        if (c->muon && muon_takes(s->p[i].t[PARAM_WEIGHT], s->p[i].flags))
            muon_step(r, &s->p[i], &c->with, lr, gscale, t);
        else
            adamw_step(r, &s->p[i], &c->adamw, lr, gscale, t);
    }
}
