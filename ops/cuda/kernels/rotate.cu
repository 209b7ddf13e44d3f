/* rotate.cu: rotary position embedding. In place: one thread per pair of a row, whose angle serves all heads. Together
 * with the RMSNorm of heads, in one pass: one team per head. */
#include "sums.h"

DEVICE void angle(const CudaRope &p, int pos, int pair, float *c, float *s) {
    double co, si;
    sincos(pos * p.f[pair], &si, &co); /* positions beyond 2^17 times a frequency need f64 */
    *c = (float)(co * p.factor), *s = (float)(p.sign * si * p.factor);
}
template <class T> __global__ void rotate(size_t n, CudaRope p, T *x, const int *pos, const int *idx) {
    size_t half = (size_t)p.n / 2;
    EACH(i, n) {
        size_t row = i / half, pair = i % half;
        float c, s;
        angle(p, pos[idx[row]], (int)pair, &c, &s);
        size_t one = p.interleaved ? 2 * pair : pair, two = p.interleaved ? 2 * pair + 1 : pair + half;
        T *head = x + row * (size_t)p.heads * (size_t)p.D + p.at;
        for (int h = 0; h < p.heads; h++, head += p.D) {
            float a = number(head[one]), b = number(head[two]);
            store<1>(head + one, {a * c - b * s});
            store<1>(head + two, {a * s + b * c});
        }
    }
}
extern "C" void cuda_rope(Cuda *c, const CudaRope *p, void *x, const int *pos, const int *idx, bool is_bf16) {
    size_t pairs = (size_t)p->N * (size_t)p->n / 2;
    if (is_bf16)
        LAUNCH_EACH(c, (rotate<bf16>), pairs, *p, (bf16 *)x, pos, idx);
    else
        LAUNCH_EACH(c, (rotate<float>), pairs, *p, (float *)x, pos, idx);
}

/* ---- a head in the registers of a team ------------------------------------------------------------------------------
 * A thread has S times W elements and W others, such pieces being TEAM apart: W rotated pairs, which never leave the
 * thread, or, from the rest of the head, W elements of each half. Elements are loaded 4 at a time if the head, its
 * rotated part and half of that are multiples of 4 and aligned to 16 bytes. */
enum { ANGLES = 2 * BLOCK /* elements of shared memory: cosines and sines of some rows at once */ };

