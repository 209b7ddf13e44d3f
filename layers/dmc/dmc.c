/* dmc.c: see dmc.h. */
#include "dmc.h"
#include "../../ops/host.h"
#include "../parts.h"

#define EPS  (1.0 / 128) /* of the importance: bf16's, as the released code has it */
#define FADE 0.8         /* of phase zero: then the lane is at 0 */

static const char *const phases[] = {"zero", "soft", NULL}, *const lanes[] = {"last", "first", NULL},
                         *const actions[] = {"merge", "evict", NULL};
#define AT(member) offsetof(DmcCfg, member)
static const Key keys[] = {
    {"heads", KEY_INT, AT(g.heads), NULL, 1, 1024, "query heads", 0, 0},
    {"kv_heads", KEY_INT, AT(g.kv_heads), "0", 0, 1024, "key/value heads, a divisor of heads; 0: as many as heads", 0,
     0},
    {"head_dim", KEY_INT, AT(g.head_dim), "0", 0, 1024, "numbers per head; 0: d_model / heads", 0, 0},
    {"rope", KEY_TABLE, AT(g.rope), "", 0, 0, "rotary position embedding; `rope: none` for none", 0, rope_keys},
    {"qkv_bias", KEY_BOOL, AT(g.qkv_bias), "false", 0, 0, "biases of the q, k and v projections", 0, 0},
    {"o_bias", KEY_BOOL, AT(g.o_bias), "false", 0, 0, "bias of the output projection", 0, 0},
    {"phase", KEY_CHOICE, AT(phase), "soft", 0, 0,
     "zero: plain attention whose lane fades to 0; soft: decisions, soft in training and hard in evaluation", phases,
     0},
    {"action", KEY_CHOICE, AT(action), "merge", 0, 0,
     "merge: a token joins its predecessor's row (DMC); evict: the predecessor's row leaves (DMS)", actions, 0},
    {"lane", KEY_CHOICE, AT(lane), "last", 0, 0,
     "number of each head that decides: last (slowest pair of half-split rope) or first", lanes, 0},
    {"window", KEY_INT, AT(window), "12", 0, 4096, "merge: newest tokens that a row is the mean of; 0: all", 0, 0},
    {"delay", KEY_INT, AT(delay), "0", 0, 1 << 20, "evict: positions that a row stays visible after the decision", 0,
     0},
    {"temperature", KEY_FLOAT, AT(temperature), "0.1", 1e-3, 1e3, "of the soft decisions", 0, 0},
    {"offset", KEY_FLOAT, AT(offset), "5", -1e3, 1e3, "subtracted from the decision, added to the importance", 0, 0},
    {"gain", KEY_FLOAT, AT(gain), "0", 0, 1e6, "factor of the deciding number; 0: 1 to merge, 100 to evict", 0, 0},
    {0},
};
#undef AT

/* q as attended, o, lse; before the merge: k, v, their weights omega; alpha. The three are of phase soft. */
typedef struct {
    Tensor q, o, lse;          /* (M,H,D), (M,H,D), (M,H); M wanted rows */
    Tensor k, v, omega, alpha; /* (N,G,D) (N,G,D) (N,G), when merging; (N,G) */
} S;

static bool soft(const DmcCfg *c) { return c->phase == DMC_SOFT; }
static bool reports(const void *cfg) { return soft(cfg); }
static bool merges(const DmcCfg *c) { return soft(c) && c->action == DMC_MERGE; }
static int lane_of(const DmcCfg *c) { return c->lane == DMC_LAST ? c->g.head_dim - 1 : 0; }
static int group_of(const DmcCfg *c) { return c->g.heads / c->g.kv_heads; }
static int carry_rows(const DmcCfg *c) { return !merges(c) ? 0 : c->window ? c->window - 1 : 1; }

static bool check(void *cfg, Err *e) {
    DmcCfg *c = cfg;
    if (!c->g.base.owner)
        return err_input(e, "kv_from: a dmc layer decides about rows of its own; give the layers that read another's "
                            "mixer: gqa");
    if (!gqa_check(cfg, e)) return false;
    if (c->g.head_dim < 2)
        return err_input(e, "head_dim: expected at least 2, one number of which decides, got %d", c->g.head_dim);
    if (c->delay && c->action == DMC_MERGE)
        return err_input(e, "delay: %d positions, but a merged row is replaced at once; set action: evict or drop it",
                         c->delay);
    if (c->gain == 0) c->gain = c->action == DMC_MERGE ? 1 : 100;
    return true;
}

