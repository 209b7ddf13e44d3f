/* block.c: one block of the model, forward, over a history, and backward: see block.h. */
#include "block.h"
#include "layers/cache/aqua.h"
#include "layers/parts.h"
#include "ops/host.h"

/* ---- what it is made of ---------------------------------------------------------------------------------------------
 */

void model_norm(const Model *m, Run *r, Norm n, Tensor x) {
    if (!present(n.w)) {
        r->ops->copy(r, n.y, x);
        return;
    }
    Mark mark = arena_mark(r->scratch);
    const Tensor gain = norm_gain(r, n.w, m->cfg.norm_plus_one);
    if (m->cfg.norm == NORM_LAYER)
        r->ops->layernorm(r, n.y, n.rstd, x, gain, n.b, m->cfg.norm_eps);
    else
        r->ops->rmsnorm(r, n.y, n.rstd, x, gain, m->cfg.norm_eps);
    arena_release(r->scratch, mark);
}
/* x += z, and the norm of that. */
static void add_norm(const Model *m, Run *r, Norm n, Tensor x, Tensor z) {
    if (m->cfg.norm == NORM_LAYER || !present(n.w)) {
        r->ops->add(r, x, z);
        model_norm(m, r, n, x);
        return;
    }
    Mark mark = arena_mark(r->scratch);
    r->ops->add_rmsnorm(r, n.y, n.rstd, x, z, norm_gain(r, n.w, m->cfg.norm_plus_one), m->cfg.norm_eps);
    arena_release(r->scratch, mark);
}
void model_norm_backward(const Model *m, Run *r, Into dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
                         Tensor rstd) {
    if (!present(w)) {
        begin_sum(r, dx);
        r->ops->add(r, dx.t, dy);
        return;
    }
    Mark mark = arena_mark(r->scratch);
    const Tensor gain = norm_gain(r, w, m->cfg.norm_plus_one);
    if (m->cfg.norm == NORM_LAYER) {
        begin_sum(r, dx);
        r->ops->layernorm_backward(r, dx.t, dw, db, dy, x, gain, rstd);
    } else {
        r->ops->rmsnorm_backward(r, dx, dw, dy, x, gain, rstd);
    }
    arena_release(r->scratch, mark);
}

static double dropout_of(const Model *m, const Run *r) { return r->mode & RUN_TRAIN ? m->opts.dropout : 0; }

/* A branch of a block: a mixer or feed-forward part, and the norm of what it made. */
typedef struct {
    Tensor made; /* ABSENT: what it made is added as it is */
    Norm post;   /* of that; y unused */
    DropSite site;
} Branch;
/* Where the part writes its output; `out` is where what is added to the stream shall be. */
static Tensor branch_made(Branch b, Tensor out) { return present(b.made) ? b.made : out; }
/* From what the part made, what is added to the stream. */
static void branch_end(const Model *m, Run *r, Branch b, Tensor out) {
    const double drop = dropout_of(m, r);
    if (present(b.made)) {
        b.post.y = out;
        model_norm(m, r, b.post, b.made);
    }
    if (m->cfg.residual_scale != 1) r->ops->axpby(r, out, 0, out, m->cfg.residual_scale);
    if (drop > 0) r->ops->dropout(r, out, b.site, drop);
}

/* The first half, up to the sum: mid = what the mixer of xn adds, over the history of `slot` if there is one. */
static void block_mix(const Model *m, Run *r, int l, Branch b, Tensor xn, Kv *kv, const Slot *slot, void *saved,
                      Tensor mid) {
    const Layer *L = &m->layer[l];
    const Mixer *mixer = L->kind->mixer;
    const void *w = m->w.layer[l].mix;
    const Tensor to = L->publisher ? ABSENT : branch_made(b, mid);
    r->layer = l;
    if (slot)
        mixer->extend(r, L->cfg, w, xn, kv, slot, to);
    else
        mixer->forward(r, L->cfg, w, xn, kv, saved, to);
    if (!L->publisher) branch_end(m, r, b, mid);
}
/* The second half: mid, so far what the mixer adds, becomes the stream between the two; y = what the feed-forward part
 * adds. Without such a part y = mid, and norm2 is not read. x: the block's input in the rows that go on; it may be y
 * itself. */
