/* kda.c: the mixer kda: its weights, forward, backward and extend. */
#include "kda.h"
#include "layers/linear/levels.h"
#include "layers/parts.h"
#include "ops/host.h"

static const char *const gates[] = {"lower_bound", "standard", NULL}, *const projections[] = {"low_rank", "full", NULL},
                         *const out_gates[] = {"low_rank", "full", "none", NULL},
                         *const out_acts[] = {"sigmoid", "silu", NULL}, *const erases[] = {"head", "channel", NULL};
static const Key keys[] = {
    {"heads", KEY_INT, offsetof(KdaCfg, heads), NULL, 1, 1024, "query/key heads", 0, 0},
    {"kv_heads", KEY_INT, offsetof(KdaCfg, kv_heads), "0", 0, 1024,
     "key heads, a divisor of heads: that many query heads read one state; 0: as many as heads", 0, 0},
    {"v_heads", KEY_INT, offsetof(KdaCfg, v_heads), "0", 0, 1024,
     "value heads, a multiple of heads, each with its own state where kv_heads is heads; 0: as many as heads", 0, 0},
    {"head_dim", KEY_INT, offsetof(KdaCfg, head_dim), "0", 0, 1024, "width of a query and key head; 0: d_model / heads",
     0, 0},
    {"v_dim", KEY_INT, offsetof(KdaCfg, v_dim), "0", 0, 1024, "width of a value head; 0: head_dim", 0, 0},
    {"conv", KEY_INT, offsetof(KdaCfg, conv), "4", 0, 64,
     "width of the short convolution of q, k and v, this token included; 0: none, only SiLU", 0, 0},
    {"conv_bias", KEY_BOOL, offsetof(KdaCfg, conv_bias), "false", 0, 0, "biases of the convolutions", 0, 0},
    {"gate", KEY_CHOICE, offsetof(KdaCfg, gate), "lower_bound", 0, 0,
     "log decay: lower_bound: bound sigmoid(exp(A_log) z), standard: -exp(A_log) softplus(z)", gates, 0},
    {"bound", KEY_FLOAT, offsetof(KdaCfg, bound), "-5", -100, -1e-3, "least log decay of one token (gate: lower_bound)",
     0, 0},
    {"gate_proj", KEY_CHOICE, offsetof(KdaCfg, gate_proj), "low_rank", 0, 0, "projection of the decay", projections, 0},
    {"gate_rank", KEY_INT, offsetof(KdaCfg, gate_rank), "0", 0, 1 << 16,
     "rank of the decay's projection (gate_proj: low_rank); 0: v_dim", 0, 0},
    {"out_gate", KEY_CHOICE, offsetof(KdaCfg, out_gate), "low_rank", 0, 0,
     "projection of the output gate; none: there is no gate", out_gates, 0},
    {"out_act", KEY_CHOICE, offsetof(KdaCfg, out_act), "sigmoid", 0, 0, "function of the output gate", out_acts, 0},
    {"out_rank", KEY_INT, offsetof(KdaCfg, out_rank), "0", 0, 1 << 16,
     "rank of the output gate's projection (out_gate: low_rank); 0: v_dim", 0, 0},
    {"out_bias", KEY_BOOL, offsetof(KdaCfg, out_bias), "false", 0, 0, "bias of the output gate", 0, 0},
    {"beta_max", KEY_INT, offsetof(KdaCfg, beta_max), "1", 1, 2,
     "largest step of the delta rule; 2 lets the state's transition have negative eigenvalues", 0, 0},
    {"erase", KEY_CHOICE, offsetof(KdaCfg, erase), "head", 0, 0,
     "steps of the delta rule: head: one per head; channel: one per key channel to erase and one per value channel to "
     "write (Gated DeltaNet-2)",
     erases, 0},
    {"rates", KEY_CHOICE, offsetof(KdaCfg, rates), "drawn", 0, 0,
     "initial decays: spread: half-lives of 1 to 512 tokens over the channels of each head, evenly in the logarithm; "
     "drawn: by lot",
     rates_names, 0},
    LEVELS_KEY(KdaCfg),
    {0},
};

