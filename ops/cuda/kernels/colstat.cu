/* colstat.cu: column statistics of attention over cached rows, in tiles of 64 queries of one head and 64 rows.
 * ColStat.older: three kernels first make one head a lane of the queries, and log-sum-exps of these. */
#include "tile.h"
#include "ops/colstat.h"

struct ColTile {
    float part[PART_NUMBERS];
    float sum[16][TILE];
    size_t q[TILE], k[TILE], v[TILE];
    int pos[TILE], kpos[TILE];
    float lse[TILE], seen[TILE];
};

/* A block to a lane and a query: rows of the lane that it sees. */
__global__ void colstat_seen(CudaColStat c, CudaLanes l) {
    int h = (int)blockIdx.y, i = (int)blockIdx.x, lane = c.seq * c.lanes + h, n = 0;
    const int *table = l.table + (size_t)lane * (size_t)l.maxpages;
    for (int row = l.lo[lane] + (int)threadIdx.x; row < l.hi[lane]; row += 32)
        n += l.pos[(size_t)table[row / l.P % l.maxpages] * (size_t)l.P + (size_t)(row % l.P)] <= c.from + i;
    n = warp_sum(n);
    if (threadIdx.x == 0) c.seen[h * c.rows + i] = n;
}
DEVICE float col_more(int reduce, float sum, float p, float seen) {
    if (reduce == COL_SUM) return sum + p;
    if (reduce == COL_MAX) return fmaxf(sum, p);
    return sum + (p * seen > 1 ? 1.0f : 0.0f);
}
template <class T> DEVICE float col_norm(const RowsOf<T> &v, int r, int D, int how) {
    float s = 0;
    if (how == COL_PLAIN) return 1;
    for (int k = 0; k < D; k++) {
        float x = row_number(v, r, k, D);
        s += how == COL_L1 ? fabsf(x) : x * x;
    }
    return how == COL_L1 ? s : sqrtf(s);
}
/* Where rows lo + key0 .. of a lane lie, `keys` of them, and their positions. Ends without a barrier. */
template <class T>
DEVICE void col_rows(ColTile *m, const T *data, const CudaColStat &c, const CudaLanes &l, int lane, int key0,
                     int keys) {
    const int *table = l.table + (size_t)lane * (size_t)l.maxpages;
    int t = (int)threadIdx.x, row = l.lo[lane] + key0 + t;
    if (t >= TILE) return;
    size_t P = (size_t)l.P, page = 0, place = 0, key = part_of(data, l, c.Dk), value = part_of(data, l, c.Dv);
    if (t < keys) page = (size_t)table[row / l.P % l.maxpages], place = (size_t)(row % l.P);
    size_t at = page * P * (key + (l.alias ? 0 : value));
    m->k[t] = at + place * key;
    m->v[t] = l.alias ? m->k[t] : at + P * key + place * value;
    m->kpos[t] = t < keys ? l.pos[page * P + place] : 0;
}
/* ColStat.older: a block to a lane and a query. The queries of the lane's heads become one. */
__global__ void colstat_sums(CudaColStat c, const float *q) {
    size_t row = (size_t)((c.from + (int)blockIdx.x) % c.rows) * (size_t)c.lanes + blockIdx.y, D = (size_t)c.Dk;
    for (size_t k = threadIdx.x; k < D; k += blockDim.x) {
        float sum = 0;
        for (size_t g = 0; g < (size_t)c.group; g++) sum += q[(row * (size_t)c.group + g) * D + k];
        c.sums[row * D + k] = sum;
    }
}
/* A block to 64 queries of a lane and a share of its rows, every CUDA_COL_PIECES-th tile of 64: of each query the
 * largest of its scores with rows that count, and the sum of exp of the scores less that. */
