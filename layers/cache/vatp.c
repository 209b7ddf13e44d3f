/* vatp.c: as h2o, each row's attention times the L1 norm of its value. Source: Guo et al., "Attention Score is not All
 * You Need for Token Importance Indicator in KV Cache Reduction: Value Also Matters", arXiv:2406.12335. */
#include "policy.h"

static const Key keys[] = {POLICY_BUDGET,
                           POLICY_WINDOW("16"),
                           POLICY_SINKS("20"),
                           POLICY_KEY(every, KEY_INT, "64", 0, 4096,
                                      "tokens between two evictions; 0: one, where the prompt ends"),
                           {0}};
const Policy policy_vatp = {.name = "vatp",
                            .meaning = "as h2o, times the L1 norm of each row's value",
                            .source = "arXiv:2406.12335",
                            .lacks = "as h2o; not the variant on Scissorhands, nor latents (mla)",
                            .keys = keys,
                            .ask = {ASK_ALL, COL_SUM, COL_SUM, COL_L1},
                            .keeps = true,
                            .select = policy_sums};
