/* nccl_so.h: the part of NCCL's interface that comm_nccl.c uses, so that no header of NCCL is needed. The names are
 * ours, the values and layouts NCCL's; tests/simt/nccl_header.cu compares them with an nccl.h if there is one. A
 * settings struct with an old version number is read with the fields of that version. Source: nccl.h 2.17 to 2.30. */
#pragma once
#include <limits.h>
#include <stddef.h>

typedef struct ncclComm *NcclComm;
typedef struct {
    char internal[128];
} NcclId;
enum { NCCL_SUCCESS, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9 };
enum { NCCL_SUM = 0 };
enum { NCCL_LEAST = 21700, NCCL_UNSET = INT_MIN };
typedef struct {
    size_t size;
    unsigned magic, version; /* NCCL_MAGIC, NCCL_LEAST */
    int blocking, cluster, least_blocks, most_blocks;
    const char *net;
} NcclConfig;
#define NCCL_MAGIC 0xcafebeefu
/* All but `text` and `last` return one of the values above, or another error's. */
typedef struct {
    int (*version)(int *);
    int (*id)(NcclId *);
    int (*init)(NcclComm *, int world, NcclId, int rank, NcclConfig *);
    int (*state)(NcclComm, int *);
    int (*finalize)(NcclComm);
    int (*destroy)(NcclComm);
    int (*abort)(NcclComm);
    const char *(*text)(int);
    const char *(*last)(NcclComm);
    int (*reduce)(const void *, void *, size_t, int type, int op, NcclComm, void *stream);
    int (*reduce_scatter)(const void *, void *, size_t part, int type, int op, NcclComm, void *stream);
    int (*gather)(const void *, void *, size_t part, int type, NcclComm, void *stream);
    int (*broadcast)(const void *, void *, size_t, int type, int root, NcclComm, void *stream);
} NcclTable;