typedef struct {
    Tensor wq, wk, wv, cq, ck, cv, bq, bk, bv, fa, fb, dt, A, wb, ww, ga, gb, bias, norm, wo;
    Tensor wl, L; /* (HV levels,d), (HV,levels): weights of levels */
} W;
/* Saved: the results of matrix products and of the recurrence. */
typedef struct {
    Tensor q, k, v;   /* (N,H K) (N,G K) (N,states V) before the convolution */
    Tensor fa, z;     /* (N,rank) (N,states,K) without dt_bias */
    Tensor b, w;      /* before the sigmoid: (N,states); with erase: channel (N,G,K) and (N,states,V) */
    Tensor ga, gate;  /* (M,rank) (M,HV,V); M wanted rows */
    Tensor rstd;      /* (M,HV) without a gate */
    Tensor o, states; /* (N,HV,V), the states between chunks: absent with levels */
    Tensor delta;     /* (N,HV levels): Wl x */
} S;
/* Values that follow from S element by element; the backward recomputes them. */
typedef struct {
    Tensor q, k; /* (N,H,K) (N,G,K) before the L2 norm */
    Tensor v;    /* (N,states,V) before the gate of erase: channel */
    Recur x;     /* of tokens; k has G heads */
} T;
static const double L2_EPS = 1e-6;

static Steps kda_steps(const KdaCfg *c) { return (Steps){c->kv_heads, c->heads / c->kv_heads, 1}; }
static int kda_states(const KdaCfg *c) { return c->v_heads / kda_steps(c).group; }
static bool kda_by_channel(const KdaCfg *c) { return c->erase == KDA_BY_CHANNEL; }
static double kda_scale_of(const KdaCfg *c) { return 1 / sqrt(c->head_dim); }
static Levels kda_levels_of(const KdaCfg *c) { return (Levels){c->levels, kda_steps(c), kda_scale_of(c)}; }

static bool kda_check(void *cfg, Err *e) {
    KdaCfg *c = cfg;
    if (!c->base.owner)
        return err_input(
            e, "kv_from: a kda layer has a state instead of keys and values, so it cannot read another layer's");
    if (c->conv_bias && !c->conv) return err_input(e, "conv_bias: true, but conv is 0; set conv, or remove it");
    if (c->out_gate == KDA_NONE && c->out_bias)
        return err_input(e, "out_bias: true, but out_gate is none; remove out_bias, or give out_gate");
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    if (c->heads % c->kv_heads)
        return err_input(e, "kv_heads: expected a divisor of heads (%d), got %d", c->heads, c->kv_heads);
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
    return levels_check(c->levels, (double)kda_states(c) * c->head_dim * c->v_dim, e);
}

