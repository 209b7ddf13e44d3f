/* dmc.c: the mixer dmc: its lane, decisions, merged rows, forward, backward and extend. */
#include "dmc.h"
#include "adapter.h"
#include "ops/host.h"
#include "layers/parts.h"

#define EPS  (1.0 / 128) /* of the importance: that of bf16, as in the released code */
#define FADE 0.8         /* the part of phase zero after which the lane is 0 */

static const char *const phases[] = {"zero", "soft", NULL};
const char *const dmc_lanes[] = {"last", "first", NULL}, *const dmc_actions[] = {"merge", "evict", NULL},
                  *const dmc_deciders[] = {"lane", "adapter", NULL},
                  *const dmc_governs[] = {"previous", "itself", NULL};
#define AT(member) offsetof(DmcCfg, member)
static const Key keys[] = {
    {"heads", KEY_INT, AT(g.heads), NULL, 0, 1024,
     "query heads; 0 (decide: adapter): this layer only publishes K/V for others", 0, 0},
    {"kv_heads", KEY_INT, AT(g.kv_heads), "0", 0, 1024, "key/value heads, a divisor of heads; 0: as many as heads", 0,
     0},
    {"head_dim", KEY_INT, AT(g.head_dim), "0", 0, 1024, "width of a head; 0: d_model / heads", 0, 0},
    {"rope", KEY_TABLE, AT(g.rope), "", 0, 0, "rotary position embedding; `rope: none` for none", 0, rope_keys},
    {"qkv_bias", KEY_BOOL, AT(g.qkv_bias), "false", 0, 0, "biases of the q, k and v projections", 0, 0},
    {"o_bias", KEY_BOOL, AT(g.o_bias), "false", 0, 0, "bias of the output projection", 0, 0},
    {"phase", KEY_CHOICE, AT(phase), "soft", 0, 0,
     "zero: plain attention, one channel of each head is removed gradually; soft: that channel decides, softly in "
     "training, hard in evaluation",
     phases, 0},
    {"action", KEY_CHOICE, AT(action), "merge", 0, 0,
     "merge: a token is added to its predecessor's row (DMC); evict: the predecessor's row is removed (DMS)",
     dmc_actions, 0},
    {"decide", KEY_CHOICE, AT(decide), "lane", 0, 0,
     "lane: a channel of each head, which is removed from attention; adapter (evict alone): a projection of its own",
     dmc_deciders, 0},
    {"rope_dims", KEY_INT, AT(g.rope_dims), "0", 0, 1024, "adapter: rotated elements, the first of every head; 0: all",
     0, 0},
    {"qk_norm", KEY_BOOL, AT(g.qk_norm), "false", 0, 0,
     "RMSNorm of every query and key head before the rotation; not with action: merge or phase: zero", 0, 0},
    {"qk_norm_wide", KEY_BOOL, AT(g.qk_norm_wide), "false", 0, 0,
     "adapter: RMSNorm of all query heads together, and of all key heads, before the rotation", 0, 0},
    {"lane", KEY_CHOICE, AT(lane), "last", 0, 0,
     "channel of each head that decides: last (slowest pair of half-split rope) or first", dmc_lanes, 0},
    {"window", KEY_INT, AT(window), "12", 0, 4096,
     "merge: a row is the mean of at most this many newest tokens; 0: all", 0, 0},
    EVICT_KEYS(DmcCfg),
    {"governs", KEY_CHOICE, AT(governs), "previous", 0, 0,
     "evict: which row a token's decision is about: the previous token's, or its own (as FastDMS trains)", dmc_governs,
     0},
    {"lane_turned", KEY_BOOL, AT(lane_turned), "false", 0, 0,
     "evict: the rotation refills the channel that decides, as in FastDMS; otherwise it is removed again", 0, 0},
    {0},
};
#undef AT

/* Saved: q as attended, o, lse; before the merge k, v and their weights omega; alpha. The last three exist in phase
 * soft. */
