/* gates.cu: what stands around a recurrence: decay gates and the gated norm of the output. */
#include "sums.h"

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
/* A block to 32 columns of a slice of the rows, whose warps take every WARPS-th row: dz, and the slice's sums for the
 * bias and, in f64, over terms of one sign, for the rate. */
__global__ void decay_backward(int N, int each, int H, int D, float *dz, float *biases, double *rates, const float *dg,
                               const float *z, const float *A, const float *bias, CudaGate k) {
    SMEM_DYN(double, mem);
    int warp = (int)threadIdx.x / 32, col = (int)blockIdx.x * 32 + (int)threadIdx.x % 32, width = H * D,
        from = (int)blockIdx.y * each, to = from + each < N ? from + each : N;
    size_t at = (size_t)blockIdx.y * (size_t)width + (size_t)col;
    float s = 0;
    double sum = 0;
    if (col < width) {
        float rate = rate_of(A, (size_t)(col / D)), b = bias ? bias[col] : 0, by_A;
        BY_FOUR
        for (int t = from + warp; t < to; t += WARPS) {
            size_t i = (size_t)t * (size_t)width + (size_t)col;
            float g = dg[i], v = g * gate_slope(k, z[i] + b, rate, &by_A);
            if (dz) dz[i] += v;
            s += v;
            if (rates) sum += (double)(g * by_A);
        }
    }
    if (biases) s = warps_sum(s, (float *)mem);
    if (rates) sum = warps_sum(sum, mem);
    if (warp || col >= width) return;
    if (biases) biases[at] = s;
    if (rates) rates[at] = sum;
}
/* A block to a head: the sum of its D columns of rates (slices, H D). */
__global__ void decay_backward_rate(int slices, int D, float *dA, const double *rates) {
    SMEM_DYN(double, part);
    size_t width = (size_t)gridDim.x * (size_t)D, first = (size_t)blockIdx.x * (size_t)D;
    double s = 0;
    for (size_t j = threadIdx.x; j < (size_t)slices * (size_t)D; j += BLOCK)
        s += rates[j / (size_t)D * width + first + j % (size_t)D];
    s = block_sum(s, part);
    if (threadIdx.x == 0) dA[blockIdx.x] += (float)s;
}
extern "C" void cuda_decay(Cuda *c, int N, int H, int D, float *g, const float *z, const float *A, const float *bias,
                           CudaGate k) {
    LAUNCH_EACH(c, decay, (size_t)N * (size_t)H * (size_t)D, H, D, g, z, A, bias, k);
}
extern "C" void cuda_decay_backward(Cuda *c, int N, int H, int D, float *dz, float *dA, float *dbias, void *parts,
                                    const float *dg, const float *z, const float *A, const float *bias, CudaGate k) {
    if (N <= 0 || H <= 0 || D <= 0) return;
    int tiles = cuda_tiles(H * D), slices = cuda_slices((size_t)N, tiles), each = (int)rows_each((size_t)N, slices);
    double *rates = (double *)parts;
    float *biases = (float *)(rates + (size_t)slices * (size_t)(H * D));
    LAUNCH(decay_backward, dim3((unsigned)tiles, (unsigned)slices), dim3(BLOCK), BLOCK * sizeof(double), c->stream, N,
           each, H, D, dz, dbias ? biases : nullptr, dA ? rates : nullptr, dg, z, A, bias, k);
    if (dbias) cuda_fold(c, slices, H * D, dbias, biases);
    if (dA)
        LAUNCH(decay_backward_rate, dim3((unsigned)H), dim3(BLOCK), WARPS * sizeof(double), c->stream, slices, D, dA,
               rates);
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
/* With b the group as it enters the norm and h the gradient of b f: db = f h - f^3 b (b.h)/d. A team to a group; those
 * of a block share a gain (blockIdx.y) and sum its gradient over their rows of a slice: parts (slices, period, width),
 * or NULL. */
template <int TEAM, int E>
__global__ void __launch_bounds__(BLOCK, E <= 8 ? 2 : 1)
    gated_norm_backward(size_t rows, size_t each, bool quads, float *dx, float *dz, float *parts, const float *dy,
                        const float *x, const float *z, const float *w, CudaGatedNorm n) {
    SMEM_DYN(float, part);
    constexpr bool roomy = E <= 8; /* registers allow to keep the gains */
    size_t from = blockIdx.x * each, to = from + each < rows ? from + each : rows, period = gridDim.y;
    float gain[E], sum[E];
    UNROLL
    for (int e = 0; e < E; e++) gain[e] = 1, sum[e] = 0;
    if (w) w += blockIdx.y * (size_t)n.width;
    if (roomy && w) read_row<TEAM, E>(gain, w, n.width, quads);
    for (size_t i = from + threadIdx.x / TEAM; i < to; i += BLOCK / TEAM) {
        size_t at = (i * period + blockIdx.y) * (size_t)n.width;
        float v[E], u[E], g[E], f = 0, t = 0;
        read_row<TEAM, E>(v, x + at, n.width, quads);
        read_row<TEAM, E>(u, z + at, n.width, quads);
        read_row<TEAM, E>(g, dy + at, n.width, quads);
        if (!roomy && w) read_row<TEAM, E>(gain, w, n.width, quads);
        UNROLL
        for (int e = 0; e < E; e++) {
            float b = v[e] * gate_of(n.silu, u[e]);
            t += b * g[e] * gain[e];
            if (!n.before) b = v[e];
            f += b * b;
        }
        f = (float)(1 / sqrt((double)team_sum<TEAM>(f, part) / n.width + n.eps));
        t = team_sum<TEAM>(t, part) * f * f * f / (float)n.width;
        if (!roomy && w) read_row<TEAM, E>(gain, w, n.width, quads);
        UNROLL
        for (int e = 0; e < E; e++) {
            float gate = gate_of(n.silu, u[e]), h = f * g[e] * gain[e], a = n.before ? h - t * v[e] * gate : h;
            sum[e] += g[e] * v[e] * f * gate;
            g[e] = n.before ? a * gate : a * gate - t * v[e];
            u[e] = a * v[e] * gate_of_slope(n.silu, u[e]);
        }
        if (dx) {
            read_row<TEAM, E>(v, dx + at, n.width, quads);
            UNROLL
            for (int e = 0; e < E; e++) v[e] += g[e];
            write_row<TEAM, E>(dx + at, v, n.width, quads);
        }
        if (dz) {
            read_row<TEAM, E>(v, dz + at, n.width, quads);
            UNROLL
            for (int e = 0; e < E; e++) v[e] += u[e];
            write_row<TEAM, E>(dz + at, v, n.width, quads);
        }
    }
    if (parts)
        write_part<TEAM, E>(parts + (blockIdx.x * period + blockIdx.y) * (size_t)n.width, sum, n.width, quads, part);
}
/* The same of groups that no block holds: they are read twice more, and sums grow in `parts`. */
__global__ void gated_norm_backward_wide(size_t rows, size_t each, float *dx, float *dz, float *parts, const float *dy,
                                         const float *x, const float *z, const float *w, CudaGatedNorm n) {
    SMEM_DYN(float, part);
    size_t from = blockIdx.x * each, to = from + each < rows ? from + each : rows, period = gridDim.y;
    float *sum = parts ? parts + (blockIdx.x * period + blockIdx.y) * (size_t)n.width : nullptr;
    const float *gain = w ? w + blockIdx.y * (size_t)n.width : nullptr;
    for (int k = (int)threadIdx.x; k < n.width && sum; k += BLOCK) sum[k] = 0;
    for (size_t i = from; i < to; i++) {
        size_t at = (i * period + blockIdx.y) * (size_t)n.width;
        float f = 0, t = 0;
        for (int k = (int)threadIdx.x; k < n.width; k += BLOCK) {
            float v = x[at + (size_t)k], b = v * gate_of(n.silu, z[at + (size_t)k]);
            t += b * dy[at + (size_t)k] * (gain ? gain[k] : 1);
            if (!n.before) b = v;
            f += b * b;
        }
        f = (float)(1 / sqrt((double)block_sum(f, part) / n.width + n.eps));
        t = block_sum(t, part) * f * f * f / (float)n.width;
        for (int k = (int)threadIdx.x; k < n.width; k += BLOCK) {
            float v = x[at + (size_t)k], u = z[at + (size_t)k], g = dy[at + (size_t)k], gate = gate_of(n.silu, u),
                  h = f * g * (gain ? gain[k] : 1), a = n.before ? h - t * v * gate : h;
            if (dx) dx[at + (size_t)k] += n.before ? a * gate : a * gate - t * v;
            if (dz) dz[at + (size_t)k] += a * v * gate_of_slope(n.silu, u);
            if (sum) sum[k] += g * v * f * gate;
        }
    }
}
struct GatedNormGrad {
    size_t rows;
    float *dx, *dz, *parts;
    const float *dy, *x, *z, *w;
    CudaGatedNorm n;
};
template <int TEAM, int E> static void gated_norm_backward_of(Cuda *c, const GatedNormGrad &g, int slices) {
    bool quads = g.n.width % 4 == 0 && aligned(g.dx) && aligned(g.dz) && aligned(g.parts) && aligned(g.dy) &&
                 aligned(g.x) && aligned(g.z) && aligned(g.w);
    LAUNCH((gated_norm_backward<TEAM, E>), dim3((unsigned)slices, (unsigned)g.n.period), dim3(BLOCK),
           team_bytes(g.n.width), c->stream, g.rows, rows_each(g.rows, slices), quads, g.dx, g.dz, g.parts, g.dy, g.x,
           g.z, g.w, g.n);
}
extern "C" void cuda_gated_norm(Cuda *c, size_t M, float *y, const float *x, const float *z, const float *w,
                                CudaGatedNorm n) {
    if (M) LAUNCH(gated_norm, dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, y, x, z, w, n);
}
extern "C" void cuda_gated_norm_backward(Cuda *c, size_t M, float *dx, float *dz, float *dw, float *parts,
                                         const float *dy, const float *x, const float *z, const float *w,
                                         CudaGatedNorm n) {
    if (!M) return;
    GatedNormGrad g = {M / (size_t)n.period, dx, dz, dw ? parts : nullptr, dy, x, z, w, n};
    int slices = cuda_slices(g.rows, n.period * cuda_row_tiles(n.width));
    if (n.width <= 16 * BLOCK)
        ROW_TEAM(n.width, gated_norm_backward_of, c, g, slices);
    else
        LAUNCH(gated_norm_backward_wide, dim3((unsigned)slices, (unsigned)n.period), dim3(BLOCK), WARPS * sizeof(float),
               c->stream, g.rows, rows_each(g.rows, slices), dx, dz, g.parts, dy, x, z, w, n);
    if (dw) cuda_fold(c, slices, n.period * n.width, dw, parts);
}
