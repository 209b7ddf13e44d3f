/* lines.cu: linear attention's ones and division, Mamba-2's step and skip, for either element type. */
#include "kernel.h"

/* Groups of V + 1 are not aligned, so elements are processed one by one. */
template <class T> __global__ void append_ones(size_t n, int V, T *y, const T *x) {
    size_t w = (size_t)V + 1;
    EACH(i, n) store<1>(y + i, {i % w < (size_t)V ? number(x[i / w * (size_t)V + i % w]) : 1});
}
template <class T> __global__ void append_ones_backward(size_t n, int V, T *dx, const T *dy, bool overwrite) {
    EACH(i, n) add_to<1>(dx + i, {number(dy[i / (size_t)V * ((size_t)V + 1) + i % (size_t)V])}, overwrite);
}
template <class T> __global__ void divide_by_last(size_t n, int V, T *y, const T *x, float eps) {
    EACH(i, n) {
        const T *a = x + i / (size_t)V * ((size_t)V + 1);
        store<1>(y + i, {number(a[i % (size_t)V]) / (number(a[V]) + eps)});
    }
}
/* One warp per group. */
template <class T>
__global__ void divide_by_last_backward(size_t M, int V, T *dx, const T *dy, const T *y, const T *x, float eps,
                                        bool overwrite) {
    size_t g = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (g >= M) return;
    T *o = dx + g * ((size_t)V + 1);
    float f = 1 / (number(x[g * ((size_t)V + 1) + (size_t)V]) + eps), s = 0;
    for (int k = lane; k < V; k += 32) {
        size_t i = g * (size_t)V + (size_t)k;
        float d = number(dy[i]);
        add_to<1>(o + k, {d * f}, overwrite);
        s += d * number(y[i]);
    }
    s = warp_sum(s);
    if (lane == 0) add_to<1>(o + V, {-s * f}, overwrite);
}
template <class T>
static void divide_by_last_back(Cuda *c, size_t M, int V, void *dx, const void *dy, const void *y, const void *x,
                                float eps, bool overwrite) {
    if (M > 0)
        LAUNCH((divide_by_last_backward<T>), dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, V,
               as<T>(dx), as<T>(dy), as<T>(y), as<T>(x), eps, overwrite);
}
extern "C" void cuda_append_ones(Cuda *c, size_t M, int V, void *y, const void *x, bool is_bf16) {
    size_t n = M * ((size_t)V + 1);
    if (is_bf16)
        LAUNCH_EACH(c, (append_ones<bf16>), n, V, as<bf16>(y), as<bf16>(x));
    else
        LAUNCH_EACH(c, (append_ones<float>), n, V, as<float>(y), as<float>(x));
}
extern "C" void cuda_append_ones_backward(Cuda *c, size_t M, int V, void *dx, const void *dy, bool is_bf16,
                                          bool overwrite) {
    size_t n = M * (size_t)V;
    if (is_bf16)
        LAUNCH_EACH(c, (append_ones_backward<bf16>), n, V, as<bf16>(dx), as<bf16>(dy), overwrite);
    else
        LAUNCH_EACH(c, (append_ones_backward<float>), n, V, as<float>(dx), as<float>(dy), overwrite);
}
extern "C" void cuda_divide_by_last(Cuda *c, size_t M, int V, void *y, const void *x, float eps, bool is_bf16) {
    size_t n = M * (size_t)V;
    if (is_bf16)
        LAUNCH_EACH(c, (divide_by_last<bf16>), n, V, as<bf16>(y), as<bf16>(x), eps);
    else
        LAUNCH_EACH(c, (divide_by_last<float>), n, V, as<float>(y), as<float>(x), eps);
}
extern "C" void cuda_divide_by_last_backward(Cuda *c, size_t M, int V, void *dx, const void *dy, const void *y,
                                             const void *x, float eps, bool is_bf16, bool overwrite) {
    (is_bf16 ? divide_by_last_back<bf16> : divide_by_last_back<float>)(c, M, V, dx, dy, y, x, eps, overwrite);
}