static void block_feed(const Model *m, Run *r, int l, Branch b, Norm norm2, void *saved, Tensor x, Tensor mid,
                       Tensor y) {
    const Layer *L = &m->layer[l];
    if (!L->feeds) {
        r->ops->add(r, mid, x);
        r->ops->copy(r, y, mid);
        return;
    }
    if (m->cfg.parallel) {
        model_norm(m, r, norm2, x);
        r->ops->add(r, mid, x);
    } else {
        add_norm(m, r, norm2, mid, x);
    }
    L->ffn->ffn->forward(r, L->fcfg, m->w.layer[l].ffn, norm2.y, saved, branch_made(b, y));
    branch_end(m, r, b, y);
}
/* y becomes the block's output; the norm that reads it next goes into the same op, if it is known. */
static void block_sum(const Model *m, Run *r, int l, Tensor y, Tensor mid, const Norm *next) {
    if (m->layer[l].feeds && next)
        add_norm(m, r, *next, y, mid);
    else if (m->layer[l].feeds)
        r->ops->add(r, y, mid);
    else if (next)
        model_norm(m, r, *next, y);
}

/* ---- what a pass keeps ----------------------------------------------------------------------------------------------
 */

/* Declare activations as BF16 or as REAL, like this visitor otherwise. */
static Fields block_activations(const Fields *f, bool bf16) {
    Fields g = *f;
    g.acts_bf16 = bf16;
    return g;
}
/* Whether a layer's mixer, or its feed-forward part, computes on BF16: where the device keeps activations so and the
 * layer can, with every other that adds to the K/V it owns. */
static bool mixer_bf16(const Model *m, int l) {
    bool bf16 = device_bf16_acts(m->dev);
    for (int k = l; k < m->L; k++)
        if (k == l || m->layer[k].kv_from == l) bf16 &= m->layer[k].kind->mixer->takes_bf16;
    return bf16;
}
static bool ffn_bf16(const Model *m, int l) { return device_bf16_acts(m->dev) && m->layer[l].ffn->ffn->takes_bf16; }

void block_fields(const Model *m, Workspace *ws, int l, int N, Fields *all) {
    const Layer *y = &m->layer[l];
    Act *a = &ws->act[l];
    int d = m->cfg.d_model;
    Fields f = block_activations(all, mixer_bf16(m, l));
    field(&f, &a->xn1, "xn1", 0, N, d);
    field(&f, &a->rstd1, "rstd1", FIELD_F32, N);
    if (y->owner && !y->shared) kv_fields(&y->rows, N, &a->kv, &f);
    y->kind->mixer->saved(y->cfg, N, a->mix, &f);
    if (y->publisher) return;
    const bool normed = m->cfg.norm_place != NORM_PRE;
    if (normed) {
        field(all, &a->made1, "made1", 0, N, d);
        field(all, &a->made1_rstd, "made1_rstd", FIELD_F32, N);
    }
    field(all, &a->mid, "mid", 0, N, d);
    if (!y->feeds) return;
    if (normed) {
        field(all, &a->made2, "made2", 0, N, d);
        field(all, &a->made2_rstd, "made2_rstd", FIELD_F32, N);
    }
    f = block_activations(all, ffn_bf16(m, l));
    field(&f, &a->xn2, "xn2", 0, N, d);
    field(&f, &a->rstd2, "rstd2", FIELD_F32, N);
    y->ffn->ffn->saved(y->fcfg, N, a->ffn, &f);
}
void block_shared_fields(const Model *m, Workspace *ws, int l, int N, bool gradient, Fields *all) {
    Fields f = block_activations(all, mixer_bf16(m, l));
    kv_fields(&m->layer[l].rows, N, &ws->kv[l], &f);
    if (gradient) kv_fields(&m->layer[l].rows, N, &ws->dkv[l], all);
}
void block_below_fields(const Model *m, int N, Run *r, Fields *f) {
    for (int l = 0; l < m->L; l++) {
        const KvShape *s = &m->layer[l].rows;
        if (!basis_predicts(s->basis) || !basis_settles(s)) continue;
        field(f, &r->below[0], "keys of the layer below", 0, N, s->lanes, s->kdim);
        field(f, &r->below[1], "values of the layer below", 0, N, s->lanes, s->vdim);
        return;
    }
}
void block_stream_fields(const Model *m, int N, Tensor *x, Tensor *xf, Tensor *rstd, Fields *all) {
    Fields f = block_activations(all, device_bf16_acts(m->dev));
    for (int l = 0; l <= m->L; l++) field(all, &x[l], "x", 0, N, m->cfg.d_model);
    field(&f, xf, "xf", 0, N, m->cfg.d_model);
    field(all, rstd, "rstd", FIELD_F32, N);
}

Kv *block_kv(const Model *m, Workspace *ws, int l) {
    int o = m->layer[l].kv_from;
    return m->layer[o].shared ? &ws->kv[o] : &ws->act[o].kv;
}
Norm block_norm(const Model *m, int l, Tensor y, Tensor rstd) {
    if (l == m->L) return (Norm){y, rstd, m->w.norm, m->w.norm_bias};
    return (Norm){y, rstd, m->w.layer[l].norm1, m->w.layer[l].bias1};
}
Norm block_kept_norm(const Model *m, Workspace *ws, int l) {
    return block_norm(m, l, ws->act[l].xn1, ws->act[l].rstd1);
}

