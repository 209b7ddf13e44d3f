/* minikv.c: where a prompt ends, its newest rows stay and those of the others that received the most attention from all
 * queries, a share of the budget each; it is meant for rows in 2 bits (--cache-dtype kivi2). Source: Sharma et al.,
 * "MiniKV: Pushing the Limits of LLM Inference via 2-Bit Layer-Discriminative KV Cache", arXiv:2411.18077, whose
 * budgets may fall from layer to layer (pyramidkv). */
#include "policy.h"

static void minikv_select(Choice *c) {
    policy_sums(c);
    for (int h = 0; h < c->lanes; h++) {
        PolicyLane *l = &c->lane[h];
        const int newest = imin(l->n, (int)(c->p->share * l->budget + 1e-9));
        for (int i = l->n - newest; i < l->n; i++) l->stays[i] = true;
    }
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_SINKS("0"),
                           POLICY_SHARE("0.5", 1, "of the budget that goes to the newest rows"),
                           {0}};
const Policy policy_minikv = {.name = "minikv",
                              .meaning = "the newest rows and those with the most attention, half each",
                              .source = "arXiv:2411.18077",
                              .lacks = "its codec: give `--cache-dtype kivi2`; groups of 16, and 128 rows that wait "
                                       "instead of up to 64",
                              .keys = keys,
                              .not_lanes = "a share of each lane's rows is its newest",
                              .ask = {ASK_ALL, COL_SUM, COL_SUM, COL_PLAIN},
                              .keeps = true,
                              .select = minikv_select};
