/* flash_backward.cu: the gradients of flash.cu's attention in three passes without atomics, as in attend_backward.cu:
 * delta = dout . o together with the packing of dout, then dq by entries, and dk, dv by keys. The last two recompute
 * the probabilities from lse. Every element has one writer and one order.
 *
 * Estimated number of products, compared with 5 (of 2 h T^2 D / 2 flops) for a pass that adds dq by atomics: 7, and 9
 * if two blocks of columns share dk and dv (D above 128). */
#include "flash.h"

/* Entry i of all lanes, in the order of lse and delta, among (rows, heads). */
DEVICE size_t place_of_entry(const CudaAttend &a, size_t i) {
    size_t group = (size_t)(a.heads / a.lanes), entries = (size_t)a.N * group, e = i % entries;
    return e / group * (size_t)a.heads + i / entries * group + e % group;
}
/* One warp per entry. delta uses dout as the products see it; g: dout packed to rows of DV. */
template <class T>
__global__ void flash_delta(CudaAttend a, int DV, bf16 *g, float *lse2, float *delta, const T *dout, const T *o,
                            const float *lse) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int l = (int)threadIdx.x % 32;
    if (i >= (size_t)a.N * (size_t)a.heads) return;
    size_t at = place_of_entry(a, i), from = at * (size_t)a.Dv;
    float s = 0;
    for (int k = l; k < DV; k += 32) {
        bf16 x = {0};
        if (k < a.Dv) {
            x = to_bf16(number(dout[from + (size_t)k]));
            s += to_float(x) * number(o[from + (size_t)k]);
        }
        g[at * (size_t)DV + (size_t)k] = x;
    }
    s = warp_sum(s);
    if (l == 0) delta[i] = s, lse2[i] = lse[at] * LOG2_E;
}
/* The same if dout is read in place: `lanes` threads per entry, a power of two, each with a multiple of 8 elements. */
__global__ void flash_delta_rows(CudaAttend a, int lanes, float *lse2, float *delta, const bf16 *dout, const bf16 *o,
                                 const float *lse) {
    size_t n = (size_t)a.N * (size_t)a.heads, i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) / (size_t)lanes;
    int l = (int)threadIdx.x % lanes;
    size_t at = i < n ? place_of_entry(a, i) : 0;
    float s = 0;
    for (int k = 8 * l; i < n && k < a.Dv; k += 8 * lanes) {
        float x[8], y[8];
        fetch<8>(x, dout + at * (size_t)a.Dv + k), fetch<8>(y, o + at * (size_t)a.Dv + k);
        UNROLL for (int j = 0; j < 8; j++) s += x[j] * y[j];
    }
    for (int d = lanes / 2; d; d /= 2) s += __shfl_xor_sync(FULL_WARP, s, d);
    if (i < n && l == 0) delta[i] = s, lse2[i] = lse[at] * LOG2_E;
}

