/* colstat.h: what the op colstat computes of a sequence's rows in the cache. Policies of the cache ask for it
 * (layers/cache/policy.h); kernels read it, too. */
#pragma once
#include <stdbool.h>

typedef enum { COL_SUM, COL_MAX, COL_COUNT } ColReduce; /* COL_COUNT: over queries alone */
typedef enum { COL_PLAIN, COL_L1, COL_L2 } ColValue; /* norm of a row's value, which its statistic is multiplied by */
typedef struct {
    int seq, from, n; /* number of the sequence in the cache; position of the first query; queries, at most R */
    ColReduce queries, heads;
    ColValue value;
    /* Only rows older than the first query count: those at positions below `from`. The query heads of a lane ask as
     * one, by the sum of their scores, and each query's attention is shared among those rows alone. COL_COUNT is not
     * allowed then, and `heads` has no meaning. */
    bool older;
} ColStat;