typedef struct {
    Tensor q, o, lse;                    /* (M,H,D), (M,H,D), (M,H); M wanted rows */
    Tensor k, v, omega, alpha;           /* (N,G,D) (N,G,D) (N,G), when merging; (N,G) */
    Tensor q_raw, k_raw, q_rstd, k_rstd; /* norms only, as gqa's */
} S;

static bool dmc_soft(const DmcCfg *c) { return c->phase == DMC_SOFT; }
static bool dmc_reports(const void *cfg) { return dmc_soft(cfg); }
static bool dmc_adapter(const DmcCfg *c) { return c->decide == DMC_ADAPTER; }
static bool dmc_normed(const DmcCfg *c) { return c->g.qk_norm || c->g.qk_norm_wide; }
static bool dmc_merges(const DmcCfg *c) { return dmc_soft(c) && c->action == DMC_MERGE; }
static int lane_of(const DmcCfg *c) { return c->lane == DMC_LAST ? c->g.head_dim - 1 : 0; }
static int group_of(const DmcCfg *c) { return c->g.heads / c->g.kv_heads; }
static bool dmc_itself(const DmcCfg *c) { return dmc_soft(c) && c->governs == DMC_ITSELF; }
static int carry_rows(const DmcCfg *c) { return !dmc_merges(c) ? dmc_itself(c) : c->window ? c->window - 1 : 1; }

static bool dmc_check(void *cfg, Err *e) {
    DmcCfg *c = cfg;
    if (!c->g.base.owner)
        return err_input(
            e, "kv_from: a dmc layer needs rows of its own; give layers that read another's K/V the mixer gqa");
    if (!c->g.heads && !dmc_adapter(c))
        return err_input(e, "heads: 0 publishes rows, but without queries no channel can decide; set decide: adapter "
                            "and action: evict, or give heads");
    if (!gqa_check(cfg, e)) return false;
    if (c->g.head_dim < 2)
        return err_input(e, "head_dim: expected at least 2 (one channel decides), got %d", c->g.head_dim);
    if (c->delay && c->action == DMC_MERGE)
        return err_input(
            e, "delay: %d positions, but a merged row is replaced at once; set action: evict or leave delay out",
            c->delay);
    if (c->window && c->window != DMC_WINDOW && c->action == DMC_EVICT)
        return err_input(e,
                         "window: %d tokens of a mean, but evicted rows have none; leave window out, or set action: "
                         "merge",
                         c->window);
    if (c->action == DMC_MERGE && (c->governs == DMC_ITSELF || c->lane_turned))
        return err_input(e,
                         "%s: only with action: evict; a merge is always with the previous row, by a channel that "
                         "no query has",
                         c->lane_turned ? "lane_turned" : "governs");
    if (c->lane_turned && (dmc_adapter(c) || !dmc_soft(c)))
        return err_input(e, "lane_turned: only with decide: lane in phase: soft; otherwise no channel is refilled");
    if (dmc_adapter(c) && c->lane != DMC_LAST)
        return err_input(e, "lane: no channel decides with decide: adapter; leave lane out");
    if (dmc_adapter(c) && c->action == DMC_MERGE)
        return err_input(e, "decide: adapter needs action: evict; a merge also needs importances, which lanes give");
    if (dmc_adapter(c) && !dmc_soft(c))
        return err_input(e, "phase: zero removes a channel, but with decide: adapter none decides; leave phase out");
    if (!dmc_adapter(c) && (c->g.qk_norm_wide || c->g.rope_dims || (c->g.qk_norm && c->action == DMC_MERGE)))
        return err_input(e, "%s: not where a channel decides; set decide: adapter and action: evict",
                         c->g.rope_dims ? "rope_dims"
                         : c->g.qk_norm ? "qk_norm"
                                        : "qk_norm_wide");
    if (c->g.qk_norm && !dmc_soft(c))
        return err_input(e, "phase: zero removes a channel from projections, which changes what qk_norm makes of the "
                            "others; set decide: adapter and leave phase out");
    if (c->gain == 0) c->gain = c->action == DMC_MERGE ? 1 : EVICT_GAIN;
    return true;
}

