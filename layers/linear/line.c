/* line.c: forward, backward and extend of all mixers of the linear family. */
#include "line.h"
#include "layers/parts.h"
#include "steps.h"
#include "ops/host.h"

static const double unit_eps = 1e-6; /* of l2norm, as in every public implementation */
const char *const line_gates[] = {"none", "silu", "sigmoid", "false", "true", NULL};
const char *const line_rates[] = {"spread", "equal", NULL};

/* Query heads per key head, states, and rows of the recurrence per token: its writes, then reads by further queries. */
static int line_group(const LineCfg *c) { return c->heads / c->kv_heads; }
static int line_states(const LineCfg *c) { return c->v_heads / line_group(c); }
static Steps line_steps_of(const LineCfg *c) { return (Steps){c->kv_heads, line_group(c), c->householders}; }
static int line_steps(const LineCfg *c) { return steps_each(line_steps_of(c)); }
/* Widths of a token's queries, keys, values, and outputs. */
static int queries_of(const LineCfg *c) { return c->heads * c->head_dim; }
static int keys_of(const LineCfg *c) { return c->householders * c->kv_heads * c->head_dim; }
static int values_of(const LineCfg *c) { return c->householders * line_states(c) * c->v_dim; }
static int outputs_of(const LineCfg *c) { return c->v_heads * c->v_dim; }
/* Columns of S: the values, and one of ones for the denominator. */
static int line_columns(const LineCfg *c) { return c->v_dim + c->kind->divide_by_last; }
static int line_tail(const LineCfg *c) { return imax(0, c->conv - 1); }
/* q, k and v go through SiLU, and before that through a convolution where conv > 0. */
static bool line_convolves(const LineCfg *c) { return c->kind->delta || c->conv; }
/* Elements of the states of one level, and of all. */
static int line_level_size(const LineCfg *c) { return line_states(c) * c->head_dim * line_columns(c); }
static int line_state_size(const LineCfg *c) { return levels_states(c->levels) * line_level_size(c); }
static double line_scale_of(const LineCfg *c) { return c->kind->divide_by_last ? 1 : 1 / sqrt(c->head_dim); }
static bool line_gated(const LineCfg *c) { return c->gate != LINE_GATE_NONE; }
static Levels line_levels_of(const LineCfg *c) { return (Levels){c->levels, line_steps_of(c), line_scale_of(c)}; }

bool line_check(LineCfg *c, const LineKind *kind, double v_per_k, Err *e) {
    c->kind = kind;
    if (c->gate >= LINE_GATE_FALSE) c->gate -= LINE_GATE_FALSE;
    if (!c->base.owner)
        return err_input(
            e, "kv_from: this layer has a state instead of keys and values, so it cannot read another layer's");
    if (c->conv_bias && !c->conv) return err_input(e, "conv_bias: true, but conv is 0; set conv, or remove it");
    if (c->householders == 0) c->householders = 1; /* a kind without this key */
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    if (c->heads % c->kv_heads)
        return err_input(e, "kv_heads: expected a divisor of heads (%d), got %d", c->heads, c->kv_heads);
    if ((c->inner_decay || c->output_correction) && (c->householders > 1 || c->kv_heads < c->heads))
        return err_input(e, "%s: works with householders: 1 and as many kv_heads as heads, got %d and %d of %d",
                         c->inner_decay ? "inner_decay" : "output_correction", c->householders, c->kv_heads, c->heads);
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
    if ((long)c->v_heads * c->householders * imax(c->head_dim, c->v_dim) > 1 << 18)
        return err_input(e, "heads: %d heads of %d x %d are more than %d channels; use fewer or narrower heads",
                         c->v_heads * c->householders, c->head_dim, c->v_dim, 1 << 18);
    if (!levels_check(c->levels, (double)line_states(c) * c->head_dim * line_columns(c), e)) return false;
    bool turns = kind->map == MAP_ROTATE && c->rope.type != ROPE_NONE;
    if (turns && c->head_dim % 2)
        return err_input(e, "head_dim: rope turns pairs, expected an even number, got %d", c->head_dim);
    return !turns || rope_make(&c->table, &c->rope, c->head_dim, c->base.max_positions, e);
}

