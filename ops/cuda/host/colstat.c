/* colstat.c: column statistics of attention over cached rows. */
#include "ops/check.h"
#include "table.h"

void cuda_op_colstat(Run *r, Tensor stat, Tensor q, Tensor lse, const Lanes *t, ColStat c) {
    const RowsAs as = rows_as(&t->s);
    check_colstat(stat, q, lse, t, &c);
    CHECK(as != ROWS_CODED, "no kernel reads rows in %s", t->s.codec->name);
    Mark mark = arena_mark(r->scratch);
    const size_t asks = (size_t)t->s.lanes * (size_t)q.n[0];
    int *seen = arena_take(r->scratch, asks * sizeof *seen, "rows seen");
    float *sums = NULL, *lses = NULL, *parts = NULL;
    if (c.older) {
        sums = R(SCRATCH(r, "sums of queries", q.n[0], t->s.lanes, t->s.kdim));
        lses = R(SCRATCH(r, "lse of queries", q.n[0], t->s.lanes));
        parts = arena_take(r->scratch, asks * CUDA_COL_PIECES * 2 * sizeof *parts, "parts of lse");
    }
    if (!measuring(r)) {
        const CudaColStat columns = {.seq = c.seq,
                                     .from = c.from,
                                     .n = c.n,
                                     .queries = (int)c.queries,
                                     .heads = (int)c.heads,
                                     .value = (int)c.value,
                                     .lanes = t->s.lanes,
                                     .group = q.n[1] / t->s.lanes,
                                     .rows = q.n[0],
                                     .Dk = t->s.kdim,
                                     .Dv = t->s.vdim,
                                     .columns = stat.n[1],
                                     .seen = seen,
                                     .older = c.older,
                                     .sums = sums,
                                     .lses = lses,
                                     .parts = parts};
        const CudaLanes lanes = {.P = t->P,
                                 .maxpages = t->maxpages,
                                 .alias = t->s.alias,
                                 .is_bf16 = as == ROWS_BF16,
                                 .coded = cuda_coded(t->s.codec),
                                 .bits = t->s.codec ? t->s.codec->bits : 0,
                                 .group = t->s.codec ? t->s.codec->group : 0,
                                 .data = as == ROWS_REAL ? R(t->data) : t->data.p,
                                 .lo = t->lo,
                                 .hi = t->hi,
                                 .table = t->table,
                                 .pos = t->pos};
        cuda_colstat(C(r), &columns, &lanes, R(stat), R(q), R(lse));
    }
    arena_release(r->scratch, mark);
}
