/* colstat.cu: column statistics of attention over cached rows, in tiles of 64 queries of one head and 64 rows. */
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
/* A block to 64 rows of a lane. */
template <class T>
__global__ void __launch_bounds__(BLOCK)
    colstat_rows(CudaColStat c, CudaLanes l, float *stat, const float *q, const float *lse) {
    SMEM_DYN(ColTile, m);
    const T *data = (const T *)l.data;
    int h = (int)blockIdx.y, key0 = (int)blockIdx.x * TILE, lane = c.seq * c.lanes + h, lo = l.lo[lane],
        keys = l.hi[lane] - lo - key0, t = (int)threadIdx.x, ty = t / 16, tx = t % 16, heads = c.lanes * c.group;
    keys = keys < 0 ? 0 : keys < TILE ? keys : TILE;
    const int *table = l.table + (size_t)lane * (size_t)l.maxpages;
    if (t < TILE) {
        size_t P = (size_t)l.P, page = 0, place = 0, key = part_of(data, l, c.Dk), value = part_of(data, l, c.Dv);
        if (t < keys) page = (size_t)table[(lo + key0 + t) / l.P % l.maxpages], place = (size_t)((lo + key0 + t) % l.P);
        size_t at = page * P * (key + (l.alias ? 0 : value));
        m->k[t] = at + place * key;
        m->v[t] = l.alias ? m->k[t] : at + P * key + place * value;
        m->kpos[t] = t < keys ? l.pos[page * P + place] : 0;
    }
    float total = 0;
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
                    bool sees = e < n && tx + 16 * k < keys && m->kpos[tx + 16 * k] <= m->pos[e];
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
    dim3 grid((unsigned)((x->columns + TILE - 1) / TILE), (unsigned)x->lanes);
    LAUNCH((colstat_rows<T>), grid, dim3(BLOCK), sizeof(ColTile), c->stream, *x, *l, stat, q, lse);
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
