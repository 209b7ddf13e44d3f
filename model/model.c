/* model.c: passes without a history: training with its backward, scoring, states, block by block. Those over a history
 * are extend.c's. */
#include "block.h"
#include "ops/shadow.h"
#include "ops/host.h"

/* ---- a pass -------------------------------------------------------------------------------------------------------
 */

static Tensor logits_head(const Model *m, const Weights *w) { return m->cfg.tied ? w->embed : w->head; }
static Run run_pass(const Model *m, Workspace *ws, const Batch *b, unsigned mode) {
    Run r = workspace_run(ws);
    CHECK(b->N <= m->opts.max_rows, "%d rows, opened for %d", b->N, m->opts.max_rows);
    r.batch = b;
    r.in = r.out = (RowList){b->N, ws->idx};
    r.mode = mode & RUN_TRAIN ? mode | ws->mode : mode;
    r.seed = ws->seed;
    r.step = ws->step;
    r.progress = mode & RUN_TRAIN ? ws->progress : 1;
    return r;
}
static void embed_rows(const Model *m, Run *r, Tensor x, const int *tok) {
    r->layer = -1;
    model_embed(m, r, x, tok, r->batch->pos);
    if (r->mode & RUN_TRAIN) r->ops->dropout(r, x, DROP_EMBED, m->opts.dropout);
}

/* Activations that live from forward to backward. */
static void stat_fields(int B, Tensor *stat, Tensor *dstat, Fields *f) {
    field(f, stat, "statistics", FIELD_F32, B, STATS, 2);
    if (dstat) field(f, dstat, "d statistics", FIELD_F32, B, STATS);
}
static void keep_fields(const Model *m, Workspace *ws, int N, Tensor *x, Tensor *xf, Tensor *rstd, Fields *f) {
    block_stream_fields(m, N, x, xf, rstd, f);
    for (int l = 0; l < m->L; l++) {
        if (m->layer[l].shared) block_shared_fields(m, ws, l, N, true, f);
        if (!m->layer[l].recompute) block_fields(m, ws, l, N, f);
    }
}

static void unit_need(const Model *m, Workspace *ws, Run *r, int unit) {
    if (ws->units && !measuring(r)) ws->units->need(ws->units->ctx, unit);
    sums_need(m, r, unit);
}
static void unit_begin(const Model *m, Workspace *ws, Run *r, int unit) {
    if (ws->units && !measuring(r)) ws->units->begin(ws->units->ctx, unit);
    if (m->sums) m->sums->begin(m->sums->ctx, r, unit);
}
static void unit_done(const Model *m, Workspace *ws, Run *r, int unit) {
    if (m->sums) m->sums->done(m->sums->ctx, r, unit);
    if (ws->units && !measuring(r)) ws->units->done(ws->units->ctx, unit);
}
static void backward_layers(const Model *m, Workspace *ws, Run *r, const Tensor *x, Tensor dx, int N,
                            const LossPass *loss) {
    Fields zero = fields_zero_at(ws->dev);
    const LossHook *h = loss->hook;
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].shared && !measuring(r)) kv_fields(&m->layer[l].rows, N, &ws->dkv[l], &zero);
    for (int l = m->L - 1; l >= 0; l--) {
        Mark mark = arena_mark(r->scratch);
        sums_need(m, r, l + 1);
        if (m->layer[l].recompute) {
            Fields place = arena_placer(r->scratch);
            block_fields(m, ws, l, N, &place);
            Mark y = arena_mark(r->scratch);
            Tensor again = SCRATCH(r, "block output", N, m->cfg.d_model);
            model_norm(m, r, block_kept_norm(m, ws, l), x[l]);
            block_forward(m, ws, r, l, x[l], again);
            arena_release(r->scratch, y);
        }
        if (h && h->stream) h->stream(h->ctx, r, &(LossView){l, x[l + 1], dx, loss->tgt, loss->g});
        unit_begin(m, ws, r, l + 1);
        block_backward(m, ws, r, l, x[l], dx, loss);
        unit_done(m, ws, r, l + 1);
        arena_release(r->scratch, mark);
    }
    if (h && h->end) h->end(h->ctx, r);
}

