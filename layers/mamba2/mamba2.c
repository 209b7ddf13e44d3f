/* mamba2.c: the mixer mamba2: its weights, forward, backward and extend. */
#include "mamba2.h"
#include "layers/parts.h"

static const char *const gates[] = {"silu", "sigmoid", NULL};
static const Key keys[] = {
    {"heads", KEY_INT, offsetof(Mamba2Cfg, heads), "0", 0, 4096,
     "heads, each with its own state; 0: 2 d_model / head_dim", 0, 0},
    {"head_dim", KEY_INT, offsetof(Mamba2Cfg, head_dim), "64", 1, 1024, "width of a head", 0, 0},
    {"state_size", KEY_INT, offsetof(Mamba2Cfg, state_size), "128", 1, 1024,
     "rows of a head's state: the width of B and C", 0, 0},
    {"groups", KEY_INT, offsetof(Mamba2Cfg, groups), "1", 1, 1024,
     "number of B's and C's, each for heads / groups heads; also groups of the output's norm", 0, 0},
    {"conv", KEY_INT, offsetof(Mamba2Cfg, conv), "4", 0, 64,
     "width of the short convolution of x, B and C, this token included; 0: none, only SiLU", 0, 0},
    {"conv_bias", KEY_BOOL, offsetof(Mamba2Cfg, conv_bias), "true", 0, 0, "bias of the convolution, where there is one",
     0, 0},
    {"bias", KEY_BOOL, offsetof(Mamba2Cfg, bias), "false", 0, 0, "biases of the input and output projections", 0, 0},
    {"gate", KEY_CHOICE, offsetof(Mamba2Cfg, gate), "silu", 0, 0, "function of the output gate z", gates, 0},
    {"rates", KEY_CHOICE, offsetof(Mamba2Cfg, rates), "spread", 0, 0, RATES_MEANING, rates_names, 0},
    LEVELS_KEY(Mamba2Cfg),
    {0},
};

typedef struct {
    Tensor in, in_bias;     /* (2 H P + 2 G N + H + H levels, d): rows [z x B C dt levels] */
    Tensor conv, conv_bias; /* (H P + 2 G N, 1, conv): rows [x B C] */
    Tensor A, D, dt, norm, out, out_bias;
    Tensor L; /* (H,levels) */
} W;
typedef struct {
    Tensor x, B, C, dt; /* (N,H P) (N,G N) (N,G N) before the convolution; (N,H) before softplus */
    Tensor z;           /* (M,H P), M wanted rows */
    Tensor o, states;   /* (N,H,P) with the skip, the states between chunks: absent with levels */
    Tensor delta;       /* (N,H levels): the input of the levels' weights */
} S;
/* Recomputed for the backward. */
typedef struct {
    Tensor x; /* (N,H,P) after the convolution */
    Recur r;
} T;

/* Widths, and the first rows of the parts of `in` (z at 0) and of `conv` (x at 0). */
typedef struct {
    int d, bc, conv, in, x, B, C, dt, levels;
} Part;
static Part mamba2_part_of(const Mamba2Cfg *c) {
    int d = c->heads * c->head_dim, bc = c->groups * c->state_size;
    return (Part){.d = d,
                  .bc = bc,
                  .conv = d + 2 * bc,
                  .in = 2 * d + 2 * bc + c->heads * (1 + c->levels),
                  .x = d,
                  .B = 2 * d,
                  .C = 2 * d + bc,
                  .dt = 2 * d + 2 * bc,
                  .levels = 2 * d + 2 * bc + c->heads};
}

/* Elements of a row of x. */
static int width_of(Tensor x) { return x.rank == 3 ? x.n[1] * x.n[2] : x.n[1]; }

static bool mamba2_check(void *cfg, Err *e) {
    Mamba2Cfg *c = cfg;
    if (!c->base.owner)
        return err_input(
            e, "kv_from: a mamba2 layer has a state instead of keys and values, so it cannot read another layer's");
    if (c->heads == 0) {
        if (2 * c->base.d_model % c->head_dim)
            return err_input(e, "head_dim: %d does not divide 2 x d_model %d; give heads or another head_dim",
                             c->head_dim, c->base.d_model);
        c->heads = 2 * c->base.d_model / c->head_dim;
    }
    if (c->heads % c->groups)
        return err_input(e, "groups: expected a divisor of heads (%d), got %d", c->heads, c->groups);
    if ((long)c->heads * imax(c->head_dim, c->state_size) > 1 << 18)
        return err_input(e, "heads: %d heads of %d x %d are more than %d channels; use fewer or narrower heads",
                         c->heads, c->state_size, c->head_dim, 1 << 18);
    return levels_check(c->levels, (double)c->heads * c->state_size * c->head_dim, e);
}