/* ---- dq: a block to 64 entries ---- */
template <int DK, int DV, int BK> struct BackwardTile {
    bf16 q[FLASH_ROWS * DK], g[FLASH_ROWS * DV], k[2][BK * DK], v[2][BK * DV];
    int kpos[2][BK], place[FLASH_ROWS]; /* place: of entries among (rows, heads) */
    float bias[2][BK];
};
template <int DK, int DV, int BK>
__global__ void __launch_bounds__(FLASH_THREADS, DK <= 64 ? 3 : 2) flash_backward_q(Flash f, FlashOut dq) {
    using Tile = BackwardTile<DK, DV, BK>;
    SMEM_DYN(Tile, m);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const CudaAttend &a = f.a;
    int lane = (int)blockIdx.y, s = (int)blockIdx.z, group = a.heads / a.lanes, start = a.off[s], end = a.off[s + 1];
    int e0 = (int)(gridDim.x - 1 - blockIdx.x) * FLASH_ROWS, n = (end - start) * group - e0;
    if (n <= 0) return;
    n = n < FLASH_ROWS ? n : FLASH_ROWS;
    int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    Span span =
        span_of(a, entry_of_row(a, start, start + e0 / group), entry_of_row(a, start, start + (e0 + n - 1) / group));
    size_t entry = (size_t)lane * (size_t)a.N * (size_t)group + (size_t)start * (size_t)group + (size_t)e0;
    int j = tile_at(span, start, start, BK);
    entries_tile<DK, FLASH_ROWS>(m->q, f.q, f, lane, start, e0, n);
    entries_tile<DV, FLASH_ROWS>(m->g, f.g, f, lane, start, e0, n);
    keys_fetch<DK, DV, BK>(m->k[0], m->v[0], m->kpos[0], m->bias[0], f, lane, j, end - j);
    cp_async_commit();

    if (threadIdx.x < FLASH_ROWS && (int)threadIdx.x < n)
        m->place[threadIdx.x] = (int)entry_place(a, lane, start, e0 + (int)threadIdx.x);
    int w0 = 16 * warp, w1 = w0 + 15 < n ? w0 + 15 : n - 1;
    bool works = w0 < n;
    Entry from = entry_of_row(a, start, start + (e0 + (works ? w0 : 0)) / group),
          to = entry_of_row(a, start, start + (e0 + w1) / group), e[2];
    float lse[2], delta[2], acc[DK / 8][4], scale = a.scale * LOG2_E;
    UNROLL for (int i = 0; i < 2; i++) {
        int x = w0 + g + 8 * i;
        e[i] = {0, -1, 0};
        lse[i] = INFINITY, delta[i] = 0;
        if (x < n) {
            e[i] = entry_of_row(a, start, start + (e0 + x) / group);
            lse[i] = f.lse[entry + (size_t)x], delta[i] = f.delta[entry + (size_t)x];
        }
    }
    UNROLL for (int c = 0; c < DK / 8; c++) { UNROLL for (int i = 0; i < 4; i++) acc[c][i] = 0; }
    for (int stage = 0, next; j < span.high; j = next, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();
        next = tile_at(span, start, j + BK, BK);
        if (next < span.high) {
            keys_fetch<DK, DV, BK>(m->k[stage ^ 1], m->v[stage ^ 1], m->kpos[stage ^ 1], m->bias[stage ^ 1], f, lane,
                                   next, end - next);
            cp_async_commit();
        }
        if (!works || j > to.row) continue;
        float x[BK / 8][4], d[BK / 8][4];
        product_of_rows<DK, BK / 8>(x, m->q, w0, m->k[stage]);
        product_of_rows<DV, BK / 8>(d, m->g, w0, m->v[stage]);
        bool all = all_seen(a, from, to, j, BK);
        UNROLL for (int c = 0; c < BK / 8; c++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int key = 8 * c + 2 * t + i % 2;
                x[c][i] =
                    all ? x[c][i] * scale
                        : flash_score(a, scale, e[i / 2], j + key, m->kpos[stage][key], m->bias[stage][key], x[c][i]);
                x[c][i] = chance2(x[c][i], lse[i / 2]) * (d[c][i] - delta[i / 2]);
            }
        }
        product_add<DK, BK / 8, DK / 8>(acc, x, m->k[stage], 0);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        int x = w0 + g + 8 * i;
        row_out<DK / 8>(dq, x < n ? (size_t)m->place[x] : 0, x < n, 0, acc, i, a.scale);
    }
}

