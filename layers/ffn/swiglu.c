/* swiglu.c: the gated feed-forward parts swiglu and geglu, which differ in one function. The backward recomputes the
 * product act = silu(gate) * up (gelu), because it reads gate and up anyway. This saves a third of the stored bytes for
 * one more write. */
#include "ffn.h"

static const Key keys[] = {
    {"hidden", KEY_INT, offsetof(SwigluCfg, hidden), NULL, 1, 1 << 20, "width between the two projections", 0, 0},
    {0},
};
static const char *const acts[] = {"tanh", "erf", NULL};
static const Key geglu_keys[] = {
    {"hidden", KEY_INT, offsetof(SwigluCfg, hidden), NULL, 1, 1 << 20, "width between the two projections", 0, 0},
    {"act", KEY_CHOICE, offsetof(SwigluCfg, act), "tanh", 0, 0,
     "erf: x times the normal distribution's function; tanh: its usual approximation", acts, 0},
    {0},
};
typedef SwigluWeights W;
typedef SwigluSaved S;

static bool swiglu_check(void *cfg, Err *e) {
    (void)cfg, (void)e;
    return true;
}
static void swiglu_weights(const void *cfg, void *w_, Fields *f) {
    const SwigluCfg *c = cfg;
    W *w = w_;
    field(f, &w->gate, "gate_proj.weight", 0, c->hidden, c->base.d_model);
    field(f, &w->up, "up_proj.weight", 0, c->hidden, c->base.d_model);
    field(f, &w->down, "down_proj.weight", FIELD_RESIDUAL, c->base.d_model, c->hidden);
}
static void swiglu_saved(const void *cfg, int N, void *s_, Fields *f) {
    const SwigluCfg *c = cfg;
    S *s = s_;
    field(f, &s->gate, "gate", 0, N, c->hidden);
    field(f, &s->up, "up", 0, N, c->hidden);
}
static void gated_forward(Run *r, const SwigluCfg *c, bool gelu, const void *w_, Tensor x, void *s_, Tensor y) {
    const W *w = w_;
    S *s = s_;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, x.n[0], c->hidden);
    r->ops->linear_many(r, 2, (Projection[]){{s->gate, w->gate, ABSENT}, {s->up, w->up, ABSENT}}, x);
    if (gelu)
        r->ops->geglu(r, act, s->gate, s->up, c->act == GELU_TANH);
    else
        r->ops->swiglu(r, act, s->gate, s->up);
    r->ops->linear(r, y, act, w->down, ABSENT);
    arena_release(r->scratch, mark);
}
static void swiglu_forward(Run *r, const void *cfg, const void *w, Tensor x, void *s, Tensor y) {
    gated_forward(r, cfg, false, w, x, s, y);
}
static void geglu_forward(Run *r, const void *cfg, const void *w, Tensor x, void *s, Tensor y) {
    gated_forward(r, cfg, true, w, x, s, y);
}
static void gated_backward(Run *r, const SwigluCfg *c, bool gelu, const void *w_, void *dw_, Tensor x, const void *s_,
                           Tensor dy, Into dx) {
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    int N = x.n[0], F = c->hidden;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, N, F), dact = SCRATCH_OF(r, "d act", x.dtype, N, F),
           dgate = SCRATCH_OF(r, "d gate", x.dtype, N, F), dup = SCRATCH_OF(r, "d up", x.dtype, N, F);
    r->ops->linear_backward(r, overwrite(dact), ABSENT, ABSENT, dy, act, w->down);
    if (gelu)
        r->ops->geglu_backward(r, act, overwrite(dgate), overwrite(dup), dact, s->gate, s->up, c->act == GELU_TANH);
    else
        r->ops->swiglu_backward(r, act, overwrite(dgate), overwrite(dup), dact, s->gate, s->up);
    if (present(dw->down)) r->ops->linear_backward(r, NOWHERE, dw->down, ABSENT, dy, act, w->down);
    r->ops->linear_many_backward(r, dx, 2, (Projection[]){{dgate, dw->gate, ABSENT}, {dup, dw->up, ABSENT}}, x,
                                 (Projection[]){{.w = w->gate}, {.w = w->up}});
    arena_release(r->scratch, mark);
}

static void swiglu_backward(Run *r, const void *cfg, const void *w, void *dw, Tensor x, const void *s, Tensor dy,
                            Into dx) {
    gated_backward(r, cfg, false, w, dw, x, s, dy, dx);
}
static void geglu_backward(Run *r, const void *cfg, const void *w, void *dw, Tensor x, const void *s, Tensor dy,
                           Into dx) {
    gated_backward(r, cfg, true, w, dw, x, s, dy, dx);
}

const Ffn swiglu_ffn = {
    .name = "swiglu",
    .source = "arXiv:2002.05202",
    .keys = keys,
    .cfg_size = sizeof(SwigluCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = swiglu_check,
    .weights = swiglu_weights,
    .saved = swiglu_saved,
    .forward = swiglu_forward,
    .backward = swiglu_backward,
    .takes_bf16 = true,
};
const Ffn geglu_ffn = {
    .name = "geglu",
    .source = "arXiv:2002.05202",
    .keys = geglu_keys,
    .cfg_size = sizeof(SwigluCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = swiglu_check,
    .weights = swiglu_weights,
    .saved = swiglu_saved,
    .forward = geglu_forward,
    .backward = geglu_backward,
    .takes_bf16 = true,
};
