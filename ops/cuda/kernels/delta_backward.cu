/* delta_backward.cu: the gradients of delta.cu's recurrence, notation as in delta.h and ops/cpu/chunk.c. The steps:
 * - recompute the parts of chunks that do not depend on a state;
 * - dU and the gradients of states: a block takes a head of a sequence and 32 columns, and walks from the last chunk
 *   to the first;
 * - for all chunks at once, the sums over columns (dv, dbeta, those of P and L), and, in delta_keys_backward.cu, the
 *   sums over pairs of rows (dq, dk, dg).
 *
 * With S the state before a chunk and dS' the gradient of the state after it:
 *   dU = P^T do + (k e_last) dS',  dv = (I + L Diag(beta))^-T (beta dU)
 *   dS = Diag(c_last) dS' + (q c)^T do - W^T (beta dU)
 *   G = dv r^T,  dP = tril(do u^T),  dL_ij = -beta_j G_ij
 *   dbeta_i = G_ii / beta_i;  for beta_i = 0:  dU_i.r_i - sum over m > i of L_mi G_mi
 * Rows receive do S^T, -dv S^T, u dS'^T and the pairs' part. Its products use both operands as the sum of two bf16,
 * because what a pair gives the later row and takes from the earlier one cancels in dg. Every element has one
 * writer. */
#include "delta_backward.h"