static void mamba2_weights(const void *cfg, void *w_, Fields *f) {
    const Mamba2Cfg *c = cfg;
    W *w = w_;
    Part p = mamba2_part_of(c);
    field(f, &w->in, "in_proj.weight", 0, p.in, c->base.d_model);
    if (c->bias) field(f, &w->in_bias, "in_proj.bias", FIELD_ZEROS | FIELD_NODECAY, p.in);
    if (c->conv) field(f, &w->conv, "conv1d.weight", FIELD_OWN, p.conv, 1, c->conv);
    if (c->conv && c->conv_bias) field(f, &w->conv_bias, "conv1d.bias", FIELD_ZEROS | FIELD_NODECAY, p.conv);
    field(f, &w->A, "A_log", FIELD_OWN | FIELD_NODECAY | FIELD_F32, c->heads);
    field(f, &w->D, "D", FIELD_ONES | FIELD_NODECAY | FIELD_F32, c->heads);
    field(f, &w->dt, "dt_bias", FIELD_OWN | FIELD_NODECAY | FIELD_F32, c->heads);
    if (c->levels) field(f, &w->L, "L", FIELD_ONES | FIELD_NODECAY | FIELD_F32, c->heads, c->levels);
    field(f, &w->norm, "norm.weight", FIELD_ONES | FIELD_NODECAY, p.d);
    field(f, &w->out, "out_proj.weight", FIELD_RESIDUAL, c->base.d_model, p.d);
    if (c->bias) field(f, &w->out_bias, "out_proj.bias", FIELD_ZEROS | FIELD_NODECAY, c->base.d_model);
}

/* rates: drawn: uniform in 1..16, as in the paper's code. */
static void mamba2_init(const void *cfg, void *w_, uint64_t key) {
    const Mamba2Cfg *c = cfg;
    W *w = w_;
    begin_conv(w->conv, rng_mix(key, 0));
    begin_steps(w->dt, rng_mix(key, 1));
    if (c->rates == RATES_SPREAD) {
        begin_rates(w->A, w->dt, rng_mix(key, 2));
        return;
    }
    for (size_t h = 0; h < (size_t)c->heads; h++) R(w->A)[h] = (real)log(1 + 15 * rng_uniform(rng_mix(key, 2), h));
}

static void mamba2_buffers(const Mamba2Cfg *c, int N, int M, S *s, Fields *f) {
    Part p = mamba2_part_of(c);
    field(f, &s->x, "x", 0, N, p.d);
    field(f, &s->B, "B", 0, N, p.bc);
    field(f, &s->C, "C", 0, N, p.bc);
    field(f, &s->dt, "dt", FIELD_F32, N, c->heads, 1);
    field(f, &s->z, "z", 0, M, p.d);
    field(f, &s->o, "o", 0, N, c->heads, c->head_dim);
    if (c->levels) field(f, &s->delta, "levels", FIELD_F32, N, c->heads * c->levels);
}
static void mamba2_saved(const void *cfg, int N, void *s_, Fields *f) {
    const Mamba2Cfg *c = cfg;
    S *s = s_;
    mamba2_buffers(c, N, N, s, f);
    if (!c->levels) field(f, &s->states, "states", FIELD_F32, recur_keep(N), c->heads, c->state_size, c->head_dim);
}
static int mamba2_state_size(const Mamba2Cfg *c) {
    return levels_states(c->levels) * c->heads * c->state_size * c->head_dim;
}
static Levels mamba2_levels_of(const Mamba2Cfg *c) { return (Levels){c->levels, {c->groups, 1, 1}, 1}; }
static int mamba2_tail(const Mamba2Cfg *c) { return imax(0, c->conv - 1); }
static void mamba2_rows(const void *cfg, KvShape *s) {
    const Mamba2Cfg *c = cfg;
    *s = (KvShape){.state = mamba2_state_size(c) + mamba2_tail(c) * mamba2_part_of(c).conv};
}

static const Gate gate = {GATE_SOFTPLUS, 0};
static GatedNorm mamba2_norm_of(const Mamba2Cfg *c) {
    return (
        GatedNorm){.width = mamba2_part_of(c).d / c->groups, .silu = !c->gate, .before = true, .eps = c->base.norm_eps};
}