void line_weights(const void *cfg, void *w_, Fields *f) {
    const LineCfg *c = cfg;
    LineW *w = w_;
    const unsigned begin = c->rates == RATES_SPREAD ? FIELD_OWN : FIELD_ZEROS; /* biases of the decay */
    int d = c->base.d_model, Q = queries_of(c), K = keys_of(c), V = values_of(c), HS = line_states(c),
        out = outputs_of(c);
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
    if (c->kind->decay == DECAY_HEAD) {
        field(f, &w->wa, "gt_proj.weight", 0, HS, d);
        if (c->rates == RATES_SPREAD) field(f, &w->ba, "gt_proj.bias", begin | FIELD_NODECAY, HS);
    }
    if (c->kind->decay == DECAY_CHANNEL) {
        field(f, &w->wa0, "gk_proj.0.weight", 0, c->gate_rank, d);
        field(f, &w->wa, "gk_proj.1.weight", 0, K, c->gate_rank);
        field(f, &w->ba, "gk_proj.1.bias", begin | FIELD_NODECAY, K);
    }
    if (c->kind->decay == DECAY_RATE) {
        field(f, &w->wa, "a_proj.weight", 0, HS, d);
        field(f, &w->A, "A_log", FIELD_OWN | FIELD_NODECAY | FIELD_F32, HS);
        field(f, &w->dt, "dt_bias", FIELD_OWN | FIELD_NODECAY | FIELD_F32, HS);
    }
    if (c->kind->delta) field(f, &w->wb, "b_proj.weight", 0, c->householders * HS, d);
    if (c->inner_decay) field(f, &w->decay, "decay", FIELD_ONES | FIELD_NODECAY | FIELD_F32, c->heads);
    if (c->output_correction) field(f, &w->D, "D", FIELD_ONES | FIELD_NODECAY | FIELD_F32, c->heads);
    if (c->levels) {
        field(f, &w->wl, "l_proj.weight", 0, c->v_heads * c->levels, d);
        field(f, &w->L, "L", FIELD_ONES | FIELD_NODECAY | FIELD_F32, c->v_heads, c->levels);
    }
    if (line_gated(c)) field(f, &w->wg, "g_proj.weight", 0, out, d);
    const char *norm = c->kind->other_norm && c->gate != LINE_GATE_SILU ? c->kind->other_norm : c->kind->norm;
    if (norm) field(f, &w->norm, norm, FIELD_ONES | FIELD_NODECAY, c->v_dim);
    field(f, &w->wo, c->kind->out, FIELD_RESIDUAL, d, out);
}

/* rates: spread: over the channels of each head, or over heads with a decay each. b is where log sigmoid(b) is the
 * decay times the divisor. */
static void line_begin_spread(const LineCfg *c, Tensor bias, uint64_t key) {
    const size_t n = c->kind->decay == DECAY_CHANNEL ? (size_t)c->head_dim : tensor_count(bias);
    for (size_t i = 0; i < tensor_count(bias); i++) {
        const double z = c->gate_divisor * spread_decay(i % n, n, key, i);
        R(bias)[i] = (real)(z - log(-expm1(z)));
    }
}
/* rates: drawn: uniform in 0..16, as in Gated DeltaNet's code. */
void line_init(const void *cfg, void *w_, uint64_t key) {
    const LineCfg *c = cfg;
    LineW *w = w_;
    begin_conv(w->cq, rng_mix(key, 0));
    begin_conv(w->ck, rng_mix(key, 1));
    begin_conv(w->cv, rng_mix(key, 2));
    begin_steps(w->dt, rng_mix(key, 3));
    if (c->rates == RATES_SPREAD && present(w->ba)) line_begin_spread(c, w->ba, rng_mix(key, 4));
    if (c->rates == RATES_SPREAD && present(w->A)) begin_rates(w->A, w->dt, rng_mix(key, 4));
    for (size_t h = 0; c->rates == RATES_DRAWN && h < tensor_count(w->A); h++)
        R(w->A)[h] = (real)log(16 * rng_uniform(rng_mix(key, 4), h));
}

