/* kernel.h: shared code of all CUDA kernels: the device's handle, launch sizes, sums over a warp and over a block. */
#pragma once
#include "ops/cuda/cuda.h"
#include "ptx.h"

struct CudaLt; /* linear.cu: cuBLASLt and its cached descriptors */
struct Cuda {
    Queue stream;     /* the stream that work is added to */
    cudaStream_t own; /* the stream itself */
    CudaGraph *graph; /* the graph being captured or replayed; NULL: none */
    CudaLt *lt;
    char name[64];
    int processors;
    unsigned long waits; /* how often the host waited for all work it had asked for */
};
/* In graph.cu: what a captured pass does instead of using the stream. */
bool graph_upload(Cuda *, void *to, const void *from, size_t bytes); /* false: the caller must do it */
void graph_pause(Cuda *);                                            /* submit all work so far to the device */
void graph_resume(Cuda *);
/* For calls that are not allowed while a stream is captured: ends the capture, executes what was captured, and runs
 * the rest of this pass directly. The next pass is captured again. Does nothing if no capture is in progress. */
void graph_interrupt(Cuda *);
/* Count in *holds while the current graph waits for its capture, which needs the counted things. */
void graph_hold(Cuda *, int *holds);
bool lt_open(Cuda *, char why[200]);
void lt_close(Cuda *);
/* A runtime call that must succeed: on failure it prints one line and exits with status 1. */
void cuda_must(cudaError_t, const char *what);

enum { BLOCK = 256, WARPS = BLOCK / 32 };
/* Threads step over n things by the size of the whole grid, so one launch works for every n. */
#define EACH(i, n)                                                                                                   \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, n_ = (n), step_ = (size_t)gridDim.x * blockDim.x; \
         i < n_; i += step_)
static inline dim3 grid_for(const Cuda *c, size_t n) {
    size_t blocks = (n + BLOCK - 1) / BLOCK, most = (size_t)c->processors * 16;
    return dim3((unsigned)(blocks < most ? blocks : most));
}
/* One launch for n things; no launch for n = 0. */
#define LAUNCH_EACH(c, kernel, n, ...)                                                                      \
    do {                                                                                                    \
        if ((n) > 0) LAUNCH(kernel, grid_for(c, (size_t)(n)), dim3(BLOCK), 0, (c)->stream, n, __VA_ARGS__); \
    } while (0)

template <class T> DEVICE T warp_sum(T v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(FULL_WARP, v, d);
    return v;
}
DEVICE float warp_max(float v) {
    for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, d));
    return v;
}
/* Sum over a block of WARPS warps, returned to all threads. `part` (WARPS) is free again after the next barrier. */
template <class T> DEVICE T block_sum(T v, T *part) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < WARPS; w++) v += part[w];
    return v;
}
DEVICE float block_max(float v, float *part) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < WARPS; w++) v = fmaxf(v, part[w]);
    return v;
}
/* For tensors that are cut into pieces with one block each: the index of the tensor that the block's piece belongs to.
 * It is the last tensor that begins at or before the block: earlier ones with the same beginning are empty. */
template <class T> DEVICE int tensor_of(int tensors, const T *all) {
    int lo = 0;
    for (int hi = tensors; hi - lo > 1;) {
        int mid = (lo + hi) / 2;
        if (all[mid].first <= blockIdx.x)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}
/* cuda_value, after which *now is cleared: an argument that is not read stays the same in every run. */
template <class T> static const T *value_of(Cuda *c, T *now) {
    const T *at = static_cast<const T *>(cuda_value(c, now, sizeof *now));
    if (at) *now = T();
    return at;
}
/* An element in memory, of either type, as f32. */
DEVICE float number(float x) { return x; }
DEVICE float number(bf16 x) { return to_float(x); }
/* Load W elements of either type in accesses of at most 16 bytes; p must be aligned to them unless W is 1. store
 * rounds each to nearest. */
template <int W> DEVICE void fetch(float (&v)[W], const float *p) {
    if constexpr (W == 1)
        v[0] = *p;
    else {
        static_assert(W % 4 == 0, "whole accesses");
        UNROLL
        for (int i = 0; i < W; i += 4) {
            float4 q = load_vec<float4>(p + i);
            v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
        }
    }
}
DEVICE void halves(float *v, uint32_t both) {
    v[0] = to_float(bf16{(uint16_t)both}), v[1] = to_float(bf16{(uint16_t)(both >> 16)});
}
template <int W> DEVICE void fetch(float (&v)[W], const bf16 *p) {
    if constexpr (W == 1)
        v[0] = to_float(*p);
    else if constexpr (W == 4) {
        uint2 q = load_vec<uint2>(p);
        halves(v, q.x), halves(v + 2, q.y);
    } else {
        static_assert(W == 8, "an access");
        uint4 q = load_vec<uint4>(p);
        halves(v, q.x), halves(v + 2, q.y), halves(v + 4, q.z), halves(v + 6, q.w);
    }
}
template <int W> DEVICE void store(float *p, const float (&v)[W]) {
    if constexpr (W == 1)
        *p = v[0];
    else {
        UNROLL
        for (int i = 0; i < W; i += 4) store_vec(p + i, float4{v[i], v[i + 1], v[i + 2], v[i + 3]});
    }
}
template <int W> DEVICE void store(bf16 *p, const float (&v)[W]) {
    if constexpr (W == 1)
        *p = to_bf16(v[0]);
    else if constexpr (W == 4)
        store_vec(p, uint2{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])});
    else
        store_vec(p, uint4{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])});
}
/* Add v to a gradient; if it is to be overwritten, nothing is read. */
template <int W, class T> DEVICE void add_to(T *to, const float (&v)[W], bool overwrite) {
    float sum[W];
    UNROLL
    for (int k = 0; k < W; k++) sum[k] = 0;
    if (!overwrite) fetch<W>(sum, to);
    UNROLL
    for (int k = 0; k < W; k++) sum[k] += v[k];
    store<W>(to, sum);
}
DEVICE void add_to(const CudaRows &to, size_t i, float v) {
    if (to.is_bf16)
        add_to<1>((bf16 *)to.p + i, {v}, to.overwrite);
    else
        add_to<1>((float *)to.p + i, {v}, to.overwrite);
}
/* n elements of all of these can be moved 8 at a time (W = 8). */
static inline bool by_eight(size_t n, const void *a, const void *b = nullptr, const void *c = nullptr,
                            const void *d = nullptr, const void *e = nullptr, const void *f = nullptr) {
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e | (uintptr_t)f;
    return n % 8 == 0 && all % 16 == 0;
}
template <class T> static T *as(void *p) { return static_cast<T *>(p); }
template <class T> static const T *as(const void *p) { return static_cast<const T *>(p); }
/* 1 / sqrt(x) of a mean of squares: two operations that round to nearest, and one Newton step whose remainder an fma
 * keeps, so that about one rounding of error is left. In f64, as before, every lane of a warp spent some 80
 * instructions on it. */
DEVICE float inverse_root(float x) {
    float r = 1 / sqrtf(x), near = fmaf(0.5f * r, fmaf(-x * r, r, 1.0f), r);
    return r > 0 && x > 0 ? near : r; /* not for 0 or values that are not finite */
}
DEVICE float sigmoid1(float x) { return 1 / (1 + expf(-x)); }

/* rng_mix of ops/base.h, word for word: the noise is the same on every backend. */
DEVICE uint64_t finalise(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
DEVICE uint64_t mix(uint64_t key, uint64_t word) {
    return finalise(finalise(key + 0x9E3779B97F4A7C15u) + word + 0x9E3779B97F4A7C15u);
}
