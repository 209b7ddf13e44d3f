/* attend_backward.cu: the gradients of attention in f32, in three passes without atomics: delta = dout . o, then dq by
 * entries, and dk, dv by keys. The last two recompute the probabilities from lse. Every element has one writer and one
 * order. */
#include "attend.h"

/* One warp per entry. */
__global__ void attend_delta(size_t n, int D, float *delta, const float *dout, const float *o) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (i >= n) return;
    float s = 0;
    for (int k = lane; k < D; k += 32) s += dout[i * (size_t)D + (size_t)k] * o[i * (size_t)D + (size_t)k];
    s = warp_sum(s);
    if (lane == 0) delta[i] = s;
}
/* Probability of a score; 0 for a hidden key. */
DEVICE float chance(float s, float lse) { return s == -INFINITY ? 0 : expf(s - lse); }

template <int G>
__global__ void __launch_bounds__(BLOCK) attend_backward_q(CudaAttend a, float *dq, const float *dout, const float *q,
                                                           const float *lse, const float *delta) {
    SMEM_DYN(AttendTile, m);
    int slices = (int)gridDim.y / a.lanes, lane = (int)blockIdx.y / slices, c0 = (int)blockIdx.y % slices * 64 * G,
        s = (int)blockIdx.z, group = a.heads / a.lanes, first = a.off[s], end = a.off[s + 1];
    int e0 = (int)(gridDim.x - 1 - blockIdx.x) * TILE, n = (end - first) * group - e0;
    if (n <= 0) return;
    n = n < TILE ? n : TILE;
    Span span = entries_load(m, a, s, lane, first, e0, n);
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    Entry e[4];
    float l[4], del[4], acc[4][4 * G];
    UNROLL for (int i = 0; i < 4; i++) {
        int r = ty + 16 * i;
        e[i] = entry_of(m, r);
        l[i] = r < n ? lse[m->q[r]] : 0, del[i] = r < n ? delta[m->q[r]] : 0;
        UNROLL for (int c = 0; c < 4 * G; c++) acc[i][c] = 0;
    }
    for (int j = first; j < span.high; j += TILE) {
        int keys = end - j < TILE ? end - j : TILE;
        if (!span_meets(span, j, j + keys)) continue;
        float t[4][4], d[4][4];
        __syncthreads();
        keys_load(m, a, lane, j, keys);
        tile_dots(t, m->part, {q, m->q, (size_t)a.Dk, n}, Rows{a.k, m->k, (size_t)a.Dk, keys}, a.Dk);
        tile_dots(d, m->part, {dout, m->q, (size_t)a.Dv, n}, Rows{a.v, m->v, (size_t)a.Dv, keys}, a.Dv);
        UNROLL for (int i = 0; i < 4; i++) {
            UNROLL for (int k = 0; k < 4; k++) {
                float p = chance(score(m, a, e[i], tx + 16 * k, keys, t[i][k]), l[i]);
                m->p[(ty + 16 * i) * LD_TILE + tx + 16 * k] = p * (d[i][k] - del[i]) * cap_slope(a, t[i][k]);
            }
        }
        tile_apply<G>(acc, m->p, m->part, Rows{a.k, m->k, (size_t)a.Dk, keys}, c0, a.Dk);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int c = 0; c < 4 * G; c++) {
            int r = ty + 16 * i, k = c0 + c / 4 * 64 + tx * 4 + c % 4;
            if (r < n && k < a.Dk) dq[m->q[r] * (size_t)a.Dk + (size_t)k] += acc[i][c] * a.scale;
        }
    }
}

