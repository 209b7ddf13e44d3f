/* side.cu: a stream beside the computing one, and numbers as bf16 for the way between devices. */
#include "kernel.h"
#include <stdio.h>

enum { MARKS = 4 }; /* SIDE_MARKS of ops/side.h */
struct CudaSide {
    cudaStream_t stream;
    cudaEvent_t follow, mark[MARKS];
    char why[200];
};
static bool good(CudaSide *s, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return true;
    snprintf(s->why, sizeof s->why, "%s: %s", what, cudaGetErrorString(e));
    cudaGetLastError();
    return false;
}

extern "C" void cuda_side_stop(CudaSide *s) {
    if (!s) return;
    for (int i = 0; i < MARKS; i++)
        if (s->mark[i]) cudaEventDestroy(s->mark[i]);
    if (s->follow) cudaEventDestroy(s->follow);
    if (s->stream) cudaStreamDestroy(s->stream);
    delete s;
}
extern "C" CudaSide *cuda_side_start(int number, int *devices, char why[200]) {
    CudaSide *s = new CudaSide();
    bool ok = good(s, cudaGetDeviceCount(devices), "no device");
    if (ok && number >= *devices) {
        snprintf(s->why, sizeof s->why, "there is no device %d", number);
        ok = false;
    }
    ok = ok && good(s, cudaSetDevice(number), "taking the device") &&
         good(s, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "no stream") &&
         good(s, cudaEventCreateWithFlags(&s->follow, cudaEventDisableTiming), "no event");
    for (int i = 0; ok && i < MARKS; i++)
        ok = good(s, cudaEventCreateWithFlags(&s->mark[i], cudaEventDisableTiming), "no event");
    if (ok) return s;
    snprintf(why, 200, "%s", s->why);
    cuda_side_stop(s);
    return nullptr;
}
extern "C" void *cuda_side_stream(CudaSide *s) { return s->stream; }
extern "C" const char *cuda_side_why(const CudaSide *s) { return s->why; }
/* The emulation's devices are memory of the host that no true NCCL may be given: it brings its own. */
extern "C" const char *cuda_side_library() { return PTX_FORM("libnccl-emulated.so", "libnccl.so.2"); }

extern "C" void *cuda_side_take(size_t n) {
    char *p = nullptr;
    if (cudaMalloc(&p, n) == cudaSuccess) return p;
    cudaGetLastError();
    return nullptr;
}
extern "C" void cuda_side_give(void *p) { cudaFree(p); }
extern "C" bool cuda_side_follow(CudaSide *s, Cuda *c) {
    return good(s, cudaEventRecord(s->follow, c->stream), "marking what is computed") &&
           good(s, cudaStreamWaitEvent(s->stream, s->follow), "waiting for what is computed");
}
extern "C" bool cuda_side_upload(CudaSide *s, void *to, const void *from, size_t n) {
    return !n || good(s, cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, s->stream), "copying to the device");
}
extern "C" bool cuda_side_download(CudaSide *s, void *to, const void *from, size_t n) {
    return (!n ||
            good(s, cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToHost, s->stream), "copying from the device")) &&
           good(s, cudaStreamSynchronize(s->stream), "waiting for the device");
}
extern "C" bool cuda_side_mark(CudaSide *s, int slot) {
    return good(s, cudaEventRecord(s->mark[slot], s->stream), "marking what was sent");
}
extern "C" int cuda_side_done(CudaSide *s, int slot) {
    cudaError_t e = cudaEventQuery(s->mark[slot]);
    if (e == cudaErrorNotReady) {
        cudaGetLastError(); /* it is no failure of a later call */
        return 0;
    }
    return good(s, e, "sending") ? 1 : -1;
}

union Bits {
    float f;
    uint32_t u;
};
__global__ void halve(size_t n, uint16_t *to, const float *from) {
    EACH(i, n) {
        Bits b;
        b.f = from[i];
        uint32_t u = b.u;
        bool nan = (u & 0x7FFFFFFF) > 0x7F800000;
        to[i] = (uint16_t)(nan ? u >> 16 | 0x40 : (u + 0x7FFF + (u >> 16 & 1)) >> 16);
    }
}
__global__ void unhalve(size_t n, float *to, const uint16_t *from, bool add) {
    EACH(i, n) {
        Bits b;
        b.u = (uint32_t)from[i] << 16;
        to[i] = add ? b.f + to[i] : b.f;
    }
}
extern "C" void cuda_halve(Cuda *c, size_t n, uint16_t *to, const float *from) { LAUNCH_EACH(c, halve, n, to, from); }
extern "C" void cuda_unhalve(Cuda *c, size_t n, float *to, const uint16_t *from, bool add) {
    LAUNCH_EACH(c, unhalve, n, to, from, add);
}
