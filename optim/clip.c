/* clip.c: the global norm. */
#include "clip.h"

Clip clip_norm(Run *r, const Params *s, double max_norm) {
    enum { AT_ONCE = 256 };
    Tensor g[AT_ONCE];
    double sum = 0;
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (!s->p[i].frozen && !(s->p[i].flags & FIELD_BALANCE)) g[n++] = s->p[i].t[PARAM_GRAD];
        if (n < AT_ONCE && i + 1 < s->n) continue;
        sum = r->ops->sumsqs(r, sum, n, g);
        n = 0;
    }
    return clip_scale(sqrt(sum), max_norm);
}

Clip clip_scale(double norm, double max_norm) {
    /* An infinite norm would give scale 0 and hide itself as a step of nothing. */
    if (!isfinite(norm)) return (Clip){norm, NAN};
    return (Clip){norm, max_norm > 0 && norm > max_norm ? max_norm / norm : 1};
}
