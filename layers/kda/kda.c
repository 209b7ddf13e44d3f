/* kda.c: see kda.h. */
#include "kda.h"
#include "../parts.h"

static const char *const gates[] = {"lower_bound", "standard", NULL}, *const out_gates[] = {"low_rank", "full", NULL};
static const Key keys[] = {
    {"heads", KEY_INT, offsetof(KdaCfg, heads), NULL, 1, 1024, "query/key heads", 0, 0},
    {"v_heads", KEY_INT, offsetof(KdaCfg, v_heads), "0", 0, 1024,
     "value heads, a multiple of heads, each with a state of its own; 0: as many as heads", 0, 0},
    {"head_dim", KEY_INT, offsetof(KdaCfg, head_dim), "0", 0, 1024,
     "numbers per query and key head; 0: d_model / heads", 0, 0},
    {"v_dim", KEY_INT, offsetof(KdaCfg, v_dim), "0", 0, 1024, "numbers per value head; 0: head_dim", 0, 0},
    {"conv", KEY_INT, offsetof(KdaCfg, conv), "4", 0, 64,
     "width of the short convolution of q, k and v, this token included; 0: none, only SiLU", 0, 0},
    {"gate", KEY_CHOICE, offsetof(KdaCfg, gate), "lower_bound", 0, 0,
     "log decay: lower_bound: bound sigmoid(exp(A_log) z), standard: -exp(A_log) softplus(z)", gates, 0},
    {"bound", KEY_FLOAT, offsetof(KdaCfg, bound), "-5", -100, -1e-3, "least log decay of one token (gate: lower_bound)",
     0, 0},
    {"gate_rank", KEY_INT, offsetof(KdaCfg, gate_rank), "0", 0, 1 << 16, "rank of the decay's projection; 0: v_dim", 0,
     0},
    {"out_gate", KEY_CHOICE, offsetof(KdaCfg, out_gate), "low_rank", 0, 0, "projection of the output gate", out_gates,
     0},
    {"out_rank", KEY_INT, offsetof(KdaCfg, out_rank), "0", 0, 1 << 16,
     "rank of the output gate's projection (out_gate: low_rank); 0: v_dim", 0, 0},
    {"out_bias", KEY_BOOL, offsetof(KdaCfg, out_bias), "false", 0, 0, "bias of the output gate", 0, 0},
    {"beta_max", KEY_INT, offsetof(KdaCfg, beta_max), "1", 1, 2,
     "largest step of the delta rule; 2 lets the state's transition have negative eigenvalues", 0, 0},
    {0},
};

typedef struct {
    Tensor wq, wk, wv, cq, ck, cv, fa, fb, dt, A, wb, ga, gb, bias, norm, wo;
} W;
/* Kept: what matrix products and the recurrence made. */
typedef struct {
    Tensor q, k, v;   /* (N,H K) (N,H K) (N,HV V) before the convolution */
    Tensor fa, z, b;  /* (N,rank) (N,HV,K) without dt_bias, (N,HV) before the sigmoid */
    Tensor ga, gate;  /* (M,rank) (M,HV,V); M wanted rows */
    Tensor o, states; /* (N,HV,V), the states between chunks */
} S;
/* What follows from it number by number, and is made again for the backward. */
typedef struct {
    Tensor q, k; /* (N,H,K) before the L2 norm */
    Recur x;
} T;
static const double L2_EPS = 1e-6;

static bool check(void *cfg, Err *e) {
    KdaCfg *c = cfg;
    if (!c->base.owner)
        return err_input(e, "kv_from: a kda layer keeps a state, not keys and values; it reads no other's");
    if (c->v_heads == 0) c->v_heads = c->heads;
    if (c->v_heads % c->heads)
        return err_input(e, "v_heads: expected a multiple of heads (%d), got %d", c->heads, c->v_heads);
    if (c->head_dim == 0) {
        if (c->base.d_model % c->heads)
            return err_input(e, "heads: %d does not divide d_model %d; give head_dim or other heads", c->heads,
                             c->base.d_model);
        c->head_dim = c->base.d_model / c->heads;
    }
    if (c->v_dim == 0) c->v_dim = c->head_dim;
    if ((long)c->v_heads * imax(c->head_dim, c->v_dim) > 1 << 18)
        return err_input(e, "v_heads: %d heads of %d x %d are more than %d channels; use fewer or narrower heads",
                         c->v_heads, c->head_dim, c->v_dim, 1 << 18);
    if (c->gate_rank == 0) c->gate_rank = c->v_dim;
    if (c->out_rank == 0) c->out_rank = c->v_dim;
    return true;
}

