/* delta.cu: the recurrence of ops/recur.h in chunks on the matrix units. Notation as in delta.h. There are three
 * kernels:
 * - the parts of all chunks that do not depend on a state, at once;
 * - the states: a block takes a head of a sequence and 32 columns, and walks from chunk to chunk;
 * - the outputs of all chunks, at once.
 *
 * Decays, blocks on the diagonal, the triangular inverse and states are f32. Operands of the large products are
 * rounded to bf16 and summed in f32, except the inverse and what it is applied to, which are sums of two bf16.
 * Estimated, not measured, for each row of a head of K = V = 128: 1.9e5 flops, and 8 KB of memory, of which 2.5 KB are
 * the op's own (docs/gpu.md has a table). */
#include "delta.h"

/* ---- chunks without their states ---- */
enum { LD_L = DELTA_ROWS + 4 };
template <int KW> struct PrepareTile {
    union {
        struct {                      /* while rows are loaded */
            float x[DELTA_ROWS * KW]; /* k_j with its decay up to the last row that is there */
            float q[DELTA_SUB * KW], k[DELTA_SUB * KW], a[DELTA_SUB * KW]; /* the current block */
            bf16 xs[(DELTA_ROWS - DELTA_SUB) * KW], qk[2 * DELTA_SUB * KW];
        } in;
        struct { /* while the inverse is computed and applied */
            float t[DELTA_ROWS * LD_L];
            /* and the parts that rounding lost */
            bf16 a[2][DELTA_ROWS * DELTA_ROWS], k[2][DELTA_ROWS * KW], v[2][DELTA_ROWS * DELTA_ROWS];
        } out;
    };
    float l[DELTA_ROWS * LD_L], beta[DELTA_ROWS];
};

/* Rows i0.. of the chunk, m of them, into q, k, a; q with its scale. */
template <int KW, class T> DEVICE void block_load(PrepareTile<KW> *s, const CudaRecur &a, int h, int t, int m) {
    ROLLED for (int i = (int)threadIdx.x; i < DELTA_SUB * KW; i += FLASH_THREADS) {
        int r = i / KW, d = i % KW;
        bool in = r < m && d < a.K;
        size_t row = (size_t)(t + r), at = (row * (size_t)a.H + (size_t)(h / (a.HV / a.H))) * (size_t)a.K + (size_t)d,
               g = row * (size_t)a.HV + (size_t)h;
        s->in.q[i] = in ? a.scale * number(((const T *)a.q)[at]) : 0;
        s->in.k[i] = in ? number(((const T *)a.k)[at]) : 0;
        s->in.a[i] = in && a.g ? expf(a.per_channel ? a.g[g * (size_t)a.K + (size_t)d] : a.g[g]) : 1;
    }
}
/* One thread per channel (two with KW 64, which share the rows): decays of the block on both sides. cum: since the
 * chunk began; row: the chunk's first row among the operands. */
