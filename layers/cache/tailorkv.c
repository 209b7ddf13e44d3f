/* tailorkv.c: the first `coded` layers store their rows in few bits, and a step reads all of them; in the others a step
 * reads first and recent rows and those that few channels prefer. With q the mean of a group's queries these channels,
 * C of D, are those of the largest |q_d| max_j |k_jd|, and a row's score is
 *   s_j = sum_{d in C} q_d k_jd
 * over the rows j that the query may leave out; rows of a page count as their mean. Source: Yao et al., "TailorKV: A
 * Hybrid Framework for Long-Context Inference via Tailored KV Cache Optimization", arXiv:2505.19586, and its published
 * code, which has a fixed list of coded layers, too. */
#include "policy.h"

static void tailorkv_judge(PageChoice *c) {
    const int D = c->D, few = imax(1, (int)(c->p->channels * D + 1e-9));
    real *q = c->query, *most = c->query + D;
    memset(c->query, 0, 2 * (size_t)D * sizeof *c->query);
    for (int g = 0; g < c->group; g++)
        for (int d = 0; d < D; d++) q[d] += c->q[g * D + d] / (real)c->group;
    for (int i = 0; i < c->n; i++)
        for (int d = 0; d < D; d++) {
            const real k = (real)fabs((double)c->page[i][d]);
            most[d] = k > most[d] ? k : most[d];
        }
    for (int d = 0; d < D; d++) c->order[d] = (Ranked){(real)fabs((double)q[d]) * most[d], d};
    qsort(c->order, (size_t)D, sizeof *c->order, ranked_first);
    for (int k = few; k < D; k++) q[c->order[k].at] = 0;
    policy_dots(c, q, D, c->score);
}
static const Key own[] = {
    POLICY_READS_KEYS("192", "56", "1"),
    {"sinks", KEY_INT, offsetof(PolicyCfg, firsts), "8", 0, 1e9, "first positions that are read anyway", 0, 0},
    POLICY_KEY(channels, KEY_FLOAT, "0.0625", 0.001, 1, "share of a key's channels that rows are judged by"),
    POLICY_KEY(coded, KEY_INT, "1", 0, 1e6, "first layers, whose rows are coded and all read"),
    {"bits", KEY_INT, offsetof(PolicyCfg, code_bits), "2", 2, 4, "of their codec, int2 to int4", 0, 0},
    {0}};
static const Key keys[] = {{0}};
const Policy policy_tailorkv = {
    .name = "tailorkv",
    .meaning = "all; first layers in few bits, in the others a step reads the rows that few channels prefer",
    .source = "arXiv:2505.19586",
    .lacks = "guessed channels; the search for the layers to code; "
             "1 bit and keys coded by channel",
    .role = POLICY_READS,
    .keys = keys,
    .own = own,
    .summary = policy_means,
    .summary_channels = 1,
    .judge = tailorkv_judge};
