/* gates.cu: the ops around a recurrence: decay gates and the gated norm of the output. */
#include "sums.h"

/* log(1 + e^a), without overflow and to full precision for a << 0. */
DEVICE float softplus1(float a) { return fmaxf(a, 0) + log1pf(expf(-fabsf(a))); }

/* One element of the gate: z includes its bias, rate = exp(A). */
DEVICE float gate_value(CudaGate k, float z, float rate) {
    if (k.kind == CUDA_GATE_SOFTPLUS) return -rate * softplus1(z);
    if (k.kind == CUDA_GATE_BOUND) return k.param * sigmoid1(rate * z);
    return -softplus1(-z) / k.param;
}
/* Its derivative by z; *by_A receives the derivative by A. */
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

/* z (N,H,D); column k belongs to head k / D and has element k of the bias. A block computes 32 columns of a slice of
 * the rows; its warps take every WARPS-th row. The rate, which needs an exponential in f64, is computed once for all
 * of them. */
template <class Z>
__global__ void decay(int N, int each, int H, int D, float *g, const Z *z, const float *A, const float *bias,
                      CudaGate k) {
    int warp = (int)threadIdx.x / 32, col = (int)blockIdx.x * 32 + (int)threadIdx.x % 32, width = H * D,
        from = (int)blockIdx.y * each, to = from + each < N ? from + each : N;
    if (col >= width) return;
    float rate = rate_of(A, (size_t)(col / D)), b = bias ? bias[col] : 0;
    BY_FOUR
    for (int t = from + warp; t < to; t += WARPS) {
        size_t i = (size_t)t * (size_t)width + (size_t)col;
        g[i] = gate_value(k, number(z[i]) + b, rate);
    }
}
/* Blocks as in decay: dz, and the slice's sums for the bias and for the rate (in f64, over terms of one sign). */
template <class Z>
__global__ void decay_backward(int N, int each, int H, int D, Z *dz, bool overwrite, float *biases, double *rates,
                               const float *dg, const Z *z, const float *A, const float *bias, CudaGate k) {
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
            float g = dg[i], v = g * gate_slope(k, number(z[i]) + b, rate, &by_A);
            if (dz) add_to<1>(dz + i, {v}, overwrite);
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
/* One block per head: the sum of its D columns of rates (slices, H D). */
__global__ void decay_backward_rate(int slices, int D, float *dA, const double *rates) {
    SMEM_DYN(double, part);
    size_t width = (size_t)gridDim.x * (size_t)D, first = (size_t)blockIdx.x * (size_t)D;
    double s = 0;
    for (unsigned j = threadIdx.x, of = (unsigned)D; j < (unsigned)slices * of; j += BLOCK)
        s += rates[j / of * width + first + j % of];
    s = block_sum(s, part);
    if (threadIdx.x == 0) dA[blockIdx.x] += (float)s;
}
extern "C" void cuda_decay(Cuda *c, int N, int H, int D, float *g, const void *z, const float *A, const float *bias,
                           CudaGate k, bool is_bf16) {
    if (N <= 0 || H <= 0 || D <= 0) return;
    int tiles = cuda_tiles(H * D), slices = cuda_slices((size_t)N, tiles), each = (int)rows_each((size_t)N, slices);
    dim3 grid((unsigned)tiles, (unsigned)slices);
    if (is_bf16)
        LAUNCH((decay<bf16>), grid, dim3(BLOCK), 0, c->stream, N, each, H, D, g, as<bf16>(z), A, bias, k);
    else
        LAUNCH((decay<float>), grid, dim3(BLOCK), 0, c->stream, N, each, H, D, g, as<float>(z), A, bias, k);
}
extern "C" void cuda_decay_backward(Cuda *c, int N, int H, int D, void *dz, float *dA, float *dbias, void *parts,
                                    const float *dg, const void *z, const float *A, const float *bias, CudaGate k,
                                    bool is_bf16, bool overwrite) {
    if (N <= 0 || H <= 0 || D <= 0) return;
    int tiles = cuda_tiles(H * D), slices = cuda_slices((size_t)N, tiles), each = (int)rows_each((size_t)N, slices);
    dim3 grid((unsigned)tiles, (unsigned)slices);
    const size_t room = BLOCK * sizeof(double);
    double *rates = (double *)parts;
    float *biases = (float *)(rates + (size_t)slices * (size_t)(H * D)), *to = dbias ? biases : nullptr;
    if (is_bf16)
        LAUNCH((decay_backward<bf16>), grid, dim3(BLOCK), room, c->stream, N, each, H, D, as<bf16>(dz), overwrite, to,
               dA ? rates : nullptr, dg, as<bf16>(z), A, bias, k);
    else
        LAUNCH((decay_backward<float>), grid, dim3(BLOCK), room, c->stream, N, each, H, D, as<float>(dz), overwrite, to,
               dA ? rates : nullptr, dg, as<float>(z), A, bias, k);
    if (dbias) cuda_fold(c, slices, H * D, dbias, biases);
    if (dA)
        LAUNCH(decay_backward_rate, dim3((unsigned)H), dim3(BLOCK), WARPS * sizeof(double), c->stream, slices, D, dA,
               rates);
}

/* ---- gated norm: one warp per group ----------------------------------------------------------------------------- */
DEVICE float gate_of(bool silu, float z) { return silu ? z * sigmoid1(z) : sigmoid1(z); }
DEVICE float gate_of_slope(bool silu, float z) {
    float s = sigmoid1(z);
    return silu ? s * (1 + z * (1 - s)) : s * (1 - s);
}
/* W elements at a time. */
template <class T, int W>
__global__ void gated_norm(size_t M, T *y, const T *x, const T *z, const float *w, CudaGatedNorm n) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, at = i * (size_t)n.width;
    int lane = (int)threadIdx.x % 32;
    if (i >= M) return;
    const float *gain = w ? w + i % (size_t)n.period * (size_t)n.width : nullptr;
    x += at, y += at, z += at;
    float v[W], u[W], g[W], s = 0;
    for (int c = lane * W; c < n.width; c += 32 * W) {
        fetch<W>(v, x + c);
        if (n.before) fetch<W>(u, z + c);
        UNROLL
        for (int j = 0; j < W; j++) {
            float a = n.before ? v[j] * gate_of(n.silu, u[j]) : v[j];
            s += a * a;
        }
    }
    float f = inverse_root(warp_sum(s) / (float)n.width + (float)n.eps);
    for (int c = lane * W; c < n.width; c += 32 * W) {
        fetch<W>(v, x + c), fetch<W>(u, z + c);
        if (gain) fetch<W>(g, gain + c);
        UNROLL
        for (int j = 0; j < W; j++) {
            v[j] *= f * gate_of(n.silu, u[j]);
            if (gain) v[j] *= g[j];
        }
        store<W>(y + c, v);
    }
}
template <class T> struct GatedNormGrad {
    size_t rows;
    T *dx, *dz;
    bool overwrite_x, overwrite_z;
    float *parts;
    const T *dy, *x, *z;
    const float *w;
    CudaGatedNorm n;
};
/* Add v to a row, by way of free registers. */
template <int TEAM, int E, class T>
DEVICE void add_row(T *row, float (&v)[E], float (&old)[E], int d, bool quads, bool overwrite) {
    if (!overwrite) {
        read_row<TEAM, E>(old, row, d, quads);
        UNROLL
        for (int e = 0; e < E; e++) v[e] += old[e];
    }
    write_row<TEAM, E>(row, v, d, quads);
}
/* With b the group as it enters the norm and h the gradient of b f: db = f h - f^3 b (b.h)/d. One team per group. The
 * teams of a block share a gain (blockIdx.y) and sum its gradient over their rows of a slice: parts (slices, period,
 * width), or NULL. */