static void dmc_buffers(const DmcCfg *c, int N, int M, S *s, Fields *f) {
    int H = c->g.heads, G = c->g.kv_heads, D = c->g.head_dim;
    const bool wide = c->g.qk_norm_wide;
    if (H) {
        field(f, &s->q, "q", 0, M, H, D);
        field(f, &s->o, "o", 0, M, H, D);
        field(f, &s->lse, "lse", FIELD_F32, M, H);
    }
    if (dmc_soft(c)) field(f, &s->alpha, "alpha", FIELD_F32, N, G);
    if (dmc_normed(c) && H) {
        field(f, &s->q_raw, "q_raw", 0, M, H, D);
        field(f, &s->q_rstd, "q_rstd", FIELD_F32, M, wide ? 1 : H);
    }
    if (dmc_normed(c)) {
        field(f, &s->k_raw, "k_raw", 0, N, G, D);
        field(f, &s->k_rstd, "k_rstd", FIELD_F32, N, wide ? 1 : G);
    }
    if (!dmc_merges(c)) return;
    field(f, &s->k, "k", 0, N, G, D);
    field(f, &s->v, "v", 0, N, G, D);
    field(f, &s->omega, "omega", FIELD_F32, N, G);
}
static void dmc_weights(const void *cfg, void *w_, Fields *f) {
    const DmcCfg *c = cfg;
    DmcW *w = w_;
    gqa_weights(cfg, w_, f);
    if (dmc_adapter(c)) adapter_fields(f, &w->wd, &w->bd, c->g.kv_heads, c->g.base.d_model);
}
static void dmc_saved(const void *cfg, int N, void *s, Fields *f) { dmc_buffers(cfg, N, N, s, f); }

/* The carried row: k and v before the merge, omega, alpha. Without a window: the means, Z and 0. Of `governs: itself` u
 * alone. */
static void dmc_rows(const void *cfg, KvShape *s) {
    const DmcCfg *c = cfg;
    int D = c->g.head_dim;
    *s = (KvShape){.lanes = c->g.kv_heads, .kdim = D, .vdim = D, .evicts = dmc_soft(c), .delay = c->delay};
    s->carry_rows = carry_rows(c);
    s->carry = dmc_itself(c) ? 1 : s->carry_rows ? 2 * D + 2 : 0;
}

/* ---- the lane ---------------------------------------------------------------------------------------------------- */

/* Multiply the lane of heads 0, step, 2 step .. of every row of x (n, heads, D) by m. */
static void scale_lane(Run *r, const DmcCfg *c, Tensor x, int step, real m) {
    r->ops->scale_column(r, tensor_rows(x, step * x.n[2]), lane_of(c), (double)m);
}
/* Rotate (sign -1: transposed), with the lane multiplied by m before and, unless the rotation refills it, after. */
static void dmc_turn(Run *r, const DmcCfg *c, Tensor x, RowList rows, int step, real m, int sign) {
    if (!c->lane_turned || sign > 0) scale_lane(r, c, x, step, m);
    r->ops->rope(r, x, &c->g.table, rows, sign);
    if (!c->lane_turned || sign < 0) scale_lane(r, c, x, step, m);
}
/* The factor of the lane. It is 0 for models that decide, and in evaluation for a lane that fades. */
static real dmc_left(const Run *r, const DmcCfg *c) {
    return dmc_soft(c) || !(r->mode & RUN_TRAIN) ? 0 : (real)fmax(0, 1 - r->progress / FADE);
}
/* Where an adapter decides, gqa_turn and gqa_turn_back have the place of this. */
static void turn_q(Run *r, const DmcCfg *c, Tensor q, RowList rows, int sign) {
    dmc_turn(r, c, q, rows, c->action == DMC_EVICT ? group_of(c) : 1, dmc_left(r, c), sign);
}
/* When merging: evicting leaves keys as they are. */
static void turn_k(Run *r, const DmcCfg *c, Tensor k, RowList rows, int sign) {
    dmc_turn(r, c, k, rows, 1, dmc_left(r, c), sign);
}

