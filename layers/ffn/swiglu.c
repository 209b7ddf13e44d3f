/* swiglu.c: the gated feed-forward part. The product act = silu(gate) * up is made again in backward, where gate and up
 * are read anyway: a third of the saved bytes for the writing of one. */
#include "ffn.h"

static const Key keys[] = {
    {"hidden", KEY_INT, offsetof(SwigluCfg, hidden), NULL, 1, 1 << 20, "width between the two projections", 0, 0},
    {0},
};
typedef SwigluWeights W;
typedef SwigluSaved S;

static bool check(void *cfg, Err *e) {
    (void)cfg, (void)e;
    return true;
}
static void weights(const void *cfg, void *w_, Fields *f) {
    const SwigluCfg *c = cfg;
    W *w = w_;
    field(f, &w->gate, "gate_proj.weight", 0, c->hidden, c->base.d_model);
    field(f, &w->up, "up_proj.weight", 0, c->hidden, c->base.d_model);
    field(f, &w->down, "down_proj.weight", FIELD_RESIDUAL, c->base.d_model, c->hidden);
}
static void saved(const void *cfg, int N, void *s_, Fields *f) {
    const SwigluCfg *c = cfg;
    S *s = s_;
    field(f, &s->gate, "gate", 0, N, c->hidden);
    field(f, &s->up, "up", 0, N, c->hidden);
}
static void forward(Run *r, const void *cfg, const void *w_, Tensor x, void *s_, Tensor y) {
    const SwigluCfg *c = cfg;
    const W *w = w_;
    S *s = s_;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, x.n[0], c->hidden);
    r->ops->linear_many(r, 2, (Projection[]){{s->gate, w->gate, ABSENT}, {s->up, w->up, ABSENT}}, x);
    r->ops->swiglu(r, act, s->gate, s->up);
    r->ops->linear(r, y, act, w->down, ABSENT);
    arena_release(r->scratch, mark);
}
static void backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const void *s_, Tensor dy,
                     Tensor dx) {
    const SwigluCfg *c = cfg;
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    int N = x.n[0], F = c->hidden;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, N, F), dact = FRESH_OF(r, "d act", x.dtype, N, F),
           dgate = FRESH_OF(r, "d gate", x.dtype, N, F), dup = FRESH_OF(r, "d up", x.dtype, N, F);
    r->ops->linear_backward(r, dact, ABSENT, ABSENT, dy, act, w->down);
    r->ops->swiglu_backward(r, act, dgate, dup, dact, s->gate, s->up);
    if (present(dw->down)) r->ops->linear_backward(r, ABSENT, dw->down, ABSENT, dy, act, w->down);
    r->ops->linear_many_backward(r, dx, 2, (Projection[]){{dgate, dw->gate, ABSENT}, {dup, dw->up, ABSENT}}, x,
                                 (Projection[]){{.w = w->gate}, {.w = w->up}});
    arena_release(r->scratch, mark);
}

const Ffn swiglu_ffn = {
    .name = "swiglu",
    .source = "arXiv:2002.05202",
    .keys = keys,
    .cfg_size = sizeof(SwigluCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = check,
    .weights = weights,
    .saved = saved,
    .forward = forward,
    .backward = backward,
    .half = true,
};