/* N rows, M of which are wanted after the recurrence. */
static void line_buffers(const LineCfg *c, int N, int M, bool keep, LineS *s, Fields *f) {
    int K = keys_of(c), V = values_of(c), HV = c->v_heads, HS = line_states(c);
    field(f, &s->q, "q", 0, N, queries_of(c));
    field(f, &s->k, "k", 0, N, K);
    field(f, &s->v, "v", 0, N, V);
    if (c->kind->decay == DECAY_HEAD || c->kind->decay == DECAY_RATE) field(f, &s->a, "decay", FIELD_F32, N, HS, 1);
    if (c->kind->decay == DECAY_CHANNEL) {
        field(f, &s->a0, "decay, low rank", 0, N, c->gate_rank);
        field(f, &s->a, "decay", 0, N, c->kv_heads, c->head_dim);
    }
    if (c->kind->delta) field(f, &s->beta, "beta", FIELD_F32, N, c->householders * HS);
    if (c->levels) field(f, &s->delta, "levels", FIELD_F32, N, HV * c->levels);
    if (keep && !c->levels)
        field(f, &s->keep, "states", FIELD_F32, recur_keep(N * line_steps(c)), HS, c->head_dim, line_columns(c));
    field(f, &s->o, "o", 0, N, HV, line_columns(c));
    if (line_gated(c)) field(f, &s->gate, "gate", 0, M, outputs_of(c));
    if (!line_gated(c) && !c->kind->divide_by_last) field(f, &s->rstd, "rstd", FIELD_F32, M, HV);
}
void line_saved(const void *cfg, int N, void *s, Fields *f) { line_buffers(cfg, N, N, true, s, f); }

void line_rows(const void *cfg, KvShape *s) {
    const LineCfg *c = cfg;
    *s = (KvShape){.state = line_state_size(c) + line_tail(c) * (queries_of(c) + keys_of(c) + values_of(c))};
}

/* ---- inner functions --------------------------------------------------------------------------------------------- */

/* The inputs of the recurrence, in scratch: the forward computes them from the saved tensors, and the backward
 * computes them again. */
