/* lanes.h: what the kernels over the cached history share: the rows that a lane shows, the pieces that it is split
 * into, where partials stand. */
#pragma once
#include "attend.h"

/* Rows that a lane shows: `sinks` from s0 on, then those from lo on. */
struct Shown {
    int s0, sinks, lo, n;
};
DEVICE Shown shown(const CudaLanes &c, int lane) {
    Shown p = {c.s0[lane], 0, c.lo[lane], 0};
    int to = p.s0 + c.sinks < p.lo ? p.s0 + c.sinks : p.lo;
    p.sinks = to > p.s0 ? to - p.s0 : 0;
    p.n = p.sinks + c.hi[lane] - p.lo;
    return p;
}
/* Rows from lo on that nobody sees any more whose oldest position is `oldest`. Positions are consecutive where rows
 * neither retire nor stay behind as sinks. */
DEVICE int rows_unseen(const CudaAttend &a, const CudaLanes &c, const Shown &rows, const int *table, int oldest) {
    if (rows.n <= rows.sinks || !a.window || a.sinks || c.gone || oldest == INT32_MAX) return 0;
    size_t page = (size_t)table[rows.lo / c.P % c.maxpages];
    int skip = oldest - a.window + 1 - c.pos[page * (size_t)c.P + (size_t)(rows.lo % c.P)];
    return skip > 0 ? skip : 0;
}
/* Whole tiles, so many that there are at most CUDA_PIECES pieces. */
__host__ __device__ static inline int piece_rows(int n) {
    int tiles = (n + TILE * CUDA_PIECES - 1) / (TILE * CUDA_PIECES);
    return TILE * (tiles < 2 ? 2 : tiles);
}
__host__ __device__ static inline int pieces_of(int n) { return (n + piece_rows(n) - 1) / piece_rows(n); }
/* Where partials of wanted row w of sequence s, whose first is m0, stand. */
DEVICE size_t slot_of(const CudaAttend &a, const CudaLanes &c, int s, int w, int m0) {
    return (size_t)(a.n <= c.slots ? w : s * CUDA_SPLIT_ROWS + w - m0);
}
/* flash_lanes.cu: the kernels of the matrix units. */
void flash_lanes_launch(Cuda *, const CudaAttend *, const CudaLanes *, float *o, float *lse, const float *before,
                        const float *q);
