/* moe.c: the mixture of experts. See ffn.h for the formulas, route.c for the router.
 *
 * Rows are copied into the order of their experts, go through one product per expert and projection, and are added up
 * per row in the order of the experts' numbers. So nothing depends on how rows are spread over threads. The weight
 * multiplies the expert's hidden values, of which there are fewer than outputs, so the derivative by the weight does
 * not need an expert's output again. The backward repeats the choice from the saved scores instead of storing it. */
#include "ffn.h"
#include "ops/host.h"

static const char *const routers[] = {"softmax", "sigmoid", NULL}, *const acts[] = {"swiglu", "relu2", NULL};
#define MOE_ALPHA  1.702 /* that of gpt-oss */
#define AT(member) offsetof(MoeCfg, member)
static const Key keys[] = {
    {"experts", KEY_INT, AT(experts), NULL, 1, EXPERTS_MAX, "number of experts that the router chooses from", 0, 0},
    {"top_k", KEY_INT, AT(top_k), NULL, 1, EXPERTS_MAX, "experts chosen for each token", 0, 0},
    {"hidden", KEY_INT, AT(hidden), NULL, 1, 1 << 20, "width between the two projections of one expert", 0, 0},
    {"shared", KEY_INT, AT(shared), "0", 0, EXPERTS_MAX, "experts that every token uses, in addition to those chosen",
     0, 0},
    {"shared_hidden", KEY_INT, AT(shared_hidden), "0", 0, 1 << 20, "width of a shared expert; 0: hidden", 0, 0},
    {"shared_gate", KEY_BOOL, AT(shared_gate), "false", 0, 0,
     "the output of the shared experts is multiplied by a sigmoid of the token's row", 0, 0},
    {"router", KEY_CHOICE, AT(router), "softmax", 0, 0,
     "scores of the experts: softmax over all of them, or a sigmoid each", routers, 0},
    {"norm_topk", KEY_BOOL, AT(norm_topk), "true", 0, 0, "scale the weights of the chosen experts to sum to `scale`", 0,
     0},
    {"scale", KEY_FLOAT, AT(scale), "1", 1e-6, 1e6, "factor of the weights", 0, 0},
    {"groups", KEY_INT, AT(groups), "1", 1, EXPERTS_MAX, "groups of neighbouring experts; divides experts", 0, 0},
    {"top_groups", KEY_INT, AT(top_groups), "0", 0, EXPERTS_MAX,
     "groups that a token may choose from, those of the highest scores; 0: all", 0, 0},
    {"act", KEY_CHOICE, AT(act), "swiglu", 0, 0,
     "an expert: swiglu, or relu2, two projections with a squared ReLU between them", acts, 0},
    {"latent", KEY_INT, AT(latent), "0", 0, 1 << 20,
     "width of the rows that the chosen experts see, through a projection before and after them; 0: d_model", 0, 0},
    {"bias_balance", KEY_BOOL, AT(bias_balance), "false", 0, 0,
     "a bias per expert, used only for the choice; optim.balance_rate moves it towards equal loads", 0, 0},
    {"router_bias", KEY_BOOL, AT(router_bias), "false", 0, 0, "a trained bias of the router's logits", 0, 0},
    {"expert_bias", KEY_BOOL, AT(expert_bias), "false", 0, 0,
     "biases of the chosen experts' projections; shared experts have none", 0, 0},
    {"limit", KEY_FLOAT, AT(limit), "0", 0, 1e6,
     "the chosen experts' unit is gpt-oss's: gate is cut off above this, up outside of -limit to limit; 0: swiglu", 0,
     0},
    {"alpha", KEY_FLOAT, AT(alpha), "1.702", 1e-6, 1e6, "with `limit`: factor in the unit's sigmoid", 0, 0},
    {0},
};
#undef AT