DEVICE float softplus1(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* W elements of one head at a time. */
template <class T, int W>
__global__ void step(size_t n, int H, int P, T *y, const T *x, const float *z, const float *bias) {
    EACH(i, n) {
        float v[W], f = softplus1(z[i * W / (size_t)P] + bias[i * W / (size_t)P % (size_t)H]);
        fetch<W>(v, x + i * W);
        UNROLL
        for (int k = 0; k < W; k++) v[k] *= f;
        store<W>(y + i * W, v);
    }
}
/* One warp per head of a row; df is its part of dbias. */
template <class T>
__global__ void step_backward(size_t n, int H, int P, T *dx, float *dz, float *df, const T *dy, const T *x,
                              const float *z, const float *bias, bool overwrite_x, bool overwrite_z) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (i >= n) return;
    float a = z[i] + bias[i % (size_t)H], f = softplus1(a), s = 0;
    for (size_t k = i * (size_t)P + (size_t)lane; k < (i + 1) * (size_t)P; k += 32) {
        float d = number(dy[k]);
        s += d * number(x[k]);
        add_to<1>(dx + k, {f * d}, overwrite_x);
    }
    s = warp_sum(s) * sigmoid1(a);
    if (lane == 0) {
        add_to<1>(dz + i, {s}, overwrite_z);
        df[i] = s;
    }
}
/* Add w x to y or dx, or overwrite it. */
template <class T, int W>
__global__ void skip(size_t n, int H, int P, T *y, const T *x, const float *w, bool overwrite) {
    EACH(i, n) {
        float v[W], f = w[i * W / (size_t)P % (size_t)H];
        fetch<W>(v, x + i * W);
        UNROLL
        for (int k = 0; k < W; k++) v[k] *= f;
        add_to<W>(y + i * W, v, overwrite);
    }
}
/* One block per head. */
template <class T> __global__ void skip_backward_w(int N, int H, int P, float *dw, const T *dy, const T *x) {
    SMEM_DYN(float, part);
    size_t n = (size_t)N * (size_t)P;
    float s = 0;
    for (size_t k = threadIdx.x; k < n; k += BLOCK) {
        size_t i = (k / (size_t)P * (size_t)H + blockIdx.x) * (size_t)P + k % (size_t)P;
        s += number(dy[i]) * number(x[i]);
    }
    s = block_sum(s, part);
    if (threadIdx.x == 0) dw[blockIdx.x] += s;
}
extern "C" void cuda_step(Cuda *c, int N, int H, int P, void *y, const void *x, const float *z, const float *bias,
                          bool is_bf16) {
    size_t n = (size_t)N * (size_t)H * (size_t)P;
    if (!is_bf16)
        LAUNCH_EACH(c, (step<float, 1>), n, H, P, as<float>(y), as<float>(x), z, bias);
    else if (by_eight((size_t)P, y, x))
        LAUNCH_EACH(c, (step<bf16, 8>), n / 8, H, P, as<bf16>(y), as<bf16>(x), z, bias);
    else
        LAUNCH_EACH(c, (step<bf16, 1>), n, H, P, as<bf16>(y), as<bf16>(x), z, bias);
}
extern "C" void cuda_step_backward(Cuda *c, int N, int H, int P, void *dx, float *dz, float *df, const void *dy,
                                   const void *x, const float *z, const float *bias, bool is_bf16, bool overwrite_x,
                                   bool overwrite_z) {
    size_t n = (size_t)N * (size_t)H;
    dim3 grid((unsigned)((n + WARPS - 1) / WARPS));
    if (n && is_bf16)
        LAUNCH((step_backward<bf16>), grid, dim3(BLOCK), 0, c->stream, n, H, P, as<bf16>(dx), dz, df, as<bf16>(dy),
               as<bf16>(x), z, bias, overwrite_x, overwrite_z);
    else if (n)
        LAUNCH((step_backward<float>), grid, dim3(BLOCK), 0, c->stream, n, H, P, as<float>(dx), dz, df, as<float>(dy),
               as<float>(x), z, bias, overwrite_x, overwrite_z);
}
static void skip_of(Cuda *c, int N, int H, int P, void *y, const void *x, const float *w, bool is_bf16,
                    bool overwrite) {
    size_t n = (size_t)N * (size_t)H * (size_t)P;
    if (!is_bf16)
        LAUNCH_EACH(c, (skip<float, 1>), n, H, P, as<float>(y), as<float>(x), w, overwrite);
    else if (by_eight((size_t)P, y, x))
        LAUNCH_EACH(c, (skip<bf16, 8>), n / 8, H, P, as<bf16>(y), as<bf16>(x), w, overwrite);
    else
        LAUNCH_EACH(c, (skip<bf16, 1>), n, H, P, as<bf16>(y), as<bf16>(x), w, overwrite);
}
extern "C" void cuda_skip(Cuda *c, int N, int H, int P, void *y, const void *x, const float *w, bool is_bf16) {
    skip_of(c, N, H, P, y, x, w, is_bf16, false);
}
extern "C" void cuda_skip_backward(Cuda *c, int N, int H, int P, void *dx, float *dw, const void *dy, const void *x,
                                   const float *w, bool is_bf16, bool overwrite) {
    const size_t room = WARPS * sizeof(float);
    skip_of(c, N, H, P, dx, dy, w, is_bf16, overwrite);
    if (N > 0 && H > 0 && is_bf16)
        LAUNCH((skip_backward_w<bf16>), dim3((unsigned)H), dim3(BLOCK), room, c->stream, N, H, P, dw, as<bf16>(dy),
               as<bf16>(x));
    else if (N > 0 && H > 0)
        LAUNCH((skip_backward_w<float>), dim3((unsigned)H), dim3(BLOCK), room, c->stream, N, H, P, dw, as<float>(dy),
               as<float>(x));
}
