/* shadowkv.c: a step reads the pages whose mean key, the page's landmark, its query attends to most. The softmax of
 * scale q.mean over the pages is what a head gives them; of the heads of a group the largest counts. A mean says little
 * of uneven pages, those with the key least like it by the cosine (outliers in the paper): they are read whatever the
 * query, and no softmax counts them. Source: Sun et al., "ShadowKV: KV Cache in Shadows for High-Throughput
 * Long-Context LLM Inference", arXiv:2410.21465, section 4. */
#include "policy.h"

/* mean (D), smallest cosine */
static void shadowkv_summary(const real *keys, int P, int D, real *out) {
    double size = 0, least = INFINITY;
    policy_means(keys, P, D, out);
    for (int d = 0; d < D; d++) size += (double)out[d] * (double)out[d];
    for (int r = 0; r < P; r++) {
        double dot = 0, own = 0;
        for (int d = 0; d < D; d++)
            dot += (double)keys[r * D + d] * (double)out[d], own += (double)keys[r * D + d] * (double)keys[r * D + d];
        least = fmin(least, own * size > 0 ? dot / sqrt(own * size) : 0);
    }
    out[D] = (real)least;
}
static void shadowkv_judge(PageChoice *c) {
    const int uneven = imin(c->p->uneven, c->n);
    for (int i = 0; i < c->n; i++) c->order[i] = (Ranked){-c->page[i][c->D], i};
    ranked_select(c->order, c->n, uneven);
    for (int g = 0; g < c->group && uneven < c->n; g++) {
        policy_dots(c, c->q + g * c->D, c->D, c->each);
        for (int i = 0; i < c->n; i++) c->each[i] *= c->scale;
        for (int k = 0; k < uneven; k++) c->each[c->order[k].at] = -(real)INFINITY;
        if (c->group > 1) policy_softmax(c->each, c->n); /* of one head it changes no order */
        for (int i = 0; i < c->n; i++) c->score[i] = g && c->each[i] < c->score[i] ? c->score[i] : c->each[i];
    }
    for (int k = 0; k < uneven; k++) c->score[c->order[k].at] = (real)INFINITY;
}
static const Key own[] = {POLICY_READS_KEYS("0.0156", "32", "8"),
                          POLICY_KEY(uneven, KEY_INT, "48", 0, 1e6,
                                     "pages with the key least like their mean, read in addition"),
                          {0}};
static const Key keys[] = {{0}};
const Policy policy_shadowkv = {.name = "shadowkv",
                                .meaning = "all; a step reads uneven pages and those whose mean key it attends to",
                                .source = "arXiv:2410.21465",
                                .lacks = "low-rank keys; uneven pages are chosen anew as the text grows",
                                .role = POLICY_READS,
                                .keys = keys,
                                .own = own,
                                .summary = shadowkv_summary,
                                .summary_channels = 1,
                                .summary_more = 1,
                                .judge = shadowkv_judge};
