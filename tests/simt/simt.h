/* simt.h: CUDA's language on a CPU: what a kernel (.cu) finds when g++ or clang++ compiles it instead of nvcc.
 *
 * The names are CUDA's own, so that the source is the same for both. Every thread of a block is a fibre; blocks run one
 * after the other. Kernel files are compiled with -fsanitize=thread, whose calls (__tsan_read4 and so on) are
 * answered by shadow.cpp, so that each load and store is seen without a word in the source. What is emulated, what is
 * not and how kernels are written: README.md beside this file. */
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

/* ---- where a thread is ---------------------------------------------------------------------------------------------
 * The answer is the same throughout a thread's life, so that compilers may keep the pointer. */
struct SimtHere {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
__attribute__((const)) const SimtHere *simt_here();
#define threadIdx (simt_here()->thread)
#define blockIdx  (simt_here()->block)
#define blockDim  (simt_here()->block_dim)
#define gridDim   (simt_here()->grid_dim)
constexpr int warpSize = 32;

/* ---- a place in the source: two threads that wait together must wait at the same one -------------------------------
 */
#define SIMT_AT     const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIMT_AT_DEF const char *file, int line

void __syncthreads(SIMT_AT);
void __syncwarp(unsigned mask = 0xFFFFFFFFu, SIMT_AT);
void __threadfence();
void __threadfence_block();

/* ---- warp collectives: lanes deposit, the last lane of the mask to arrive computes for all -------------------------
 */
enum SimtShuffle { SHFL_INDEX, SHFL_UP, SHFL_DOWN, SHFL_XOR };
void simt_shuffle(SimtShuffle, unsigned mask, const void *in, void *out, size_t size, int arg, int width, SIMT_AT_DEF);
template <class T> T simt_shuffle_of(SimtShuffle kind, unsigned mask, T v, int arg, int width, SIMT_AT_DEF) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    T out;
    simt_shuffle(kind, mask, &v, &out, sizeof v, arg, width, file, line);
    return out;
}
template <class T> T __shfl_sync(unsigned mask, T v, int lane, int width = 32, SIMT_AT) {
    return simt_shuffle_of(SHFL_INDEX, mask, v, lane, width, file, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, int by, int width = 32, SIMT_AT) {
    return simt_shuffle_of(SHFL_UP, mask, v, by, width, file, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, int by, int width = 32, SIMT_AT) {
    return simt_shuffle_of(SHFL_DOWN, mask, v, by, width, file, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32, SIMT_AT) {
    return simt_shuffle_of(SHFL_XOR, mask, v, with, width, file, line);
}
unsigned __ballot_sync(unsigned mask, int predicate, SIMT_AT);
static inline int __any_sync(unsigned mask, int predicate, SIMT_AT) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, SIMT_AT) {
    return __ballot_sync(mask, !predicate, file, line) == 0;
}

/* ---- atomics: not ordered, as atom.relaxed -------------------------------------------------------------------------
 */
float atomicAdd(float *, float);
double atomicAdd(double *, double);
int atomicAdd(int *, int);
unsigned atomicAdd(unsigned *, unsigned);
unsigned long long atomicAdd(unsigned long long *, unsigned long long);
int atomicMax(int *, int);
unsigned atomicMax(unsigned *, unsigned);
int atomicMin(int *, int);
unsigned atomicExch(unsigned *, unsigned);
int atomicExch(int *, int);
unsigned atomicCAS(unsigned *, unsigned, unsigned);
int atomicCAS(int *, int, int);
unsigned long long atomicCAS(unsigned long long *, unsigned long long, unsigned long long);

/* ---- what ops/cuda/kernels/ptx.h is made of here; formulas and layouts stand there
 * -----------------------------------------
 */
void simt_bar_sync(int id, int threads, SIMT_AT_DEF);
void simt_bar_arrive(int id, int threads, SIMT_AT_DEF);
void simt_load(void *out, const void *from, int size); /* one access of 8 or 16 bytes */
void simt_store(void *to, const void *in, int size);
void simt_cp_async(void *to, const void *from, int size, int valid); /* the rest of `size` becomes zeros */
void simt_cp_commit();
void simt_cp_wait(int groups);
void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], SIMT_AT_DEF);
void simt_mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], SIMT_AT_DEF);
void simt_ldmatrix(uint32_t *out, const void *row, int count, bool turned, SIMT_AT_DEF);
uint32_t simt_movmatrix(uint32_t v, SIMT_AT_DEF);

/* ---- launching -----------------------------------------------------------------------------------------------------
 */
typedef struct SimtStream *cudaStream_t;
struct SimtCall { /* a kernel with its arguments */
    void (*run)(const void *args);
    void *args;
    size_t args_bytes;
    const void *said; /* the arguments one after the other, each on 8 bytes, with nothing between its members */
    size_t said_bytes;
    void (*drop)(void *args);
    const void *kernel;
};
void simt_launch(const char *name, dim3 grid, dim3 block, size_t smem, cudaStream_t, SimtCall);
void *simt_smem(size_t align);
/* Bytes between members are nobody's: zero, so that arguments can be compared. clang cannot, and compares none; gcc 12
 * takes other bytes for them behind an array of structs, which is why what a kernel gets is not touched. */
