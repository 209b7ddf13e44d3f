/* cache_ranks.h: ranks of a Comm as those that divide the rows of a cache (layers/cache/row_ranks.h). The commands
 * `generate` and `logits` make one where --cache-ranks is given; tests make one of ranks that are threads. */
#pragma once
#include "layers/cache/row_ranks.h"
#include "comm.h"

/* The Comm stays open as long as the cache. */
KvRanks cache_ranks(Comm *, bool prompts);