template <int KW> DEVICE void block_decay(PrepareTile<KW> *s, const Delta &x, size_t row, int i0, int m, float &cum) {
    constexpr int PARTS = FLASH_THREADS / KW;
    int d = (int)threadIdx.x % KW, part = (int)threadIdx.x / KW;
    float first = s->in.a[d], rest = 1, f = 1;
    for (int r = 1; r < DELTA_SUB; r++) rest *= s->in.a[r * KW + d];
    BY_FOUR for (int j = part; j < i0; j += PARTS) {
        float v = s->in.x[j * KW + d] * first;
        s->in.xs[number_at<KW>(j, d)] = to_bf16(v);
        s->in.x[j * KW + d] = v * rest;
    }
    for (int r = 0; r < DELTA_SUB; r++) {
        float a = s->in.a[r * KW + d], q = s->in.q[r * KW + d], k = s->in.k[r * KW + d];
        if (r) f *= a;
        cum *= a;
        if (r % PARTS != part) continue;
        s->in.qk[number_at<KW>(r, d)] = to_bf16(q * f);
        s->in.qk[number_at<KW>(DELTA_SUB + r, d)] = to_bf16(k * f);
        if (r >= m) continue;
        size_t at = (row + (size_t)(i0 + r)) * KW + (size_t)d;
        x.q[at] = to_bf16(q * cum);
    }
    f = 1;
    for (int r = DELTA_SUB - 1; r >= 0; r--) {
        if (r % PARTS == part) s->in.x[(i0 + r) * KW + d] = s->in.k[r * KW + d] * f;
        f *= s->in.a[r * KW + d];
    }
}
/* P and L of the block's rows and all rows before it. */
template <int KW> DEVICE void block_scores(PrepareTile<KW> *s, const Delta &x, size_t row, int i0, int m) {
    int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    if (warp % 2 && !x.a.delta) return;
    for (int c = warp / 2; c < i0 / DELTA_SUB; c += 2) {
        float y[2][4];
        product_of_rows<KW, 2>(y, s->in.qk, warp % 2 * DELTA_SUB, s->in.xs + c * DELTA_SUB * KW);
        UNROLL for (int i = 0; i < 2; i++) {
            int r = g + 8 * i;
            UNROLL for (int n = 0; n < 2; n++) {
                int col = DELTA_SUB * c + 8 * n + 2 * t;
                if (warp % 2)
                    store_vec(s->l + (i0 + r) * LD_L + col, float2{y[n][2 * i], y[n][2 * i + 1]});
                else if (r < m)
                    *(uint32_t *)(x.p + (row + (size_t)(i0 + r)) * DELTA_ROWS + col) =
                        pack_bf16(y[n][2 * i], y[n][2 * i + 1]);
            }
        }
    }
}
DEVICE float dot4(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
/* The block on the diagonal, pair by pair: eight lanes per column, each with channels 4 part.. of every 32. */
template <int KW> DEVICE void block_diagonal(PrepareTile<KW> *s, const Delta &x, size_t row, int i0, int m) {
    int lane = (int)threadIdx.x % 32, j = (int)threadIdx.x / 32 * 4 + lane / 8, part = lane % 8;
    float p[DELTA_SUB], l[DELTA_SUB];
    UNROLL for (int i = 0; i < DELTA_SUB; i++) p[i] = l[i] = 0;
    ROLLED for (int c = 4 * part; c < KW; c += 32) {
        float4 w = load_vec<float4>(s->in.k + j * KW + c);
        UNROLL for (int i = 0; i < DELTA_SUB; i++) {
            if (i < j) continue;
            if (i > j) {
                float4 a = load_vec<float4>(s->in.a + i * KW + c);
                w.x *= a.x, w.y *= a.y, w.z *= a.z, w.w *= a.w;
            }
            p[i] += dot4(load_vec<float4>(s->in.q + i * KW + c), w);
            if (x.a.delta && i > j) l[i] += dot4(load_vec<float4>(s->in.k + i * KW + c), w);
        }
    }
    UNROLL for (int i = 0; i < DELTA_SUB; i++) {
        UNROLL for (int d = 1; d < 8; d *= 2) {
            p[i] += __shfl_xor_sync(FULL_WARP, p[i], d);
            l[i] += __shfl_xor_sync(FULL_WARP, l[i], d);
        }
        if (part != i % 8) continue;
        s->l[(i0 + i) * LD_L + i0 + j] = l[i];
        if (i < m) x.p[(row + (size_t)(i0 + i)) * DELTA_ROWS + (size_t)(i0 + j)] = to_bf16(p[i]);
    }
    int behind = DELTA_ROWS - i0 - DELTA_SUB; /* columns of later blocks */
    for (int i = (int)threadIdx.x; i < m * behind / 2; i += FLASH_THREADS) {
        int r = i / (behind / 2), c = i % (behind / 2) * 2;
        *(uint32_t *)(x.p + (row + (size_t)(i0 + r)) * DELTA_ROWS + (size_t)(i0 + DELTA_SUB + c)) = 0;
    }
}
/* Store a lower triangle of blocks as rows of bf16, zero past its diagonal blocks; the parts that rounding lost go to
 * `rest`. */
DEVICE void triangle_store(bf16 *to, bf16 *rest, const float *from, int n) {
    ROLLED for (int i = (int)threadIdx.x; i < n * DELTA_ROWS / 2; i += FLASH_THREADS) {
        int r = i / (DELTA_ROWS / 2), c = i % (DELTA_ROWS / 2) * 2;
        float2 v = {0, 0};
        if (c / DELTA_SUB <= r / DELTA_SUB) v = load_vec<float2>(from + r * LD_L + c);
        *(uint32_t *)(to + 2 * (size_t)i) = pack_bf16(v.x, v.y);
        if (rest) *(uint32_t *)(rest + 2 * (size_t)i) = pack_rest(v.x, v.y);
    }
}
/* t = (I + L Diag(beta))^-1 by forward substitution: blocks on the diagonal column by column, then block after block.
 * L is multiplied by beta. */
template <int KW> DEVICE void invert(PrepareTile<KW> *s, int blocks) {
    int tid = (int)threadIdx.x;
    float *t = s->out.t;
    ROLLED for (int i = tid; i < blocks * DELTA_SUB * DELTA_ROWS; i += FLASH_THREADS) {
        int r = i / DELTA_ROWS, c = i % DELTA_ROWS;
        if (c / DELTA_SUB <= r / DELTA_SUB) s->l[r * LD_L + c] *= s->beta[c];
    }
    __syncthreads();
    if (tid < blocks * DELTA_SUB) {
        int c = tid % DELTA_SUB, b = tid - c;
        float y[DELTA_SUB];
        UNROLL for (int i = 0; i < DELTA_SUB; i++) {
            y[i] = i == c;
            UNROLL for (int m = 0; m < i; m++) y[i] -= s->l[(b + i) * LD_L + b + m] * y[m];
            t[(b + i) * LD_L + b + c] = y[i];
        }
    }
    for (int b = DELTA_SUB; b < blocks * DELTA_SUB; b += DELTA_SUB) {
        float y[DELTA_BLOCKS * 2];
        __syncthreads();
        UNROLL for (int k = 0; k < 2 * (DELTA_BLOCKS - 1); k++) { /* L of the block's rows times the finished part */
            int e = tid + k * FLASH_THREADS, r = b + e / b, c = e % b;
            if (e >= DELTA_SUB * b) continue;
            float sum = 0;
            BY_FOUR for (int m = c / DELTA_SUB * DELTA_SUB; m < b; m++) sum -= s->l[r * LD_L + m] * t[m * LD_L + c];
            t[r * LD_L + c] = sum;
        }
        __syncthreads();
        UNROLL for (int k = 0; k < 2 * (DELTA_BLOCKS - 1); k++) { /* times the inverse of its own diagonal block */
            int e = tid + k * FLASH_THREADS, r = b + e / b, c = e % b;
            y[k] = 0;
            if (e >= DELTA_SUB * b) continue;
            BY_FOUR for (int m = b; m <= r; m++) y[k] += t[r * LD_L + m] * t[m * LD_L + c];
        }
        __syncthreads();
        UNROLL for (int k = 0; k < 2 * (DELTA_BLOCKS - 1); k++) {
            int e = tid + k * FLASH_THREADS;
            if (e < DELTA_SUB * b) t[(b + e / b) * LD_L + e % b] = y[k];
        }
    }
    __syncthreads();
}
/* k c of all rows, one thread per channel as in block_decay. */
template <int KW, class T> DEVICE void keys_decay(PrepareTile<KW> *s, const CudaRecur &a, const Chunk &c, int h) {
    constexpr int PARTS = FLASH_THREADS / KW;
    int d = (int)threadIdx.x % KW, part = (int)threadIdx.x / KW;
    float cum = 1;
    BY_FOUR for (int i = 0; i < DELTA_ROWS; i++) {
        float k = 0;
        if (i < c.n && d < a.K) {
            size_t row = (size_t)(c.t + i), g = row * (size_t)a.HV + (size_t)h;
            if (a.g) cum *= expf(a.per_channel ? a.g[g * (size_t)a.K + (size_t)d] : a.g[g]);
            k = number(((const T *)a.k)[(row * (size_t)a.H + (size_t)(h / (a.HV / a.H))) * (size_t)a.K + (size_t)d]) *
                cum;
        }
        if (i % PARTS != part) continue;
        bf16 high = to_bf16(k);
        s->out.k[0][number_at<KW>(i, d)] = high;
        s->out.k[1][number_at<KW>(i, d)] = to_bf16(k - to_float(high));
    }
}
/* y (16, 8 W) = the inverse times B, both as the sum of two bf16 (B with EXACT as one). After similar keys a row is a
 * difference of sums, and its error would stay in the state. */
template <int D, int W, bool EXACT>
DEVICE void inverse_times(float y[W][4], const bf16 a[2][DELTA_ROWS * DELTA_ROWS], const bf16 B[2][DELTA_ROWS * D]) {
    int warp = (int)threadIdx.x / 32;
    zeros<W>(y);
    product_tiles<DELTA_ROWS, D, W>(y, a[1], 16 * warp, warp + 1, B[0], 0);
    if (!EXACT) product_tiles<DELTA_ROWS, D, W>(y, a[0], 16 * warp, warp + 1, B[1], 0);
    product_tiles<DELTA_ROWS, D, W>(y, a[0], 16 * warp, warp + 1, B[0], 0);
}
/* The inverse times k c and times v. */
template <int KW, class T> DEVICE void apply(PrepareTile<KW> *s, const Delta &x, const Chunk &c, int h, size_t row) {
    constexpr bool exact = sizeof(T) == sizeof(bf16);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, blocks = (c.n + DELTA_SUB - 1) / DELTA_SUB;
    keys_decay<KW, T>(s, x.a, c, h);
    ROLLED for (int i = (int)threadIdx.x; i < DELTA_ROWS * DELTA_ROWS / 2; i += FLASH_THREADS) {
        int r = i / (DELTA_ROWS / 2), col = i % (DELTA_ROWS / 2) * 2, to = number_at<DELTA_ROWS>(r, col);
        bool in = r < blocks * DELTA_SUB && col / DELTA_SUB <= r / DELTA_SUB;
        float2 v = {0, 0};
        if (in) v = load_vec<float2>(s->out.t + r * LD_L + col);
        *(uint32_t *)(s->out.a[0] + to) = pack_bf16(v.x, v.y);
        *(uint32_t *)(s->out.a[1] + to) = pack_rest(v.x, v.y);
    }
    __syncthreads();
    {
        float y[KW / 8][4];
        inverse_times<KW, KW / 8, false>(y, s->out.a, s->out.k);
        rows_store<KW / 8>(x.w + row * KW, KW, c.n, y);
    }
    for (int v0 = 0; v0 < x.VW; v0 += DELTA_ROWS) {
        size_t from = ((size_t)c.t * (size_t)x.a.HV + (size_t)h) * (size_t)x.a.V + (size_t)v0;
        __syncthreads();
        rows_round<DELTA_ROWS, DELTA_ROWS>(s->out.v[0], (const T *)x.a.v + from, (size_t)x.a.HV * (size_t)x.a.V, c.n,
                                           x.a.V - v0, exact ? nullptr : s->out.v[1]);
        __syncthreads();
        float y[DELTA_ROWS / 8][4];
        inverse_times<DELTA_ROWS, DELTA_ROWS / 8, exact>(y, s->out.a, s->out.v);
        UNROLL for (int i = 0; i < 2; i++) {
            int r = 16 * warp + lane / 4 + 8 * i;
            float *to = x.r + (row + (size_t)r) * (size_t)x.VW + (size_t)(v0 + lane % 4 * 2);
            if (r >= c.n) continue;
            UNROLL for (int n = 0; n < DELTA_ROWS / 8; n++) store_vec(to + 8 * n, float2{y[n][2 * i], y[n][2 * i + 1]});
        }
    }
}
template <int KW, class T> __global__ void __launch_bounds__(FLASH_THREADS, 2) delta_prepare(Delta x) {
    using Tile = PrepareTile<KW>;
    SMEM_DYN(Tile, s);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const CudaRecur &a = x.a;
    int tid = (int)threadIdx.x, h = (int)blockIdx.y, begin = a.off[blockIdx.z], end = a.off[blockIdx.z + 1],
        i0 = begin + (int)blockIdx.x * DELTA_ROWS;
    if (i0 >= end) return;
    uint32_t bits[2];
    chunks_in(bits, a, begin, end, i0);
    for (int i; (i = chunk_next(bits)) >= 0;) {
        Chunk c = chunk_from(a, begin, end, i0 + i);
        size_t row = delta_row(x, h, c.t);
        int blocks = (c.n + DELTA_SUB - 1) / DELTA_SUB;
        float cum = 1;
        __syncthreads();
        if (tid < DELTA_ROWS)
            s->beta[tid] = a.delta && tid < c.n ? a.beta[(size_t)(c.t + tid) * (size_t)a.HV + (size_t)h] : 0;
        for (int b = 0; b < blocks; b++) {
            int r = b * DELTA_SUB, m = c.n - r < DELTA_SUB ? c.n - r : DELTA_SUB;
            __syncthreads();
            block_load<KW, T>(s, a, h, c.t + r, m);
            __syncthreads();
            block_decay<KW>(s, x, row, r, m, cum);
            __syncthreads();
            block_scores<KW>(s, x, row, r, m);
            block_diagonal<KW>(s, x, row, r, m);
        }
        if ((c.more || c.last) && tid < KW) x.decay[decay_at(x, c, (int)blockIdx.z, h) + (size_t)tid] = cum;
        for (int e = tid; e < c.n * KW; e += FLASH_THREADS) x.k[row * KW + (size_t)e] = to_bf16(s->in.x[e]);
        __syncthreads();
        if (a.delta) {
            if (x.l) {
                triangle_store(x.l + row * DELTA_ROWS, nullptr, s->l, c.n);
                __syncthreads();
            }
            invert<KW>(s, blocks);
            if (x.t) triangle_store(x.t + row * DELTA_ROWS, x.rest + row * DELTA_ROWS, s->out.t, c.n);
            apply<KW, T>(s, x, c, h, row);
        } else if (x.u.p != a.v) {
            for (int e = tid; e < c.n * x.VW; e += FLASH_THREADS) {
                int r = e / x.VW, col = e % x.VW;
                size_t at = ((size_t)(c.t + r) * (size_t)a.HV + (size_t)h) * (size_t)a.V + (size_t)col;
                row_at(x.u, h, c.t + r)[col] = to_bf16(col < a.V ? number(((const T *)a.v)[at]) : 0);
            }
        }
    }
}

/* ---- states ---- */
template <int KW> struct StateTile {
    bf16 w[2][DELTA_ROWS * KW], k[2][DELTA_ROWS * KW], u[2][DELTA_ROWS * DELTA_COLUMNS], s[KW * DELTA_COLUMNS];
    float decay[2][KW], beta[2][DELTA_ROWS];
};
template <int KW>
DEVICE void state_fetch(StateTile<KW> *m, int stage, const Delta &x, const Chunk &c, int s, int h, int col) {
    size_t row = delta_row(x, h, c.t);
    int tid = (int)threadIdx.x;
    tile_fetch<KW, DELTA_ROWS>(m->k[stage], x.k + row * KW, c.n);
    if (x.a.delta)
        tile_fetch<KW, DELTA_ROWS>(m->w[stage], x.w + row * KW, c.n);
    else
        rows_fetch<DELTA_COLUMNS, DELTA_ROWS>(m->u[stage], x.u, h, c.t, col, c.n);
    cp_async_commit();
    if (tid < KW) m->decay[stage][tid] = c.more || c.last ? x.decay[decay_at(x, c, s, h) + (size_t)tid] : 0;
    if (tid < DELTA_ROWS && x.a.delta)
        m->beta[stage][tid] = tid < c.n ? x.a.beta[(size_t)(c.t + tid) * (size_t)x.a.HV + (size_t)h] : 0;
}
template <int KW>
__global__ void __launch_bounds__(FLASH_THREADS) delta_states(Delta x, float *state, bool write, bool pairs) {
    using Tile = StateTile<KW>;
    constexpr int MT = KW / 64;
    SMEM_DYN(Tile, m);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const CudaRecur &a = x.a;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t2 = lane % 4 * 2,
        col0 = (int)blockIdx.x * DELTA_COLUMNS, h = (int)blockIdx.y, s = (int)blockIdx.z, begin = a.off[s],
        end = a.off[s + 1], channel = warp * KW / 4 + g, col = col0 + t2;
    if (begin == end) return;
    size_t size = (size_t)a.K * (size_t)a.V;
    float *blob = state ? state + (size_t)a.seq[s] * a.blob + (size_t)a.at + (size_t)h * size : nullptr;
    float S[MT][4][4];
    Chunk c = chunk_from(a, begin, end, begin), next = c;
    state_fetch<KW>(m, 0, x, c, s, h, col0);
    for (int stage = 0;; stage ^= 1, c = next) {
        bool done = c.t + c.n == end;
        if (!done) next = chunk_from(a, begin, end, c.t + c.n);
        if (c.head)
            state_get<MT>(S, a, c.fresh ? nullptr : blob, channel, col, pairs);
        else
            state_put<MT>(S, a, x.keep + kept_at(x, c.t, h), channel, col, pairs);
        if (c.head && !c.fresh) state_put<MT>(S, a, start_of(x, s, h), channel, col, pairs);
        if (a.delta && !c.fresh) state_round<MT>(m->s, S, channel, t2);
        cp_async_wait<0>();
        __syncthreads();
        if (!done) state_fetch<KW>(m, stage ^ 1, x, next, s, h, col0);
        if (a.delta) {
            float y[4][4];
            zeros<4>(y);
            if (!c.fresh) product_tiles<KW, DELTA_COLUMNS, 4>(y, m->w[stage], 16 * warp, KW / 16, m->s, 0);
            UNROLL for (int i = 0; i < 2; i++) {
                int r = 16 * warp + g + 8 * i;
                size_t at = (delta_row(x, h, c.t) + (size_t)r) * (size_t)x.VW + (size_t)col;
                UNROLL for (int n = 0; n < 4; n++) {
                    float2 R = {0, 0};
                    if (r < c.n) R = load_vec<float2>(x.r + at + 8 * n);
                    float beta = m->beta[stage][r];
                    uint32_t u = pack_bf16(beta * (R.x - y[n][2 * i]), beta * (R.y - y[n][2 * i + 1]));
                    *(uint32_t *)(m->u[stage] + number_at<DELTA_COLUMNS>(r, 8 * n + t2)) = r < c.n ? u : 0;
                    if (r < c.n) *(uint32_t *)(row_at(x.u, h, c.t + r) + col + 8 * n) = u;
                }
            }
            __syncthreads();
        }
        if (c.more || c.last) {
            UNROLL for (int k = 0; k < MT; k++) {
                UNROLL for (int i = 0; i < 2; i++) {
                    float d = m->decay[stage][channel + 16 * k + 8 * i];
                    UNROLL for (int n = 0; n < 4; n++) S[k][n][2 * i] *= d, S[k][n][2 * i + 1] *= d;
                }
                product_turned<KW, DELTA_COLUMNS, 4>(S[k], m->k[stage], warp * KW / 4 + 16 * k, 0,
                                                     (c.n + DELTA_SUB - 1) / DELTA_SUB, m->u[stage], 0);
            }
        }
        if (done) break;
    }
    if (write && blob) state_put<MT>(S, a, blob, channel, col, pairs);
}

/* ---- outputs ---- */
template <int KW> struct OutTile {
    bf16 q[DELTA_ROWS * KW], p[DELTA_ROWS * DELTA_ROWS], u[DELTA_ROWS * DELTA_ROWS], s[KW * DELTA_ROWS];
};
template <int KW> __global__ void __launch_bounds__(FLASH_THREADS) delta_out(Delta x, FlashOut o) {
    using Tile = OutTile<KW>;
    SMEM_DYN(Tile, m);
    const CudaRecur &a = x.a;
    int slices = x.VW / DELTA_ROWS, col0 = (int)blockIdx.x % slices * DELTA_ROWS, h = (int)blockIdx.y,
        s = (int)blockIdx.z, begin = a.off[s], end = a.off[s + 1], i0 = begin + (int)blockIdx.x / slices * DELTA_ROWS,
        warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (i0 >= end) return;
    uint32_t bits[2];
    chunks_in(bits, a, begin, end, i0);
    for (int i; (i = chunk_next(bits)) >= 0;) {
        Chunk c = chunk_from(a, begin, end, i0 + i);
        size_t row = delta_row(x, h, c.t);
        __syncthreads();
        tile_fetch<DELTA_ROWS, DELTA_ROWS>(m->p, x.p + row * DELTA_ROWS, c.n);
        rows_fetch<DELTA_ROWS, DELTA_ROWS>(m->u, x.u, h, c.t, col0, c.n);
        if (!c.fresh) tile_fetch<KW, DELTA_ROWS>(m->q, x.q + row * KW, c.n);
        cp_async_commit();
        const float *S = c.head ? start_of(x, s, h) : x.keep + kept_at(x, c.t, h);
        if (!c.fresh) rows_round<DELTA_ROWS, KW>(m->s, S + col0, (size_t)a.V, a.K, a.V - col0);
        cp_async_wait<0>();
        __syncthreads();
        float y[DELTA_ROWS / 8][4];
        zeros<DELTA_ROWS / 8>(y);
        if (!c.fresh) product_tiles<KW, DELTA_ROWS, DELTA_ROWS / 8>(y, m->q, 16 * warp, KW / 16, m->s, 0);
        product_tiles<DELTA_ROWS, DELTA_ROWS, DELTA_ROWS / 8>(y, m->p, 16 * warp, warp + 1, m->u, 0);
        UNROLL for (int i = 0; i < 2; i++) {
            int r = 16 * warp + lane / 4 + 8 * i;
            row_out<DELTA_ROWS / 8, true>(o, (size_t)(c.t + r) * (size_t)a.HV + (size_t)h, r < c.n, col0, y, i, 1);
        }
    }
}

/* ---- the host's side ---- */
void delta_place(Delta *x, DeltaRoom *m, const CudaRecur *a, bool keep) {
    size_t rows = (size_t)a->N * (size_t)a->HV, state = (size_t)a->K * (size_t)a->V * (size_t)a->HV,
           kept = (size_t)delta_kept(*a);
    *x = Delta{};
    x->a = *a;
    x->KW = a->K <= 64 ? 64 : 128, x->VW = (a->V + DELTA_ROWS - 1) / DELTA_ROWS * DELTA_ROWS;
    size_t k = rows * (size_t)x->KW, v = rows * (size_t)x->VW;
    x->q = m->take<bf16>(k), x->k = m->take<bf16>(k), x->p = m->take<bf16>(rows * DELTA_ROWS);
    x->decay = m->take<float>((kept + (size_t)a->B) * (size_t)a->HV * (size_t)x->KW);
    x->u = !a->delta && delta_lies(a) ? delta_tensor(a, a->v) : delta_operand(a, m, x->VW);
    if (a->delta) x->w = m->take<bf16>(k), x->r = m->take<float>(v);
    if (keep) x->start = m->take<float>((size_t)a->B * state), x->keep = m->take<float>(kept * state);
}
extern "C" size_t cuda_delta_bytes(const CudaRecur *a) {
    Delta x;
    DeltaRoom m = {};
    delta_place(&x, &m, a, true);
    return m.at;
}
template <int KW, class T> static void prepare_of(Cuda *c, const Delta *x) {
    delta_allow(delta_prepare<KW, T>, sizeof(PrepareTile<KW>));
    LAUNCH((delta_prepare<KW, T>), dim3(delta_windows(&x->a), (unsigned)x->a.HV, (unsigned)x->a.B), dim3(FLASH_THREADS),
           sizeof(PrepareTile<KW>), c->stream, *x);
}
void delta_prepare_all(Cuda *c, const Delta *x) {
    auto run = x->a.is_bf16 ? prepare_of<64, bf16> : prepare_of<64, float>;
    if (x->KW == 128) run = x->a.is_bf16 ? prepare_of<128, bf16> : prepare_of<128, float>;
    run(c, x);
}
template <int KW> static void forward_of(Cuda *c, const Delta *x, void *o, float *state, bool write) {
    const CudaRecur *a = &x->a;
    unsigned h = (unsigned)a->HV, b = (unsigned)a->B;
    bool pairs = delta_pairs(x->keep, a->V) && delta_pairs(state ? state + a->at : nullptr, a->V) && a->blob % 2 == 0;
    delta_allow(delta_states<KW>, sizeof(StateTile<KW>));
    LAUNCH((delta_states<KW>), dim3((unsigned)(x->VW / DELTA_COLUMNS), h, b), dim3(FLASH_THREADS),
           sizeof(StateTile<KW>), c->stream, *x, state, write, pairs);
    delta_allow(delta_out<KW>, sizeof(OutTile<KW>));
    LAUNCH((delta_out<KW>), dim3(delta_windows(a) * (unsigned)(x->VW / DELTA_ROWS), h, b), dim3(FLASH_THREADS),
           sizeof(OutTile<KW>), c->stream, *x, flash_out({o, a->is_bf16, true}, a->V, true));
}
extern "C" void cuda_delta(Cuda *c, const CudaRecur *a, void *mem, void *o, float *keep, float *state, bool write) {
    Delta x;
    DeltaRoom m = {(char *)mem, 0};
    delta_place(&x, &m, a, true);
    if (keep) x.keep = keep;
    delta_prepare_all(c, &x);
    if (x.KW == 64)
        forward_of<64>(c, &x, o, state, write);
    else
        forward_of<128>(c, &x, o, state, write);
}
