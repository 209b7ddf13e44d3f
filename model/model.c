/* model.c: forward and backward of a training pass. Its regions are open.c's, the pass over a history extend.c's. */
#include "act.h"
#include "../ops/half.h"
#include "../ops/host.h"

/* ---- one layer ----------------------------------------------------------------------------------------------------
 */

/* Whether a layer's mixer, or its feed-forward part, computes on BF16: where the device keeps activations so and the
 * layer can, with every other that adds to the K/V it owns. */
static bool mixer_half(const Model *m, int l) {
    bool half = device_half(m->dev);
    for (int k = l; k < m->L; k++)
        if (k == l || m->layer[k].kv_from == l) half &= m->layer[k].kind->mixer->half;
    return half;
}
static bool ffn_half(const Model *m, int l) { return device_half(m->dev) && m->layer[l].ffn->ffn->half; }

/* What a layer's backward needs and its replay makes again: everything but the block's input and shared K/V. The stream
 * stays REAL, and so do statistics. */
static void act_fields(Model *m, int l, int N, Fields *f) {
    const Layer *y = &m->layer[l];
    Act *a = &m->act[l];
    int d = m->cfg.d_model;
    f->half = mixer_half(m, l);
    field(f, &a->xn1, "xn1", 0, N, d);
    field(f, &a->rstd1, "rstd1", FIELD_F32, N);
    if (y->owner && !y->shared) kv_fields(&y->rows, N, &a->kv, f);
    y->kind->mixer->saved(y->cfg, N, a->mix, f);
    f->half = false;
    if (y->publisher) return;
    field(f, &a->mid, "mid", 0, N, d);
    f->half = ffn_half(m, l);
    field(f, &a->xn2, "xn2", 0, N, d);
    field(f, &a->rstd2, "rstd2", FIELD_F32, N);
    y->ffn->ffn->saved(y->fcfg, N, a->ffn, f);
    f->half = false;
}
/* K/V that other layers read, and with `dkv` its gradient, to which they all add. */
static void shared_fields(Model *m, int l, int N, bool dkv, Fields *f) {
    f->half = mixer_half(m, l);
    kv_fields(&m->layer[l].rows, N, &m->kv[l], f);
    f->half = false;
    if (dkv) kv_fields(&m->layer[l].rows, N, &m->dkv[l], f);
}

static Kv *layer_kv(Model *m, int l) {
    int o = m->layer[l].kv_from;
    return m->layer[o].shared ? &m->kv[o] : &m->act[o].kv;
}

/* The norm before layer l's mixer, and that behind the last layer. */
static Norm norm_before(const Model *m, int l) {
    return (Norm){m->act[l].xn1, m->act[l].rstd1, m->w.layer[l].norm1, m->w.layer[l].bias1};
}
static Norm norm_behind(const Model *m, Tensor xf, Tensor rstd) { return (Norm){xf, rstd, m->w.norm, m->w.norm_bias}; }
/* From xn1, x normed, to y, which has yet to be added to the stream: layer_end. y may not alias x. */
static void layer_forward(Model *m, Run *r, int l, Tensor x, Tensor y) {
    const Layer *L = &m->layer[l];
    const LayerWeights *w = &m->w.layer[l];
    Act *a = &m->act[l];
    double drop = r->mode & RUN_TRAIN ? m->opts.dropout : 0;
    const Norm second = {a->xn2, a->rstd2, w->norm2, w->bias2};
    r->layer = l;
    L->kind->mixer->forward(r, L->cfg, w->mix, a->xn1, layer_kv(m, l), a->mix, L->publisher ? ABSENT : a->mid);
    if (L->publisher) {
        r->ops->copy(r, y, x);
        return;
    }
    r->ops->dropout(r, a->mid, DROP_MIXER, drop);
    if (m->cfg.parallel) {
        model_norm(m, r, second, x);
        r->ops->add(r, a->mid, x);
    } else {
        model_add_norm(m, r, second, a->mid, x);
    }
    L->ffn->ffn->forward(r, L->fcfg, w->ffn, a->xn2, a->ffn, y);
    r->ops->dropout(r, y, DROP_FFN, drop);
}
/* y becomes the block's output; the norm that reads it next goes along, where it is at hand. */
static void layer_end(const Model *m, Run *r, int l, Tensor y, const Norm *next) {
    if (!m->layer[l].publisher && next)
        model_add_norm(m, r, *next, y, m->act[l].mid);
    else if (!m->layer[l].publisher)
        r->ops->add(r, y, m->act[l].mid);
    else if (next)
        model_norm(m, r, *next, y);
}
/* y = block(x), by itself. */
static void layer_alone(Model *m, Run *r, int l, Tensor x, Tensor y) {
    model_norm(m, r, norm_before(m, l), x);
    layer_forward(m, r, l, x, y);
    layer_end(m, r, l, y, NULL);
}

