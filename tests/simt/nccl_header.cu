/* nccl_header.cu: train/comm/nccl_so.h says the same as the NCCL that is installed; compiled alone, where there is an
 * nccl.h. */
#include <cstddef>
#include <nccl.h>
#include "train/comm/nccl_so.h"

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId), "id");
#define EQUAL(ours, theirs) static_assert((long)(ours) == (long)(theirs), #theirs)
EQUAL(NCCL_SUCCESS, ncclSuccess);
EQUAL(NCCL_REMOTE_ERROR, ncclRemoteError);
EQUAL(NCCL_IN_PROGRESS, ncclInProgress);
EQUAL(NCCL_F32, ncclFloat32);
EQUAL(NCCL_F64, ncclFloat64);
EQUAL(NCCL_BF16, ncclBfloat16);
EQUAL(NCCL_SUM, ncclSum);
EQUAL(NCCL_LEAST, NCCL_VERSION(2, 17, 0));
EQUAL(NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
constexpr ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
EQUAL(NCCL_MAGIC, fresh.magic);
#define SAME(ours, theirs)                                                                    \
    static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs) &&             \
                      sizeof(((NcclConfig *)0)->ours) == sizeof(((ncclConfig_t *)0)->theirs), \
                  #theirs)
SAME(size, size);
SAME(magic, magic);
SAME(version, version);
SAME(blocking, blocking);
SAME(cluster, cgaClusterSize);
SAME(least_blocks, minCTAs);
SAME(most_blocks, maxCTAs);
SAME(net, netName);

/* The functions, by what they take: enumerations go as int, streams as pointers. */
template <class R, class... A> constexpr int arguments(R (*)(A...)) { return (int)sizeof...(A); }
#define TAKES(f, n) static_assert(arguments(f) == n, #f)
TAKES(ncclGetVersion, 1);
TAKES(ncclGetUniqueId, 1);
TAKES(ncclCommInitRankConfig, 5);
TAKES(ncclCommGetAsyncError, 2);
TAKES(ncclAllReduce, 7);
TAKES(ncclReduceScatter, 7);
TAKES(ncclAllGather, 6);
TAKES(ncclBroadcast, 7);
