/* delta_keys_backward.cu: the gradients of delta.cu's recurrence that are sums over pairs of rows (dq, dk and dg), for
 * all chunks at once; formulas in delta_backward.cu. */
#include "delta_backward.h"

/* Processes 64 channels at a time. */
struct KeysBackTile {
    float q[TILE64], k[TILE64], a[TILE64];
    union {
        struct {
            bf16 o[TILE64], v[TILE64], u[TILE64], s[TILE64], d[TILE64];
        } state;
        struct { /* q or k with decays, of 96 rows: the partners of each block */
            bf16 high[96 * DELTA_ROWS], low[96 * DELTA_ROWS];
        } pair;
        struct { /* q lies past pair */
            float row[TILE64], col[TILE64], q[TILE64];
        } sum;
    };
    float end[DELTA_ROWS], part[4][DELTA_ROWS], late[DELTA_ROWS], gate[DELTA_ROWS];
};
static_assert(sizeof(KeysBackTile) <= FLASH_SMEM, "shared memory");
static_assert(offsetof(KeysBackTile, sum.q) >= offsetof(KeysBackTile, pair) + sizeof(((KeysBackTile *)0)->pair),
              "apart");
/* Index into a matrix whose rows are accessed by eights or along; it avoids bank conflicts. */
DEVICE int sum_at(int r, int c) { return r * DELTA_ROWS + (c ^ (r & 3) << 3); }

/* Rows of S and dS' (64 channels from k0) rounded; the products of their rows go to end. */
DEVICE void states_round(KeysBackTile *m, const Delta &x, const float *S, const float *dS, int k0, int v0) {
    int lane = (int)threadIdx.x % 32, c = 2 * lane;
    ROLLED for (int r = (int)threadIdx.x / 32; r < DELTA_ROWS; r += 4) {
        float s[2], d[2];
        UNROLL for (int i = 0; i < 2; i++) {
            size_t at = (size_t)(k0 + r) * (size_t)x.a.V + (size_t)(v0 + c + i);
            bool in = k0 + r < x.a.K && v0 + c + i < x.a.V;
            s[i] = S && in ? S[at] : 0;
            d[i] = dS && in ? dS[at] : 0;
        }
        *(uint32_t *)(m->state.s + number_at<DELTA_ROWS>(r, c)) = pack_bf16(s[0], s[1]);
        *(uint32_t *)(m->state.d + number_at<DELTA_ROWS>(r, c)) = pack_bf16(d[0], d[1]);
        float sum = warp_sum(s[0] * d[0] + s[1] * d[1]);
        if (lane == 0) m->end[r] += sum;
    }
}
/* The decays of a thread's elements of piece n, (row, column) as in a product: since the first row of the block, or up
 * to its last. The row's own decay, or the last one's, is excluded. */
template <bool UP> DEVICE void block_decays(float f[4], const float *a, int i0, int n) {
    int g = (int)threadIdx.x % 32 / 4, t2 = (int)threadIdx.x % 4 * 2;
    f[0] = f[1] = f[2] = f[3] = 1;
    BY_FOUR for (int m = 1; m < DELTA_SUB; m++) {
        float2 v = load_vec<float2>(a + (i0 + m) * DELTA_ROWS + 8 * n + t2);
        if (UP ? m > g : m <= g) f[0] *= v.x, f[1] *= v.y;
        if (UP ? m > g + 8 : m <= g + 8) f[2] *= v.x, f[3] *= v.y;
    }
}
/* The decay over the rows from..to-1. */
DEVICE float2 stretch(const float *a, int from, int to, int n) {
    float2 f = {1, 1};
    BY_FOUR for (int m = from; m < to; m++) {
        float2 v = load_vec<float2>(a + m * DELTA_ROWS + 8 * n + (int)threadIdx.x % 4 * 2);
        f.x *= v.x, f.y *= v.y;
    }
    return f;
}
DEVICE void split_store(KeysBackTile *m, int r, int c, float v) {
    bf16 high = to_bf16(v);
    m->pair.high[number_at<DELTA_ROWS>(r, c)] = high;
    m->pair.low[number_at<DELTA_ROWS>(r, c)] = to_bf16(v - to_float(high));
}
/* y (16, 64) += D (16, 16) times rows base..base+15 of the tile, both as sums of two bf16. D(i, j) = d[i0 + i][j0 + j]
 * from rows of 64, n of which exist; turned: its transpose. */