/* ---- states, backward ---- */
template <int KW> struct StateBackTile {
    bf16 p[DELTA_ROWS * DELTA_ROWS], k[DELTA_ROWS * KW], q[DELTA_ROWS * KW], w[DELTA_ROWS * KW],
        o[2][DELTA_ROWS * DELTA_COLUMNS], b[DELTA_ROWS * DELTA_COLUMNS], s[KW * DELTA_COLUMNS]; /* b: -beta dU */
    float decay[2][KW], beta[2][DELTA_ROWS];
};
template <int KW>
DEVICE void back_fetch(StateBackTile<KW> *m, int stage, const Delta &x, const Chunk &c, int s, int h, int col) {
    size_t row = delta_row(x, h, c.t);
    int tid = (int)threadIdx.x;
    tile_fetch<DELTA_ROWS, DELTA_ROWS>(m->p, x.p + row * DELTA_ROWS, c.n);
    tile_fetch<KW, DELTA_ROWS>(m->k, x.k + row * KW, c.n);
    rows_fetch<DELTA_COLUMNS, DELTA_ROWS>(m->o[stage], x.o, h, c.t, col, c.n);
    cp_async_commit();
    if (tid < KW) m->decay[stage][tid] = c.more || c.last ? x.decay[decay_at(x, c, s, h) + (size_t)tid] : 0;
    if (tid < DELTA_ROWS && x.a.delta)
        m->beta[stage][tid] = tid < c.n ? x.a.beta[(size_t)(c.t + tid) * (size_t)x.a.HV + (size_t)h] : 0;
}
template <int KW> DEVICE void back_fetch_state(StateBackTile<KW> *m, const Delta &x, const Chunk &c, int h) {
    size_t row = delta_row(x, h, c.t);
    if (!c.fresh) tile_fetch<KW, DELTA_ROWS>(m->q, x.q + row * KW, c.n);
    if (!c.fresh && x.a.delta) tile_fetch<KW, DELTA_ROWS>(m->w, x.w + row * KW, c.n);
    cp_async_commit();
}
template <int KW> __global__ void __launch_bounds__(FLASH_THREADS) delta_states_backward(Delta x, DeltaGrad y) {
    using Tile = StateBackTile<KW>;
    constexpr int MT = KW / 64;
    SMEM_DYN(Tile, m);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const CudaRecur &a = x.a;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t2 = lane % 4 * 2,
        col0 = (int)blockIdx.x * DELTA_COLUMNS, h = (int)blockIdx.y, s = (int)blockIdx.z, begin = a.off[s],
        end = a.off[s + 1], channel = warp * KW / 4 + g, col = col0 + t2;
    if (begin == end) return;
    float dS[MT][4][4];
    Chunk c = chunk_from(a, begin, end, chunk_start(a, begin, end - 1)), prev = c;
    back_fetch<KW>(m, 0, x, c, s, h, col0);
    back_fetch_state<KW>(m, x, c, h);
    for (int stage = 0;; stage ^= 1, c = prev) {
        bool done = c.t == begin, behind = c.more || (c.last && y.d.dend);
        int blocks = (c.n + DELTA_SUB - 1) / DELTA_SUB;
        if (!done) prev = chunk_from(a, begin, end, chunk_start(a, begin, c.t - 1));
        if (c.more)
            state_put<MT>(dS, a, x.dkeep + kept_at(x, c.t + DELTA_ROWS, h), channel, col, y.pairs);
        else
            state_get<MT>(dS, a, state_behind(x, y, c, s, h), channel, col, y.pairs);
        if (behind) state_round<MT>(m->s, dS, channel, t2);
        cp_async_wait<1>();
        __syncthreads();
        float u[4][4];
        zeros<4>(u);
        product_turned<DELTA_ROWS, DELTA_COLUMNS, 4>(u, m->p, 16 * warp, warp, blocks, m->o[stage], 0);
        if (behind) product_tiles<KW, DELTA_COLUMNS, 4>(u, m->k, 16 * warp, KW / 16, m->s, 0);
        UNROLL for (int i = 0; i < 2; i++) {
            int r = 16 * warp + g + 8 * i;
            float beta = a.delta ? -m->beta[stage][r] : 0;
            float *to = x.du + (delta_row(x, h, c.t) + (size_t)r) * (size_t)x.VW + (size_t)col;
            UNROLL for (int n = 0; n < 4; n++) {
                if (a.delta)
                    *(uint32_t *)(m->b + number_at<DELTA_COLUMNS>(r, 8 * n + t2)) =
                        pack_bf16(beta * u[n][2 * i], beta * u[n][2 * i + 1]);
                if (r < c.n) store_vec(to + 8 * n, float2{u[n][2 * i], u[n][2 * i + 1]});
            }
        }
        cp_async_wait<0>();
        __syncthreads();
        if (!done) back_fetch<KW>(m, stage ^ 1, x, prev, s, h, col0);
        UNROLL for (int k = 0; k < MT; k++) {
            if (c.fresh) continue;
            UNROLL for (int i = 0; i < 2; i++) {
                float d = m->decay[stage][channel + 16 * k + 8 * i];
                UNROLL for (int n = 0; n < 4; n++) dS[k][n][2 * i] *= d, dS[k][n][2 * i + 1] *= d;
            }
            int m0 = warp * KW / 4 + 16 * k;
            product_turned<KW, DELTA_COLUMNS, 4>(dS[k], m->q, m0, 0, blocks, m->o[stage], 0);
            if (a.delta) product_turned<KW, DELTA_COLUMNS, 4>(dS[k], m->w, m0, 0, blocks, m->b, 0);
        }
        if (c.head && !c.fresh && y.d.dstart) {
            float old[MT][4][4], *to = y.d.dstart + seq_state(x, s, h);
            state_get<MT>(old, a, to, channel, col, y.pairs);
            UNROLL for (int k = 0; k < MT; k++) {
                UNROLL for (int n = 0; n < 4; n++) { UNROLL for (int i = 0; i < 4; i++) old[k][n][i] += dS[k][n][i]; }
            }
            state_put<MT>(old, a, to, channel, col, y.pairs);
        }
        if (done) break;
        __syncthreads();
        back_fetch_state<KW>(m, x, prev, h);
    }
}