/* The offsets of piece `piece` of a head and of its other half; D if there is none. */
template <int W> DEVICE void places(const CudaRope &p, int piece, int *one, int *two) {
    int turned = p.n / (2 * W);
    if (piece < turned) {
        bool next = W == 1 && p.interleaved; /* with W = 4 neighbours are in the same four */
        *one = p.at + (next ? 2 * piece : piece * W);
        *two = *one + (next ? 1 : p.n / 2);
        return;
    }
    int rest = (p.D - p.n) / W, apart = (rest + 1) / 2, a = piece - turned, b = a + apart;
    *one = a < apart ? a * W + (a * W < p.at ? 0 : p.n) : p.D;
    *two = a < apart && b < rest ? b * W + (b * W < p.at ? 0 : p.n) : p.D;
}
/* v: a piece and, from W on, its other half; zeros if there is none. */
template <int TEAM, int S, int W, class T>
DEVICE void read_head(float (&v)[S][2 * W], const T *head, const CudaRope &p, bool there) {
    UNROLL
    for (int s = 0; s < S; s++) {
        int at[2];
        places<W>(p, s * TEAM + (int)threadIdx.x % TEAM, &at[0], &at[1]);
        UNROLL
        for (int k = 0; k < 2; k++) {
            float q[W];
            UNROLL
            for (int j = 0; j < W; j++) q[j] = 0;
            if (there && at[k] < p.D) fetch<W>(q, head + at[k]);
            UNROLL
            for (int j = 0; j < W; j++) v[s][k * W + j] = q[j];
        }
    }
}
template <int TEAM, int S, int W, class T>
DEVICE void write_head(T *head, const float (&v)[S][2 * W], const CudaRope &p, bool there) {
    UNROLL
    for (int s = 0; s < S; s++) {
        int at[2];
        places<W>(p, s * TEAM + (int)threadIdx.x % TEAM, &at[0], &at[1]);
        UNROLL
        for (int k = 0; k < 2; k++) {
            float q[W];
            UNROLL
            for (int j = 0; j < W; j++) q[j] = v[s][k * W + j];
            if (there && at[k] < p.D) store<W>(head + at[k], q);
        }
    }
}
/* The angles of `rows` rows from `from` on, to `to` (rows, n), cosines first, in the order of pieces. */
template <int W>
DEVICE void read_angles(float *to, const CudaRope &p, int from, int rows, const int *pos, const int *idx) {
    int half = p.n / 2;
    for (int i = (int)threadIdx.x; i < rows * half; i += BLOCK) {
        int row = i / half, place = i % half, pair = place;
        if (W == 4 && p.interleaved) pair = place / 4 * 2 + place % 2 + place % 4 / 2 * (half / 2);
        float *c = to + row * p.n + place;
        angle(p, pos[idx[from + row]], pair, c, c + half);
    }
}
DEVICE void turn_pair(float *a, float *b, float c, float s) {
    float was = *a;
    *a = was * c - *b * s, *b = was * s + *b * c;
}
template <int TEAM, int S, int W> DEVICE void turn_head(float (&v)[S][2 * W], const CudaRope &p, const float *angles) {
    UNROLL
    for (int s = 0; s < S; s++) {
        int from = (s * TEAM + (int)threadIdx.x % TEAM) * W;
        if (from >= p.n / 2) continue;
        float c[W], si[W];
        fetch<W>(c, angles + from), fetch<W>(si, angles + p.n / 2 + from);
        if (W == 4 && p.interleaved) {
            UNROLL
            for (int j = 0; j < W; j++) turn_pair(&v[s][2 * j], &v[s][2 * j + 1], c[j], si[j]);
        } else {
            UNROLL
            for (int j = 0; j < W; j++) turn_pair(&v[s][j], &v[s][W + j], c[j], si[j]);
        }
    }
}

/* A block has `each` rows, at most as many as it has room for their angles. */
template <int TEAM, int S, int W, class T>
__global__ void __launch_bounds__(BLOCK) norm_rotate(CudaRope p, int each, T *y, float *rstd, const T *x,
                                                     const float *w, double eps, const int *pos, const int *idx) {
    SMEM_DYN(float, angles);
    float *part = angles + ANGLES, gain[S][2 * W];
    int from = (int)blockIdx.x * each, rows = from + each < p.N ? each : p.N - from;
    read_angles<W>(angles, p, from, rows, pos, idx);
    read_head<TEAM, S, W>(gain, w, p, (int)threadIdx.x / TEAM < rows * p.heads);
    __syncthreads();
    for (int i0 = 0; i0 < rows * p.heads; i0 += BLOCK / TEAM) {
        int i = i0 + (int)threadIdx.x / TEAM;
        bool there = i < rows * p.heads;
        size_t head = (size_t)from * (size_t)p.heads + (size_t)(there ? i : 0);
        float v[S][2 * W], s = 0;
        read_head<TEAM, S, W>(v, x + head * (size_t)p.D, p, there);
        UNROLL
        for (int k = 0; k < S; k++) {
            UNROLL
            for (int j = 0; j < 2 * W; j++) s += v[k][j] * v[k][j];
        }
        s = inverse_root(team_sum<TEAM>(s, part) / (float)p.D + (float)eps);
        if (there && threadIdx.x % TEAM == 0) rstd[head] = s;
        UNROLL
        for (int k = 0; k < S; k++) {
            UNROLL
            for (int j = 0; j < 2 * W; j++) v[k][j] = v[k][j] * s * gain[k][j];
        }
        turn_head<TEAM, S, W>(v, p, angles + (there ? i / p.heads : 0) * p.n);
        write_head<TEAM, S, W>(y + head * (size_t)p.D, v, p, there);
    }
}

/* A block has a slice of `each` rows, `some` of them at a time. Its teams' parts of the gains' gradient are added in
 * the order of teams: parts (slices, D). */