static void kda_weights(const void *cfg, void *w_, Fields *f) {
    const KdaCfg *c = cfg;
    W *w = w_;
    const int d = c->base.d_model, Q = c->heads * c->head_dim, K = c->kv_heads * c->head_dim, HS = kda_states(c),
              Z = HS * c->head_dim, V = HS * c->v_dim, out = c->v_heads * c->v_dim;
    field(f, &w->wq, "q_proj.weight", 0, Q, d);
    field(f, &w->wk, "k_proj.weight", 0, K, d);
    field(f, &w->wv, "v_proj.weight", 0, V, d);
    if (c->conv) {
        field(f, &w->cq, "q_conv1d.weight", FIELD_OWN, Q, 1, c->conv);
        field(f, &w->ck, "k_conv1d.weight", FIELD_OWN, K, 1, c->conv);
        field(f, &w->cv, "v_conv1d.weight", FIELD_OWN, V, 1, c->conv);
    }
    if (c->conv_bias) {
        field(f, &w->bq, "q_conv1d.bias", FIELD_ZEROS | FIELD_NODECAY, Q);
        field(f, &w->bk, "k_conv1d.bias", FIELD_ZEROS | FIELD_NODECAY, K);
        field(f, &w->bv, "v_conv1d.bias", FIELD_ZEROS | FIELD_NODECAY, V);
    }
    if (c->gate_proj == KDA_FULL) {
        field(f, &w->fb, "f_proj.weight", 0, Z, d);
    } else {
        field(f, &w->fa, "f_a_proj.weight", 0, c->gate_rank, d);
        field(f, &w->fb, "f_b_proj.weight", 0, Z, c->gate_rank);
    }
    field(f, &w->dt, "dt_bias", FIELD_OWN | FIELD_NODECAY | FIELD_F32, Z);
    field(f, &w->A, "A_log", FIELD_OWN | FIELD_NODECAY | FIELD_F32, HS);
    field(f, &w->wb, "b_proj.weight", 0, kda_by_channel(c) ? K : HS, d);
    if (kda_by_channel(c)) field(f, &w->ww, "w_proj.weight", 0, V, d);
    if (c->levels) {
        field(f, &w->wl, "l_proj.weight", 0, c->v_heads * c->levels, d);
        field(f, &w->L, "L", FIELD_ONES | FIELD_NODECAY | FIELD_F32, c->v_heads, c->levels);
    }
    if (c->out_gate == KDA_FULL) {
        field(f, &w->gb, "g_proj.weight", 0, out, d);
        if (c->out_bias) field(f, &w->bias, "g_proj.bias", FIELD_ZEROS | FIELD_NODECAY, out);
    } else if (c->out_gate == KDA_LOW_RANK) {
        field(f, &w->ga, "g_a_proj.weight", 0, c->out_rank, d);
        field(f, &w->gb, "g_b_proj.weight", 0, out, c->out_rank);
        if (c->out_bias) field(f, &w->bias, "g_b_proj.bias", FIELD_ZEROS | FIELD_NODECAY, out);
    }
    field(f, &w->norm, "o_norm.weight", FIELD_ONES | FIELD_NODECAY, c->v_dim);
    field(f, &w->wo, "o_proj.weight", FIELD_RESIDUAL, d, out);
}

/* rates: spread: of the standard gate softplus(dt_bias), of the lower bound's bound sigmoid(dt_bias), where A_log = 0;
 * a bound leaves no decay above nine tenths of it. */
static void kda_begin_spread(const KdaCfg *c, Tensor dt, uint64_t key) {
    const size_t K = (size_t)c->head_dim;
    for (size_t i = 0; i < tensor_count(dt); i++) {
        const double g = spread_decay(i % K, K, key, i), part = fmin(0.9, g / c->bound);
        R(dt)[i] = (real)(c->gate == KDA_STANDARD ? log(expm1(-g)) : log(part / (1 - part)));
    }
}
/* Initial decays are between 0.999 and 0.9 per token (those of the standard gate, for A_log = 0); convolutions keep
 * the size of the signal. */
static void kda_init(const void *cfg, void *w_, uint64_t key) {
    const KdaCfg *c = cfg;
    W *w = w_;
    begin_conv(w->cq, rng_mix(key, 0));
    begin_conv(w->ck, rng_mix(key, 1));
    begin_conv(w->cv, rng_mix(key, 2));
    const bool spread = c->rates == RATES_SPREAD;
    if (spread)
        kda_begin_spread(c, w->dt, rng_mix(key, 3));
    else
        begin_steps(w->dt, rng_mix(key, 3));
    for (size_t k = 0; k < tensor_count(w->A); k++)
        R(w->A)[k] = c->gate == KDA_STANDARD && !spread ? (real)log(1 + 15 * rng_uniform(rng_mix(key, 4), k)) : 0;
}