typedef struct {
    Tensor router, router_bias, bias; /* (E,d) (E) (E) */
    SwigluWeights shared;
    Tensor open;                                                  /* (1,d) of shared_gate */
    Tensor in, out;                                               /* (L,d) (d,L) of latent */
    Tensor gate[EXPERTS_MAX], up[EXPERTS_MAX], down[EXPERTS_MAX]; /* (F,d) (F,d) (d,F), or L for d; relu2: no gate */
    Tensor gate_bias[EXPERTS_MAX], up_bias[EXPERTS_MAX], down_bias[EXPERTS_MAX]; /* (F) (F) (d) of expert_bias */
} W;
typedef struct {
    Tensor p;        /* (N,E) scores */
    Tensor gate, up; /* (N K,F) of the pairs, by place */
    SwigluSaved shared;
    Tensor open;    /* (N) of shared_gate, after the sigmoid */
    Tensor in, out; /* (N,L) of latent: rows before and after the experts */
} S;

/* Width of the rows that the experts see. */
static int seen_width(const MoeCfg *c) { return c->latent ? c->latent : c->base.d_model; }
static int shared_width(const MoeCfg *c) { return c->shared_hidden ? c->shared_hidden : c->hidden; }
static SwigluCfg shared_cfg(const MoeCfg *c) {
    return (SwigluCfg){.base = c->base, .hidden = c->shared * shared_width(c)};
}

static bool moe_check(void *cfg, Err *e) {
    MoeCfg *c = cfg;
    if (c->top_k > c->experts)
        return err_input(e, "top_k: %d is more than experts, %d; choose at most all", c->top_k, c->experts);
    if (c->experts % c->groups)
        return err_input(e, "groups: %d does not divide experts, %d; all groups have the same size", c->groups,
                         c->experts);
    if (c->top_groups > c->groups)
        return err_input(e, "top_groups: %d is more than groups, %d; 0 means all", c->top_groups, c->groups);
    if (!c->top_groups) c->top_groups = c->groups;
    int most = c->top_groups * (c->experts / c->groups);
    if (c->top_k > most)
        return err_input(e, "top_k: %d is more than the %d experts of top_groups %d; raise top_groups", c->top_k, most,
                         c->top_groups);
    if (!(c->limit > 0) && c->alpha != MOE_ALPHA)
        return err_input(e, "alpha: %g has no meaning without a limit; set limit or remove alpha", c->alpha);
    if ((c->expert_bias || c->limit > 0) && (c->act != EXPERT_SWIGLU || c->latent))
        return err_input(e, "%s: only for experts with act swiglu and without latent; remove one of them",
                         c->expert_bias ? "expert_bias" : "limit");
    if (!c->shared && (c->shared_hidden || c->shared_gate))
        return err_input(e, "%s: there are no shared experts; set shared",
                         c->shared_gate ? "shared_gate" : "shared_hidden");
    if (c->shared && shared_width(c) > (1 << 20) / c->shared)
        return err_input(e, "shared: %d experts of hidden %d are wider than %d together; lower one", c->shared,
                         shared_width(c), 1 << 20);
    return true;
}
static void expert_field(Fields *f, Tensor *t, int e, const char *name, unsigned flags, int out, int in) {
    char path[64];
    snprintf(path, sizeof path, "experts.%d.%s.weight", e, name);
    field(f, t, path, flags, out, in);
}
static void bias_field(Fields *f, const MoeCfg *c, Tensor *t, int e, const char *name, int out) {
    char path[64];
    snprintf(path, sizeof path, "experts.%d.%s.bias", e, name);
    if (c->expert_bias) field(f, t, path, FIELD_ZEROS | FIELD_NODECAY, out);
}
static void moe_weights(const void *cfg, void *w_, Fields *f) {
    const MoeCfg *c = cfg;
    W *w = w_;
    const int d = c->base.d_model, seen = seen_width(c);
    field(f, &w->router, "gate.weight", FIELD_INVARIANT, c->experts, d);
    if (c->router_bias) field(f, &w->router_bias, "gate.bias", FIELD_ZEROS | FIELD_NODECAY, c->experts);
    if (c->bias_balance)
        field(f, &w->bias, "gate.e_score_correction_bias", FIELD_ZEROS | FIELD_NODECAY | FIELD_F32 | FIELD_BALANCE,
              c->experts);
    for (int e = 0; e < c->experts; e++) {
        if (c->act == EXPERT_SWIGLU) expert_field(f, &w->gate[e], e, "gate_proj", 0, c->hidden, seen);
        bias_field(f, c, &w->gate_bias[e], e, "gate_proj", c->hidden);
        expert_field(f, &w->up[e], e, "up_proj", 0, c->hidden, seen);
        bias_field(f, c, &w->up_bias[e], e, "up_proj", c->hidden);
        expert_field(f, &w->down[e], e, "down_proj", c->latent ? 0 : FIELD_RESIDUAL, seen, c->hidden);
        bias_field(f, c, &w->down_bias[e], e, "down_proj", d);
    }
    if (c->latent) {
        field(f, &w->in, "fc1_latent_proj.weight", 0, c->latent, d);
        field(f, &w->out, "fc2_latent_proj.weight", FIELD_RESIDUAL, d, c->latent);
    }
    if (!c->shared) return;
    SwigluCfg dense = shared_cfg(c);
    if (c->act == EXPERT_RELU2) {
        field(f, &w->shared.up, "shared_experts.up_proj.weight", 0, dense.hidden, d);
        field(f, &w->shared.down, "shared_experts.down_proj.weight", FIELD_RESIDUAL, d, dense.hidden);
    } else {
        size_t n = strlen(f->scope);
        snprintf(f->scope + n, sizeof f->scope - n, "shared_experts.");
        swiglu_ffn.weights(&dense, &w->shared, f);
        f->scope[n] = 0;
    }
    if (c->shared_gate) field(f, &w->open, "shared_expert_gate.weight", 0, 1, d);
}
static void moe_saved(const void *cfg, int N, void *s_, Fields *f) {
    const MoeCfg *c = cfg;
    S *s = s_;
    field(f, &s->p, "router scores", FIELD_F32, N, c->experts);
    if (c->act == EXPERT_SWIGLU) field(f, &s->gate, "experts' gate", 0, N * c->top_k, c->hidden);
    field(f, &s->up, "experts' up", 0, N * c->top_k, c->hidden);
    SwigluCfg dense = shared_cfg(c);
    if (c->shared && c->act == EXPERT_RELU2) field(f, &s->shared.up, "shared up", 0, N, dense.hidden);
    if (c->shared && c->act == EXPERT_SWIGLU) swiglu_ffn.saved(&dense, N, &s->shared, f);
    if (c->latent) {
        field(f, &s->in, "latent rows", 0, N, c->latent);
        field(f, &s->out, "experts' sum", 0, N, c->latent);
    }
    if (c->shared_gate) field(f, &s->open, "shared gate", FIELD_F32, N);
}

