/* flash.cu: softmax attention over the rows of a pass on the matrix units: operands in bf16, sums, softmax and results
 * in f32. A block computes 64 entries of a lane, a warp 16, and walks through the keys with a running softmax. The
 * next tile of keys and values is copied while the current one is used.
 *
 * Estimated, not measured, for T rows of a document and h heads of D = 128 elements, each with its own lane: 2 h T^2 D
 * flops (causal, both products). A block of 64 entries reads every row of keys and values that it sees once, from the
 * second-level cache: 64 flops per byte. Its four warps each read it again from shared memory: 16 flops per byte,
 * which is the limit if shared memory gives 128 bytes a clock. Packing what is not bf16 moves 6 bytes per element.
 * Source: arXiv:2307.08691. */
#include "flash.h"

template <int DK, int DV, int BK> struct ForwardTile {
    bf16 q[FLASH_ROWS * DK], k[2][BK * DK], v[2][BK * DV];
    int kpos[2][BK];
    float bias[2][BK];
};
template <int DK, int DV, int BK>
__global__ void __launch_bounds__(FLASH_THREADS, 2) flash(Flash f, FlashOut o, float *lse, const float *before) {
    using Tile = ForwardTile<DK, DV, BK>;
    SMEM_DYN(Tile, m);
    static_assert(sizeof(Tile) <= FLASH_SMEM, "shared memory");
    const CudaAttend &a = f.a;
    int lane = (int)blockIdx.y, s = (int)blockIdx.z, group = a.heads / a.lanes, start = a.off[s], end = a.off[s + 1];
    int m0 = a.idx ? place_of(a.idx, a.n, start) : start, m1 = a.idx ? place_of(a.idx, a.n, end) : end;
    int e0 = (int)(gridDim.x - 1 - blockIdx.x) * FLASH_ROWS, n = (m1 - m0) * group - e0; /* the longest begin first */
    if (n <= 0) return;
    n = n < FLASH_ROWS ? n : FLASH_ROWS;
    int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    Span span = span_of(a, entry_of_row(a, start, m0 + e0 / group), entry_of_row(a, start, m0 + (e0 + n - 1) / group));
    int j = tile_at(span, start, start, BK);
    entries_tile<DK, FLASH_ROWS>(m->q, f.q, f, lane, m0, e0, n);
    keys_fetch<DK, DV, BK>(m->k[0], m->v[0], m->kpos[0], m->bias[0], f, lane, j, end - j);
    cp_async_commit();

    /* The warp's entries (it may have none), and the thread's two. */
    int w0 = 16 * warp, w1 = w0 + 15 < n ? w0 + 15 : n - 1;
    bool works = w0 < n;
    Entry from = entry_of_row(a, start, m0 + (e0 + (works ? w0 : 0)) / group),
          to = entry_of_row(a, start, m0 + (e0 + w1) / group), e[2];
    float top[2], sum[2], acc[DV / 8][4], scale = a.scale * LOG2_E;
    UNROLL for (int i = 0; i < 2; i++) {
        int x = w0 + g + 8 * i;
        size_t at = entry_place(a, lane, m0, e0 + x);
        e[i] = {0, -1, 0};
        top[i] = -INFINITY, sum[i] = 0;
        if (x < n) {
            e[i] = entry_of_row(a, start, m0 + (e0 + x) / group);
            if (before) top[i] = before[at] * LOG2_E;
        }
        bool fresh = top[i] == -INFINITY;
        if (!fresh && t == 0) sum[i] = 1;
        UNROLL for (int c = 0; c < DV / 8; c++) {
            float2 old = {0, 0};
            if (!fresh) old = out_load(o, at, 8 * c + 2 * t);
            acc[c][2 * i] = old.x, acc[c][2 * i + 1] = old.y;
        }
    }
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
        float x[BK / 8][4];
        product_of_rows<DK, BK / 8>(x, m->q, w0, m->k[stage]);
        bool all = all_seen(a, from, to, j, BK);
        UNROLL for (int c = 0; c < BK / 8; c++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int key = 8 * c + 2 * t + i % 2;
                x[c][i] =
                    all ? x[c][i] * scale
                        : flash_score(a, scale, e[i / 2], j + key, m->kpos[stage][key], m->bias[stage][key], x[c][i]);
            }
        }
        UNROLL for (int i = 0; i < 2; i++) {
            float old = top[i]; /* fmaxf ignores NaN; the sums below carry it */
            UNROLL for (int c = 0; c < BK / 8; c++) top[i] = fmaxf(top[i], fmaxf(x[c][2 * i], x[c][2 * i + 1]));
            top[i] = quad_max(top[i]);
            float fade = old == -INFINITY ? 0 : exp2f(old - top[i]);
            sum[i] *= fade;
            UNROLL for (int c = 0; c < BK / 8; c++) {
                UNROLL for (int k = 2 * i; k < 2 * i + 2; k++) {
                    x[c][k] = chance2(x[c][k], top[i]);
                    sum[i] += x[c][k];
                }
            }
            UNROLL for (int c = 0; c < DV / 8; c++) acc[c][2 * i] *= fade, acc[c][2 * i + 1] *= fade;
        }
        product_add<DV, BK / 8, DV / 8>(acc, x, m->v[stage], 0);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        float l = quad_sum(sum[i]), inv = l == 0 ? 0 : 1 / l; /* NaN passes on */
        bool there = w0 + g + 8 * i < n;
        size_t at = entry_place(a, lane, m0, e0 + w0 + g + 8 * i);
        row_out<DV / 8, true>(o, at, there, 0, acc, i, inv);
        if (there && t == 0) lse[at] = l == 0 ? -INFINITY : (float)((double)top[i] * LN_2 + log((double)l));
    }
}
template <int DK, int DV> static void flash_of(Cuda *c, const Flash *f, FlashOut o, float *lse, const float *before) {
    constexpr int BK = DK <= 128 ? 64 : 32; /* the largest that fits */
    constexpr size_t smem = sizeof(ForwardTile<DK, DV, BK>);
    const CudaAttend *a = &f->a;
    dim3 grid((unsigned)a->blocks, (unsigned)a->lanes, (unsigned)a->B);
    cuda_must(cudaFuncSetAttribute(flash<DK, DV, BK>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
              "shared memory of attention");
    LAUNCH((flash<DK, DV, BK>), grid, dim3(FLASH_THREADS), smem, c->stream, *f, o, lse, before);
}
static_assert((int)CUDA_ENTRIES == (int)FLASH_ROWS, "blocks of a pass");

extern "C" bool cuda_flash_takes(int Dk, int Dv) { return flash_width(Dk) && flash_width(Dv); }
struct Packing {
    int n;
    CudaPack p[3];
    bf16 *mem; /* scratch; nullptr: only count its bytes */
    size_t used;
};
static FlashRows place(Packing *t, const CudaRows &x, size_t rows, int D, int ld, int wide) {
    if (flash_lies(x, D, ld)) return {(const bf16 *)x.p, ld, D};
    bf16 *to = t->mem ? t->mem + t->used : nullptr;
    t->p[t->n++] = {(int)rows, 1, 1, D, ld, wide, x.is_bf16, x.p, to};
    t->used += rows * (size_t)wide;
    return {to, wide, wide};
}
static Flash place_all(Packing *t, const CudaAttend *a, const CudaFlash *x) {
    int DK = flash_width_k(a), DV = flash_width_v(a), group = a->heads / a->lanes, shift = -1;
    size_t rows = (size_t)a->N * (size_t)a->lanes;
    for (int k = 0; k < 16; k++)
        if (group == 1 << k) shift = k;
    FlashRows q = place(t, x->q, (size_t)a->n * (size_t)a->heads, a->Dk, a->Dk, DK),
              k = place(t, x->k, rows, a->Dk, a->Dk, DK), v = place(t, x->v, rows, a->Dv, a->ldv, DV);
    return {*a, q, k, v, {}, nullptr, nullptr, shift};
}
extern "C" size_t cuda_flash_bytes(const CudaAttend *a, const CudaFlash *x) {
    Packing t = {};
    place_all(&t, a, x);
    return t.used * sizeof(bf16);
}
Flash flash_pack(Cuda *c, const CudaAttend *a, const CudaFlash *x, void *mem, void **rest) {
    Packing t = {};
    t.mem = (bf16 *)mem;
    Flash f = place_all(&t, a, x);
    if (t.n) cuda_pack(c, t.n, t.p);
    if (rest) *rest = t.mem + t.used;
    return f;
}
extern "C" void cuda_flash(Cuda *c, const CudaAttend *a, const CudaFlash *x, void *mem, float *lse,
                           const float *before) {
    if (a->blocks <= 0) return;
    Flash f = flash_pack(c, a, x, mem, nullptr);
    FLASH_FOR(a, flash_of, c, &f, flash_out(x->o, a->Dv, true), lse, before);
}
