/* lt_so.c: cuBLASLt's functions under their own names, loaded from the library at the first call. A program linked
 * with this file starts without the library, and prints one line when the device is asked for. The library stays open
 * until the process ends. */
#include "lt_so.h"
#include <cublasLt.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The major version must be the header's, which defines the layout of descriptors and algorithms. */
#define STRING_(x) #x
#define STRING(x)  STRING_(x)
#define LIBRARY    "libcublasLt.so." STRING(CUBLAS_VER_MAJOR)
/* After the loader's own paths: where the toolkit is installed. */
static const char *const places[] = {LIBRARY, "/usr/local/cuda/lib64/" LIBRARY};

#define CALLS(X)              \
    X(GetVersion)             \
    X(Create)                 \
    X(Destroy)                \
    X(MatmulDescCreate)       \
    X(MatmulDescDestroy)      \
    X(MatmulDescSetAttribute) \
    X(MatrixLayoutCreate)     \
    X(MatrixLayoutDestroy)    \
    X(MatmulPreferenceCreate) \
    X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(MatmulAlgoCheck) X(Matmul)

/* Written once, before the first call goes through; constant afterwards. */
static struct {
    pthread_once_t once;
    bool found;
    char where[400], why[200];
#define ENTRY(name) __typeof__(&cublasLt##name) name;
    CALLS(ENTRY)
} lt = {.once = PTHREAD_ONCE_INIT};

static void open_library(void) {
    void *so = NULL;
    for (size_t i = 0; !so && i < sizeof places / sizeof *places; i++) so = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        const char *said = dlerror();
        snprintf(lt.why, sizeof lt.why, "%s is not found; name its folder in LD_LIBRARY_PATH (%.80s)", LIBRARY,
                 said ? said : "");
        return;
    }
    struct link_map *map;
    if (dlinfo(so, RTLD_DI_LINKMAP, &map) == 0) snprintf(lt.where, sizeof lt.where, "%s", map->l_name);
#define FIND(name)                                                                       \
    *(void **)&lt.name = dlsym(so, "cublasLt" #name);                                    \
    if (!lt.name) {                                                                      \
        snprintf(lt.why, sizeof lt.why, "%.120s has no %s", lt.where, "cublasLt" #name); \
        return;                                                                          \
    }
    CALLS(FIND)
    lt.found = true;
}
bool lt_found(const char **where, char why[200]) {
    pthread_once(&lt.once, open_library);
    *where = lt.where;
    if (!lt.found) snprintf(why, 200, "%s", lt.why);
    return lt.found;
}

/* Callers of these functions must have called lt_found. */
#define CALL(name, params, ...) \
    cublasStatus_t cublasLt##name params { return lt.found ? lt.name(__VA_ARGS__) : CUBLAS_STATUS_NOT_INITIALIZED; }
size_t cublasLtGetVersion(void) { return lt.found ? lt.GetVersion() : 0; }
CALL(Create, (cublasLtHandle_t * h), h)
CALL(Destroy, (cublasLtHandle_t h), h)
CALL(MatmulDescCreate, (cublasLtMatmulDesc_t * d, cublasComputeType_t c, cudaDataType_t t), d, c, t)
CALL(MatmulDescDestroy, (cublasLtMatmulDesc_t d), d)
CALL(MatmulDescSetAttribute, (cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v, size_t n), d, a,
     v, n)
CALL(MatrixLayoutCreate, (cublasLtMatrixLayout_t * l, cudaDataType_t t, uint64_t rows, uint64_t cols, int64_t ld), l, t,
     rows, cols, ld)
CALL(MatrixLayoutDestroy, (cublasLtMatrixLayout_t l), l)
CALL(MatmulPreferenceCreate, (cublasLtMatmulPreference_t * p), p)
CALL(MatmulPreferenceDestroy, (cublasLtMatmulPreference_t p), p)
CALL(MatmulPreferenceSetAttribute,
     (cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void *v, size_t n), p, a, v, n)
CALL(MatmulAlgoGetHeuristic,
     (cublasLtHandle_t h, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t p, int most,
      cublasLtMatmulHeuristicResult_t r[], int *found),
     h, op, a, b, c, d, p, most, r, found)
CALL(MatmulAlgoCheck,
     (cublasLtHandle_t h, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
      cublasLtMatmulHeuristicResult_t *r),
     h, op, a, b, c, d, algo, r)
CALL(Matmul,
     (cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha, const void *A, cublasLtMatrixLayout_t a,
      const void *B, cublasLtMatrixLayout_t b, const void *beta, const void *C, cublasLtMatrixLayout_t c, void *D,
      cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo, void *space, size_t bytes, cudaStream_t s),
     h, op, alpha, A, a, B, b, beta, C, c, D, d, algo, space, bytes, s)
