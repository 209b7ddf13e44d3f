/* morphkv.c: next to the newest rows those older ones stay that the newest queries look at, where each query shares its
 * attention among the older rows alone. Query heads of a group ask as one, by the sum of their scores. Source: Ghadia
 * et al., "Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs", arXiv:2503.00979. */
#include "policy.h"

static void morphkv_select(Choice *c) {
    for (int h = 0; h < c->lanes; h++) memcpy(c->lane[h].score, c->lane[h].stat, (size_t)c->lane[h].n * sizeof(real));
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_ASKED_WINDOW("32"),
                           POLICY_SINKS("0"),
                           POLICY_EVERY("64", 0),
                           POLICY_KEY(peak, KEY_INT, "0", 0, 1,
                                      "1: the largest of the queries' attention instead of the sum"),
                           {0}};
const Policy policy_morphkv = {.name = "morphkv",
                               .meaning = "the older rows that the newest queries look at, again and again",
                               .source = "arXiv:2503.00979",
                               .keys = keys,
                               .ask = {.whom = ASK_WINDOW, .queries = COL_SUM, .older = true, .peaks = true},
                               .select = morphkv_select};
