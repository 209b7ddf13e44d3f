/* tova.c: the rows that the newest query looks at most, over all heads, stay: the same ones in every lane. Source: Oren
 * et al., "Transformers are Multi-State RNNs", arXiv:2401.06104. */
#include "policy.h"

static void tova_select(Choice *c) {
    for (int i = 0; i < c->lane[0].n; i++) {
        real sum = 0;
        for (int h = 0; h < c->lanes; h++) sum += c->lane[h].stat[i];
        for (int h = 0; h < c->lanes; h++) c->lane[h].score[i] = sum;
    }
}
static const Key keys[] = {POLICY_BUDGET,         POLICY_WINDOW("1"),  POLICY_SINKS("0"),
                           POLICY_EVERY("64", 0), POLICY_QUERIES("1"), {0}};
const Policy policy_tova = {.name = "tova",
                            .meaning = "the rows that the newest query looks at, one choice for all lanes",
                            .source = "arXiv:2401.06104",
                            .lacks = "evicts every 64 tokens instead of every token (`every`)",
                            .keys = keys,
                            .not_lanes = "all lanes keep the same rows",
                            .ask = {ASK_QUERIES, COL_SUM, COL_SUM, COL_PLAIN},
                            .select = tova_select};
