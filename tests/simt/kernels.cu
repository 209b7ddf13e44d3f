/* kernels.cu: kernels that are right, and each way of being wrong that the emulation must see. Compiled by nvcc, too.
 */
#include "ops/cuda/kernels/ptx.h"
#include "kernels.h"

/* ---- right ---- */
__global__ void sum_blocks(const float *a, float *out, int n) {
    SMEM_DYN(float, part);
    int t = (int)threadIdx.x, warps = (int)blockDim.x / 32;
    float v = 0;
    for (int i = t; i < n; i += (int)blockDim.x) v += a[(size_t)blockIdx.x * (size_t)n + (size_t)i];
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(FULL_WARP, v, d);
    if (t % 32 == 0) part[t / 32] = v;
    __syncthreads();
    if (t == 0) {
        float s = 0;
        for (int w = 0; w < warps; w++) s += part[w];
        out[blockIdx.x] = s;
    }
}
/* A tree inside each warp, through shared memory and __syncwarp alone. */
__global__ void sum_warps(const float *a, float *out) {
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x, lane = t % 32;
    s[t] = a[t];
    for (int d = 16; d; d >>= 1) {
        __syncwarp();
        float v = lane < d ? s[t + d] : 0;
        __syncwarp();
        if (lane < d) s[t] += v;
    }
    if (lane == 0) out[t / 32] = s[t];
}
__global__ void count_above(const float *a, int *count, int n, float bound) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    unsigned votes = __ballot_sync(FULL_WARP, i < n && a[i < n ? i : 0] > bound);
    int c = 0;
    for (; votes; votes &= votes - 1) c++;
    if (threadIdx.x % 32 == 0 && c) atomicAdd(count, c);
}
/* Two halves of a block hand tiles to each other through named barriers: 1 "full", 2 "empty". */
__global__ void hand_over(const float *a, float *out, int tiles) {
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x, half = (int)blockDim.x / 2, all = (int)blockDim.x;
    if (t < half)
        for (int i = 0; i < tiles; i++) {
            if (i) bar_sync(2, all);
            s[t] = a[i * half + t];
            bar_arrive(1, all);
        }
    else
        for (int i = 0; i < tiles; i++) {
            bar_sync(1, all);
            out[i * half + t - half] = 2 * s[all - 1 - t];
            if (i + 1 < tiles) bar_arrive(2, all);
        }
}
/* Copies one tile ahead of the one in use. */
__global__ void pipeline(const float *a, float *out, int tiles) {
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x, n = (int)blockDim.x;
    cp_async<16>(&s[4 * t], &a[4 * t]);
    cp_async_commit();
    for (int i = 0; i < tiles; i++) {
        bool more = i + 1 < tiles;
        cp_async<16>(&s[((i + 1) % 2 * n + t) * 4], &a[((more ? i + 1 : 0) * n + t) * 4], more ? 16 : 0);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        for (int k = 0; k < 4; k++) out[(i * n + n - 1 - t) * 4 + k] = s[(i % 2 * n + n - 1 - t) * 4 + k];
        __syncthreads();
    }
    cp_async_wait<0>();
}
/* C (16,8) = A (16,16) B (8,16)^T in bf16, one warp; through ldmatrix. */
__global__ void product(const bf16 *A, const bf16 *B, float *C) {
    SMEM_DYN(bf16, s);
    int l = (int)threadIdx.x;
    for (int i = 0; i < 8; i++) s[l * 8 + i] = A[l * 8 + i];
    for (int i = 0; i < 4; i++) s[256 + l * 4 + i] = B[l * 4 + i];
    __syncwarp();
    uint32_t a[4], b[2];
    float c[4] = {0, 0, 0, 0};
    ldmatrix<4>(a, &s[(l % 16) * 16 + l / 16 * 8]);
    ldmatrix<2>(b, &s[256 + (l % 8) * 16 + (l / 8 & 1) * 8]);
    mma_bf16(c, a, b, c);
    for (int i = 0; i < 4; i++) C[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = c[i];
}
/* C (16,8) = A (16,8) B (8,8), f32 rounded to tf32 */
__global__ void product_tf32(const float *A, const float *B, float *C) {
    int l = (int)threadIdx.x, g = l / 4, t = l % 4;
    uint32_t a[4], b[2];
    float c[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; i++) a[i] = ((const uint32_t *)A)[(g + i % 2 * 8) * 8 + t + i / 2 * 4];
    for (int i = 0; i < 2; i++) b[i] = ((const uint32_t *)B)[(t + i * 4) * 8 + g];
    mma_tf32(c, a, b, c);
    for (int i = 0; i < 4; i++) C[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = c[i];
}
/* An 8x8 matrix of 16-bit numbers turned twice: by movmatrix, and by a turned load. */
__global__ void turn(const bf16 *A, uint32_t *by_register, uint32_t *by_load) {
    SMEM_DYN(bf16, s);
    int l = (int)threadIdx.x;
    s[2 * l] = A[2 * l], s[2 * l + 1] = A[2 * l + 1];
    __syncwarp();
    uint32_t v[1];
    ldmatrix<1>(v, &s[l % 8 * 8]);
    by_register[l] = movmatrix(v[0]);
    ldmatrix<1, true>(v, &s[l % 8 * 8]);
    by_load[l] = v[0];
}
template <int by> __global__ void scale_vec(float *x) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    float4 v = load_vec<float4>(x + 4 * i);
    v.x *= by, v.y *= by, v.z *= by, v.w *= by;
    store_vec(x + 4 * i, v);
}

/* ---- wrong ---- */
__global__ void race_shared(const float *a, float *out) { /* no barrier between writing and reading */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    s[t] = a[t];
    out[t] = s[(t + 33) % (int)blockDim.x];
}
/* A number is written and read whole, then a half of it by another warp, which nothing orders; and whole after
 * halves. */
__global__ void race_part(const float *a, float *out) {
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    if (t < 32) s[t] = a[t], s[t] += 1;
    if (t >= 32) ((unsigned short *)s)[2 * (t - 32) + 1] = 7;
    __syncthreads();
    out[t] = s[t % 32];
}
__global__ void race_whole(const float *a, float *out) {
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    if (t < 32) ((unsigned short *)s)[2 * t] = 7;
    if (t >= 32) s[t - 32] = a[t];
    __syncthreads();
    out[t] = s[t % 32];
}
__global__ void race_reuse(const float *a, float *out) { /* the next tile is written while the last is read */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x, n = (int)blockDim.x;
    for (int i = 0; i < 2; i++) {
        s[t] = a[i * n + t];
        __syncthreads();
        out[i * n + t] = s[n - 1 - t];
    }
}
__global__ void race_warp(const float *a, float *out) { /* a shuffle orders no memory */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    s[t] = a[t];
    float v = __shfl_xor_sync(FULL_WARP, a[t], 1);
    out[t] = s[t ^ 1] + v;
}
__global__ void race_named(const float *a, float *out) { /* the barrier of one half does not hold for the other */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x, half = (int)blockDim.x / 2;
    s[t] = a[t];
    bar_sync(1 + t / half, half);
    out[t] = s[(int)blockDim.x - 1 - t];
}
__global__ void race_half(bf16 *x) { /* two threads, one 16-bit number; its neighbour in the same word is no matter */
    x[threadIdx.x / 2] = to_bf16((float)threadIdx.x);
}
__global__ void race_blocks(float *out) { /* all blocks add to one number, without an atomic */
    if (threadIdx.x == 0) out[0] = out[0] + 1;
}
__global__ void race_atomic(float *out) { /* one thread reads what others update */
    atomicAdd(&out[0], 1.0f);
    if (threadIdx.x == 7) out[1] = out[0];
}
__global__ void diverge_sites(float *out) { /* two barriers, each for half of the block */
    int t = (int)threadIdx.x;
    if (t < 32) {
        out[t] = 1;
        __syncthreads();
    } else {
        out[t] = 2;
        __syncthreads();
    }
}
__global__ void diverge_exit(float *out, int n) { /* a guard before a barrier */
    int t = (int)threadIdx.x;
    if (t >= n) return;
    out[t] = 1;
    __syncthreads();
    out[t] = 2;
}
__global__ void diverge_mask(float *out) { /* a mask of lanes of which half have gone elsewhere */
    int t = (int)threadIdx.x;
    float v = 1;
    if (t % 2 == 0) v = __shfl_xor_sync(FULL_WARP, v, 2);
    out[t] = v;
}
__global__ void diverge_lane(float *out) { /* reads a lane that is not in the mask */
    int t = (int)threadIdx.x;
    float v = (float)t;
    if (t < 16) v = __shfl_sync(0xFFFFu, v, 20);
    out[t] = v;
}
__global__ void deadlock(float *out) { /* half waits for a barrier that the other half never comes to */
    int t = (int)threadIdx.x;
    if (t < 32) bar_sync(1, 64);
    if (t >= 32) bar_sync(2, 64);
    out[t] = 1;
}
__global__ void outside_device(const float *a, float *out, int n) { /* <= for < */
    for (int i = (int)threadIdx.x; i <= n; i += (int)blockDim.x) out[i % n] = a[i];
}
__global__ void outside_shared(float *out) {
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    s[t + 1] = 1;
    __syncthreads();
    out[t] = s[t + 1];
}
__global__ void unwritten_device(const float *a, float *out) { out[threadIdx.x] = a[threadIdx.x]; }
__global__ void unwritten_shared(const float *a, float *out, int n) {
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    if (t < n) s[t] = a[t];
    __syncthreads();
    out[t] = s[t];
}
__global__ void misaligned(const float *a, float *out) {
    float4 v = load_vec<float4>(a + 1 + 4 * threadIdx.x);
    out[threadIdx.x] = v.x + v.w;
}
__global__ void early(const float *a, float *out) { /* a barrier is no wait */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    cp_async<4>(&s[t], &a[t]);
    cp_async_commit();
    __syncthreads();
    out[t] = s[t];
    cp_async_wait<0>();
}
__global__ void early_group(const float *a, float *out) { /* waits for one group too few */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x, n = (int)blockDim.x;
    for (int i = 0; i < 2; i++) {
        cp_async<4>(&s[i * n + t], &a[i * n + t]);
        cp_async_commit();
    }
    cp_async_wait<1>();
    out[t] = s[t] + s[n + t];
    cp_async_wait<0>();
}
__global__ void race_copies(const float *a, float *out) { /* own copies have arrived, those of others not yet */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x, n = (int)blockDim.x;
    cp_async<4>(&s[t], &a[t]);
    cp_async_commit();
    cp_async_wait<0>();
    out[t] = s[(t + 32) % n];
}
__global__ void early_exit(const float *a) { /* nobody waits */
    SMEM_DYN(float, s);
    cp_async<4>(&s[threadIdx.x], &a[threadIdx.x]);
}
__global__ void banks(const float *a, float *out, int stride) { /* right, but slow where stride is a multiple of 32 */
    SMEM_DYN(float, s);
    int t = (int)threadIdx.x;
    s[t * stride] = a[t];
    __syncwarp();
    out[t * 8] = s[t * stride];
}

/* ---- calls, for C ---- */
#define S(n) ((size_t)(n) * sizeof(float))
extern "C" void kernel_sum_blocks(cudaStream_t q, const float *a, float *out, int blocks, int threads, int n) {
    LAUNCH(sum_blocks, dim3((unsigned)blocks), dim3((unsigned)threads), S(threads / 32), q, a, out, n);
}
extern "C" void kernel_sum_warps(cudaStream_t q, const float *a, float *out, int threads) {
    LAUNCH(sum_warps, dim3(1), dim3((unsigned)threads), S(threads), q, a, out);
}
extern "C" void kernel_count_above(cudaStream_t q, const float *a, int *count, int n, float bound) {
    LAUNCH(count_above, dim3((unsigned)(n + 63) / 64), dim3(64), 0, q, a, count, n, bound);
}
extern "C" void kernel_hand_over(cudaStream_t q, const float *a, float *out, int tiles, int half) {
    LAUNCH(hand_over, dim3(1), dim3(2u * (unsigned)half), S(half), q, a, out, tiles);
}
extern "C" void kernel_pipeline(cudaStream_t q, const float *a, float *out, int tiles, int threads) {
    LAUNCH(pipeline, dim3(1), dim3((unsigned)threads), S(8 * threads), q, a, out, tiles);
}
extern "C" void kernel_product(cudaStream_t q, const void *A, const void *B, float *C) {
    LAUNCH(product, dim3(1), dim3(32), 768, q, (const bf16 *)A, (const bf16 *)B, C);
}
extern "C" void kernel_product_tf32(cudaStream_t q, const float *A, const float *B, float *C) {
    LAUNCH(product_tf32, dim3(1), dim3(32), 0, q, A, B, C);
}
extern "C" void kernel_turn(cudaStream_t q, const void *A, uint32_t *by_register, uint32_t *by_load) {
    LAUNCH(turn, dim3(1), dim3(32), 128, q, (const bf16 *)A, by_register, by_load);
}
extern "C" void kernel_scale_vec(cudaStream_t q, float *x, int n) {
    LAUNCH((scale_vec<3>), dim3((unsigned)n / 128), dim3(32), 0, q, x);
}
extern "C" void kernel_banks(cudaStream_t q, const float *a, float *out, int stride) {
    LAUNCH(banks, dim3(1), dim3(32), S(32 * stride), q, a, out, stride);
}
extern "C" void kernel_wrong(const char *name, cudaStream_t q, float *a, float *out) {
#define CASE(kernel, blocks, threads, smem, ...)                              \
    if (!strcmp(name, #kernel)) {                                             \
        LAUNCH(kernel, dim3(blocks), dim3(threads), S(smem), q, __VA_ARGS__); \
        return;                                                               \
    }
    CASE(race_shared, 1, 64, 64, a, out)
    CASE(race_part, 1, 64, 64, a, out)
    CASE(race_whole, 1, 64, 64, a, out)
    CASE(race_reuse, 1, 64, 64, a, out)
    CASE(race_warp, 1, 64, 64, a, out)
    CASE(race_named, 1, 128, 128, a, out)
    CASE(race_half, 1, 64, 0, (bf16 *)out)
    CASE(race_blocks, 3, 32, 0, a)
    CASE(race_atomic, 1, 32, 0, a)
    CASE(diverge_sites, 1, 64, 0, out)
    CASE(diverge_exit, 1, 64, 0, out, 50)
    CASE(diverge_mask, 1, 32, 0, out)
    CASE(diverge_lane, 1, 32, 0, out)
    CASE(deadlock, 1, 64, 0, out)
    CASE(outside_device, 1, 32, 0, a, out, 256)
    CASE(outside_shared, 1, 64, 64, out)
    CASE(unwritten_device, 1, 32, 0, out + 64, out)
    CASE(unwritten_shared, 1, 64, 64, a, out, 40)
    CASE(misaligned, 1, 32, 0, a, out)
    CASE(early, 1, 32, 32, a, out)
    CASE(early_group, 1, 32, 64, a, out)
    CASE(race_copies, 1, 64, 64, a, out)
    CASE(early_exit, 1, 32, 32, a)
#undef CASE
}
