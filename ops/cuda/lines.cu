/* lines.cu: linear attention's ones and quotient, Mamba-2's step and skip. */
#include "kernel.h"

__global__ void widen(size_t n, int V, float *y, const float *x) {
    size_t w = (size_t)V + 1;
    EACH(i, n) y[i] = i % w < (size_t)V ? x[i / w * (size_t)V + i % w] : 1;
}
__global__ void widen_backward(size_t n, int V, float *dx, const float *dy) {
    EACH(i, n) dx[i] += dy[i / (size_t)V * ((size_t)V + 1) + i % (size_t)V];
}
__global__ void quotient(size_t n, int V, float *y, const float *x, float eps) {
    EACH(i, n) {
        const float *a = x + i / (size_t)V * ((size_t)V + 1);
        y[i] = a[i % (size_t)V] / (a[V] + eps);
    }
}
/* A warp to a group. */
__global__ void quotient_backward(size_t M, int V, float *dx, const float *dy, const float *y, const float *x,
                                  float eps) {
    size_t g = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (g >= M) return;
    float *o = dx + g * ((size_t)V + 1), f = 1 / (x[g * ((size_t)V + 1) + (size_t)V] + eps), s = 0;
    for (int k = lane; k < V; k += 32) {
        size_t i = g * (size_t)V + (size_t)k;
        o[k] += dy[i] * f;
        s += dy[i] * y[i];
    }
    s = warp_sum(s);
    if (lane == 0) o[V] -= s * f;
}
extern "C" void cuda_widen(Cuda *c, size_t M, int V, float *y, const float *x) {
    LAUNCH_EACH(c, widen, M * ((size_t)V + 1), V, y, x);
}
extern "C" void cuda_widen_backward(Cuda *c, size_t M, int V, float *dx, const float *dy) {
    LAUNCH_EACH(c, widen_backward, M * (size_t)V, V, dx, dy);
}
extern "C" void cuda_quotient(Cuda *c, size_t M, int V, float *y, const float *x, float eps) {
    LAUNCH_EACH(c, quotient, M * (size_t)V, V, y, x, eps);
}
extern "C" void cuda_quotient_backward(Cuda *c, size_t M, int V, float *dx, const float *dy, const float *y,
                                       const float *x, float eps) {
    if (M > 0)
        LAUNCH(quotient_backward, dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, V, dx, dy, y,
               x, eps);
}

DEVICE float softplus1(float x) { return x > 20 ? x : log1pf(expf(x)); }

__global__ void step(size_t n, int H, int P, float *y, const float *x, const float *z, const float *bias) {
    EACH(i, n) y[i] = softplus1(z[i / (size_t)P] + bias[i / (size_t)P % (size_t)H]) * x[i];
}
/* A warp to a head of a row; dz holds what it adds to dbias, too. */
__global__ void step_backward(size_t n, int H, int P, float *dx, float *dz, float *df, const float *dy, const float *x,
                              const float *z, const float *bias) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (i >= n) return;
    float a = z[i] + bias[i % (size_t)H], f = softplus1(a), s = 0;
    for (size_t k = i * (size_t)P + (size_t)lane; k < (i + 1) * (size_t)P; k += 32) {
        s += dy[k] * x[k];
        dx[k] += f * dy[k];
    }
    s = warp_sum(s) * sigmoid1(a);
    if (lane == 0) {
        dz[i] += s;
        df[i] = s;
    }
}
__global__ void skip(size_t n, int H, int P, float *y, const float *x, const float *w) {
    EACH(i, n) y[i] += w[i / (size_t)P % (size_t)H] * x[i];
}
__global__ void skip_backward_x(size_t n, int H, int P, float *dx, const float *dy, const float *w) {
    EACH(i, n) dx[i] += w[i / (size_t)P % (size_t)H] * dy[i];
}
/* A block to a head. */
__global__ void skip_backward_w(int N, int H, int P, float *dw, const float *dy, const float *x) {
    SMEM_DYN(float, part);
    size_t n = (size_t)N * (size_t)P;
    float s = 0;
    for (size_t k = threadIdx.x; k < n; k += BLOCK) {
        size_t i = (k / (size_t)P * (size_t)H + blockIdx.x) * (size_t)P + k % (size_t)P;
        s += dy[i] * x[i];
    }
    s = block_sum(s, part);
    if (threadIdx.x == 0) dw[blockIdx.x] += s;
}
extern "C" void cuda_step(Cuda *c, int N, int H, int P, float *y, const float *x, const float *z, const float *bias) {
    LAUNCH_EACH(c, step, (size_t)N * (size_t)H * (size_t)P, H, P, y, x, z, bias);
}
extern "C" void cuda_step_backward(Cuda *c, int N, int H, int P, float *dx, float *dz, float *df, const float *dy,
                                   const float *x, const float *z, const float *bias) {
    size_t n = (size_t)N * (size_t)H;
    if (n)
        LAUNCH(step_backward, dim3((unsigned)((n + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, n, H, P, dx, dz, df,
               dy, x, z, bias);
}
extern "C" void cuda_skip(Cuda *c, int N, int H, int P, float *y, const float *x, const float *w) {
    LAUNCH_EACH(c, skip, (size_t)N * (size_t)H * (size_t)P, H, P, y, x, w);
}
extern "C" void cuda_skip_backward(Cuda *c, int N, int H, int P, float *dx, float *dw, const float *dy, const float *x,
                                   const float *w) {
    LAUNCH_EACH(c, skip_backward_x, (size_t)N * (size_t)H * (size_t)P, H, P, dx, dy, w);
    if (N > 0 && H > 0)
        LAUNCH(skip_backward_w, dim3((unsigned)H), dim3(BLOCK), WARPS * sizeof(float), c->stream, N, H, P, dw, dy, x);
}
