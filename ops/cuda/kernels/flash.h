/* flash.h: shared code of the attention kernels that use the matrix units: tiles of bf16 rows in shared memory, their
 * products by mma m16n8k16 with f32 sums, and which rows an entry may see. The formula and the running softmax are
 * attend.h's, in powers of 2: scores are multiplied by log2 e. The backward recomputes p = 2^(s - lse), with
 * dp = do v^T, delta = sum do o, ds = p (dp - delta). Source: arXiv:2307.08691.
 *
 * - A block of 4 warps computes 64 rows of a result, a warp 16. A thread holds rows g and g+8 as ptx.h says, g =
 *   lane/4, t = lane%4. Of an 8-column piece it holds x[0] x[1] of row g and x[2] x[3] of row g+8, columns 2t and
 *   2t+1. So the result of one product is the first operand of the next, in registers.
 * - Rows have D elements, a template parameter. bf16 operands are read in place; others are packed first (cuda_pack),
 *   with zeros up to D.
 * - The 16-byte chunks of a row are permuted, so that the 8 rows that ldmatrix reads at once lie in 8 different groups
 *   of 4 banks.
 * - No tile of a block is larger than 99 KB, which every device has from compute capability 8.0 on. */
#pragma once
#include "attend.h"

enum { FLASH_ROWS = 64, FLASH_THREADS = 128, FLASH_SMEM = 99 << 10 };
#define LOG2_E 1.44269504088896340736f
#define LN_2   0.69314718055994530942

/* Rows `ld` elements apart; each has D elements, a multiple of 8. */
struct FlashRows {
    const bf16 *p;
    int ld, D;
};
/* q, g: (wanted rows, heads); k, v: (rows, lanes); lse (in units of log 2) and delta: (lanes, entries). g, lse and
 * delta are for the backward. shift: log2 of a lane's number of heads; -1 if that is not a power of two. */
struct Flash {
    CudaAttend a;
    FlashRows q, k, v, g;
    const float *lse, *delta;
    int shift;
};
/* The destination of results: rows of D elements, added to the old values unless `over`. wide: a thread's two f32
 * elements of a piece, or the bf16 elements of two threads, are one access. */
struct FlashOut {
    void *p;
    int D;
    bool is_bf16, over, wide;
};