/* The loss of the logits; dxf receives its gradient by the rows before the head. */
static void head_loss(const Model *m, Run *r, Tensor nll, Tensor dxf, Tensor xf, const LossPass *loss) {
    const LossHook *h = loss->hook;
    const HeadView v = {.model = m,
                        .nll = nll,
                        .dx = dxf,
                        .dw = logits_head(m, &m->g),
                        .w = logits_head(m, &m->w),
                        .x = xf,
                        .tgt = loss->tgt,
                        .g = loss->g};
    if (h && h->head)
        h->head(h->ctx, r, &v);
    else
        r->ops->linear_xent(r, nll, NULL, add_to(dxf), v.dw, xf, v.w, model_logits(m), v.tgt, v.g);
}

/* The host's values where the ops can read them: in place, or copied to `keep`. */
static const real *model_given(Workspace *ws, const real *g, int N, bool measured) {
    if (!device_apart(ws->dev)) return g;
    Tensor t = arena_tensor(&ws->keep, "d nll", REAL, 1, &N);
    if (!measured) device_write(ws->dev, t.p, g, tensor_bytes(t));
    return R(t);
}
static Tensor model_losses(Workspace *ws, real *nll, int N) {
    return device_apart(ws->dev) ? arena_tensor(&ws->keep, "nll", REAL, 1, &N) : TENSOR(nll, REAL, N);
}
/* Waits for the results of a pass that its caller wants. */
static void losses_read(Workspace *ws, real *nll, Tensor t, bool measured) {
    if (!device_apart(ws->dev) || measured) return;
    if (nll)
        device_read(ws->dev, nll, t.p, tensor_bytes(t));
    else
        device_copy(ws->dev, ws->losses, t.p, tensor_bytes(t));
}
/* On a device sums are waited for, and so are only asked for where a mixer reports some. */
static void stats_seen(const Model *m, Workspace *ws, Run *r, Tensor stat, Tensor dstat) {
    bool reports = !device_apart(ws->dev);
    for (int l = 0; l < m->L; l++) {
        const Layer *y = &m->layer[l];
        reports |= y->kind->mixer->reports && y->kind->mixer->reports(y->cfg);
    }
    if (!ws->stat_loss || measuring(r) || !reports) return;
    Tensor s = view_open(ws->dev, stat, true), d = present(dstat) ? view_open(ws->dev, dstat, true) : ABSENT;
    ws->stat_loss(ws->stat_ctx, s, d);
    view_close(ws->dev, stat, s, false);
    if (present(dstat)) view_close(ws->dev, dstat, d, true);
}

/* The batch, its rows, ids and targets. */
static void model_give(Workspace *ws, Run *r, const int *tok, const int *tgt) {
    size_t n = (size_t)r->batch->N * sizeof(int);
    run_give(r, 3, (const Given[]){{ws->idx, n}, {tok, n}, {tgt, n}});
}