/* The gradient that a dropped-out branch receives; without dropout dx itself. */
static Tensor branch(Model *m, Run *r, Tensor dx, DropSite site) {
    if (m->opts.dropout <= 0) return dx;
    Tensor g = SCRATCH(r, "d branch", dx.n[0], dx.n[1]);
    r->ops->copy(r, g, dx);
    r->ops->dropout(r, g, site, m->opts.dropout);
    return g;
}

/* What the losses on layers need in the backward pass; all NULL and 0 without a teacher. */
typedef struct {
    const Teach *teach;
    const int *tgt;
    const real *g;
    double mix, out; /* weights of a layer */
} Lesson;

static bool mix_taught(const Model *m, const Teach *t, int l) {
    return t && t->mix && !m->layer[l].publisher && present(t->mix[l]);
}
static int mixes_taught(const Model *m, const Teach *t) {
    int n = 0;
    for (int l = 0; l < m->L; l++) n += mix_taught(m, t, l);
    return n;
}
/* What align added up over `layers` layers becomes their mean. */
static void rows_mean(Run *r, real *sums, int N, int layers) {
    Tensor y = TENSOR(sums, REAL, N);
    r->ops->axpby(r, y, 0, y, 1.0 / layers);
}
/* y = what the mixer added to x to make mid. */
static void mixer_output(Run *r, Tensor y, Tensor mid, Tensor x) {
    r->ops->copy(r, y, mid);
    r->ops->axpby(r, y, -1, x, 1);
}
/* The gradient of the mixer's branch: that of the stream and of the loss on what the mixer adds. */
static Tensor branch_taught(Model *m, Run *r, const Lesson *s, int l, Tensor x, Tensor dmid) {
    int N = x.n[0], d = x.n[1];
    Tensor db = SCRATCH(r, "d branch", N, d);
    r->ops->copy(r, db, dmid);
    Mark mark = arena_mark(r->scratch);
    Tensor y = SCRATCH(r, "mixer's output", N, d);
    mixer_output(r, y, m->act[l].mid, x);
    r->ops->align(r, TENSOR(s->teach->mixs, REAL, N), db, y, s->teach->mix[l], s->tgt, s->g, s->mix);
    arena_release(r->scratch, mark);
    if (m->opts.dropout > 0) r->ops->dropout(r, db, DROP_MIXER, m->opts.dropout);
    return db;
}

/* The gradient of what a mixer or feed-forward part was given: fresh where it knows that, else zero. */
static Tensor branch_input(Run *r, Tensor xn, bool fresh, int N, int d) {
    Tensor dxn = SCRATCH_OF(r, "d normed", xn.dtype, N, d);
    if (fresh) return as_fresh(dxn);
    r->ops->zero(r, dxn);
    return dxn;
}
/* dx: in, the gradient of the block's output; out, that of its input. */
static void layer_backward(Model *m, Run *r, int l, Tensor x, Tensor dx, Kv *dkv, const Lesson *s) {
    const Layer *L = &m->layer[l];
    const LayerWeights *w = &m->w.layer[l];
    LayerWeights *g = &m->g.layer[l];
    Act *a = &m->act[l];
    Mark mark = arena_mark(r->scratch);
    int N = dx.n[0], d = dx.n[1];
    r->layer = l;
    Tensor dmid = dx; /* of what the mixer was added to */
    if (!L->publisher && m->cfg.parallel) {
        dmid = SCRATCH(r, "d block", dx.n[0], dx.n[1]);
        r->ops->copy(r, dmid, dx);
    }
    if (!L->publisher) {
        Mark inner = arena_mark(r->scratch);
        Tensor dxn = branch_input(r, a->xn2, L->ffn->ffn->half, N, d);
        L->ffn->ffn->backward(r, L->fcfg, w->ffn, g->ffn, a->xn2, a->ffn, branch(m, r, dx, DROP_FFN), dxn);
        model_norm_backward(m, r, dx, g->norm2, g->bias2, dxn, m->cfg.parallel ? x : a->mid, w->norm2, a->rstd2);
        arena_release(r->scratch, inner);
    }
    Tensor dxn = branch_input(r, a->xn1, L->kind->mixer->half, N, d);
    Tensor dy = L->publisher                 ? ABSENT
                : mix_taught(m, s->teach, l) ? branch_taught(m, r, s, l, x, dmid)
                                             : branch(m, r, dmid, DROP_MIXER);
    L->kind->mixer->backward(r, L->cfg, w->mix, g->mix, a->xn1, layer_kv(m, l), dkv, a->mix, dy, dxn);
    model_norm_backward(m, r, dx, g->norm1, g->bias1, dxn, x, w->norm1, a->rstd1);
    arena_release(r->scratch, mark);
}