template <bool TURNED>
DEVICE void pairs_add(float y[8][4], const float *d, int n, int i0, int j0, const KeysBackTile *m, int base) {
    int g = (int)threadIdx.x % 32 / 4, t2 = (int)threadIdx.x % 4 * 2;
    uint32_t high[4], low[4], b[4];
    UNROLL for (int e = 0; e < 4; e++) {
        float v[2], h[2];
        UNROLL for (int k = 0; k < 2; k++) {
            int r = g + e % 2 * 8, c = t2 + k + e / 2 * 8, i = i0 + (TURNED ? c : r), j = j0 + (TURNED ? r : c);
            v[k] = i < n ? d[(size_t)i * DELTA_ROWS + (size_t)j] : 0;
            h[k] = to_float(to_bf16(v[k]));
        }
        high[e] = pack_bf16(h[0], h[1]), low[e] = pack_bf16(v[0] - h[0], v[1] - h[1]);
    }
    UNROLL for (int c = 0; c < 8; c += 2) {
        fragment_b<DELTA_ROWS>(b, m->pair.low, base, c);
        mma_bf16(y[c], high, b, y[c]);
        mma_bf16(y[c + 1], high, b + 2, y[c + 1]);
        fragment_b<DELTA_ROWS>(b, m->pair.high, base, c);
        mma_bf16(y[c], low, b, y[c]);
        mma_bf16(y[c + 1], low, b + 2, y[c + 1]);
        mma_bf16(y[c], high, b, y[c]);
        mma_bf16(y[c + 1], high, b + 2, y[c + 1]);
    }
}
/* The first of block b's partners among the 96 rows: the rows before it (b >= 1), and those after it (b < 3). */
DEVICE int earlier_at(int b) { return b == 1 ? 0 : b == 2 ? 16 : 48; }
DEVICE int later_at(int b) { return b == 0 ? 0 : b == 1 ? 48 : 80; }
/* k_j with its decay up to the first row of each later block. */
DEVICE void earlier_rows(KeysBackTile *m) {
    int c = (int)threadIdx.x % DELTA_ROWS, part = (int)threadIdx.x / DELTA_ROWS;
    for (int b = part ? 3 : 1; b <= (part ? 3 : 2); b++) {
        float w = m->a[16 * b * DELTA_ROWS + c];
        for (int j = 16 * b - 1; j >= 0; j--) {
            split_store(m, earlier_at(b) + j, c, m->k[j * DELTA_ROWS + c] * w);
            w *= m->a[j * DELTA_ROWS + c];
        }
    }
}
/* Rows of x with their decay since the last row of each earlier block. */
DEVICE void later_rows(KeysBackTile *m, const float *x) {
    int c = (int)threadIdx.x % DELTA_ROWS, part = (int)threadIdx.x / DELTA_ROWS;
    for (int b = part; b <= 2 * part; b++) {
        float w = 1;
        int past = 16 * (b + 1);
        for (int i = past; i < DELTA_ROWS; i++) {
            w *= m->a[i * DELTA_ROWS + c];
            split_store(m, later_at(b) + i - past, c, x[i * DELTA_ROWS + c] * w);
        }
    }
}
/* Add the states' parts of the gradients of q_i, k_i as later rows and of k_i as an earlier one; also of end and
 * late. */