static void kda_buffers(const KdaCfg *c, int N, int M, S *s, Fields *f) {
    int H = c->heads, G = c->kv_heads, HV = c->v_heads, HS = kda_states(c), K = c->head_dim, V = c->v_dim;
    field(f, &s->q, "q", 0, N, H * K);
    field(f, &s->k, "k", 0, N, G * K);
    field(f, &s->v, "v", 0, N, HS * V);
    if (c->gate_proj == KDA_LOW_RANK) field(f, &s->fa, "f_a", 0, N, c->gate_rank);
    field(f, &s->z, "z", 0, N, HS, K);
    if (kda_by_channel(c)) {
        field(f, &s->b, "b", 0, N, G, K);
        field(f, &s->w, "w", 0, N, HS, V);
    } else
        field(f, &s->b, "b", FIELD_F32, N, HS);
    if (c->levels) field(f, &s->delta, "levels", FIELD_F32, N, HV * c->levels);
    if (c->out_gate == KDA_LOW_RANK) field(f, &s->ga, "g_a", 0, M, c->out_rank);
    if (c->out_gate == KDA_NONE)
        field(f, &s->rstd, "rstd", FIELD_F32, M, HV);
    else
        field(f, &s->gate, "gate", 0, M, HV, V);
    field(f, &s->o, "o", 0, N, HV, V);
}
static void kda_saved(const void *cfg, int N, void *s_, Fields *f) {
    const KdaCfg *c = cfg;
    S *s = s_;
    kda_buffers(c, N, N, s, f);
    if (!c->levels)
        field(f, &s->states, "states", FIELD_F32, recur_keep(N * steps_each(kda_steps(c))), kda_states(c), c->head_dim,
              c->v_dim);
}
/* Offsets of the parts of a sequence's state. */
typedef struct {
    int q, k, v, all;
} At;
static At state_at(const KdaCfg *c) {
    const int HS = kda_states(c), S = levels_states(c->levels) * HS * c->head_dim * c->v_dim,
              tail = imax(0, c->conv - 1), k = S + tail * c->heads * c->head_dim,
              v = k + tail * c->kv_heads * c->head_dim;
    return (At){S, k, v, v + tail * HS * c->v_dim};
}
static void kda_rows(const void *cfg, KvShape *s) { *s = (KvShape){.state = state_at(cfg).all}; }

static Gate kda_gate_of(const KdaCfg *c) {
    return (Gate){c->gate == KDA_STANDARD ? GATE_SOFTPLUS : GATE_BOUND, c->bound};
}
static GatedNorm kda_norm_of(const KdaCfg *c) {
    return (GatedNorm){.width = c->v_dim, .silu = c->out_act == KDA_SILU, .eps = c->base.norm_eps};
}

/* x += x. */
static void kda_double(Run *r, Tensor x) {
    Mark mark = arena_mark(r->scratch);
    Tensor y = SCRATCH_OF(r, "the same", x.dtype, x.n[0], x.n[1], x.n[2]);
    r->ops->copy(r, y, x);
    r->ops->add(r, x, y);
    arena_release(r->scratch, mark);
}
/* Compute all of T from S, in scratch. */
static T kda_derive(Run *r, const KdaCfg *c, const W *w, const S *s, Tensor state) {
    int N = s->q.n[0], H = c->heads, G = c->kv_heads, HS = kda_states(c), K = c->head_dim, V = c->v_dim;
    Dtype as = s->q.dtype;
    At at = state_at(c);
    T t = {.q = SCRATCH_OF(r, "conv q", as, N, H, K), .k = SCRATCH_OF(r, "conv k", as, N, G, K)};
    t.x = (Recur){.q = SCRATCH_OF(r, "unit q", as, N, H, K),
                  .k = SCRATCH_OF(r, "unit k", as, N, G, K),
                  .v = SCRATCH_OF(r, "conv v", as, N, HS, V),
                  .g = SCRATCH(r, "log decay", N, HS, K)};
    t.v = t.x.v;
    r->ops->short_conv(r, t.q, s->q, w->cq, w->bq, true, state, at.q);
    r->ops->short_conv(r, t.k, s->k, w->ck, w->bk, true, state, at.k);
    r->ops->short_conv(r, t.v, s->v, w->cv, w->bv, true, state, at.v);
    r->ops->l2norm(r, t.x.q, t.q, L2_EPS);
    r->ops->l2norm(r, t.x.k, t.k, L2_EPS);
    r->ops->decay(r, t.x.g, s->z, w->A, w->dt, kda_gate_of(c));
    if (!kda_by_channel(c)) {
        t.x.beta = SCRATCH(r, "beta", N, HS);
        r->ops->sigmoid(r, t.x.beta, s->b, c->beta_max);
        return t;
    }
    t.x.e = SCRATCH_OF(r, "erase key", as, N, G, K), t.x.v = SCRATCH_OF(r, "written v", as, N, HS, V);
    r->ops->sigmoid_gate(r, t.x.e, t.x.k, s->b);
    r->ops->sigmoid_gate(r, t.x.v, t.v, s->w);
    if (c->beta_max == 2) kda_double(r, t.x.e);
    return t;
}

