/* kv.c: the rows of a pass as fields. */
#include "kv.h"

void kv_fields(const KvShape *s, int N, Kv *kv, Fields *f) {
    kv->s = *s;
    if (!s->lanes) return;
    field(f, &kv->k, "k", 0, N, s->lanes, s->kdim);
    if (!s->alias) field(f, &kv->v, "v", 0, N, s->lanes, s->vdim);
}
