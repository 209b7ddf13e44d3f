/* lanes.h: shared code of the kernels that read the cached history: the visible rows of a lane, the pieces that a lane
 * is split into, and where partial results go. */
#pragma once
#include "attend.h"

/* The visible rows of a lane: `sinks` rows from s0 on, then the rows from lo on. */
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
/* Rows from lo on that no query sees any more, if the oldest position is `oldest`. Positions are consecutive if rows
 * are not evicted, do not remain as sinks, and are not sparse with fewer than the document of sequence s has. */
DEVICE int rows_unseen(const CudaAttend &a, const CudaLanes &c, const Shown &rows, const int *table, int s,
                       int oldest) {
    if (rows.n <= rows.sinks || !a.window || a.sinks || c.evicted || (c.sparse && rows.n != a.pos[a.off[s]]) ||
        oldest == INT32_MAX)
        return 0;
    size_t page = (size_t)table[rows.lo / c.P % c.maxpages];
    int skip = oldest - a.window + 1 - c.pos[page * (size_t)c.P + (size_t)(rows.lo % c.P)];
    return skip > 0 ? skip : 0;
}
/* Rows of a piece: whole tiles, so many that there are at most CUDA_PIECES pieces. */
__host__ __device__ static inline int piece_rows(int n) {
    int tiles = (n + TILE * CUDA_PIECES - 1) / (TILE * CUDA_PIECES);
    return TILE * (tiles < 2 ? 2 : tiles);
}
__host__ __device__ static inline int pieces_of(int n) { return (n + piece_rows(n) - 1) / piece_rows(n); }
/* The place of the partial results of wanted row w of sequence s, whose first wanted row is m0. */
DEVICE size_t slot_of(const CudaAttend &a, const CudaLanes &c, int s, int w, int m0) {
    return (size_t)(a.n <= c.slots ? w : s * CUDA_SPLIT_ROWS + w - m0);
}
/* In flash_lanes.cu: launches the kernels that use the matrix units. */
void flash_lanes_launch(Cuda *, const CudaAttend *, const CudaLanes *, float *o, float *lse, const float *before,
                        const float *q);