void model_train(const Model *m, Workspace *ws, const Batch *b, const int *tok, const int *tgt, const real *g,
                 real *nll) {
    model_train_with(m, ws, b, tok, tgt, g, nll, NULL);
}
void model_train_with(const Model *m, Workspace *ws, const Batch *b, const int *tok, const int *tgt, const real *g,
                      real *nll, const LossHook *hook) {
    int N = b->N, d = m->cfg.d_model;
    Run run = run_pass(m, ws, b, RUN_TRAIN), *r = &run;
    Mark keep = arena_mark(&ws->keep), scratch = arena_mark(&ws->scratch);
    Fields place = arena_placer(&ws->keep);
    Tensor x[LAYERS_MAX + 1] = {0}, xf = {0}, rstd = {0};
    if (!measuring(r)) {
        CHECK(!m->opts.poison || shadow_check(ws->dev), "a weight has changed, and its copy in bf16 was not told");
        shadow_refresh(ws->dev); /* all at once: what is recorded of a pass is then the same in every pass */
    }
    keep_fields(m, ws, N, x, &xf, &rstd, &place);
    model_give(ws, r, tok, tgt);
    Tensor stat = ABSENT, dstat = ABSENT, loss = model_losses(ws, nll, N);
    const LossPass hooked = {hook, tgt, model_given(ws, g, N, measuring(r))};
    stat_fields(b->B, &stat, &dstat, &place);
    r->ops->zero(r, stat);
    r->ops->zero(r, dstat);
    r->stat = stat;
    unit_need(m, ws, r, 0);
    embed_rows(m, r, x[0], tok);
    unit_need(m, ws, r, 1);
    for (int l = 0; l < m->L; l++) {
        Mark mark = arena_mark(r->scratch);
        Fields again = arena_placer(r->scratch);
        if (m->layer[l].recompute) block_fields(m, ws, l, N, &again);
        if (l == 0 || m->layer[l].recompute) model_norm(m, r, block_kept_norm(m, ws, l), x[l]);
        block_forward(m, ws, r, l, x[l], x[l + 1]);
        unit_need(m, ws, r, l + 2);
        const Norm next = l + 1 < m->L ? block_kept_norm(m, ws, l + 1) : block_norm(m, m->L, xf, rstd);
        block_end(m, ws, r, l, x[l + 1], l + 1 < m->L && m->layer[l + 1].recompute ? NULL : &next);
        arena_release(r->scratch, mark);
    }
    stats_seen(m, ws, r, stat, dstat);
    r->stat = ABSENT; /* a replayed forward counts nothing */
    r->dstat = dstat;
    Tensor dx = SCRATCH(r, "d x", N, d), dxf = SCRATCH_OF(r, "d xf", xf.dtype, N, d);
    r->ops->zero(r, dx);
    r->ops->zero(r, dxf);
    if (m->cfg.tied) unit_begin(m, ws, r, 0);
    unit_begin(m, ws, r, m->L + 1);
    head_loss(m, r, loss, dxf, xf, &hooked);
    model_norm_backward(m, r, add_to(dx), m->g.norm, m->g.norm_bias, dxf, x[m->L], m->w.norm, rstd);
    unit_done(m, ws, r, m->L + 1);
    backward_layers(m, ws, r, x, dx, N, &hooked);
    r->layer = -1;
    if (m->opts.dropout > 0) r->ops->dropout(r, dx, DROP_EMBED, m->opts.dropout);
    if (!m->cfg.tied) unit_begin(m, ws, r, 0);
    if (present(m->g.embed)) r->ops->embed_backward(r, m->g.embed, dx, tok, m->cfg.embed_scale);
    if (present(m->g.positions)) r->ops->embed_backward(r, m->g.positions, dx, b->pos, 1);
    unit_done(m, ws, r, 0);
    sums_rest(m);
    losses_read(ws, nll, loss, measuring(r));
    arena_release(r->scratch, scratch);
    arena_release(&ws->keep, keep);
}

