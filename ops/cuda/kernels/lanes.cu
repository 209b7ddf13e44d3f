/* lanes.cu: softmax attention over the cached history: as attend.cu, with the keys wherever their pages lie; what its
 * pieces are put together by, which flash_lanes.cu uses too. */
#include "lanes.h"

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
/* Rows row..row+n-1 of a lane as the keys of the tile; the pass evicts row `tail`. */
template <class T>
DEVICE void lane_load(AttendTile *m, const CudaAttend &a, const CudaLanes &c, const int *table, int row, int n,
                      int tail) {
    int t = (int)threadIdx.x;
    if (t >= TILE) return;
    size_t P = (size_t)c.P, place = 0, page = 0;
    if (t < n) {
        page = (size_t)table[(row + t) / c.P % c.maxpages];
        place = (size_t)((row + t) % c.P);
    }
    size_t key = part_of((const T *)c.data, c, a.Dk), value = part_of((const T *)c.data, c, a.Dv),
           at = page * P * (key + (c.alias ? 0 : value));
    m->k[t] = at + place * key;
    m->v[t] = c.alias ? m->k[t] : at + P * key + place * value;
    m->key[t] = 0;
    m->kpos[t] = t < n ? c.pos[page * P + place] : 0;
    m->bias[t] = t < n && c.evicted && (c.evicted[page * P + place] || row + t == tail) ? -INFINITY : 0;
}
extern "C" int cuda_lane_pieces(int rows) { return rows > 0 ? pieces_of(rows) : 1; }
extern "C" int cuda_lane_pieces_most(int rows) { /* fewer rows may have more pieces, which are shorter */
    int n = (rows + 2 * TILE - 1) / (2 * TILE);
    return n < 1 ? 1 : n < CUDA_PIECES ? n : CUDA_PIECES;
}
/* A block to a tile of entries, a lane's piece and columns of the values. */
template <int G, class T>
__global__ void __launch_bounds__(BLOCK)
    attend_lanes(CudaAttend a, CudaLanes c, float *o, float *lse, const float *before, const float *q) {
    SMEM_DYN(AttendTile, m);
    const T *data = (const T *)c.data;
    int slices = (int)gridDim.y / a.lanes, h = (int)blockIdx.y / slices, c0 = (int)blockIdx.y % slices * 64 * G,
        s = (int)blockIdx.z, group = a.heads / a.lanes, piece = (int)blockIdx.x % c.pieces;
    int m0 = place_of(a.idx, a.n, a.off[s]), m1 = place_of(a.idx, a.n, a.off[s + 1]);
    int e0 = (int)blockIdx.x / c.pieces * TILE, n = (m1 - m0) * group - e0;
    int lane = c.seq[s] * a.lanes + h;
    Shown rows = shown(c, lane);
    int parts = c.pieces > 1 && m1 - m0 <= CUDA_SPLIT_ROWS && rows.n > 0 ? pieces_of(rows.n) : 1;
    if (n <= 0 || piece >= parts) return;
    n = n < TILE ? n : TILE;
    int oldest = lookers_load(m, a, h, m0, e0, n);
    if (oldest == INT32_MAX && before && parts == 1) return;
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    Softmax<G> x;
    softmax_load<G>(x, m, n, o, parts > 1 ? nullptr : before, c0, a.Dv);
    int tail = -1;
    const int *table = c.table + (size_t)lane * (size_t)c.maxpages;
    if (c.evicted && c.evicts[(size_t)a.off[s] * (size_t)a.lanes + (size_t)h] != 0) tail = c.tail[lane];
    int seen = rows_unseen(a, c, rows, table, s, oldest);
    int each = parts > 1 ? piece_rows(rows.n) : rows.n, at = piece * each, to = at + each < rows.n ? at + each : rows.n;
    if (oldest == INT32_MAX) to = at;
    while (at < to) {
        bool sinks = at < rows.sinks;
        if (!sinks && at < rows.sinks + seen) {
            at = rows.sinks + seen;
            continue;
        }
        int end = sinks && rows.sinks < to ? rows.sinks : to, keys = end - at < TILE ? end - at : TILE;
        float t[4][4];
        __syncthreads();
        lane_load<T>(m, a, c, table, sinks ? rows.s0 + at : rows.lo + at - rows.sinks, keys, tail);
        tile_dots(t, m->part, {q, m->q, (size_t)a.Dk, n}, parts_at(data, c, m->k, keys, a.Dk), a.Dk);
        scores_of(a, t);
        UNROLL for (int i = 0; i < 4; i++) {
            Entry e = entry_of(m, ty + 16 * i); /* read at every tile: held, it would cost twelve registers */
            UNROLL for (int k = 0; k < 4; k++) t[i][k] = score_seen(m, a, e, tx + 16 * k, keys, t[i][k]);
        }
        absorb<G>(x, m, t, parts_at(data, c, m->v, keys, c.alias ? a.Dk : a.Dv), c0, a.Dv);
        at += keys;
    }
    if (parts > 1) {
        __syncthreads();
        int k = (int)threadIdx.x;
        if (k < n) {
            int first = place_of(a.idx, a.n, a.off[s]); /* m0, which the loop has no register for */
            size_t slot = slot_of(a, c, s, first + (e0 + k) / group, first);
            m->q[k] =
                ((size_t)piece * (size_t)c.slots + slot) * (size_t)a.heads + (size_t)(h * group + (e0 + k) % group);
        }
        o = c.part, lse = c.lses;
    }
    softmax_store<G>(x, m, n, o, lse, c0, a.Dv);
}
/* A warp to a query head of a row whose history was split: its pieces, and what was there before, in their order. */
__global__ void lanes_merge(CudaAttend a, CudaLanes c, float *o, float *lse, const float *before) {
    int s = (int)blockIdx.y, m0 = place_of(a.idx, a.n, a.off[s]), m1 = place_of(a.idx, a.n, a.off[s + 1]);
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, head = i % a.heads,
        w = m0 + i / a.heads;
    if (m1 - m0 > CUDA_SPLIT_ROWS || w >= m1) return;
    Shown rows = shown(c, c.seq[s] * a.lanes + head / (a.heads / a.lanes));
    int parts = rows.n > 0 ? pieces_of(rows.n) : 1;
    if (parts == 1) return;
    size_t at = (size_t)w * (size_t)a.heads + (size_t)head, Dv = (size_t)a.Dv, step = (size_t)c.slots * (size_t)a.heads,
           from = slot_of(a, c, s, w, m0) * (size_t)a.heads + (size_t)head;
    float own = before ? before[at] : -INFINITY, part = lane < parts ? c.lses[(size_t)lane * step + from] : -INFINITY,
          pieces = warp_max(part), top = fmaxf(own, pieces);
    if (pieces == -INFINITY && before) return; /* nothing was seen */
    own = own == -INFINITY ? 0 : expf(own - top), part = part == -INFINITY ? 0 : expf(part - top);
    float sum = own + warp_sum(part), inv = sum == 0 ? 0 : 1 / sum;
    own *= inv, part *= inv;
    for (size_t k0 = 0; k0 < Dv; k0 += 32) {
        size_t k = k0 + (size_t)lane;
        float y = own != 0 && k < Dv ? own * o[at * Dv + k] : 0;
        for (int p = 0; p < parts; p++) {
            float f = __shfl_sync(FULL_WARP, part, p);
            if (k < Dv) y += f * c.part[((size_t)p * step + from) * Dv + k];
        }
        if (k < Dv) o[at * Dv + k] = y;
    }
    __syncwarp(); /* lse may be what was read as `before` */
    if (lane == 0) lse[at] = sum == 0 ? -INFINITY : top + (float)log((double)sum);
}
template <class T>
static void lanes_of(Cuda *c, const CudaAttend *a, const CudaLanes *l, float *o, float *lse, const float *before,
                     const float *q) {
    dim3 grid((unsigned)(a->blocks * l->pieces), (unsigned)(a->lanes * column_slices(a->Dv)), (unsigned)a->B);
    if (column_groups(a->Dv) == 1)
        LAUNCH((attend_lanes<1, T>), grid, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, *l, o, lse, before, q);
    else
        LAUNCH((attend_lanes<2, T>), grid, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, *l, o, lse, before, q);
}
extern "C" void cuda_attend_lanes(Cuda *c, const CudaAttend *a, const CudaLanes *l, float *o, float *lse,
                                  const float *before, const float *q) {
    if (a->blocks <= 0) return;
    (l->matrix                 ? flash_lanes_launch
     : l->coded == CUDA_INT8   ? lanes_of<Int8>
     : l->coded == CUDA_FP8    ? lanes_of<Fp8>
     : l->coded == CUDA_PACKED ? lanes_of<Packed>
     : l->is_bf16              ? lanes_of<bf16>
                               : lanes_of<float>)(c, a, l, o, lse, before, q);
    if (l->pieces == 1) return;
    LAUNCH(lanes_merge, dim3((unsigned)(CUDA_SPLIT_ROWS * a->heads + WARPS - 1) / WARPS, (unsigned)a->B), dim3(BLOCK),
           0, c->stream, *a, *l, o, lse, before);
}
