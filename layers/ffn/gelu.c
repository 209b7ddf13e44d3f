/* gelu.c: the feed-forward part of GPT-2: two projections with a GELU between them, which is recomputed in the
 * backward. */
#include "ffn.h"

static const char *const acts[] = {"tanh", "erf", NULL};
static const Key keys[] = {
    {"hidden", KEY_INT, offsetof(GeluCfg, hidden), NULL, 1, 1 << 20, "width between the two projections", 0, 0},
    {"act", KEY_CHOICE, offsetof(GeluCfg, act), "tanh", 0, 0,
     "erf: x times the normal distribution's function; tanh: its usual approximation", acts, 0},
    {"bias", KEY_BOOL, offsetof(GeluCfg, bias), "true", 0, 0, "biases of both projections", 0, 0},
    {0},
};
typedef struct {
    Tensor up, bup, down, bdown; /* (F,d) (F) (d,F) (d) */
} W;
typedef struct {
    Tensor up; /* (N,F) before the activation */
} S;

static bool gelu_check(void *cfg, Err *e) {
    (void)cfg, (void)e;
    return true;
}
static void gelu_weights(const void *cfg, void *w_, Fields *f) {
    const GeluCfg *c = cfg;
    W *w = w_;
    field(f, &w->up, "up_proj.weight", 0, c->hidden, c->base.d_model);
    if (c->bias) field(f, &w->bup, "up_proj.bias", FIELD_ZEROS | FIELD_NODECAY, c->hidden);
    field(f, &w->down, "down_proj.weight", FIELD_RESIDUAL, c->base.d_model, c->hidden);
    if (c->bias) field(f, &w->bdown, "down_proj.bias", FIELD_ZEROS | FIELD_NODECAY, c->base.d_model);
}
static void gelu_saved(const void *cfg, int N, void *s_, Fields *f) {
    const GeluCfg *c = cfg;
    S *s = s_;
    field(f, &s->up, "up", 0, N, c->hidden);
}
static void gelu_forward(Run *r, const void *cfg, const void *w_, Tensor x, void *s_, Tensor y) {
    const GeluCfg *c = cfg;
    const W *w = w_;
    S *s = s_;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, x.n[0], c->hidden);
    r->ops->linear(r, s->up, x, w->up, w->bup);
    r->ops->gelu(r, act, s->up, c->act == GELU_TANH);
    r->ops->linear(r, y, act, w->down, w->bdown);
    arena_release(r->scratch, mark);
}
static void backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const void *s_, Tensor dy,
                     Tensor dx) {
    const GeluCfg *c = cfg;
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    int N = x.n[0], F = c->hidden;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, N, F), dact = OVERWRITE_OF(r, "d act", x.dtype, N, F),
           dup = OVERWRITE_OF(r, "d up", x.dtype, N, F);
    r->ops->gelu(r, act, s->up, c->act == GELU_TANH);
    r->ops->linear_backward(r, dact, dw->down, dw->bdown, dy, act, w->down);
    r->ops->gelu_backward(r, dup, dact, s->up, c->act == GELU_TANH);
    r->ops->linear_backward(r, dx, dw->up, dw->bup, dup, x, w->up);
    arena_release(r->scratch, mark);
}

const Ffn gelu_ffn = {
    .name = "gelu",
    .source = "arXiv:1606.08415",
    .keys = keys,
    .cfg_size = sizeof(GeluCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = gelu_check,
    .weights = gelu_weights,
    .saved = gelu_saved,
    .forward = gelu_forward,
    .backward = backward,
    .takes_bf16 = true,
};