static void weights(const void *cfg, void *w_, Fields *f) {
    const KdaCfg *c = cfg;
    W *w = w_;
    int d = c->base.d_model, Q = c->heads * c->head_dim, Z = c->v_heads * c->head_dim, V = c->v_heads * c->v_dim;
    field(f, &w->wq, "q_proj.weight", 0, Q, d);
    field(f, &w->wk, "k_proj.weight", 0, Q, d);
    field(f, &w->wv, "v_proj.weight", 0, V, d);
    if (c->conv) {
        field(f, &w->cq, "q_conv1d.weight", FIELD_OWN, Q, 1, c->conv);
        field(f, &w->ck, "k_conv1d.weight", FIELD_OWN, Q, 1, c->conv);
        field(f, &w->cv, "v_conv1d.weight", FIELD_OWN, V, 1, c->conv);
    }
    field(f, &w->fa, "f_a_proj.weight", 0, c->gate_rank, d);
    field(f, &w->fb, "f_b_proj.weight", 0, Z, c->gate_rank);
    field(f, &w->dt, "dt_bias", FIELD_OWN | FIELD_NODECAY | FIELD_F32, Z);
    field(f, &w->A, "A_log", FIELD_OWN | FIELD_NODECAY | FIELD_F32, c->v_heads);
    field(f, &w->wb, "b_proj.weight", 0, c->v_heads, d);
    if (c->out_gate == KDA_FULL) {
        field(f, &w->gb, "g_proj.weight", 0, V, d);
        if (c->out_bias) field(f, &w->bias, "g_proj.bias", FIELD_ZEROS | FIELD_NODECAY, V);
    } else {
        field(f, &w->ga, "g_a_proj.weight", 0, c->out_rank, d);
        field(f, &w->gb, "g_b_proj.weight", 0, V, c->out_rank);
        if (c->out_bias) field(f, &w->bias, "g_b_proj.bias", FIELD_ZEROS | FIELD_NODECAY, V);
    }
    field(f, &w->norm, "o_norm.weight", FIELD_ONES | FIELD_NODECAY, c->v_dim);
    field(f, &w->wo, "o_proj.weight", FIELD_RESIDUAL, d, V);
}

/* Decays between 0.999 and 0.9 per token at first (the standard gate's, for A_log = 0); convolutions that keep the size
 * of what passes. */
static void init(const void *cfg, void *w_, uint64_t key) {
    const KdaCfg *c = cfg;
    W *w = w_;
    begin_conv(w->cq, rng_mix(key, 0));
    begin_conv(w->ck, rng_mix(key, 1));
    begin_conv(w->cv, rng_mix(key, 2));
    begin_steps(w->dt, rng_mix(key, 3));
    for (size_t k = 0; k < tensor_count(w->A); k++)
        R(w->A)[k] = c->gate == KDA_STANDARD ? (real)log(1 + 15 * rng_uniform(rng_mix(key, 4), k)) : 0;
}

static void buffers(const KdaCfg *c, int N, int M, S *s, Fields *f) {
    int H = c->heads, HV = c->v_heads, K = c->head_dim, V = c->v_dim;
    field(f, &s->q, "q", 0, N, H * K);
    field(f, &s->k, "k", 0, N, H * K);
    field(f, &s->v, "v", 0, N, HV * V);
    field(f, &s->fa, "f_a", 0, N, c->gate_rank);
    field(f, &s->z, "z", 0, N, HV, K);
    field(f, &s->b, "b", FIELD_F32, N, HV);
    if (c->out_gate == KDA_LOW_RANK) field(f, &s->ga, "g_a", 0, M, c->out_rank);
    field(f, &s->gate, "gate", 0, M, HV, V);
    field(f, &s->o, "o", 0, N, HV, V);
}
static void saved(const void *cfg, int N, void *s_, Fields *f) {
    const KdaCfg *c = cfg;
    S *s = s_;
    buffers(c, N, N, s, f);
    field(f, &s->states, "states", FIELD_F32, recur_keep(N), c->v_heads, c->head_dim, c->v_dim);
}
/* Where the parts of a sequence's state lie. */
typedef struct {
    int q, k, v, all;
} At;
static At state_at(const KdaCfg *c) {
    int S = c->v_heads * c->head_dim * c->v_dim, tail = imax(0, c->conv - 1), Q = tail * c->heads * c->head_dim;
    return (At){S, S + Q, S + 2 * Q, S + 2 * Q + tail * c->v_heads * c->v_dim};
}
static void rows(const void *cfg, KvShape *s) { *s = (KvShape){.state = state_at(cfg).all}; }