/* The rows of the recurrence from those of tokens, and back: *d holds the gradients of the first, then of tokens'. */
static Recur kda_stepped(Run *r, const KdaCfg *c, Recur x) {
    const Steps n = kda_steps(c);
    const int G = c->kv_heads, HS = kda_states(c), K = c->head_dim;
    if (n.group == 1) return x;
    Recur y = {.q = steps_read_by(r, n, x.q, G, K),
               .k = steps_placed(r, n, x.k, G, K),
               .v = steps_placed(r, n, x.v, HS, c->v_dim),
               .g = steps_placed(r, n, x.g, HS, K)};
    if (present(x.beta)) y.beta = tensor_rows(steps_placed(r, n, x.beta, HS, 1), HS);
    if (present(x.e)) y.e = steps_placed(r, n, x.e, G, K);
    return y;
}
static void kda_stepped_backward(Run *r, const KdaCfg *c, Recur *d, Recur x) {
    const Steps n = kda_steps(c);
    if (n.group == 1) return;
    Tensor dq = SCRATCH_OF(r, "d of queries", d->q.dtype, x.q.n[0], c->heads, c->head_dim);
    steps_reads(r, n, d->q, dq, c->head_dim, true);
    d->q = dq, d->k = steps_placed_backward(r, n, d->k, x.k), d->v = steps_placed_backward(r, n, d->v, x.v);
    d->g = steps_placed_backward(r, n, d->g, x.g);
    if (present(d->beta)) d->beta = steps_placed_backward(r, n, shaped(d->beta, kda_states(c), 1), x.beta);
    if (present(d->e)) d->e = steps_placed_backward(r, n, d->e, x.e);
}

/* y (M,HV V): the input of the output projection, from the wanted rows of o. */
static void kda_readout(Run *r, const KdaCfg *c, const W *w, const S *s, Tensor o, Tensor rstd, Tensor y) {
    if (c->out_gate == KDA_NONE)
        r->ops->rmsnorm(r, shaped(y, c->v_heads, c->v_dim), rstd, o, w->norm, c->base.norm_eps);
    else
        r->ops->gated_norm(r, y, o, s->gate, w->norm, kda_norm_of(c));
}
/* The projections of the layer's input whose results are saved: those of all rows, and that of the output gate, if
 * there is one, of the wanted rows. */
