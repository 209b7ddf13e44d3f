/* nacl.c: of the budget beyond sinks and window one part goes to the rows that the last queries look at, the other to
 * rows that are drawn without replacement, with chances that are the softmax of the same sums (a Gumbel variable is
 * added to each). Source: Chen et al., "NACL: A General and Effective KV Cache Eviction Framework for LLMs at Inference
 * Time", arXiv:2408.03675. */
#include "policy.h"

static void nacl_select(Choice *c) {
    for (int h = 0; h < c->lanes; h++) {
        PolicyLane *l = &c->lane[h];
        const uint64_t key = rng_mix(rng_mix((uint64_t)c->p->seed, (uint64_t)c->slot), (uint64_t)h);
        const int budget = l->budget;
        int fixed = 0;
        for (int i = 0; i < l->n; i++) l->score[i] = l->stat[i], fixed += l->stays[i];
        l->budget = fixed + (int)((1 - c->p->share) * imax(0, budget - fixed) + 1e-9);
        policy_keep(l);
        l->budget = budget;
        for (int i = 0; i < l->n; i++)
            l->score[i] = (real)((double)l->stat[i] - log(-log(rng_uniform(key, (uint64_t)l->pos[i]))));
    }
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_WINDOW("16"),
                           POLICY_SINKS("4"),
                           POLICY_EVERY("0", 0),
                           POLICY_QUERIES("64"),
                           POLICY_SHARE("0.3", 1, "of the budget that goes to rows which are drawn"),
                           POLICY_KEY(seed, KEY_INT, "1", 0, 1e9, "of the draw"),
                           {0}};
const Policy policy_nacl = {.name = "nacl",
                            .meaning = "rows that the last queries look at, and others drawn by the same sums",
                            .source = "arXiv:2408.03675",
                            .lacks = "proxy tokens are the newest queries, not a share of the prompt",
                            .keys = keys,
                            .not_lanes = "what it draws depends on each lane's budget",
                            .ask = {ASK_QUERIES, COL_SUM, COL_SUM, COL_PLAIN},
                            .select = nacl_select};