/* Here the keys are the rows of the tile, ty + 16 i, and the entries its columns. */
template <int G>
__global__ void __launch_bounds__(BLOCK)
    attend_backward_kv(CudaAttend a, float *dk, float *dv, float *dbias, const float *dout, const float *q,
                       const float *lse, const float *delta) {
    SMEM_DYN(AttendTile, m);
    int slices = (int)gridDim.y / a.lanes, lane = (int)blockIdx.y / slices, c0 = (int)blockIdx.y % slices * 64 * G,
        s = (int)blockIdx.z, group = a.heads / a.lanes, first = a.off[s], end = a.off[s + 1];
    int j0 = first + (int)blockIdx.x * TILE, keys = end - j0, entries = (end - first) * group;
    if (keys <= 0) return;
    keys = keys < TILE ? keys : TILE;
    int t = (int)threadIdx.x, ty = t / 16, tx = t % 16;
    float ak[4][4 * G], av[4][4 * G], ab[4] = {0, 0, 0, 0};
    UNROLL for (int i = 0; i < 4; i++) { UNROLL for (int c = 0; c < 4 * G; c++) ak[i][c] = av[i][c] = 0; }
    keys_load(m, a, lane, j0, keys);
    /* entries before the keys see none of them */
    for (int e0 = (j0 - first) * group / TILE * TILE; e0 < entries; e0 += TILE) {
        int n = entries - e0 < TILE ? entries - e0 : TILE;
        Span span = entries_load(m, a, s, lane, first, e0, n);
        if (!span_meets(span, j0, j0 + keys)) continue;
        if (t < TILE) m->lse[t] = t < n ? lse[m->q[t]] : 0, m->delta[t] = t < n ? delta[m->q[t]] : 0;
        float p[4][4], d[4][4];
        Rows rq = {q, m->q, (size_t)a.Dk, n}, rg = {dout, m->q, (size_t)a.Dv, n};
        tile_dots(p, m->part, {a.k, m->k, (size_t)a.Dk, keys}, rq, a.Dk);
        tile_dots(d, m->part, {a.v, m->v, (size_t)a.Dv, keys}, rg, a.Dv);
        UNROLL for (int i = 0; i < 4; i++) {
            UNROLL for (int k = 0; k < 4; k++) {
                int r = ty + 16 * i, col = tx + 16 * k;
                Entry e = entry_of(m, col);
                float slope = cap_slope(a, p[i][k]);
                p[i][k] = chance(score(m, a, e, r, keys, p[i][k]), m->lse[col]);
                d[i][k] = p[i][k] * (d[i][k] - m->delta[col]);
                if (m->kpos[r] < e.pos - a.delay) ab[i] += d[i][k];
                d[i][k] *= slope;
                m->p[r * LD_TILE + col] = p[i][k];
            }
        }
        tile_apply<G>(av, m->p, m->part, rg, c0, a.Dv);
        __syncwarp(); /* a row of p belongs to half a warp */
        UNROLL for (int i = 0; i < 4; i++) {
            UNROLL for (int k = 0; k < 4; k++) m->p[(ty + 16 * i) * LD_TILE + tx + 16 * k] = d[i][k];
        }
        tile_apply<G>(ak, m->p, m->part, rq, c0, a.Dk);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        int r = ty + 16 * i;
        float sum = half_warp_sum(ab[i]);
        if (r >= keys) continue;
        if (dbias && c0 == 0 && tx == 0) dbias[m->k[r]] += sum;
        UNROLL for (int c = 0; c < 4 * G; c++) {
            int k = c0 + c / 4 * 64 + tx * 4 + c % 4;
            if (k < a.Dk) dk[m->k[r] * (size_t)a.Dk + (size_t)k] += ak[i][c] * a.scale;
            if (k < a.Dv) dv[m->k[r] * (size_t)a.Dv + (size_t)k] += av[i][c];
        }
    }
}
extern "C" void cuda_attend_backward(Cuda *c, const CudaAttend *a, float *dq, float *dk, float *dv, float *dbias,
                                     float *delta, const float *dout, const float *q, const float *o,
                                     const float *lse) {
    size_t n = (size_t)a->N * (size_t)a->heads;
    if (n == 0) return;
    LAUNCH(attend_delta, dim3((unsigned)((n + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, n, a->Dv, delta, dout,
           o);
    int D = a->Dk > a->Dv ? a->Dk : a->Dv;
    dim3 by_q((unsigned)a->blocks, (unsigned)(a->lanes * column_slices(a->Dk)), (unsigned)a->B);
    dim3 by_k((unsigned)((a->longest + TILE - 1) / TILE), (unsigned)(a->lanes * column_slices(D)), (unsigned)a->B);
    if (column_groups(a->Dk) == 1)
        LAUNCH((attend_backward_q<1>), by_q, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, dq, dout, q, lse, delta);
    else
        LAUNCH((attend_backward_q<2>), by_q, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, dq, dout, q, lse, delta);
    if (column_groups(D) == 1)
        LAUNCH((attend_backward_kv<1>), by_k, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, dk, dv, dbias, dout, q,
               lse, delta);
    else
        LAUNCH((attend_backward_kv<2>), by_k, dim3(BLOCK), sizeof(AttendTile), c->stream, *a, dk, dv, dbias, dout, q,
               lse, delta);
}
