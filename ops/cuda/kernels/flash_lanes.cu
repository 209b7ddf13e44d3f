/* flash_lanes.cu: softmax attention over the cached history on the matrix units: rows of bf16 go from their pages to
 * shared memory a tile ahead of their use (where they lie is looked up two ahead), and serve all query heads of their
 * lane as rows of one product; sums, softmax and results are f32.
 *
 * A block has 16 M entries of a lane and a piece of its history. Of a tile of B keys each of its 4 warps makes the
 * scores of B/4 keys with all entries, tells the others its maxima and hands over its probabilities; then each adds up
 * a quarter of the columns of the values over all keys. What a sequence gets depends on its own rows and history alone.
 *
 * Estimated, not measured: the bytes of the rows shown, once for each 16 M entries of a lane; one row in decoding with
 * groups of up to 16 heads: 2 (Dk + Dv) bytes a row of a lane, 2 (Dk + Dv) group flops, most of 16 rows of a product
 * idle. Source: Flash-Decoding (the blocks of a history), arXiv:2307.08691 (the running softmax).
 */
#include "flash.h"
#include "lanes.h"

/* Rows of a tile: DK elements of the keys; DV columns of the values, which are the keys' own if ALIAS. */
template <int DK, int DV, bool ALIAS, int M> struct LanesShape {
    static constexpr int BK = DK <= 128 ? 64 : 32, E = 16 * M;
    struct Where { /* rows of a tile */
        size_t k[BK], v[BK];
        int pos[BK];
        float bias[BK];
    };
    struct Tile {
        bf16 q[E * DK], k[2][BK * DK], v[ALIAS ? 1 : 2][ALIAS ? 8 : BK * DV], p[E * BK];
        Where at[3];
        float part[4][E]; /* of the warps: maxima, at last sums */
    };
};
/* A block's part of the history: rows `at`.. of the visible ones of the lane. */
struct Walk {
    Shown rows;
    const int *table;
    int unseen, to, tail;
};
template <int BK> DEVICE int walk_keys(const Walk &w, int at) {
    int end = at < w.rows.sinks && w.rows.sinks < w.to ? w.rows.sinks : w.to;
    return end - at < BK ? end - at : BK;
}
DEVICE int walk_from(const Walk &w, int at) {
    return at >= w.rows.sinks && at < w.rows.sinks + w.unseen ? w.rows.sinks + w.unseen : at;
}
template <int BK> DEVICE int walk_next(const Walk &w, int at) { return walk_from(w, at + walk_keys<BK>(w, at)); }
/* A thread's row of the tile at `at`; -1: none. */
template <int BK> DEVICE int walk_row(const Walk &w, int at) {
    int t = (int)threadIdx.x;
    if (at >= w.to || t >= walk_keys<BK>(w, at)) return -1;
    return at < w.rows.sinks ? w.rows.s0 + at + t : w.rows.lo + at + t - w.rows.sinks;
}
DEVICE int page_of(const CudaLanes &c, const Walk &w, int row) { return row < 0 ? 0 : w.table[row / c.P % c.maxpages]; }
/* The address of that row in page `page`, and the data that its scores need. */
template <class Where>
DEVICE void where_put(Where *x, const CudaAttend &a, const CudaLanes &c, const Walk &w, int row, int page, int pos,
                      bool evicted) {
    int t = (int)threadIdx.x;
    size_t P = (size_t)c.P, place = row < 0 ? 0 : (size_t)(row % c.P),
           at = (size_t)page * P * (size_t)(a.Dk + (c.alias ? 0 : a.Dv));
    x->k[t] = at + place * (size_t)a.Dk;
    x->v[t] = at + P * (size_t)a.Dk + place * (size_t)a.Dv;
    x->pos[t] = pos;
    x->bias[t] = evicted || (row >= 0 && row == w.tail) ? -INFINITY : 0;
}
/* Starts to copy n rows of `width` elements, a multiple of 8, to a tile of R; the rest becomes zeros. */
template <int D, int R> DEVICE void paged_fetch(bf16 *tile, const bf16 *data, const size_t *at, int width, int n) {
    static_assert(R * D / 8 % FLASH_THREADS == 0, "threads share the chunks");
    ROLLED for (int k = 0; k < R * D / 8 / FLASH_THREADS; k++) {
        int i = (int)threadIdx.x + k * FLASH_THREADS, r = i / (D / 8), c = i % (D / 8);
        bool in = r < n && 8 * c < width;
        cp_async<16>(tile + chunk_at<D>(r, c), data + (in ? at[r] + (size_t)(8 * c) : 0), in ? 16 : 0);
    }
}
/* The least position of the entries e0..e0+n-1 that look back, INT32_MAX: none does. */
DEVICE int oldest_of(const CudaAttend &a, int m0, int e0, int n) {
    int oldest = INT32_MAX, group = a.heads / a.lanes;
    for (int x = (int)threadIdx.x % 32; x < n; x += 32) {
        int row = a.idx[m0 + (e0 + x) / group];
        if (a.first[row] == -1 && a.pos[row] < oldest) oldest = a.pos[row];
    }
    for (int d = 16; d; d >>= 1) {
        int other = __shfl_xor_sync(FULL_WARP, oldest, d);
        oldest = other < oldest ? other : oldest;
    }
    return oldest;
}

