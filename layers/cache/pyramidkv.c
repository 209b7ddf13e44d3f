/* pyramidkv.c: budgets that fall linearly from the first slot to the last, around the same mean. Beyond the
 * window the last has 1/beta of the mean; budgets are even where that is less than the window
 * or the sinks. Source: Cai et al.,
 * "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", arXiv:2406.02069. */
#include "policy.h"

static int pyramidkv_rows(const PolicyCfg *p, int n, int slot, int slots) {
    const int mean = policy_rows(p, n) - p->window;
    int least = (int)(mean / p->slope), most = 2 * mean - least;
    if (most > n - p->window) most = n - p->window, least = 2 * mean - most;
    if (slots < 2 || least < imax(p->window, p->sinks)) return mean + p->window;
    return most - (int)((long)slot * (most - least) / (slots - 1)) + p->window;
}
static const Key keys[] = {POLICY_BUDGET,     POLICY_ASKED_WINDOW("32"),
                           POLICY_SINKS("0"), POLICY_EVERY("0", 0),
                           POLICY_POOL,       {0}};
static const Key own[] = {{"share", KEY_FLOAT, offsetof(PolicyCfg, slope), "20", 1, 1e6,
                           "mean budget / the last layer's, both beyond the window", 0, 0},
                          {0}};
const Policy policy_pyramidkv = {.name = "pyramidkv",
                                 .meaning = "budgets fall from the first layer to the last, alone with snapkv's scores",
                                 .source = "arXiv:2406.02069",
                                 .role = POLICY_LAYERS,
                                 .keys = keys,
                                 .own = own,
                                 .ask = {ASK_WINDOW, COL_SUM, COL_SUM, COL_PLAIN},
                                 .select = policy_pool,
                                 .rows = pyramidkv_rows};
