/* comm_stream.cu: a stream next to the computing one, and conversion of values to bf16 and back for the transport
 * between devices. */
#include "kernel.h"
#include <stdio.h>

enum { MARKS = 4 }; /* COMM_STREAM_MARKS of ops/comm_stream.h */
struct CudaCommStream {
    cudaStream_t stream;
    cudaEvent_t follow, mark[MARKS];
    char why[200];
};
static bool good(CudaCommStream *s, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return true;
    snprintf(s->why, sizeof s->why, "%s: %s", what, cudaGetErrorString(e));
    cudaGetLastError();
    return false;
}

extern "C" void cuda_comm_stream_stop(CudaCommStream *s) {
    if (!s) return;
    for (int i = 0; i < MARKS; i++)
        if (s->mark[i]) cudaEventDestroy(s->mark[i]);
    if (s->follow) cudaEventDestroy(s->follow);
    if (s->stream) cudaStreamDestroy(s->stream);
    delete s;
}
extern "C" CudaCommStream *cuda_comm_stream_start(int number, int *devices, char why[200]) {
    CudaCommStream *s = new CudaCommStream();
    bool ok = good(s, cudaGetDeviceCount(devices), "no device");
    if (number < 0) ok = ok && good(s, cudaGetDevice(&number), "no device");
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
    cuda_comm_stream_stop(s);
    return nullptr;
}
extern "C" void *cuda_comm_stream_stream(CudaCommStream *s) { return s->stream; }
extern "C" const char *cuda_comm_stream_why(const CudaCommStream *s) { return s->why; }
/* The emulation's devices are host memory, which a real NCCL cannot use: it has its own library. */
extern "C" const char *cuda_comm_stream_library() { return PTX_FORM("libnccl-emulated.so", "libnccl.so.2"); }

extern "C" void *cuda_comm_stream_take(size_t n) {
    char *p = nullptr;
    if (cudaMalloc(&p, n) == cudaSuccess) return p;
    cudaGetLastError();
    return nullptr;
}
extern "C" void cuda_comm_stream_give(void *p) { cudaFree(p); }
extern "C" bool cuda_comm_stream_follow(CudaCommStream *s, Cuda *c) {
    return good(s, cudaEventRecord(s->follow, c->stream), "marking what is computed") &&
           good(s, cudaStreamWaitEvent(s->stream, s->follow), "waiting for what is computed");
}
extern "C" bool cuda_comm_stream_upload(CudaCommStream *s, void *to, const void *from, size_t n) {
    return !n || good(s, cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, s->stream), "copying to the device");
}
extern "C" bool cuda_comm_stream_download(CudaCommStream *s, void *to, const void *from, size_t n) {
    return (!n ||
            good(s, cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToHost, s->stream), "copying from the device")) &&
           good(s, cudaStreamSynchronize(s->stream), "waiting for the device");
}
extern "C" bool cuda_comm_stream_mark(CudaCommStream *s, int slot) {
    return good(s, cudaEventRecord(s->mark[slot], s->stream), "marking what was sent");
}
extern "C" int cuda_comm_stream_done(CudaCommStream *s, int slot) {
    cudaError_t e = cudaEventQuery(s->mark[slot]);
    if (e == cudaErrorNotReady) {
        cudaGetLastError(); /* so that no later call reports it */
        return 0;
    }
    return good(s, e, "sending") ? 1 : -1;
}
extern "C" bool cuda_comm_stream_lead(CudaCommStream *s, Cuda *c, int slot) {
    return good(s, cudaStreamWaitEvent(c->stream, s->mark[slot]), "waiting for what is copied");
}

union Bits {
    float f;
    uint32_t u;
};
__global__ void cast_to_bf16(size_t n, uint16_t *to, const float *from) {
    EACH(i, n) {
        Bits b;
        b.f = from[i];
        uint32_t u = b.u;
        bool nan = (u & 0x7FFFFFFF) > 0x7F800000;
        to[i] = (uint16_t)(nan ? u >> 16 | 0x40 : (u + 0x7FFF + (u >> 16 & 1)) >> 16);
    }
}
__global__ void cast_from_bf16(size_t n, float *to, const uint16_t *from, bool add) {
    EACH(i, n) {
        Bits b;
        b.u = (uint32_t)from[i] << 16;
        to[i] = add ? b.f + to[i] : b.f;
    }
}
extern "C" void cuda_cast_to_bf16(Cuda *c, size_t n, uint16_t *to, const float *from) {
    LAUNCH_EACH(c, cast_to_bf16, n, to, from);
}
extern "C" void cuda_cast_from_bf16(Cuda *c, size_t n, float *to, const uint16_t *from, bool add) {
    LAUNCH_EACH(c, cast_from_bf16, n, to, from, add);
}
