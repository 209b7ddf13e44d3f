/* delta.h: shared code of the chunked kernels of the recurrence (ops/recur.h; formulas in ops/cpu/chunk.c): chunk
 * layout, the data that one kernel leaves for the next, products of tiles. delta.cu, delta_backward.cu and
 * delta_keys_backward.cu include it. Tiles and fragments are those of flash.h.
 *
 * A chunk has up to 64 rows and begins where a document does. Its rows are processed in blocks of 16. Between blocks,
 * a decay splits at the first row of the later block into one factor for each side; inside a block it is multiplied
 * up. So every decay is a product of factors of at most 1, in f32. With L of a chunk, W = (I + L Diag(beta))^-1 k c
 * and R = (I + L Diag(beta))^-1 v, neither of which depends on a state:
 *   r = R - W S,  u = beta r,  o = q c S + P u,  S' = Diag(c_last) S + (k e_last)^T u      without delta u = v
 * Sources: arXiv:2510.26692 section 3 and fla-org/flash-linear-attention fla/ops/kda for the split into kernels. */
#pragma once
#include "flash.h"

enum { DELTA_ROWS = CUDA_RECUR_CHUNK, DELTA_SUB = 16, DELTA_BLOCKS = DELTA_ROWS / DELTA_SUB, DELTA_COLUMNS = 32 };
static_assert((int)DELTA_ROWS == (int)FLASH_ROWS && FLASH_THREADS == 128, "four warps of 16 rows");

/* Rows of bf16 values: row t of head h begins at p + h head + t ld and has D elements, a multiple of 8. They are
 * either operands as below, with VW elements, or a tensor of the op itself, which then needs no copy. */
struct DeltaRows {
    bf16 *p;
    size_t head, ld;
    int D;
};
DEVICE bf16 *row_at(const DeltaRows &x, int h, int t) { return x.p + (size_t)h * x.head + (size_t)t * x.ld; }
/* Operands. The rows of a head follow each other: row t of head h is h N + t. Elements past K and V are zero. */
struct Delta {
    CudaRecur a;
    int KW, VW;  /* K and V, rounded up to a kernel's width */
    bf16 *q, *k; /* (HV,N,KW) scale q_i c_i; k_i e_{last,i} */
    bf16 *w;     /* (HV,N,KW) W */
    DeltaRows u; /* without delta this is v itself */
    bf16 *p;     /* (HV,N,64) P, zero above the diagonal */
    float *r;    /* (HV,N,VW) R */
    /* (keep + B,HV,KW) c_last of chunks with a later state: at t / 64, or at the end for a sequence's last chunk */
    float *decay;
    float *keep; /* as the op's */
    /* (.,HV,K,V) the state before the rows of sequences that continue a history: by index of the sequence in the pass,
     * in the backward by Batch.seq. */
    float *start;
    bool by_seq;
    /* For the backward; NULL in the forward. */
    bf16 *l, *t;    /* (HV,N,64) L and (I + L Diag(beta))^-1 of the rows' chunks */
    bf16 *rest;     /* the part of t that rounding lost */
    DeltaRows o, v; /* do, in place; dv, where it goes if it is to be overwritten */
    float *du;      /* (HV,N,VW) */
    float *dp, *dl; /* (HV,N,64), zero above the diagonal */
    float *dkeep;   /* as keep: gradients of those states */
};
DEVICE size_t delta_row(const Delta &x, int h, int t) { return (size_t)h * (size_t)x.a.N + (size_t)t; }
static __host__ __device__ inline int delta_kept(const CudaRecur &a) {
    int n = (a.N - 1) / DELTA_ROWS;
    return n > 1 ? n : 1;
}
/* Offset of the state of head h before the chunk that starts at row t; not for the first chunk of a document in the
 * pass. */
DEVICE size_t kept_at(const Delta &x, int t, int h) {
    return ((size_t)(t / DELTA_ROWS - 1) * (size_t)x.a.HV + (size_t)h) * (size_t)x.a.K * (size_t)x.a.V;
}

