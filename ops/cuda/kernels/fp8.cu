/* fp8.cu: parts of rows in fp8 (../fp8.h), a warp to a part, as int8.cu. */
#include "ops/fp8.h"
#include "kernel.h"

DEVICE float fp8_scale_of(const float *x, int w, int lane) {
    uint32_t most = 0;
    for (int k = lane; k < w; k += 32) {
        uint32_t bits;
        memcpy(&bits, &x[k], sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    for (int d = 16; d; d >>= 1) {
        const uint32_t other = __shfl_xor_sync(FULL_WARP, most, d);
        most = other > most ? other : most;
    }
    return fp8_scale(most);
}
/* Nothing, or NaN, stays with the scale. */
DEVICE unsigned char fp8_of(float x, float scale) { return scale > 0 ? fp8_code(x / scale) : 0; }
__global__ void fp8_encode(int n, int w, char *data, const size_t *to, const float *x, const size_t *from) {
    int lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; i < n; i += (int)gridDim.x * WARPS) {
        const float *row = x + from[i];
        float scale = fp8_scale_of(row, w, lane);
        unsigned char *part = (unsigned char *)(data + to[i]);
        if (lane == 0) *(float *)part = scale;
        for (int k = lane; k < (int)fp8_bytes(w) - FP8_HEAD; k += 32)
            part[FP8_HEAD + k] = k < w ? fp8_of(row[k], scale) : 0;
    }
}
__global__ void fp8_recode(int n, int w, float *x) {
    int lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; i < n; i += (int)gridDim.x * WARPS) {
        float *row = x + (size_t)i * (size_t)w, scale = fp8_scale_of(row, w, lane);
        for (int k = lane; k < w; k += 32) row[k] = scale * fp8_number(fp8_of(row[k], scale));
    }
}
static dim3 warps_for(const Cuda *c, int n) { return grid_for(c, (size_t)n * 32); }
extern "C" void cuda_fp8_encode(Cuda *c, int n, int w, void *data, const size_t *to, const float *x,
                                const size_t *from) {
    if (n) LAUNCH(fp8_encode, warps_for(c, n), dim3(BLOCK), 0, c->stream, n, w, (char *)data, to, x, from);
}
extern "C" void cuda_fp8_recode(Cuda *c, int n, int w, float *x) {
    if (n) LAUNCH(fp8_recode, warps_for(c, n), dim3(BLOCK), 0, c->stream, n, w, x);
}
