/* ranks.c: attention to rows that several ranks hold. Source: arXiv:2401.02669 (DistAttention). */
#include "slot.h"
#include "ops/host.h"

void ranks_feed(RowRanks *k, const Batch *b, const int *tok) {
    for (int i = 0; i < b->N; i++) {
        k->fed = rng_mix(k->fed, (uint64_t)b->seq[b->of[i]]);
        k->fed = rng_mix(k->fed, (uint64_t)b->pos[i] << 32 | (uint64_t)(uint32_t)tok[i]);
    }
}
bool ranks_sound(const RowRanks *k, Err *e) {
    if (k->failed) *e = k->why;
    return !k->failed;
}

/* What a rank gives of `rows` pairs of query and head: their outputs (rows, vdim), their log-sum-exps (rows), and what
 * it was fed. */
typedef struct {
    real *all;
    size_t rows, vdim, each;
} Partial;
static real *partial_o(const Partial *p, int rank) { return p->all + (size_t)rank * p->each; }
static real *partial_lse(const Partial *p, int rank) { return partial_o(p, rank) + p->rows * p->vdim; }
static real *partial_fed(const Partial *p, int rank) { return partial_lse(p, rank) + p->rows; }

/* False: the ranks did not meet, now or before, or do not feed the same. */
static bool partial_gather(RowRanks *k, const Partial *p) {
    if (k->failed) return false;
    memcpy(partial_fed(p, k->of.rank), &k->fed, sizeof k->fed);
    k->failed = !k->of.gather(k->of.ctx, "partial attention", p->all, p->each, &k->why);
    for (int w = 0; w < k->of.world && !k->failed; w++)
        if (memcmp(partial_fed(p, w), partial_fed(p, 0), sizeof k->fed))
            k->failed = !err_runtime(&k->why,
                                     "rank %d: rank %d was fed other tokens than rank 0; give all ranks the same "
                                     "command, files, threads and instruction set",
                                     k->of.rank, w);
    return !k->failed;
}
/* L = log sum_w e^lse_w, o = sum_w e^(lse_w - L) o_w, in the order of ranks. A rank without visible rows has -inf.
 * Uses up what was gathered. */
static void partial_merge(const Partial *p, int world, real *o, real *lse) {
    for (size_t i = 0; i < p->rows; i++) {
        double top = -INFINITY, sum = 0;
        bool none = true;
        real *to = o + i * p->vdim;
        for (int w = 0; w < world; w++) {
            const real l = partial_lse(p, w)[i];
            none &= l == -INFINITY;
            if (!((double)l <= top)) top = (double)l;
        }
        for (int w = 0; w < world && !none; w++) sum += exp((double)partial_lse(p, w)[i] - top);
        lse[i] = none ? -INFINITY : (real)(top + log(sum));
        for (size_t d = 0; d < p->vdim; d++) to[d] = 0;
        for (int w = 0; w < world && !none; w++) {
            const real weight = (real)(exp((double)partial_lse(p, w)[i] - top) / sum),
                       *from = partial_o(p, w) + i * p->vdim;
            for (size_t d = 0; d < p->vdim; d++) to[d] += weight * from[d];
        }
    }
}

void ranks_attend(Run *r, const Slot *s, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec spec) {
    RowRanks *k = s->ranks;
    const int M = r->out.n, H = spec.heads, D = s->t.s.vdim, W = k->of.world;
    if (!M) return;
    const RunMark mark = run_mark(r);
    const Tensor all = SCRATCH(r, "partial attention", W, M * H + 1, D + 1);
    const Partial p = {R(all), (size_t)M * (size_t)H, (size_t)D, (size_t)(M * H + 1) * (size_t)(D + 1)};
    CHECK((size_t)D + 1 >= sizeof k->fed / sizeof(real), "values of %d elements", D);
    if (measuring(r)) {
        r->ops->attend_lanes(r, o, lse, q, kv_lanes_there(s), pass, spec, false);
    } else {
        const int me = k->of.rank;
        r->ops->attend_lanes(r, TENSOR(partial_o(&p, me), REAL, M, H, D), TENSOR(partial_lse(&p, me), REAL, M, H), q,
                             kv_lanes_there(s), pass, spec, false);
        memset(partial_fed(&p, me), 0, (size_t)(D + 1) * sizeof(real));
        if (!partial_gather(k, &p)) {
            for (int w = 0; w < W; w++)
                for (size_t i = 0; i < p.rows; i++) partial_lse(&p, w)[i] = -INFINITY;
        }
        partial_merge(&p, W, R(o), R(lse));
    }
    run_release(r, mark);
}
