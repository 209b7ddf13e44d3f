/* colstat.h: what the op colstat computes of a sequence's rows in the cache. Policies of the cache ask for it
 * (layers/cache/policy.h); kernels read it, too. */
#pragma once

typedef enum { COL_SUM, COL_MAX, COL_COUNT } ColReduce; /* COL_COUNT: over queries alone */
typedef enum { COL_PLAIN, COL_L1, COL_L2 } ColValue; /* norm of a row's value, which its statistic is multiplied by */
typedef struct {
    int seq, from, n; /* number of the sequence in the cache; position of the first query; queries, at most R */
    ColReduce queries, heads;
    ColValue value;
} ColStat;