/* ---- a pass -------------------------------------------------------------------------------------------------------
 */

static Tensor logits_head(const Model *m, const Weights *w) { return m->cfg.tied ? w->embed : w->head; }
static Run run_pass(Model *m, const Batch *b, unsigned mode) {
    Run r = model_run(m);
    CHECK(b->N <= m->opts.max_rows, "%d rows, opened for %d", b->N, m->opts.max_rows);
    r.batch = b;
    r.in = r.out = (Pick){b->N, m->idx};
    r.mode = mode & RUN_TRAIN ? mode | m->mode : mode;
    r.seed = m->seed;
    r.step = m->step;
    r.progress = mode & RUN_TRAIN ? m->progress : 1;
    return r;
}
static void embed_rows(Model *m, Run *r, Tensor x, const int *tok) {
    r->layer = -1;
    model_embed(m, r, x, tok);
    if (r->mode & RUN_TRAIN) r->ops->dropout(r, x, DROP_EMBED, m->opts.dropout);
}

/* What lives from forward to backward. */
static void stat_fields(int B, Tensor *stat, Tensor *dstat, Fields *f) {
    field(f, stat, "statistics", FIELD_F32, B, STATS, 2);
    if (dstat) field(f, dstat, "d statistics", FIELD_F32, B, STATS);
}
static void keep_fields(Model *m, int N, Tensor *x, Tensor *xf, Tensor *rstd, Fields *f) {
    int d = m->cfg.d_model;
    for (int l = 0; l <= m->L; l++) field(f, &x[l], "x", 0, N, d);
    f->half = device_half(m->dev);
    field(f, xf, "xf", 0, N, d);
    f->half = false;
    field(f, rstd, "rstd", FIELD_F32, N);
    for (int l = 0; l < m->L; l++) {
        if (m->layer[l].shared) shared_fields(m, l, N, true, f);
        if (!m->layer[l].recompute) act_fields(m, l, N, f);
    }
}

static void unit_need(Model *m, Run *r, int unit) {
    if (m->units && !measuring(r)) m->units->need(m->units->ctx, unit);
    sums_need(m, r, unit);
}
static void unit_begin(Model *m, Run *r, int unit) {
    if (m->units && !measuring(r)) m->units->begin(m->units->ctx, unit);
    if (m->sums) m->sums->begin(m->sums->ctx, r, unit);
}
static void unit_done(Model *m, Run *r, int unit) {
    if (m->sums) m->sums->done(m->sums->ctx, r, unit);
    if (m->units && !measuring(r)) m->units->done(m->units->ctx, unit);
}
static void backward_layers(Model *m, Run *r, const Tensor *x, Tensor dx, int N, Lesson s) {
    Fields zero = fields_zero_at(m->dev);
    const int mixes = mixes_taught(m, s.teach);
    s.mix = mixes ? s.teach->attention / mixes : 0;
    s.out = s.teach ? s.teach->hidden / m->L : 0;
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].shared && !measuring(r)) kv_fields(&m->layer[l].rows, N, &m->dkv[l], &zero);
    for (int l = m->L - 1; l >= 0; l--) {
        const Layer *L = &m->layer[l];
        Mark mark = arena_mark(r->scratch);
        Fields place = arena_placer(r->scratch);
        sums_need(m, r, l + 1);
        if (L->recompute) {
            act_fields(m, l, N, &place);
            Mark y = arena_mark(r->scratch);
            Tensor again = SCRATCH(r, "block output", N, m->cfg.d_model);
            model_norm(m, r, norm_before(m, l), x[l]);
            layer_forward(m, r, l, x[l], again);
            arena_release(r->scratch, y);
        }
        Kv own = {0}, *dkv = &m->dkv[L->kv_from];
        if (L->owner && !L->shared) { /* nobody else adds to it: it lives here */
            dkv = &own;
            place.half = zero.half = mixer_half(m, l);
            kv_fields(&L->rows, N, &own, &place);
            if (L->kind->mixer->half && !L->publisher)
                own.k.fresh = own.v.fresh = true;
            else if (!measuring(r))
                kv_fields(&L->rows, N, &own, &zero);
            place.half = zero.half = false;
        }
        if (s.teach && s.teach->out)
            r->ops->align(r, TENSOR(s.teach->outs, REAL, N), dx, x[l + 1], s.teach->out[l], s.tgt, s.g, s.out);
        unit_begin(m, r, l + 1);
        layer_backward(m, r, l, x[l], dx, dkv, &s);
        unit_done(m, r, l + 1);
        arena_release(r->scratch, mark);
    }
    if (mixes) rows_mean(r, s.teach->mixs, N, mixes);
    if (s.teach && s.teach->out) rows_mean(r, s.teach->outs, N, m->L);
}