template <int DK, int DV, bool ALIAS, int M>
__global__ void __launch_bounds__(FLASH_THREADS, 2)
    flash_lanes(CudaAttend a, CudaLanes c, float *o, float *lse, const float *before, const float *q, bool pairs) {
    using Shape = LanesShape<DK, DV, ALIAS, M>;
    using Tile = typename Shape::Tile;
    constexpr int BK = Shape::BK, E = Shape::E, N = BK / 32, W = DV / 32; /* pieces of 8: keys, columns of a warp */
    SMEM_DYN(Tile, m);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const bf16 *data = (const bf16 *)c.data;
    int h = (int)blockIdx.y, s = (int)blockIdx.z, group = a.heads / a.lanes, piece = (int)blockIdx.x % c.pieces;
    int m0 = place_of(a.idx, a.n, a.off[s]), m1 = place_of(a.idx, a.n, a.off[s + 1]);
    int e0 = (int)blockIdx.x / c.pieces * E, n = (m1 - m0) * group - e0, lane = c.seq[s] * a.lanes + h;
    Walk w = {shown(c, lane), c.table + (size_t)lane * (size_t)c.maxpages, 0, 0, -1};
    int parts = c.pieces > 1 && m1 - m0 <= CUDA_SPLIT_ROWS && w.rows.n > 0 ? pieces_of(w.rows.n) : 1;
    if (n <= 0 || piece >= parts) return;
    n = n < E ? n : E;
    int oldest = oldest_of(a, m0, e0, n);
    if (oldest == INT32_MAX && before && parts == 1) return;
    int each = parts > 1 ? piece_rows(w.rows.n) : w.rows.n, at = piece * each;
    w.to = at + each < w.rows.n ? at + each : w.rows.n;
    if (oldest == INT32_MAX) w.to = at;
    if (c.evicted && c.evicts[(size_t)a.off[s] * (size_t)a.lanes + (size_t)h] != 0) w.tail = c.tail[lane];
    w.unseen = rows_unseen(a, c, w.rows, w.table, s, oldest) / BK * BK; /* whole tiles of masked rows */
    at = walk_from(w, at);

    int tid = (int)threadIdx.x, warp = tid / 32, lane32 = tid % 32, g = lane32 / 4, t = lane32 % 4;
    int next = walk_next<BK>(w, at), after = next < w.to ? walk_next<BK>(w, next) : w.to;
    int row = walk_row<BK>(w, after), page = 0; /* of the tile two on: its page is known before it is looked up */
    if (tid < BK) {
        for (int k = 0; k < 2; k++) {
            int r = walk_row<BK>(w, k ? next : at), pg = page_of(c, w, r);
            size_t place = (size_t)pg * (size_t)c.P + (size_t)(r < 0 ? 0 : r % c.P);
            where_put(&m->at[k], a, c, w, r, pg, r < 0 ? 0 : c.pos[place], r >= 0 && c.evicted && c.evicted[place]);
        }
        page = page_of(c, w, row);
    }
    ROLLED for (int i = tid; i < E * DK / 2; i += FLASH_THREADS) {
        int r = i / (DK / 2), d = i % (DK / 2) * 2;
        float x = 0, y = 0;
        if (r < n && d < a.Dk) {
            const float *from = q + entry_place(a, h, m0, e0 + r) * (size_t)a.Dk + (size_t)d;
            x = from[0], y = from[1];
        }
        *(uint32_t *)(m->q + chunk_at<DK>(r, d / 8) + d % 8) = pack_bf16(x, y);
    }
    __syncthreads();
    if (at < w.to) {
        paged_fetch<DK, BK>(m->k[0], data, m->at[0].k, a.Dk, walk_keys<BK>(w, at));
        if (!ALIAS) paged_fetch<DV, BK>(m->v[0], data, m->at[0].v, a.Dv, walk_keys<BK>(w, at));
    }
    cp_async_commit();

    Entry e[M][2];
    float top[M][2], sum[M][2], acc[M][W][4], scale = a.scale * LOG2_E;
    bool merge = before && parts == 1;
    UNROLL for (int k = 0; k < M; k++) {
        UNROLL for (int i = 0; i < 2; i++) {
            int x = 16 * k + g + 8 * i;
            e[k][i] = {0, -1, 0};
            top[k][i] = -INFINITY, sum[k][i] = 0;
            size_t place = 0;
            if (x < n) {
                int r = a.idx[m0 + (e0 + x) / group];
                e[k][i] = {a.pos[r], a.first[r] == -1 ? 0 : -1, 0};
                place = entry_place(a, h, m0, e0 + x);
                if (merge) top[k][i] = before[place] * LOG2_E;
            }
            bool fresh = top[k][i] == -INFINITY;
            if (!fresh && t == 0 && warp == 0) sum[k][i] = 1;
            UNROLL for (int v = 0; v < W; v++) {
                float2 old = {0, 0};
                if (!fresh) old = pair_load(o + place * (size_t)a.Dv, warp * (DV / 4) + 8 * v + 2 * t, a.Dv, pairs);
                acc[k][v][2 * i] = old.x, acc[k][v][2 * i + 1] = old.y;
            }
        }
    }
    for (int stage = 0, slot = 0; at < w.to; at = next, next = after, stage ^= 1, slot = slot == 2 ? 0 : slot + 1) {
        int soon = slot == 2 ? 0 : slot + 1, keys = walk_keys<BK>(w, at);
        cp_async_wait<0>();
        __syncthreads();
        if (next < w.to) {
            paged_fetch<DK, BK>(m->k[stage ^ 1], data, m->at[soon].k, a.Dk, walk_keys<BK>(w, next));
            if (!ALIAS)
                paged_fetch<DV, BK>(m->v[ALIAS ? 0 : stage ^ 1], data, m->at[soon].v, a.Dv, walk_keys<BK>(w, next));
        }
        cp_async_commit();
        after = next < w.to ? walk_next<BK>(w, next) : w.to;
        int pos = 0, later = 0, page_then = 0;
        bool evicted = false;
        if (tid < BK) { /* asked for here, needed at the end */
            size_t place = (size_t)page * (size_t)c.P + (size_t)(row < 0 ? 0 : row % c.P);
            if (row >= 0) pos = c.pos[place], evicted = c.evicted && c.evicted[place];
            later = after < w.to ? walk_row<BK>(w, walk_next<BK>(w, after)) : -1;
            page_then = page_of(c, w, later);
        }

        float x[M][N][4];
        const typename Shape::Where *where = &m->at[slot];
        UNROLL for (int k = 0; k < M; k++) {
            UNROLL for (int v = 0; v < N; v++) { UNROLL for (int i = 0; i < 4; i++) x[k][v][i] = 0; }
        }
        BY_FOUR for (int d = 0; d < DK / 16; d += 2) { /* 32 elements of the warp's keys: of each piece of 8 one load */
            uint32_t b[N][4], y[4];
            UNROLL for (int v = 0; v < N; v++)
                ldmatrix<4>(b[v], m->k[stage] + chunk_at<DK>(8 * (warp * N + v) + lane32 % 8, 2 * d + lane32 / 8));
            UNROLL for (int k = 0; k < M; k++) {
                UNROLL for (int i = 0; i < 2; i++) {
                    fragment_a<DK>(y, m->q, 16 * k, d + i);
                    UNROLL for (int v = 0; v < N; v++) mma_bf16(x[k][v], y, b[v] + 2 * i, x[k][v]);
                }
            }
        }
        UNROLL for (int k = 0; k < M; k++) {
            float most[2] = {-INFINITY, -INFINITY};
            UNROLL for (int v = 0; v < N; v++) {
                UNROLL for (int i = 0; i < 4; i++) {
                    int key = 8 * (warp * N + v) + 2 * t + i % 2;
                    x[k][v][i] = flash_score(a, scale, e[k][i / 2], key < keys ? 0 : 1, where->pos[key],
                                             where->bias[key], x[k][v][i]);
                    most[i / 2] = fmaxf(most[i / 2], x[k][v][i]);
                }
            }
            UNROLL for (int i = 0; i < 2; i++) {
                most[i] = quad_max(most[i]);
                if (t == 0) m->part[warp][16 * k + g + 8 * i] = most[i];
            }
        }
        __syncthreads();
        UNROLL for (int k = 0; k < M; k++) {
            UNROLL for (int i = 0; i < 2; i++) {
                int r = 16 * k + g + 8 * i;
                float old = top[k][i]; /* of values: NaN goes into the sums below */
                UNROLL for (int j = 0; j < 4; j++) top[k][i] = fmaxf(top[k][i], m->part[j][r]);
                float fade = old == -INFINITY ? 0 : exp2f(old - top[k][i]);
                sum[k][i] *= fade;
                UNROLL for (int v = 0; v < N; v++) {
                    float p0 = chance2(x[k][v][2 * i], top[k][i]), p1 = chance2(x[k][v][2 * i + 1], top[k][i]);
                    sum[k][i] += p0 + p1;
                    *(uint32_t *)(m->p + chunk_at<BK>(r, warp * N + v) + 2 * t) = pack_bf16(p0, p1);
                }
                UNROLL for (int v = 0; v < W; v++) acc[k][v][2 * i] *= fade, acc[k][v][2 * i + 1] *= fade;
            }
        }
        if (tid < BK) where_put(&m->at[soon == 2 ? 0 : soon + 1], a, c, w, row, page, pos, evicted);
        row = later, page = page_then;
        __syncthreads();
        const bf16 *values = ALIAS ? m->k[stage] : m->v[ALIAS ? 0 : stage];
        UNROLL for (int r = 0; r < BK / 16; r++) {
            uint32_t y[M][4], b[4];
            UNROLL for (int k = 0; k < M; k++) fragment_a<BK>(y[k], m->p, 16 * k, r);
            UNROLL for (int v = 0; v < W; v += 2) {
                fragment_b<ALIAS ? DK : DV>(b, values, 16 * r, warp * W + v);
                UNROLL for (int k = 0; k < M; k++) {
                    mma_bf16(acc[k][v], y[k], b, acc[k][v]);
                    mma_bf16(acc[k][v + 1], y[k], b + 2, acc[k][v + 1]);
                }
            }
        }
    }
    __syncthreads();
    UNROLL for (int k = 0; k < M; k++) {
        UNROLL for (int i = 0; i < 2; i++) {
            sum[k][i] = quad_sum(sum[k][i]);
            if (t == 0) m->part[warp][16 * k + g + 8 * i] = sum[k][i];
        }
    }
    __syncthreads();
    if (parts > 1) o = c.part, lse = c.lses;
    UNROLL for (int k = 0; k < M; k++) {
        UNROLL for (int i = 0; i < 2; i++) {
            int x = 16 * k + g + 8 * i;
            if (x >= n || (merge && e[k][i].row < 0)) continue; /* what looks at nothing keeps what it has */
            float l = m->part[0][x] + m->part[1][x] + m->part[2][x] + m->part[3][x], inv = l == 0 ? 0 : 1 / l;
            size_t place = entry_place(a, h, m0, e0 + x);
            if (parts > 1)
                place =
                    ((size_t)piece * (size_t)c.slots + slot_of(a, c, s, m0 + (e0 + x) / group, m0)) * (size_t)a.heads +
                    (size_t)(h * group + (e0 + x) % group);
            UNROLL for (int v = 0; v < W; v++)
                pair_store(o + place * (size_t)a.Dv, warp * (DV / 4) + 8 * v + 2 * t, a.Dv, pairs,
                           acc[k][v][2 * i] * inv, acc[k][v][2 * i + 1] * inv);
            if (t || warp || (merge && l == 1 && top[k][i] == before[place] * LOG2_E)) continue; /* nothing to add */
            lse[place] = l == 0 ? -INFINITY : (float)((double)top[k][i] * LN_2 + log((double)l));
        }
    }
}
template <int DK, int DV, bool ALIAS, int M>
static void lanes_with(Cuda *c, const CudaAttend *a, const CudaLanes *l, float *o, float *lse, const float *before,
                       const float *q) {
    using Shape = LanesShape<DK, DV, ALIAS, M>;
    constexpr size_t smem = sizeof(typename Shape::Tile);
    dim3 grid((unsigned)((a->entries + Shape::E - 1) / Shape::E * l->pieces), (unsigned)a->lanes, (unsigned)a->B);
    cuda_must(cudaFuncSetAttribute(flash_lanes<DK, DV, ALIAS, M>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)smem),
              "shared memory of attention");
    LAUNCH((flash_lanes<DK, DV, ALIAS, M>), grid, dim3(FLASH_THREADS), smem, c->stream, *a, *l, o, lse, before, q,
           pairs_of(o, a->Dv) && (l->pieces == 1 || pairs_of(l->part, a->Dv)));
}
/* More entries share what is read of the history; wide rows leave room for fewer. */
template <int DK, int DV, bool ALIAS, int MANY>
static void lanes_of(Cuda *c, const CudaAttend *a, const CudaLanes *l, float *o, float *lse, const float *before,
                     const float *q) {
    (a->entries <= 16 ? lanes_with<DK, DV, ALIAS, 1> : lanes_with<DK, DV, ALIAS, MANY>)(c, a, l, o, lse, before, q);
}
enum { LATENT = 576, LATENT_VALUES = 512 }; /* DeepSeek's latent with its rotated part */
extern "C" bool cuda_flash_lanes_takes(int Dk, int Dv, bool alias) {
    if (Dk % 8 || (!alias && Dv % 8)) return false;
    return (Dk <= 256 && Dv <= 256) || (alias && Dk <= LATENT && Dv <= LATENT_VALUES);
}
void flash_lanes_launch(Cuda *c, const CudaAttend *a, const CudaLanes *l, float *o, float *lse, const float *before,
                        const float *q) {
    int D = a->Dk > a->Dv ? a->Dk : a->Dv;
    auto f = l->alias ? (D <= 64    ? lanes_of<64, 64, true, 4>
                         : D <= 128 ? lanes_of<128, 128, true, 2>
                         : D <= 256 ? lanes_of<256, 256, true, 2>
                                    : lanes_of<LATENT, LATENT_VALUES, true, 1>)
                      : (D <= 64    ? lanes_of<64, 64, false, 4>
                         : D <= 128 ? lanes_of<128, 128, false, 2>
                                    : lanes_of<256, 256, false, 2>);
    f(c, a, l, o, lse, before, q);
}