/* Offset of chunk c of row r in a tile of rows of D elements. */
template <int D> DEVICE int chunk_at(int r, int c) {
    static_assert(D % 32 == 0, "chunks of 32 bytes");
    return r * D + (c ^ (D % 64 ? r >> 1 & 3 : r & 7)) * 8;
}
/* Start copying n consecutive rows of D elements to a tile of R rows; the rest becomes zeros. */
template <int D, int R> DEVICE void tile_fetch(bf16 *tile, const bf16 *from, int n) {
    static_assert(R * D / 8 % FLASH_THREADS == 0, "threads share the chunks");
    ROLLED for (int k = 0; k < R * D / 8 / FLASH_THREADS; k++) { /* unrolled they cost registers */
        int i = (int)threadIdx.x + k * FLASH_THREADS, r = i / (D / 8), c = i % (D / 8);
        cp_async<16>(tile + chunk_at<D>(r, c), from + (r < n ? i * 8 : 0), r < n ? 16 : 0);
    }
}
/* Start copying n rows from row `row` on, `step` rows apart, to a tile of R rows; the rest becomes zeros. */
template <int D, int R> DEVICE void tile_fetch(bf16 *tile, const FlashRows &from, size_t row, int step, int n) {
    if constexpr (FLASH_THREADS % (D / 8) == 0) { /* a thread stays in its column */
        constexpr int rows = FLASH_THREADS / (D / 8);
        int r = (int)threadIdx.x / (D / 8), c = (int)threadIdx.x % (D / 8);
        const bf16 *at = from.p + (row + (size_t)(r * step)) * (size_t)from.ld + 8 * c;
        if (8 * c >= from.D) n = 0;
        ROLLED for (; r < R; r += rows) {
            cp_async<16>(tile + chunk_at<D>(r, c), r < n ? at : from.p, r < n ? 16 : 0);
            at += rows * step * from.ld;
        }
    } else {
        const bf16 *first = from.p + row * (size_t)from.ld;
        ROLLED for (int k = 0; k < R * D / 8 / FLASH_THREADS; k++) {
            int i = (int)threadIdx.x + k * FLASH_THREADS, r = i / (D / 8), c = i % (D / 8);
            bool there = r < n && 8 * c < from.D;
            cp_async<16>(tile + chunk_at<D>(r, c), there ? first + (r * step * from.ld + 8 * c) : from.p,
                         there ? 16 : 0);
        }
    }
}
/* The same for entries e.. of a lane, whose wanted rows begin at m0. */
template <int D, int R>
DEVICE void entries_tile(bf16 *tile, const FlashRows &from, const Flash &f, int lane, int m0, int e, int n) {
    int group = f.a.heads / f.a.lanes, rest = e % group; /* the first entry's head in its row */
    const bf16 *first =
        from.p + ((size_t)(m0 + e / group) * (size_t)f.a.heads + (size_t)(lane * group)) * (size_t)from.ld;
    ROLLED for (int k = 0; k < R * D / 8 / FLASH_THREADS; k++) {
        int i = (int)threadIdx.x + k * FLASH_THREADS, r = i / (D / 8), c = i % (D / 8), x = rest + r;
        int row = f.shift < 0 ? x / group : x >> f.shift;
        bool there = r < n && 8 * c < from.D;
        int at = (row * (f.a.heads - group) + x) * from.ld + 8 * c;
        cp_async<16>(tile + chunk_at<D>(r, c), there ? first + at : from.p, there ? 16 : 0);
    }
}
/* Rows r0..r0+15, elements 16c..16c+15 of a tile as A. */
template <int D> DEVICE void fragment_a(uint32_t a[4], const bf16 *tile, int r0, int c) {
    int l = (int)threadIdx.x % 32;
    ldmatrix<4>(a, tile + chunk_at<D>(r0 + l % 16, 2 * c + l / 16));
}
/* The transpose of the same as B: columns r0..r0+7 in b[0..1], r0+8..r0+15 in b[2..3]. */
template <int D> DEVICE void fragment_bt(uint32_t b[4], const bf16 *tile, int r0, int c) {
    int l = (int)threadIdx.x % 32;
    ldmatrix<4>(b, tile + chunk_at<D>(r0 + l % 8 + l / 16 * 8, 2 * c + l / 8 % 2));
}
/* Rows r0..r0+15 as rows of B, its columns chunk c in b[0..1], c+1 in b[2..3]. */
template <int D> DEVICE void fragment_b(uint32_t b[4], const bf16 *tile, int r0, int c) {
    int l = (int)threadIdx.x % 32;
    ldmatrix<4, true>(b, tile + chunk_at<D>(r0 + l % 16, c + l / 16));
}
/* x (16, 8 N) = rows r0..r0+15 of A times rows 0.. of B, over D elements. */
template <int D, int N> DEVICE void product_of_rows(float x[N][4], const bf16 *A, int r0, const bf16 *B) {
    static_assert(N % 2 == 0, "columns by sixteens");
    UNROLL for (int n = 0; n < N; n++) { UNROLL for (int i = 0; i < 4; i++) x[n][i] = 0; }
    BY_FOUR for (int c = 0; c < D / 16; c++) {
        uint32_t a[4], b[4];
        fragment_a<D>(a, A, r0, c);
        UNROLL for (int n = 0; n < N; n += 2) {
            fragment_bt<D>(b, B, 8 * n, c);
            mma_bf16(x[n], a, b, x[n]);
            mma_bf16(x[n + 1], a, b + 2, x[n + 1]);
        }
    }
}
/* y (16, 8 W) += (x (16, 8 N), rounded to bf16) times (rows 0.. of B, columns from chunk c0 on). */
template <int D, int N, int W> DEVICE void product_add(float y[W][4], const float x[N][4], const bf16 *B, int c0) {
    static_assert(N % 2 == 0 && W % 2 == 0, "columns by sixteens");
    UNROLL for (int k = 0; k < N / 2; k++) {
        uint32_t a[4] = {pack_bf16(x[2 * k][0], x[2 * k][1]), pack_bf16(x[2 * k][2], x[2 * k][3]),
                         pack_bf16(x[2 * k + 1][0], x[2 * k + 1][1]), pack_bf16(x[2 * k + 1][2], x[2 * k + 1][3])},
                 b[4];
        UNROLL for (int w = 0; w < W; w += 2) {
            fragment_b<D>(b, B, 16 * k, c0 + w);
            mma_bf16(y[w], a, b, y[w]);
            mma_bf16(y[w + 1], a, b + 2, y[w + 1]);
        }
    }
}
DEVICE float quad_sum(float v) {
    v += __shfl_xor_sync(FULL_WARP, v, 1);
    return v + __shfl_xor_sync(FULL_WARP, v, 2);
}
DEVICE float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, 1));
    return fmaxf(v, __shfl_xor_sync(FULL_WARP, v, 2));
}