/* y = weight g, in scratch; g itself for 1. */
static const real *weighted(Run *r, const real *g, double weight, int N) {
    if (weight == 1) return g;
    Tensor y = SCRATCH(r, "weighted g", N);
    r->ops->zero(r, y);
    r->ops->axpby(r, y, weight, TENSOR((void *)g, REAL, N), 1);
    return measuring(r) ? NULL : R(y);
}
/* The losses of the logits; dx receives their gradient by the rows before the head. */
static void head_losses(Model *m, Run *r, Tensor rows, Tensor dxf, Tensor xf, const int *tgt, const real *g,
                        const Teach *t) {
    int N = xf.n[0];
    Tensor w = logits_head(m, &m->w), dw = logits_head(m, &m->g);
    Mark mark = arena_mark(r->scratch);
    if (t && present(t->xf))
        r->ops->linear_distill(r, rows, TENSOR(t->kl, REAL, N), TENSOR(t->rkl, REAL, N), dxf, dw, xf, w, t->xf, t->head,
                               tgt, g, t->logits);
    else if (t && t->logits.lm == 0)
        r->ops->linear_xent(r, rows, NULL, ABSENT, ABSENT, xf, w, tgt, NULL);
    else
        r->ops->linear_xent(r, rows, NULL, dxf, dw, xf, w, tgt, t ? weighted(r, g, t->logits.lm, N) : g);
    arena_release(r->scratch, mark);
}

/* The host's numbers where the ops find them: as they are, or copied to `keep`. */
static const real *given(Model *m, const real *g, int N, bool measured) {
    if (!device_apart(m->dev)) return g;
    Tensor t = arena_tensor(&m->keep, "d nll", REAL, 1, &N);
    if (!measured) device_write(m->dev, t.p, g, tensor_bytes(t));
    return R(t);
}
static Tensor losses(Model *m, real *nll, int N) {
    return device_apart(m->dev) ? arena_tensor(&m->keep, "nll", REAL, 1, &N) : TENSOR(nll, REAL, N);
}
/* What of a pass is waited for, where its caller wants it. */
static void losses_read(Model *m, real *nll, Tensor t, bool measured) {
    if (!device_apart(m->dev) || measured) return;
    if (nll)
        device_read(m->dev, nll, t.p, tensor_bytes(t));
    else
        device_copy(m->dev, m->losses, t.p, tensor_bytes(t));
}
/* On a device sums are waited for, and so are only asked for where a mixer reports some. */
static void stats_seen(Model *m, Run *r, Tensor stat, Tensor dstat) {
    bool reports = !device_apart(m->dev);
    for (int l = 0; l < m->L; l++) {
        const Layer *y = &m->layer[l];
        reports |= y->kind->mixer->reports && y->kind->mixer->reports(y->cfg);
    }
    if (!m->stat_loss || measuring(r) || !reports) return;
    Tensor s = view_open(m->dev, stat, true), d = present(dstat) ? view_open(m->dev, dstat, true) : ABSENT;
    m->stat_loss(m->stat_ctx, s, d);
    view_close(m->dev, stat, s, false);
    if (present(dstat)) view_close(m->dev, dstat, d, true);
}

