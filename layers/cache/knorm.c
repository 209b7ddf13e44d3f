/* knorm.c: rows with the smallest keys stay: a key of small L2 norm tends to be looked at much. The score is a strictly
 * decreasing function of the norm, rmsnorm's (mean k^2 + eps)^-1/2, which every backend has. Source: Devoto et al., "A
 * Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", arXiv:2406.11430. */
#include "policy.h"
#include "ops/ops.h"

static void knorm_score(Run *r, const Kv *pass, Tensor score) {
    const int rows = pass->k.n[0] * pass->k.n[1], D = pass->k.n[2];
    double *one = arena_take(r->host, (size_t)D * sizeof *one, "ones");
    Mark mark = arena_mark(r->scratch);
    Tensor unread = SCRATCH(r, "keys of norm 1", rows, D), ones = SCRATCH(r, "factors", 1, D);
    for (int k = 0; k < D && !measuring(r); k++) one[k] = 1;
    r->ops->repeat(r, ones, one);
    r->ops->rmsnorm(r, unread, TENSOR(score.p, REAL, rows), TENSOR(pass->k.p, REAL, rows, D), TENSOR(ones.p, REAL, D),
                    1e-12);
    arena_release(r->scratch, mark);
}
static const Key keys[] = {POLICY_BUDGET, POLICY_WINDOW("16"), POLICY_SINKS("4"), POLICY_EVERY("64", 0), {0}};
const Policy policy_knorm = {.name = "knorm",
                             .meaning = "the keys of smallest L2 norm",
                             .source = "arXiv:2406.11430",
                             .lacks = "every layer evicts, the first two included",
                             .keys = keys,
                             .score = knorm_score};
