/* quest.c: a step reads the pages whose keys its query may match best: of a page the smallest and the largest number of
 * each channel are known, so that sum_d max(q_d low_d, q_d high_d) is no less than any score in it. All rows stay.
 * Query heads of a group read the same pages, by the largest of their bounds. Source: Tang et al., "Quest: Query-Aware
 * Sparsity for Efficient Long-Context LLM Inference", arXiv:2406.10774. */
#include "policy.h"

static void quest_judge(PageChoice *c) {
    for (int g = 0; g < c->group; g++) {
        policy_bound_query(c->q + g * c->D, c->D, c->query);
        policy_dots(c, c->query, 2 * c->D, c->each);
        for (int i = 0; i < c->n; i++) c->score[i] = g && c->score[i] > c->each[i] ? c->score[i] : c->each[i];
    }
}
static const Key own[] = {POLICY_READS_KEYS("0.25", "64", "16"), {0}};
static const Key keys[] = {{0}};
const Policy policy_quest = {.name = "quest",
                             .meaning = "all; a step reads the pages that its query may match best",
                             .source = "arXiv:2406.10774",
                             .lacks = "the first two layers select, too",
                             .role = POLICY_READS,
                             .keys = keys,
                             .own = own,
                             .summary = policy_bounds,
                             .summary_channels = 2,
                             .judge = quest_judge};
