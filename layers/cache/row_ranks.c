/* row_ranks.c: what ranks that divide the rows of a cache gather. Sources: arXiv:2401.02669 (DistAttention) for rows
 * that several ranks hold, arXiv:2405.05329 (KV-Runahead) for prompts whose parts several compute. */
#include "row_ranks.h"
#include "ops/host.h"

RowRanks *row_ranks_open(const KvRanks *of, int max_rows) {
    RowRanks *k = xcalloc(1, sizeof *k);
    k->of = *of;
    k->at = xcalloc((size_t)of->world + 1, sizeof *k->at);
    k->out_at = xcalloc((size_t)of->world + 1, sizeof *k->out_at);
    k->cost = xcalloc((size_t)max_rows + 1, sizeof *k->cost);
    return k;
}
void row_ranks_close(RowRanks *k) {
    if (!k) return;
    free(k->at);
    free(k->out_at);
    free(k->cost);
    free(k);
}
void row_ranks_feed(RowRanks *k, const Batch *b, const int *tok) {
    for (int i = 0; i < b->N; i++) {
        k->fed = rng_mix(k->fed, (uint64_t)b->seq[b->of[i]]);
        k->fed = rng_mix(k->fed, (uint64_t)b->pos[i] << 32 | (uint64_t)(uint32_t)tok[i]);
    }
}
bool row_ranks_sound(const RowRanks *k, Err *e) {
    if (k->failed) *e = k->why;
    return !k->failed;
}
bool row_ranks_divides(const RowRanks *k, int N) { return k->of.prompts && N / ROW_RANKS_LEAST >= k->of.world; }
void row_ranks_divide(RowRanks *k, int N) {
    const int W = k->of.world;
    k->at[0] = 0, k->at[W] = N;
    for (int w = 1, i = 0; w < W; w++) {
        while (i < N && k->cost[i] * W < k->cost[N] * w) i++;
        k->at[w] = i = imin(imax(i, k->at[w - 1] + 1), N - (W - w));
    }
}

/* ---- gathers -----------------------------------------------------------------------------------------------------*/

/* Parts of `each` reals, of which the last MARK say what the rank was fed. */
enum { MARK = sizeof(uint64_t) / sizeof(real) };
typedef struct {
    real *all;
    size_t each;
} Gather;
static Gather gather_take(Run *r, const RowRanks *k, const char *name, size_t n) {
    const size_t each = n + MARK;
    return (Gather){arena_take(r->scratch, (size_t)k->of.world * each * sizeof(real), name), each};
}
static real *gather_part(const Gather *g, int rank) { return g->all + (size_t)rank * g->each; }
static real *gather_fed(const Gather *g, int rank) { return gather_part(g, rank) + g->each - MARK; }
/* False: the ranks did not meet, now or before, or do not feed the same. */
static bool gather_all(RowRanks *k, const Gather *g, const char *name) {
    if (k->failed) return false;
    memcpy(gather_fed(g, k->of.rank), &k->fed, sizeof k->fed);
    k->failed = !k->of.gather(k->of.ctx, name, g->all, g->each, &k->why);
    for (int w = 0; w < k->of.world && !k->failed; w++)
        if (memcmp(gather_fed(g, w), gather_fed(g, 0), sizeof k->fed))
            k->failed = !err_runtime(&k->why,
                                     "rank %d: rank %d was fed other tokens than rank 0; give all ranks the same "
                                     "command, files, threads and instruction set",
                                     k->of.rank, w);
    return !k->failed;
}
/* Rows of the largest part by such borders. */
static int gather_most(const RowRanks *k, const int *at) {
    int most = 0;
    for (int w = 0; w < k->of.world; w++) most = imax(most, at[w + 1] - at[w]);
    return most;
}
/* x (at[world], width): the caller's part of it goes to all ranks, theirs come to it; zeros where that fails. */
static void gather_rows(Run *r, RowRanks *k, const char *name, const int *at, real *x, size_t width, int measured) {
    const RunMark mark = run_mark(r);
    const int me = k->of.rank, W = k->of.world, most = measuring(r) ? measured : gather_most(k, at);
    const Gather g = gather_take(r, k, name, (size_t)most * width);
    if (!measuring(r)) {
        memset(gather_part(&g, me), 0, g.each * sizeof(real));
        memcpy(gather_part(&g, me), x + (size_t)at[me] * width, (size_t)(at[me + 1] - at[me]) * width * sizeof(real));
        const bool met = gather_all(k, &g, name);
        for (int w = 0; w < W; w++) {
            const size_t n = (size_t)(at[w + 1] - at[w]) * width;
            real *to = x + (size_t)at[w] * width;
            if (w != me) met ? memcpy(to, gather_part(&g, w), n * sizeof(real)) : memset(to, 0, n * sizeof(real));
        }
    }
    run_release(r, mark);
}

/* ---- attention to rows of all ranks ------------------------------------------------------------------------------*/

/* What a rank gives of `pairs` of query and head: their outputs (pairs, vdim), then their log-sum-exps (pairs). */
typedef struct {
    Gather g;
    size_t pairs, vdim;
} Partial;
static real *partial_o(const Partial *p, int rank) { return gather_part(&p->g, rank); }
static real *partial_lse(const Partial *p, int rank) { return partial_o(p, rank) + p->pairs * p->vdim; }

/* Of n pairs from number `from` on: L = log sum_w e^lse_w, o = sum_w e^(lse_w - L) o_w, in the order of ranks. A rank
 * without visible rows has -inf. */