/* act = the activation of an expert's rows; s: a factor for each row; chosen: no shared expert. */
static void expert_act(Run *r, const MoeCfg *c, bool chosen, Tensor act, Tensor gate, Tensor up, Tensor s) {
    if (c->act == EXPERT_RELU2)
        r->ops->relu2(r, act, up, s);
    else if (chosen && c->limit > 0)
        r->ops->swiglu_limit(r, act, gate, up, s, c->alpha, c->limit);
    else
        r->ops->swiglu_rows(r, act, gate, up, s);
}
/* Overwrites dgate, dup and ds. */
static void expert_act_backward(Run *r, const MoeCfg *c, bool chosen, Tensor dgate, Tensor dup, Tensor ds, Tensor dact,
                                Tensor gate, Tensor up, Tensor s) {
    if (c->act == EXPERT_RELU2)
        r->ops->relu2_backward(r, overwrite(dup), overwrite(ds), dact, up, s);
    else if (chosen && c->limit > 0)
        r->ops->swiglu_limit_backward(r, overwrite(dgate), overwrite(dup), overwrite(ds), dact, gate, up, s, c->alpha,
                                      c->limit);
    else
        r->ops->swiglu_rows_backward(r, overwrite(dgate), overwrite(dup), overwrite(ds), dact, gate, up, s);
}

static Tensor as_column(Tensor t) { return TENSOR(t.p, t.dtype, t.n[0], 1); }