static int kda_inputs(const KdaCfg *c) { return 5 + kda_by_channel(c) + (c->levels > 0); }
static int kda_projections(const KdaCfg *c, const W *w, const S *s, Projection p[LINEAR_MANY]) {
    const int n = kda_inputs(c);
    const bool full = c->gate_proj == KDA_FULL, low = c->out_gate == KDA_LOW_RANK;
    p[0] = (Projection){s->q, w->wq, ABSENT}, p[1] = (Projection){s->k, w->wk, ABSENT};
    p[2] = (Projection){s->v, w->wv, ABSENT}, p[4] = (Projection){s->b, w->wb, ABSENT};
    p[3] = (Projection){full ? s->z : s->fa, full ? w->fb : w->fa, ABSENT};
    if (kda_by_channel(c)) p[5] = (Projection){s->w, w->ww, ABSENT};
    if (c->levels) p[n - 1] = (Projection){s->delta, w->wl, ABSENT};
    if (c->out_gate == KDA_NONE) return n;
    p[n] = (Projection){low ? s->ga : s->gate, low ? w->ga : w->gb, low ? ABSENT : w->bias};
    return n + 1;
}

/* s->o by the recurrence of x, which has rows of steps. */
static void kda_recur(Run *r, const KdaCfg *c, const W *w, const S *s, Recur x, Tensor state) {
    if (c->levels) {
        const Levels levels = kda_levels_of(c);
        levels_forward(r, &levels, x, s->delta, w->L, state, 0, s->o);
        return;
    }
    Stepped steps;
    Run *as = steps_run(r, kda_steps(c), &steps);
    const int HS = kda_states(c), V = c->v_dim;
    Tensor read = as == r ? s->o : SCRATCH_OF(r, "o of steps", s->o.dtype, as->batch->N, HS, V);
    r->ops->recur(as, read, s->states, x, kda_scale_of(c), state, 0);
    if (as != r) steps_reads(r, kda_steps(c), read, s->o, HS / c->kv_heads * V, true);
}
/* The inner function of forward (without a state) and extend (with one). */
static void kda_run(Run *r, const KdaCfg *c, const W *w, Tensor x, S *s, Tensor state, Tensor y) {
    RunMark mark = run_mark(r);
    bool all = r->in.n == r->out.n; /* otherwise the gate has fewer rows */
    Projection p[LINEAR_MANY];
    const int n = kda_projections(c, w, s, p), rows = kda_inputs(c);
    r->ops->linear_many(r, all ? n : rows, p, x);
    if (c->gate_proj == KDA_LOW_RANK) r->ops->linear(r, s->z, s->fa, w->fb, ABSENT);
    kda_recur(r, c, w, s, kda_stepped(r, c, kda_derive(r, c, w, s, state).x), state);
    Tensor o = wanted_rows(r, s->o), out = SCRATCH_OF(r, "normed", o.dtype, r->out.n, c->v_heads * c->v_dim);
    if (!all && n > rows) r->ops->linear(r, p[rows].y, wanted_rows(r, x), p[rows].w, p[rows].bias);
    if (c->out_gate == KDA_LOW_RANK) r->ops->linear(r, s->gate, s->ga, w->gb, w->bias);
    kda_readout(r, c, w, s, o, s->rstd, out);
    r->ops->linear(r, y, out, w->wo, ABSENT);
    run_release(r, mark);
}
static void kda_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    (void)kv;
    kda_run(r, cfg, w, x, s, ABSENT, y);
}
static void kda_extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    (void)kv;
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    S s = {0};
    kda_buffers(cfg, r->in.n, r->out.n, &s, &f);
    kda_run(r, cfg, w, x, &s, kv_state(slot), y);
    arena_release(r->scratch, mark);
}

/* Overwrite d with the gradient of the projection, from that of silu(conv(.)) of it, which is normed if `turned` is
 * present. */
static void kda_conv_backward(Run *r, Tensor d, Tensor dconv, Tensor dbias, Tensor g, Tensor raw, Tensor turned,
                              Tensor conv, Tensor bias) {
    Mark mark = arena_mark(r->scratch);
    if (present(turned)) {
        Tensor whole = scratch_like(r, "d conv", turned);
        r->ops->l2norm_backward(r, overwrite(whole), g, turned, L2_EPS);
        g = whole;
    }
    r->ops->short_conv_backward(r, overwrite(d), dconv, dbias, g, raw, conv, bias, true);
    arena_release(r->scratch, mark);
}
/* Overwrite dfirst with the gradient of the decay's first projection, db with that of beta's, or db and dgate with
 * those of the two gates. *d gets the gradients of k and v before the gates. */