typedef struct {
    Recur x, token;    /* rows of steps; of tokens */
    Tensor cq, ck, cv; /* after the convolutions; cq corrected */
} Fed;
static Tensor line_convolved(Run *r, const LineCfg *c, Tensor x, Tensor w, Tensor bias, Tensor state, int at) {
    if (!line_convolves(c)) return x;
    Tensor y = SCRATCH_OF(r, "convolved", x.dtype, x.n[0], x.n[1]);
    r->ops->short_conv(r, y, x, w, bias, true, state, at);
    return y;
}
static Tensor line_mapped(Run *r, const LineCfg *c, Tensor x) {
    Tensor in = shaped(x, x.n[1] / c->head_dim, c->head_dim);
    if (c->kind->map == MAP_ROTATE && line_convolves(c)) r->ops->rope(r, in, &c->table, r->in, 1);
    if (c->kind->map != MAP_UNIT && c->kind->map != MAP_ELU) return in;
    Tensor y = SCRATCH_OF(r, "features", in.dtype, in.n[0], in.n[1], in.n[2]);
    if (c->kind->map == MAP_UNIT)
        r->ops->l2norm(r, y, in, unit_eps);
    else
        r->ops->elu1(r, y, in);
    return y;
}
static Gate line_gate_of(const LineCfg *c) {
    if (c->kind->decay == DECAY_RATE) return (Gate){GATE_SOFTPLUS, 0};
    return (Gate){GATE_LOGSIGMOID, c->gate_divisor};
}
static Tensor line_decays(Run *r, const LineCfg *c, const LineW *w, const LineS *s) {
    if (c->kind->decay == DECAY_NONE) return ABSENT;
    if (c->kind->decay == DECAY_CONSTANT) {
        Tensor g = SCRATCH(r, "decays", s->q.n[0], line_states(c), 1);
        r->ops->repeat(r, g, c->constant);
        return g;
    }
    Tensor g = SCRATCH(r, "decays", s->a.n[0], s->a.n[1], s->a.n[2]);
    r->ops->decay(r, g, s->a, w->A, present(w->dt) ? w->dt : w->ba, line_gate_of(c));
    return g;
}
static Fed line_feed(Run *r, const LineCfg *c, const LineW *w, const LineS *s, Tensor state) {
    const int at = line_state_size(c), at_k = at + line_tail(c) * queries_of(c),
              at_v = at_k + line_tail(c) * keys_of(c), HS = line_states(c);
    Fed f = {.cq = line_convolved(r, c, s->q, w->cq, w->bq, state, at),
             .ck = line_convolved(r, c, s->k, w->ck, w->bk, state, at_k),
             .cv = line_convolved(r, c, s->v, w->cv, w->bv, state, at_v)};
    f.cq = line_correct_query(r, c, w, f.cq, f.ck);
    f.token = (Recur){.q = line_mapped(r, c, f.cq),
                      .k = line_mapped(r, c, f.ck),
                      .v = shaped(f.cv, c->householders * HS, c->v_dim),
                      .g = line_decays(r, c, w, s),
                      .beta = s->beta};
    f.token.e = line_erase_key(r, c, w, f.token.k);
    if (c->kind->divide_by_last) {
        Tensor v = SCRATCH_OF(r, "values and one", f.cv.dtype, f.cv.n[0], HS, line_columns(c));
        r->ops->append_ones(r, v, f.token.v);
        f.token.v = v;
    }
    const int width = present(f.token.g) ? f.token.g.n[2] : 1;
    f.x = f.token;
    if (line_steps(c) == 1) return f;
    f.x = (Recur){.q = steps_read_by(r, line_steps_of(c), f.token.q, c->kv_heads, c->head_dim),
                  .k = steps_placed(r, line_steps_of(c), f.token.k, c->kv_heads, c->head_dim),
                  .v = steps_placed(r, line_steps_of(c), f.token.v, HS, line_columns(c)),
                  .g = present(f.token.g) ? steps_placed(r, line_steps_of(c), f.token.g, HS, width) : ABSENT};
    if (present(s->beta)) f.x.beta = tensor_rows(steps_placed(r, line_steps_of(c), s->beta, HS, 1), HS);
    return f;
}

