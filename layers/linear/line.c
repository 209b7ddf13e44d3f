/* line.c: see line.h. */
#include "line.h"
#include "../parts.h"

static const double unit_eps = 1e-6; /* of l2norm, as every public implementation has it */

static int keys_of(const LineCfg *c) { return c->heads * c->head_dim; }
static int values_of(const LineCfg *c) { return c->v_heads * c->v_dim; }
/* Columns of S: the values, and the ones that make the denominator. */
static int columns(const LineCfg *c) { return c->v_dim + c->kind->quotient; }
static int tail(const LineCfg *c) { return c->kind->delta && c->conv > 1 ? c->conv - 1 : 0; }
static int state_size(const LineCfg *c) { return c->v_heads * c->head_dim * columns(c); }
static double scale_of(const LineCfg *c) { return c->kind->quotient ? 1 : 1 / sqrt(c->head_dim); }
static bool gated(const LineCfg *c) { return !c->kind->quotient && (c->kind->fixed_gate || c->gate); }

bool line_check(LineCfg *c, const LineKind *kind, double v_per_k, Err *e) {
    c->kind = kind;
    if (!c->base.owner)
        return err_input(e, "kv_from: this layer keeps a state, not keys and values; it reads no other's");
    if (c->v_heads == 0) c->v_heads = c->heads;
    if (c->v_heads % c->heads)
        return err_input(e, "v_heads: expected a multiple of heads (%d), got %d", c->heads, c->v_heads);
    if (c->head_dim == 0) {
        if (c->base.d_model % c->heads)
            return err_input(e, "heads: %d does not divide d_model %d; give head_dim or other heads", c->heads,
                             c->base.d_model);
        c->head_dim = c->base.d_model / c->heads;
    }
    if (c->v_dim == 0) c->v_dim = (int)(c->head_dim * v_per_k);
    if ((long)c->v_heads * imax(c->head_dim, c->v_dim) > 1 << 18)
        return err_input(e, "heads: %d heads of %d x %d are more than %d channels; use fewer or narrower heads",
                         c->v_heads, c->head_dim, c->v_dim, 1 << 18);
    bool turns = kind->map == MAP_ROTATE && c->rope.type != ROPE_NONE;
    if (turns && c->head_dim % 2)
        return err_input(e, "head_dim: rope turns pairs, expected an even number, got %d", c->head_dim);
    return !turns || rope_make(&c->table, &c->rope, c->head_dim, c->base.max_positions, e);
}

void line_weights(const void *cfg, void *w_, Fields *f) {
    const LineCfg *c = cfg;
    LineW *w = w_;
    int d = c->base.d_model, K = keys_of(c), V = values_of(c), HV = c->v_heads;
    field(f, &w->wq, "q_proj.weight", 0, K, d);
    field(f, &w->wk, "k_proj.weight", 0, K, d);
    field(f, &w->wv, "v_proj.weight", 0, V, d);
    if (c->kind->delta && c->conv) {
        field(f, &w->cq, "q_conv1d.weight", FIELD_OWN, K, 1, c->conv);
        field(f, &w->ck, "k_conv1d.weight", FIELD_OWN, K, 1, c->conv);
        field(f, &w->cv, "v_conv1d.weight", FIELD_OWN, V, 1, c->conv);
    }
    if (c->kind->decay == DECAY_HEAD) field(f, &w->wa, "gt_proj.weight", 0, HV, d);
    if (c->kind->decay == DECAY_CHANNEL) {
        field(f, &w->wa0, "gk_proj.0.weight", 0, c->gate_rank, d);
        field(f, &w->wa, "gk_proj.1.weight", 0, K, c->gate_rank);
        field(f, &w->ba, "gk_proj.1.bias", FIELD_ZEROS | FIELD_NODECAY, K);
    }
    if (c->kind->decay == DECAY_RATE) {
        field(f, &w->wa, "a_proj.weight", 0, HV, d);
        field(f, &w->A, "A_log", FIELD_OWN | FIELD_NODECAY | FIELD_F32, HV);
        field(f, &w->dt, "dt_bias", FIELD_OWN | FIELD_NODECAY | FIELD_F32, HV);
    }
    if (c->kind->delta) field(f, &w->wb, "b_proj.weight", 0, HV, d);
    if (gated(c)) field(f, &w->wg, "g_proj.weight", 0, V, d);
    if (c->kind->norm) field(f, &w->norm, c->kind->norm, FIELD_ONES | FIELD_NODECAY, c->v_dim);
    field(f, &w->wo, c->kind->out, FIELD_RESIDUAL, d, V);
}