/* The state of head h before the rows of sequence s, which continues a history. */
DEVICE float *start_of(const Delta &x, int s, int h) {
    return x.start + ((size_t)(x.by_seq ? x.a.seq[s] : s) * (size_t)x.a.HV + (size_t)h) * (size_t)x.a.K * (size_t)x.a.V;
}

/* ---- chunks ---- */
struct Chunk {
    int t, n;   /* rows t..t+n-1 */
    bool head;  /* the first of its document in this pass */
    bool fresh; /* the state before it is zero */
    bool more;  /* the document continues after it */
    bool last;  /* the last of its sequence */
};
/* The chunk that starts at row t of the sequence with rows begin..end-1. Must be called by whole warps. */
DEVICE Chunk chunk_from(const CudaRecur &a, int begin, int end, int t) {
    int l = (int)threadIdx.x % 32, i = t + 1 + l, j = i + 32, first = a.first[t];
    unsigned low = __ballot_sync(FULL_WARP, i < end && a.first[i] == i),
             high = __ballot_sync(FULL_WARP, j < end && a.first[j] == j);
    int n = low ? 1 + lowest_bit(low) : high ? 33 + lowest_bit(high) : DELTA_ROWS;
    Chunk c = {t, n < end - t ? n : end - t, first == t || (first < 0 && t == begin), first == t, false, false};
    c.last = t + c.n == end;
    c.more = !low && !high && !c.last;
    return c;
}
/* The row at which the chunk of row i starts. */
DEVICE int chunk_start(const CudaRecur &a, int begin, int i) {
    int first = a.first[i], document = first < 0 ? begin : first;
    return i - (i - document) % DELTA_ROWS;
}
/* Bit i: a chunk starts at row i0 + i of a sequence. Must be called by whole warps. */
DEVICE void chunks_in(uint32_t bits[2], const CudaRecur &a, int begin, int end, int i0) {
    UNROLL for (int k = 0; k < 2; k++) {
        int i = i0 + 32 * k + (int)threadIdx.x % 32, first = i < end ? a.first[i] : 0;
        bits[k] = __ballot_sync(FULL_WARP, i < end && (i - (first < 0 ? begin : first)) % DELTA_ROWS == 0);
    }
}
/* Remove the lowest chunk from the bits; returns its row in the window, or -1. */
DEVICE int chunk_next(uint32_t bits[2]) {
    int k = bits[0] ? 0 : 1;
    if (!bits[0] && !bits[1]) return -1;
    int i = lowest_bit(k ? bits[1] : bits[0]);
    if (k)
        bits[1] &= bits[1] - 1;
    else
        bits[0] &= bits[0] - 1;
    return 32 * k + i;
}
/* Offset of c_last of a chunk that has a later state. */
DEVICE size_t decay_at(const Delta &x, const Chunk &c, int s, int h) {
    int number = c.last ? delta_kept(x.a) + s : c.t / DELTA_ROWS;
    return ((size_t)number * (size_t)x.a.HV + (size_t)h) * (size_t)x.KW;
}