/* Wanted row w of sequence s, whose rows begin at `start`, as an entry. */
DEVICE Entry entry_of_row(const CudaAttend &a, int start, int w) {
    int row = a.idx ? a.idx[w] : w, from = a.first[row];
    return {a.pos[row], row, from > start ? from : start};
}
/* Index of entry x of the wanted rows m0.. on a lane among (n, heads). */
DEVICE size_t entry_place(const CudaAttend &a, int lane, int m0, int x) {
    int group = a.heads / a.lanes;
    return (size_t)(m0 + x / group) * (size_t)a.heads + (size_t)(lane * group + x % group);
}
/* The rows that entries p to q, ascending, may see. Starts of documents and windows only grow from row to row. */
DEVICE Span span_of(const CudaAttend &a, Entry p, Entry q) {
    int low = p.row - a.window + 1, sinks = a.sinks - a.pos[q.from];
    return {a.window && low > p.from ? low : p.from, q.row + 1, p.from, q.from + (sinks > 0 ? sinks : 0)};
}
/* The first tile of n rows, counted from `start`, at j or later, that the span may meet; the span's end: none is
 * left. */
DEVICE int tile_at(Span p, int start, int j, int n) {
    int sinks = start + (p.sink0 - start) / n * n, low = start + (p.low - start) / n * n;
    if (j < p.sink1 && sinks < p.sink1) return j > sinks ? j : sinks;
    j = j > low ? j : low;
    return j < p.high ? j : p.high;
}
/* Rows p..q see all of the keys j..j+n-1, and no bias changes a score. */
DEVICE bool all_seen(const CudaAttend &a, Entry p, Entry q, int j, int n) {
    return j >= q.from && j + n - 1 <= p.row && (!a.window || q.row - j < a.window) && !a.bias;
}
/* Score, in units of log 2, of a product s; -inf if key j, at position kpos with its bias, is hidden. */
DEVICE float flash_score(const CudaAttend &a, float scale, Entry e, int j, int kpos, float bias, float s) {
    bool sees = j >= e.from && j <= e.row && (!a.window || e.pos - kpos < a.window || kpos < a.sinks);
    s *= scale;
    if (kpos < e.pos - a.delay) s += bias;
    return sees ? s : -INFINITY;
}
/* 2^(s - top); 0 for a hidden key. */
DEVICE float chance2(float s, float top) { return s == -INFINITY ? 0 : exp2f(s - top); }

/* Store elements c and c+1 of a row of D; `pairs`: as one access. */
DEVICE void pair_store(float *row, int c, int D, bool pairs, float x, float y) {
    if (pairs && c < D)
        store_vec(row + c, float2{x, y});
    else {
        if (c < D) row[c] = x;
        if (c + 1 < D) row[c + 1] = y;
    }
}
DEVICE float2 pair_load(const float *row, int c, int D, bool pairs) {
    if (pairs && c < D) return load_vec<float2>(row + c);
    return {c < D ? row[c] : 0, c + 1 < D ? row[c + 1] : 0};
}
static inline bool pairs_of(const float *p, int D) { return D % 2 == 0 && (uintptr_t)p % sizeof(float2) == 0; }
static inline FlashOut flash_out(const CudaRows &x, int D, bool over) {
    return {x.p, D, x.is_bf16, over || x.overwrite, D % (x.is_bf16 ? 4 : 2) == 0 && (uintptr_t)x.p % 8 == 0};
}
DEVICE float2 out_load(const FlashOut &to, size_t row, int c) {
    if (!to.is_bf16) return pair_load((const float *)to.p + row * (size_t)to.D, c, to.D, to.wide);
    const bf16 *at = (const bf16 *)to.p + row * (size_t)to.D;
    return {c < to.D ? to_float(at[c]) : 0, c + 1 < to.D ? to_float(at[c + 1]) : 0};
}
/* Store columns col.. of row `row` from a thread's acc[..][2 i], times scale. All threads of a warp must call it, even
 * for rows that do not exist: with two bf16 pieces, neighbouring threads exchange halves, so that each holds four
 * elements of one. OVER: old values are never added. */
