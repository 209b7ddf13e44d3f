/* device.cu: opens a device's handle; its memory, properties, clock and waiting. */
#include "kernel.h"
#include "ops/cuda/host/lt_so.h"
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cuda_must(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "kvsmith: device cuda: %s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static void must_end(cudaStream_t s, const char *what) {
    cudaError_t e = cudaGetLastError(), done = cudaStreamSynchronize(s);
    if (e == cudaSuccess) e = done;
    cuda_must(e, what);
}
void launch_check(cudaStream_t s, const char *kernel, dim3 grid, dim3 block, size_t smem) {
    char what[220];
    snprintf(what, sizeof what, "kernel %.100s, grid (%u,%u,%u), block (%u,%u,%u), %zu bytes of shared memory", kernel,
             grid.x, grid.y, grid.z, block.x, block.y, block.z, smem);
    must_end(s, what);
}
extern "C" void cuda_check(Cuda *c, bool on) { c->stream.check = on; }
extern "C" bool cuda_checks(const Cuda *c) { return c->stream.check; }
extern "C" void cuda_checked(Cuda *c, const char *what) {
    if (c->stream.check) must_end(c->own, what);
}

/* Versions are 1000 major + 10 minor. The runtime is part of the program; the driver is the machine's. */
static bool driver_serves(char why[200]) {
    int has = 0, needs = 0;
    if (cudaDriverGetVersion(&has) != cudaSuccess) has = 0;
    if (cudaRuntimeGetVersion(&needs) != cudaSuccess) needs = 0;
    if (has == 0)
        snprintf(why, 200, "no NVIDIA driver is installed (libcuda.so.1 is not found)");
    else if (has / 1000 < needs / 1000)
        snprintf(why, 200, "the driver serves CUDA %d.%d; expected %d.%d or later: install a newer driver", has / 1000,
                 has % 1000 / 10, needs / 1000, needs % 1000 / 10);
    else
        return true;
    return false;
}
extern "C" int cuda_count(char why[200]) {
    int n = 0;
    cudaDeviceProp p;
    const char *where = "";
    if (!driver_serves(why)) return 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) e = cudaGetDeviceProperties(&p, 0);
    if (e != cudaSuccess || n <= 0) {
        snprintf(why, 200, "%s", e != cudaSuccess ? cudaGetErrorString(e) : "no device");
        cudaGetLastError();
        return 0;
    }
    why[0] = 0;
    if (!strcmp(p.name, "emulated device")) return 0; /* tests choose it by name */
    if (p.major < 8) {
        snprintf(why, 200, "%.100s is of compute capability %d.%d; expected 8.0 or later", p.name, p.major, p.minor);
        return 0;
    }
    return lt_found(&where, why) ? n : 0;
}
extern "C" Cuda *cuda_start(int number, char why[200]) {
    int n = 0;
    cudaDeviceProp p;
    if (!driver_serves(why)) return nullptr;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0 && number >= n) {
        snprintf(why, 200, "there is no device %d: expected 0 to %d", number, n - 1);
        return nullptr;
    }
    if (e == cudaSuccess && n > 0) e = cudaSetDevice(number);
    if (e == cudaSuccess && n > 0) e = cudaGetDeviceProperties(&p, number);
    if (e != cudaSuccess || n <= 0) {
        snprintf(why, 200, "%s", e != cudaSuccess ? cudaGetErrorString(e) : "no device");
        return nullptr;
    }
    if (p.major < 8) {
        snprintf(why, 200, "%.100s is of compute capability %d.%d; expected 8.0 or later", p.name, p.major, p.minor);
        return nullptr;
    }
    Cuda *c = new Cuda();
    snprintf(c->name, sizeof c->name, "%.63s", p.name);
    c->processors = p.multiProcessorCount;
    e = cudaStreamCreateWithFlags(&c->own, cudaStreamNonBlocking);
    c->stream.stream = c->own;
    if (e == cudaSuccess && lt_open(c, why)) return c;
    if (e != cudaSuccess)
        snprintf(why, 200, "no stream: %s", cudaGetErrorString(e));
    else
        cudaStreamDestroy(c->own);
    delete c;
    return nullptr;
}
extern "C" void cuda_stop(Cuda *c) {
    if (!c) return;
    cuda_sync(c);
    lt_close(c);
    cudaStreamDestroy(c->own);
    delete c;
}
extern "C" const char *cuda_name(const Cuda *c) { return c->name; }
extern "C" void *cuda_stream(Cuda *c) { return c->own; }
extern "C" bool cuda_asks(const Cuda *c) { return c->stream != nullptr; }

