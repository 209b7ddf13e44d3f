/* ptx.h: everything a kernel needs that is not plain C++: launching, dynamic shared memory, vector accesses and PTX.
 * nvcc sees instructions; g++ and clang++ see the emulation of tests/simt, where every function here is a call that
 * checks its arguments. A kernel file includes this and no other CUDA header.
 *
 *   LAUNCH(kernel, grid, block, smem_bytes, stream, args...)   the only way to start a kernel; (sum<64>) in parentheses
 *                                                              `stream` is a Queue or a plain stream; without one it
 *                                                              does nothing, see graph.cu
 *   SMEM_DYN(type, name)                                       shared memory, 128-byte aligned; no static __shared__
 *   UNROLL                                                     before a loop whose arrays must stay in registers
 *   ROLLED                                                     before a loop that must not be unrolled (registers)
 *   BY_FOUR                                                    before a loop that is unrolled by four
 *
 * Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"), lane l, g = l/4, t = l%4; two bf16 to a register, the lower
 * column in the lower half:
 *   A (16,16): a0 rows g, columns 2t..; a1 row g+8; a2 row g, column 2t+8; a3 row g+8, column 2t+8
 *   B (16,8):  b0 rows 2t.., column g;  b1 rows 2t+8..        C, D (16,8) f32: d0 d1 row g, columns 2t..; d2 d3 row g+8
 * m16n8k8 of tf32: a0 (g,t) a1 (g+8,t) a2 (g,t+4) a3 (g+8,t+4); b0 (t,g) b1 (t+4,g); C as above. */
#pragma once
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
    #define UNROLL  _Pragma("unroll")
    #define ROLLED  _Pragma("unroll 1")
    #define BY_FOUR _Pragma("unroll 4")
    #define START_KERNEL(kernel, grid, block, smem, stream, ...)                            \
        do {                                                                                \
            if (cudaStream_t to_ = stream) kernel<<<grid, block, smem, to_>>>(__VA_ARGS__); \
        } while (0)
    #define SMEM_DYN(type, name)                                      \
        extern __shared__ __align__(128) unsigned char smem_bytes_[]; \
        type *name = reinterpret_cast<type *>(smem_bytes_)
    #define PTX_AT
    #define PTX_FORM(emulated, ...) __VA_ARGS__
#else
    #define UNROLL
    #define ROLLED
    #define BY_FOUR
    #define PTX_AT                  , const char *file = __builtin_FILE(), int line = __builtin_LINE()
    #define PTX_FORM(emulated, ...) emulated
#endif
#define DEVICE    static __device__ __forceinline__
#define FULL_WARP 0xFFFFFFFFu