/* Rates uniform in 0..16, as Gated DeltaNet begins. */
void line_init(const void *cfg, void *w_, uint64_t key) {
    (void)cfg;
    LineW *w = w_;
    begin_conv(w->cq, rng_mix(key, 0));
    begin_conv(w->ck, rng_mix(key, 1));
    begin_conv(w->cv, rng_mix(key, 2));
    begin_steps(w->dt, rng_mix(key, 3));
    for (size_t h = 0; h < tensor_count(w->A); h++) R(w->A)[h] = (real)log(16 * rng_uniform(rng_mix(key, 4), h));
}

/* N rows, M of them wanted behind the recurrence. */
static void buffers(const LineCfg *c, int N, int M, bool keep, LineS *s, Fields *f) {
    int K = keys_of(c), V = values_of(c), HV = c->v_heads;
    field(f, &s->q, "q", 0, N, K);
    field(f, &s->k, "k", 0, N, K);
    field(f, &s->v, "v", 0, N, V);
    if (c->kind->decay == DECAY_HEAD || c->kind->decay == DECAY_RATE) field(f, &s->a, "decay", FIELD_F32, N, HV, 1);
    if (c->kind->decay == DECAY_CHANNEL) {
        field(f, &s->a0, "decay, low rank", 0, N, c->gate_rank);
        field(f, &s->a, "decay", 0, N, c->heads, c->head_dim);
    }
    if (c->kind->delta) field(f, &s->beta, "beta", FIELD_F32, N, HV);
    if (keep) field(f, &s->keep, "states", FIELD_F32, recur_keep(N), HV, c->head_dim, columns(c));
    field(f, &s->o, "o", 0, N, HV, columns(c));
    if (gated(c)) field(f, &s->gate, "gate", 0, M, V);
    if (!gated(c) && !c->kind->quotient) field(f, &s->rstd, "rstd", FIELD_F32, M, HV);
}
void line_saved(const void *cfg, int N, void *s, Fields *f) { buffers(cfg, N, N, true, s, f); }

void line_rows(const void *cfg, KvShape *s) {
    const LineCfg *c = cfg;
    *s = (KvShape){.state = state_size(c) + tail(c) * (2 * keys_of(c) + values_of(c))};
}

/* ---- inner functions ----------------------------------------------------------------------------------------------
 */