static Branch block_mixer_of(const Model *m, int l, const Act *a) {
    return (Branch){a->made1, {ABSENT, a->made1_rstd, m->w.layer[l].post1, ABSENT}, DROP_MIXER};
}
static Branch block_ffn_of(const Model *m, int l, const Act *a) {
    return (Branch){a->made2, {ABSENT, a->made2_rstd, m->w.layer[l].post2, ABSENT}, DROP_FFN};
}

/* ---- without a history ----------------------------------------------------------------------------------------------
 */

void block_forward(const Model *m, Workspace *ws, Run *r, int l, Tensor x, Tensor y) {
    Act *a = &ws->act[l];
    const Norm norm2 = {a->xn2, a->rstd2, m->w.layer[l].norm2, m->w.layer[l].bias2};
    block_mix(m, r, l, block_mixer_of(m, l, a), a->xn1, block_kv(m, ws, l), NULL, a->mix, a->mid);
    if (m->layer[l].publisher)
        r->ops->copy(r, y, x);
    else
        block_feed(m, r, l, block_ffn_of(m, l, a), norm2, a->ffn, x, a->mid, y);
}
void block_end(const Model *m, Workspace *ws, Run *r, int l, Tensor y, const Norm *next) {
    block_sum(m, r, l, y, ws->act[l].mid, next);
}
void block_whole(const Model *m, Workspace *ws, Run *r, int l, Tensor x, Tensor y) {
    model_norm(m, r, block_kept_norm(m, ws, l), x);
    block_forward(m, ws, r, l, x, y);
    block_end(m, ws, r, l, y, NULL);
}

/* ---- over a history -------------------------------------------------------------------------------------------------
 */

void block_extend(const Model *m, Workspace *ws, Run *r, const Cache *c, int l, Tensor x, Tensor xn, Tensor y,
                  Norm next) {
    const Layer *L = &m->layer[l];
    const LayerWeights *w = &m->w.layer[l];
    void *ffn = ws->act[l].ffn;
    int d = m->cfg.d_model, M = r->out.n;
    Mark mark = arena_mark(r->scratch);
    Fields place = arena_placer(r->scratch);
    Tensor mid = SCRATCH(r, "mid", M, d);
    Act made = {0};
    if (m->cfg.norm_place != NORM_PRE) { /* one after the other */
        made.made1 = made.made2 = SCRATCH(r, "made", M, d);
        made.made1_rstd = made.made2_rstd = SCRATCH(r, "made_rstd", M);
    }
    block_mix(m, r, l, block_mixer_of(m, l, &made), xn, &ws->kv[L->kv_from], kv_slot(c, L->kv_from), NULL, mid);
    r->ops->gather(r, y, x, r->in, r->out); /* the stream continues with the wanted rows */
    if (!L->publisher) {
        Norm norm2 = {.w = w->norm2, .b = w->bias2};
        if (L->feeds) {
            norm2.y = SCRATCH(r, "xn2", M, d), norm2.rstd = SCRATCH(r, "rstd2", M);
            L->ffn->ffn->saved(L->fcfg, M, ffn, &place);
        }
        block_feed(m, r, l, block_ffn_of(m, l, &made), norm2, ffn, y, mid, y);
    }
    block_sum(m, r, l, y, mid, &next);
    arena_release(r->scratch, mark);
}

/* ---- backward -------------------------------------------------------------------------------------------------------
 */

void block_mixed(Run *r, Tensor y, Tensor mid, Tensor x) {
    r->ops->copy(r, y, mid);
    r->ops->axpby(r, y, -1, x, 1);
}

/* From the gradient g of what a branch added to the stream, that of what its part made: g itself, if nothing stands
 * between them. g's memory is changed if it is `own`. Adds to dpost, the gradient of the norm's weight. */