template <class T> __global__ void __launch_bounds__(BLOCK) colstat_lse_parts(CudaColStat c, CudaLanes l) {
    SMEM_DYN(ColTile, m);
    const T *data = (const T *)l.data;
    int q0 = (int)blockIdx.x * TILE, piece = (int)blockIdx.y, h = (int)blockIdx.z, lane = c.seq * c.lanes + h,
        rows = l.hi[lane] - l.lo[lane], n = c.n - q0 < TILE ? c.n - q0 : TILE, t = (int)threadIdx.x, ty = t / 16,
        tx = t % 16;
    float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, sum[4] = {0, 0, 0, 0};
    if (t < TILE) m->q[t] = (size_t)((c.from + q0 + (t < n ? t : 0)) % c.rows) * (size_t)c.lanes + (size_t)h;
    for (int key0 = piece * TILE; key0 < rows; key0 += CUDA_COL_PIECES * TILE) {
        int keys = rows - key0 < TILE ? rows - key0 : TILE;
        __syncthreads();
        col_rows(m, data, c, l, lane, key0, keys);
        __syncthreads();
        float s[4][4];
        tile_dots(s, m->part, {c.sums, m->q, (size_t)c.Dk, n}, parts_at(data, l, m->k, keys, c.Dk), c.Dk);
        UNROLL for (int i = 0; i < 4; i++) {
            float best = top[i], more = 0;
            UNROLL for (int k = 0; k < 4; k++) {
                if (tx + 16 * k >= keys || m->kpos[tx + 16 * k] >= c.from) s[i][k] = -INFINITY;
                best = fmaxf(best, s[i][k]);
            }
            best = half_warp_max(best);
            UNROLL for (int k = 0; k < 4; k++) more += best > -INFINITY ? expf(s[i][k] - best) : 0;
            more = half_warp_sum(more);
            if (best > -INFINITY) sum[i] = sum[i] * expf(top[i] - best) + more;
            top[i] = best;
        }
    }
    if (tx) return;
    UNROLL for (int i = 0; i < 4; i++) {
        size_t e = (size_t)(q0 + ty + 16 * i);
        if (ty + 16 * i >= n) continue;
        float *part = c.parts + (((size_t)h * (size_t)c.rows + e) * 2) * CUDA_COL_PIECES + (size_t)piece;
        part[0] = top[i], part[CUDA_COL_PIECES] = sum[i];
    }
}
/* A block to a query, a warp's lane to a share of the rows of lane blockIdx.y. */
__global__ void colstat_lse(CudaColStat c) {
    int i = (int)blockIdx.x, h = (int)blockIdx.y, t = (int)threadIdx.x;
    const float *part = c.parts + ((size_t)h * (size_t)c.rows + (size_t)i) * CUDA_COL_PIECES * 2;
    float own = t < CUDA_COL_PIECES ? part[t] : -INFINITY, top = warp_max(own),
          sum = warp_sum(own > -INFINITY ? part[CUDA_COL_PIECES + t] * expf(own - top) : 0);
    if (t == 0) c.lses[(size_t)((c.from + i) % c.rows) * (size_t)c.lanes + (size_t)h] = top + logf(sum);
}
/* A block to 64 rows of a lane. */
template <class T>
__global__ void __launch_bounds__(BLOCK)
    colstat_rows(CudaColStat c, CudaLanes l, float *stat, const float *q, const float *lse) {
    SMEM_DYN(ColTile, m);
    const T *data = (const T *)l.data;
    int h = (int)blockIdx.y, key0 = (int)blockIdx.x * TILE, lane = c.seq * c.lanes + h,
        keys = l.hi[lane] - l.lo[lane] - key0, t = (int)threadIdx.x, ty = t / 16, tx = t % 16,
        heads = c.lanes * c.group;
    keys = keys < 0 ? 0 : keys < TILE ? keys : TILE;
    float total = 0;
    col_rows(m, data, c, l, lane, key0, keys);
    for (int g = 0; g < c.group && keys; g++) {
        float per[4] = {0, 0, 0, 0};
        for (int q0 = 0; q0 < c.n; q0 += TILE) {
            int n = c.n - q0 < TILE ? c.n - q0 : TILE;
            __syncthreads();
            if (t < TILE) {
                int own = c.from + q0 + (t < n ? t : 0);
                size_t row = (size_t)(own % c.rows) * (size_t)heads + (size_t)(h * c.group + g);
                m->q[t] = row, m->pos[t] = own, m->lse[t] = lse[row];
                m->seen[t] = c.queries == COL_COUNT && t < n ? (float)c.seen[h * c.rows + q0 + t] : 0;
            }
            __syncthreads();
            float s[4][4];
            tile_dots(s, m->part, {q, m->q, (size_t)c.Dk, n}, parts_at(data, l, m->k, keys, c.Dk), c.Dk);
            UNROLL for (int i = 0; i < 4; i++) {
                int e = ty + 16 * i;
                UNROLL for (int k = 0; k < 4; k++) {
                    int newest = c.older ? c.from - 1 : m->pos[e];
                    bool sees = e < n && tx + 16 * k < keys && m->kpos[tx + 16 * k] <= newest;
                    if (sees) per[k] = col_more(c.queries, per[k], expf(s[i][k] - m->lse[e]), m->seen[e]);
                }
            }
        }
        __syncthreads();
        UNROLL for (int k = 0; k < 4; k++) m->sum[ty][tx + 16 * k] = per[k];
        __syncthreads();
        if (t < TILE) {
            float sum = 0;
            for (int i = 0; i < 16; i++) sum = c.queries == COL_MAX ? fmaxf(sum, m->sum[i][t]) : sum + m->sum[i][t];
            total = c.heads == COL_SUM ? total + sum : fmaxf(total, sum);
        }
    }
    __syncthreads();
    if (t >= TILE || key0 + t >= c.columns) return;
    if (t < keys) total *= col_norm(parts_at(data, l, m->v, keys, l.alias ? c.Dk : c.Dv), t, c.Dv, c.value);
    stat[(size_t)h * (size_t)c.columns + (size_t)(key0 + t)] = t < keys ? total : 0;
}
template <class T>
static void colstat_of(Cuda *c, const CudaColStat *x, const CudaLanes *l, float *stat, const float *q,
                       const float *lse) {
    const unsigned n = (unsigned)x->n, lanes = (unsigned)x->lanes;
    CudaColStat one = *x;
    if (x->older && n) {
        LAUNCH(colstat_sums, dim3(n, lanes), dim3(64), 0, c->stream, *x, q);
        LAUNCH((colstat_lse_parts<T>), dim3((n + TILE - 1) / TILE, CUDA_COL_PIECES, lanes), dim3(BLOCK),
               sizeof(ColTile), c->stream, *x, *l);
        LAUNCH(colstat_lse, dim3(n, lanes), dim3(32), 0, c->stream, *x);
    }
    if (x->older) one.group = 1, q = x->sums, lse = x->lses;
    dim3 grid((unsigned)((x->columns + TILE - 1) / TILE), lanes);
    LAUNCH((colstat_rows<T>), grid, dim3(BLOCK), sizeof(ColTile), c->stream, one, *l, stat, q, lse);
}
extern "C" void cuda_colstat(Cuda *c, const CudaColStat *x, const CudaLanes *l, float *stat, const float *q,
                             const float *lse) {
    if (x->columns == 0) return;
    if (x->queries == COL_COUNT && x->n)
        LAUNCH(colstat_seen, dim3((unsigned)x->n, (unsigned)x->lanes), dim3(32), 0, c->stream, *x, *l);
    (l->coded == CUDA_INT8     ? colstat_of<Int8>
     : l->coded == CUDA_FP8    ? colstat_of<Fp8>
     : l->coded == CUDA_PACKED ? colstat_of<Packed>
     : l->is_bf16              ? colstat_of<bf16>
                               : colstat_of<float>)(c, x, l, stat, q, lse);
}
