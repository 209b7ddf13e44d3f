/* hybrid.c: hybrid sparse attention, the second stage of RocketKV: a step reads the pages that an estimate of its
 * attention prefers. The estimate looks at few channels of the keys, those in which the query heads of a group are
 * largest together, C of D, and takes of a page the largest or the smallest number of a channel as the sum of the
 * group's queries is positive there or not, m_d:
 *   s = scale sqrt(sum_{d<D} |q_d| / sum_{d in C} |q_d|) sum_{d in C} q_d m_d
 * The softmax of s over the pages, averaged over the heads, is a page's score. With stage one (rocketkv.c), of a budget
 * of 1/c of the tokens the paper has pages of ceil(sqrt c) rows and a share of channels of that / c. Source: Behnam et
 * al., "RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV Cache Compression", arXiv:2502.14051,
 * section 3; the estimate's scale: Ribar et al., "SparQ Attention", arXiv:2312.04985. */
#include "policy.h"

static void hybrid_judge(PageChoice *c) {
    const int D = c->D, few = imax(1, (int)(c->p->channels * D + 1e-9));
    for (int d = 0; d < D; d++) {
        real size = 0, sum = 0;
        for (int g = 0; g < c->group; g++) size += (real)fabs((double)c->q[g * D + d]), sum += c->q[g * D + d];
        c->order[d] = (Ranked){size, sum > 0 ? D + d : d}; /* its place in a summary */
    }
    qsort(c->order, (size_t)D, sizeof *c->order, ranked_first);
    for (int g = 0; g < c->group; g++) {
        const real *q = c->q + g * D;
        double all = 0, part = 0;
        for (int d = 0; d < D; d++) all += fabs((double)q[d]);
        for (int k = 0; k < few; k++) part += fabs((double)q[c->order[k].at % D]);
        const real scale = part > 0 ? c->scale * (real)sqrt(all / part) : 0;
        memset(c->query, 0, 2 * (size_t)D * sizeof *c->query);
        for (int k = 0; k < few; k++) c->query[c->order[k].at] = scale * q[c->order[k].at % D];
        policy_dots(c, c->query, 2 * D, c->each);
        if (c->group > 1) policy_softmax(c->each, c->n); /* of one head it changes no order */
        for (int i = 0; i < c->n; i++) c->score[i] += c->each[i];
    }
}
static const Key own[] = {POLICY_READS_KEYS("0.0625", "64", "4"),
                          POLICY_KEY(channels, KEY_FLOAT, "0.25", 0.001, 1,
                                     "share of a key's channels that pages are judged by"),
                          {0}};
static const Key keys[] = {{0}};
const Policy policy_hybrid = {.name = "hybrid",
                              .meaning =
                                  "all; a step reads the pages that few channels prefer: RocketKV's second stage",
                              .source = "arXiv:2502.14051",
                              .lacks = "recent rows are read anyway instead of competing",
                              .role = POLICY_READS,
                              .keys = keys,
                              .own = own,
                              .summary = policy_bounds,
                              .summary_channels = 2,
                              .judge = hybrid_judge};
