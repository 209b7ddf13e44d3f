/* attend.h: shared device code of the attention kernels: entries, which rows they may see, the running softmax.
 * attend.cu, attend_backward.cu, lanes.h and flash.h include it. What is computed is AttnSpec's formula (ops/run.h);
 * scores, softmax and sums are f32, lse is natural.
 *
 * An entry is one query head of one row. The heads that read one lane (K/V head) are entries of the same tile, as on
 * the CPU. Keys arrive in tiles, so the softmax runs: with m the largest score so far, l = sum e^(s-m) and
 * o = sum e^(s-m) v are multiplied by e^(m_old - m_new) when m grows; at the end o / l, lse = m + log l. Source:
 * arXiv:1805.02867. */
#pragma once
#include "tile.h"

/* A tile of entries and a tile of keys in shared memory. */
struct AttendTile {
    float part[PART_NUMBERS], p[TILE * LD_TILE];
    size_t q[TILE], k[TILE], v[TILE];         /* Rows.at */
    int pos[TILE], row[TILE], from[TILE];     /* of entries: position; last and first row that they may see */
    int key[TILE], kpos[TILE];                /* of keys: row, position */
    float bias[TILE], lse[TILE], delta[TILE]; /* of keys; of entries */
    int span[2][4];
};
/* The rows of the pass that the entries of a tile may see: rows outside [low, high) and [sink0, sink1) are hidden. */
struct Span {
    int low, high, sink0, sink1;
};
DEVICE bool span_meets(Span p, int j0, int j1) { return (j1 > p.low && j0 < p.high) || (j1 > p.sink0 && j0 < p.sink1); }
/* The first index of the ascending array a whose value is v or more. */
DEVICE int place_of(const int *a, int n, int v) {
    int lo = 0;
    for (int hi = n; lo < hi;) {
        int mid = (lo + hi) / 2;
        if (a[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}
/* Load entries e0..e0+n-1 of the wanted rows m0.. of sequence s on a lane; n <= TILE. Begins and ends with a
 * barrier. */
DEVICE Span entries_load(AttendTile *m, const CudaAttend &a, int s, int lane, int m0, int e0, int n) {
    int t = (int)threadIdx.x, group = a.heads / a.lanes;
    Span p = {INT32_MAX, 0, INT32_MAX, 0};
    __syncthreads();
    if (t < TILE) {
        int pos = 0, row = -1, from = 0;
        size_t at = 0;
        if (t < n) {
            int w = m0 + (e0 + t) / group;
            at = (size_t)w * (size_t)a.heads + (size_t)(lane * group + (e0 + t) % group);
            row = a.idx ? a.idx[w] : w;
            pos = a.pos[row];
            from = a.first[row] > a.off[s] ? a.first[row] : a.off[s];
            int start = row - a.window + 1;
            p.low = a.window && start > from ? start : from;
            p.high = row + 1;
            p.sink0 = from;
            int sinks = a.sinks - a.pos[from];
            p.sink1 = from + (sinks > 0 ? sinks : 0);
        }
        m->q[t] = at, m->pos[t] = pos, m->row[t] = row, m->from[t] = from;
        for (int d = 16; d; d >>= 1) { /* warps 0 and 1, all of their threads */
            int low = __shfl_xor_sync(FULL_WARP, p.low, d), high = __shfl_xor_sync(FULL_WARP, p.high, d),
                sink0 = __shfl_xor_sync(FULL_WARP, p.sink0, d), sink1 = __shfl_xor_sync(FULL_WARP, p.sink1, d);
            p.low = low < p.low ? low : p.low, p.high = high > p.high ? high : p.high;
            p.sink0 = sink0 < p.sink0 ? sink0 : p.sink0, p.sink1 = sink1 > p.sink1 ? sink1 : p.sink1;
        }
        if (t % 32 == 0) {
            int *to = m->span[t / 32];
            to[0] = p.low, to[1] = p.high, to[2] = p.sink0, to[3] = p.sink1;
        }
    }
    __syncthreads();
    const int *x = m->span[0], *y = m->span[1];
    return {x[0] < y[0] ? x[0] : y[0], x[1] > y[1] ? x[1] : y[1], x[2] < y[2] ? x[2] : y[2], x[3] > y[3] ? x[3] : y[3]};
}
/* Load rows j0..j0+n-1 of the pass on a lane as the keys of the tile. The reader must begin with a barrier. */
DEVICE void keys_load(AttendTile *m, const CudaAttend &a, int lane, int j0, int n) {
    int t = (int)threadIdx.x;
    if (t >= TILE) return;
    size_t at = (size_t)(j0 + t) * (size_t)a.lanes + (size_t)lane;
    m->k[t] = m->v[t] = at;
    m->key[t] = j0 + t;
    m->kpos[t] = t < n ? a.pos[j0 + t] : 0;
    m->bias[t] = t < n && a.bias ? a.bias[at] : 0;
}
/* One entry, in registers. */
struct Entry {
    int pos, row, from;
};
DEVICE Entry entry_of(const AttendTile *m, int e) { return {m->pos[e], m->row[e], m->from[e]}; }
/* A product as a score without bias, and the derivative by it, but for the scale. */
DEVICE float cap_tanh(float x) { return 1 - 2 / (1 + expf(2 * x)); } /* off by 1e-7; tanhf needs more registers */
DEVICE float capped(const CudaAttend &a, float s) {
    s *= a.scale;
    return a.cap > 0 ? a.cap * cap_tanh(s / a.cap) : s;
}
DEVICE float cap_slope(const CudaAttend &a, float s) {
    float x = a.cap > 0 ? cap_tanh(s * a.scale / a.cap) : 0;
    return 1 - x * x;
}
/* The products of a tile become scores without bias. The cap has a loop of its own: score, with a tanh in it sixteen
 * times, needs more registers than lanes.cu has. */
DEVICE void scores_of(const CudaAttend &a, float (&t)[4][4]) {
    if (!(a.cap > 0)) {
        UNROLL for (int j = 0; j < 16; j++) t[j / 4][j % 4] *= a.scale;
        return;
    }
    ROLLED for (int i = 0; i < 16; i++) {
        float x = 0;
        UNROLL for (int j = 0; j < 16; j++) x = j == i ? t[j / 4][j % 4] : x;
        x = capped(a, x);
        UNROLL for (int j = 0; j < 16; j++) t[j / 4][j % 4] = j == i ? x : t[j / 4][j % 4];
    }
}
/* A score without bias becomes the whole one: -inf where the key, one of n, is hidden. */
DEVICE float score_seen(const AttendTile *m, const CudaAttend &a, Entry e, int key, int n, float s) {
    int kpos = m->kpos[key], j = m->key[key];
    bool sees = key < n && j >= e.from && j <= e.row && (!a.window || e.pos - kpos < a.window || kpos < a.sinks);
    if (kpos < e.pos - a.delay) s += m->bias[key];
    return sees ? s : -INFINITY;
}
/* The score of a product s. */
DEVICE float score(const AttendTile *m, const CudaAttend &a, Entry e, int key, int n, float s) {
    return score_seen(m, a, e, key, n, capped(a, s));
}

/* The running softmax of the entries ty + 16 i: o = sum exp(s - m) v, l = sum exp(s - m). */
template <int G> struct Softmax { float m[4], l[4], o[4][4 * G]; };
/* Merge n keys, whose scores are s (-inf: hidden), into the softmax. Begins with a barrier. */
template <int G, class T>
DEVICE void absorb(Softmax<G> &x, AttendTile *mem, float s[4][4], RowsOf<T> v, int c0, int Dv) {
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    UNROLL for (int i = 0; i < 4; i++) {
        float top = x.m[i], sum = 0;
        UNROLL for (int j = 0; j < 4; j++) top = fmaxf(top, s[i][j]); /* fmaxf ignores NaN; the sums below carry it */
        top = half_warp_max(top);
        float fade = x.m[i] == -INFINITY ? 0 : expf(x.m[i] - top);
        UNROLL for (int j = 0; j < 4; j++) {
            float p = s[i][j] == -INFINITY ? 0 : expf(s[i][j] - top);
            mem->p[(ty + 16 * i) * LD_TILE + tx + 16 * j] = p;
            sum += p;
        }
        x.l[i] = x.l[i] * fade + half_warp_sum(sum);
        x.m[i] = top;
        UNROLL for (int c = 0; c < 4 * G; c++) x.o[i][c] *= fade;
    }
    tile_apply<G>(x.o, mem->p, mem->part, v, c0, Dv);
}
/* Start from an earlier partial result o with its lse `before`; NULL: there is none. */
template <int G>
DEVICE void softmax_load(Softmax<G> &x, const AttendTile *m, int n, const float *o, const float *before, int c0,
                         int Dv) {
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    UNROLL for (int i = 0; i < 4; i++) {
        int e = ty + 16 * i;
        float lse = e < n && before ? before[m->q[e]] : -INFINITY;
        bool start = lse == -INFINITY;
        x.m[i] = lse, x.l[i] = start ? 0 : 1;
        UNROLL for (int c = 0; c < 4 * G; c++) {
            int k = c0 + c / 4 * 64 + tx * 4 + c % 4;
            x.o[i][c] = start || k >= Dv ? 0 : o[m->q[e] * (size_t)Dv + (size_t)k];
        }
    }
}
template <int G>
DEVICE void softmax_store(const Softmax<G> &x, const AttendTile *m, int n, float *o, float *lse, int c0, int Dv) {
    int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    __syncthreads(); /* without a key there was no barrier since the entries were read */
    UNROLL for (int i = 0; i < 4; i++) {
        int e = ty + 16 * i;
        if (e >= n) continue;
        float inv = x.l[i] == 0 ? 0 : 1 / x.l[i]; /* NaN passes through */
        UNROLL for (int c = 0; c < 4 * G; c++) {
            int k = c0 + c / 4 * 64 + tx * 4 + c % 4;
            if (k < Dv) o[m->q[e] * (size_t)Dv + (size_t)k] = x.o[i][c] * inv;
        }
        if (c0 == 0 && tx == 0) lse[m->q[e]] = x.l[i] == 0 ? -INFINITY : x.m[i] + (float)log((double)x.l[i]);
    }
}
/* Number of 64-column groups of the result that one block computes. Wider results are split over several blocks, each
 * of which computes the scores again. */
static inline int column_groups(int D) { return D <= 64 ? 1 : 2; }
static inline int column_slices(int D) { return (D + 64 * column_groups(D) - 1) / (64 * column_groups(D)); }