static Gate gate_of(const KdaCfg *c) { return (Gate){c->gate == KDA_STANDARD ? GATE_SOFTPLUS : GATE_BOUND, c->bound}; }
static GatedNorm norm_of(const KdaCfg *c) { return (GatedNorm){.width = c->v_dim, .eps = c->base.norm_eps}; }
static double scale_of(const KdaCfg *c) { return 1 / sqrt(c->head_dim); }

/* All of T from S, in scratch. */
static T derive(Run *r, const KdaCfg *c, const W *w, const S *s, Tensor state) {
    int N = s->q.n[0], H = c->heads, HV = c->v_heads, K = c->head_dim, V = c->v_dim;
    Dtype as = s->q.dtype;
    At at = state_at(c);
    T t = {.q = SCRATCH_OF(r, "conv q", as, N, H, K), .k = SCRATCH_OF(r, "conv k", as, N, H, K)};
    t.x = (Recur){SCRATCH_OF(r, "unit q", as, N, H, K), SCRATCH_OF(r, "unit k", as, N, H, K),
                  SCRATCH_OF(r, "conv v", as, N, HV, V), SCRATCH(r, "log decay", N, HV, K), SCRATCH(r, "beta", N, HV)};
    r->ops->short_conv(r, t.q, s->q, w->cq, ABSENT, true, state, at.q);
    r->ops->short_conv(r, t.k, s->k, w->ck, ABSENT, true, state, at.k);
    r->ops->short_conv(r, t.x.v, s->v, w->cv, ABSENT, true, state, at.v);
    r->ops->l2norm(r, t.x.q, t.q, L2_EPS);
    r->ops->l2norm(r, t.x.k, t.k, L2_EPS);
    r->ops->decay(r, t.x.g, s->z, w->A, w->dt, gate_of(c));
    r->ops->sigmoid(r, t.x.beta, s->b, c->beta_max);
    return t;
}

/* forward and extend are this, without and with a state that lives on. */
static void run(Run *r, const KdaCfg *c, const W *w, Tensor x, S *s, Tensor state, Tensor y) {
    Mark mark = arena_mark(r->scratch);
    bool all = r->in.n == r->out.n, low = present(w->ga); /* else the gate has fewer rows */
    Projection p[] = {{s->q, w->wq, ABSENT}, {s->k, w->wk, ABSENT},
                      {s->v, w->wv, ABSENT}, {s->fa, w->fa, ABSENT},
                      {s->b, w->wb, ABSENT}, {low ? s->ga : s->gate, low ? w->ga : w->gb, low ? ABSENT : w->bias}};
    r->ops->linear_many(r, 5 + all, p, x);
    r->ops->linear(r, s->z, s->fa, w->fb, ABSENT);
    T t = derive(r, c, w, s, state);
    r->ops->recur(r, s->o, s->states, t.x, scale_of(c), state, 0);
    Tensor o = wanted_rows(r, s->o), n = SCRATCH_OF(r, "normed", o.dtype, r->out.n, c->v_heads * c->v_dim);
    if (!all) r->ops->linear(r, p[5].y, wanted_rows(r, x), p[5].w, p[5].bias);
    if (low) r->ops->linear(r, s->gate, s->ga, w->gb, w->bias);
    r->ops->gated_norm(r, n, o, s->gate, w->norm, norm_of(c));
    r->ops->linear(r, y, n, w->wo, ABSENT);
    arena_release(r->scratch, mark);
}
static void forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    (void)kv;
    run(r, cfg, w, x, s, ABSENT, y);
}
static void extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    (void)kv;
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    S s = {0};
    buffers(cfg, r->in.n, r->out.n, &s, &f);
    run(r, cfg, w, x, &s, kv_state(slot), y);
    arena_release(r->scratch, mark);
}