static void buffers(const DmcCfg *c, int N, int M, S *s, Fields *f) {
    int H = c->g.heads, G = c->g.kv_heads, D = c->g.head_dim;
    field(f, &s->q, "q", 0, M, H, D);
    field(f, &s->o, "o", 0, M, H, D);
    field(f, &s->lse, "lse", FIELD_F32, M, H);
    if (soft(c)) field(f, &s->alpha, "alpha", FIELD_F32, N, G);
    if (!merges(c)) return;
    field(f, &s->k, "k", 0, N, G, D);
    field(f, &s->v, "v", 0, N, G, D);
    field(f, &s->omega, "omega", FIELD_F32, N, G);
}
static void saved(const void *cfg, int N, void *s, Fields *f) { buffers(cfg, N, N, s, f); }

/* A carried row: k and v before the merge, omega, alpha; without a window the means, Z and 0. */
static void rows(const void *cfg, KvShape *s) {
    const DmcCfg *c = cfg;
    int D = c->g.head_dim;
    *s = (KvShape){.lanes = c->g.kv_heads, .kdim = D, .vdim = D, .retire = soft(c), .delay = c->delay};
    s->carry_rows = carry_rows(c);
    s->carry = s->carry_rows ? 2 * D + 2 : 0;
}

/* ---- the lane -----------------------------------------------------------------------------------------------------
 */

/* The lane of heads 0, step, 2 step .. of every row of x (n, heads, D) times m. */
static void scale_lane(Run *r, const DmcCfg *c, Tensor x, int step, real m) {
    r->ops->scale_column(r, tensor_rows(x, step * x.n[2]), lane_of(c), (double)m);
}
/* Rotation (sign -1: its transpose) with the lane times m before and after. */
static void turn(Run *r, const DmcCfg *c, Tensor x, Pick rows, int step, real m, int sign) {
    scale_lane(r, c, x, step, m);
    r->ops->rope(r, x, &c->g.table, rows, sign);
    scale_lane(r, c, x, step, m);
}
/* What is left of the lane. Decided models have given it away; so has, in evaluation, one whose lane fades. */
static real left(const Run *r, const DmcCfg *c) {
    return soft(c) || !(r->mode & RUN_TRAIN) ? 0 : (real)fmax(0, 1 - r->progress / FADE);
}
static void turn_q(Run *r, const DmcCfg *c, Tensor q, Pick rows, int sign) {
    turn(r, c, q, rows, c->action == DMC_EVICT ? group_of(c) : 1, left(r, c), sign);
}
static void turn_k(Run *r, const DmcCfg *c, Tensor k, Pick rows, int sign) {
    if (c->action == DMC_EVICT)
        r->ops->rope(r, k, &c->g.table, rows, sign);
    else
        turn(r, c, k, rows, 1, left(r, c), sign);
}

/* Of weights and of moments, which may be narrower, or absent. */
static void clear_row(Device *dev, Tensor w, Tensor b, int row) {
    size_t wide = present(w) ? (size_t)w.n[1] * dtype_size(w.dtype) : 0, one = dtype_size(b.dtype);
    if (wide) device_zero(dev, (char *)w.p + (size_t)row * wide, wide);
    if (present(b)) device_zero(dev, (char *)b.p + (size_t)row * one, one);
}
static void stage_end(Device *dev, const void *cfg, void *w_) {
    const DmcCfg *c = cfg;
    GqaW *w = w_;
    int D = c->g.head_dim, step = c->action == DMC_EVICT ? group_of(c) : 1;
    if (soft(c)) return;
    for (int h = 0; h < c->g.heads; h += step) clear_row(dev, w->wq, w->bq, h * D + lane_of(c));
    for (int h = 0; h < c->g.kv_heads && c->action == DMC_MERGE; h++) clear_row(dev, w->wk, w->bk, h * D + lane_of(c));
}

/* ---- decisions ----------------------------------------------------------------------------------------------------
 */

static Decide decide_of(const DmcCfg *c) { return (Decide){c->gain, c->offset, c->temperature, EPS, group_of(c)}; }