template <int TEAM, int S, int W, class T>
__global__ void __launch_bounds__(BLOCK, S *W <= 8 ? 2 : 1)
    norm_rotate_backward(CudaRope p, int each, int some, bool overwrite, T *dx, float *parts, const T *dy, const T *x,
                         const float *w, const float *rstd, const int *pos, const int *idx) {
    SMEM_DYN(float, angles);
    /* there are enough registers to keep the gains and to load dx together with dy and x */
    constexpr bool roomy = S * W <= 8;
    float *part = angles + ANGLES, *shares = part + WARPS, gain[S][2 * W], sum[S][2 * W];
    int from = (int)blockIdx.x * each, to = from + each < p.N ? from + each : p.N;
    if (roomy) read_head<TEAM, S, W>(gain, w, p, (int)threadIdx.x / TEAM < (to - from) * p.heads);
    UNROLL
    for (int k = 0; k < S; k++) {
        UNROLL
        for (int j = 0; j < 2 * W; j++) sum[k][j] = 0;
    }
    for (int row = from; row < to; row += some) {
        int rows = row + some < to ? some : to - row;
        __syncthreads();
        read_angles<W>(angles, p, row, rows, pos, idx);
        __syncthreads();
        for (int i0 = 0; i0 < rows * p.heads; i0 += BLOCK / TEAM) {
            int i = i0 + (int)threadIdx.x / TEAM;
            bool there = i < rows * p.heads;
            size_t head = (size_t)row * (size_t)p.heads + (size_t)(there ? i : 0), at = head * (size_t)p.D;
            float g[S][2 * W], n[S][2 * W], old[S][2 * W], s = rstd[head], t = 0;
            read_head<TEAM, S, W>(g, dy + at, p, there);
            read_head<TEAM, S, W>(n, x + at, p, there);
            if (roomy) read_head<TEAM, S, W>(old, dx + at, p, there && !overwrite);
            turn_head<TEAM, S, W>(g, p, angles + (there ? i / p.heads : 0) * p.n);
            if (!roomy) read_head<TEAM, S, W>(gain, w, p, there);
            UNROLL
            for (int k = 0; k < S; k++) {
                UNROLL
                for (int j = 0; j < 2 * W; j++) {
                    sum[k][j] += g[k][j] * n[k][j] * s;
                    g[k][j] *= gain[k][j];
                    t += g[k][j] * n[k][j];
                }
            }
            t = team_sum<TEAM>(t, part) * s * s / (float)p.D;
            if (!roomy) read_head<TEAM, S, W>(old, dx + at, p, there && !overwrite);
            UNROLL
            for (int k = 0; k < S; k++) {
                UNROLL
                for (int j = 0; j < 2 * W; j++) old[k][j] += s * (g[k][j] - n[k][j] * t);
            }
            write_head<TEAM, S, W>(dx + at, old, p, there);
        }
    }
    write_head<TEAM, S, W>(shares + threadIdx.x / TEAM * (unsigned)p.D, sum, p, true);
    __syncthreads();
    for (int k = (int)threadIdx.x; k < p.D; k += BLOCK) {
        float s = shares[k];
        for (int team = 1; team < BLOCK / TEAM; team++) s += shares[team * p.D + k];
        parts[(size_t)blockIdx.x * (size_t)p.D + (size_t)k] = s;
    }
}

/* Call f<TEAM, S, W, T>() with the smallest team and part that hold a head. */
#define HEAD_TEAM(four, D, f, T, ...)        \
    ((four) && (D) <= 64    ? f<8, 1, 4, T>  \
     : (four) && (D) <= 128 ? f<16, 1, 4, T> \
     : (four) && (D) <= 256 ? f<32, 1, 4, T> \
     : (four)               ? f<32, 4, 4, T> \
     : (D) <= 256           ? f<32, 4, 1, T> \
                            : f<BLOCK, 2, 1, T>)(__VA_ARGS__)
static bool heads_by_four(const CudaRope &p, const void *a, const void *b, const void *c, const void *d) {
    return p.D % 4 == 0 && p.at % 4 == 0 && p.n % 8 == 0 && aligned(a) && aligned(b) && aligned(c) && aligned(d);
}
/* The number of rows for whose angles there is room. */
static int rows_at_once(const CudaRope &p) { return p.n > 16 ? ANGLES / p.n : ANGLES / 16; }

