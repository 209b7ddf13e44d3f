/* int8.cu: parts of rows in int8 (../int8.h), a warp to a part. Bytes: those of the part are read twice, the second
 * time from the cache. */
#include "ops/int8.h"
#include "kernel.h"

DEVICE uint32_t warp_most(uint32_t v) {
    for (int d = 16; d; d >>= 1) {
        uint32_t other = __shfl_xor_sync(FULL_WARP, v, d);
        v = other > v ? other : v;
    }
    return v;
}
DEVICE float part_scale(const float *x, int w, int lane) {
    uint32_t most = 0;
    for (int k = lane; k < w; k += 32) {
        uint32_t bits;
        memcpy(&bits, &x[k], sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return int8_scale(warp_most(most));
}
DEVICE float code_of(float x, float scale) {
    if (!(scale > 0)) return 0; /* none, or NaN, which stays with the scale */
    return fminf(fmaxf(rintf(x / scale), -(float)INT8_MOST), (float)INT8_MOST);
}
__global__ void int8_encode(int n, int w, char *data, const size_t *to, const float *x, const size_t *from) {
    int lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; i < n; i += (int)gridDim.x * WARPS) {
        const float *row = x + from[i];
        float scale = part_scale(row, w, lane);
        signed char *part = (signed char *)(data + to[i]);
        if (lane == 0) *(float *)part = scale;
        for (int k = lane; k < (int)int8_bytes(w) - INT8_HEAD; k += 32)
            part[INT8_HEAD + k] = (signed char)(k < w ? code_of(row[k], scale) : 0);
    }
}
__global__ void int8_recode(int n, int w, float *x) {
    int lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; i < n; i += (int)gridDim.x * WARPS) {
        float *row = x + (size_t)i * (size_t)w, scale = part_scale(row, w, lane);
        for (int k = lane; k < w; k += 32) row[k] = scale * code_of(row[k], scale);
    }
}
static dim3 warps_for(const Cuda *c, int n) { return grid_for(c, (size_t)n * 32); }
extern "C" void cuda_int8_encode(Cuda *c, int n, int w, void *data, const size_t *to, const float *x,
                                 const size_t *from) {
    if (n) LAUNCH(int8_encode, warps_for(c, n), dim3(BLOCK), 0, c->stream, n, w, (char *)data, to, x, from);
}
extern "C" void cuda_int8_recode(Cuda *c, int n, int w, float *x) {
    if (n) LAUNCH(int8_recode, warps_for(c, n), dim3(BLOCK), 0, c->stream, n, w, x);
}
