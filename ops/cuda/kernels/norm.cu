/* norm.cu: RMSNorm and LayerNorm with one block per row. RMSNorm, and the backward of both, use one warp or less for a
 * short row. L2 normalisation. */
#include "sums.h"

/* W elements at a time. z: rows that are added to x first, or NULL; a thread only re-reads what it wrote itself. */
template <class Y, class X, int W>
__global__ void rmsnorm(int d, Y *y, float *rstd, X *x, const X *z, const float *w, double eps) {
    SMEM_DYN(float, part);
    size_t row = (size_t)blockIdx.x * (size_t)d;
    X *xi = x + row;
    Y *yi = y + row;
    float s = 0, v[W], g[W];
    for (int k = (int)threadIdx.x * W; k < d; k += BLOCK * W) {
        fetch<W>(v, xi + k);
        if (z) {
            fetch<W>(g, z + row + k);
            UNROLL
            for (int j = 0; j < W; j++) v[j] += g[j];
            store<W>(xi + k, v);
        }
        UNROLL
        for (int j = 0; j < W; j++) s += v[j] * v[j];
    }
    s = inverse_root(block_sum(s, part) / (float)d + (float)eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = s;
    for (int k = (int)threadIdx.x * W; k < d; k += BLOCK * W) {
        fetch<W>(v, xi + k), fetch<W>(g, w + k);
        UNROLL
        for (int j = 0; j < W; j++) v[j] = v[j] * s * g[j];
        store<W>(yi + k, v);
    }
}
/* The same for short rows: a team takes row after row and keeps the row and the gains in its registers. */
template <int TEAM, int E, class Y, class X>
__global__ void __launch_bounds__(BLOCK)
    rmsnorm_rows(int N, int d, bool quads, Y *y, float *rstd, X *x, const X *z, const float *w, double eps) {
    constexpr int TEAMS = BLOCK / TEAM;
    float gain[E];
    read_row<TEAM, E>(gain, w, d, quads);
    for (int i0 = (int)blockIdx.x * TEAMS; i0 < N; i0 += (int)gridDim.x * TEAMS) {
        /* a row that does not exist is neither read nor written */
        int i = i0 + (int)threadIdx.x / TEAM, width = i < N ? d : 0;
        size_t at = width ? (size_t)i * (size_t)d : 0;
        float v[E], s = 0;
        read_row<TEAM, E>(v, x + at, width, quads);
        if (z) {
            float g[E];
            read_row<TEAM, E>(g, z + at, width, quads);
            UNROLL
            for (int e = 0; e < E; e++) v[e] += g[e];
            write_row<TEAM, E>(x + at, v, width, quads);
        }
        UNROLL
        for (int e = 0; e < E; e++) s += v[e] * v[e];
        s = inverse_root(team_sum<TEAM>(s, nullptr) / (float)d + (float)eps);
        if (width && threadIdx.x % TEAM == 0) rstd[i] = s;
        UNROLL
        for (int e = 0; e < E; e++) v[e] = v[e] * s * gain[e];
        write_row<TEAM, E>(y + at, v, width, quads);
    }
}
/* True if rows are aligned for accesses of four elements, and have a multiple of four. */
static bool by_four(int d, const void *a, const void *b, const void *c, const void *e) {
    return d % 4 == 0 && aligned(a) && aligned(b) && aligned(c) && aligned(e);
}
template <class Y, class X, int W>
static void rms(Cuda *c, int N, int d, void *y, float *rstd, void *x, const void *z, const float *w, double eps) {
    LAUNCH((rmsnorm<Y, X, W>), dim3((unsigned)N), dim3(BLOCK), WARPS * sizeof(float), c->stream, d, (Y *)y, rstd,
           (X *)x, (const X *)z, w, eps);
}
template <int TEAM, int E, class Y, class X>
static void rms_team(Cuda *c, int N, int d, void *y, float *rstd, void *x, const void *z, const float *w, double eps) {
    size_t lanes = (size_t)N * TEAM;
    LAUNCH((rmsnorm_rows<TEAM, E, Y, X>), grid_for(c, lanes), dim3(BLOCK), 0, c->stream, N, d, by_four(d, y, x, z, w),
           (Y *)y, rstd, (X *)x, (const X *)z, w, eps);
}
template <class Y, class X>
static void rms_rows(Cuda *c, int N, int d, void *y, float *rstd, void *x, const void *z, const float *w, double eps) {
    auto run = d <= 64    ? rms_team<8, 8, Y, X>
               : d <= 128 ? rms_team<16, 8, Y, X>
               : d <= 256 ? rms_team<32, 8, Y, X>
                          : rms_team<32, 16, Y, X>;
    run(c, N, d, y, rstd, x, z, w, eps);
}
extern "C" void cuda_rmsnorm(Cuda *c, int N, int d, void *y, float *rstd, void *x, const void *z, const float *w,
                             double eps, CudaNormOf of) {
    bool four = by_four(d, y, x, z, w);
    if (N <= 0) return;
    if (d <= 512) {
        auto rows = of == CUDA_NORM_WIDE  ? rms_rows<float, float>
                    : of == CUDA_NORM_OUT ? rms_rows<bf16, float>
                                          : rms_rows<bf16, bf16>;
        rows(c, N, d, y, rstd, x, z, w, eps);
        return;
    }
    auto run = of == CUDA_NORM_WIDE  ? rms<float, float, 1>
               : of == CUDA_NORM_OUT ? (four ? rms<bf16, float, 4> : rms<bf16, float, 1>)
                                     : (four ? rms<bf16, bf16, 4> : rms<bf16, bf16, 1>);
    run(c, N, d, y, rstd, x, z, w, eps);
}

/* The backward of both norms: one team per row. The teams sum the gains' gradient, and with `centred` (LayerNorm) the
 * bias's, over their rows of the block's slice: parts (slices, d), those of the bias after all of the gains'. */
template <int TEAM, int E, bool centred, class G, class X>
__global__ void __launch_bounds__(BLOCK, E <= 16 ? 2 : 1)
    norm_backward(int N, int each, int d, bool quads, bool overwrite, X *dx, float *parts, const G *dy, const X *x,
                  const float *w, const float *rstd) {
    SMEM_DYN(float, part);
    /* there are enough registers to keep the gains and to load dx together with dy and x */
    constexpr bool roomy = E <= 8;
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
        UNROLL
        for (int e = 0; e < E; e++) old[e] = 0;
        if (roomy && !overwrite) read_row<TEAM, E>(old, dx + at, d, quads);
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
        if (!roomy && !overwrite) read_row<TEAM, E>(old, dx + at, d, quads);
        UNROLL
        for (int e = 0; e < E; e++) old[e] += s * (g[e] - (centred ? t : 0) - n[e] * tn);
        write_row<TEAM, E>(dx + at, old, d, quads);
    }
    parts += (size_t)blockIdx.x * (size_t)d;
    write_part<TEAM, E>(parts, sum, d, quads, part);
    if (centred) write_part<TEAM, E>(parts + (size_t)gridDim.x * (size_t)d, bias, d, quads, part);
}
/* The same for rows too wide for a block: they are read twice, with `centred` three times, and sums grow in `parts`. */
template <bool centred, class G, class X>
__global__ void norm_backward_wide(int N, int each, int d, bool overwrite, X *dx, float *parts, const G *dy, const X *x,
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
        const G *g = dy + at;
        const X *n = x + at;
        float s = rstd[i], mean = 0, t = 0, tn = 0;
        for (int k = (int)threadIdx.x; k < d && centred; k += BLOCK) mean += number(n[k]);
        if (centred) mean = block_sum(mean, part) / (float)d;
        for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
            float h = number(g[k]) * w[k];
            t += h, tn += h * (number(n[k]) - mean);
        }
        if (centred) t = block_sum(t, part) / (float)d;
        tn = block_sum(tn, part) * s * s / (float)d;
        for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
            float u = number(n[k]) - mean, gk = number(g[k]), old = overwrite ? 0 : number(dx[at + (size_t)k]);
            store<1>(dx + at + k, {old + s * (gk * w[k] - (centred ? t : 0) - u * tn)});
            sum[k] += gk * u * s;
            if (centred) bias[k] += gk;
        }
    }
}
template <class G, class X> struct NormGrad {
    int N, d;
    bool overwrite;
    X *dx;
    float *parts;
    const G *dy;
    const X *x;
    const float *w, *rstd;
};
template <int TEAM, int E, bool centred, class G, class X>
static void norm_backward_of(Cuda *c, const NormGrad<G, X> &g, int slices) {
    bool quads = by_four(g.d, g.dx, g.dy, g.x, g.w) && aligned(g.parts);
    int each = (int)rows_each((size_t)g.N, slices);
    LAUNCH((norm_backward<TEAM, E, centred, G, X>), dim3((unsigned)slices), dim3(BLOCK), team_bytes(g.d), c->stream,
           g.N, each, g.d, quads, g.overwrite, g.dx, g.parts, g.dy, g.x, g.w, g.rstd);
}
template <bool centred, class G, class X>
static void norm_backward_rows(Cuda *c, float *dw, float *db, const NormGrad<G, X> &g) {
    if (g.N <= 0) return;
    int slices = cuda_slices((size_t)g.N, cuda_row_tiles(g.d)), each = (int)rows_each((size_t)g.N, slices);
    constexpr bool heads = sizeof(X) < sizeof(float); /* rows are heads: rarely wide */
    if (g.d <= 128)
        norm_backward_of<32, 4, centred>(c, g, slices);
    else if (g.d <= 512)
        norm_backward_of<32, 16, centred>(c, g, slices);
    else if (g.d <= 1024)
        norm_backward_of<BLOCK, 4, centred>(c, g, slices);
    else if (!heads && g.d <= 32 * BLOCK) {
        if constexpr (!heads) {
            auto f = g.d <= 2048         ? norm_backward_of<BLOCK, 8, centred, G, X>
                     : g.d <= 16 * BLOCK ? norm_backward_of<BLOCK, 16, centred, G, X>
                                         : norm_backward_of<BLOCK, 32, centred, G, X>;
            f(c, g, slices);
        }
    } else
        LAUNCH((norm_backward_wide<centred, G, X>), dim3((unsigned)slices), dim3(BLOCK), WARPS * sizeof(float),
               c->stream, g.N, each, g.d, g.overwrite, g.dx, g.parts, g.dy, g.x, g.w, g.rstd);
    cuda_fold(c, slices, g.d, dw, g.parts);
    if (centred) cuda_fold(c, slices, g.d, db, g.parts + (size_t)slices * (size_t)g.d);
}
extern "C" void cuda_rmsnorm_backward(Cuda *c, int N, int d, void *dx, float *dw, float *parts, const void *dy,
                                      const void *x, const float *w, const float *rstd, CudaNormOf of, bool overwrite) {
    if (of == CUDA_NORM_WIDE)
        norm_backward_rows<false>(c, dw, nullptr,
                                  NormGrad<float, float>{N, d, overwrite, (float *)dx, parts, (const float *)dy,
                                                         (const float *)x, w, rstd});
    else if (of == CUDA_NORM_OUT)
        norm_backward_rows<false>(c, dw, nullptr,
                                  NormGrad<bf16, float>{N, d, overwrite, (float *)dx, parts, (const bf16 *)dy,
                                                        (const float *)x, w, rstd});
    else
        norm_backward_rows<false>(c, dw, nullptr,
                                  NormGrad<bf16, bf16>{N, d, overwrite, (bf16 *)dx, parts, (const bf16 *)dy,
                                                       (const bf16 *)x, w, rstd});
}
template <class Y, int W>
__global__ void layernorm(int d, Y *y, float *rstd, const float *x, const float *w, const float *b, double eps) {
    SMEM_DYN(float, part);
    size_t row = (size_t)blockIdx.x * (size_t)d;
    const float *xi = x + row;
    float mean = 0, s = 0, v[W], g[W], a[W];
    for (int k = (int)threadIdx.x * W; k < d; k += BLOCK * W) {
        fetch<W>(v, xi + k);
        UNROLL
        for (int j = 0; j < W; j++) mean += v[j];
    }
    mean = block_sum(mean, part) / (float)d;
    for (int k = (int)threadIdx.x * W; k < d; k += BLOCK * W) {
        fetch<W>(v, xi + k);
        UNROLL
        for (int j = 0; j < W; j++) s += (v[j] - mean) * (v[j] - mean);
    }
    s = inverse_root(block_sum(s, part) / (float)d + (float)eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = s;
    for (int k = (int)threadIdx.x * W; k < d; k += BLOCK * W) {
        fetch<W>(v, xi + k), fetch<W>(g, w + k), fetch<W>(a, b + k);
        UNROLL
        for (int j = 0; j < W; j++) v[j] = (v[j] - mean) * s * g[j] + a[j];
        store<W>(y + row + k, v);
    }
}
extern "C" void cuda_layernorm(Cuda *c, int N, int d, void *y, float *rstd, const float *x, const float *w,
                               const float *b, double eps, bool y_bf16) {
    const size_t room = WARPS * sizeof(float);
    dim3 grid((unsigned)N);
    if (N <= 0) return;
    if (!y_bf16)
        LAUNCH((layernorm<float, 1>), grid, dim3(BLOCK), room, c->stream, d, (float *)y, rstd, x, w, b, eps);
    else if (by_four(d, y, x, w, b))
        LAUNCH((layernorm<bf16, 4>), grid, dim3(BLOCK), room, c->stream, d, (bf16 *)y, rstd, x, w, b, eps);
    else
        LAUNCH((layernorm<bf16, 1>), grid, dim3(BLOCK), room, c->stream, d, (bf16 *)y, rstd, x, w, b, eps);
}
extern "C" void cuda_layernorm_backward(Cuda *c, int N, int d, float *dx, float *dw, float *db, float *parts,
                                        const void *dy, const float *x, const float *w, const float *rstd,
                                        bool dy_bf16) {
    if (dy_bf16)
        norm_backward_rows<true>(c, dw, db,
                                 NormGrad<bf16, float>{N, d, false, dx, parts, (const bf16 *)dy, x, w, rstd});
    else
        norm_backward_rows<true>(c, dw, db,
                                 NormGrad<float, float>{N, d, false, dx, parts, (const float *)dy, x, w, rstd});
}

/* One warp per row, W elements at a time: rows are heads. */
template <class T, int W> __global__ void l2norm(int N, int d, T *y, const T *x, double eps) {
    int row = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    if (row >= N) return;
    x += (size_t)row * (size_t)d, y += (size_t)row * (size_t)d;
    float v[W], s = 0;
    for (int k = lane * W; k < d; k += 32 * W) {
        fetch<W>(v, x + k);
        UNROLL
        for (int j = 0; j < W; j++) s += v[j] * v[j];
    }
    s = inverse_root(warp_sum(s) + (float)eps);
    for (int k = lane * W; k < d; k += 32 * W) {
        fetch<W>(v, x + k);
        UNROLL
        for (int j = 0; j < W; j++) v[j] *= s;
        store<W>(y + k, v);
    }
}
template <class T, int W>
__global__ void l2norm_backward(int N, int d, T *dx, const T *dy, const T *x, double eps, bool overwrite) {
    int row = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    if (row >= N) return;
    size_t at = (size_t)row * (size_t)d;
    x += at, dy += at, dx += at;
    float v[W], g[W], s = 0, t = 0;
    for (int k = lane * W; k < d; k += 32 * W) {
        fetch<W>(v, x + k), fetch<W>(g, dy + k);
        UNROLL
        for (int j = 0; j < W; j++) s += v[j] * v[j], t += g[j] * v[j];
    }
    float r = inverse_root(warp_sum(s) + (float)eps);
    t = warp_sum(t) * r * r;
    for (int k = lane * W; k < d; k += 32 * W) {
        fetch<W>(v, x + k), fetch<W>(g, dy + k);
        UNROLL
        for (int j = 0; j < W; j++) g[j] = r * (g[j] - v[j] * t);
        add_to<W>(dx + k, g, overwrite);
    }
}
static dim3 warps_for(int rows) { return dim3((unsigned)((rows + WARPS - 1) / WARPS)); }
template <class T, int W> static void l2(Cuda *c, int N, int d, void *y, const void *x, double eps) {
    LAUNCH((l2norm<T, W>), warps_for(N), dim3(BLOCK), 0, c->stream, N, d, as<T>(y), as<T>(x), eps);
}
extern "C" void cuda_l2norm(Cuda *c, int N, int d, void *y, const void *x, double eps, bool is_bf16) {
    if (N <= 0) return;
    auto run = is_bf16 ? l2<bf16, 1> : l2<float, 1>;
    if (by_four(d, y, x, x, x)) run = is_bf16 ? l2<bf16, 4> : l2<float, 4>;
    run(c, N, d, y, x, eps);
}
template <class T, int W>
static void l2_back(Cuda *c, int N, int d, void *dx, const void *dy, const void *x, double eps, bool overwrite) {
    LAUNCH((l2norm_backward<T, W>), warps_for(N), dim3(BLOCK), 0, c->stream, N, d, as<T>(dx), as<T>(dy), as<T>(x), eps,
           overwrite);
}
extern "C" void cuda_l2norm_backward(Cuda *c, int N, int d, void *dx, const void *dy, const void *x, double eps,
                                     bool is_bf16, bool overwrite) {
    if (N <= 0) return;
    auto run = is_bf16 ? l2_back<bf16, 1> : l2_back<float, 1>;
    if (by_four(d, dx, dy, x, x)) run = is_bf16 ? l2_back<bf16, 4> : l2_back<float, 4>;
    run(c, N, d, dx, dy, x, eps, overwrite);
}