template <int TEAM, int S, int W, class T>
static void norm_rotate_of(Cuda *c, const CudaRope &p, T *y, float *rstd, const T *x, const float *w, double eps,
                           const int *pos, const int *idx) {
    /* With few rows, a block gets no more than fill its teams, so that all processors have work; no result depends on
     * it. */
    int most = rows_at_once(p), fill = BLOCK / TEAM / p.heads,
        each = (p.N + 4 * c->processors - 1) / (4 * c->processors);
    each = each < fill ? fill : each;
    each = each > most ? most : each;
    LAUNCH((norm_rotate<TEAM, S, W, T>), dim3((unsigned)((p.N + each - 1) / each)), dim3(BLOCK),
           (ANGLES + WARPS) * sizeof(float), c->stream, p, each, y, rstd, x, w, eps, pos, idx);
}
template <class T>
static void norm_rotate_any(Cuda *c, const CudaRope &p, T *y, float *rstd, const T *x, const float *w, double eps,
                            const int *pos, const int *idx) {
    HEAD_TEAM(heads_by_four(p, y, x, w, nullptr), p.D, norm_rotate_of, T, c, p, y, rstd, x, w, eps, pos, idx);
}
extern "C" void cuda_norm_rope(Cuda *c, const CudaRope *p, void *y, float *rstd, const void *x, const float *w,
                               double eps, const int *pos, const int *idx, bool is_bf16) {
    if (p->N <= 0 || p->heads <= 0) return;
    if (is_bf16)
        norm_rotate_any(c, *p, (bf16 *)y, rstd, (const bf16 *)x, w, eps, pos, idx);
    else
        norm_rotate_any(c, *p, (float *)y, rstd, (const float *)x, w, eps, pos, idx);
}

template <class T> struct NormRopeGrad {
    T *dx;
    float *parts;
    const T *dy, *x;
    const float *w, *rstd;
    const int *pos, *idx;
    bool overwrite;
};
template <int TEAM, int S, int W, class T>
static void norm_rotate_backward_of(Cuda *c, const CudaRope &p, const NormRopeGrad<T> &g, int slices) {
    size_t room = (size_t)(ANGLES + WARPS) + (size_t)(BLOCK / TEAM) * (size_t)p.D;
    LAUNCH((norm_rotate_backward<TEAM, S, W, T>), dim3((unsigned)slices), dim3(BLOCK), room * sizeof(float), c->stream,
           p, (int)rows_each((size_t)p.N, slices), rows_at_once(p), g.overwrite, g.dx, g.parts, g.dy, g.x, g.w, g.rstd,
           g.pos, g.idx);
}
template <class T>
static void norm_rotate_backward_any(Cuda *c, const CudaRope &p, float *dw, const NormRopeGrad<T> &g) {
    if (p.N <= 0 || p.heads <= 0) return;
    int slices = cuda_norm_rope_slices(p.N, p.heads);
    HEAD_TEAM(heads_by_four(p, g.dx, g.dy, g.x, g.w), p.D, norm_rotate_backward_of, T, c, p, g, slices);
    cuda_fold(c, slices, p.D, dw, g.parts);
}
extern "C" void cuda_norm_rope_backward(Cuda *c, const CudaRope *p, void *dx, float *dw, float *parts, const void *dy,
                                        const void *x, const float *w, const float *rstd, const int *pos,
                                        const int *idx, bool is_bf16, bool overwrite) {
    if (is_bf16)
        norm_rotate_backward_any(c, *p, dw,
                                 NormRopeGrad<bf16>{(bf16 *)dx, parts, (const bf16 *)dy, (const bf16 *)x, w, rstd, pos,
                                                    idx, overwrite});
    else
        norm_rotate_backward_any(c, *p, dw,
                                 NormRopeGrad<float>{(float *)dx, parts, (const float *)dy, (const float *)x, w, rstd,
                                                     pos, idx, overwrite});
}