/* Clear a row of weights or moments, which may have a smaller dtype, or be absent. */
static void clear_row(Device *dev, Tensor w, Tensor b, int row) {
    size_t wide = present(w) ? (size_t)w.n[1] * dtype_size(w.dtype) : 0, one = dtype_size(b.dtype);
    if (wide) device_zero(dev, (char *)w.p + (size_t)row * wide, wide);
    if (present(b)) device_zero(dev, (char *)b.p + (size_t)row * one, one);
}
static void stage_end(Device *dev, const void *cfg, void *w_) {
    const DmcCfg *c = cfg;
    GqaW *w = w_;
    int D = c->g.head_dim, step = c->action == DMC_EVICT ? group_of(c) : 1;
    if (dmc_soft(c)) return; /* an adapter, too */
    for (int h = 0; h < c->g.heads; h += step) clear_row(dev, w->wq, w->bq, h * D + lane_of(c));
    for (int h = 0; h < c->g.kv_heads && c->action == DMC_MERGE; h++) clear_row(dev, w->wk, w->bk, h * D + lane_of(c));
}

/* ---- decisions --------------------------------------------------------------------------------------------------- */

static Decide decide_of(const DmcCfg *c) {
    return (Decide){c->gain, c->offset, c->temperature, EPS, group_of(c), dmc_itself(c)};
}

/* Gather the rows of Wq or Wk that make u (0..G-1) and the mean query lane (G..2G-1), and their biases. They are
 * multiplied by a batch-invariant op and not with the other projections: prefill and decoding must make the same
 * decisions. */
static void lane_weights(Run *r, const DmcCfg *c, const GqaW *w, Tensor rows, Tensor bias) {
    int G = c->g.kv_heads, D = c->g.head_dim, group = group_of(c), lane = lane_of(c);
    bool evict = c->action == DMC_EVICT;
    Tensor from = evict ? w->wq : w->wk, b = evict ? w->bq : w->bk;
    if (!c->g.qkv_bias) r->ops->zero(r, bias);
    r->ops->mean_rows(r, tensor_part(rows, 0, G), from, evict ? group * D : D, lane, 1);
    if (c->g.qkv_bias) r->ops->mean_rows(r, tensor_part(bias, 0, G), b, evict ? group * D : D, lane, 1);
    if (rows.n[0] == G) return;
    r->ops->mean_rows(r, tensor_part(rows, G, G), w->wq, D, lane, group);
    if (c->g.qkv_bias) r->ops->mean_rows(r, tensor_part(bias, G, G), w->bq, D, lane, group);
}
/* u of normed queries: the whole head is projected so, because its norm is over all of it. */
static void normed_lanes(Run *r, const DmcCfg *c, const GqaW *w, Tensor x, Tensor u) {
    const int N = r->batch->N, D = c->g.head_dim, each = group_of(c) * D;
    const Tensor gain = norm_gain(r, w->nq, c->g.base.norm_plus_one);
    const Tensor raw = SCRATCH(r, "deciding head", N, D), q = SCRATCH(r, "its norm", N, D),
                 rstd = SCRATCH(r, "rstd", N);
    Tensor rows = SCRATCH(r, "head's weights", D, c->g.base.d_model);
    for (int h = 0; h < c->g.kv_heads; h++) {
        const Tensor bias = c->g.qkv_bias ? tensor_part(w->bq, h * each, D) : ABSENT;
        if (w->wq.dtype == REAL)
            rows = tensor_part(w->wq, h * each, D);
        else
            r->ops->mean_rows(r, rows, w->wq, 1, h * each, 1);
        r->ops->linear_invariant(r, raw, x, rows, bias);
        r->ops->rmsnorm(r, q, rstd, raw, gain, c->g.base.norm_eps);
        r->ops->columns(r, u, h, q, lane_of(c), 1);
    }
}
static void dmc_decisions(Run *r, const DmcCfg *c, const DmcW *w, Tensor x, Kv *kv, S *s, const Slot *history) {
    const Tensor past = history && dmc_itself(c) ? kv_carry(history) : ABSENT;
    if (dmc_adapter(c)) {
        adapter_decide(r, w->wd, w->bd, decide_of(c), x, kv, past, s->alpha);
        return;
    }
    int O = (dmc_merges(c) ? 2 : 1) * c->g.kv_heads;
    Mark mark = arena_mark(r->scratch);
    Tensor u = SCRATCH(r, "lanes", r->batch->N, O);
    if (dmc_normed(c)) {
        normed_lanes(r, c, &w->g, x, u);
    } else {
        Tensor rows = SCRATCH(r, "lane weights", O, c->g.base.d_model), bias = SCRATCH(r, "lane biases", O);
        lane_weights(r, c, &w->g, rows, bias);
        r->ops->linear_invariant(r, u, x, rows, bias);
    }
    r->ops->decide(r, s->alpha, s->omega, kv->bias, kv->evicted, u, past, decide_of(c));
    if (dmc_itself(c) && present(kv->carry)) r->ops->columns(r, kv->carry, 0, tensor_rows(u, 1), 0, 1);
    arena_release(r->scratch, mark);
}

