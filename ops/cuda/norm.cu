/* norm.cu: RMSNorm, LayerNorm and L2 normalisation, a block to a row; backward a warp where a row is short. */
#include "sums.h"

__global__ void rmsnorm(int d, float *y, float *rstd, const float *x, const float *w, double eps) {
    SMEM_DYN(float, part);
    const float *xi = x + (size_t)blockIdx.x * (size_t)d;
    float *yi = y + (size_t)blockIdx.x * (size_t)d, s = 0;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) s += xi[k] * xi[k];
    s = (float)(1 / sqrt((double)block_sum(s, part) / d + eps));
    if (threadIdx.x == 0) rstd[blockIdx.x] = s;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) yi[k] = xi[k] * s * w[k];
}
extern "C" void cuda_rmsnorm(Cuda *c, int N, int d, float *y, float *rstd, const float *x, const float *w, double eps) {
    if (N > 0) LAUNCH(rmsnorm, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, y, rstd, x, w, eps);
}

/* Both norms' backward: a team to a row, whose teams sum the gains' gradient, and with `centred` (LayerNorm) the bias's,
 * over their rows of the block's slice: parts (slices, d), those of the bias behind all of the gains'. */
template <int TEAM, int E, bool centred>
__global__ void __launch_bounds__(BLOCK, E <= 16 ? 2 : 1)
    norm_backward(int N, int each, int d, bool quads, float *dx, float *parts, const float *dy, const float *x,
                  const float *w, const float *rstd) {
    SMEM_DYN(float, part);
    constexpr bool roomy = E <= 8; /* registers allow to keep the gains and to ask for dx along with dy and x */
    int from = (int)blockIdx.x * each, to = from + each < N ? from + each : N;
    float gain[E], sum[E], bias[E];
    if (roomy) read_row<TEAM, E>(gain, w, d, quads);
    UNROLL
    for (int e = 0; e < E; e++) sum[e] = bias[e] = 0;
    for (int i = from + (int)threadIdx.x / TEAM; i < to; i += BLOCK / TEAM) {
        size_t at = (size_t)i * (size_t)d;
        float g[E], n[E], old[E], s = rstd[i], mean = 0, t = 0, tn = 0;
        read_row<TEAM, E>(g, dy + at, d, quads);
        read_row<TEAM, E>(n, x + at, d, quads);
        if (roomy) read_row<TEAM, E>(old, dx + at, d, quads);
        if (centred) {
            UNROLL
            for (int e = 0; e < E; e++) mean += n[e];
            mean = team_sum<TEAM>(mean, part) / (float)d;
        }
        if (!roomy) read_row<TEAM, E>(gain, w, d, quads);
        UNROLL
        for (int e = 0; e < E; e++) {
            if (centred) n[e] -= mean, bias[e] += g[e];
            sum[e] += g[e] * n[e] * s;
            g[e] *= gain[e];
            t += g[e], tn += g[e] * n[e];
        }
        if (centred) t = team_sum<TEAM>(t, part) / (float)d;
        tn = team_sum<TEAM>(tn, part) * s * s / (float)d;
        if (!roomy) read_row<TEAM, E>(old, dx + at, d, quads);
        UNROLL
        for (int e = 0; e < E; e++) old[e] += s * (g[e] - (centred ? t : 0) - n[e] * tn);
        write_row<TEAM, E>(dx + at, old, d, quads);
    }
    parts += (size_t)blockIdx.x * (size_t)d;
    write_part<TEAM, E>(parts, sum, d, quads, part);
    if (centred) write_part<TEAM, E>(parts + (size_t)gridDim.x * (size_t)d, bias, d, quads, part);
}
/* The same of rows that no block holds: they are read twice, with `centred` three times, and sums grow in `parts`. */
template <bool centred>
__global__ void norm_backward_wide(int N, int each, int d, float *dx, float *parts, const float *dy, const float *x,
                                   const float *w, const float *rstd) {
    SMEM_DYN(float, part);
    int from = (int)blockIdx.x * each, to = from + each < N ? from + each : N;
    float *sum = parts + (size_t)blockIdx.x * (size_t)d, *bias = sum + (size_t)gridDim.x * (size_t)d;
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
        sum[k] = 0;
        if (centred) bias[k] = 0;
    }
    for (int i = from; i < to; i++) {
        size_t at = (size_t)i * (size_t)d;
        const float *g = dy + at, *n = x + at;
        float s = rstd[i], mean = 0, t = 0, tn = 0;
        for (int k = (int)threadIdx.x; k < d && centred; k += BLOCK) mean += n[k];
        if (centred) mean = block_sum(mean, part) / (float)d;
        for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
            float h = g[k] * w[k];
            t += h, tn += h * (n[k] - mean);
        }
        if (centred) t = block_sum(t, part) / (float)d;
        tn = block_sum(tn, part) * s * s / (float)d;
        for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
            float u = n[k] - mean;
            dx[at + (size_t)k] += s * (g[k] * w[k] - (centred ? t : 0) - u * tn);
            sum[k] += g[k] * u * s;
            if (centred) bias[k] += g[k];
        }
    }
}
struct NormGrad {
    int N, d;
    float *dx, *parts;
    const float *dy, *x, *w, *rstd;
};
template <int TEAM, int E> static void norm_backward_of(Cuda *c, bool centred, const NormGrad &g, int slices) {
    bool quads = g.d % 4 == 0 && aligned(g.dx) && aligned(g.dy) && aligned(g.x) && aligned(g.w) && aligned(g.parts);
    int each = (int)rows_each((size_t)g.N, slices);
    dim3 grid((unsigned)slices);
    if (centred)
        LAUNCH((norm_backward<TEAM, E, true>), grid, dim3(BLOCK), team_bytes(g.d), c->stream, g.N, each, g.d, quads,
               g.dx, g.parts, g.dy, g.x, g.w, g.rstd);
    else
        LAUNCH((norm_backward<TEAM, E, false>), grid, dim3(BLOCK), team_bytes(g.d), c->stream, g.N, each, g.d, quads,
               g.dx, g.parts, g.dy, g.x, g.w, g.rstd);
}
static void norm_backward_rows(Cuda *c, bool centred, float *dw, float *db, const NormGrad &g) {
    if (g.N <= 0) return;
    int slices = cuda_slices((size_t)g.N, cuda_row_tiles(g.d)), each = (int)rows_each((size_t)g.N, slices);
    dim3 grid((unsigned)slices);
    if (g.d <= 16 * BLOCK)
        ROW_TEAM(g.d, norm_backward_of, c, centred, g, slices);
    else if (g.d <= 32 * BLOCK)
        norm_backward_of<BLOCK, 32>(c, centred, g, slices);
    else if (centred)
        LAUNCH((norm_backward_wide<true>), grid, dim3(BLOCK), WARPS * sizeof(float), c->stream, g.N, each, g.d, g.dx,
               g.parts, g.dy, g.x, g.w, g.rstd);
    else
        LAUNCH((norm_backward_wide<false>), grid, dim3(BLOCK), WARPS * sizeof(float), c->stream, g.N, each, g.d, g.dx,
               g.parts, g.dy, g.x, g.w, g.rstd);
    cuda_fold(c, slices, g.d, dw, g.parts);
    if (centred) cuda_fold(c, slices, g.d, db, g.parts + (size_t)slices * (size_t)g.d);
}
extern "C" void cuda_rmsnorm_backward(Cuda *c, int N, int d, float *dx, float *dw, float *parts, const float *dy,
                                      const float *x, const float *w, const float *rstd) {
    norm_backward_rows(c, false, dw, nullptr, NormGrad{N, d, dx, parts, dy, x, w, rstd});
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
extern "C" void cuda_layernorm(Cuda *c, int N, int d, float *y, float *rstd, const float *x, const float *w,
                               const float *b, double eps) {
    if (N > 0)
        LAUNCH(layernorm, dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, y, rstd, x, w, b, eps);
}
extern "C" void cuda_layernorm_backward(Cuda *c, int N, int d, float *dx, float *dw, float *db, float *parts,
                                        const float *dy, const float *x, const float *w, const float *rstd) {
    norm_backward_rows(c, true, dw, db, NormGrad{N, d, dx, parts, dy, x, w, rstd});
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
