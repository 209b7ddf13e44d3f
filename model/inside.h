/* inside.h: the interface that the files of model/ share among themselves. */
#pragma once
#include "workspace.h"

void model_unmap(Model *);
void weights_new(const Model *, Weights *); /* structs without elements */
void weights_free(const Model *, Weights *);
/* From now on fields declare weights with their dtypes in memory; returns the former state. */
Fields fields_stored(const Model *, Fields *f);

/* Bases of rows, of a codec that has them (basis.h); their rotations, again after model_plan. */
bool model_basis_open(Model *, Err *);
void model_basis_turns(Model *);
void model_basis_close(Model *);

/* Whether the layer before guesses the queries of layer l, because a policy selects by them. */
bool model_guesses(const Model *, int l);
static inline Run workspace_run(Workspace *ws) { /* over its scratch */
    Run r = run_make(ws->dev, &ws->scratch);
    if (device_memory(ws->dev, false)) r.host = &ws->host;
    return r;
}
/* Checks that the device has everything that the pass just measured needs: EXIT_INPUT names op and layer. */
bool workspace_able(const Model *, Workspace *, Err *);
/* Maps scratch, and for a GPU the host's. */
bool workspace_scratch(const Model *, Workspace *, size_t bytes, size_t host, Err *);

/* Call before the pass reads the weights of a unit, and when it is over. */
static inline void sums_need(const Model *m, Run *r, int unit) {
    if (m->sums) m->sums->need(m->sums->ctx, r, unit);
}
static inline void sums_rest(const Model *m) {
    if (m->sums) m->sums->rest(m->sums->ctx);
}
/* The logits of rows before the head, by its matrix, or by some rows of it. */
static inline void head_logits(const Model *m, Run *r, Tensor logits, Tensor xf, Tensor head) {
    r->ops->linear(r, logits, xf, head, ABSENT);
    if (!logits_plain(model_logits(m))) r->ops->map_logits(r, logits, model_logits(m));
}
/* x = scale embed[tok] + positions[pos]; pos: of its rows */
static inline void model_embed(const Model *m, Run *r, Tensor x, const int *tok, const int *pos) {
    r->ops->embed(r, x, m->w.embed, tok, m->cfg.embed_scale);
    if (!present(m->w.positions)) return;
    Mark mark = arena_mark(r->scratch);
    Tensor p = SCRATCH(r, "positions", x.n[0], x.n[1]);
    r->ops->embed(r, p, m->w.positions, pos, 1);
    r->ops->add(r, x, p);
    arena_release(r->scratch, mark);
}
