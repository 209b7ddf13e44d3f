/* kv.c: the rows of a pass as fields. */
#include "kv.h"

void kv_fields(const KvShape *s, int N, Kv *kv, Fields *f) {
    kv->s = *s;
    kv->gone = kv->carry = ABSENT; /* of a pass on a cache, which this one may not be */
    if (!s->lanes) return;
    field(f, &kv->k, "k", 0, N, s->lanes, s->kdim);
    if (!s->alias) field(f, &kv->v, "v", 0, N, s->lanes, s->vdim);
    if (s->retire) field(f, &kv->bias, "bias", FIELD_F32, N, s->lanes);
}
void kv_settle(Run *r, Kv *kv) {
    if (!kv->s.narrow) return;
    r->ops->narrow(r, kv->k);
    if (!kv->s.alias) r->ops->narrow(r, kv->v);
}
void kv_pass_fields(const KvShape *s, int N, Kv *kv, Fields *f) {
    kv_fields(s, N, kv, f);
    if (s->retire) field(f, &kv->gone, "gone", 0, N, s->lanes);
    if (s->carry_rows) field(f, &kv->carry, "carry", FIELD_F32, N, s->lanes, s->carry);
}
