/* h2o.c: heavy hitters: the rows that received the most attention from all queries so far stay, next to the newest
 * ones. A query head of a group adds to the lane that it reads. Source: Zhang et al., "H2O: Heavy-Hitter Oracle for
 * Efficient Generative Inference of Large Language Models", arXiv:2306.14048. */
#include "policy.h"

static const Key keys[] = {POLICY_BUDGET,
                           POLICY_WINDOW("16"),
                           POLICY_SINKS("0"),
                           POLICY_KEY(every, KEY_INT, "64", 0, 4096,
                                      "tokens between two evictions; 0: one, where the prompt ends"),
                           {0}};
const Policy policy_h2o = {.name = "h2o",
                           .meaning = "the rows with the most attention from all queries",
                           .source = "arXiv:2306.14048",
                           .lacks = "evicts every 64 tokens instead of every token, in the prompt too (`every`)",
                           .keys = keys,
                           .ask = {ASK_ALL, COL_SUM, COL_SUM, COL_PLAIN},
                           .keeps = true,
                           .select = policy_sums};