static void partial_merge(const Partial *p, int world, size_t from, size_t n, real *o, real *lse) {
    for (size_t i = from; i < from + n; i++) {
        double top = -INFINITY, sum = 0;
        bool none = true;
        real *to = o + (i - from) * p->vdim;
        for (int w = 0; w < world; w++) {
            const real l = partial_lse(p, w)[i];
            none &= l == -INFINITY;
            if (!((double)l <= top)) top = (double)l;
        }
        for (int w = 0; w < world && !none; w++) sum += exp((double)partial_lse(p, w)[i] - top);
        lse[i - from] = none ? -INFINITY : (real)(top + log(sum));
        for (size_t d = 0; d < p->vdim; d++) to[d] = 0;
        for (int w = 0; w < world && !none; w++) {
            const real weight = (real)(exp((double)partial_lse(p, w)[i] - top) / sum),
                       *of = partial_o(p, w) + i * p->vdim;
            for (size_t d = 0; d < p->vdim; d++) to[d] += weight * of[d];
        }
    }
}
/* The queries q of Run.out, or of the rows that continue on all ranks. */
static Tensor row_ranks_queries(Run *r, RowRanks *k, Tensor q) {
    if (!r->share) return q;
    const int M = r->out.n, H = q.n[1], D = q.n[2];
    if (measuring(r)) {
        gather_rows(r, k, "queries", NULL, NULL, (size_t)H * (size_t)D, M);
        return SCRATCH(r, "queries of all ranks", M, H, D);
    }
    const Tensor all = SCRATCH(r, "queries of all ranks", k->out.n, H, D);
    const size_t width = (size_t)H * (size_t)D;
    memcpy(R(all) + (size_t)k->out_at[k->of.rank] * width, R(q), (size_t)M * width * sizeof(real));
    gather_rows(r, k, "queries", k->out_at, R(all), width, M);
    return all;
}
void row_ranks_attend(Run *r, RowRanks *k, const Lanes *lanes, const Kv *pass, Tensor o, Tensor lse, Tensor q,
                      AttnSpec spec) {
    Run v = *r;
    if (r->share && !measuring(r)) v.out = k->out;
    const int M = v.out.n, H = spec.heads, D = lanes->s.vdim, W = k->of.world, me = k->of.rank;
    if (!M) return;
    const RunMark mark = run_mark(r);
    q = row_ranks_queries(r, k, q);
    Partial p = {.pairs = (size_t)M * (size_t)H, .vdim = (size_t)D};
    p.g = gather_take(r, k, "partial attention", p.pairs * (p.vdim + 1));
    if (measuring(r)) {
        r->ops->attend_lanes(&v, o, lse, q, lanes, pass, spec, false);
    } else {
        r->ops->attend_lanes(&v, TENSOR(partial_o(&p, me), REAL, M, H, D), TENSOR(partial_lse(&p, me), REAL, M, H), q,
                             lanes, pass, spec, false);
        if (!gather_all(k, &p.g, "partial attention"))
            for (int w = 0; w < W; w++)
                for (size_t i = 0; i < p.pairs; i++) partial_lse(&p, w)[i] = -INFINITY;
        const size_t from = r->share ? (size_t)k->out_at[me] * (size_t)H : 0;
        partial_merge(&p, W, from, (size_t)r->out.n * (size_t)H, R(o), R(lse));
    }
    run_release(r, mark);
}

/* ---- passes that are divided -------------------------------------------------------------------------------------*/

RowList row_ranks_out(const Run *r, RowList all) {
    RowRanks *k = r->share;
    if (!k || measuring(r)) return all;
    for (int w = 0, i = 0; w <= k->of.world; w++) {
        while (i < all.n && all.idx[i] < k->at[w]) i++;
        k->out_at[w] = i;
    }
    k->out = all;
    const int from = k->out_at[k->of.rank];
    return (RowList){k->out_at[k->of.rank + 1] - from, all.idx + from};
}
Kv row_ranks_made(const Run *r, const Kv *kv) {
    const RowRanks *k = r->share;
    Kv made = *kv;
    if (!k || measuring(r)) return made;
    const int me = k->of.rank;
    made.k = tensor_part(kv->k, k->at[me], k->at[me + 1] - k->at[me]);
    if (present(kv->v)) made.v = tensor_part(kv->v, k->at[me], k->at[me + 1] - k->at[me]);
    for (int i = 0; i < 2; i++) made.coef[i] = tensor_part(kv->coef[i], k->at[me], k->at[me + 1] - k->at[me]);
    return made;
}
void row_ranks_rows(Run *r, const Kv *kv) {
    RowRanks *k = r->share;
    if (!k) return;
    const size_t lanes = (size_t)kv->s.lanes;
    const int N = r->batch->N;
    gather_rows(r, k, "keys", k->at, R(kv->k), lanes * (size_t)kv->s.kdim, N);
    if (!kv->s.alias) gather_rows(r, k, "values", k->at, R(kv->v), lanes * (size_t)kv->s.vdim, N);
    for (int i = 0; i < 2 && kv->s.basis; i++)
        gather_rows(r, k, "coefficients", k->at, R(kv->coef[i]), lanes * (size_t)kv->s.basis->part[i].rank, N);
}
Tensor row_ranks_join(Run *r, Tensor x) {
    RowRanks *k = r->share;
    if (!k) return x;
    const int n = measuring(r) ? r->out.n : k->out.n, d = x.n[1];
    const Tensor all = SCRATCH(r, "rows of all ranks", n, d);
    if (!measuring(r))
        memcpy(R(all) + (size_t)k->out_at[k->of.rank] * (size_t)d, R(x), (size_t)r->out.n * (size_t)d * sizeof(real));
    if (n) gather_rows(r, k, "rows that continue", k->out_at, R(all), (size_t)d, n);
    return all;
}
