/* rocketkv.c: the first stage of RocketKV: as snapkv with wide pooling by the maximum, down to more rows than the
 * budget: of n rows and a budget of n/c it keeps n / c^a, a = min(0.2 + 0.06 log2 c, 0.8). The second stage reads as
 * many as the budget of these in each step: compose with hybrid.c. Source: Behnam et al.,
 * "RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV Cache Compression", arXiv:2502.14051. */
#include "policy.h"

static int rocketkv_rows(const PolicyCfg *p, int n, int slot, int slots) {
    (void)slot, (void)slots;
    const int least = policy_rows(p, n);
    const double ratio = (double)n / least, a = fmin(0.2 + 0.06 * log2(ratio), 0.8);
    return imax(least, (int)(n / pow(ratio, a) + 1e-9));
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_ASKED_WINDOW("32"),
                           POLICY_SINKS("0"),
                           POLICY_EVERY("0", 0),
                           POLICY_KEY(pool, KEY_INT, "63", 1, 1023,
                                      "neighbouring rows whose largest attention counts, odd"),
                           POLICY_KEY(peak, KEY_INT, "1", 0, 1, "0: their mean instead"),
                           {0}};
const Policy policy_rocketkv = {.name = "rocketkv",
                                .meaning = "the first stage: as snapkv, more rows than the budget; second: hybrid",
                                .source = "arXiv:2502.14051",
                                .keys = keys,
                                .not_layers = "it has a rule of its own for how many rows stay",
                                .ask = {ASK_WINDOW, COL_SUM, COL_SUM, COL_PLAIN},
                                .select = policy_pool,
                                .rows = rocketkv_rows};