/* The rows of Wq or Wk that make u (0..G-1) and the mean query lane (G..2G-1), and their biases. They are multiplied by
 * an op of fixed rounding, not with the rest of the projections: prefill and decoding must decide alike. */
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
static void decisions(Run *r, const DmcCfg *c, const GqaW *w, Tensor x, Kv *kv, S *s) {
    int O = (merges(c) ? 2 : 1) * c->g.kv_heads;
    Mark mark = arena_mark(r->scratch);
    Tensor rows = SCRATCH(r, "lane weights", O, c->g.base.d_model), bias = SCRATCH(r, "lane biases", O),
           u = SCRATCH(r, "lanes", r->batch->N, O);
    lane_weights(r, c, w, rows, bias);
    r->ops->linear_steady(r, u, x, rows, bias);
    r->ops->decide(r, s->alpha, s->omega, kv->bias, kv->gone, u, decide_of(c));
    arena_release(r->scratch, mark);
}

/* What the next pass may need of each row. Z (N,G). */
static void carry(Run *r, const DmcCfg *c, Kv *kv, const S *s, Tensor z) {
    int D = c->g.head_dim;
    if (!present(kv->carry)) return;
    if (!c->window) r->ops->zero(r, kv->carry); /* the last number */
    r->ops->columns(r, kv->carry, 0, c->window ? s->k : kv->k, 0, D);
    r->ops->columns(r, kv->carry, D, c->window ? s->v : kv->v, 0, D);
    r->ops->columns(r, kv->carry, 2 * D, tensor_rows(c->window ? s->omega : z, 1), 0, 1);
    if (c->window) r->ops->columns(r, kv->carry, 2 * D + 1, tensor_rows(s->alpha, 1), 0, 1);
}

/* ---- computations -------------------------------------------------------------------------------------------------
 */

/* forward and extend are this, without and with a history. */
static void run(Run *r, const DmcCfg *c, const GqaW *w, Tensor x, Kv *kv, S *s, const Slot *history, Tensor y) {
    CHECK(r->in.n == r->batch->N, "%d rows of %d", r->in.n, r->batch->N);
    Mark mark = arena_mark(r->scratch);
    Tensor k = merges(c) ? s->k : kv->k, v = merges(c) ? s->v : kv->v;
    bool all = r->in.n == r->out.n; /* else queries have fewer rows */
    Projection p[] = {{k, w->wk, w->bk}, {v, w->wv, w->bv}, {s->q, w->wq, w->bq}};
    r->ops->linear_many(r, 2 + all, p, x);
    if (soft(c)) decisions(r, c, w, x, kv, s);
    if (merges(c)) {
        Tensor past = history && carry_rows(c) ? kv_carry(history) : ABSENT,
               z = SCRATCH(r, "Z", r->in.n, c->g.kv_heads);
        r->ops->merge(r, kv->k, z, k, s->alpha, s->omega, c->window, past, 0);
        r->ops->merge(r, kv->v, z, v, s->alpha, s->omega, c->window, past, c->g.head_dim);
        carry(r, c, kv, s, z);
    }
    turn_k(r, c, kv->k, r->in, 1);
    kv_settle(r, kv); /* what is carried stays as it was */
    if (!all) r->ops->linear(r, s->q, wanted_rows(r, x), w->wq, w->bq);
    turn_q(r, c, s->q, r->out, 1);
    if (history) kv_attend(r, history, kv, s->o, s->lse, s->q, gqa_look(&c->g), false);
    r->ops->attend(r, s->o, s->lse, s->q, kv, gqa_look(&c->g), history != NULL);
    r->ops->linear(r, y, s->o, w->wo, w->bo);
    arena_release(r->scratch, mark);
}
static void forward(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y) {
    run(r, cfg, w, x, kv, s, NULL, y);
}
static void extend(Run *r, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y) {
    Mark mark = arena_mark(r->scratch);
    Fields f = arena_placer(r->scratch);
    S s = {0};
    buffers(cfg, r->in.n, r->out.n, &s, &f);
    run(r, cfg, w, x, kv, &s, r->batch->history ? slot : NULL, y);
    arena_release(r->scratch, mark);
}

/* To the lane's number of the heads that decide, and when merging of all query heads: da, domega (N,G) are the
 * gradients by alpha and omega, absent when evicting. dk, dq hold nothing in those places. */
