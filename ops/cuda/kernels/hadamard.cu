/* hadamard.cu: rotation of rows by Hadamard matrices. A warp has 32 E consecutive elements, in registers: a piece of as
 * many, or several smaller ones. Bytes: every element is read and written once. */
#include "kernel.h"

template <int E, class T> __global__ void hadamard(size_t total, int n, float share, T *x) {
    const size_t lane = threadIdx.x % 32, step = (size_t)gridDim.x * WARPS * 32 * E;
    for (size_t at = ((size_t)blockIdx.x * WARPS + threadIdx.x / 32) * 32 * E; at < total; at += step) {
        float v[E];
        UNROLL for (int i = 0; i < E; i++) {
            const size_t k = at + lane + 32 * (size_t)i;
            v[i] = k < total ? number(x[k]) : 0;
        }
        for (int h = 1; h < 32 && h < n; h *= 2) {
            UNROLL for (int i = 0; i < E; i++) {
                const float other = __shfl_xor_sync(FULL_WARP, v[i], h);
                v[i] = lane & (size_t)h ? other - v[i] : v[i] + other;
            }
        }
        UNROLL for (int h = 1; h < E; h *= 2) {
            UNROLL for (int i = 0; i < E; i++) {
                if (i & h) continue;
                const float a = v[i], b = v[i | h];
                v[i] = a + b, v[i | h] = a - b;
            }
        }
        UNROLL for (int i = 0; i < E; i++) {
            const size_t k = at + lane + 32 * (size_t)i;
            if (k < total) store<1>(x + k, {v[i] * share});
        }
    }
}
template <int E, class T> static void hadamard_launch(Cuda *c, size_t total, int n, T *x) {
    const float share = (float)(1 / sqrt((double)n));
    LAUNCH((hadamard<E, T>), grid_for(c, (total + E - 1) / E), dim3(BLOCK), 0, c->stream, total, n, share, x);
}
template <class T> static void hadamard_of(Cuda *c, size_t total, int n, T *x) {
    if (!total) return;
    if (n <= 32)
        hadamard_launch<1>(c, total, n, x);
    else if (n == 64)
        hadamard_launch<2>(c, total, n, x);
    else if (n == 128)
        hadamard_launch<4>(c, total, n, x);
    else
        hadamard_launch<8>(c, total, n, x);
}
extern "C" void cuda_hadamard(Cuda *c, size_t pieces, int n, void *x, bool is_bf16) {
    if (is_bf16)
        hadamard_of(c, pieces * (size_t)n, n, (bf16 *)x);
    else
        hadamard_of(c, pieces * (size_t)n, n, (float *)x);
}