/* y = the shared experts of x, times their gate if there is one. */
static void shared_forward(Run *r, const MoeCfg *c, const W *w, Tensor x, S *s, Tensor y) {
    SwigluCfg dense = shared_cfg(c);
    const SwigluWeights *v = &w->shared;
    const bool relu2 = c->act == EXPERT_RELU2;
    if (!c->shared_gate && !relu2) {
        swiglu_ffn.forward(r, &dense, v, x, &s->shared, y);
        return;
    }
    const int N = x.n[0];
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, N, dense.hidden);
    if (c->shared_gate) {
        Tensor logit = SCRATCH(r, "gate's logit", N, 1);
        r->ops->linear(r, logit, x, w->open, ABSENT);
        r->ops->sigmoid(r, as_column(s->open), logit, 1);
    }
    if (relu2)
        r->ops->linear(r, s->shared.up, x, v->up, ABSENT);
    else
        r->ops->linear_many(r, 2, (Projection[]){{s->shared.gate, v->gate, ABSENT}, {s->shared.up, v->up, ABSENT}}, x);
    expert_act(r, c, false, act, s->shared.gate, s->shared.up, s->open);
    r->ops->linear(r, y, act, v->down, ABSENT);
    arena_release(r->scratch, mark);
}
/* Overwrites dx if it is to be overwritten, else adds to it. */
static void shared_backward(Run *r, const MoeCfg *c, const W *w, W *dw, Tensor x, const S *s, Tensor dy, Into dx) {
    SwigluCfg dense = shared_cfg(c);
    const SwigluWeights *v = &w->shared, *dv = &dw->shared;
    const bool relu2 = c->act == EXPERT_RELU2;
    if (!c->shared_gate && !relu2) {
        swiglu_ffn.backward(r, &dense, v, &dw->shared, x, &s->shared, dy, dx);
        return;
    }
    const int N = x.n[0], F = dense.hidden;
    Mark mark = arena_mark(r->scratch);
    Tensor act = SCRATCH_OF(r, "act", x.dtype, N, F), dact = SCRATCH_OF(r, "d act", x.dtype, N, F),
           dgate = relu2 ? ABSENT : SCRATCH_OF(r, "d gate", x.dtype, N, F), dup = SCRATCH_OF(r, "d up", x.dtype, N, F),
           dopen = c->shared_gate ? SCRATCH(r, "d gate of shared", N) : ABSENT;
    expert_act(r, c, false, act, s->shared.gate, s->shared.up, s->open);
    r->ops->linear_backward(r, overwrite(dact), dv->down, ABSENT, dy, act, v->down);
    expert_act_backward(r, c, false, dgate, dup, dopen, dact, s->shared.gate, s->shared.up, s->open);
    if (relu2)
        r->ops->linear_backward(r, dx, dv->up, ABSENT, dup, x, v->up);
    else
        r->ops->linear_many_backward(r, dx, 2, (Projection[]){{dgate, dv->gate, ABSENT}, {dup, dv->up, ABSENT}}, x,
                                     (Projection[]){{.w = v->gate}, {.w = v->up}});
    if (c->shared_gate) {
        Tensor dlogit = SCRATCH(r, "d gate's logit", N, 1);
        r->ops->sigmoid_backward(r, overwrite(dlogit), as_column(dopen), as_column(s->open), 1);
        r->ops->linear_backward(r, add_to(dx.t), dw->open, ABSENT, dlogit, x, w->open);
    }
    arena_release(r->scratch, mark);
}

/* Biases of experts as matrices of one column: their products with a column of factors, one for each row, are what the
 * experts' outputs get. */