/* ---- sums over columns ------------------------------------------------------------------------------------------ */
template <int KW> struct ValuesBackTile {
    bf16 w[DELTA_ROWS * KW], s[KW * DELTA_ROWS], t[TILE64], o[TILE64], b[TILE64], r[TILE64], u[TILE64], v[TILE64],
        t_rest[TILE64], b_rest[TILE64];
    float beta[DELTA_ROWS], sum[4][DELTA_ROWS];
};
/* Recompute r, u and beta dU of 64 columns; db receives what each row's dU adds to dbeta. */
template <int KW>
DEVICE void rows_again(ValuesBackTile<KW> *m, const Delta &x, const Chunk &c, int h, size_t row, int v0, float db[2]) {
    int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t2 = (int)threadIdx.x % 4 * 2;
    float y[8][4];
    zeros<8>(y);
    if (!c.fresh) product_tiles<KW, DELTA_ROWS, 8>(y, m->w, 16 * warp, KW / 16, m->s, 0);
    UNROLL for (int i = 0; i < 2; i++) {
        int r = 16 * warp + g + 8 * i;
        float beta = m->beta[r];
        size_t at = (row + (size_t)r) * (size_t)x.VW + (size_t)(v0 + t2);
        UNROLL for (int n = 0; n < 8; n++) {
            float2 R = {0, 0}, d = {0, 0};
            if (r < c.n) R = load_vec<float2>(x.r + at + 8 * n), d = load_vec<float2>(x.du + at + 8 * n);
            R.x -= y[n][2 * i], R.y -= y[n][2 * i + 1];
            db[i] += R.x * d.x + R.y * d.y;
            int to = number_at<DELTA_ROWS>(r, 8 * n + t2);
            uint32_t u = pack_bf16(beta * R.x, beta * R.y);
            *(uint32_t *)(m->r + to) = pack_bf16(R.x, R.y);
            *(uint32_t *)(m->u + to) = u;
            *(uint32_t *)(m->b + to) = pack_bf16(beta * d.x, beta * d.y);
            *(uint32_t *)(m->b_rest + to) = pack_rest(beta * d.x, beta * d.y);
            if (r < c.n) *(uint32_t *)(row_at(x.u, h, c.t + r) + v0 + t2 + 8 * n) = u;
        }
    }
}
template <int KW> __global__ void __launch_bounds__(FLASH_THREADS) delta_values_backward(Delta x, DeltaGrad y) {
    using Tile = ValuesBackTile<KW>;
    SMEM_DYN(Tile, m);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const CudaRecur &a = x.a;
    int tid = (int)threadIdx.x, warp = tid / 32, g = tid % 32 / 4, t2 = tid % 4 * 2, h = (int)blockIdx.y,
        s = (int)blockIdx.z, begin = a.off[s], end = a.off[s + 1], i0 = begin + (int)blockIdx.x * DELTA_ROWS;
    if (i0 >= end) return;
    uint32_t bits[2];
    chunks_in(bits, a, begin, end, i0);
    for (int i; (i = chunk_next(bits)) >= 0;) {
        Chunk c = chunk_from(a, begin, end, i0 + i);
        size_t row = delta_row(x, h, c.t);
        const float *S = c.head ? start_of(x, s, h) : x.keep + kept_at(x, c.t, h);
        float G[8][4], P[8][4], db[2] = {0, 0};
        zeros<8>(G), zeros<8>(P);
        __syncthreads();
        if (a.delta) {
            if (!c.fresh) tile_fetch<KW, DELTA_ROWS>(m->w, x.w + row * KW, c.n);
            tile_fetch<DELTA_ROWS, DELTA_ROWS>(m->t, x.t + row * DELTA_ROWS, c.n);
            tile_fetch<DELTA_ROWS, DELTA_ROWS>(m->t_rest, x.rest + row * DELTA_ROWS, c.n);
            if (tid < DELTA_ROWS) m->beta[tid] = tid < c.n ? a.beta[(size_t)(c.t + tid) * (size_t)a.HV + (size_t)h] : 0;
        }
        for (int v0 = 0; v0 < x.VW; v0 += DELTA_ROWS) {
            __syncthreads();
            rows_fetch<DELTA_ROWS, DELTA_ROWS>(m->o, x.o, h, c.t, v0, c.n);
            if (!a.delta) rows_fetch<DELTA_ROWS, DELTA_ROWS>(m->u, x.u, h, c.t, v0, c.n);
            cp_async_commit();
            if (a.delta && !c.fresh) rows_round<DELTA_ROWS, KW>(m->s, S + v0, (size_t)a.V, a.K, a.V - v0);
            cp_async_wait<0>();
            __syncthreads();
            float dv[8][4];
            zeros<8>(dv);
            if (a.delta) {
                rows_again<KW>(m, x, c, h, row, v0, db);
                __syncthreads();
                /* With similar keys dU is a sum over rows, dv a difference of two. */
                product_turned<DELTA_ROWS, DELTA_ROWS, 8>(dv, m->t_rest, 16 * warp, warp, DELTA_BLOCKS, m->b, 0);
                product_turned<DELTA_ROWS, DELTA_ROWS, 8>(dv, m->t, 16 * warp, warp, DELTA_BLOCKS, m->b_rest, 0);
                product_turned<DELTA_ROWS, DELTA_ROWS, 8>(dv, m->t, 16 * warp, warp, DELTA_BLOCKS, m->b, 0);
            }
            UNROLL for (int k = 0; k < 2; k++) {
                int r = 16 * warp + g + 8 * k;
                UNROLL for (int n = 0; n < 8; n++) {
                    int col = v0 + 8 * n + t2;
                    if (a.delta) {
                        uint32_t both = pack_bf16(dv[n][2 * k], dv[n][2 * k + 1]);
                        *(uint32_t *)(m->v + number_at<DELTA_ROWS>(r, 8 * n + t2)) = both;
                        if (y.keep && r < c.n) *(uint32_t *)(row_at(x.v, h, c.t + r) + col) = both;
                    } else if (r < c.n) {
                        float2 v = load_vec<float2>(x.du + (row + (size_t)r) * (size_t)x.VW + (size_t)col);
                        dv[n][2 * k] = v.x, dv[n][2 * k + 1] = v.y;
                    }
                }
                if (y.v.p) row_out<8>(y.v, (size_t)(c.t + r) * (size_t)a.HV + (size_t)h, r < c.n, v0, dv, k, 1);
            }
            __syncwarp();
            if (a.delta) scores_add<DELTA_ROWS, 8>(G, m->v, 16 * warp, m->r, warp + 1);
            scores_add<DELTA_ROWS, 8>(P, m->o, 16 * warp, m->u, warp + 1);
        }
        /* dP, dL; a thread's part of the column sums of L G */
        float sum[8][2], own[2] = {0, 0};
        UNROLL for (int n = 0; n < 8; n++) {
            sum[n][0] = sum[n][1] = 0;
            UNROLL for (int k = 0; k < 2; k++) {
                int r = 16 * warp + g + 8 * k, j = 8 * n + t2;
                if (r >= c.n) continue;
                size_t at = (row + (size_t)r) * DELTA_ROWS + (size_t)j;
                store_vec(x.dp + at, float2{j <= r ? P[n][2 * k] : 0, j + 1 <= r ? P[n][2 * k + 1] : 0});
                if (!a.delta) continue;
                float low = j < r ? G[n][2 * k] : 0, high = j + 1 < r ? G[n][2 * k + 1] : 0;
                store_vec(x.dl + at, float2{-m->beta[j] * low, -m->beta[j + 1] * high});
                sum[n][0] += to_float(x.l[at]) * low, sum[n][1] += to_float(x.l[at + 1]) * high;
                if (j == r) own[k] = G[n][2 * k];
                if (j + 1 == r) own[k] = G[n][2 * k + 1];
            }
        }
        if (!a.delta || !y.d.beta.p) continue;
        UNROLL for (int n = 0; n < 8; n++) {
            UNROLL for (int k = 0; k < 2; k++) {
                UNROLL for (int d = 4; d < 32; d *= 2) sum[n][k] += __shfl_xor_sync(FULL_WARP, sum[n][k], d);
                if (g == 0) m->sum[warp][8 * n + t2 + k] = sum[n][k];
            }
        }
        UNROLL for (int k = 0; k < 2; k++) db[k] = quad_sum(db[k]), own[k] = quad_sum(own[k]);
        __syncthreads();
        UNROLL for (int k = 0; k < 2; k++) {
            int r = 16 * warp + g + 8 * k;
            if (r >= c.n || t2) continue;
            UNROLL for (int w = 0; w < 4; w++) db[k] -= m->sum[w][r];
            float beta = m->beta[r]; /* dv_i = beta_i dr_i avoids a difference where possible */
            add_to(y.d.beta, (size_t)(c.t + r) * (size_t)a.HV + (size_t)h,
                   fabsf(beta) > 1e-20f ? own[k] / beta : db[k]);
        }
    }
}