/* The results of a pass without gradient: the losses of its rows, or its states. */
typedef struct {
    Tensor xf, *mix, *out;
} States;
static void leave_layer(const Model *m, Workspace *ws, Run *r, const States *s, int l, Tensor x, Tensor y) {
    if (s->mix && !m->layer[l].publisher) block_mixed(r, s->mix[l], ws->act[l].mid, x);
    if (s->out) r->ops->copy(r, s->out[l], y);
}
static void score_pass(const Model *m, Workspace *ws, const Batch *b, const int *tok, const int *tgt, real *nll,
                       int *hit, const States *s) {
    int N = b->N, d = m->cfg.d_model;
    Run run = run_pass(m, ws, b, 0), *r = &run;
    Mark keep = arena_mark(&ws->keep), scratch = arena_mark(&ws->scratch);
    Fields place = arena_placer(&ws->keep);
    model_give(ws, r, tok, tgt);
    Tensor x = {0}, y = {0}, rstd = {0}, loss = s ? ABSENT : model_losses(ws, nll, N);
    field(&place, &x, "x", 0, N, d);
    field(&place, &y, "y", 0, N, d);
    field(&place, &rstd, "rstd", FIELD_F32, N);
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].shared) block_shared_fields(m, ws, l, N, false, &place);
    block_below_fields(m, N, r, &place);
    stat_fields(b->B, &r->stat, NULL, &place);
    r->ops->zero(r, r->stat);
    sums_need(m, r, 0);
    embed_rows(m, r, x, tok);
    for (int l = 0; l < m->L; l++) {
        Mark mark = arena_mark(&ws->keep);
        sums_need(m, r, l + 1);
        block_fields(m, ws, l, N, &place);
        block_whole(m, ws, r, l, x, y);
        if (s) leave_layer(m, ws, r, s, l, x, y);
        arena_release(&ws->keep, mark);
        Tensor swap = x;
        x = y, y = swap;
    }
    stats_seen(m, ws, r, r->stat, ABSENT);
    if (!s || present(s->xf)) model_norm(m, r, block_norm(m, m->L, s ? s->xf : y, rstd), x);
    sums_need(m, r, m->L + 1);
    if (!s) r->ops->linear_xent(r, loss, hit, NOWHERE, ABSENT, y, logits_head(m, &m->w), model_logits(m), tgt, NULL);
    sums_rest(m);
    if (!s) losses_read(ws, nll, loss, measuring(r));
    arena_release(&ws->scratch, scratch);
    arena_release(&ws->keep, keep);
}
void model_score(const Model *m, Workspace *ws, const Batch *b, const int *tok, const int *tgt, real *nll, int *hit) {
    score_pass(m, ws, b, tok, tgt, nll, hit, NULL);
}
void model_states(const Model *m, Workspace *ws, const Batch *b, const int *tok, Tensor xf, Tensor *mix, Tensor *out) {
    States s = {xf, mix, out};
    score_pass(m, ws, b, tok, NULL, NULL, NULL, &s);
}
void model_loss(const Model *m, Workspace *ws, const Batch *b, const int *tok, const int *tgt, real *nll) {
    model_score(m, ws, b, tok, tgt, nll, NULL);
}

/* ---- piece by piece -----------------------------------------------------------------------------------------------
 */

bool model_pieces(const Model *m, Workspace *ws, Err *e) {
    CHECK(m->opts.dry && m->opts.max_rows && !device_apart(m->dev), "not opened dry with rows, on the CPU");
    return arena_open(&ws->keep, "a block's activations", ws->keep.peak, m->opts.poison, e) &&
           arena_open(&ws->scratch, "scratch", ws->scratch.peak, m->opts.poison, e);
}
void model_block_embed(const Model *m, Workspace *ws, const Batch *b, const int *tok, Tensor x) {
    Run r = run_pass(m, ws, b, 0);
    embed_rows(m, &r, x, tok);
}
void model_block(const Model *m, Workspace *ws, const Batch *b, int l, Tensor x, Tensor y, BlockSee *see, void *ctx) {
    Run r = run_pass(m, ws, b, 0);
    Mark keep = arena_mark(&ws->keep);
    Fields place = arena_placer(&ws->keep);
    block_fields(m, ws, l, b->N, &place);
    block_whole(m, ws, &r, l, x, y);
    if (see) see(ctx, ws->act[l].xn1, m->layer[l].publisher ? x : ws->act[l].mid, block_kv(m, ws, l));
    arena_release(&ws->keep, keep);
}
void model_block_norm(const Model *m, Workspace *ws, const Batch *b, Tensor x, Tensor xf) {
    Run r = run_pass(m, ws, b, 0);
    Mark mark = arena_mark(&ws->keep);
    Tensor rstd = arena_tensor(&ws->keep, "rstd", REAL, 1, &b->N);
    model_norm(m, &r, block_norm(m, m->L, xf, rstd), x);
    arena_release(&ws->keep, mark);
}
void model_block_logits(const Model *m, Workspace *ws, const Batch *b, Tensor xf, Tensor table, Tensor logits) {
    Run r = run_pass(m, ws, b, 0);
    head_logits(m, &r, logits, xf, table);
}