#if defined __has_builtin
    #if __has_builtin(__builtin_clear_padding)
template <class T> void simt_clear(T *x) { __builtin_clear_padding(x); } /* of an argument */
constexpr bool simt_comparable = true;
        #define SIMT_COMPARES
    #endif
#endif
#ifndef SIMT_COMPARES
template <class T> void simt_clear(T *) {}
constexpr bool simt_comparable = false;
#endif

template <class... P, class... A>
void simt_launch_args(const char *name, dim3 grid, dim3 block, size_t smem, cudaStream_t s, void (*kernel)(P...),
                      A... a) {
    /* Arguments are evaluated and converted here, as by nvcc, not when the kernel runs. */
    struct Args {
        void (*kernel)(P...);
        std::tuple<P...> p;
    };
    static_assert(sizeof(std::tuple<P...>) <= 4096, "arguments of a kernel are at most 4 KB");
    static_assert(std::is_trivially_destructible<std::tuple<P...>>::value, "arguments are numbers and pointers");
    const size_t bytes = (((sizeof(P) + 7) & ~(size_t)7) + ... + 0);
    char *args = (char *)calloc(1, sizeof(Args) + bytes), *said = args + sizeof(Args);
    new (args) Args{kernel, std::tuple<P...>(a...)};
    auto say = [&](auto &x) {
        memcpy(said, &x, sizeof x);
        simt_clear((typename std::remove_reference<decltype(x)>::type *)said);
        said += (sizeof x + 7) & ~(size_t)7;
    };
    std::apply([&](auto &...each) { (say(each), ...); }, ((Args *)args)->p);
    simt_launch(name, grid, block, smem, s,
                {[](const void *x) { std::apply(((const Args *)x)->kernel, ((const Args *)x)->p); }, args, sizeof(Args),
                 args + sizeof(Args), bytes, free, (const void *)kernel});
}
#define START_KERNEL(kernel, grid, block, smem, stream, ...) \
    simt_launch_args(#kernel, grid, block, smem, stream, kernel, __VA_ARGS__)
#define SMEM_DYN(type, name) type *name = (type *)simt_smem(128)

/* ---- what the emulation found, for tests ---------------------------------------------------------------------------
 */
enum SimtFault {
    SIMT_RACE_SHARED,
    SIMT_RACE_GLOBAL,
    SIMT_DIVERGENT, /* threads at different barriers or collectives, or gone */
    SIMT_DEADLOCK,
    SIMT_OUTSIDE, /* of every allocation, of shared memory, of what a kernel may touch */
    SIMT_UNWRITTEN,
    SIMT_MISALIGNED,
    SIMT_EARLY, /* reads a copy that has not been waited for */
    SIMT_LAUNCH,
    SIMT_HOST, /* the host touches device memory, or misuses the runtime */
    SIMT_FAULTS
};
struct SimtReport {
    SimtFault fault;
    char kernel[64];
    uint3 block, thread;
    uintptr_t at; /* offset in shared memory, or in the allocation */
    long times;   /* the same fault at the same place of the program */
    char text[320];
};
/* Collect reports instead of printing them and ending the program behind the first launch that has any. */
void simt_collect(bool on);
int simt_reports(const SimtReport **list); /* those since simt_forget */
void simt_forget();
/* Order of threads, warps, blocks and streams: 0 ascending, 1 descending, others drawn. */
extern "C" void simt_seed(uint64_t seed);
/* Sums of matrix units, those of cuBLASLt's products in bf16 included, are truncated as theirs, or rounded as those of
 * f32 (sums.cpp). Without a call: SIMT_SUMS=truncated in the environment. */
void simt_truncate(bool on);
bool simt_truncates();
float simt_truncated_sum(float c, const double *product, int n); /* n <= 16 */
extern "C" unsigned long simt_uploads(), simt_upload_bytes();    /* copies from the host to the device so far */

struct SimtEstimate { /* of all launches of a kernel; those marked ~ from some blocks, scaled to all */
    char kernel[64];
    long launches, blocks, threads, mma;
    size_t smem;                   /* most bytes of a launch */
    double read, written;          /* bytes of device memory asked for */
    double sectors, least_sectors; /* ~ of 32 bytes; least: the bytes touched by a request, packed */
    double waves, least_waves;     /* ~ of shared memory: passes, and passes without bank conflicts */
};
/* Estimates cost more time than the kernels' work: a test that reads them asks for them before it launches anything. */
void simt_sample(bool on);
const SimtEstimate *simt_estimate(const char *kernel); /* NULL: never launched */
void simt_print_estimates(FILE *);
