/* sums.cu: sums over the columns of a matrix, and over the parts that other kernels leave (sums.h). */
#include "sums.h"

/* out (columns) += the sum over slices of parts (slices, columns). */
__global__ void __launch_bounds__(FOLD) fold_columns(int slices, int columns, float *out, const float *parts) {
    SMEM_DYN(float, mem);
    int k = (int)blockIdx.x * 32 + (int)threadIdx.x;
    float s = slices_sum(slices, columns, parts, mem);
    if (threadIdx.x < 32 && k < columns) out[k] += s;
}
extern "C" void cuda_fold(Cuda *c, int slices, int columns, float *out, const float *parts) {
    if (columns > 0)
        LAUNCH(fold_columns, dim3((unsigned)(columns + 31) / 32), dim3(FOLD), FOLD * sizeof(float), c->stream, slices,
               columns, out, parts);
}

/* One block per 32 columns, or quads of them, of a slice; its warps take every WARPS-th row. */
template <class T> __global__ void column_sums(int N, int each, int O, float *parts, const T *x) {
    SMEM_DYN(float, mem);
    int warp = (int)threadIdx.x / 32, k = (int)blockIdx.x * 32 + (int)threadIdx.x % 32, from = (int)blockIdx.y * each,
        to = from + each < N ? from + each : N;
    float s = 0;
    if (k < O) {
        BY_FOUR
        for (int i = from + warp; i < to; i += WARPS) s += number(x[(size_t)i * (size_t)O + (size_t)k]);
    }
    s = warps_sum(s, mem);
    if (warp == 0 && k < O) parts[(size_t)blockIdx.y * (size_t)O + (size_t)k] = s;
}
template <class T> __global__ void column_sums_quads(int N, int each, int O, float *parts, const T *x) {
    SMEM_DYN(float, mem);
    int warp = (int)threadIdx.x / 32, k = ((int)blockIdx.x * 32 + (int)threadIdx.x % 32) * 4,
        from = (int)blockIdx.y * each, to = from + each < N ? from + each : N;
    float4 s = {0, 0, 0, 0};
    if (k < O) {
        BY_FOUR
        for (int i = from + warp; i < to; i += WARPS) {
            float v[4];
            fetch<4>(v, x + (size_t)i * (size_t)O + (size_t)k);
            s.x += v[0], s.y += v[1], s.z += v[2], s.w += v[3];
        }
    }
    s.x = warps_sum(s.x, mem), s.y = warps_sum(s.y, mem), s.z = warps_sum(s.z, mem), s.w = warps_sum(s.w, mem);
    if (warp == 0 && k < O) store_vec(parts + (size_t)blockIdx.y * (size_t)O + (size_t)k, s);
}
extern "C" void cuda_column_sums(Cuda *c, int N, int O, float *out, float *parts, const void *x, bool is_bf16) {
    if (N <= 0 || O <= 0) return;
    bool quads = O % 4 == 0 && aligned(x) && aligned(parts);
    int slices = cuda_slices((size_t)N, cuda_tiles(O)), each = (int)rows_each((size_t)N, slices),
        wide = quads ? 128 : 32;
    dim3 grid((unsigned)((O + wide - 1) / wide), (unsigned)slices);
    size_t room = BLOCK * sizeof(float);
    if (is_bf16 && quads)
        LAUNCH((column_sums_quads<bf16>), grid, dim3(BLOCK), room, c->stream, N, each, O, parts, (const bf16 *)x);
    else if (is_bf16)
        LAUNCH((column_sums<bf16>), grid, dim3(BLOCK), room, c->stream, N, each, O, parts, (const bf16 *)x);
    else if (quads)
        LAUNCH((column_sums_quads<float>), grid, dim3(BLOCK), room, c->stream, N, each, O, parts, (const float *)x);
    else
        LAUNCH((column_sums<float>), grid, dim3(BLOCK), room, c->stream, N, each, O, parts, (const float *)x);
    cuda_fold(c, slices, O, out, parts);
}
