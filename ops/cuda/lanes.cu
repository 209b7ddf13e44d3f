/* lanes.cu: softmax attention over the cached history: as attend.cu, with the keys wherever their pages lie. */
#include "attend.h"

/* Entries e0..e0+n-1 of the wanted rows m0.. on a lane; those that begin a document in this pass see nothing. Returns
 * the least position of those that look, INT32_MAX: none does. Begins and ends with a barrier. */
DEVICE int lookers_load(AttendTile *m, const CudaAttend &a, int lane, int m0, int e0, int n) {
    int t = (int)threadIdx.x, group = a.heads / a.lanes, oldest = INT32_MAX;
    __syncthreads();
    if (t < TILE) {
        int pos = 0, last = -1;
        size_t at = 0;
        if (t < n) {
            int w = m0 + (e0 + t) / group, row = a.idx[w];
            at = (size_t)w * (size_t)a.heads + (size_t)(lane * group + (e0 + t) % group);
            pos = a.pos[row];
            if (a.first[row] == -1) last = 0, oldest = pos;
        }
        m->q[t] = at, m->pos[t] = pos, m->row[t] = last, m->from[t] = 0;
        for (int d = 16; d; d >>= 1) { /* warps 0 and 1, whole */
            int other = __shfl_xor_sync(FULL_WARP, oldest, d);
            oldest = other < oldest ? other : oldest;
        }
        if (t % 32 == 0) m->span[t / 32][0] = oldest;
    }
    __syncthreads();
    return m->span[0][0] < m->span[1][0] ? m->span[0][0] : m->span[1][0];
}
/* Rows row..row+n-1 of a lane as the keys of the tile; the pass retires row `tail`. */
DEVICE void lane_load(AttendTile *m, const CudaAttend &a, const CudaLanes &c, const int *table, int row, int n,
                      int tail) {
    int t = (int)threadIdx.x;
    if (t >= TILE) return;
    size_t P = (size_t)c.P, place = 0, page = 0;
    if (t < n) {
        page = (size_t)table[(row + t) / c.P % c.maxpages];
        place = (size_t)((row + t) % c.P);
    }
    size_t at = page * P * (size_t)(a.Dk + (c.alias ? 0 : a.Dv));
    m->k[t] = at + place * (size_t)a.Dk;
    m->v[t] = c.alias ? m->k[t] : at + P * (size_t)a.Dk + place * (size_t)a.Dv;
    m->key[t] = 0;
    m->kpos[t] = t < n ? c.pos[page * P + place] : 0;
    m->bias[t] = t < n && c.gone && (c.gone[page * P + place] || row + t == tail) ? -INFINITY : 0;
}
template <int G, class T>
__global__ void __launch_bounds__(BLOCK)
    attend_lanes(CudaAttend a, CudaLanes c, float *o, float *lse, const float *before, const float *q) {
    SMEM_DYN(AttendTile, m);
    const T *data = (const T *)c.data;
    int slices = (int)gridDim.y / a.lanes, h = (int)blockIdx.y / slices, c0 = (int)blockIdx.y % slices * 64 * G,
        s = (int)blockIdx.z, group = a.heads / a.lanes;
    int m0 = place_of(a.idx, a.n, a.off[s]), m1 = place_of(a.idx, a.n, a.off[s + 1]);
    int e0 = (int)blockIdx.x * TILE, n = (m1 - m0) * group - e0;
    if (n <= 0) return;
    n = n < TILE ? n : TILE;
    int oldest = lookers_load(m, a, h, m0, e0, n);
    if (oldest == INT32_MAX && before) return;
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    Entry e[4];
    UNROLL for (int i = 0; i < 4; i++) e[i] = entry_of(m, ty + 16 * i);
    Softmax<G> x;
    softmax_load<G>(x, m, n, o, before, c0, a.Dv);
    int lane = c.seq[s] * a.lanes + h, lo = c.lo[lane], hi = c.hi[lane], sinks = c.s0[lane] + c.sinks, tail = -1;
    const int *table = c.table + (size_t)lane * (size_t)c.maxpages;
    if (c.gone && c.retires[(size_t)a.off[s] * (size_t)a.lanes + (size_t)h] != 0) tail = c.tail[lane];
    sinks = sinks < lo ? sinks : lo;
    int begin = lo;
    if (lo < hi && a.window && !a.sinks && !c.gone) { /* positions are consecutive: those that nobody sees any more */
        int skip =
            oldest - a.window + 1 - c.pos[(size_t)table[lo / c.P % c.maxpages] * (size_t)c.P + (size_t)(lo % c.P)];
        begin = lo + (skip > 0 ? skip : 0);
    }
    if (oldest == INT32_MAX) sinks = hi = 0;
    for (int row = c.s0[lane] < sinks ? c.s0[lane] : begin; row < hi;) {
        int end = row < sinks ? sinks : hi, keys = end - row < TILE ? end - row : TILE;
        float t[4][4];
        __syncthreads();
        lane_load(m, a, c, table, row, keys, tail);
        tile_dots(t, m->part, {q, m->q, (size_t)a.Dk, n}, RowsOf<T>{data, m->k, 1, keys}, a.Dk);
        UNROLL for (int i = 0; i < 4; i++) {
            UNROLL for (int k = 0; k < 4; k++) t[i][k] = score(m, a, e[i], tx + 16 * k, keys, t[i][k]);
        }
        absorb<G>(x, m, t, RowsOf<T>{data, m->v, 1, keys}, c0, a.Dv);
        row += keys;
        if (row == sinks && row < begin) row = begin;
    }
    softmax_store<G>(x, m, n, o, lse, c0, a.Dv);
}
template <class T>
static void lanes_of(Cuda *c, const CudaAttend *a, const CudaLanes *l, float *o, float *lse, const float *before,
                     const float *q) {
    dim3 grid((unsigned)a->blocks, (unsigned)(a->lanes * column_slices(a->Dv)), (unsigned)a->B);
    if (column_groups(a->Dv) == 1)
        LAUNCH((attend_lanes<1, T>), grid, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, *l, o, lse, before, q);
    else
        LAUNCH((attend_lanes<2, T>), grid, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, *l, o, lse, before, q);
}
extern "C" void cuda_attend_lanes(Cuda *c, const CudaAttend *a, const CudaLanes *l, float *o, float *lse,
                                  const float *before, const float *q) {
    if (a->blocks <= 0) return;
    (l->narrow ? lanes_of<bf16> : lanes_of<float>)(c, a, l, o, lse, before, q);
}