/* silu(conv(x)) of the channels from..from+C-1 of the convolution. */
static Tensor mamba2_convolved(Run *r, const Mamba2Cfg *c, const W *w, Tensor x, int from, Tensor state) {
    Tensor y = SCRATCH_OF(r, "convolved", x.dtype, x.n[0], x.n[1]);
    r->ops->short_conv(r, y, x, tensor_part(w->conv, from, x.n[1]), tensor_part(w->conv_bias, from, x.n[1]), true,
                       state, mamba2_state_size(c) + mamba2_tail(c) * from);
    return y;
}
static T mamba2_derive(Run *r, const Mamba2Cfg *c, const W *w, const S *s, Tensor state) {
    Part p = mamba2_part_of(c);
    int N = s->x.n[0], H = c->heads, P = c->head_dim;
    T t = {.x = shaped(mamba2_convolved(r, c, w, s->x, 0, state), H, P)};
    t.r.k = shaped(mamba2_convolved(r, c, w, s->B, p.d, state), c->groups, c->state_size);
    t.r.q = shaped(mamba2_convolved(r, c, w, s->C, p.d + p.bc, state), c->groups, c->state_size);
    t.r.v = SCRATCH_OF(r, "step x", t.x.dtype, N, H, P);
    t.r.g = SCRATCH(r, "log decay", N, H, 1);
    r->ops->step(r, t.r.v, t.x, s->dt, w->dt);
    r->ops->decay(r, t.r.g, s->dt, w->A, w->dt, gate);
    return t;
}

/* One part of the input projection. */
static Projection mamba2_part(const W *w, Tensor y, int from) {
    int n = width_of(y);
    return (Projection){y, tensor_part(w->in, from, n), tensor_part(w->in_bias, from, n)};
}
static void mamba2_run(Run *r, const Mamba2Cfg *c, const W *w, Tensor x, S *s, Tensor state, Tensor y) {
    Mark mark = arena_mark(r->scratch);
    Part p = mamba2_part_of(c);
    bool all = r->in.n == r->out.n; /* otherwise the gate has fewer rows */
    const Projection z = mamba2_part(w, s->z, 0);
    Projection parts[LINEAR_MANY] = {mamba2_part(w, s->x, p.x), mamba2_part(w, s->B, p.B), mamba2_part(w, s->C, p.C),
                                     mamba2_part(w, s->dt, p.dt)};
    int n = 4;
    if (c->levels) parts[n++] = mamba2_part(w, s->delta, p.levels);
    if (all) parts[n++] = z;
    r->ops->linear_many(r, n, parts, x);
    T t = mamba2_derive(r, c, w, s, state);
    const Levels levels = mamba2_levels_of(c);
    if (c->levels)
        levels_forward(r, &levels, t.r, s->delta, w->L, state, 0, s->o);
    else
        r->ops->recur(r, s->o, s->states, t.r, 1, state, 0);
    r->ops->skip(r, s->o, t.x, w->D);
    if (!all) r->ops->linear(r, s->z, wanted_rows(r, x), z.w, z.bias);
    Tensor normed = SCRATCH_OF(r, "normed", s->o.dtype, r->out.n, p.d);
    r->ops->gated_norm(r, normed, wanted_rows(r, s->o), s->z, w->norm, mamba2_norm_of(c));
    r->ops->linear(r, y, normed, w->out, w->out_bias);
    arena_release(r->scratch, mark);
}
static void mamba2_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    (void)kv;
    mamba2_run(r, cfg, w, x, s, ABSENT, y);
}
static void mamba2_extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    (void)kv;
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    S s = {0};
    mamba2_buffers(cfg, r->in.n, r->out.n, &s, &f);
    mamba2_run(r, cfg, w, x, &s, kv_state(slot), y);
    arena_release(r->scratch, mark);
}

