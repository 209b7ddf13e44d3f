/* teach.c: see teach.h. */
#include "teach.h"

/* y = weight g, in scratch; g itself for 1. */
static const real *teach_weighted(Run *r, const real *g, double weight, int N) {
    if (weight == 1) return g;
    Tensor y = SCRATCH(r, "weighted g", N);
    r->ops->zero(r, y);
    r->ops->axpby(r, y, weight, TENSOR((void *)g, REAL, N), 1);
    return measuring(r) ? NULL : R(y);
}
static bool teach_wants_mixer(void *ctx, int l) {
    const Teach *t = ctx;
    return present(t->mix[l]);
}
/* The losses of the logits; also sets the sums over layers to 0. */
static void teach_head(void *ctx, Run *r, const HeadView *v) {
    Teach *t = ctx;
    const int N = v->x.n[0];
    Distill losses = t->logits;
    losses.map = model_logits(v->model);
    Mark mark = arena_mark(r->scratch);
    if (present(t->xf))
        r->ops->linear_distill(r, v->nll, TENSOR(t->kl, REAL, N), TENSOR(t->rkl, REAL, N), v->dx, v->dw, v->x, v->w,
                               t->xf, t->head, v->tgt, v->g, losses);
    else if (t->logits.lm == 0)
        r->ops->linear_xent(r, v->nll, NULL, NOWHERE, ABSENT, v->x, v->w, losses.map, v->tgt, NULL);
    else
        r->ops->linear_xent(r, v->nll, NULL, add_to(v->dx), v->dw, v->x, v->w, losses.map, v->tgt,
                            teach_weighted(r, v->g, t->logits.lm, N));
    arena_release(r->scratch, mark);
    t->N = N, t->layers = v->model->L, t->mixes = 0;
    for (int l = 0; t->mix && l < t->layers; l++) t->mixes += !v->model->layer[l].publisher && present(t->mix[l]);
    if (t->mix) r->ops->zero(r, TENSOR(t->mixs, REAL, N));
    if (t->out) r->ops->zero(r, TENSOR(t->outs, REAL, N));
}
static void teach_mixer(void *ctx, Run *r, const LossView *v) {
    const Teach *t = ctx;
    r->ops->align(r, TENSOR(t->mixs, REAL, t->N), v->dy, v->y, t->mix[v->l], v->tgt, v->g, t->attention / t->mixes);
}
static void teach_stream(void *ctx, Run *r, const LossView *v) {
    const Teach *t = ctx;
    r->ops->align(r, TENSOR(t->outs, REAL, t->N), v->dy, v->y, t->out[v->l], v->tgt, v->g, t->hidden / t->layers);
}
/* Divides the sums of align over `layers` layers into means. */
static void rows_mean(Run *r, real *sums, int N, int layers) {
    Tensor y = TENSOR(sums, REAL, N);
    r->ops->axpby(r, y, 0, y, 1.0 / layers);
}
static void teach_end(void *ctx, Run *r) {
    const Teach *t = ctx;
    if (t->mixes) rows_mean(r, t->mixs, t->N, t->mixes);
    if (t->out) rows_mean(r, t->outs, t->N, t->layers);
}

LossHook teach_hook(Teach *t) {
    return (LossHook){.head = teach_head,
                      .stream = t->out ? teach_stream : NULL,
                      .mixer = t->mix ? teach_mixer : NULL,
                      .wants_mixer = teach_wants_mixer,
                      .end = teach_end,
                      .ctx = t};
}
