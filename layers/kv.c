/* kv.c: the rows of a pass as fields. */
#include "kv.h"
#include "layers/cache/aqua.h"
#include "layers/cache/row_ranks.h"

void kv_fields(const KvShape *s, int N, Kv *kv, Fields *f) {
    kv->s = *s;
    kv->evicted = kv->carry = ABSENT; /* of a pass on a cache, which this one may not be */
    kv->coef[0] = kv->coef[1] = ABSENT;
    if (!s->lanes) return;
    field(f, &kv->k, "k", 0, N, s->lanes, s->kdim);
    if (!s->alias) field(f, &kv->v, "v", 0, N, s->lanes, s->vdim);
    for (int i = 0; i < 2 && basis_settles(s); i++)
        field(f, &kv->coef[i], i ? "coefficients of v" : "coefficients of k", 0, N, s->lanes, s->basis->part[i].rank);
    if (s->evicts) field(f, &kv->bias, "bias", FIELD_F32, N, s->lanes);
}
static bool kv_rotates(const Kv *kv) { return kv->s.codec && kv->s.codec->rotate && !kv->s.alias; }
void kv_turn_queries(Run *r, const Kv *kv, Tensor q) {
    if (kv_rotates(kv)) r->ops->hadamard(r, q);
}
Kv kv_made(const Run *r, const Kv *kv) { return row_ranks_made(r, kv); }
/* x (N,lanes,width), keys or values of the rows of Run.in, to coefficients c, or back. */
static void kv_project(Run *r, const RowBasis *b, Tensor c, Tensor x, bool value, bool back) {
    const PartBasis *p = &b->part[value];
    const size_t heads = (size_t)b->heads, rank = heads * (size_t)p->rank, width = heads * (size_t)p->width;
    const int groups = b->lanes / b->heads, n = measuring(r) ? 0 : x.n[0] * groups;
#pragma omp parallel for schedule(static) num_threads(device_threads(r->dev)) if (n * rank * width > 50000)
    for (int i = 0; i < n; i++) {
        const int pos = r->batch->pos[r->in.idx[i / groups]], group = i % groups;
        real *coef = R(c) + (size_t)i * rank, *parts = R(x) + (size_t)i * width;
        if (!back) basis_project(b, coef, parts, value, group, pos);
        for (int h = 0; back && h < b->heads; h++)
            basis_expand(b, parts + h * p->width, coef, value, group * b->heads + h, pos);
    }
}
/* Rows become what the codec leaves of their coefficients, which are stored. */
static void kv_settle_basis(Run *r, const Kv *made) {
    const Tensor parts[] = {made->k, made->v};
    for (int i = 0; i < 2; i++) {
        kv_project(r, made->s.basis, made->coef[i], parts[i], i, false);
        r->ops->recode_rows(r, made->coef[i], made->s.codec);
        kv_project(r, made->s.basis, made->coef[i], parts[i], i, true);
    }
}
void kv_settle(Run *r, Kv *kv) {
    const Kv made = kv_made(r, kv);
    if (basis_predicts(kv->s.basis)) {
        if (basis_settles(&kv->s)) aqua_settle(r, &made);
        return;
    }
    if (kv->s.basis) {
        kv_settle_basis(r, &made);
        row_ranks_rows(r, kv);
        return;
    }
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