/* Store what the next pass may need of each row. Z (N,G). */
static void dmc_carry(Run *r, const DmcCfg *c, Kv *kv, const S *s, Tensor z) {
    int D = c->g.head_dim;
    if (!present(kv->carry)) return;
    if (!c->window) r->ops->zero(r, kv->carry); /* the last element */
    r->ops->columns(r, kv->carry, 0, c->window ? s->k : kv->k, 0, D);
    r->ops->columns(r, kv->carry, D, c->window ? s->v : kv->v, 0, D);
    r->ops->columns(r, kv->carry, 2 * D, tensor_rows(c->window ? s->omega : z, 1), 0, 1);
    if (c->window) r->ops->columns(r, kv->carry, 2 * D + 1, tensor_rows(s->alpha, 1), 0, 1);
}

/* ---- computations ------------------------------------------------------------------------------------------------ */

/* The inner function of forward (without a history) and extend (with one). */
static void dmc_run(Run *r, const DmcCfg *c, const DmcW *dw, Tensor x, Kv *kv, S *s, const Slot *history, Tensor y) {
    const GqaW *w = &dw->g;
    CHECK(r->in.n == r->batch->N || !(dmc_merges(c) || dmc_soft(c)), "%d rows of %d", r->in.n, r->batch->N);
    Mark mark = arena_mark(r->scratch);
    const Kv made = kv_made(r, kv);
    Tensor q = dmc_normed(c) ? s->q_raw : s->q,
           k = dmc_normed(c)   ? s->k_raw
               : dmc_merges(c) ? s->k
                               : made.k,
           v = dmc_merges(c) ? s->v : made.v;
    bool all = r->in.n == r->out.n; /* otherwise queries have fewer rows */
    Projection p[] = {{k, w->wk, w->bk}, {v, w->wv, w->bv}, {q, w->wq, w->bq}};
    r->ops->linear_many(r, 2 + (all && c->g.heads), p, x);
    if (dmc_soft(c)) dmc_decisions(r, c, dw, x, kv, s, history);
    if (dmc_merges(c)) {
        Tensor past = history && carry_rows(c) ? kv_carry(history) : ABSENT,
               z = SCRATCH(r, "Z", r->in.n, c->g.kv_heads);
        r->ops->merge(r, kv->k, z, k, s->alpha, s->omega, c->window, past, 0);
        r->ops->merge(r, kv->v, z, v, s->alpha, s->omega, c->window, past, c->g.head_dim);
        dmc_carry(r, c, kv, s, z);
    }
    if (c->action == DMC_EVICT)
        gqa_turn(r, &c->g, r->in, made.k, s->k_raw, s->k_rstd, w->nk);
    else
        turn_k(r, c, made.k, r->in, 1);
    kv_settle(r, kv); /* carried rows keep their exact values */
    if (!c->g.heads) {
        arena_release(r->scratch, mark);
        return;
    }
    if (!all) r->ops->linear(r, q, wanted_rows(r, x), w->wq, w->bq);
    if (dmc_adapter(c)) {
        gqa_turn(r, &c->g, r->out, s->q, s->q_raw, s->q_rstd, w->nq);
    } else {
        if (dmc_normed(c))
            r->ops->rmsnorm(r, s->q, s->q_rstd, s->q_raw, norm_gain(r, w->nq, c->g.base.norm_plus_one),
                            c->g.base.norm_eps);
        turn_q(r, c, s->q, r->out, 1);
    }
    kv_turn_queries(r, kv, s->q);
    if (history) kv_attend(r, history, kv, s->o, s->lse, s->q, gqa_attn(&c->g), false);
    r->ops->attend(r, s->o, s->lse, s->q, kv, gqa_attn(&c->g), history != NULL);
    r->ops->linear(r, y, s->o, w->wo, w->bo);
    arena_release(r->scratch, mark);
}
static void dmc_forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    dmc_run(r, cfg, w, x, kv, s, NULL, y);
}
static void dmc_extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    S s = {0};
    dmc_buffers(cfg, r->in.n, r->out.n, &s, &f);
    dmc_run(r, cfg, w, x, kv, &s, r->batch->history ? slot : NULL, y);
    arena_release(r->scratch, mark);
}

