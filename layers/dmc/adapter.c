/* adapter.c: see adapter.h. */
#include "adapter.h"
#include "layers/parts.h"

void adapter_fields(Fields *f, Tensor *w, Tensor *b, int lanes, int d_model) {
    field(f, w, "decide_proj.weight", FIELD_ZEROS | FIELD_INVARIANT, lanes, d_model);
    field(f, b, "decide_proj.bias", FIELD_ZEROS | FIELD_NODECAY, lanes);
}
/* The product has a fixed rounding, apart from the other projections: prefill and decoding must make the same
 * decisions. */
void adapter_decide(Run *r, Tensor w, Tensor b, Decide d, Tensor x, const Kv *kv, Tensor past, Tensor alpha) {
    Mark mark = arena_mark(r->scratch);
    Tensor u = SCRATCH(r, "what decides", alpha.n[0], alpha.n[1]);
    r->ops->linear_invariant(r, u, x, w, b);
    r->ops->decide(r, alpha, ABSENT, kv->bias, kv->evicted, u, past, d);
    if (d.itself && present(kv->carry)) r->ops->columns(r, kv->carry, 0, tensor_rows(u, 1), 0, 1);
    arena_release(r->scratch, mark);
}
Tensor adapter_backward(Run *r, Decide d, const Kv *dkv, Tensor alpha, Dtype dtype) {
    Tensor du = SCRATCH(r, "d what decides", alpha.n[0], alpha.n[1]);
    r->ops->zero(r, du);
    r->ops->decide_backward(r, du, ABSENT, ABSENT, ABSENT, dkv->bias, alpha, ABSENT, d);
    return tensor_as(r, "d what decides, rounded", du, dtype);
}