DEVICE void from_states(KeysBackTile *m, const Delta &x, const DeltaGrad &y, const Chunk &c, int s, int h, int k0,
                        float dq[8][4], float later[8][4], float earlier[8][4]) {
    const CudaRecur &a = x.a;
    int tid = (int)threadIdx.x, warp = tid / 32, g = tid % 32 / 4, t2 = tid % 4 * 2, i0 = 16 * warp;
    const float *S = c.fresh  ? nullptr
                     : c.head ? start_of(x, s, h)
                              : x.keep + kept_at(x, c.t, h),
                *dS = state_behind(x, y, c, s, h);
    for (int v0 = 0; v0 < x.VW && (S || dS); v0 += DELTA_ROWS) {
        __syncthreads();
        rows_fetch<DELTA_ROWS, DELTA_ROWS>(m->state.o, x.o, h, c.t, v0, c.n);
        if (a.delta) rows_fetch<DELTA_ROWS, DELTA_ROWS>(m->state.v, x.v, h, c.t, v0, c.n);
        rows_fetch<DELTA_ROWS, DELTA_ROWS>(m->state.u, x.u, h, c.t, v0, c.n);
        cp_async_commit();
        states_round(m, x, S, dS, k0, v0);
        cp_async_wait<0>();
        __syncthreads();
        if (S) scores_add<DELTA_ROWS, 8>(dq, m->state.o, i0, m->state.s, 4);
        if (S && a.delta) scores_add<DELTA_ROWS, 8>(later, m->state.v, i0, m->state.s, 4);
        if (dS) scores_add<DELTA_ROWS, 8>(earlier, m->state.u, i0, m->state.d, 4);
    }
    UNROLL for (int n = 0; n < 8; n++) {
        float f[4], b[4];
        float2 head = stretch(m->a, 0, i0 + 1, n), tail = stretch(m->a, i0 + 16, DELTA_ROWS, n), sum = {0, 0};
        block_decays<false>(f, m->a, i0, n);
        block_decays<true>(b, m->a, i0, n);
        UNROLL for (int k = 0; k < 4; k++) {
            float since = (k % 2 ? head.y : head.x) * f[k], up = (k % 2 ? tail.y : tail.x) * b[k];
            int r = i0 + g + k / 2 * 8, col = 8 * n + t2 + k % 2;
            dq[n][k] *= since, later[n][k] *= -since;
            if (r == c.n - 1) { /* the last row enters the state without a decay, so it adds nothing to dg */
                m->late[col] = earlier[n][k];
                earlier[n][k] = 0;
            }
            earlier[n][k] *= up;
            (k % 2 ? sum.y : sum.x) += earlier[n][k] * m->k[r * DELTA_ROWS + col];
        }
        UNROLL for (int d = 4; d < 32; d *= 2) {
            sum.x += __shfl_xor_sync(FULL_WARP, sum.x, d);
            sum.y += __shfl_xor_sync(FULL_WARP, sum.y, d);
        }
        if (g == 0) m->part[warp][8 * n + t2] = sum.x, m->part[warp][8 * n + t2 + 1] = sum.y;
    }
}
DEVICE void fragment_sum(float *to, const float y[8][4], int i0) {
    int g = (int)threadIdx.x % 32 / 4, t2 = (int)threadIdx.x % 4 * 2;
    UNROLL for (int n = 0; n < 8; n++) {
        store_vec(to + sum_at(i0 + g, 8 * n + t2), float2{y[n][0], y[n][1]});
        store_vec(to + sum_at(i0 + g + 8, 8 * n + t2), float2{y[n][2], y[n][3]});
    }
}
/* Add the parts of pairs of different blocks. dq, complete before the others, goes to sum.q: with it in registers to
 * the end the kernel needs more than there are. */