/* From the gradient g after a convolution whose channels begin at `at`, compute that of its input, in scratch. */
static Tensor mamba2_conv_backward(Run *r, const W *w, W *dw, Tensor g, Tensor raw, int at) {
    Tensor d = scratch_like(r, "d projection", raw);
    int n = raw.n[1];
    r->ops->short_conv_backward(r, overwrite(d), tensor_part(dw->conv, at, n), tensor_part(dw->conv_bias, at, n),
                                tensor_rows(g, n), raw, tensor_part(w->conv, at, n), tensor_part(w->conv_bias, at, n),
                                true);
    return d;
}
/* From dy, compute the gradients of o and of z. */
static void mamba2_out_backward(Run *r, const Mamba2Cfg *c, const W *w, W *dw, const S *s, Tensor dy, Tensor dout,
                                Tensor dz) {
    Mark mark = arena_mark(r->scratch);
    Tensor n = SCRATCH_OF(r, "normed", s->z.dtype, s->z.n[0], s->z.n[1]), dn = scratch_like(r, "d normed", n);
    r->ops->gated_norm(r, n, s->o, s->z, w->norm, mamba2_norm_of(c));
    r->ops->linear_backward(r, overwrite(dn), dw->out, dw->out_bias, dy, n, w->out);
    r->ops->gated_norm_backward(r, overwrite(dout), overwrite(dz), dw->norm, dn, s->o, s->z, w->norm,
                                mamba2_norm_of(c));
    arena_release(r->scratch, mark);
}
static void mamba2_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv,
                            const KvInto *dkv, const void *s_, Tensor dy, Into dx) {
    (void)kv, (void)dkv;
    const Mamba2Cfg *c = cfg;
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    Mark mark = arena_mark(r->scratch);
    Part p = mamba2_part_of(c);
    Tensor dout = scratch_like(r, "d o", s->o), dz = scratch_like(r, "d z", s->z);
    mamba2_out_backward(r, c, w, dw, s, dy, dout, dz);
    T t = mamba2_derive(r, c, w, s, ABSENT);
    Recur d = {.q = scratch_like(r, "d C", t.r.q),
               .k = scratch_like(r, "d B", t.r.k),
               .v = scratch_like(r, "d step x", t.r.v),
               .g = scratch_like(r, "d g", t.r.g)};
    Tensor dt = zeros_like(r, "d dt", s->dt), dv = scratch_like(r, "d x", t.x);
    Tensor ddelta = scratch_like(r, "d levels", s->delta);
    if (c->levels) {
        const Levels levels = mamba2_levels_of(c);
        levels_backward(r, &levels, &d, ddelta, dw->L, dout, t.r, s->delta, w->L);
    } else {
        const RecurInto into = recur_overwrite(d);
        r->ops->recur_backward(r, &into, dout, t.r, 1, s->states, NULL);
    }
    r->ops->skip_backward(r, overwrite(dv), dw->D, dout, t.x, w->D);
    r->ops->step_backward(r, add_to(dv), add_to(dt), dw->dt, d.v, t.x, s->dt, w->dt);
    r->ops->decay_backward(r, add_to(dt), dw->A, dw->dt, d.g, s->dt, w->A, w->dt, gate);
    Tensor gx = mamba2_conv_backward(r, w, dw, dv, s->x, 0), gB = mamba2_conv_backward(r, w, dw, d.k, s->B, p.d),
           gC = mamba2_conv_backward(r, w, dw, d.q, s->C, p.d + p.bc);
    Projection in[LINEAR_MANY] = {mamba2_part(w, dz, 0), mamba2_part(w, dt, p.dt), mamba2_part(w, s->x, p.x),
                                  mamba2_part(w, s->B, p.B), mamba2_part(w, s->C, p.C)},
               d_in[LINEAR_MANY] = {mamba2_part(dw, dz, 0), mamba2_part(dw, dt, p.dt), mamba2_part(dw, gx, p.x),
                                    mamba2_part(dw, gB, p.B), mamba2_part(dw, gC, p.C)};
    if (c->levels) in[5] = mamba2_part(w, ddelta, p.levels), d_in[5] = mamba2_part(dw, ddelta, p.levels);
    r->ops->linear_many_backward(r, dx, c->levels ? 6 : 5, d_in, x, in);
    arena_release(r->scratch, mark);
}

/* Per head a state is written and read: 4 N P. Inside a chunk a row also meets those before it. */
static double mamba2_flops(const void *cfg, double context) {
    const Mamba2Cfg *c = cfg;
    const Levels levels = {imax(1, c->levels), {c->groups, 1, 1}, 1};
    return levels_flops(&levels, 4.0 * c->heads * c->state_size * c->head_dim,
                        2.0 * c->heads * (c->state_size + c->head_dim), context);
}

const Mixer mamba2_mixer = {
    .name = "mamba2",
    .source = "arXiv:2405.21060",
    .keys = keys,
    .cfg_size = sizeof(Mamba2Cfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = mamba2_check,
    .weights = mamba2_weights,
    .saved = mamba2_saved,
    .rows = mamba2_rows,
    .forward = mamba2_forward,
    .backward = mamba2_backward,
    .extend = mamba2_extend,
    .flops = mamba2_flops,
    .init = mamba2_init,
    .takes_bf16 = true,
};
