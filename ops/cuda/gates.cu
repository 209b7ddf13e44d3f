/* gates.cu: what stands around a recurrence: decay gates and the gated norm of the output. */
#include "kernel.h"

/* log(1 + e^a), without overflow and to full precision for a << 0. */
DEVICE float softplus1(float a) { return fmaxf(a, 0) + log1pf(expf(-fabsf(a))); }

/* One number of the gate: z already with its bias, rate = exp(A). */
DEVICE float gate_value(CudaGate k, float z, float rate) {
    if (k.kind == CUDA_GATE_SOFTPLUS) return -rate * softplus1(z);
    if (k.kind == CUDA_GATE_BOUND) return k.param * sigmoid1(rate * z);
    return -softplus1(-z) / k.param;
}
/* Its derivative by z; *by_A that by A. */
DEVICE float gate_slope(CudaGate k, float z, float rate, float *by_A) {
    if (k.kind == CUDA_GATE_SOFTPLUS) {
        *by_A = -rate * softplus1(z);
        return -rate * sigmoid1(z);
    }
    if (k.kind == CUDA_GATE_BOUND) {
        float e = expf(-fabsf(rate * z)), f = k.param * rate * e / ((1 + e) * (1 + e));
        *by_A = f * z;
        return f;
    }
    *by_A = 0;
    return sigmoid1(-z) / k.param;
}
DEVICE float rate_of(const float *A, size_t h) { return A ? (float)exp((double)A[h]) : 1; }

/* z (N,H,D); number i is of head i / D % H and of number i % (H D) of the bias. */
__global__ void decay(size_t n, int H, int D, float *g, const float *z, const float *A, const float *bias, CudaGate k) {
    size_t width = (size_t)H * (size_t)D;
    EACH(i, n) { g[i] = gate_value(k, z[i] + (bias ? bias[i % width] : 0), rate_of(A, i % width / (size_t)D)); }
}
__global__ void decay_backward_z(size_t n, int H, int D, float *dz, const float *dg, const float *z, const float *A,
                                 const float *bias, CudaGate k) {
    size_t width = (size_t)H * (size_t)D;
    EACH(i, n) {
        float by_A;
        dz[i] += dg[i] * gate_slope(k, z[i] + (bias ? bias[i % width] : 0), rate_of(A, i % width / (size_t)D), &by_A);
    }
}
/* A block to 32 columns, as in norm.cu. */
__global__ void decay_backward_bias(int N, int H, int D, float *dbias, const float *dg, const float *z, const float *A,
                                    const float *bias, CudaGate k) {
    SMEM_DYN(float, part);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, col = (int)blockIdx.x * 32 + lane, width = H * D;
    float s = 0, by_A;
    if (col < width) {
        float rate = rate_of(A, (size_t)(col / D)), b = bias ? bias[col] : 0;
        for (int t = warp; t < N; t += WARPS) {
            size_t i = (size_t)t * (size_t)width + (size_t)col;
            s += dg[i] * gate_slope(k, z[i] + b, rate, &by_A);
        }
    }
    part[threadIdx.x] = s;
    __syncthreads();
    if (warp || col >= width) return;
    for (int v = 1; v < WARPS; v++) s += part[v * 32 + lane];
    dbias[col] += s;
}
/* A block to a head; in f64, over N D terms of one sign. */
__global__ void decay_backward_rate(int N, int H, int D, float *dA, const float *dg, const float *z, const float *A,
                                    const float *bias, CudaGate k) {
    SMEM_DYN(double, part);
    size_t h = blockIdx.x, n = (size_t)N * (size_t)D, width = (size_t)H * (size_t)D;
    float rate = rate_of(A, h);
    double s = 0;
    for (size_t j = threadIdx.x; j < n; j += BLOCK) {
        size_t col = h * (size_t)D + j % (size_t)D, i = j / (size_t)D * width + col;
        float by_A;
        gate_slope(k, z[i] + (bias ? bias[col] : 0), rate, &by_A);
        s += (double)(dg[i] * by_A);
    }
    s = block_sum(s, part);
    if (threadIdx.x == 0) dA[h] += (float)s;
}
extern "C" void cuda_decay(Cuda *c, int N, int H, int D, float *g, const float *z, const float *A, const float *bias,
                           CudaGate k) {
    LAUNCH_EACH(c, decay, (size_t)N * (size_t)H * (size_t)D, H, D, g, z, A, bias, k);
}
extern "C" void cuda_decay_backward(Cuda *c, int N, int H, int D, float *dz, float *dA, float *dbias, const float *dg,
                                    const float *z, const float *A, const float *bias, CudaGate k) {
    if (N <= 0 || H <= 0 || D <= 0) return;
    if (dz) LAUNCH_EACH(c, decay_backward_z, (size_t)N * (size_t)H * (size_t)D, H, D, dz, dg, z, A, bias, k);
    if (dbias)
        LAUNCH(decay_backward_bias, dim3((unsigned)(H * D + 31) / 32), dim3(BLOCK), BLOCK * sizeof(float), c->stream, N,
               H, D, dbias, dg, z, A, bias, k);
    if (dA)
        LAUNCH(decay_backward_rate, dim3((unsigned)H), dim3(BLOCK), WARPS * sizeof(double), c->stream, N, H, D, dA, dg,
               z, A, bias, k);
}