/* Add the decisions' gradients to the lanes of the heads that decide, and when merging to those of all query heads.
 * da, domega (N,G) are the gradients by alpha and omega, absent when evicting. dk and dq must hold nothing in those
 * places. */
static void decisions_backward(Run *r, const DmcCfg *c, const S *s, Tensor da, Tensor domega, const Kv *dkv, Tensor dk,
                               Tensor dq) {
    int N = r->batch->N, G = c->g.kv_heads, group = group_of(c), D = c->g.head_dim, lane = lane_of(c);
    Mark mark = arena_mark(r->scratch);
    Tensor du = SCRATCH(r, "d lanes", N, G), dm = present(domega) ? SCRATCH(r, "d mean lanes", N, G) : ABSENT;
    r->ops->zero(r, du);
    if (present(dm)) r->ops->zero(r, dm);
    r->ops->decide_backward(r, du, dm, da, domega, dkv->bias, s->alpha, s->omega, decide_of(c));
    Tensor groups = tensor_rows(dq, group * D);
    r->ops->columns_backward(r, add_to(c->action == DMC_EVICT ? groups : tensor_rows(dk, D)), lane, tensor_rows(du, 1),
                             0, 1);
    for (int g = 0; g < group && present(dm); g++)
        r->ops->columns_backward(r, add_to(groups), g * D + lane, tensor_rows(dm, 1), 0, 1);
    arena_release(r->scratch, mark);
}