static void decisions_backward(Run *r, const DmcCfg *c, const S *s, Tensor da, Tensor domega, const Kv *dkv, Tensor dk,
                               Tensor dq) {
    int N = r->batch->N, G = c->g.kv_heads, group = group_of(c), D = c->g.head_dim, lane = lane_of(c);
    Mark mark = arena_mark(r->scratch);
    Tensor du = SCRATCH(r, "d lanes", N, G), dm = present(domega) ? SCRATCH(r, "d mean lanes", N, G) : ABSENT;
    r->ops->zero(r, du);
    if (present(dm)) r->ops->zero(r, dm);
    r->ops->decide_backward(r, du, dm, da, domega, dkv->bias, s->alpha, s->omega, decide_of(c));
    Tensor groups = tensor_rows(dq, group * D);
    r->ops->columns_backward(r, c->action == DMC_EVICT ? groups : tensor_rows(dk, D), lane, tensor_rows(du, 1), 0, 1);
    for (int g = 0; g < group && present(dm); g++)
        r->ops->columns_backward(r, groups, g * D + lane, tensor_rows(dm, 1), 0, 1);
    arena_release(r->scratch, mark);
}

static void backward(Run *r, const void *cfg, const void *w_, void *dw_, Tensor x, const Kv *kv, Kv *dkv,
                     const void *s_, Tensor dy, Tensor dx) {
    const DmcCfg *c = cfg;
    const GqaW *w = w_;
    GqaW *dw = dw_;
    const S *s = s_;
    int N = r->in.n, H = c->g.heads, G = c->g.kv_heads, D = c->g.head_dim;
    Mark mark = arena_mark(r->scratch);
    Tensor dout = SCRATCH(r, "d o", N, H, D), dq = SCRATCH(r, "d q", N, H, D), dk = dkv->k, dv = dkv->v, da = ABSENT,
           domega = ABSENT;
    r->ops->zero(r, dout);
    r->ops->zero(r, dq);
    r->ops->linear_backward(r, dout, dw->wo, dw->bo, dy, s->o, w->wo);
    r->ops->attend_backward(r, dq, dkv, dout, s->q, kv, gqa_look(&c->g), s->o, s->lse);
    turn_q(r, c, dq, r->in, -1);
    turn_k(r, c, dkv->k, r->in, -1);
    if (merges(c)) {
        Tensor mean = SCRATCH(r, "mean k", N, G, D), z = SCRATCH(r, "Z", N, G);
        dk = SCRATCH(r, "d k", N, G, D), dv = SCRATCH(r, "d v", N, G, D);
        da = SCRATCH(r, "d alpha", N, G), domega = SCRATCH(r, "d omega", N, G);
        Tensor sums[] = {dk, dv, da, domega};
        for (int i = 0; i < 4; i++) r->ops->zero(r, sums[i]);
        r->ops->merge(r, mean, z, s->k, s->alpha, s->omega, c->window, ABSENT, 0);
        r->ops->merge_backward(r, dk, da, domega, dkv->k, s->k, mean, z, s->alpha, s->omega, c->window);
        r->ops->merge_backward(r, dv, da, domega, dkv->v, s->v, kv->v, z, s->alpha, s->omega, c->window);
    }
    if (soft(c)) decisions_backward(r, c, s, da, domega, dkv, dk, dq);
    Projection p[] = {{.w = w->wq}, {.w = w->wk}, {.w = w->wv}},
               d[] = {{dq, dw->wq, dw->bq}, {dk, dw->wk, dw->bk}, {dv, dw->wv, dw->bv}};
    r->ops->linear_many_backward(r, dx, 3, d, x, p);
    arena_release(r->scratch, mark);
}

/* Without merges: what is kept depends on the data, this is the most. */
static double flops(const void *cfg, double context) {
    const DmcCfg *c = cfg;
    double mean = merges(c) ? 4.0 * (c->window ? c->window : 2) * c->g.kv_heads * c->g.head_dim : 0;
    return 4.0 * c->g.heads * c->g.head_dim * context + mean;
}

const Mixer dmc_mixer = {
    .name = "dmc",
    .source = "arXiv:2403.09636, arXiv:2506.05345",
    .keys = keys,
    .cfg_size = sizeof(DmcCfg),
    .w_size = sizeof(GqaW),
    .s_size = sizeof(S),
    .check = check,
    .weights = gqa_weights,
    .saved = saved,
    .rows = rows,
    .forward = forward,
    .backward = backward,
    .extend = extend,
    .flops = flops,
    .reports = reports,
    .stage_end = stage_end,
};