/* ---- tiles ---- */
/* Start copying columns col.. of the rows t..t+n-1 of head h to a tile of R rows; the rest becomes zeros. */
template <int D, int R> DEVICE void rows_fetch(bf16 *tile, const DeltaRows &from, int h, int t, int col, int n) {
    static_assert(R * D / 8 % FLASH_THREADS == 0, "threads share the chunks");
    const bf16 *first = row_at(from, h, t) + col;
    ROLLED for (int k = 0; k < R * D / 8 / FLASH_THREADS; k++) {
        int i = (int)threadIdx.x + k * FLASH_THREADS, r = i / (D / 8), c = i % (D / 8);
        bool there = r < n && col + 8 * c < from.D;
        cp_async<16>(tile + chunk_at<D>(r, c), there ? first + (size_t)r * from.ld + (size_t)c * 8 : from.p,
                     there ? 16 : 0);
    }
}
/* Offset of element c of row r in a tile. */
template <int D> DEVICE int number_at(int r, int c) { return chunk_at<D>(r, c / 8) + c % 8; }
/* The parts of both values that pack_bf16 lost. */
DEVICE uint32_t pack_rest(float low, float high) {
    return pack_bf16(low - to_float(to_bf16(low)), high - to_float(to_bf16(high)));
}
/* Round n rows of `cols` elements, `ld` elements apart, to a tile of R rows; the lost parts go to `rest`. */
template <int D, int R, class T>
DEVICE void rows_round(bf16 *tile, const T *from, size_t ld, int n, int cols, bf16 *rest = nullptr) {
    BY_FOUR for (int i = (int)threadIdx.x; i < R * D / 2; i += FLASH_THREADS) {
        int r = i / (D / 2), c = i % (D / 2) * 2;
        const T *x = from + (size_t)r * ld + (size_t)c;
        float low = r < n && c < cols ? number(x[0]) : 0, high = r < n && c + 1 < cols ? number(x[1]) : 0;
        *(uint32_t *)(tile + number_at<D>(r, c)) = pack_bf16(low, high);
        if (rest) *(uint32_t *)(rest + number_at<D>(r, c)) = pack_rest(low, high);
    }
}
/* Columns 8c..8c+15 of the rows r0..r0+15 of a tile, as rows of A. */
template <int D> DEVICE void fragment_turned(uint32_t a[4], const bf16 *tile, int r0, int c) {
    int l = (int)threadIdx.x % 32;
    ldmatrix<4, true>(a, tile + chunk_at<D>(r0 + l % 8 + l / 16 * 8, c + l / 8 % 2));
}
/* y (16, 8 W) += (rows r0.. of A, the first 16 n elements) times (rows of B, columns from chunk c0 on). */
template <int DA, int DB, int W>
DEVICE void product_tiles(float y[W][4], const bf16 *A, int r0, int n, const bf16 *B, int c0) {
    ROLLED for (int k = 0; k < n; k++) {
        uint32_t a[4], b[4];
        fragment_a<DA>(a, A, r0, k);
        UNROLL for (int w = 0; w < W; w += 2) {
            fragment_b<DB>(b, B, 16 * k, c0 + w);
            mma_bf16(y[w], a, b, y[w]);
            mma_bf16(y[w + 1], a, b + 2, y[w + 1]);
        }
    }
}
/* The same with the columns m0.. of A as rows, over its rows 16 k0 to 16 k1 - 1. */
template <int DA, int DB, int W>
DEVICE void product_turned(float y[W][4], const bf16 *A, int m0, int k0, int k1, const bf16 *B, int c0) {
    ROLLED for (int k = k0; k < k1; k++) {
        uint32_t a[4], b[4];
        fragment_turned<DA>(a, A, 16 * k, m0 / 8);
        UNROLL for (int w = 0; w < W; w += 2) {
            fragment_b<DB>(b, B, 16 * k, c0 + w);
            mma_bf16(y[w], a, b, y[w]);
            mma_bf16(y[w + 1], a, b + 2, y[w + 1]);
        }
    }
}
template <int W> DEVICE void zeros(float y[W][4]) {
    UNROLL for (int w = 0; w < W; w++) { UNROLL for (int i = 0; i < 4; i++) y[w][i] = 0; }
}
/* Store the rows below n of a warp's product as bf16. */
template <int W> DEVICE void rows_store(bf16 *to, int ld, int n, const float y[W][4]) {
    int l = (int)threadIdx.x % 32, r0 = (int)threadIdx.x / 32 * 16 + l / 4, c0 = l % 4 * 2;
    UNROLL for (int i = 0; i < 2; i++) {
        if (r0 + 8 * i >= n) continue;
        bf16 *row = to + (size_t)(r0 + 8 * i) * (size_t)ld + c0;
        UNROLL for (int w = 0; w < W; w++) * (uint32_t *)(row + 8 * w) = pack_bf16(y[w][2 * i], y[w][2 * i + 1]);
    }
}