template <int W, bool OVER = false>
DEVICE void row_out(const FlashOut &to, size_t row, bool there, int col, const float (&acc)[W][4], int i, float scale) {
    int t = (int)threadIdx.x % 4;
    static_assert(W % 2 == 0, "pieces by two");
    if (!to.is_bf16) {
        float *at = (float *)to.p + row * (size_t)to.D;
        UNROLL for (int c = 0; c < W; c++) {
            int k = col + 8 * c + 2 * t;
            float2 old = {0, 0};
            if (!OVER && there && !to.over) old = out_load(to, row, k);
            if (there)
                pair_store(at, k, to.D, to.wide, old.x + acc[c][2 * i] * scale, old.y + acc[c][2 * i + 1] * scale);
        }
        return;
    }
    bf16 *at = (bf16 *)to.p + row * (size_t)to.D;
    UNROLL for (int c = 0; c < W; c += 2) {
        uint32_t own[2];
        UNROLL for (int h = 0; h < 2; h++) {
            float2 old = {0, 0};
            if (!OVER && there && !to.over) old = out_load(to, row, col + 8 * (c + h) + 2 * t);
            own[h] = pack_bf16(old.x + acc[c + h][2 * i] * scale, old.y + acc[c + h][2 * i + 1] * scale);
        }
        if (to.wide) {
            uint32_t other = __shfl_xor_sync(FULL_WARP, t % 2 ? own[0] : own[1], 1);
            int k = col + 8 * (c + t % 2) + 2 * (t & 2);
            if (!OVER && !to.over) __syncwarp(); /* the neighbour has read what it adds to */
            if (there && k < to.D) store_vec(at + k, t % 2 ? uint2{other, own[1]} : uint2{own[0], other});
        } else if (there) {
            UNROLL for (int h = 0; h < 2; h++) {
                int k = col + 8 * (c + h) + 2 * t;
                if (k < to.D) at[k] = bf16{(uint16_t)own[h]};
                if (k + 1 < to.D) at[k + 1] = bf16{(uint16_t)(own[h] >> 16)};
            }
        }
    }
}

/* Widths that kernels exist for; narrower rows are padded. 0: too wide. */
static inline int flash_width(int D) {
    const int widths[] = {32, 64, 96, 128, 192, 256};
    for (int w : widths)
        if (D <= w) return w;
    return 0;
}
/* Keys and values get the same width, except where keys carry a rotated part of half the rest, as MLA's do. */
static inline bool flash_is_mla(int Dk, int Dv) { return flash_width(Dk) == 192 && flash_width(Dv) <= 128; }
static inline int flash_width_k(const CudaAttend *a) {
    int k = flash_width(a->Dk), v = flash_width(a->Dv);
    return flash_is_mla(a->Dk, a->Dv) || k > v ? k : v;
}
static inline int flash_width_v(const CudaAttend *a) { return flash_is_mla(a->Dk, a->Dv) ? 128 : flash_width_k(a); }
/* The rows can be read in place. */
static inline bool flash_lies(const CudaRows &x, int D, int ld) { return x.is_bf16 && D % 8 == 0 && ld % 8 == 0; }
/* Pack q, k and v to `mem` where necessary; the next free byte is at *rest. */
Flash flash_pack(Cuda *, const CudaAttend *, const CudaFlash *, void *mem, void **rest);
/* Fetch keys j..j+n-1 of a lane to one stage of a tile. */
template <int DK, int DV, int BK>
DEVICE void keys_fetch(bf16 *k, bf16 *v, int *kpos, float *bias, const Flash &f, int lane, int j, int n) {
    size_t row = (size_t)j * (size_t)f.a.lanes + (size_t)lane;
    tile_fetch<DK, BK>(k, f.k, row, f.a.lanes, n);
    tile_fetch<DV, BK>(v, f.v, row, f.a.lanes, n);
    int t = (int)threadIdx.x;
    if (t >= BK) return;
    kpos[t] = t < n ? f.a.pos[j + t] : 0;
    bias[t] = t < n && f.a.bias ? f.a.bias[(size_t)(j + t) * (size_t)f.a.lanes + (size_t)lane] * LOG2_E : 0;
}

/* Calls f<Dk, Dv>(...) for the widths of p. */
#define FLASH_FOR(p, f, ...)                             \
    do {                                                 \
        switch (flash_width_k(p) + flash_width_v(p)) {   \
        case 2 * 32: f<32, 32>(__VA_ARGS__); break;      \
        case 2 * 64: f<64, 64>(__VA_ARGS__); break;      \
        case 2 * 96: f<96, 96>(__VA_ARGS__); break;      \
        case 2 * 128: f<128, 128>(__VA_ARGS__); break;   \
        case 192 + 128: f<192, 128>(__VA_ARGS__); break; \
        case 2 * 192: f<192, 192>(__VA_ARGS__); break;   \
        default: f<256, 256>(__VA_ARGS__);               \
        }                                                \
    } while (0)
