/* clip.c: the global norm. */
#include "clip.h"

enum { AT_ONCE = 256 };
/* The next gradients from *i on. */
static int clip_some(const Params *s, int *i, Tensor g[AT_ONCE]) {
    int n = 0;
    for (; *i < s->n && n < AT_ONCE; ++*i)
        if (!s->p[*i].frozen && !(s->p[*i].flags & FIELD_BALANCE)) g[n++] = s->p[*i].t[PARAM_GRAD];
    return n;
}
Clip clip_norm(Run *r, const Params *s, double max_norm) {
    Tensor g[AT_ONCE];
    double sum = 0;
    for (int i = 0; i < s->n;) {
        int n = clip_some(s, &i, g);
        sum = r->ops->sumsqs(r, sum, n, g);
    }
    return clip_scale(sqrt(sum), max_norm);
}
void clip_there(Run *r, const Params *s, double *square) {
    Tensor g[AT_ONCE];
    int i = 0;
    do { /* of no gradients, too */
        bool more = i > 0;
        int n = clip_some(s, &i, g);
        r->ops->sumsqs_there(r, square, more, n, g);
    } while (i < s->n);
}

Clip clip_scale(double norm, double max_norm) {
    /* An infinite norm would give scale 0 and hide itself as a step of nothing. */
    if (!isfinite(norm)) return (Clip){norm, NAN};
    return (Clip){norm, max_norm > 0 && norm > max_norm ? max_norm / norm : 1};
}
