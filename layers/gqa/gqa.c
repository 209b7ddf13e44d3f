/* gqa.c: the mixer gqa: its weights, forward, backward and extend. */
#include "gqa.h"
#include "layers/parts.h"

static const Key keys[] = {
    {"heads", KEY_INT, offsetof(GqaCfg, heads), NULL, 0, 1024,
     "query heads; 0: this layer only publishes K/V for others", 0, 0},
    {"kv_heads", KEY_INT, offsetof(GqaCfg, kv_heads), "0", 0, 1024,
     "key/value heads, a divisor of heads; 0: as many as heads", 0, 0},
    {"head_dim", KEY_INT, offsetof(GqaCfg, head_dim), "0", 0, HEAD_WIDEST, "width of a head; 0: d_model / heads", 0, 0},
    {"window", KEY_INT, offsetof(GqaCfg, window), "0", 0, 1 << 30,
     "positions that a query sees, its own included; 0: all", 0, 0},
    {"sinks", KEY_INT, offsetof(GqaCfg, sinks), "0", 0, 1 << 20, "first positions of a document that every query sees",
     0, 0},
    {"rope", KEY_TABLE, offsetof(GqaCfg, rope), "", 0, 0, "rotary position embedding; `rope: none` for none", 0,
     rope_keys},
    {"rope_dims", KEY_INT, offsetof(GqaCfg, rope_dims), "0", 0, 1024,
     "rotated elements, the first of every head; 0: all", 0, 0},
    {"qk_norm", KEY_BOOL, offsetof(GqaCfg, qk_norm), "false", 0, 0,
     "RMSNorm of every query and key head before the rotation", 0, 0},
    {"qk_norm_wide", KEY_BOOL, offsetof(GqaCfg, qk_norm_wide), "false", 0, 0,
     "RMSNorm of all query heads together, and of all key heads, before the rotation", 0, 0},
    {"scale", KEY_FLOAT, offsetof(GqaCfg, scale), "0", 0, 1e6, "factor of the scores; 0: 1/sqrt(head_dim)", 0, 0},
    {"soft_cap", KEY_FLOAT, offsetof(GqaCfg, soft_cap), "0", 0, 1e6,
     "scores s become cap tanh(s / cap); 0: they stay as they are", 0, 0},
    {"out_gate", KEY_BOOL, offsetof(GqaCfg, out_gate), "false", 0, 0,
     "every element that attention returns is multiplied by sigmoid(Wg x)", 0, 0},
    {"sink_scores", KEY_BOOL, offsetof(GqaCfg, sink_scores), "false", 0, 0,
     "a trained score per head that is in the softmax and has no value", 0, 0},
    {"qkv_bias", KEY_BOOL, offsetof(GqaCfg, qkv_bias), "false", 0, 0,
     "biases of the q, k and v projections, and of that of out_gate", 0, 0},
    {"o_bias", KEY_BOOL, offsetof(GqaCfg, o_bias), "false", 0, 0, "bias of the output projection", 0, 0},
    {0},
};

/* Saved: q and k (before norm and rotation), and what attention's backward needs. */
typedef struct {
    Tensor q, o, lse;                    /* (M,H,D) as attended, (M,H,D), (M,H); M wanted rows; with the sinks */
    Tensor gate;                         /* (M,H,D) of out_gate, before the sigmoid */
    Tensor q_raw, k_raw, q_rstd, k_rstd; /* norms only: (M,H,D) (N,G,D) (M,H) (N,G); wide: (M) (N) */
} S;

bool gqa_check(void *cfg, Err *e) {
    GqaCfg *c = cfg;
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    if (c->kv_heads == 0) return err_input(e, "kv_heads: a layer with heads: 0 publishes K/V and needs kv_heads > 0");
    if (c->heads % c->kv_heads)
        return err_input(e, "kv_heads: expected a divisor of heads (%d), got %d", c->heads, c->kv_heads);
    if (c->head_dim == 0) {
        if (c->heads == 0) return err_input(e, "head_dim: required for a layer with heads: 0");
        if (c->base.d_model % c->heads)
            return err_input(e, "heads: %d does not divide d_model %d; give head_dim or other heads", c->heads,
                             c->base.d_model);
        c->head_dim = c->base.d_model / c->heads;
    }
    if ((long)imax(c->heads, c->kv_heads) * c->head_dim > 1 << 20)
        return err_input(e, "heads x head_dim: %d x %d is more than %d", imax(c->heads, c->kv_heads), c->head_dim,
                         1 << 20);
    if (c->qk_norm && c->head_dim > HEAD_WIDEST)
        return err_input(e, "head_dim: with qk_norm expected at most %d, got %d", HEAD_WIDEST, c->head_dim);
    if (c->qk_norm && c->qk_norm_wide)
        return err_input(e, "qk_norm_wide: it is another norm in the place of qk_norm's; set one of them");
    if (c->sinks && !c->window)
        return err_input(e, "sinks: %d without a window has no meaning; set window or remove sinks", c->sinks);
    if (c->heads == 0 && !c->base.owner)
        return err_input(e, "heads: 0 publishes K/V, but kv_from says that this layer reads another's");
    bool turns = c->rope.type != ROPE_NONE;
    if (turns && !c->rope_dims && c->head_dim % 2)
        return err_input(e, "head_dim: rope turns pairs, expected an even number, got %d", c->head_dim);
    if (c->rope_dims && (!turns || c->rope_dims % 2 || c->rope_dims > c->head_dim))
        return err_input(e,
                         turns ? "rope_dims: expected an even number up to head_dim (%d), got %d"
                               : "rope_dims: expected 0 without a rotation (head_dim %d), got %d",
                         c->head_dim, c->rope_dims);
    int dims = c->rope_dims ? c->rope_dims : c->head_dim;
    return rope_make(&c->table, &c->rope, turns ? dims : 0, c->base.max_positions, e);
}