/* What enters the recurrence, in scratch: made from what is saved by the forward and once more by the backward. */
typedef struct {
    Recur x;
    Tensor cq, ck, cv; /* behind the convolutions */
} Fed;
static Tensor convolved(Run *r, const LineCfg *c, Tensor x, Tensor w, Tensor state, int at) {
    if (!c->kind->delta) return x;
    Tensor y = SCRATCH_OF(r, "convolved", x.dtype, x.n[0], x.n[1]);
    r->ops->short_conv(r, y, x, w, ABSENT, true, state, at);
    return y;
}
static Tensor mapped(Run *r, const LineCfg *c, Tensor x) {
    Tensor in = shaped(x, c->heads, c->head_dim);
    if (c->kind->map != MAP_UNIT && c->kind->map != MAP_ELU) return in;
    Tensor y = SCRATCH_OF(r, "features", in.dtype, in.n[0], in.n[1], in.n[2]);
    if (c->kind->map == MAP_UNIT)
        r->ops->l2norm(r, y, in, unit_eps);
    else
        r->ops->elu1(r, y, in);
    return y;
}
static Gate gate_of(const LineCfg *c) {
    if (c->kind->decay == DECAY_RATE) return (Gate){GATE_SOFTPLUS, 0};
    return (Gate){GATE_LOGSIGMOID, c->gate_divisor};
}
static Tensor decays(Run *r, const LineCfg *c, const LineW *w, const LineS *s) {
    if (c->kind->decay == DECAY_NONE) return ABSENT;
    if (c->kind->decay == DECAY_CONSTANT) {
        Tensor g = SCRATCH(r, "decays", s->q.n[0], c->v_heads, 1);
        r->ops->repeat(r, g, c->constant);
        return g;
    }
    Tensor g = SCRATCH(r, "decays", s->a.n[0], s->a.n[1], s->a.n[2]);
    r->ops->decay(r, g, s->a, w->A, present(w->dt) ? w->dt : w->ba, gate_of(c));
    return g;
}
static Fed feed(Run *r, const LineCfg *c, const LineW *w, const LineS *s, Tensor state) {
    int at = state_size(c), step = tail(c) * keys_of(c);
    Fed f = {.cq = convolved(r, c, s->q, w->cq, state, at),
             .ck = convolved(r, c, s->k, w->ck, state, at + step),
             .cv = convolved(r, c, s->v, w->cv, state, at + 2 * step)};
    f.x = (Recur){.q = mapped(r, c, f.cq),
                  .k = mapped(r, c, f.ck),
                  .v = shaped(f.cv, c->v_heads, c->v_dim),
                  .g = decays(r, c, w, s),
                  .beta = s->beta};
    if (c->kind->quotient) {
        Tensor v = SCRATCH_OF(r, "values and one", f.cv.dtype, f.cv.n[0], c->v_heads, columns(c));
        r->ops->widen(r, v, f.x.v);
        f.x.v = v;
    }
    return f;
}

static GatedNorm norm_of(const LineCfg *c) {
    return (GatedNorm){.width = c->v_dim, .silu = true, .eps = c->base.norm_eps};
}
/* y (M,HV*V): what the output projection takes. */
static void readout(Run *r, const LineCfg *c, const LineW *w, const LineS *s, Tensor o, Tensor rstd, Tensor y) {
    Tensor heads = shaped(y, c->v_heads, c->v_dim);
    if (c->kind->quotient)
        r->ops->quotient(r, heads, o, c->eps);
    else if (gated(c))
        r->ops->gated_norm(r, heads, o, shaped(s->gate, c->v_heads, c->v_dim), w->norm, norm_of(c));
    else
        r->ops->rmsnorm(r, heads, rstd, o, w->norm, c->base.norm_eps);
}

/* ---- forward ------------------------------------------------------------------------------------------------------
 */