/* ---- gated norm: a warp to a group ---- */
DEVICE float gate_of(bool silu, float z) { return silu ? z * sigmoid1(z) : sigmoid1(z); }
DEVICE float gate_of_slope(bool silu, float z) {
    float s = sigmoid1(z);
    return silu ? s * (1 + z * (1 - s)) : s * (1 - s);
}
DEVICE float norm_factor(const float *x, const float *z, int lane, CudaGatedNorm n) {
    float s = 0;
    for (int c = lane; c < n.width; c += 32) {
        float a = n.before ? x[c] * gate_of(n.silu, z[c]) : x[c];
        s += a * a;
    }
    return (float)(1 / sqrt((double)warp_sum(s) / n.width + n.eps));
}
__global__ void gated_norm(size_t M, float *y, const float *x, const float *z, const float *w, CudaGatedNorm n) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, at = i * (size_t)n.width;
    int lane = (int)threadIdx.x % 32;
    if (i >= M) return;
    const float *gain = w ? w + i % (size_t)n.period * (size_t)n.width : nullptr;
    float f = norm_factor(x + at, z + at, lane, n);
    for (int c = lane; c < n.width; c += 32) {
        float v = x[at + (size_t)c] * f * gate_of(n.silu, z[at + (size_t)c]);
        y[at + (size_t)c] = gain ? v * gain[c] : v;
    }
}
/* With b the group as it enters the norm and h the gradient of b f: db = f h - f^3 b (b.h)/d. */
__global__ void gated_norm_backward(size_t M, float *dx, float *dz, float *factor, const float *dy, const float *x,
                                    const float *z, const float *w, CudaGatedNorm n) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, at = i * (size_t)n.width;
    int lane = (int)threadIdx.x % 32;
    if (i >= M) return;
    const float *gain = w ? w + i % (size_t)n.period * (size_t)n.width : nullptr;
    float f = norm_factor(x + at, z + at, lane, n), t = 0;
    for (int c = lane; c < n.width; c += 32) {
        size_t k = at + (size_t)c;
        t += x[k] * (gain ? dy[k] * gain[c] : dy[k]) * gate_of(n.silu, z[k]);
    }
    t = warp_sum(t) * f * f * f / (float)n.width;
    for (int c = lane; c < n.width; c += 32) {
        size_t k = at + (size_t)c;
        float h = gain ? dy[k] * gain[c] : dy[k], v = x[k], u = z[k], gate = gate_of(n.silu, u);
        if (dx) dx[k] += n.before ? (f * h - t * v * gate) * gate : f * h * gate - t * v;
        if (dz) dz[k] += (n.before ? f * h - t * v * gate : f * h) * v * gate_of_slope(n.silu, u);
    }
    if (lane == 0) factor[i] = f;
}
/* A block to 32 of period * width gains, as in norm.cu. */
__global__ void gated_norm_backward_gain(size_t rows, float *dw, const float *dy, const float *x, const float *z,
                                         const float *factor, CudaGatedNorm n) {
    SMEM_DYN(float, part);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, col = (int)blockIdx.x * 32 + lane,
        width = n.period * n.width;
    float s = 0;
    for (size_t r = (size_t)warp; r < rows && col < width; r += WARPS) {
        size_t k = r * (size_t)width + (size_t)col;
        s += dy[k] * x[k] * factor[k / (size_t)n.width] * gate_of(n.silu, z[k]);
    }
    part[threadIdx.x] = s;
    __syncthreads();
    if (warp || col >= width) return;
    for (int v = 1; v < WARPS; v++) s += part[v * 32 + lane];
    dw[col] += s;
}
extern "C" void cuda_gated_norm(Cuda *c, size_t M, float *y, const float *x, const float *z, const float *w,
                                CudaGatedNorm n) {
    if (M) LAUNCH(gated_norm, dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, y, x, z, w, n);
}
extern "C" void cuda_gated_norm_backward(Cuda *c, size_t M, float *dx, float *dz, float *dw, float *factor,
                                         const float *dy, const float *x, const float *z, const float *w,
                                         CudaGatedNorm n) {
    if (!M) return;
    LAUNCH(gated_norm_backward, dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, dx, dz, factor,
           dy, x, z, w, n);
    if (dw)
        LAUNCH(gated_norm_backward_gain, dim3((unsigned)(n.period * n.width + 31) / 32), dim3(BLOCK),
               BLOCK * sizeof(float), c->stream, M / (size_t)n.period, dw, dy, x, z, factor, n);
}
