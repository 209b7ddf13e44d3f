/* kvzip.c: the rows stay that the model looks at while it repeats the context: where a prompt ends, the context is fed
 * a second time behind a request to repeat it, and a row counts as much as the most attention that any of these queries
 * gives it. Rows of all layers and lanes compete. The choice depends on no question. Source: Kim et al., "KVzip:
 * Query-Agnostic KV Cache Compression with Context Reconstruction", arXiv:2505.23416. */
#include "policy.h"

static void kvzip_select(Choice *c) {
    for (int h = 0; h < c->lanes; h++)
        for (int i = 0; i < c->lane[h].n; i++) c->lane[h].score[i] = c->lane[h].stat[i];
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_SINKS("4"),
                           POLICY_KEY(chunk, KEY_INT, "2048", 1, 1e6,
                                      "tokens of the context that are repeated at a time"),
                           {0}};
const Policy policy_kvzip = {.name = "kvzip",
                             .meaning = "the rows that the model looks at while it repeats the context",
                             .source = "arXiv:2505.23416",
                             .lacks = "attention is over all rows, not over a chunk's alone; no KVzip+; no scores of "
                                      "lanes for all contexts",
                             .keys = keys,
                             .not_layers = "one threshold divides the rows of all layers",
                             .not_lanes = "one threshold divides the rows of all lanes",
                             .ask = {ASK_REPLAY, COL_MAX, COL_MAX, COL_PLAIN},
                             .select = kvzip_select};