static Tensor branch_back(const Model *m, Run *r, Branch b, Tensor dpost, Tensor g, bool own) {
    const double drop = m->opts.dropout, scale = m->cfg.residual_scale;
    if (!own && (drop > 0 || scale != 1)) {
        Tensor copy = SCRATCH(r, "d branch", g.n[0], g.n[1]);
        r->ops->copy(r, copy, g);
        g = copy;
    }
    if (drop > 0) r->ops->dropout(r, g, b.site, drop);
    if (scale != 1) r->ops->axpby(r, g, 0, g, scale);
    if (!present(b.made)) return g;
    Tensor made = SCRATCH_OF(r, "d made", REAL, g.n[0], g.n[1]);
    model_norm_backward(m, r, overwrite(made), dpost, ABSENT, g, b.made, b.post.w, b.post.rstd);
    return made;
}
/* The same for the mixer's, to which a loss on what it added adds. */
static Tensor mixer_back(const Model *m, Workspace *ws, Run *r, int l, Tensor x, Tensor dmid, const LossPass *p) {
    const LossHook *h = p->hook;
    const Branch b = block_mixer_of(m, l, &ws->act[l]);
    const Tensor dpost = m->g.layer[l].post1;
    if (!h || !h->mixer || !h->wants_mixer(h->ctx, l)) return branch_back(m, r, b, dpost, dmid, false);
    int N = x.n[0], d = x.n[1];
    Tensor db = SCRATCH(r, "d branch", N, d);
    r->ops->copy(r, db, dmid);
    Mark mark = arena_mark(r->scratch);
    Tensor y = SCRATCH(r, "mixer's output", N, d);
    block_mixed(r, y, ws->act[l].mid, x);
    h->mixer(h->ctx, r, &(LossView){l, y, db, p->tgt, p->g});
    arena_release(r->scratch, mark);
    return branch_back(m, r, b, dpost, db, true);
}

/* The gradient of what a mixer or feed-forward part was given: to be overwritten if it can do that, else zero. */
static Into branch_input(Run *r, Tensor xn, bool overwrites, int N, int d) {
    Tensor dxn = SCRATCH_OF(r, "d normed", xn.dtype, N, d);
    if (overwrites) return overwrite(dxn);
    r->ops->zero(r, dxn);
    return add_to(dxn);
}
/* The gradient of the K/V that layer l reads: shared, or in scratch, where nobody else adds to it. */
static KvInto block_dkv(const Model *m, Workspace *ws, Run *r, int l, int N) {
    const Layer *L = &m->layer[l];
    if (!L->owner || L->shared) return (KvInto){ws->dkv[L->kv_from], false};
    Fields all = arena_placer(r->scratch), zero = fields_zero_at(m->dev), f = block_activations(&all, mixer_bf16(m, l));
    KvInto own = {0};
    kv_fields(&L->rows, N, &own.kv, &f);
    if (L->kind->mixer->takes_bf16 && !L->publisher) {
        own.overwrite = true;
        if (present(own.kv.bias)) r->ops->zero(r, own.kv.bias);
    } else if (!measuring(r)) {
        f = block_activations(&zero, mixer_bf16(m, l));
        kv_fields(&L->rows, N, &own.kv, &f);
    }
    return own;
}
void block_backward(const Model *m, Workspace *ws, Run *r, int l, Tensor x, Tensor dx, const LossPass *loss) {
    const Layer *L = &m->layer[l];
    const LayerWeights *w = &m->w.layer[l];
    LayerWeights *g = &m->g.layer[l];
    Act *a = &ws->act[l];
    Mark mark = arena_mark(r->scratch);
    int N = dx.n[0], d = dx.n[1];
    const KvInto dkv = block_dkv(m, ws, r, l, N);
    r->layer = l;
    Tensor dmid = dx; /* of what the mixer was added to */
    if (L->feeds && m->cfg.parallel) {
        dmid = SCRATCH(r, "d block", N, d);
        r->ops->copy(r, dmid, dx);
    }
    if (L->feeds) {
        Mark inner = arena_mark(r->scratch);
        Into dxn = branch_input(r, a->xn2, L->ffn->ffn->takes_bf16, N, d);
        Tensor dy = branch_back(m, r, block_ffn_of(m, l, a), g->post2, dx, false);
        L->ffn->ffn->backward(r, L->fcfg, w->ffn, g->ffn, a->xn2, a->ffn, dy, dxn);
        model_norm_backward(m, r, add_to(dx), g->norm2, g->bias2, dxn.t, m->cfg.parallel ? x : a->mid, w->norm2,
                            a->rstd2);
        arena_release(r->scratch, inner);
    }
    Into dxn = branch_input(r, a->xn1, L->kind->mixer->takes_bf16, N, d);
    Tensor dy = L->publisher ? ABSENT : mixer_back(m, ws, r, l, x, dmid, loss);
    L->kind->mixer->backward(r, L->cfg, w->mix, g->mix, a->xn1, block_kv(m, ws, l), &dkv, a->mix, dy, dxn);
    model_norm_backward(m, r, add_to(dx), g->norm1, g->bias1, dxn.t, x, w->norm1, a->rstd1);
    arena_release(r->scratch, mark);
}
