/* quest.c: a step reads the pages whose keys its query may match best: of a page the smallest and the largest number of
 * each channel are known, so that sum_d max(q_d low_d, q_d high_d) is no less than any score in it. All rows stay.
 * Query heads of a group read the same pages, by the largest of their bounds. Source: Tang et al., "Quest: Query-Aware
 * Sparsity for Efficient Long-Context LLM Inference", arXiv:2406.10774. */
#include "policy.h"

static real quest_bound(const real *low, const real *high, const real *q, int group, int D) {
    real best = -(real)INFINITY;
    for (int g = 0; g < group; g++, q += D) {
        real sum = 0;
        for (int d = 0; d < D; d++) sum += q[d] > 0 ? q[d] * high[d] : q[d] * low[d];
        best = sum > best ? sum : best;
    }
    return best;
}
static const Key own[] = {POLICY_KEY(reads, KEY_FLOAT, "0.25", 0.001, 1e9,
                                     "share of the tokens that a step reads, or above 1 rows"),
                          POLICY_KEY(recent, KEY_INT, "64", 1, 1e9,
                                     "newest rows that are read anyway, in whole pages; at least a page"),
                          POLICY_KEY(page, KEY_INT, "16", 1, 64, "rows that are read together"),
                          {0}};
static const Key keys[] = {{0}};
const Policy policy_quest = {.name = "quest",
                             .meaning = "all; a step reads the pages that its query may match best",
                             .source = "arXiv:2406.10774",
                             .lacks = "GPUs; the first two layers select, too",
                             .role = POLICY_READS,
                             .keys = keys,
                             .own = own,
                             .bound = quest_bound};