void gqa_weights(const void *cfg, void *w_, Fields *f) {
    const GqaCfg *c = cfg;
    GqaW *w = w_;
    int d = c->base.d_model, Q = c->heads * c->head_dim, K = c->kv_heads * c->head_dim;
    const bool normed = c->qk_norm || c->qk_norm_wide;
    const unsigned gain = norm_gain_flags(c->base.norm_plus_one);
    if (c->heads) field(f, &w->wq, "q_proj.weight", 0, Q, d);
    if (c->heads && c->qkv_bias) field(f, &w->bq, "q_proj.bias", FIELD_ZEROS | FIELD_NODECAY, Q);
    if (c->heads && normed) field(f, &w->nq, "q_norm.weight", gain, c->qk_norm_wide ? Q : c->head_dim);
    if (c->base.owner) {
        field(f, &w->wk, "k_proj.weight", 0, K, d);
        if (c->qkv_bias) field(f, &w->bk, "k_proj.bias", FIELD_ZEROS | FIELD_NODECAY, K);
        if (normed) field(f, &w->nk, "k_norm.weight", gain, c->qk_norm_wide ? K : c->head_dim);
        field(f, &w->wv, "v_proj.weight", 0, K, d);
        if (c->qkv_bias) field(f, &w->bv, "v_proj.bias", FIELD_ZEROS | FIELD_NODECAY, K);
    }
    if (c->heads) field(f, &w->wo, "o_proj.weight", FIELD_RESIDUAL, d, Q);
    if (c->heads && c->out_gate) field(f, &w->wg, "gate_proj.weight", 0, Q, d);
    if (c->heads && c->out_gate && c->qkv_bias) field(f, &w->bg, "gate_proj.bias", FIELD_ZEROS | FIELD_NODECAY, Q);
    if (c->heads && c->sink_scores) field(f, &w->sinks, "sinks", FIELD_ZEROS | FIELD_NODECAY, c->heads);
    if (c->heads && c->o_bias) field(f, &w->bo, "o_proj.bias", FIELD_ZEROS | FIELD_NODECAY, d);
}

static void gqa_buffers(const GqaCfg *c, int N, int M, S *s, Fields *f) {
    int H = c->heads, G = c->kv_heads, D = c->head_dim;
    if (H) {
        field(f, &s->q, "q", 0, M, H, D);
        field(f, &s->o, "o", 0, M, H, D);
        field(f, &s->lse, "lse", FIELD_F32, M, H);
        if (c->out_gate) field(f, &s->gate, "gate", 0, M, H, D);
    }
    const bool wide = c->qk_norm_wide, normed = c->qk_norm || wide;
    if (H && normed) {
        field(f, &s->q_raw, "q_raw", 0, M, H, D);
        field(f, &s->q_rstd, "q_rstd", FIELD_F32, M, wide ? 1 : H);
    }
    if (c->base.owner && normed) {
        field(f, &s->k_raw, "k_raw", 0, N, G, D);
        field(f, &s->k_rstd, "k_rstd", FIELD_F32, N, wide ? 1 : G);
    }
}
static void gqa_saved(const void *cfg, int N, void *s, Fields *f) { gqa_buffers(cfg, N, N, s, f); }