DEVICE void from_pairs(KeysBackTile *m, const Delta &x, const Chunk &c, size_t row, float dq[8][4], float later[8][4],
                       float earlier[8][4]) {
    int warp = (int)threadIdx.x / 32, i0 = 16 * warp;
    const float *dp = x.dp + row * DELTA_ROWS, *dl = x.a.delta ? x.dl + row * DELTA_ROWS : nullptr;
    float y[8][4], f[4];
    __syncthreads();
    earlier_rows(m);
    __syncthreads();
    for (int of_k = 0; of_k < (dl && warp ? 2 : 1); of_k++) {
        zeros<8>(y);
        ROLLED for (int b = 0; b < warp; b++)
            pairs_add<false>(y, of_k ? dl : dp, c.n, i0, 16 * b, m, earlier_at(warp) + 16 * b);
        UNROLL for (int n = 0; n < 8; n++) {
            block_decays<false>(f, m->a, i0, n);
            UNROLL for (int k = 0; k < 4; k++) {
                if (of_k)
                    later[n][k] += f[k] * y[n][k];
                else
                    dq[n][k] += f[k] * y[n][k];
            }
        }
    }
    fragment_sum(m->sum.q, dq, i0);
    zeros<8>(y);
    for (int of_k = 0; of_k < (dl ? 2 : 1); of_k++) {
        __syncthreads();
        later_rows(m, of_k ? m->k : m->q);
        __syncthreads();
        ROLLED for (int b = warp + 1; b < DELTA_BLOCKS; b++)
            pairs_add<true>(y, of_k ? dl : dp, c.n, 16 * b, i0, m, later_at(warp) + 16 * (b - warp - 1));
    }
    UNROLL for (int n = 0; n < 8; n++) {
        block_decays<true>(f, m->a, i0, n);
        UNROLL for (int k = 0; k < 4; k++) earlier[n][k] += f[k] * y[n][k];
    }
}
/* Pairs inside a block, one thread per channel; then its rows' dq and dk, and what each adds to the decays, in
 * sum.row. */