/* ---- the device's properties ------------------------------------------------------------------------------------ */
static long long ask(cudaDeviceAttr a) {
    int v = -1, number = 0;
    if (cudaGetDevice(&number) != cudaSuccess || cudaDeviceGetAttribute(&v, a, number) != cudaSuccess)
        cudaGetLastError();
    return v;
}
extern "C" void cuda_facts(Cuda *c, CudaSee *see, void *ctx) {
    int driver = 0, runtime = 0;
    size_t free = 0, total = 0;
    const char *where = "";
    char why[200];
    cuda_must(cudaDriverGetVersion(&driver), "asking the driver");
    cuda_must(cudaRuntimeGetVersion(&runtime), "asking the runtime");
    cuda_must(cudaMemGetInfo(&free, &total), "asking for memory");
    lt_found(&where, why);
    see(ctx, "deviceName", -1, c->name);
    see(ctx, "cublasLtFile", -1, where);
    struct {
        const char *name;
        cudaDeviceAttr of;
    } const facts[] = {{"maxGridSize.0", cudaDevAttrMaxGridDimX},
                       {"maxGridSize.1", cudaDevAttrMaxGridDimY},
                       {"maxGridSize.2", cudaDevAttrMaxGridDimZ},
                       {"maxBlockSize.0", cudaDevAttrMaxBlockDimX},
                       {"maxBlockSize.1", cudaDevAttrMaxBlockDimY},
                       {"maxBlockSize.2", cudaDevAttrMaxBlockDimZ},
                       {"regsPerBlock", cudaDevAttrMaxRegistersPerBlock},
                       {"multiProcessorCount", cudaDevAttrMultiProcessorCount},
                       {"warpSize", cudaDevAttrWarpSize},
                       {"maxSharedMemoryPerBlock", cudaDevAttrMaxSharedMemoryPerBlock},
                       {"maxSharedMemoryPerBlockOptin", cudaDevAttrMaxSharedMemoryPerBlockOptin},
                       {"maxSharedMemoryPerSM", cudaDevAttrMaxSharedMemoryPerMultiprocessor},
                       {"reservedSharedMemoryPerBlock", cudaDevAttrReservedSharedMemoryPerBlock},
                       {"maxRegistersPerSM", cudaDevAttrMaxRegistersPerMultiprocessor},
                       {"maxCtasPerSM", cudaDevAttrMaxBlocksPerMultiprocessor},
                       {"maxThreadsPerBlock", cudaDevAttrMaxThreadsPerBlock},
                       {"maxThreadsPerSM", cudaDevAttrMaxThreadsPerMultiProcessor},
                       {"pciDeviceId", cudaDevAttrPciDeviceId},
                       {"isTccDriver", cudaDevAttrTccDriver},
                       {"supportCoopLaunch", cudaDevAttrCooperativeLaunch},
                       {"smClockRateKHz", cudaDevAttrClockRate},
                       {"memClockRateKHz", cudaDevAttrMemoryClockRate},
                       {"memBusWidth", cudaDevAttrGlobalMemoryBusWidth},
                       {"l2CacheSize", cudaDevAttrL2CacheSize},
                       {"concurrentManagedAccess", cudaDevAttrConcurrentManagedAccess},
                       {"eccEnabled", cudaDevAttrEccEnabled}};
    int number = 0;
    cuda_must(cudaGetDevice(&number), "asking for its number");
    see(ctx, "cudaDeviceId", number, nullptr);
    see(ctx, "deviceVer", 100 * ask(cudaDevAttrComputeCapabilityMajor) + 10 * ask(cudaDevAttrComputeCapabilityMinor),
        nullptr);
    see(ctx, "driverVer", driver, nullptr);
    see(ctx, "runtimeVer", runtime, nullptr);
    see(ctx, "cublasLtVer", (long long)cublasLtGetVersion(), nullptr);
    for (auto &f : facts) see(ctx, f.name, ask(f.of), nullptr);
    see(ctx, "totalGlobalMem", (long long)total, nullptr);
    see(ctx, "freeGlobalMem", (long long)free, nullptr);
}