/* ---- dk, dv: a block to 64 keys and one of S slices of their columns; keys are the rows, entries the columns ---- */
template <int DK, int DV, int BE> struct KeysTile {
    bf16 k[FLASH_ROWS * DK], v[FLASH_ROWS * DV], q[2][BE * DK], g[2][BE * DV];
    int pos[2][BE], row[2][BE], from[2][BE];
    float lse[2][BE], delta[2][BE];
};
/* Entries e0..e0+n-1 of a lane of the sequence whose rows begin at `start`, to a stage. */
template <int DK, int DV, int BE>
DEVICE void entries_fetch(KeysTile<DK, DV, BE> *m, int stage, const Flash &f, int lane, int start, int e0, int n) {
    const CudaAttend &a = f.a;
    int group = a.heads / a.lanes, t = (int)threadIdx.x;
    size_t entry = ((size_t)lane * (size_t)a.N + (size_t)start) * (size_t)group + (size_t)e0;
    entries_tile<DK, BE>(m->q[stage], f.q, f, lane, start, e0, n);
    entries_tile<DV, BE>(m->g[stage], f.g, f, lane, start, e0, n);
    if (t >= BE) return;
    Entry e = {0, -1, 0};
    if (t < n) e = entry_of_row(a, start, start + (e0 + t) / group);
    m->pos[stage][t] = e.pos, m->row[stage][t] = e.row, m->from[stage][t] = e.from;
    m->lse[stage][t] = t < n ? f.lse[entry + (size_t)t] : INFINITY; /* an entry that does not exist has probability 0 */
    m->delta[stage][t] = t < n ? f.delta[entry + (size_t)t] : 0;
}
template <int DK, int DV, int BE, int S>
__global__ void __launch_bounds__(FLASH_THREADS) flash_backward_kv(Flash f, FlashOut dk, FlashOut dv, float *dbias) {
    constexpr int CK = DK / S, CV = DV / S;
    using Tile = KeysTile<DK, DV, BE>;
    SMEM_DYN(Tile, m);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const CudaAttend &a = f.a;
    int lane = (int)blockIdx.y / S, slice = (int)blockIdx.y % S, s = (int)blockIdx.z, group = a.heads / a.lanes,
        start = a.off[s], end = a.off[s + 1], j0 = start + (int)blockIdx.x * FLASH_ROWS, keys = end - j0;
    if (keys <= 0) return;
    keys = keys < FLASH_ROWS ? keys : FLASH_ROWS;
    int l = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = l / 4, t = l % 4;
    /* The rows that may see a key: up to the end of the last key's document and, unless one is a sink, of its
     * window. */
    int last = start + place_of(a.first + start, end - start, j0 + keys);
    if (a.window && j0 + keys - 1 + a.window < last) {
        bool sink = false;
        for (int k = l; k < keys; k += 32) sink |= a.pos[j0 + k] < a.sinks;
        if (!__any_sync(FULL_WARP, sink)) last = j0 + keys - 1 + a.window;
    }
    int e0 = (j0 - start) * group / BE * BE, entries = (last - start) * group;
    size_t row = (size_t)j0 * (size_t)a.lanes + (size_t)lane;
    tile_fetch<DK, FLASH_ROWS>(m->k, f.k, row, a.lanes, keys);
    tile_fetch<DV, FLASH_ROWS>(m->v, f.v, row, a.lanes, keys);
    entries_fetch<DK, DV, BE>(m, 0, f, lane, start, e0, entries - e0);
    cp_async_commit();

    int w0 = 16 * warp, key[2], kpos[2];
    float bias[2], sum[2] = {0, 0}, ak[CK / 8][4], av[CV / 8][4], scale = a.scale * LOG2_E;
    UNROLL for (int i = 0; i < 2; i++) {
        int x = w0 + g + 8 * i;
        key[i] = j0 + x, kpos[i] = x < keys ? a.pos[j0 + x] : 0;
        bias[i] = x < keys && a.bias ? a.bias[(size_t)(j0 + x) * (size_t)a.lanes + (size_t)lane] : 0;
    }
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int c = 0; c < CK / 8; c++) ak[c][i] = 0;
        UNROLL for (int c = 0; c < CV / 8; c++) av[c][i] = 0;
    }
    for (int stage = 0; e0 < entries; e0 += BE, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();
        if (e0 + BE < entries) {
            entries_fetch<DK, DV, BE>(m, stage ^ 1, f, lane, start, e0 + BE, entries - e0 - BE);
            cp_async_commit();
        }
        int most = (e0 + BE < entries ? e0 + BE : entries) - 1 - e0;
        Entry from = {m->pos[stage][0], m->row[stage][0], m->from[stage][0]},
              to = {m->pos[stage][most], m->row[stage][most], m->from[stage][most]};
        if (w0 >= keys || to.row < j0 + w0) continue; /* entries before the keys see none of them */
        float x[BE / 8][4], d[BE / 8][4];
        product_of_rows<DK, BE / 8>(x, m->k, w0, m->q[stage]);
        product_of_rows<DV, BE / 8>(d, m->v, w0, m->g[stage]);
        bool all = all_seen(a, from, to, j0 + w0, 16);
        UNROLL for (int c = 0; c < BE / 8; c++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int col = 8 * c + 2 * t + i % 2, r = i / 2;
                Entry e = {m->pos[stage][col], m->row[stage][col], m->from[stage][col]};
                x[c][i] = all ? x[c][i] * scale : flash_score(a, scale, e, key[r], kpos[r], bias[r] * LOG2_E, x[c][i]);
                x[c][i] = chance2(x[c][i], m->lse[stage][col]);
                d[c][i] = x[c][i] * (d[c][i] - m->delta[stage][col]);
                if (kpos[r] < e.pos - a.delay) sum[r] += d[c][i];
            }
        }
        product_add<DV, BE / 8, CV / 8>(av, x, m->g[stage], slice * CV / 8);
        product_add<DK, BE / 8, CK / 8>(ak, d, m->q[stage], slice * CK / 8);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        float all = quad_sum(sum[i]);
        bool there = key[i] < j0 + keys;
        size_t at = (size_t)key[i] * (size_t)a.lanes + (size_t)lane;
        if (there && dbias && slice == 0 && t == 0) dbias[at] += all;
        row_out<CK / 8>(dk, at, there, slice * CK, ak, i, a.scale);
        row_out<CV / 8>(dv, at, there, slice * CV, av, i, 1);
    }
}