template <int TEAM, int E, class T>
__global__ void __launch_bounds__(BLOCK, E <= 8 ? 2 : 1)
    gated_norm_backward(GatedNormGrad<T> g, size_t each, bool quads) {
    SMEM_DYN(float, part);
    constexpr bool roomy = E <= 8; /* there are enough registers to keep the gains */
    const CudaGatedNorm n = g.n;
    size_t from = blockIdx.x * each, to = from + each < g.rows ? from + each : g.rows, period = gridDim.y;
    const float *w = g.w;
    float gain[E], sum[E];
    UNROLL
    for (int e = 0; e < E; e++) gain[e] = 1, sum[e] = 0;
    if (w) w += blockIdx.y * (size_t)n.width;
    if (roomy && w) read_row<TEAM, E>(gain, w, n.width, quads);
    for (size_t i = from + threadIdx.x / TEAM; i < to; i += BLOCK / TEAM) {
        size_t at = (i * period + blockIdx.y) * (size_t)n.width;
        float v[E], u[E], d[E], f = 0, t = 0;
        read_row<TEAM, E>(v, g.x + at, n.width, quads);
        read_row<TEAM, E>(u, g.z + at, n.width, quads);
        read_row<TEAM, E>(d, g.dy + at, n.width, quads);
        if (!roomy && w) read_row<TEAM, E>(gain, w, n.width, quads);
        UNROLL
        for (int e = 0; e < E; e++) {
            float b = v[e] * gate_of(n.silu, u[e]);
            t += b * d[e] * gain[e];
            if (!n.before) b = v[e];
            f += b * b;
        }
        f = inverse_root(team_sum<TEAM>(f, part) / (float)n.width + (float)n.eps);
        t = team_sum<TEAM>(t, part) * f * f * f / (float)n.width;
        if (!roomy && w) read_row<TEAM, E>(gain, w, n.width, quads);
        UNROLL
        for (int e = 0; e < E; e++) {
            float gate = gate_of(n.silu, u[e]), h = f * d[e] * gain[e], a = n.before ? h - t * v[e] * gate : h;
            sum[e] += d[e] * v[e] * f * gate;
            d[e] = n.before ? a * gate : a * gate - t * v[e];
            u[e] = a * v[e] * gate_of_slope(n.silu, u[e]);
        }
        if (g.dx) add_row<TEAM, E>(g.dx + at, d, v, n.width, quads, g.overwrite_x);
        if (g.dz) add_row<TEAM, E>(g.dz + at, u, v, n.width, quads, g.overwrite_z);
    }
    if (g.parts)
        write_part<TEAM, E>(g.parts + (blockIdx.x * period + blockIdx.y) * (size_t)n.width, sum, n.width, quads, part);
}
/* The same for groups too wide for a block: they are read twice more, and sums grow in `parts`. */
template <class T> __global__ void gated_norm_backward_wide(GatedNormGrad<T> g, size_t each) {
    SMEM_DYN(float, part);
    const CudaGatedNorm n = g.n;
    size_t from = blockIdx.x * each, to = from + each < g.rows ? from + each : g.rows, period = gridDim.y;
    float *sum = g.parts ? g.parts + (blockIdx.x * period + blockIdx.y) * (size_t)n.width : nullptr;
    const float *gain = g.w ? g.w + blockIdx.y * (size_t)n.width : nullptr;
    for (int k = (int)threadIdx.x; k < n.width && sum; k += BLOCK) sum[k] = 0;
    for (size_t i = from; i < to; i++) {
        size_t at = (i * period + blockIdx.y) * (size_t)n.width;
        float f = 0, t = 0;
        for (int k = (int)threadIdx.x; k < n.width; k += BLOCK) {
            size_t j = at + (size_t)k;
            float v = number(g.x[j]), b = v * gate_of(n.silu, number(g.z[j]));
            t += b * number(g.dy[j]) * (gain ? gain[k] : 1);
            if (!n.before) b = v;
            f += b * b;
        }
        f = inverse_root(block_sum(f, part) / (float)n.width + (float)n.eps);
        t = block_sum(t, part) * f * f * f / (float)n.width;
        for (int k = (int)threadIdx.x; k < n.width; k += BLOCK) {
            size_t j = at + (size_t)k;
            float v = number(g.x[j]), u = number(g.z[j]), d = number(g.dy[j]), gate = gate_of(n.silu, u),
                  h = f * d * (gain ? gain[k] : 1), a = n.before ? h - t * v * gate : h;
            if (g.dx) add_to<1>(g.dx + j, {n.before ? a * gate : a * gate - t * v}, g.overwrite_x);
            if (g.dz) add_to<1>(g.dz + j, {a * v * gate_of_slope(n.silu, u)}, g.overwrite_z);
            if (sum) sum[k] += d * v * f * gate;
        }
    }
}
template <int TEAM, int E, class T> static void gated_norm_backward_of(Cuda *c, const GatedNormGrad<T> &g, int slices) {
    bool quads = g.n.width % 4 == 0 && aligned(g.dx) && aligned(g.dz) && aligned(g.parts) && aligned(g.dy) &&
                 aligned(g.x) && aligned(g.z) && aligned(g.w);
    LAUNCH((gated_norm_backward<TEAM, E, T>), dim3((unsigned)slices, (unsigned)g.n.period), dim3(BLOCK),
           team_bytes(g.n.width), c->stream, g, rows_each(g.rows, slices), quads);
}
template <class T, int W>
static void gated_norm_of(Cuda *c, size_t M, void *y, const void *x, const void *z, const float *w, CudaGatedNorm n) {
    LAUNCH((gated_norm<T, W>), dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, as<T>(y),
           as<T>(x), as<T>(z), w, n);
}
extern "C" void cuda_gated_norm(Cuda *c, size_t M, void *y, const void *x, const void *z, const float *w,
                                CudaGatedNorm n, bool is_bf16) {
    bool four = n.width % 4 == 0 && aligned(y) && aligned(x) && aligned(z) && aligned(w);
    auto run = is_bf16 ? gated_norm_of<bf16, 1> : gated_norm_of<float, 1>;
    if (four) run = is_bf16 ? gated_norm_of<bf16, 4> : gated_norm_of<float, 4>;
    if (M) run(c, M, y, x, z, w, n);
}
template <class T> static void gated_norm_back(Cuda *c, const GatedNormGrad<T> &g, int slices) {
    int d = g.n.width;
    if (d <= 16 * BLOCK) {
        auto run = d <= 128    ? gated_norm_backward_of<32, 4, T>
                   : d <= 512  ? gated_norm_backward_of<32, 16, T>
                   : d <= 1024 ? gated_norm_backward_of<BLOCK, 4, T>
                   : d <= 2048 ? gated_norm_backward_of<BLOCK, 8, T>
                               : gated_norm_backward_of<BLOCK, 16, T>;
        run(c, g, slices);
    } else
        LAUNCH((gated_norm_backward_wide<T>), dim3((unsigned)slices, (unsigned)g.n.period), dim3(BLOCK),
               WARPS * sizeof(float), c->stream, g, rows_each(g.rows, slices));
}
extern "C" void cuda_gated_norm_backward(Cuda *c, size_t M, void *dx, void *dz, float *dw, float *parts, const void *dy,
                                         const void *x, const void *z, const float *w, CudaGatedNorm n, bool is_bf16,
                                         bool overwrite_x, bool overwrite_z) {
    if (!M) return;
    size_t rows = M / (size_t)n.period;
    int slices = cuda_slices(rows, n.period * cuda_row_tiles(n.width));
    float *sums = dw ? parts : nullptr;
    if (is_bf16)
        gated_norm_back(c,
                        GatedNormGrad<bf16>{rows, as<bf16>(dx), as<bf16>(dz), overwrite_x, overwrite_z, sums,
                                            as<bf16>(dy), as<bf16>(x), as<bf16>(z), w, n},
                        slices);
    else
        gated_norm_back(c,
                        GatedNormGrad<float>{rows, as<float>(dx), as<float>(dz), overwrite_x, overwrite_z, sums,
                                             as<float>(dy), as<float>(x), as<float>(z), w, n},
                        slices);
    if (dw) cuda_fold(c, slices, n.period * n.width, dw, parts);
}
