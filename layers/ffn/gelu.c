/* gelu.c: the feed-forward parts gelu, of GPT-2, and relu2, of Primer and Nemotron: two projections with a GELU or a
 * squared ReLU between them, which is recomputed in the backward. */
#include "ffn.h"

static const char *const acts[] = {"tanh", "erf", NULL};
static const Key keys[] = {
    {"hidden", KEY_INT, offsetof(GeluCfg, hidden), NULL, 1, 1 << 20, "width between the two projections", 0, 0},
    {"act", KEY_CHOICE, offsetof(GeluCfg, act), "tanh", 0, 0,
     "erf: x times the normal distribution's function; tanh: its usual approximation", acts, 0},
    {"bias", KEY_BOOL, offsetof(GeluCfg, bias), "true", 0, 0, "biases of both projections", 0, 0},
    {0},
};
static const Key relu2_keys[] = {
    {"hidden", KEY_INT, offsetof(GeluCfg, hidden), NULL, 1, 1 << 20, "width between the two projections", 0, 0},
    {"bias", KEY_BOOL, offsetof(GeluCfg, bias), "false", 0, 0, "biases of both projections", 0, 0},
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
/* act = the activation of up. */
static void gelu_act(Run *r, const GeluCfg *c, bool squared, Tensor act, Tensor up) {
    if (squared)
        r->ops->relu2(r, act, up, ABSENT);
    else
        r->ops->gelu(r, act, up, c->act == GELU_TANH);
}
static void gelu_run(Run *r, const GeluCfg *c, bool squared, const W *w, Tensor x, S *s, Tensor y) {
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, x.n[0], c->hidden);
    r->ops->linear(r, s->up, x, w->up, w->bup);
    gelu_act(r, c, squared, act, s->up);
    r->ops->linear(r, y, act, w->down, w->bdown);
    arena_release(r->scratch, mark);
}
static void gelu_run_backward(Run *r, const GeluCfg *c, bool squared, const W *w, W *dw, Tensor x, const S *s,
                              Tensor dy, Into dx) {
    int N = x.n[0], F = c->hidden;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, N, F), dact = SCRATCH_OF(r, "d act", x.dtype, N, F),
           dup = SCRATCH_OF(r, "d up", x.dtype, N, F);
    gelu_act(r, c, squared, act, s->up);
    r->ops->linear_backward(r, overwrite(dact), dw->down, dw->bdown, dy, act, w->down);
    if (squared)
        r->ops->relu2_backward(r, overwrite(dup), NOWHERE, dact, s->up, ABSENT);
    else
        r->ops->gelu_backward(r, overwrite(dup), dact, s->up, c->act == GELU_TANH);
    r->ops->linear_backward(r, dx, dw->up, dw->bup, dup, x, w->up);
    arena_release(r->scratch, mark);
}
static void gelu_forward(Run *r, const void *cfg, const void *w, Tensor x, void *s, Tensor y) {
    gelu_run(r, cfg, false, w, x, s, y);
}
static void gelu_backward(Run *r, const void *cfg, const void *w, void *dw, Tensor x, const void *s, Tensor dy,
                          Into dx) {
    gelu_run_backward(r, cfg, false, w, dw, x, s, dy, dx);
}
static void relu2_forward(Run *r, const void *cfg, const void *w, Tensor x, void *s, Tensor y) {
    gelu_run(r, cfg, true, w, x, s, y);
}
static void relu2_backward(Run *r, const void *cfg, const void *w, void *dw, Tensor x, const void *s, Tensor dy,
                           Into dx) {
    gelu_run_backward(r, cfg, true, w, dw, x, s, dy, dx);
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
    .backward = gelu_backward,
    .takes_bf16 = true,
};
const Ffn relu2_ffn = {
    .name = "relu2",
    .source = "arXiv:2109.08668",
    .keys = relu2_keys,
    .cfg_size = sizeof(GeluCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = gelu_check,
    .weights = gelu_weights,
    .saved = gelu_saved,
    .forward = relu2_forward,
    .backward = relu2_backward,
    .takes_bf16 = true,
};