typedef struct {
    Tensor w[EXPERTS_MAX];
} Columns;
static void bias_columns(const MoeCfg *c, const Tensor *bias, Columns *to) {
    for (int e = 0; e < c->experts; e++) to->w[e] = present(bias[e]) ? as_column(bias[e]) : ABSENT;
}
static void bias_forward(Run *r, const MoeCfg *c, const Tensor *bias, Groups g, Tensor factor, Tensor y) {
    if (!c->expert_bias) return;
    Columns b;
    Mark mark = arena_mark(r->scratch);
    Tensor more = SCRATCH_OF(r, "biases by row", y.dtype, y.n[0], y.n[1]);
    bias_columns(c, bias, &b);
    r->ops->linear_groups(r, more, as_column(factor), g, b.w);
    r->ops->add(r, y, more);
    arena_release(r->scratch, mark);
}
/* Adds to dbias, and to dfactor if that is present. */
static void bias_backward(Run *r, const MoeCfg *c, const Tensor *bias, Tensor *dbias, Groups g, Tensor factor,
                          Tensor dfactor, Tensor dy) {
    if (!c->expert_bias) return;
    Columns b, db;
    bias_columns(c, bias, &b), bias_columns(c, dbias, &db);
    r->ops->linear_groups_backward(r, present(dfactor) ? add_to(as_column(dfactor)) : NOWHERE, db.w, dy,
                                   as_column(factor), g, b.w);
}
static Tensor expert_ones(Run *r, const MoeCfg *c, int M) {
    if (!c->expert_bias) return ABSENT;
    Tensor ones = SCRATCH(r, "ones", M);
    r->ops->repeat(r, as_column(ones), &(const double){1});
    return ones;
}
/* From the experts' sum, what they add to the shared ones. */
static void latent_out(Run *r, const MoeCfg *c, const W *w, const S *s, Tensor y) {
    if (!c->shared) {
        r->ops->linear(r, y, s->out, w->out, ABSENT);
        return;
    }
    Mark mark = arena_mark(r->scratch);
    Tensor more = SCRATCH_OF(r, "of the experts", y.dtype, y.n[0], y.n[1]);
    r->ops->linear(r, more, s->out, w->out, ABSENT);
    r->ops->add(r, y, more);
    arena_release(r->scratch, mark);
}
static void moe_forward(Run *r, const void *cfg, const void *w_, Tensor x, void *s_, Tensor y) {
    const MoeCfg *c = cfg;
    const W *w = w_;
    S *s = s_;
    int M = x.n[0] * c->top_k;
    if (c->shared) shared_forward(r, c, w, x, s, y);
    RunMark mark = run_mark(r);
    route_scores(r, c, s->p, x, w->router, w->router_bias);
    Route t = route_choose(r, c, s->p, w->bias);
    Groups g = {c->experts, t.off};
    Tensor rows = SCRATCH_OF(r, "rows by expert", x.dtype, M, seen_width(c)),
           act = SCRATCH_OF(r, "act", x.dtype, M, c->hidden), ones = expert_ones(r, c, M);
    if (c->latent) r->ops->linear(r, s->in, x, w->in, ABSENT);
    r->ops->spread(r, rows, c->latent ? s->in : x, t.row);
    if (c->act == EXPERT_SWIGLU) r->ops->linear_groups(r, s->gate, rows, g, w->gate);
    bias_forward(r, c, w->gate_bias, g, ones, s->gate);
    r->ops->linear_groups(r, s->up, rows, g, w->up);
    bias_forward(r, c, w->up_bias, g, ones, s->up);
    expert_act(r, c, true, act, s->gate, s->up, t.weight);
    r->ops->linear_groups(r, rows, act, g, w->down); /* the product's input is no longer needed */
    bias_forward(r, c, w->down_bias, g, t.weight, rows);
    const Into sum = c->latent ? overwrite(s->out) : c->shared ? add_to(y) : overwrite(y);
    r->ops->collect(r, sum, rows, t.place, c->top_k);
    if (c->latent) latent_out(r, c, w, s, y);
    run_release(r, mark);
}

/* The gradients of the experts, of x as they see it: adds to dx, unless it is to be overwritten, and to dw; overwrites
 * dweight (M). */