static void gqa_rows(const void *cfg, KvShape *s) {
    const GqaCfg *c = cfg;
    *s = (KvShape){.lanes = c->kv_heads,
                   .kdim = c->head_dim,
                   .vdim = c->head_dim,
                   .window = c->window,
                   .sinks = c->sinks,
                   .heads = c->window || c->soft_cap > 0 ? 0 : c->heads}; /* probes know no cap */
}
/* Forward and backward must use the same pattern. */
AttnSpec gqa_attn(const GqaCfg *c) {
    return (AttnSpec){.heads = c->heads,
                      .window = c->window,
                      .sinks = c->sinks,
                      .scale = (real)(c->scale > 0 ? c->scale : 1 / sqrt(c->head_dim)),
                      .cap = (real)c->soft_cap};
}

void gqa_turn(Run *r, const GqaCfg *c, RowList rows, Tensor out, Tensor raw, Tensor rstd, Tensor norm) {
    Mark mark = arena_mark(r->scratch);
    const Tensor gain = present(norm) ? norm_gain(r, norm, c->base.norm_plus_one) : norm;
    if (present(gain) && !c->qk_norm_wide) {
        r->ops->rmsnorm_rope(r, out, rstd, raw, gain, c->base.norm_eps, &c->table, rows);
    } else {
        if (present(gain)) r->ops->rmsnorm(r, out, rstd, raw, gain, c->base.norm_eps);
        r->ops->rope(r, out, &c->table, rows, 1);
    }
    arena_release(r->scratch, mark);
}

/* What the output projection reads: o, or o times its gate, in scratch. */
static Tensor gqa_gated(Run *r, const GqaCfg *c, const S *s) {
    if (!c->out_gate) return s->o;
    Tensor y = scratch_tensor(r, "gated", s->o.dtype, s->o.rank, s->o.n);
    r->ops->sigmoid_gate(r, y, s->o, s->gate);
    return y;
}
static AttnSpec gqa_queries(Run *r, const void *cfg, const void *w_, Tensor x, const Kv *kv, Tensor q) {
    const GqaCfg *c = cfg;
    const GqaW *w = w_;
    Mark mark = arena_mark(r->scratch);
    const int M = r->out.n, H = c->heads;
    const bool normed = present(w->nq);
    const Tensor raw = normed ? SCRATCH(r, "guessed projection", M, H, c->head_dim) : q,
                 rstd = normed ? SCRATCH(r, "its norm", M, c->qk_norm_wide ? 1 : H) : ABSENT;
    r->ops->linear(r, raw, wanted_rows(r, x), w->wq, w->bq);
    gqa_turn(r, c, r->out, q, raw, rstd, w->nq);
    kv_turn_queries(r, kv, q);
    arena_release(r->scratch, mark);
    return gqa_attn(c);
}
/* The inner function of forward (without a history) and extend (with one). */
static void gqa_run(Run *r, const GqaCfg *c, const GqaW *w, Tensor x, Kv *kv, S *s, const Slot *history, Tensor y) {
    Projection p[4];
    int n = 0;
    bool all = r->in.n == r->out.n; /* otherwise queries have fewer rows than keys */
    Projection q = {present(w->nq) ? s->q_raw : s->q, w->wq, w->bq}, gate = {s->gate, w->wg, w->bg};
    if (c->heads && all) p[n++] = q;
    if (c->heads && all && c->out_gate) p[n++] = gate;
    const Kv made = kv_made(r, kv);
    if (c->base.owner) {
        p[n++] = (Projection){present(w->nk) ? s->k_raw : made.k, w->wk, w->bk};
        p[n++] = (Projection){made.v, w->wv, w->bv};
    }
    if (n) r->ops->linear_many(r, n, p, x);
    if (c->base.owner) {
        gqa_turn(r, c, r->in, made.k, s->k_raw, s->k_rstd, w->nk);
        kv_settle(r, kv);
    }
    if (!c->heads) return;
    Mark mark = arena_mark(r->scratch);
    if (!all) {
        Tensor rows = wanted_rows(r, x);
        r->ops->linear(r, q.y, rows, q.w, q.bias);
        if (c->out_gate) r->ops->linear(r, gate.y, rows, gate.w, gate.bias);
    }
    gqa_turn(r, c, r->out, s->q, s->q_raw, s->q_rstd, w->nq);
    kv_turn_queries(r, kv, s->q);
    if (history) kv_attend(r, history, kv, s->o, s->lse, s->q, gqa_attn(c), false);
    r->ops->attend(r, s->o, s->lse, s->q, kv, gqa_attn(c), history != NULL);
    if (c->sink_scores) r->ops->attend_sink(r, s->o, s->lse, w->sinks);
    kv_probe(r, s->q, s->lse, gqa_attn(c));
    r->ops->linear(r, y, gqa_gated(r, c, s), w->wo, w->bo);
    arena_release(r->scratch, mark);
}
static void gqa_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    gqa_run(r, cfg, w, x, kv, s, NULL, y);
}
static void gqa_extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    S s = {0};
    gqa_buffers(cfg, r->in.n, r->out.n, &s, &f);
    gqa_run(r, cfg, w, x, kv, &s, r->batch->history ? slot : NULL, y);
    arena_release(r->scratch, mark);
}