static GatedNorm line_norm_of(const LineCfg *c) {
    return (GatedNorm){.width = c->v_dim, .silu = c->gate == LINE_GATE_SILU, .eps = c->base.norm_eps};
}
/* The gain of a norm without a gate, which must have one. */
static Tensor line_gain(Run *r, const LineCfg *c, const LineW *w) {
    if (present(w->norm)) return w->norm;
    Tensor ones = SCRATCH(r, "ones", c->v_dim);
    r->ops->repeat(r, TENSOR(ones.p, REAL, c->v_dim, 1), &(const double){1});
    return ones;
}
/* y (M,HV*V): the input of the output projection. */
static void line_readout(Run *r, const LineCfg *c, const LineW *w, const LineS *s, Tensor o, Tensor rstd, Tensor y) {
    Tensor heads = shaped(y, c->v_heads, c->v_dim);
    if (c->kind->divide_by_last)
        r->ops->divide_by_last(r, heads, o, c->eps);
    else if (line_gated(c))
        r->ops->gated_norm(r, heads, o, shaped(s->gate, c->v_heads, c->v_dim), w->norm, line_norm_of(c));
    else
        r->ops->rmsnorm(r, heads, rstd, o, line_gain(r, c, w), c->base.norm_eps);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static void line_project(Run *r, const LineCfg *c, const LineW *w, Tensor x, LineS *s) {
    const Ops *op = r->ops;
    Mark mark = arena_mark(r->scratch);
    Projection p[LINEAR_MANY] = {{s->q, w->wq, ABSENT}, {s->k, w->wk, ABSENT}, {s->v, w->wv, ABSENT}};
    int n = 3;
    Tensor b = c->kind->delta ? SCRATCH(r, "beta", s->beta.n[0], s->beta.n[1]) : ABSENT;
    if (present(s->a))
        p[n++] = present(s->a0) ? (Projection){s->a0, w->wa0, ABSENT} : (Projection){s->a, w->wa, ABSENT};
    if (c->kind->delta) p[n++] = (Projection){b, w->wb, ABSENT};
    if (c->levels) p[n++] = (Projection){s->delta, w->wl, ABSENT};
    if (line_gated(c) && r->in.n == r->out.n) p[n++] = (Projection){s->gate, w->wg, ABSENT};
    op->linear_many(r, n, p, x);
    if (c->kind->map == MAP_ROTATE && !line_convolves(c)) {
        op->rope(r, shaped(s->q, c->heads, c->head_dim), &c->table, r->in, 1);
        op->rope(r, shaped(s->k, c->kv_heads, c->head_dim), &c->table, r->in, 1);
    }
    if (present(s->a0)) op->linear(r, s->a, s->a0, w->wa, ABSENT);
    if (c->kind->delta) op->sigmoid(r, s->beta, b, c->beta_max);
    arena_release(r->scratch, mark);
}
/* s->o by the recurrence, of x in rows of steps. */
static void line_recur(Run *r, const LineCfg *c, const LineW *w, LineS *s, Recur x, Tensor state) {
    if (c->levels) {
        const Levels levels = line_levels_of(c);
        levels_forward(r, &levels, x, s->delta, w->L, state, 0, s->o);
        return;
    }
    Stepped steps;
    Run *as = steps_run(r, line_steps_of(c), &steps);
    Tensor o = as == r ? s->o : SCRATCH_OF(r, "o of steps", s->o.dtype, as->batch->N, line_states(c), line_columns(c));
    r->ops->recur(as, o, s->keep, x, line_scale_of(c), state, 0);
    if (as != r) steps_reads(r, line_steps_of(c), o, s->o, line_states(c) / c->kv_heads * line_columns(c), true);
}
/* The inner function of forward (without a state) and extend (with one). */
static void line_run(Run *r, const LineCfg *c, const LineW *w, Tensor x, LineS *s, Tensor state, Tensor y) {
    RunMark mark = run_mark(r);
    line_project(r, c, w, x, s);
    line_recur(r, c, w, s, line_feed(r, c, w, s, state).x, state);
    if (line_gated(c) && r->in.n != r->out.n) r->ops->linear(r, s->gate, wanted_rows(r, x), w->wg, ABSENT);
    Tensor out = SCRATCH_OF(r, "read", s->o.dtype, r->out.n, outputs_of(c));
    line_readout(r, c, w, s, wanted_rows(r, s->o), s->rstd, out);
    r->ops->linear(r, y, out, w->wo, ABSENT);
    run_release(r, mark);
}
void line_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    (void)kv;
    line_run(r, cfg, w, x, s, ABSENT, y);
}
void line_extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    (void)kv;
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    LineS s = {0};
    line_buffers(cfg, r->in.n, r->out.n, false, &s, &f);
    line_run(r, cfg, w, x, &s, kv_state(slot), y);
    arena_release(r->scratch, mark);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */
/* One of q, k and v on its way to the recurrence: projected, after the convolution, as the recurrence has it; the
 * convolution, its bias, and their gradients. */
typedef struct {
    Tensor raw, cx, fx, w, b, dw, db;
} Channel;
/* From the gradient g of an input of the recurrence, compute that of what the convolution gives, in scratch or g; and
 * from that the projection's. */