DEVICE void block_finish(KeysBackTile *m, const Delta &x, const DeltaGrad &y, const Chunk &c, int h, size_t row, int i0,
                         int k0) {
    const CudaRecur &a = x.a;
    int ch = (int)threadIdx.x % DELTA_ROWS;
    const float *dp = x.dp + row * DELTA_ROWS, *dl = a.delta ? x.dl + row * DELTA_ROWS : nullptr;
    float dq[DELTA_SUB], later[DELTA_SUB];
    UNROLL for (int i = 0; i < DELTA_SUB; i++) {
        int at = sum_at(i0 + i, ch);
        dq[i] = m->sum.q[at], later[i] = m->sum.row[at];
    }
    UNROLL for (int j = 0; j < DELTA_SUB; j++) {
        float k = m->k[(i0 + j) * DELTA_ROWS + ch], w = 1, earlier = m->sum.col[sum_at(i0 + j, ch)];
        UNROLL for (int i = j + 1; i < DELTA_SUB; i++) {
            if (i0 + i >= c.n) continue;
            int at = (i0 + i) * DELTA_ROWS;
            w *= m->a[at + ch];
            float p = dp[at + i0 + j], l = dl ? dl[at + i0 + j] : 0;
            dq[i] += p * k * w, later[i] += l * k * w;
            earlier += (p * m->q[at + ch] + l * m->k[at + ch]) * w;
        }
        if (i0 + j >= c.n) continue;
        float q = m->q[(i0 + j) * DELTA_ROWS + ch], same = dp[(i0 + j) * DELTA_ROWS + i0 + j]; /* the pair j, j */
        m->sum.row[sum_at(i0 + j, ch)] = q * dq[j] + k * (later[j] - earlier);
        size_t to = ((size_t)(c.t + i0 + j) * (size_t)a.HV + (size_t)h) * (size_t)a.K + (size_t)(k0 + ch);
        if (k0 + ch >= a.K) continue;
        if (y.d.q.p) add_to(y.d.q, to, a.scale * (dq[j] + same * k));
        if (y.d.k.p) add_to(y.d.k, to, later[j] + earlier + same * q + (i0 + j == c.n - 1 ? m->late[ch] : 0));
    }
}
template <class T> __global__ void __launch_bounds__(FLASH_THREADS) delta_keys_backward(Delta x, DeltaGrad y) {
    SMEM_DYN(KeysBackTile, m);
    const CudaRecur &a = x.a;
    int tid = (int)threadIdx.x, h = (int)blockIdx.y, s = (int)blockIdx.z, begin = a.off[s], end = a.off[s + 1],
        i0 = begin + (int)blockIdx.x * DELTA_ROWS, hq = h / (a.HV / a.H);
    if (i0 >= end) return;
    uint32_t bits[2];
    chunks_in(bits, a, begin, end, i0);
    for (int i; (i = chunk_next(bits)) >= 0;) {
        Chunk c = chunk_from(a, begin, end, i0 + i);
        size_t row = delta_row(x, h, c.t);
        for (int k0 = 0; k0 < a.K; k0 += DELTA_ROWS) {
            __syncthreads();
            ROLLED for (int e = tid; e < TILE64; e += FLASH_THREADS) {
                int r = e / DELTA_ROWS, d = k0 + e % DELTA_ROWS;
                bool in = r < c.n && d < a.K;
                size_t t = (size_t)(c.t + r), at = (t * (size_t)a.H + (size_t)hq) * (size_t)a.K + (size_t)d,
                       g = t * (size_t)a.HV + (size_t)h;
                m->q[e] = in ? a.scale * number(((const T *)a.q)[at]) : 0;
                m->k[e] = in ? number(((const T *)a.k)[at]) : 0;
                m->a[e] = in && a.g ? expf(a.per_channel ? a.g[g * (size_t)a.K + (size_t)d] : a.g[g]) : 1;
            }
            if (tid < DELTA_ROWS) {
                m->end[tid] = 0;
                if (k0 == 0) m->gate[tid] = 0;
            }
            __syncthreads();
            {
                float dq[8][4], later[8][4], earlier[8][4];
                zeros<8>(dq), zeros<8>(later), zeros<8>(earlier);
                from_states(m, x, y, c, s, h, k0, dq, later, earlier);
                from_pairs(m, x, c, row, dq, later, earlier);
                __syncthreads();
                fragment_sum(m->sum.row, later, tid / 32 * 16);
                fragment_sum(m->sum.col, earlier, tid / 32 * 16);
            }
            __syncthreads();
            ROLLED for (int b = tid / DELTA_ROWS * DELTA_SUB; b < c.n; b += 2 * DELTA_SUB)
                block_finish(m, x, y, c, h, row, b, k0);
            __syncthreads();
            if (tid < DELTA_ROWS) { /* sums over what the rows from i on add */
                float sum = m->end[tid], whole = 1;
                for (int r = 0; r < DELTA_ROWS; r++) whole *= m->a[r * DELTA_ROWS + tid];
                sum = sum * whole + m->part[0][tid] + m->part[1][tid] + m->part[2][tid] + m->part[3][tid];
                for (int r = c.n - 1; r >= 0; r--) {
                    sum += m->sum.row[sum_at(r, tid)];
                    if (!a.per_channel)
                        m->sum.row[sum_at(r, tid)] = sum;
                    else if (y.d.g.p && k0 + tid < a.K)
                        add_to(y.d.g, ((size_t)(c.t + r) * (size_t)a.HV + (size_t)h) * (size_t)a.K + (size_t)(k0 + tid),
                               sum);
                }
            }
            __syncthreads();
            if (tid < c.n && !a.per_channel) {
                float sum = 0;
                for (int d = 0; d < DELTA_ROWS; d++) sum += m->sum.row[sum_at(tid, (d + tid) % DELTA_ROWS)];
                m->gate[tid] += sum;
            }
        }
        if (tid < c.n && !a.per_channel && y.d.g.p)
            add_to(y.d.g, (size_t)(c.t + tid) * (size_t)a.HV + (size_t)h, m->gate[tid]);
    }
}

/* ---- the host's side ---- */
template <class T> static void keys_backward_of(Cuda *c, const Delta *x, const DeltaGrad *y) {
    const CudaRecur *a = &x->a;
    delta_allow(delta_keys_backward<T>, sizeof(KeysBackTile));
    LAUNCH((delta_keys_backward<T>), dim3(delta_windows(a), (unsigned)a->HV, (unsigned)a->B), dim3(FLASH_THREADS),
           sizeof(KeysBackTile), c->stream, *x, *y);
}
void delta_keys_backward_all(Cuda *c, const Delta *x, const DeltaGrad *y) {
    (x->a.is_bf16 ? keys_backward_of<bf16> : keys_backward_of<float>)(c, x, y);
}