/* The stream that kernels are launched on. */
struct Queue {
    cudaStream_t stream; /* NULL while a captured pass is walked through again: nothing is launched */
    bool check;          /* KVSMITH_CUDA_CHECK=1: the host waits for every launch */
    operator cudaStream_t() const { return stream; }
};
/* In device.cu: waits for the launch. A failed launch ends the program with the kernel's name and status 1. */
void launch_check(cudaStream_t, const char *kernel, dim3 grid, dim3 block, size_t smem);
static inline void launched(const Queue &q, const char *kernel, dim3 grid, dim3 block, size_t smem) {
    if (q.check) launch_check(q.stream, kernel, grid, block, smem);
}
static inline void launched(cudaStream_t, const char *, dim3, dim3, size_t) {}
#define LAUNCH(kernel, grid, block, smem, stream, ...)                \
    do {                                                              \
        START_KERNEL(kernel, grid, block, smem, stream, __VA_ARGS__); \
        launched(stream, #kernel, grid, block, smem);                 \
    } while (0)

/* Tells the emulation what a region has handed out; note_close: a whole range is free again. */
static inline void note_take(cudaStream_t s, void *p, size_t bytes, const char *name) {
    PTX_FORM(simt_note_take(s, p, bytes, name), (void)s, (void)p, (void)bytes, (void)name);
}
static inline void note_close(cudaStream_t s, void *p, size_t bytes) {
    PTX_FORM(simt_note_close(s, p, bytes), (void)s, (void)p, (void)bytes);
}

/* Index of the lowest set bit; x must not be 0. */
DEVICE int lowest_bit(unsigned x) {
#ifdef __CUDACC__
    return __ffs((int)x) - 1;
#else
    return __builtin_ctz(x);
#endif
}

/* ---- accesses of 8 and 16 bytes, aligned to as many ---- */
template <class V> DEVICE V load_vec(const void *p) {
#ifdef __CUDACC__
    return *static_cast<const V *>(p);
#else
    V v;
    simt_load(&v, p, (int)sizeof v);
    return v;
#endif
}
template <class V> DEVICE void store_vec(void *p, V v) {
#ifdef __CUDACC__
    *static_cast<V *>(p) = v;
#else
    simt_store(p, &v, (int)sizeof v);
#endif
}

DEVICE int count_bits(unsigned v) { return PTX_FORM(__builtin_popcount(v), __popc(v)); }

/* ---- bf16: the upper half of a float, rounded to nearest, ties to even ---- */
struct bf16 {
    uint16_t bits;
};
DEVICE float to_float(bf16 h) {
#ifdef __CUDACC__
    return __uint_as_float((unsigned)h.bits << 16);
#else
    float f;
    uint32_t u = (uint32_t)h.bits << 16;
    memcpy(&f, &u, sizeof f);
    return f;
#endif
}
DEVICE uint32_t float_bits(float f) {
#ifdef __CUDACC__
    return __float_as_uint(f);
#else
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
#endif
}
DEVICE bf16 to_bf16(float f) {
    uint32_t u = float_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {(uint16_t)0x7FFF}; /* NaN, as cvt.rn.bf16.f32 gives it */
    return {(uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16)};
}
DEVICE uint32_t pack_bf16(float low, float high) {
#ifdef __CUDACC__
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return (uint32_t)to_bf16(high).bits << 16 | (uint32_t)to_bf16(low).bits;
#endif
}

/* ---- asynchronous copies to shared memory, 4, 8 or 16 bytes; `valid` bytes are read, the others are zero -------- */
#ifdef __CUDACC__
DEVICE unsigned shared_address(const void *p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
#endif
template <int size> DEVICE void cp_async(void *shared, const void *global, int valid = size) {
    static_assert(size == 4 || size == 8 || size == 16, "cp.async moves 4, 8 or 16 bytes");
#ifdef __CUDACC__
    if (size == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                     "r"(valid)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global),
                     "n"(size), "r"(valid)
                     : "memory");
#else
    simt_cp_async(shared, global, size, valid);
#endif
}
DEVICE void cp_async_commit() { PTX_FORM(simt_cp_commit(), asm volatile("cp.async.commit_group;" ::: "memory")); }
/* Wait until all groups but the newest `groups` have arrived, for this thread; other threads see them after a
 * barrier. */
template <int groups> DEVICE void cp_async_wait() {
    PTX_FORM(simt_cp_wait(groups), asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory"));
}

/* ---- named barriers 1..15 (0 is __syncthreads'), for whole warps ------------------------------------------------ */
DEVICE void bar_sync(int id, int threads PTX_AT) {
    PTX_FORM(simt_bar_sync(id, threads, file, line), asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads)
                                                                  : "memory"));
}
DEVICE void bar_arrive(int id, int threads PTX_AT) {
    PTX_FORM(simt_bar_arrive(id, threads, file, line), asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads)
                                                                    : "memory"));
}

/* ---- matrices ---- */
/* D = A B + C; d and c may be one. Not volatile: the compiler may move it among loads. */
DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4] PTX_AT) {
    PTX_FORM(simt_mma_bf16(d, a, b, c, file, line),
             asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3])));
}
DEVICE void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4] PTX_AT) {
    PTX_FORM(simt_mma_tf32(d, a, b, c, file, line),
             asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3])));
}
/* Load `count` (1, 2, 4) matrices of 8 rows of 16 bytes. Lane 8m + r passes the address of row r of matrix m, and
 * receives elements 2t, 2t+1 of row g of each matrix; turned: of column g. */
template <int count, bool turned = false> DEVICE void ldmatrix(uint32_t *out, const void *row PTX_AT) {
    static_assert(count == 1 || count == 2 || count == 4, "ldmatrix loads 1, 2 or 4 matrices");
#ifdef __CUDACC__
    unsigned at = shared_address(row);
    if (count == 1 && !turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(out[0]) : "r"(at) : "memory");
    if (count == 1 && turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(out[0]) : "r"(at) : "memory");
    if (count == 2 && !turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(out[0]), "=r"(out[1])
                     : "r"(at)
                     : "memory");
    if (count == 2 && turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(out[0]), "=r"(out[1])
                     : "r"(at)
                     : "memory");
    if (count == 4 && !turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
    if (count == 4 && turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
#else
    simt_ldmatrix(out, row, count, turned, file, line);
#endif
}
/* Transposes an 8x8 matrix of 16-bit elements with row g in the lanes 4g..4g+3. */
DEVICE uint32_t movmatrix(uint32_t v PTX_AT) {
#ifdef __CUDACC__
    uint32_t out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
    return out;
#else
    return simt_movmatrix(v, file, line);
#endif
}
