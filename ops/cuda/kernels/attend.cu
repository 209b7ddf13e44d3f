/* attend.cu: softmax attention over the rows of a pass in f32. A block computes 64 entries and up to 128 columns of
 * the values; it walks through the keys 64 at a time with a running softmax. */
#include "attend.h"

template <int G>
__global__ void __launch_bounds__(BLOCK)
    attend(CudaAttend a, float *o, float *lse, const float *before, const float *q) {
    SMEM_DYN(AttendTile, m);
    int slices = (int)gridDim.y / a.lanes, lane = (int)blockIdx.y / slices, c0 = (int)blockIdx.y % slices * 64 * G,
        s = (int)blockIdx.z, group = a.heads / a.lanes;
    int first = a.off[s], end = a.off[s + 1], m0 = place_of(a.idx, a.n, first), m1 = place_of(a.idx, a.n, end);
    /* the entries that see most begin first */
    int e0 = (int)(gridDim.x - 1 - blockIdx.x) * TILE, n = (m1 - m0) * group - e0;
    if (n <= 0) return;
    n = n < TILE ? n : TILE;
    Span span = entries_load(m, a, s, lane, m0, e0, n);
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    Entry e[4];
    UNROLL for (int i = 0; i < 4; i++) e[i] = entry_of(m, ty + 16 * i);
    Softmax<G> x;
    softmax_load<G>(x, m, n, o, before, c0, a.Dv);
    for (int j = first; j < span.high; j += TILE) {
        int keys = end - j < TILE ? end - j : TILE;
        if (!span_meets(span, j, j + keys)) continue;
        float t[4][4];
        __syncthreads();
        keys_load(m, a, lane, j, keys);
        tile_dots(t, m->part, {q, m->q, (size_t)a.Dk, n}, Rows{a.k, m->k, (size_t)a.Dk, keys}, a.Dk);
        UNROLL for (int i = 0; i < 4; i++) {
            UNROLL for (int k = 0; k < 4; k++) t[i][k] = score(m, a, e[i], tx + 16 * k, keys, t[i][k]);
        }
        absorb<G>(x, m, t, Rows{a.v, m->v, (size_t)a.ldv, keys}, c0, a.Dv);
    }
    softmax_store<G>(x, m, n, o, lse, c0, a.Dv);
}
extern "C" void cuda_attend(Cuda *c, const CudaAttend *a, float *o, float *lse, const float *before, const float *q) {
    if (a->blocks <= 0) return;
    dim3 grid((unsigned)a->blocks, (unsigned)(a->lanes * column_slices(a->Dv)), (unsigned)a->B);
    if (column_groups(a->Dv) == 1)
        LAUNCH((attend<1>), grid, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, o, lse, before, q);
    else
        LAUNCH((attend<2>), grid, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, o, lse, before, q);
}
extern "C" int cuda_attend_slices(int Dv) { return column_slices(Dv); }
