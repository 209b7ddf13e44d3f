/* act.h: what the files of the model share among themselves. */
#pragma once
#include "model.h"

/* Of one layer and one pass. xn1, xn2: (N,d) normed inputs; mid: (N,d) the stream between mixer and feed-forward. */
typedef struct Act {
    Tensor xn1, rstd1, mid, xn2, rstd2;
    Kv kv;           /* unless other layers read it: then Model.kv */
    void *mix, *ffn; /* the mixer's and the ffn's saved structs */
} Act;

void model_unmap(Model *);
void weights_new(const Model *, Weights *); /* structs without numbers */
void weights_free(const Model *, Weights *);
/* Fields declare weights from now on as the model has them in memory; returns what f was. */
Fields fields_stored(const Model *, Fields *f);

/* A Run over the model's scratch. */
static inline Run model_run(Model *m) {
    Run r = run_make(m->dev, &m->scratch);
    if (device_memory(m->dev, false)) r.host = &m->host;
    return r;
}
/* What a pass that was just measured asks of the device and does not get: EXIT_INPUT, by the names of op and layer. */
bool model_able(Model *, Err *);
bool model_scratch_open(Model *, size_t bytes, size_t host, Err *);

/* The pass is about to read the weights of a unit; it is over. */
static inline void sums_need(const Model *m, Run *r, int unit) {
    if (m->sums) m->sums->need(m->sums->ctx, r, unit);
}
static inline void sums_rest(const Model *m) {
    if (m->sums) m->sums->rest(m->sums->ctx);
}
/* The norm that the model is made with: of rows x, y and rstd. b is absent where it has none. */
typedef struct {
    Tensor y, rstd, w, b;
} Norm;
static inline void model_norm(const Model *m, Run *r, Norm n, Tensor x) {
    if (m->cfg.norm == NORM_LAYER)
        r->ops->layernorm(r, n.y, n.rstd, x, n.w, n.b, m->cfg.norm_eps);
    else
        r->ops->rmsnorm(r, n.y, n.rstd, x, n.w, m->cfg.norm_eps);
}
/* x += z, and that normed. */
static inline void model_add_norm(const Model *m, Run *r, Norm n, Tensor x, Tensor z) {
    if (m->cfg.norm != NORM_LAYER) {
        r->ops->add_rmsnorm(r, n.y, n.rstd, x, z, n.w, m->cfg.norm_eps);
        return;
    }
    r->ops->add(r, x, z);
    model_norm(m, r, n, x);
}
static inline void model_norm_backward(const Model *m, Run *r, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x,
                                       Tensor w, Tensor rstd) {
    if (m->cfg.norm == NORM_LAYER)
        r->ops->layernorm_backward(r, dx, dw, db, dy, x, w, rstd);
    else
        r->ops->rmsnorm_backward(r, dx, dw, dy, x, w, rstd);
}
/* x = scale embed[tok] + positions[pos] */
static inline void model_embed(const Model *m, Run *r, Tensor x, const int *tok) {
    r->ops->embed(r, x, m->w.embed, tok, m->cfg.embed_scale);
    if (!present(m->w.positions)) return;
    Mark mark = arena_mark(r->scratch);
    Tensor p = SCRATCH(r, "positions", x.n[0], x.n[1]);
    r->ops->embed(r, p, m->w.positions, r->batch->pos, 1);
    r->ops->add(r, x, p);
    arena_release(r->scratch, mark);
}
