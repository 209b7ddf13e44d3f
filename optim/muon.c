/* muon.c: see muon.h. */
#include "muon.h"

bool muon_takes(Tensor w, unsigned flags) {
    return w.rank == 2 && !(flags & (FIELD_TABLE | FIELD_NODECAY | FIELD_BALANCE));
}
bool muon_leaves(Tensor w, unsigned flags) { return !muon_takes(w, flags); }

/* y (C,C) = x^T x of x (R,C), or (R,R) = x x^T: the smaller of the two. */
static void square(Run *r, Tensor y, Tensor x, bool tall) {
    r->ops->zero(r, y);
    if (tall)
        r->ops->linear_backward(r, ABSENT, y, ABSENT, x, x, y);
    else
        r->ops->linear(r, y, x, x, ABSENT);
}

void muon_step(Run *r, const Param *p, const MuonCfg *c, double lr, double gscale, int64_t t) {
    static const double A = 3.4445, B = -4.7750, C = 2.0315;
    Tensor w = p->t[PARAM_WEIGHT], m = p->t[PARAM_M];
    int rows = w.n[0], cols = w.n[1], n = imin(rows, cols);
    bool tall = rows > cols;
    Mark mark = arena_mark(r->scratch);
    Tensor x = SCRATCH(r, "muon x", rows, cols), next = SCRATCH(r, "muon next", rows, cols),
           s = SCRATCH(r, "muon square", n, n), q = SCRATCH(r, "muon fourth", n, n);
    r->ops->momentum(r, x, m, p->t[PARAM_GRAD], c->momentum, gscale, c->nesterov, param_rounding(p, c->seed, t));
    r->ops->normalise(r, x, 1e-7);
    for (int k = 0; k < c->steps; k++) {
        square(r, s, x, tall);
        r->ops->linear(r, q, s, s, ABSENT); /* s is symmetric */
        r->ops->axpby(r, q, B, s, C);
        /* next = a x + q x, or a x + x q: q is symmetric, too */
        if (tall) {
            r->ops->linear(r, next, x, q, ABSENT);
            r->ops->axpby(r, next, A, x, 1);
        } else {
            r->ops->copy(r, next, x);
            r->ops->axpby(r, next, 0, x, A);
            r->ops->linear_backward(r, next, ABSENT, ABSENT, q, x, x);
        }
        Tensor swap = x;
        x = next, next = swap;
    }
    r->ops->axpby(r, w, -lr * c->scale * sqrt(imax(rows, cols)), x, 1 - lr * c->decay);
    arena_release(r->scratch, mark);
}
