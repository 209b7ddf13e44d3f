/* muon.c: Muon: momentum whose matrices are made nearly orthogonal before they are stepped along.
 *
 *   m <- mu m + g;   u = g + mu m (nesterov) or m
 *   X_0 = u / (|u|_F + 1e-7);  X <- a X + (b A + c A^2) X with A = X X^T, `steps` times;
 *   (a,b,c) = (3.4445,-4.7750,2.0315)
 *   w <- w - lr (scale sqrt(max(rows, cols)) X + decay w)
 *
 * The iteration moves every singular value into about [0.7, 1.2]. The factor, with a scale of 0.2, gives the update the
 * size of AdamW's, so that one learning rate serves both (arXiv:2502.16982, 2.2). A matrix with more rows than columns
 * is worked on transposed. Source of iteration and coefficients: https://kellerjordan.github.io/posts/muon/. */
#include "optimizer.h"

/* A matrix of a hidden layer: two dimensions, neither embedding nor head. */
static bool muon_takes(Tensor w, unsigned flags) { return w.rank == 2 && !(flags & (FIELD_TABLE | FIELD_NODECAY)); }
static void muon_state(Fields *f, Tensor s[STATES_MAX], Tensor w) { state_field(f, &s[0], "exp_avg", 0, w); }

/* y (C,C) = x^T x of x (R,C), or (R,R) = x x^T: the smaller of the two. */
static void muon_square(Run *r, Tensor y, Tensor x, bool tall) {
    r->ops->zero(r, y);
    if (tall)
        r->ops->linear_backward(r, NOWHERE, y, ABSENT, x, x, y);
    else
        r->ops->linear(r, y, x, x, ABSENT);
}

static void muon_one(Run *r, const ParamStep *one, const OptimizerCfg *cfg) {
    static const double A = 3.4445, B = -4.7750, C = 2.0315;
    const Param *p = one->p;
    const OptimCfg *c = cfg->set;
    Tensor w = p->t[PARAM_WEIGHT];
    int rows = w.n[0], cols = w.n[1], n = imin(rows, cols);
    bool tall = rows > cols;
    Mark mark = arena_mark(r->scratch);
    Tensor x = SCRATCH(r, "muon x", rows, cols), next = SCRATCH(r, "muon next", rows, cols),
           s = SCRATCH(r, "muon square", n, n), q = SCRATCH(r, "muon fourth", n, n);
    r->ops->momentum(r, x, p->state[0].t, p->t[PARAM_GRAD], c->muon_momentum, one->gscale, c->muon_nesterov,
                     param_rounding(p, cfg->seed, one->t));
    r->ops->normalise(r, x, 1e-7);
    for (int k = 0; k < c->muon_steps; k++) {
        muon_square(r, s, x, tall);
        r->ops->linear(r, q, s, s, ABSENT); /* s is symmetric */
        r->ops->axpby(r, q, B, s, C);
        /* next = a x + q x, or a x + x q: q is symmetric, too */
        if (tall) {
            r->ops->linear(r, next, x, q, ABSENT);
            r->ops->axpby(r, next, A, x, 1);
        } else {
            r->ops->copy(r, next, x);
            r->ops->axpby(r, next, 0, x, A);
            r->ops->linear_backward(r, add_to(next), ABSENT, ABSENT, q, x, x);
        }
        Tensor swap = x;
        x = next, next = swap;
    }
    r->ops->axpby(r, w, -one->lr * c->muon_scale * sqrt(imax(rows, cols)), x,
                  1 - one->lr * param_decay(p, c->weight_decay));
    arena_release(r->scratch, mark);
}
static void muon_apply(Run *r, const OptimizerCfg *c, int n, const ParamStep *x) {
    for (int i = 0; i < n; i++) muon_one(r, &x[i], c);
}

const Optimizer muon_optimizer = {.name = "muon",
                                  .memory = {"first moments"},
                                  .whole = true,
                                  .scale_by_host = true,
                                  .takes = muon_takes,
                                  .state = muon_state,
                                  .apply = muon_apply};
