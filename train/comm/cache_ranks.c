#include "cache_ranks.h"

static bool cache_ranks_gather(void *ctx, const char *name, real *buf, size_t count, Err *e) {
    return comm_do(ctx, (CommCall){.kind = COMM_GATHER, .name = name, .buf = buf, .count = count, .dtype = REAL}, e);
}
KvRanks cache_ranks(Comm *c, bool prompts) {
    return (KvRanks){.rank = c->rank, .world = c->world, .prompts = prompts, .gather = cache_ranks_gather, .ctx = c};
}
