/* cuda_runtime.h: the part of CUDA's runtime interface that ops/cuda uses, for the emulation: same names, same meaning;
 * numbers of enumerators need not be CUDA's. Streams run as late as they may, in an order drawn by simt_seed. */
#pragma once
#include "tests/simt/simt.h"

typedef enum {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInvalidConfiguration,
    cudaErrorInvalidResourceHandle,
    cudaErrorNotReady,
    cudaErrorNoDevice,
    cudaErrorStreamCaptureUnsupported,
    cudaErrorStreamCaptureUnjoined,
    cudaErrorLaunchOutOfResources,
    cudaErrorIllegalAddress
} cudaError_t;
typedef enum {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
} cudaMemcpyKind;
typedef enum {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
} cudaStreamCaptureMode;
typedef enum { cudaFuncAttributeMaxDynamicSharedMemorySize } cudaFuncAttribute;
typedef enum {
    cudaDevAttrMaxGridDimX,
    cudaDevAttrMaxGridDimY,
    cudaDevAttrMaxGridDimZ,
    cudaDevAttrMaxBlockDimX,
    cudaDevAttrMaxBlockDimY,
    cudaDevAttrMaxBlockDimZ,
    cudaDevAttrMaxRegistersPerBlock,
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrWarpSize,
    cudaDevAttrMaxSharedMemoryPerBlock,
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor,
    cudaDevAttrReservedSharedMemoryPerBlock,
    cudaDevAttrMaxRegistersPerMultiprocessor,
    cudaDevAttrMaxBlocksPerMultiprocessor,
    cudaDevAttrMaxThreadsPerBlock,
    cudaDevAttrMaxThreadsPerMultiProcessor,
    cudaDevAttrPciDeviceId,
    cudaDevAttrTccDriver,
    cudaDevAttrCooperativeLaunch,
    cudaDevAttrClockRate,
    cudaDevAttrMemoryClockRate,
    cudaDevAttrGlobalMemoryBusWidth,
    cudaDevAttrL2CacheSize,
    cudaDevAttrConcurrentManagedAccess,
    cudaDevAttrEccEnabled,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor
} cudaDeviceAttr;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };

typedef struct SimtEvent *cudaEvent_t;
typedef struct SimtGraph *cudaGraph_t;
typedef struct SimtGraphNode *cudaGraphNode_t;
typedef struct SimtGraph *cudaGraphExec_t;
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, maxThreadsPerBlock, warpSize;
};

const char *cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDevice(int *);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int);
cudaError_t cudaDeviceGetAttribute(int *, cudaDeviceAttr, int);
cudaError_t cudaDriverGetVersion(int *);
cudaError_t cudaRuntimeGetVersion(int *);
cudaError_t cudaDeviceSynchronize();
cudaError_t simt_func_attribute(const void *kernel, cudaFuncAttribute, int);
template <class T> cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute a, int v) {
    return simt_func_attribute((const void *)kernel, a, v);
}

cudaError_t simt_malloc(void **, size_t);
cudaError_t simt_malloc_host(void **, size_t);
template <class T> cudaError_t cudaMalloc(T **p, size_t n) { return simt_malloc((void **)p, n); }
cudaError_t simt_host_alloc(void **, size_t, unsigned flags);
/* Mapped memory has one address, as where addresses are unified. */
template <class T> cudaError_t cudaHostAlloc(T **p, size_t n, unsigned flags) {
    return simt_host_alloc((void **)p, n, flags);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t n) { return simt_malloc_host((void **)p, n); }
cudaError_t cudaFree(void *);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMemcpy(void *to, const void *from, size_t, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemset(void *, int, size_t);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t = nullptr);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned);
cudaError_t cudaEventCreate(cudaEvent_t *);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t *, size_t *);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);

/* Reports a call that may not be made while a stream is captured, if one is. */
bool simt_forbidden(const char *what);
/* From now on launches without a stream are those of the graph gone through again: nothing runs, and one that is not
 * the next of the captured ones, with the same sizes and arguments, is reported, as are those that are missing when the
 * next graph, or NULL, takes its place. */
void simt_retrace(cudaGraphExec_t);

/* Regions that place things by themselves say what they handed out, so that the space between is out of bounds. */
void simt_note_take(cudaStream_t, void *p, size_t bytes, const char *name);
void simt_note_close(cudaStream_t, void *p, size_t bytes); /* all of this is nobody's again */
/* Work of a library: runs in the stream's order; may touch what it says. */
void simt_enqueue(cudaStream_t, void (*run)(void *), void *arg, void (*drop)(void *));
/* The same, not before `can` says yes, which is asked while the work stands first in its stream: for what waits for
 * other processes. */
void simt_enqueue_when(cudaStream_t, bool (*can)(void *), void (*run)(void *), void *arg, void (*drop)(void *));
void simt_library_touches(const void *p, size_t bytes, bool write); /* inside `run` */