static void project(Run *r, const LineCfg *c, const LineW *w, Tensor x, LineS *s) {
    const Ops *op = r->ops;
    Mark mark = arena_mark(r->scratch);
    Projection p[6] = {{s->q, w->wq, ABSENT}, {s->k, w->wk, ABSENT}, {s->v, w->wv, ABSENT}};
    int n = 3;
    Tensor b = c->kind->delta ? SCRATCH(r, "beta", s->beta.n[0], s->beta.n[1]) : ABSENT;
    if (present(s->a))
        p[n++] = present(s->a0) ? (Projection){s->a0, w->wa0, ABSENT} : (Projection){s->a, w->wa, ABSENT};
    if (c->kind->delta) p[n++] = (Projection){b, w->wb, ABSENT};
    if (gated(c) && r->in.n == r->out.n) p[n++] = (Projection){s->gate, w->wg, ABSENT};
    op->linear_many(r, n, p, x);
    if (c->kind->map == MAP_ROTATE) {
        op->rope(r, shaped(s->q, c->heads, c->head_dim), &c->table, r->in, 1);
        op->rope(r, shaped(s->k, c->heads, c->head_dim), &c->table, r->in, 1);
    }
    if (present(s->a0)) op->linear(r, s->a, s->a0, w->wa, ABSENT);
    if (c->kind->delta) op->sigmoid(r, s->beta, b, c->beta_max);
    arena_release(r->scratch, mark);
}
/* forward and extend are this, without and with a state. */
static void run(Run *r, const LineCfg *c, const LineW *w, Tensor x, LineS *s, Tensor state, Tensor y) {
    Mark mark = arena_mark(r->scratch);
    project(r, c, w, x, s);
    Fed f = feed(r, c, w, s, state);
    r->ops->recur(r, s->o, s->keep, f.x, scale_of(c), state, 0);
    if (gated(c) && r->in.n != r->out.n) r->ops->linear(r, s->gate, wanted_rows(r, x), w->wg, ABSENT);
    Tensor out = SCRATCH_OF(r, "read", s->o.dtype, r->out.n, values_of(c));
    readout(r, c, w, s, wanted_rows(r, s->o), s->rstd, out);
    r->ops->linear(r, y, out, w->wo, ABSENT);
    arena_release(r->scratch, mark);
}
void line_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    (void)kv;
    run(r, cfg, w, x, s, ABSENT, y);
}
void line_extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    (void)kv;
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    LineS s = {0};
    buffers(cfg, r->in.n, r->out.n, false, &s, &f);
    run(r, cfg, w, x, &s, kv_state(slot), y);
    arena_release(r->scratch, mark);
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 */
/* From the gradient g of what entered the recurrence to that of the projection, in scratch or g; cx: behind the
 * convolution. */