static void experts_backward(Run *r, const MoeCfg *c, const W *w, W *dw, const Route *t, Tensor x, const S *s,
                             Tensor dy, Into dx, Tensor dweight) {
    int M = x.n[0] * c->top_k, d = seen_width(c), F = c->hidden;
    const bool gated = c->act == EXPERT_SWIGLU;
    Groups g = {c->experts, t->off};
    Mark mark = arena_mark(r->scratch);
    Tensor rows = SCRATCH_OF(r, "rows by expert", x.dtype, M, d), drows = SCRATCH_OF(r, "d rows", x.dtype, M, d),
           act = SCRATCH_OF(r, "act", x.dtype, M, F), dact = SCRATCH_OF(r, "d act", x.dtype, M, F),
           dgate = gated ? SCRATCH_OF(r, "d gate", x.dtype, M, F) : ABSENT, dup = SCRATCH_OF(r, "d up", x.dtype, M, F),
           ones = expert_ones(r, c, M);
    expert_act(r, c, true, act, s->gate, s->up, t->weight);
    r->ops->spread(r, drows, dy, t->row); /* first dy, by place */
    r->ops->linear_groups_backward(r, overwrite(dact), dw->down, drows, act, g, w->down);
    expert_act_backward(r, c, true, dgate, dup, dweight, dact, s->gate, s->up, t->weight);
    bias_backward(r, c, w->down_bias, dw->down_bias, g, t->weight, dweight, drows);
    bias_backward(r, c, w->gate_bias, dw->gate_bias, g, ones, ABSENT, dgate);
    bias_backward(r, c, w->up_bias, dw->up_bias, g, ones, ABSENT, dup);
    r->ops->spread(r, rows, x, t->row);
    /* from here on drows is dx by place */
    if (gated) r->ops->linear_groups_backward(r, overwrite(drows), dw->gate, dgate, rows, g, w->gate);
    r->ops->linear_groups_backward(r, gated ? add_to(drows) : overwrite(drows), dw->up, dup, rows, g, w->up);
    r->ops->collect(r, dx, drows, t->place, c->top_k);
    arena_release(r->scratch, mark);
}

static void moe_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const void *s_, Tensor dy,
                         Into dx) {
    const MoeCfg *c = cfg;
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    int N = x.n[0];
    if (c->shared) {
        shared_backward(r, c, w, dw, x, s, dy, dx);
        dx.overwrite = false;
    }
    RunMark mark = run_mark(r);
    Route t = route_choose(r, c, s->p, w->bias);
    Tensor dweight = SCRATCH(r, "d weights", N * c->top_k), dlogits = SCRATCH(r, "d logits", N, c->experts);
    if (c->latent) {
        Tensor dout = SCRATCH_OF(r, "d experts' sum", x.dtype, N, c->latent),
               din = SCRATCH_OF(r, "d latent rows", x.dtype, N, c->latent);
        r->ops->linear_backward(r, overwrite(dout), dw->out, ABSENT, dy, s->out, w->out);
        experts_backward(r, c, w, dw, &t, s->in, s, dout, overwrite(din), dweight);
        r->ops->linear_backward(r, dx, dw->in, ABSENT, din, x, w->in);
    } else {
        experts_backward(r, c, w, dw, &t, x, s, dy, dx, dweight);
    }
    route_backward(r, c, &t, dlogits, dweight, s->p);
    r->ops->linear_backward(r, add_to(dx.t), dw->router, dw->router_bias, dlogits, x, w->router);
    if (c->bias_balance) {
        Tensor load = host_view(r, dw->bias, true);
        for (int e = 0; !measuring(r) && e < c->experts; e++)
            R(load)[e] += (real)c->experts * (real)(t.off[e + 1] - t.off[e]) - (real)N * (real)c->top_k;
        host_write(r, dw->bias, load);
    }
    run_release(r, mark);
}

static size_t moe_idle(const void *cfg) {
    const MoeCfg *c = cfg;
    const size_t d = (size_t)seen_width(c), F = (size_t)c->hidden, biases = c->expert_bias ? 2 * F + d : 0;
    return (size_t)(c->experts - c->top_k) * ((c->act == EXPERT_SWIGLU ? 3 : 2) * d * F + biases);
}

const Ffn moe_ffn = {
    .name = "moe",
    .source = "arXiv:2401.04088, 2412.19437",
    .keys = keys,
    .cfg_size = sizeof(MoeCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = moe_check,
    .weights = moe_weights,
    .saved = moe_saved,
    .forward = moe_forward,
    .backward = moe_backward,
    .idle = moe_idle,
    .varies = true,
    .takes_bf16 = true,
};