/* The batch, its rows, ids and targets. */
static void give(const Model *m, Run *r, const int *tok, const int *tgt) {
    size_t n = (size_t)r->batch->N * sizeof(int);
    run_give(r, 3, (const Given[]){{m->idx, n}, {tok, n}, {tgt, n}});
}

void model_train(Model *m, const Batch *b, const int *tok, const int *tgt, const real *g, real *nll) {
    model_teach(m, b, tok, tgt, g, nll, NULL);
}
void model_teach(Model *m, const Batch *b, const int *tok, const int *tgt, const real *g, real *nll, const Teach *t) {
    int N = b->N, d = m->cfg.d_model;
    Run run = run_pass(m, b, RUN_TRAIN), *r = &run;
    Mark keep = arena_mark(&m->keep), scratch = arena_mark(&m->scratch);
    Fields place = arena_placer(&m->keep);
    Tensor x[LAYERS_MAX + 1] = {0}, xf = {0}, rstd = {0};
    if (!measuring(r)) {
        CHECK(!m->opts.poison || half_check(m->dev), "a weight has changed, and its copy in bf16 was not told");
        half_refresh(m->dev); /* all at once: what is recorded of a pass is then the same in every pass */
    }
    keep_fields(m, N, x, &xf, &rstd, &place);
    give(m, r, tok, tgt);
    Tensor stat = ABSENT, dstat = ABSENT, loss = losses(m, nll, N);
    g = given(m, g, N, measuring(r));
    stat_fields(b->B, &stat, &dstat, &place);
    r->ops->zero(r, stat);
    r->ops->zero(r, dstat);
    r->stat = stat;
    unit_need(m, r, 0);
    embed_rows(m, r, x[0], tok);
    unit_need(m, r, 1);
    for (int l = 0; l < m->L; l++) {
        Mark mark = arena_mark(r->scratch);
        Fields again = arena_placer(r->scratch);
        if (m->layer[l].recompute) act_fields(m, l, N, &again);
        if (l == 0 || m->layer[l].recompute) model_norm(m, r, norm_before(m, l), x[l]);
        layer_forward(m, r, l, x[l], x[l + 1]);
        unit_need(m, r, l + 2);
        const Norm next = l + 1 < m->L ? norm_before(m, l + 1) : norm_behind(m, xf, rstd);
        layer_end(m, r, l, x[l + 1], l + 1 < m->L && m->layer[l + 1].recompute ? NULL : &next);
        arena_release(r->scratch, mark);
    }
    stats_seen(m, r, stat, dstat);
    r->stat = ABSENT; /* a replayed forward counts nothing */
    r->dstat = dstat;
    Tensor dx = SCRATCH(r, "d x", N, d), dxf = SCRATCH_OF(r, "d xf", xf.dtype, N, d);
    r->ops->zero(r, dx);
    r->ops->zero(r, dxf);
    if (m->cfg.tied) unit_begin(m, r, 0);
    unit_begin(m, r, m->L + 1);
    head_losses(m, r, loss, dxf, xf, tgt, g, t);
    if (t && t->mix) r->ops->zero(r, TENSOR(t->mixs, REAL, N));
    if (t && t->out) r->ops->zero(r, TENSOR(t->outs, REAL, N));
    model_norm_backward(m, r, dx, m->g.norm, m->g.norm_bias, dxf, x[m->L], m->w.norm, rstd);
    unit_done(m, r, m->L + 1);
    backward_layers(m, r, x, dx, N, (Lesson){.teach = t, .tgt = tgt, .g = g});
    r->layer = -1;
    if (m->opts.dropout > 0) r->ops->dropout(r, dx, DROP_EMBED, m->opts.dropout);
    if (!m->cfg.tied) unit_begin(m, r, 0);
    if (present(m->g.embed)) r->ops->embed_backward(r, m->g.embed, dx, tok, m->cfg.embed_scale);
    if (present(m->g.positions)) r->ops->embed_backward(r, m->g.positions, dx, b->pos, 1);
    unit_done(m, r, 0);
    sums_rest(m);
    losses_read(m, nll, loss, measuring(r));
    arena_release(r->scratch, scratch);
    arena_release(&m->keep, keep);
}

