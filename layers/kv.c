/* kv.c: the rows of a pass as fields. */
#include "kv.h"
#include "layers/cache/row_ranks.h"

void kv_fields(const KvShape *s, int N, Kv *kv, Fields *f) {
    kv->s = *s;
    kv->evicted = kv->carry = ABSENT; /* of a pass on a cache, which this one may not be */
    if (!s->lanes) return;
    field(f, &kv->k, "k", 0, N, s->lanes, s->kdim);
    if (!s->alias) field(f, &kv->v, "v", 0, N, s->lanes, s->vdim);
    if (s->evicts) field(f, &kv->bias, "bias", FIELD_F32, N, s->lanes);
}
static bool kv_rotates(const Kv *kv) { return kv->s.codec && kv->s.codec->rotate && !kv->s.alias; }
void kv_turn_queries(Run *r, const Kv *kv, Tensor q) {
    if (kv_rotates(kv)) r->ops->hadamard(r, q);
}
Kv kv_made(const Run *r, const Kv *kv) { return row_ranks_made(r, kv); }
void kv_settle(Run *r, Kv *kv) {
    const Kv made = kv_made(r, kv);
    if (kv_rotates(kv)) r->ops->hadamard(r, made.k);
    Tensor parts[] = {made.k, made.v};
    for (int i = 0; i < (kv->s.alias ? 1 : 2); i++) switch (rows_as(&kv->s)) {
        case ROWS_REAL: break;
        case ROWS_BF16: r->ops->round_to_bf16(r, parts[i]); break;
        default: r->ops->recode_rows(r, parts[i], kv->s.codec);
        }
    row_ranks_rows(r, kv);
}
void kv_pass_fields(const KvShape *s, int N, Kv *kv, Fields *f) {
    kv_fields(s, N, kv, f);
    if (s->evicts) field(f, &kv->evicted, "evicted", 0, N, s->lanes);
    if (s->carry_rows) field(f, &kv->carry, "carry", FIELD_F32, N, s->lanes, s->carry);
}