/* ---- the host's side ---- */
static bool dv_lies(const CudaRecur *a, CudaRows dv) { return delta_lies(a) && dv.is_bf16 && dv.overwrite; }
static void back_place(Delta *x, DeltaRoom *m, const CudaRecur *a, const void *dout, CudaRows dv) {
    delta_place(x, m, a, false);
    size_t rows = (size_t)a->N * (size_t)a->HV, n = rows * DELTA_ROWS;
    x->by_seq = true;
    x->o = delta_lies(a) ? delta_tensor(a, dout) : delta_operand(a, m, x->VW);
    x->du = m->take<float>(rows * (size_t)x->VW), x->dp = m->take<float>(n);
    x->dkeep = m->take<float>((size_t)delta_kept(*a) * (size_t)a->HV * (size_t)a->K * (size_t)a->V);
    if (!a->delta) return;
    x->v = dv_lies(a, dv) ? delta_tensor(a, dv.p) : delta_operand(a, m, x->VW);
    x->l = m->take<bf16>(n), x->t = m->take<bf16>(n), x->rest = m->take<bf16>(n), x->dl = m->take<float>(n);
}
extern "C" size_t cuda_delta_backward_bytes(const CudaRecur *a, CudaRows dv) {
    Delta x;
    DeltaRoom m = {};
    back_place(&x, &m, a, nullptr, dv);
    return m.at;
}
template <int KW> static void backward_of(Cuda *c, const Delta *x, const DeltaGrad *y) {
    const CudaRecur *a = &x->a;
    unsigned h = (unsigned)a->HV, b = (unsigned)a->B, windows = delta_windows(a);
    dim3 all(windows, h, b), block(FLASH_THREADS);
    delta_allow(delta_states_backward<KW>, sizeof(StateBackTile<KW>));
    LAUNCH((delta_states_backward<KW>), dim3((unsigned)(x->VW / DELTA_COLUMNS), h, b), block, sizeof(StateBackTile<KW>),
           c->stream, *x, *y);
    delta_allow(delta_values_backward<KW>, sizeof(ValuesBackTile<KW>));
    LAUNCH((delta_values_backward<KW>), all, block, sizeof(ValuesBackTile<KW>), c->stream, *x, *y);
}
extern "C" void cuda_delta_backward(Cuda *c, const CudaRecur *a, void *mem, const CudaRecurGrad *d, const void *dout,
                                    float *keep) {
    Delta x;
    DeltaRoom m = {(char *)mem, 0};
    back_place(&x, &m, a, dout, d->v);
    x.keep = keep, x.start = (float *)d->start;
    if (x.o.p != dout) {
        CudaPack p = {};
        p.x = dout, p.is_bf16 = a->is_bf16, p.y = x.o.p, p.rows = a->N, p.lanes = a->HV, p.group = 1;
        p.D = p.ld = a->V, p.to = x.VW;
        cuda_pack(c, 1, &p);
    }
    delta_prepare_all(c, &x);
    DeltaGrad y = {*d, flash_out(d->v, a->V, false), !dv_lies(a, d->v),
                   delta_pairs(d->start, a->V) && delta_pairs(d->dend, a->V) && delta_pairs(d->dstart, a->V)};
    if (x.KW == 64)
        backward_of<64>(c, &x, &y);
    else
        backward_of<128>(c, &x, &y);
    delta_keys_backward_all(c, &x, &y);
}