/* ---- the device's clock ---- */
extern "C" double cuda_seconds(Cuda *c, void (*work)(void *), void *ctx) {
    cudaEvent_t from, to;
    float ms = 0;
    cuda_must(cudaEventCreate(&from), "an event");
    cuda_must(cudaEventCreate(&to), "an event");
    cuda_must(cudaEventRecord(from, c->stream), "an event");
    work(ctx);
    cuda_must(cudaEventRecord(to, c->stream), "an event");
    cuda_sync(c);
    cuda_must(cudaEventElapsedTime(&ms, from, to), "reading the device's clock");
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return (double)ms * 1e-3;
}

extern "C" void *cuda_take(Cuda *, size_t bytes, bool mapped) {
    char *p = nullptr;
    const unsigned how = cudaHostAllocMapped | cudaHostAllocPortable;
    cudaError_t e = mapped ? cudaHostAlloc(&p, bytes, how) : cudaMalloc(&p, bytes);
    if (e == cudaSuccess) return p;
    /* running out of memory is handled by the caller and must not stay as the device's error state */
    cudaGetLastError();
    return nullptr;
}
extern "C" void cuda_give(Cuda *c, void *p) {
    cuda_sync(c);
    cuda_must(cudaFree(p), "giving memory back");
}
extern "C" void cuda_give_mapped(Cuda *c, void *p) {
    cuda_sync(c);
    cuda_must(cudaFreeHost(p), "giving memory back");
}
extern "C" void cuda_fill(Cuda *c, void *p, int byte, size_t n) {
    if (c->stream) cuda_must(cudaMemsetAsync(p, byte, n, c->stream), "filling memory");
    cuda_checked(c, "filling memory");
}
extern "C" void cuda_poison(Cuda *c, void *p, size_t n) {
    /* The emulation refuses writes to memory that was not handed out, and poisons memory that is handed out by
     * itself. */
    PTX_FORM((void)c; (void)p; (void)n, cuda_fill(c, p, 0xFF, n));
}
extern "C" void cuda_copy(Cuda *c, void *to, const void *from, size_t n) {
    if (n && c->stream) cuda_must(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, c->stream), "copying");
    cuda_checked(c, "copying");
}
extern "C" void cuda_upload(Cuda *c, void *to, const void *from, size_t n) {
    if (n && !graph_upload(c, to, from, n))
        cuda_must(cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, c->stream), "copying to the device");
    cuda_checked(c, "copying to the device");
}
extern "C" void cuda_download(Cuda *c, void *to, const void *from, size_t n) {
    graph_pause(c);
    if (n) cuda_must(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToHost, c->own), "copying from the device");
    c->waits++;
    cuda_must(cudaStreamSynchronize(c->own), "waiting for the device");
    cuda_must(cudaGetLastError(), "launching a kernel");
    graph_resume(c);
}
extern "C" void cuda_sync(Cuda *c) {
    graph_pause(c);
    c->waits++;
    cuda_must(cudaStreamSynchronize(c->own), "waiting for the device");
    cuda_must(cudaGetLastError(), "launching a kernel");
    graph_resume(c);
}
extern "C" unsigned long cuda_waits(const Cuda *c) { return c->waits; }
extern "C" void cuda_note(Cuda *c, void *p, size_t n, const char *name) {
    if (c->stream) note_take(c->stream, p, n, name);
}
extern "C" void cuda_unnote(Cuda *c, void *p, size_t n) {
    if (c->stream) note_close(c->stream, p, n);
}