static Tensor line_map_backward(Run *r, const LineCfg *c, Tensor g, Channel x, LineMap map) {
    const Ops *op = r->ops;
    if (map == MAP_ROTATE) op->rope(r, g, &c->table, r->in, -1);
    if (map == MAP_UNIT || map == MAP_ELU) {
        Tensor d = scratch_like(r, "d convolved", g);
        if (map == MAP_UNIT)
            op->l2norm_backward(r, overwrite(d), g, shaped(x.cx, g.n[1], g.n[2]), unit_eps);
        else
            op->elu1_backward(r, overwrite(d), g, x.fx);
        g = d;
    }
    return tensor_rows(g, x.raw.n[1]);
}
static Tensor line_conv_backward(Run *r, const LineCfg *c, Tensor g, Channel x) {
    if (!line_convolves(c)) return g;
    Tensor d = scratch_like(r, "d projected", x.raw);
    r->ops->short_conv_backward(r, overwrite(d), x.dw, x.db, g, x.raw, x.w, x.b, true);
    return d;
}
/* The projections of the layer's input, whose gradients one call computes. */
typedef struct {
    int n;
    Projection w[LINEAR_MANY], d[LINEAR_MANY];
} Inputs;
static void line_input(Inputs *in, Tensor dy, Tensor w, Tensor dw) {
    in->w[in->n] = (Projection){.w = w};
    in->d[in->n++] = (Projection){dy, dw, ABSENT};
}
static void line_decay_backward(Run *r, const LineCfg *c, const LineW *w, LineW *dw, const LineS *s, Tensor dg,
                                Inputs *in) {
    if (!present(s->a)) return;
    const Ops *op = r->ops;
    Tensor da = scratch_like(r, "d decay", s->a);
    op->decay_backward(r, overwrite(da), dw->A, present(dw->dt) ? dw->dt : dw->ba, dg, s->a, w->A,
                       present(w->dt) ? w->dt : w->ba, line_gate_of(c));
    da = tensor_rows(da, s->a.n[1] * s->a.n[2]);
    if (present(s->a0)) {
        Tensor d0 = scratch_like(r, "d decay, low rank", s->a0);
        op->linear_backward(r, overwrite(d0), dw->wa, ABSENT, da, s->a0, w->wa);
        line_input(in, d0, w->wa0, dw->wa0);
    } else
        line_input(in, da, w->wa, dw->wa);
}
/* Compute the gradient of o from that of y. */
static Tensor readout_backward(Run *r, const LineCfg *c, const LineW *w, LineW *dw, const LineS *s, Tensor dy,
                               Inputs *in) {
    const Ops *op = r->ops;
    int N = r->in.n, HV = c->v_heads, V = c->v_dim;
    Tensor dout = scratch_like(r, "d o", s->o), out = SCRATCH_OF(r, "read", s->o.dtype, N, HV * V),
           dread = scratch_like(r, "d read", out), rstd = present(s->rstd) ? SCRATCH(r, "rstd", N, HV) : ABSENT;
    line_readout(r, c, w, s, s->o, rstd, out);
    op->linear_backward(r, overwrite(dread), dw->wo, ABSENT, dy, out, w->wo);
    Tensor heads = shaped(dread, HV, V);
    if (c->kind->divide_by_last)
        op->divide_by_last_backward(r, overwrite(dout), heads, shaped(out, HV, V), s->o, c->eps);
    else if (line_gated(c)) {
        Tensor dgate = scratch_like(r, "d gate", s->gate);
        op->gated_norm_backward(r, overwrite(dout), overwrite(shaped(dgate, HV, V)), dw->norm, heads, s->o,
                                shaped(s->gate, HV, V), w->norm, line_norm_of(c));
        line_input(in, dgate, w->wg, dw->wg);
    } else {
        Tensor gain = line_gain(r, c, w), dgain = present(w->norm) ? dw->norm : zeros_like(r, "d ones", gain);
        op->rmsnorm_backward(r, overwrite(dout), dgain, heads, s->o, gain, s->rstd);
    }
    return dout;
}
/* Compute d, the gradients of x, from that of o. */
static void line_recur_backward(Run *r, const LineCfg *c, const LineW *w, LineW *dw, const LineS *s, const Recur *d,
                                Recur x, Tensor dout, Inputs *in) {
    if (c->levels) {
        const Levels levels = line_levels_of(c);
        Tensor ddelta = scratch_like(r, "d levels", s->delta);
        levels_backward(r, &levels, d, ddelta, dw->L, dout, x, s->delta, w->L);
        line_input(in, ddelta, w->wl, dw->wl);
        return;
    }
    Stepped steps;
    Run *as = steps_run(r, line_steps_of(c), &steps);
    const RecurInto into = recur_overwrite(*d);
    r->ops->recur_backward(as, &into, steps_read_by(r, line_steps_of(c), dout, line_states(c), line_columns(c)), x,
                           line_scale_of(c), s->keep, NULL);
}
void line_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, const KvInto *dkv,
                   const void *s_, Tensor dy, Into dx) {
    (void)kv, (void)dkv;
    const LineCfg *c = cfg;
    const LineW *w = w_;
    LineW *dw = dw_;
    const LineS *s = s_;
    const Ops *op = r->ops;
    RunMark mark = run_mark(r);
    Inputs in = {0};
    Tensor dout = readout_backward(r, c, w, dw, s, dy, &in);
    Fed f = line_feed(r, c, w, s, ABSENT);
    Recur d = {.q = scratch_like(r, "d q", f.x.q),
               .k = scratch_like(r, "d k", f.x.k),
               .v = scratch_like(r, "d v", f.x.v),
               .g = c->kind->decay == DECAY_CONSTANT ? ABSENT : scratch_like(r, "d g", f.x.g),
               .beta = scratch_like(r, "d beta", f.x.beta),
               .e = scratch_like(r, "d e", f.x.e)};
    line_recur_backward(r, c, w, dw, s, &d, f.x, dout, &in);
    if (line_steps(c) > 1) {
        Tensor dq = SCRATCH_OF(r, "d of queries", d.q.dtype, f.token.q.n[0], c->heads, c->head_dim);
        steps_reads(r, line_steps_of(c), d.q, dq, c->head_dim, true);
        d.q = dq;
        d.k = steps_placed_backward(r, line_steps_of(c), d.k, f.token.k);
        d.v = steps_placed_backward(r, line_steps_of(c), d.v, f.token.v);
        if (present(d.g)) d.g = steps_placed_backward(r, line_steps_of(c), d.g, f.token.g);
        if (present(d.beta))
            d.beta = steps_placed_backward(r, line_steps_of(c), shaped(d.beta, line_states(c), 1), s->beta);
    }
    line_decay_backward(r, c, w, dw, s, d.g, &in);
    if (c->kind->delta) {
        Tensor db = scratch_like(r, "d beta logit", s->beta);
        op->sigmoid_backward(r, overwrite(db), d.beta, s->beta, c->beta_max);
        line_input(&in, db, w->wb, dw->wb);
    }
    if (c->kind->divide_by_last) {
        Tensor dv = scratch_like(r, "d values", shaped(s->v, line_states(c), c->v_dim));
        op->append_ones_backward(r, overwrite(dv), d.v);
        d.v = dv;
    }
    const Channel q = {s->q, f.cq, f.token.q, w->cq, w->bq, dw->cq, dw->bq},
                  k = {s->k, f.ck, f.token.k, w->ck, w->bk, dw->ck, dw->bk},
                  v = {s->v, f.cv, f.token.v, w->cv, w->bv, dw->cv, dw->bv};
    line_erase_key_backward(r, c, w, dw, d.k, d.e, f.token.k);
    Tensor gq = line_map_backward(r, c, d.q, q, c->kind->map), gk = line_map_backward(r, c, d.k, k, c->kind->map),
           gv = line_map_backward(r, c, d.v, v, MAP_NONE);
    line_correct_query_backward(r, c, w, dw, gq, gk, f.ck);
    line_input(&in, line_conv_backward(r, c, gq, q), w->wq, dw->wq);
    line_input(&in, line_conv_backward(r, c, gk, k), w->wk, dw->wk);
    line_input(&in, line_conv_backward(r, c, gv, v), w->wv, dw->wv);
    op->linear_many_backward(r, dx, in.n, in.d, x, in.w);
    run_release(r, mark);
}

/* Per element of the state two operations each for the correction's read, the write and the output's read. Inside a
 * chunk a row also meets those before it. */
double line_flops(const void *cfg, double context) {
    const LineCfg *c = cfg;
    const Levels levels = {imax(1, c->levels), line_steps_of(c), line_scale_of(c)};
    return levels_flops(&levels, line_level_size(c) * (4.0 + 2 * c->kind->delta),
                        2.0 * line_states(c) * (c->head_dim + line_columns(c)), context);
}