/* The gradient of the projected queries from that of the normed ones, their lanes included. */
static Tensor normed_back(Run *r, const DmcCfg *c, const S *s, const GqaW *w, GqaW *dw, Tensor dq) {
    const Tensor graw = SCRATCH(r, "d projected", dq.n[0], dq.n[1], dq.n[2]),
                 gain = norm_gain(r, w->nq, c->g.base.norm_plus_one);
    r->ops->rmsnorm_backward(r, overwrite(graw), dw->nq, dq, s->q_raw, gain, s->q_rstd);
    return graw;
}
/* The gradients of queries, as they were projected, in scratch, and those of the rows by their own queries. */
static Tensor queries_backward(Run *r, const DmcCfg *c, const GqaW *w, GqaW *dw, const Kv *kv, const KvInto *dkv,
                               const S *s, Tensor dy) {
    int N = r->in.n, H = c->g.heads, D = c->g.head_dim;
    Tensor dout = SCRATCH(r, "d o", N, H, D), dq = SCRATCH(r, "d q", N, H, D);
    r->ops->linear_backward(r, overwrite(dout), dw->wo, dw->bo, dy, s->o, w->wo);
    r->ops->attend_backward(r, overwrite(dq), dkv, dout, s->q, kv, gqa_attn(&c->g), s->o, s->lse);
    if (dmc_adapter(c)) return gqa_turn_back(r, &c->g, dw->nq, dq, s->q_raw, s->q_rstd, w->nq);
    turn_q(r, c, dq, r->in, -1);
    return dq;
}
static void dmc_backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, const KvInto *dkv,
                         const void *s_, Tensor dy, Into dx) {
    const DmcCfg *c = cfg;
    const GqaW *w = w_; /* of a DmcW, which begins with it */
    GqaW *dw = dw_;
    const S *s = s_;
    int N = r->in.n, G = c->g.kv_heads, D = c->g.head_dim, n = 0;
    Mark mark = arena_mark(r->scratch);
    Tensor dq = ABSENT, dk = dkv->kv.k, dv = dkv->kv.v, da = ABSENT, domega = ABSENT;
    if (c->g.heads) dq = queries_backward(r, c, w, dw, kv, dkv, s, dy);
    if (c->action == DMC_EVICT)
        dk = gqa_turn_back(r, &c->g, dw->nk, dk, s->k_raw, s->k_rstd, w->nk);
    else
        turn_k(r, c, dk, r->in, -1);
    if (dmc_merges(c)) {
        Tensor mean = SCRATCH(r, "mean k", N, G, D), z = SCRATCH(r, "Z", N, G);
        dk = SCRATCH(r, "d k", N, G, D), dv = SCRATCH(r, "d v", N, G, D);
        da = SCRATCH(r, "d alpha", N, G), domega = SCRATCH(r, "d omega", N, G);
        Tensor sums[] = {dk, dv, da, domega};
        for (int i = 0; i < 4; i++) r->ops->zero(r, sums[i]);
        r->ops->merge(r, mean, z, s->k, s->alpha, s->omega, c->window, ABSENT, 0);
        r->ops->merge_backward(r, dk, da, domega, dkv->kv.k, s->k, mean, z, s->alpha, s->omega, c->window);
        r->ops->merge_backward(r, dv, da, domega, dkv->kv.v, s->v, kv->v, z, s->alpha, s->omega, c->window);
    }
    if (dmc_soft(c) && !dmc_adapter(c)) decisions_backward(r, c, s, da, domega, &dkv->kv, dk, dq);
    if (dmc_normed(c) && !dmc_adapter(c)) dq = normed_back(r, c, s, w, dw, dq);
    Projection p[4], d[4];
    if (c->g.heads) p[n].w = w->wq, d[n++] = (Projection){dq, dw->wq, dw->bq};
    p[n].w = w->wk, d[n++] = (Projection){dk, dw->wk, dw->bk};
    p[n].w = w->wv, d[n++] = (Projection){dv, dw->wv, dw->bv};
    if (dmc_adapter(c)) {
        const DmcW *own = w_;
        DmcW *down = dw_;
        p[n].w = own->wd;
        d[n++] = (Projection){adapter_backward(r, decide_of(c), &dkv->kv, s->alpha, x.dtype), down->wd, down->bd};
    }
    r->ops->linear_many_backward(r, dx, n, d, x, p);
    arena_release(r->scratch, mark);
}

/* Computed without merges: the number of kept rows depends on the data, and this is the most. */
static double dmc_flops(const void *cfg, double context) {
    const DmcCfg *c = cfg;
    double mean = dmc_merges(c) ? 4.0 * (c->window ? c->window : 2) * c->g.kv_heads * c->g.head_dim : 0;
    return 4.0 * c->g.heads * c->g.head_dim * context + mean;
}
static bool dmc_publishes_only(const void *cfg) { return ((const DmcCfg *)cfg)->g.heads == 0; }

const Mixer dmc_mixer = {
    .name = "dmc",
    .source = "arXiv:2403.09636, arXiv:2506.05345",
    .keys = keys,
    .cfg_size = sizeof(DmcCfg),
    .w_size = sizeof(DmcW),
    .s_size = sizeof(S),
    .check = dmc_check,
    .weights = dmc_weights,
    .saved = dmc_saved,
    .rows = dmc_rows,
    .forward = dmc_forward,
    .backward = dmc_backward,
    .extend = dmc_extend,
    .flops = dmc_flops,
    .publishes_only = dmc_publishes_only,
    .reports = dmc_reports,
    .stage_end = stage_end,
};