Tensor gqa_turn_back(Run *r, const GqaCfg *c, Tensor dnorm, Tensor g, Tensor raw, Tensor rstd, Tensor norm) {
    if (!present(norm) || c->qk_norm_wide) r->ops->rope(r, g, &c->table, r->in, -1);
    if (!present(norm)) return g;
    const Tensor gain = norm_gain(r, norm, c->base.norm_plus_one);
    Tensor graw = scratch_tensor(r, "d heads", g.dtype, g.rank, g.n);
    if (c->qk_norm_wide)
        r->ops->rmsnorm_backward(r, overwrite(graw), dnorm, g, raw, gain, rstd);
    else
        r->ops->rmsnorm_rope_backward(r, overwrite(graw), dnorm, g, raw, gain, rstd, &c->table, r->in);
    return graw;
}

static void gqa_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, const KvInto *dkv,
                         const void *s_, Tensor dy, Into dx) {
    const GqaCfg *c = cfg;
    const GqaW *w = w_;
    GqaW *dw = dw_;
    const S *s = s_;
    Mark mark = arena_mark(r->scratch);
    Projection d[4], p[4];
    int n = 0;
    if (c->heads) {
        int N = r->in.n, H = c->heads, D = c->head_dim;
        Tensor dout = SCRATCH_OF(r, "d o", x.dtype, N, H, D), dq = SCRATCH_OF(r, "d q", x.dtype, N, H, D);
        if (c->out_gate) {
            Tensor dgated = SCRATCH_OF(r, "d gated", x.dtype, N, H, D),
                   dgate = SCRATCH_OF(r, "d gate", x.dtype, N, H, D);
            r->ops->linear_backward(r, overwrite(dgated), dw->wo, dw->bo, dy, gqa_gated(r, c, s), w->wo);
            r->ops->sigmoid_gate_backward(r, overwrite(dout), overwrite(dgate), dgated, s->o, s->gate);
            d[n] = (Projection){dgate, dw->wg, dw->bg};
            p[n++].w = w->wg;
        } else {
            r->ops->linear_backward(r, overwrite(dout), dw->wo, dw->bo, dy, s->o, w->wo);
        }
        if (c->sink_scores) r->ops->attend_sink_backward(r, dw->sinks, dout, s->o, s->lse, w->sinks);
        r->ops->attend_backward(r, overwrite(dq), dkv, dout, s->q, kv, gqa_attn(c), s->o, s->lse);
        d[n] = (Projection){gqa_turn_back(r, c, dw->nq, dq, s->q_raw, s->q_rstd, w->nq), dw->wq, dw->bq};
        p[n++].w = w->wq;
    }
    if (c->base.owner) { /* the owner's backward runs last: dkv holds the sum of all readers' parts */
        Tensor dk = tensor_as(r, "d k", dkv->kv.k, x.dtype), dv = tensor_as(r, "d v", dkv->kv.v, x.dtype);
        d[n] = (Projection){gqa_turn_back(r, c, dw->nk, dk, s->k_raw, s->k_rstd, w->nk), dw->wk, dw->bk};
        p[n++].w = w->wk;
        d[n] = (Projection){dv, dw->wv, dw->bv};
        p[n++].w = w->wv;
    }
    if (n) r->ops->linear_many_backward(r, dx, n, d, x, p);
    arena_release(r->scratch, mark);
}

static double gqa_flops(const void *cfg, double context) {
    const GqaCfg *c = cfg;
    double seen = c->window && context > c->window + c->sinks ? c->window + c->sinks : context;
    return 4.0 * c->heads * c->head_dim * seen;
}
static const Rope *gqa_turns(const void *cfg) {
    const Rope *t = &((const GqaCfg *)cfg)->table;
    return t->n ? t : NULL;
}
static bool gqa_publishes_only(const void *cfg) { return ((const GqaCfg *)cfg)->heads == 0; }

const Mixer gqa_mixer = {
    .name = "gqa",
    .source = "arXiv:2305.13245",
    .keys = keys,
    .cfg_size = sizeof(GqaCfg),
    .w_size = sizeof(GqaW),
    .s_size = sizeof(S),
    .check = gqa_check,
    .weights = gqa_weights,
    .saved = gqa_saved,
    .rows = gqa_rows,
    .forward = gqa_forward,
    .backward = gqa_backward,
    .extend = gqa_extend,
    .flops = gqa_flops,
    .queries = gqa_queries,
    .turns = gqa_turns,
    .publishes_only = gqa_publishes_only,
    .takes_bf16 = true,
};