/* y (16, 8 N) += (rows r0..r0+15 of A, D elements) times the first 16 `most` rows of B. */
template <int D, int N> DEVICE void scores_add(float y[N][4], const bf16 *A, int r0, const bf16 *B, int most) {
    ROLLED for (int k = 0; k < D / 16; k++) {
        uint32_t a[4], b[4];
        fragment_a<D>(a, A, r0, k);
        UNROLL for (int n = 0; n < N; n += 2) {
            if (n >= 2 * most) continue;
            fragment_bt<D>(b, B, 8 * n, k);
            mma_bf16(y[n], a, b, y[n]);
            mma_bf16(y[n + 1], a, b + 2, y[n + 1]);
        }
    }
}
/* Load the thread's elements of a state (K,V) from memory, and store them: a warp has MT tiles of 16 channels and 32
 * columns. */
template <int MT>
DEVICE void state_get(float S[MT][4][4], const CudaRecur &a, const float *from, int row, int col, bool pairs) {
    UNROLL for (int k = 0; k < MT; k++) {
        UNROLL for (int i = 0; i < 2; i++) {
            int r = row + 16 * k + 8 * i;
            UNROLL for (int n = 0; n < 4; n++) {
                float2 v = {0, 0};
                if (from && r < a.K) v = pair_load(from + (size_t)r * (size_t)a.V, col + 8 * n, a.V, pairs);
                S[k][n][2 * i] = v.x, S[k][n][2 * i + 1] = v.y;
            }
        }
    }
}
template <int MT>
DEVICE void state_put(const float S[MT][4][4], const CudaRecur &a, float *to, int row, int col, bool pairs) {
    UNROLL for (int k = 0; k < MT; k++) {
        UNROLL for (int i = 0; i < 2; i++) {
            int r = row + 16 * k + 8 * i;
            UNROLL for (int n = 0; n < 4; n++) if (r < a.K)
                pair_store(to + (size_t)r * (size_t)a.V, col + 8 * n, a.V, pairs, S[k][n][2 * i], S[k][n][2 * i + 1]);
        }
    }
}
/* Round the state to 32 columns of a bf16 tile. */
template <int MT> DEVICE void state_round(bf16 *tile, const float S[MT][4][4], int row, int col) {
    UNROLL for (int k = 0; k < MT; k++) {
        UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int n = 0; n < 4; n++) *
                (uint32_t *)(tile + number_at<DELTA_COLUMNS>(row + 16 * k + 8 * i, 8 * n + col)) =
                pack_bf16(S[k][n][2 * i], S[k][n][2 * i + 1]);
        }
    }
}

/* Cuts a region into pieces; with base NULL it only counts their bytes. */
struct DeltaRoom {
    char *base;
    size_t at;
    template <class T> T *take(size_t n) {
        T *p = (T *)(base + at);
        at += (n * sizeof(T) + 255) / 256 * 256;
        return p;
    }
};
/* delta_lies: rows of V elements of the op's own tensors are read in place. delta_tensor: a tensor (N,HV,V) as such
 * rows. */
static inline bool delta_lies(const CudaRecur *a) { return a->is_bf16 && a->V % 8 == 0; }
static inline DeltaRows delta_tensor(const CudaRecur *a, const void *x) {
    return {(bf16 *)x, (size_t)a->V, (size_t)a->HV * (size_t)a->V, a->V};
}
static inline DeltaRows delta_operand(const CudaRecur *a, DeltaRoom *m, int VW) {
    size_t head = (size_t)a->N * (size_t)VW;
    return {m->take<bf16>((size_t)a->HV * head), head, (size_t)VW, VW};
}
/* In delta.cu. delta_place assigns the operands' places; `keep`: also those of states between chunks and at starts.
 * delta_prepare_all computes the operands of all chunks. */
void delta_place(Delta *, DeltaRoom *, const CudaRecur *, bool keep);
void delta_prepare_all(Cuda *, const Delta *);
static inline unsigned delta_windows(const CudaRecur *a) {
    return (unsigned)((a->longest + DELTA_ROWS - 1) / DELTA_ROWS);
}
template <class Kernel> static void delta_allow(Kernel *kernel, size_t bytes) {
    cuda_must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
              "shared memory of a recurrence");
}
static inline bool delta_pairs(const float *p, int V) { return V % 2 == 0 && (!p || pairs_of(p, V)); }