static void kda_gates_backward(Run *r, const KdaCfg *c, const W *w, W *dw, const S *s, const T *t, Recur *d,
                               Tensor dfirst, Tensor db, Tensor dgate, Tensor dv) {
    Mark mark = arena_mark(r->scratch);
    const bool low = c->gate_proj == KDA_LOW_RANK;
    Tensor dz = low ? scratch_like(r, "d z", s->z) : dfirst;
    r->ops->decay_backward(r, overwrite(dz), dw->A, dw->dt, d->g, s->z, w->A, w->dt, kda_gate_of(c));
    if (low) r->ops->linear_backward(r, overwrite(dfirst), dw->fb, ABSENT, dz, s->fa, w->fb);
    arena_release(r->scratch, mark);
    if (!kda_by_channel(c)) {
        r->ops->sigmoid_backward(r, overwrite(db), d->beta, t->x.beta, c->beta_max);
        return;
    }
    if (c->beta_max == 2) kda_double(r, d->e);
    r->ops->sigmoid_gate_backward(r, add_to(d->k), overwrite(db), d->e, t->x.k, s->b);
    r->ops->sigmoid_gate_backward(r, overwrite(dv), overwrite(dgate), d->v, t->v, s->w);
    d->v = dv;
}
/* From dy, overwrite the gradients of o and of the gate's first projection: the gate itself, or its low-rank factor. */
static void kda_out_backward(Run *r, const KdaCfg *c, const W *w, W *dw, const S *s, Tensor dy, Tensor dout,
                             Tensor dfirst) {
    Mark mark = arena_mark(r->scratch);
    const int N = s->o.n[0], HV = c->v_heads, V = c->v_dim;
    const bool low = c->out_gate == KDA_LOW_RANK, none = c->out_gate == KDA_NONE;
    Tensor n = SCRATCH_OF(r, "normed", s->o.dtype, N, HV * V), dn = scratch_like(r, "d normed", n),
           dgate = low ? scratch_like(r, "d gate", s->gate) : dfirst, rstd = none ? SCRATCH(r, "rstd", N, HV) : ABSENT;
    kda_readout(r, c, w, s, s->o, rstd, n);
    r->ops->linear_backward(r, overwrite(dn), dw->wo, ABSENT, dy, n, w->wo);
    if (none)
        r->ops->rmsnorm_backward(r, overwrite(dout), dw->norm, shaped(dn, HV, V), s->o, w->norm, s->rstd);
    else
        r->ops->gated_norm_backward(r, overwrite(dout), overwrite(dgate), dw->norm, dn, s->o, s->gate, w->norm,
                                    kda_norm_of(c));
    if (low) r->ops->linear_backward(r, overwrite(dfirst), dw->gb, dw->bias, dgate, s->ga, w->gb);
    arena_release(r->scratch, mark);
}
/* Overwrite d, the gradients of x, and with levels that of their projection, from the gradient of o. */
static void kda_recur_backward(Run *r, const KdaCfg *c, const W *w, W *dw, const S *s, const Recur *d, Recur x,
                               Tensor dout, Tensor ddelta) {
    if (c->levels) {
        const Levels levels = kda_levels_of(c);
        levels_backward(r, &levels, d, ddelta, dw->L, dout, x, s->delta, w->L);
        return;
    }
    Stepped steps;
    Run *as = steps_run(r, kda_steps(c), &steps);
    const RecurInto into = recur_overwrite(*d);
    r->ops->recur_backward(as, &into, steps_read_by(r, kda_steps(c), dout, kda_states(c), c->v_dim), x, kda_scale_of(c),
                           s->states, NULL);
}
static void kda_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, const KvInto *dkv,
                         const void *s_, Tensor dy, Into dx) {
    (void)kv, (void)dkv;
    const KdaCfg *c = cfg;
    const W *w = w_;
    W *dw = dw_;
    const S *s = s_;
    RunMark mark = run_mark(r);
    const bool low = c->out_gate == KDA_LOW_RANK;
    const S d_of = {.q = scratch_like(r, "d projected q", s->q),
                    .k = scratch_like(r, "d projected k", s->k),
                    .v = scratch_like(r, "d projected v", s->v),
                    .fa = scratch_like(r, "d f_a", s->fa),
                    .z = c->gate_proj == KDA_FULL ? scratch_like(r, "d z", s->z) : ABSENT,
                    .b = scratch_like(r, "d b", s->b),
                    .w = scratch_like(r, "d w", s->w),
                    .delta = scratch_like(r, "d levels", s->delta),
                    .ga = scratch_like(r, "d g_a", s->ga),
                    .gate = low ? ABSENT : scratch_like(r, "d gate", s->gate)};
    Projection p[LINEAR_MANY], g[LINEAR_MANY];
    const int n = kda_projections(c, w, s, p), rows = kda_inputs(c);
    kda_projections(c, dw, &d_of, g);
    for (int i = 0; i < n; i++) p[i] = (Projection){.w = p[i].w};
    Tensor dout = scratch_like(r, "d o", s->o);
    kda_out_backward(r, c, w, dw, s, dy, dout, n > rows ? g[rows].y : ABSENT);
    T t = kda_derive(r, c, w, s, ABSENT);
    const Recur x_of = kda_stepped(r, c, t.x);
    Recur d = {.q = scratch_like(r, "d q", x_of.q),
               .k = scratch_like(r, "d k", x_of.k),
               .v = scratch_like(r, "d v", x_of.v),
               .g = scratch_like(r, "d g", x_of.g),
               .beta = scratch_like(r, "d beta", x_of.beta),
               .e = scratch_like(r, "d e", x_of.e)};
    kda_recur_backward(r, c, w, dw, s, &d, x_of, dout, d_of.delta);
    kda_stepped_backward(r, c, &d, t.x);
    kda_gates_backward(r, c, w, dw, s, &t, &d, g[3].y, g[4].y, d_of.w,
                       kda_by_channel(c) ? scratch_like(r, "d conv v", t.v) : ABSENT);
    kda_conv_backward(r, g[0].y, dw->cq, dw->bq, d.q, s->q, t.q, w->cq, w->bq);
    kda_conv_backward(r, g[1].y, dw->ck, dw->bk, d.k, s->k, t.k, w->ck, w->bk);
    kda_conv_backward(r, g[2].y, dw->cv, dw->bv, d.v, s->v, ABSENT, w->cv, w->bv);
    r->ops->linear_many_backward(r, dx, n, g, x, p);
    run_release(r, mark);
}

/* Per head the state is read, corrected, decayed and read again: 6 K V, of every level. Inside a chunk a row also
 * meets those before it. */
static double kda_flops(const void *cfg, double context) {
    const KdaCfg *c = cfg;
    const Levels levels = {imax(1, c->levels), kda_steps(c), kda_scale_of(c)};
    return levels_flops(&levels, 6.0 * kda_states(c) * c->head_dim * c->v_dim,
                        2.0 * kda_states(c) * (c->head_dim + c->v_dim), context);
}

const Mixer kda_mixer = {
    .name = "kda",
    .source = "arXiv:2510.26692",
    .keys = keys,
    .cfg_size = sizeof(KdaCfg),
    .w_size = sizeof(W),
    .s_size = sizeof(S),
    .check = kda_check,
    .weights = kda_weights,
    .saved = kda_saved,
    .rows = kda_rows,
    .forward = kda_forward,
    .backward = kda_backward,
    .extend = kda_extend,
    .flops = kda_flops,
    .init = kda_init,
    .takes_bf16 = true,
};
