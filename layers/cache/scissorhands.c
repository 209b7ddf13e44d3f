/* scissorhands.c: rows that often got more than their share of attention, 1 / rows seen, from the newest queries stay.
 * Source: Liu et al., "Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache Compression
 * at Test Time", arXiv:2305.17118. */
#include "policy.h"

static void scissorhands_select(Choice *c) {
    for (int h = 0; h < c->lanes; h++)
        for (int i = 0; i < c->lane[h].n; i++) c->lane[h].score[i] = c->lane[h].stat[i];
}
static const Key keys[] = {POLICY_BUDGET,          POLICY_WINDOW("10"),   POLICY_SINKS("0"),
                           POLICY_EVERY("256", 0), POLICY_QUERIES("400"), {0}};
const Policy policy_scissorhands = {
    .name = "scissorhands",
    .meaning = "the rows that most often got more than an even share of attention",
    .source = "arXiv:2305.17118",
    .lacks = "evicts every 256 tokens, not half of the rows of a full cache; one budget for all "
             "layers; of equal counts older rows stay",
    .keys = keys,
    .ask = {ASK_QUERIES, COL_COUNT, COL_SUM, COL_PLAIN},
    .select = scissorhands_select};
