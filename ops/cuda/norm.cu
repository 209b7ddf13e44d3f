/* norm.cu: RMSNorm, LayerNorm and L2 normalisation, a block to a row. */
#include "kernel.h"

__global__ void rmsnorm(int d, float *y, float *rstd, const float *x, const float *w, double eps) {
    SMEM_DYN(float, part);
    const float *xi = x + (size_t)blockIdx.x * (size_t)d;
    float *yi = y + (size_t)blockIdx.x * (size_t)d, s = 0;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) s += xi[k] * xi[k];
    s = (float)(1 / sqrt((double)block_sum(s, part) / d + eps));
    if (threadIdx.x == 0) rstd[blockIdx.x] = s;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) yi[k] = xi[k] * s * w[k];
}
__global__ void rmsnorm_backward_rows(int d, float *dx, const float *dy, const float *x, const float *w,
                                      const float *rstd) {
    SMEM_DYN(float, part);
    size_t row = (size_t)blockIdx.x * (size_t)d;
    float s = rstd[blockIdx.x], t = 0;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) t += dy[row + (size_t)k] * w[k] * x[row + (size_t)k];
    t = block_sum(t, part) * s * s * s / (float)d;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
        size_t i = row + (size_t)k;
        dx[i] += s * dy[i] * w[k] - t * x[i];
    }
}
/* A block to 32 columns; its warps take every WARPS-th row, and the first adds theirs in order: one order for every
 * number of blocks. */
__global__ void rmsnorm_backward_columns(int N, int d, float *dw, const float *dy, const float *x, const float *rstd) {
    SMEM_DYN(float, part);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, k = (int)blockIdx.x * 32 + lane;
    float s = 0;
    for (int i = warp; i < N && k < d; i += WARPS) {
        size_t at = (size_t)i * (size_t)d + (size_t)k;
        s += dy[at] * x[at] * rstd[i];
    }
    part[threadIdx.x] = s;
    __syncthreads();
    if (warp || k >= d) return;
    for (int v = 1; v < WARPS; v++) s += part[v * 32 + lane];
    dw[k] += s;
}
extern "C" void cuda_rmsnorm(Cuda *c, int N, int d, float *y, float *rstd, const float *x, const float *w, double eps) {
    if (N > 0) LAUNCH(rmsnorm, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, y, rstd, x, w, eps);
}
extern "C" void cuda_rmsnorm_backward(Cuda *c, int N, int d, float *dx, float *dw, const float *dy, const float *x,
                                      const float *w, const float *rstd) {
    if (N <= 0) return;
    LAUNCH(rmsnorm_backward_rows, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, dx, dy, x, w,
           rstd);
    LAUNCH(rmsnorm_backward_columns, dim3((unsigned)(d + 31) / 32), dim3(BLOCK), BLOCK * sizeof(float), c->stream, N, d,
           dw, dy, x, rstd);
}

__global__ void layernorm(int d, float *y, float *rstd, const float *x, const float *w, const float *b, double eps) {
    SMEM_DYN(float, part);
    size_t row = (size_t)blockIdx.x * (size_t)d;
    float mean = 0, s = 0;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) mean += x[row + (size_t)k];
    mean = block_sum(mean, part) / (float)d;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) s += (x[row + (size_t)k] - mean) * (x[row + (size_t)k] - mean);
    s = (float)(1 / sqrt((double)block_sum(s, part) / d + eps));
    if (threadIdx.x == 0) rstd[blockIdx.x] = s;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK)
        y[row + (size_t)k] = (x[row + (size_t)k] - mean) * s * w[k] + b[k];
}
__global__ void layernorm_backward_rows(int d, float *dx, float *means, const float *dy, const float *x, const float *w,
                                        const float *rstd) {
    SMEM_DYN(float, part);
    size_t row = (size_t)blockIdx.x * (size_t)d;
    float mean = 0, s = rstd[blockIdx.x], t = 0, tn = 0;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) mean += x[row + (size_t)k];
    mean = block_sum(mean, part) / (float)d;
    if (threadIdx.x == 0) means[blockIdx.x] = mean;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
        float g = dy[row + (size_t)k] * w[k];
        t += g;
        tn += g * (x[row + (size_t)k] - mean);
    }
    t = block_sum(t, part) / (float)d;
    tn = block_sum(tn, part) * s * s / (float)d;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
        size_t i = row + (size_t)k;
        dx[i] += s * (dy[i] * w[k] - t - (x[i] - mean) * tn);
    }
}
/* As rmsnorm_backward_columns. */
__global__ void layernorm_backward_columns(int N, int d, float *dw, float *db, const float *dy, const float *x,
                                           const float *means, const float *rstd) {
    SMEM_DYN(float, part);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, k = (int)blockIdx.x * 32 + lane;
    float s = 0, b = 0;
    for (int i = warp; i < N && k < d; i += WARPS) {
        size_t at = (size_t)i * (size_t)d + (size_t)k;
        s += dy[at] * (x[at] - means[i]) * rstd[i];
        b += dy[at];
    }
    part[threadIdx.x] = s;
    part[BLOCK + threadIdx.x] = b;
    __syncthreads();
    if (warp || k >= d) return;
    for (int v = 1; v < WARPS; v++) s += part[v * 32 + lane], b += part[BLOCK + v * 32 + lane];
    dw[k] += s;
    db[k] += b;
}
extern "C" void cuda_layernorm(Cuda *c, int N, int d, float *y, float *rstd, const float *x, const float *w,
                               const float *b, double eps) {
    if (N > 0)
        LAUNCH(layernorm, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, y, rstd, x, w, b, eps);
}
extern "C" void cuda_layernorm_backward(Cuda *c, int N, int d, float *dx, float *dw, float *db, float *means,
                                        const float *dy, const float *x, const float *w, const float *rstd) {
    if (N <= 0) return;
    LAUNCH(layernorm_backward_rows, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, dx, means, dy,
           x, w, rstd);
    LAUNCH(layernorm_backward_columns, dim3((unsigned)(d + 31) / 32), dim3(BLOCK), 2 * BLOCK * sizeof(float), c->stream,
           N, d, dw, db, dy, x, means, rstd);
}

__global__ void l2norm(int d, float *y, const float *x, double eps) {
    SMEM_DYN(float, part);
    size_t row = (size_t)blockIdx.x * (size_t)d;
    float s = 0;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) s += x[row + (size_t)k] * x[row + (size_t)k];
    s = (float)(1 / sqrt((double)block_sum(s, part) + eps));
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) y[row + (size_t)k] = x[row + (size_t)k] * s;
}
__global__ void l2norm_backward(int d, float *dx, const float *dy, const float *x, double eps) {
    SMEM_DYN(float, part);
    size_t row = (size_t)blockIdx.x * (size_t)d;
    float s = 0, t = 0;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
        size_t i = row + (size_t)k;
        s += x[i] * x[i];
        t += dy[i] * x[i];
    }
    float r = (float)(1 / sqrt((double)block_sum(s, part) + eps));
    t = block_sum(t, part) * r * r;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
        size_t i = row + (size_t)k;
        dx[i] += r * (dy[i] - x[i] * t);
    }
}
extern "C" void cuda_l2norm(Cuda *c, int N, int d, float *y, const float *x, double eps) {
    if (N > 0) LAUNCH(l2norm, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, y, x, eps);
}
extern "C" void cuda_l2norm_backward(Cuda *c, int N, int d, float *dx, const float *dy, const float *x, double eps) {
    if (N > 0)
        LAUNCH(l2norm_backward, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, dx, dy, x, eps);
}
