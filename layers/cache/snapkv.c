/* snapkv.c: where a prompt ends, the rows that its last queries look at stay, with their neighbours, next to the rows
 * of those queries. Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation",
 * arXiv:2404.14469. */
#include "policy.h"

static const Key keys[] = {POLICY_BUDGET,     POLICY_ASKED_WINDOW("32"),
                           POLICY_SINKS("0"), POLICY_EVERY("0", 0),
                           POLICY_POOL,       {0}};
const Policy policy_snapkv = {.name = "snapkv",
                              .meaning = "the rows that the last queries of the prompt look at",
                              .source = "arXiv:2404.14469",
                              .keys = keys,
                              .ask = {ASK_WINDOW, COL_SUM, COL_SUM, COL_PLAIN},
                              .select = policy_pool};