/* What a pass without gradient leaves: the losses of its rows, or its states. */
typedef struct {
    Tensor xf, *mix, *out;
} States;
static void leave_layer(Model *m, Run *r, const States *s, int l, Tensor x, Tensor y) {
    if (s->mix && !m->layer[l].publisher) mixer_output(r, s->mix[l], m->act[l].mid, x);
    if (s->out) r->ops->copy(r, s->out[l], y);
}
static void score_pass(Model *m, const Batch *b, const int *tok, const int *tgt, real *nll, int *hit, const States *s) {
    int N = b->N, d = m->cfg.d_model;
    Run run = run_pass(m, b, 0), *r = &run;
    Mark keep = arena_mark(&m->keep), scratch = arena_mark(&m->scratch);
    Fields place = arena_placer(&m->keep);
    give(m, r, tok, tgt);
    Tensor x = {0}, y = {0}, rstd = {0}, loss = s ? ABSENT : losses(m, nll, N);
    field(&place, &x, "x", 0, N, d);
    field(&place, &y, "y", 0, N, d);
    field(&place, &rstd, "rstd", FIELD_F32, N);
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].shared) shared_fields(m, l, N, false, &place);
    stat_fields(b->B, &r->stat, NULL, &place);
    r->ops->zero(r, r->stat);
    sums_need(m, r, 0);
    embed_rows(m, r, x, tok);
    for (int l = 0; l < m->L; l++) {
        Mark mark = arena_mark(&m->keep);
        sums_need(m, r, l + 1);
        act_fields(m, l, N, &place);
        layer_alone(m, r, l, x, y);
        if (s) leave_layer(m, r, s, l, x, y);
        arena_release(&m->keep, mark);
        Tensor swap = x;
        x = y, y = swap;
    }
    stats_seen(m, r, r->stat, ABSENT);
    if (!s || present(s->xf)) model_norm(m, r, norm_behind(m, s ? s->xf : y, rstd), x);
    sums_need(m, r, m->L + 1);
    if (!s) r->ops->linear_xent(r, loss, hit, ABSENT, ABSENT, y, logits_head(m, &m->w), tgt, NULL);
    sums_rest(m);
    if (!s) losses_read(m, nll, loss, measuring(r));
    arena_release(&m->scratch, scratch);
    arena_release(&m->keep, keep);
}
void model_score(Model *m, const Batch *b, const int *tok, const int *tgt, real *nll, int *hit) {
    score_pass(m, b, tok, tgt, nll, hit, NULL);
}
void model_states(Model *m, const Batch *b, const int *tok, Tensor xf, Tensor *mix, Tensor *out) {
    States s = {xf, mix, out};
    score_pass(m, b, tok, NULL, NULL, NULL, &s);
}
void model_loss(Model *m, const Batch *b, const int *tok, const int *tgt, real *nll) {
    model_score(m, b, tok, tgt, nll, NULL);
}

/* ---- piece by piece -----------------------------------------------------------------------------------------------
 */

bool model_pieces(Model *m, Err *e) {
    CHECK(m->opts.dry && m->opts.max_rows && !device_apart(m->dev), "not opened dry with rows, on the CPU");
    return arena_open(&m->keep, "a block's activations", m->keep.peak, m->opts.poison, e) &&
           arena_open(&m->scratch, "scratch", m->scratch.peak, m->opts.poison, e);
}
void model_block_embed(Model *m, const Batch *b, const int *tok, Tensor x) {
    Run r = run_pass(m, b, 0);
    embed_rows(m, &r, x, tok);
}
void model_block(Model *m, const Batch *b, int l, Tensor x, Tensor y, BlockSee *see, void *ctx) {
    Run r = run_pass(m, b, 0);
    Mark keep = arena_mark(&m->keep);
    Fields place = arena_placer(&m->keep);
    act_fields(m, l, b->N, &place);
    layer_alone(m, &r, l, x, y);
    if (see) see(ctx, m->act[l].xn1, m->layer[l].publisher ? x : m->act[l].mid, layer_kv(m, l));
    arena_release(&m->keep, keep);
}
void model_block_norm(Model *m, const Batch *b, Tensor x, Tensor xf) {
    Run r = run_pass(m, b, 0);
    Mark mark = arena_mark(&m->keep);
    Tensor rstd = arena_tensor(&m->keep, "rstd", REAL, 1, &b->N);
    model_norm(m, &r, norm_behind(m, xf, rstd), x);
    arena_release(&m->keep, mark);
}
void model_block_logits(Model *m, const Batch *b, Tensor xf, Tensor table, Tensor logits) {
    Run r = run_pass(m, b, 0);
    r.ops->linear(&r, logits, xf, table, ABSENT);
}
