/* cudnn_so.h: the part of cuDNN's graph interface that sdpa.c uses, so that building needs no cuDNN header. The names
 * are ours, the values are cuDNN's, which stay the same within a major version. tests/simt/cudnn_header.cu compares
 * them with a cudnn.h if there is one. Source: cudnn_graph.h of 9.19 and 9.28. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 10000 major + 100 minor + patch: the first version that can plan for a described device */
enum { CUDNN_LEAST = 90800 };
enum { CUDNN_OK = 0, CUDNN_NOT_SUPPORTED = 3000 };
typedef void *CudnnDesc;
typedef enum {
    DESC_POINTWISE = 0,
    DESC_ENGINE = 2,
    DESC_CONFIG = 3,
    DESC_HEURISTIC = 4,
    DESC_PLAN = 5,
    DESC_DO_POINTWISE = 13,
    DESC_GRAPH = 15,
    DESC_PACK = 16,
    DESC_TENSOR = 17,
    DESC_MATMUL = 18,
    DESC_DO_MATMUL = 19,
    DESC_REDUCTION = 21,
    DESC_DO_REDUCTION = 22,
    DESC_DO_RESHAPE = 31,
    DESC_DEVICE = 38
} CudnnDescKind;
/* Types of attributes: what `set` and `get` point to. */
typedef enum {
    AS_HANDLE = 0,
    AS_DATA_TYPE = 1,
    AS_BOOL = 2,
    AS_INT64 = 3,
    AS_POINTER = 6,
    AS_HEURISTIC = 8,
    AS_NOTE = 11,
    AS_POINTWISE = 14,
    AS_DESC = 15,
    AS_REDUCTION = 18,
    AS_REORDERING = 20,
    AS_CHAR = 24
} CudnnAs;
typedef enum {
    POINTWISE_MODE = 0,
    POINTWISE_TYPE = 1,
    POINTWISE_AXIS = 9,
    HEURISTIC_MODE = 200,
    HEURISTIC_GRAPH = 201,
    HEURISTIC_RESULTS = 202,
    HEURISTIC_DEVICE = 204,
    CONFIG_ENGINE = 300,
    PLAN_HANDLE = 400,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    PLAN_DEVICE = 407,
    DO_POINTWISE_HOW = 750,
    DO_POINTWISE_X = 751,
    DO_POINTWISE_B = 752,
    DO_POINTWISE_Y = 753,
    DO_POINTWISE_T = 758,
    GRAPH_HANDLE = 800,
    GRAPH_OPS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_TYPE = 901,
    TENSOR_SIZES = 902,
    TENSOR_STRIDES = 903,
    TENSOR_ID = 906,
    TENSOR_VIRTUAL = 907,
    TENSOR_BY_VALUE = 908,
    TENSOR_REORDERING = 909,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    ENGINE_INDEX = 1301,
    ENGINE_NOTES = 1303,
    MATMUL_TYPE = 1500,
    DO_MATMUL_A = 1520,
    DO_MATMUL_B = 1521,
    DO_MATMUL_C = 1522,
    DO_MATMUL_HOW = 1523,
    REDUCTION_OP = 1600,
    REDUCTION_TYPE = 1601,
    DO_REDUCTION_X = 1610,
    DO_REDUCTION_Y = 1611,
    DO_REDUCTION_HOW = 1612,
    DO_RESHAPE_X = 2200,
    DO_RESHAPE_Y = 2201,
    DEVICE_JSON = 2702
} CudnnAttribute;
enum { TYPE_F32 = 0, TYPE_I32 = 4, TYPE_BF16 = 9, TYPE_BOOL = 11 };
enum {
    DO_ADD = 0,
    DO_MUL = 1,
    DO_DIV = 6,
    DO_SUB = 9,
    DO_EXP = 13,
    DO_LOG = 15,
    DO_IDENTITY = 21,
    DO_GREATER = 302,
    DO_NOT_LESS = 303,
    DO_INDEX = 501,
    DO_SELECT = 601
};
enum { REDUCE_SUM = 0, REDUCE_MAX = 3 };
enum { HEURISTIC_FALLBACK = 2, HEURISTIC_A = 3 };
enum { REORDERING_F16X16 = 2 };
enum { NOTE_UNORDERED = 4, NOTES = 16 }; /* NOTE_UNORDERED: results do not repeat to the bit */

/* The library's functions, named without the prefix "cudnn". Those that return int return CUDNN_OK or an error. */
typedef struct {
    size_t (*GetVersion)(void);
    const char *(*GetErrorString)(int);
    void (*GetLastErrorString)(char *, size_t);
    int (*Create)(void **handle);
    int (*Destroy)(void *handle);
    int (*SetStream)(void *handle, void *stream);
    int (*BackendCreateDescriptor)(int kind, CudnnDesc *);
    int (*BackendDestroyDescriptor)(CudnnDesc);
    int (*BackendFinalize)(CudnnDesc);
    int (*BackendSetAttribute)(CudnnDesc, int attribute, int as, int64_t n, const void *);
    int (*BackendGetAttribute)(CudnnDesc, int attribute, int as, int64_t room, int64_t *n, void *);
    int (*BackendExecute)(void *handle, CudnnDesc plan, CudnnDesc pack);
} Cudnn;
/* Open the library at the first call: libcudnn.so.9 from the loader's path, CUDNN_HOME/lib or lib64, CUDA_HOME/lib64,
 * or /usr/local/cuda/lib64. NULL: `why` says in one line what is missing. where: the file's name, a constant. The
 * emulation replaces this function (tests/simt/cudnn.cpp). */
const Cudnn *cudnn_open(const char **where, char why[200]);
/* "9.19.0" */
const char *cudnn_version(const Cudnn *, char out[24]);
#ifdef __cplusplus
}
#endif
