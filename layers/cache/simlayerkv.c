/* simlayerkv.c: a layer is lazy if the last queries give more than a threshold of their attention to the first and the
 * newest rows. A lazy layer keeps those rows alone, another keeps all. Source: Zhang et al., "SimLayerKV: A Simple
 * Framework for Layer-Level KV Cache Reduction", arXiv:2410.13846. */
#include "policy.h"

static void simlayerkv_select(Choice *c) {
    double near = 0;
    for (int h = 0; h < c->lanes; h++)
        for (int i = 0; i < c->lane[h].n; i++) near += c->lane[h].stays[i] ? (double)c->lane[h].stat[i] : 0;
    const bool lazy = near > c->p->share * c->heads * c->queries;
    for (int h = 0; h < c->lanes; h++) c->lane[h].budget = lazy ? 0 : c->lane[h].n;
}
static int simlayerkv_rows(const PolicyCfg *p, int n, int slot, int slots) {
    return (void)p, (void)slot, (void)slots, n;
}
static const Key keys[] = {POLICY_WINDOW("1024"),
                           POLICY_SINKS("4"),
                           POLICY_EVERY("0", 0),
                           POLICY_QUERIES("32"),
                           POLICY_SHARE("0.9", 1.5,
                                        "of the attention that the first and newest rows of a lazy layer exceed"),
                           {0}};
const Policy policy_simlayerkv = {.name = "simlayerkv",
                                  .meaning = "the first and newest rows, in layers that look at little else",
                                  .source = "arXiv:2410.13846",
                                  .lacks = "its 4-bit rows",
                                  .keys = keys,
                                  .not_layers = "it keeps or evicts for a whole layer",
                                  .not_lanes = "it keeps or evicts for a whole layer",
                                  .ask = {ASK_QUERIES, COL_SUM, COL_SUM, COL_PLAIN},
                                  .select = simlayerkv_select,
                                  .rows = simlayerkv_rows,
                                  .varies = true};
