/* feedback.c: what Comba adds to the gated delta rule (line.h): an erase key of its own length, and queries from which
 * the key is taken. line.c calls it; both are functions of a key after its convolution. */
#include "line.h"
#include "layers/parts.h"

/* (H): sigmoid(decay). */
static Tensor line_inner(Run *r, const LineW *w) {
    Tensor f = SCRATCH(r, "inner decay", w->decay.n[0]);
    r->ops->sigmoid(r, f, w->decay, 1);
    return f;
}
Tensor line_erase_key(Run *r, const LineCfg *c, const LineW *w, Tensor k) {
    if (!c->inner_decay) return ABSENT;
    Tensor e = SCRATCH_OF(r, "erase key", k.dtype, k.n[0], k.n[1], k.n[2]);
    r->ops->zero(r, e);
    r->ops->skip(r, e, k, line_inner(r, w));
    return e;
}
void line_erase_key_backward(Run *r, const LineCfg *c, const LineW *w, LineW *dw, Tensor dk, Tensor de, Tensor k) {
    if (!c->inner_decay) return;
    Mark mark = arena_mark(r->scratch);
    Tensor f = line_inner(r, w), df = zeros_like(r, "d inner decay", f);
    r->ops->skip_backward(r, add_to(dk), df, de, k, f);
    r->ops->sigmoid_backward(r, add_to(dw->decay), df, f, 1);
    arena_release(r->scratch, mark);
}

/* (H): what the query loses of the key, -D sigmoid(decay) or -D. */
static Tensor line_correction(Run *r, const LineCfg *c, const LineW *w) {
    Tensor f = SCRATCH(r, "correction", w->D.n[0]);
    if (c->inner_decay)
        r->ops->sigmoid_gate(r, f, w->D, w->decay);
    else
        r->ops->copy(r, f, w->D);
    r->ops->axpby(r, f, -1, f, 0);
    return f;
}
Tensor line_correct_query(Run *r, const LineCfg *c, const LineW *w, Tensor q, Tensor k) {
    if (!c->output_correction) return q;
    Tensor y = SCRATCH_OF(r, "corrected q", q.dtype, q.n[0], q.n[1]);
    r->ops->copy(r, y, q);
    r->ops->skip(r, shaped(y, c->heads, c->head_dim), shaped(k, c->heads, c->head_dim), line_correction(r, c, w));
    return y;
}
void line_correct_query_backward(Run *r, const LineCfg *c, const LineW *w, LineW *dw, Tensor dq, Tensor dk, Tensor k) {
    if (!c->output_correction) return;
    Mark mark = arena_mark(r->scratch);
    Tensor f = line_correction(r, c, w), df = zeros_like(r, "d correction", f);
    const int H = c->heads, K = c->head_dim;
    r->ops->skip_backward(r, add_to(shaped(dk, H, K)), df, shaped(dq, H, K), shaped(k, H, K), f);
    r->ops->axpby(r, df, -1, df, 0);
    if (c->inner_decay)
        r->ops->sigmoid_gate_backward(r, add_to(dw->D), add_to(dw->decay), df, w->D, w->decay);
    else
        r->ops->axpby(r, dw->D, 1, df, 1);
    arena_release(r->scratch, mark);
}