static Tensor channel_backward(Run *r, const LineCfg *c, Tensor dconv, Tensor g, Tensor raw, Tensor cx, Tensor fx,
                               Tensor conv, LineMap map) {
    const Ops *op = r->ops;
    if (map == MAP_ROTATE) op->rope(r, g, &c->table, r->in, -1);
    if (map == MAP_UNIT || map == MAP_ELU) {
        Tensor d = fresh_like(r, "d convolved", g);
        if (map == MAP_UNIT)
            op->l2norm_backward(r, d, g, shaped(cx, g.n[1], g.n[2]), unit_eps);
        else
            op->elu1_backward(r, d, g, fx);
        g = d;
    }
    g = tensor_rows(g, raw.n[1]);
    if (!c->kind->delta) return g;
    Tensor d = fresh_like(r, "d projected", raw);
    op->short_conv_backward(r, d, dconv, ABSENT, g, raw, conv, ABSENT, true);
    return d;
}
/* Projections of the layer's input, whose gradients are made by one call. */
typedef struct {
    int n;
    Projection w[LINEAR_MANY], d[LINEAR_MANY];
} Inputs;
static void input(Inputs *in, Tensor dy, Tensor w, Tensor dw) {
    in->w[in->n] = (Projection){.w = w};
    in->d[in->n++] = (Projection){dy, dw, ABSENT};
}
static void decay_backward(Run *r, const LineCfg *c, const LineW *w, LineW *dw, const LineS *s, Tensor dg, Inputs *in) {
    if (!present(s->a)) return;
    const Ops *op = r->ops;
    Tensor da = fresh_like(r, "d decay", s->a);
    op->decay_backward(r, da, dw->A, present(dw->dt) ? dw->dt : dw->ba, dg, s->a, w->A, present(w->dt) ? w->dt : w->ba,
                       gate_of(c));
    da = tensor_rows(da, s->a.n[1] * s->a.n[2]);
    if (present(s->a0)) {
        Tensor d0 = fresh_like(r, "d decay, low rank", s->a0);
        op->linear_backward(r, d0, dw->wa, ABSENT, da, s->a0, w->wa);
        input(in, d0, w->wa0, dw->wa0);
    } else
        input(in, da, w->wa, dw->wa);
}
/* The gradient of o from that of y. */
static Tensor readout_backward(Run *r, const LineCfg *c, const LineW *w, LineW *dw, const LineS *s, Tensor dy,
                               Inputs *in) {
    const Ops *op = r->ops;
    int N = r->in.n, HV = c->v_heads, V = c->v_dim;
    Tensor dout = fresh_like(r, "d o", s->o), out = SCRATCH_OF(r, "read", s->o.dtype, N, HV * V),
           dread = fresh_like(r, "d read", out), rstd = present(s->rstd) ? SCRATCH(r, "rstd", N, HV) : ABSENT;
    readout(r, c, w, s, s->o, rstd, out);
    op->linear_backward(r, dread, dw->wo, ABSENT, dy, out, w->wo);
    Tensor heads = shaped(dread, HV, V);
    if (c->kind->quotient)
        op->quotient_backward(r, dout, heads, shaped(out, HV, V), s->o, c->eps);
    else if (gated(c)) {
        Tensor dgate = fresh_like(r, "d gate", s->gate);
        op->gated_norm_backward(r, dout, shaped(dgate, HV, V), dw->norm, heads, s->o, shaped(s->gate, HV, V), w->norm,
                                norm_of(c));
        input(in, dgate, w->wg, dw->wg);
    } else
        op->rmsnorm_backward(r, dout, dw->norm, heads, s->o, w->norm, s->rstd);
    return dout;
}
void line_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, Kv *dkv, const void *s_,
                   Tensor dy, Tensor dx) {
    (void)kv, (void)dkv;
    const LineCfg *c = cfg;
    const LineW *w = w_;
    LineW *dw = dw_;
    const LineS *s = s_;
    const Ops *op = r->ops;
    Mark mark = arena_mark(r->scratch);
    Inputs in = {0};
    Tensor dout = readout_backward(r, c, w, dw, s, dy, &in);
    Fed f = feed(r, c, w, s, ABSENT);
    Recur d = {.q = fresh_like(r, "d q", f.x.q),
               .k = fresh_like(r, "d k", f.x.k),
               .v = fresh_like(r, "d v", f.x.v),
               .g = c->kind->decay == DECAY_CONSTANT ? ABSENT : fresh_like(r, "d g", f.x.g),
               .beta = fresh_like(r, "d beta", f.x.beta)};
    op->recur_backward(r, &d, dout, f.x, scale_of(c), s->keep, NULL);
    decay_backward(r, c, w, dw, s, d.g, &in);
    if (c->kind->delta) {
        Tensor db = fresh_like(r, "d beta logit", s->beta);
        op->sigmoid_backward(r, db, d.beta, s->beta, c->beta_max);
        input(&in, db, w->wb, dw->wb);
    }
    if (c->kind->quotient) {
        Tensor dv = fresh_like(r, "d values", shaped(s->v, c->v_heads, c->v_dim));
        op->widen_backward(r, dv, d.v);
        d.v = dv;
    }
    input(&in, channel_backward(r, c, dw->cq, d.q, s->q, f.cq, f.x.q, w->cq, c->kind->map), w->wq, dw->wq);
    input(&in, channel_backward(r, c, dw->ck, d.k, s->k, f.ck, f.x.k, w->ck, c->kind->map), w->wk, dw->wk);
    input(&in, channel_backward(r, c, dw->cv, d.v, s->v, f.cv, f.x.v, w->cv, MAP_NONE), w->wv, dw->wv);
    op->linear_many_backward(r, dx, in.n, in.d, x, in.w);
    arena_release(r->scratch, mark);
}

/* Per number of the state, two for each of the correction's read, the write and the output's read; inside a chunk a row
 * meets those before it. */
double line_flops(const void *cfg, double context) {
    const LineCfg *c = cfg;
    double seen = context < RECUR_CHUNK ? context : RECUR_CHUNK;
    return state_size(c) * (4.0 + 2 * c->kind->delta) + 2 * seen * c->v_heads * (c->head_dim + columns(c));
}