/* d (fresh) = the gradient of the projection, from that of silu(conv(.)) of it, normed where `turned` is there. */
static void conv_backward(Run *r, Tensor d, Tensor dconv, Tensor g, Tensor raw, Tensor turned, Tensor conv) {
    Mark mark = arena_mark(r->scratch);
    if (present(turned)) {
        Tensor whole = fresh_like(r, "d conv", turned);
        r->ops->l2norm_backward(r, whole, g, turned, L2_EPS);
        g = whole;
    }
    r->ops->short_conv_backward(r, d, dconv, ABSENT, g, raw, conv, ABSENT, true);
    arena_release(r->scratch, mark);
}
/* dfa, db (fresh) = the gradients of the gates' projections. */
static void gates_backward(Run *r, const KdaCfg *c, const W *w, W *dw, const S *s, const T *t, const Recur *d,
                           Tensor dfa, Tensor db) {
    Mark mark = arena_mark(r->scratch);
    Tensor dz = fresh_like(r, "d z", s->z);
    r->ops->decay_backward(r, dz, dw->A, dw->dt, d->g, s->z, w->A, w->dt, gate_of(c));
    r->ops->linear_backward(r, dfa, dw->fb, ABSENT, dz, s->fa, w->fb);
    r->ops->sigmoid_backward(r, db, d->beta, t->x.beta, c->beta_max);
    arena_release(r->scratch, mark);
}
/* From dy to the gradients (fresh) of o and of what the gate is projected to first: itself, or its low rank. */
static void out_backward(Run *r, const KdaCfg *c, const W *w, W *dw, const S *s, Tensor dy, Tensor dout, Tensor dga) {
    Mark mark = arena_mark(r->scratch);
    Tensor n = SCRATCH_OF(r, "normed", s->o.dtype, s->o.n[0], c->v_heads * c->v_dim), dn = fresh_like(r, "d normed", n),
           dgate = present(w->ga) ? fresh_like(r, "d gate", s->gate) : dga;
    r->ops->gated_norm(r, n, s->o, s->gate, w->norm, norm_of(c));
    r->ops->linear_backward(r, dn, dw->wo, ABSENT, dy, n, w->wo);
    r->ops->gated_norm_backward(r, dout, dgate, dw->norm, dn, s->o, s->gate, w->norm, norm_of(c));
    if (present(w->ga)) r->ops->linear_backward(r, dga, dw->gb, dw->bias, dgate, s->ga, w->gb);
    arena_release(r->scratch, mark);
}
static void backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, Kv *dkv,
                     const void *s_, Tensor dy, Tensor dx) {
    (void)kv, (void)dkv;
    const KdaCfg *c = cfg;
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    Mark mark = arena_mark(r->scratch);
    bool low = present(w->ga);
    Tensor dout = fresh_like(r, "d o", s->o), dga = fresh_like(r, "d g_a", low ? s->ga : s->gate);
    out_backward(r, c, w, dw, s, dy, dout, dga);
    T t = derive(r, c, w, s, ABSENT);
    Recur d = {fresh_like(r, "d q", t.x.q), fresh_like(r, "d k", t.x.k), fresh_like(r, "d v", t.x.v),
               fresh_like(r, "d g", t.x.g), fresh_like(r, "d beta", t.x.beta)};
    r->ops->recur_backward(r, &d, dout, t.x, scale_of(c), s->states, NULL);
    Projection p[] = {{.w = w->wq}, {.w = w->wk}, {.w = w->wv}, {.w = w->fa}, {.w = w->wb}, {.w = low ? w->ga : w->gb}},
               g[] = {{fresh_like(r, "d projected q", s->q), dw->wq, ABSENT},
                      {fresh_like(r, "d projected k", s->k), dw->wk, ABSENT},
                      {fresh_like(r, "d projected v", s->v), dw->wv, ABSENT},
                      {fresh_like(r, "d f_a", s->fa), dw->fa, ABSENT},
                      {fresh_like(r, "d b", s->b), dw->wb, ABSENT},
                      {dga, low ? dw->ga : dw->gb, low ? ABSENT : dw->bias}};
    gates_backward(r, c, w, dw, s, &t, &d, g[3].y, g[4].y);
    conv_backward(r, g[0].y, dw->cq, d.q, s->q, t.q, w->cq);
    conv_backward(r, g[1].y, dw->ck, d.k, s->k, t.k, w->ck);
    conv_backward(r, g[2].y, dw->cv, d.v, s->v, ABSENT, w->cv);
    r->ops->linear_many_backward(r, dx, 6, g, x, p);
    arena_release(r->scratch, mark);
}

/* Per head: the state is read, corrected, decayed and read again, 6 K V; inside a chunk a row meets those before it. */
static double flops(const void *cfg, double context) {
    const KdaCfg *c = cfg;
    double seen = context < RECUR_CHUNK ? context : RECUR_CHUNK;
    return c->v_heads * (6.0 * c->head_dim * c->v_dim + 2 * seen * (c->head_dim + c->v_dim));
}

const Mixer kda_mixer = {
    .name = "kda",
    .source = "arXiv:2510.26692",
    .keys = keys,
    .cfg_size = sizeof(KdaCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = check,
    .weights = weights,
    .saved = saved,
    .rows = rows,
    .forward = forward,
    .backward = backward,
    .extend = extend,
    .flops = flops,
    .init = init,
    .half = true,
};