struct Gradients {
    FlashOut q, k, v;
    float *bias;
};
template <int DK, int DV> static void backward_of(Cuda *c, const Flash *f, Gradients d) {
    /* The largest that fit: rows of keys in a tile, of entries in a tile, columns of dk and dv in registers. */
    constexpr int BK = DK <= 128   ? 64
                       : DK <= 192 ? 32
                                   : 16,
                  BE = DK <= 64    ? 64
                       : DK <= 192 ? 32
                                   : 16,
                  S = DK <= 128 ? 1 : 2;
    constexpr size_t by_q = sizeof(BackwardTile<DK, DV, BK>), by_k = sizeof(KeysTile<DK, DV, BE>);
    const CudaAttend *a = &f->a;
    unsigned rows = (unsigned)((a->longest + FLASH_ROWS - 1) / FLASH_ROWS);
    cuda_must(cudaFuncSetAttribute(flash_backward_q<DK, DV, BK>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)by_q),
              "shared memory of attention");
    cuda_must(cudaFuncSetAttribute(flash_backward_kv<DK, DV, BE, S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)by_k),
              "shared memory of attention");
    LAUNCH((flash_backward_q<DK, DV, BK>), dim3((unsigned)a->blocks, (unsigned)a->lanes, (unsigned)a->B),
           dim3(FLASH_THREADS), by_q, c->stream, *f, d.q);
    LAUNCH((flash_backward_kv<DK, DV, BE, S>), dim3(rows, (unsigned)(a->lanes * S), (unsigned)a->B),
           dim3(FLASH_THREADS), by_k, c->stream, *f, d.k, d.v, d.bias);
}
extern "C" size_t cuda_flash_backward_bytes(const CudaAttend *a, const CudaFlash *x) {
    size_t entries = (size_t)a->N * (size_t)a->heads,
           g = flash_lies(x->dout, a->Dv, a->Dv) ? 0 : (size_t)flash_width_v(a) * sizeof(bf16);
    return cuda_flash_bytes(a, x) + entries * (g + 2 * sizeof(float));
}
extern "C" void cuda_flash_backward(Cuda *c, const CudaAttend *a, const CudaFlash *x, void *mem, float *dbias,
                                    const float *lse) {
    size_t n = (size_t)a->N * (size_t)a->heads;
    if (n == 0) return;
    int DV = flash_width_v(a), lanes = 1;
    void *rest;
    Flash f = flash_pack(c, a, x, mem, &rest);
    bf16 *g = (bf16 *)rest;
    bool lies = flash_lies(x->dout, a->Dv, a->Dv);
    float *lse2 = (float *)(g + (lies ? 0 : n * (size_t)DV)), *delta = lse2 + n;
    dim3 warps((unsigned)((n + WARPS - 1) / WARPS));
    const void *dout = x->dout.p, *o = x->o.p;
    while (lanes < 32 && 8 * lanes < a->Dv) lanes *= 2;
    if (lies)
        LAUNCH(flash_delta_rows, dim3((unsigned)((n * (size_t)lanes + BLOCK - 1) / BLOCK)), dim3(BLOCK), 0, c->stream,
               *a, lanes, lse2, delta, (const bf16 *)dout, (const bf16 *)o, lse);
    else if (x->dout.is_bf16)
        LAUNCH((flash_delta<bf16>), warps, dim3(BLOCK), 0, c->stream, *a, DV, g, lse2, delta, (const bf16 *)dout,
               (const bf16 *)o, lse);
    else
        LAUNCH((flash_delta<float>), warps, dim3(BLOCK), 0, c->stream, *a, DV, g, lse2, delta, (const float *)dout,
               (const float *)o, lse);
    f.g = lies ? FlashRows{(const bf16 *)dout, a->Dv, a->Dv} : FlashRows{g, DV, DV};
    f.lse = lse2, f.delta = delta;
    Gradients d = {flash_out(x->dq, a->Dk, false), flash_out(x->dk, a->Dk, false), flash_out(x->dv, a->Dv, false),
                   dbias};
    FLASH_FOR(a, backward_of, c, &f, d);
}
