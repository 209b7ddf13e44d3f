/* attend_pairs.c: attention with bf16 operands and f32 sums: its operands as pairs (pairs.h), and their small product.
 * The operands are those of tile_mm's products, rounded; everything between the products is unchanged.
 *
 * For rows (n,D), "turned" is (D/2,KB), pairs along D: the right operand of a product over D. "below" is (n/2,D),
 * pairs of rows: the right operand of a product over the rows. Rows past n count as 0. */
#include "pairs.h"

/* True if rows of D elements are used as pairs: whole vectors must fit. */
static bool by_pairs(const Run *r, AttnSpec spec, int Dk, int Dv) {
    return r->dev->pairs && Dk % W == 0 && Dv % W == 0 && !(spec.cap > 0);
}

/* Rows, ld elements apart: `real`s, or BF16 in place. */
typedef struct {
    const real *wide; /* NULL: BF16 */
    const uint16_t *stored;
    size_t ld;
} PairRows;
static PairRows rows_wide(const real *x, size_t ld) { return (PairRows){.wide = x, .ld = ld}; }
static PairRows rows_stored(const uint16_t *x, size_t ld) { return (PairRows){.stored = x, .ld = ld}; }

INLINE void below(Pair *to, PairRows x, int n, int D, bool wide) {
    for (int j = 0; j < n; j += 2, to += D)
        for (int c = 0; c < D; c += W) {
            size_t even = (size_t)j * x.ld + (size_t)c, odd = even + x.ld;
            if (wide)
                pack_columns(to + c, x.wide + even, j + 1 < n ? x.wide + odd : NULL, W);
            else
                pack_columns_bf16(to + c, x.stored + even, j + 1 < n ? x.stored + odd : NULL, W);
        }
}
static void pairs_below(Pair *to, PairRows x, int n, int D) {
    if (x.wide)
        below(to, x, n, D, true);
    else
        below(to, x, n, D, false);
}
static void pairs_turned(Pair *to, PairRows x, int n, int D) {
    for (int k = 0; k < D / 2; k += W)
        for (int j = 0; j < KB; j += W) {
            Pair some[W][W], out[W * W];
            int wide = imin(W, D / 2 - k);
            if (n - j < W || wide < W) memset(some, 0, sizeof some);
            for (int i = 0; i < imin(W, n - j); i++) {
                size_t at = (size_t)(j + i) * x.ld + (size_t)(2 * k);
                if (x.wide)
                    pack_row(some[i], x.wide + at, wide, false);
                else
                    pack_row_bf16(some[i], x.stored + at, wide, false);
            }
            if (wide == W) {
                turn(to + k * KB + j, KB, some);
                continue;
            }
            turn(out, W, some);
            for (int p = 0; p < wide; p++) memcpy(to + (k + p) * KB + j, out + p * W, W * sizeof *to);
        }
}
/* n consecutive rows of D elements as pairs along D. */
static void pairs_along(Pair *to, const real *rows, int n, int D) {
    for (int i = 0; i < n; i++) pack_row(to + i * D / 2, rows + i * D, D / 2, false);
}

/* C rows r < rows, 16 vecs columns: A element (r,k) at A[r ars + k aks]. */
#ifdef __AVX512BF16__
enum { PAIR_ROWS = 6, PAIR_VECS = 4 }; /* 6 x 4 sums, 4 of B and a broadcast in 32 registers */
INLINE void pairs_kernel(int rows, int vecs, float *C, size_t ldc, const Pair *A, size_t ars, size_t aks, const Pair *B,
                         size_t ldb, int K, bool add) {
    __m512 c[PAIR_ROWS][PAIR_VECS];
    #pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
    #pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            c[r][v] = add ? _mm512_loadu_ps(C + (size_t)r * ldc + v * W) : _mm512_setzero_ps();
    for (int k = 0; k < K; k++) {
        __m512bh b[PAIR_VECS];
    #pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) b[v] = (__m512bh)_mm512_loadu_si512(B + (size_t)k * ldb + v * W);
    #pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512bh a = (__m512bh)_mm512_set1_epi32((int)A[(size_t)r * ars + (size_t)k * aks]);
    #pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) c[r][v] = _mm512_dpbf16_ps(c[r][v], a, b[v]);
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
    #pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) _mm512_storeu_ps(C + (size_t)r * ldc + v * W, c[r][v]);
}
#else
enum { PAIR_ROWS = 1, PAIR_VECS = 4 };
INLINE real pair_low(Pair p) { return (real)bf16_to((uint16_t)p); }
INLINE real pair_high(Pair p) { return (real)bf16_to((uint16_t)(p >> 16)); }
INLINE void pairs_kernel(int rows, int vecs, real *C, size_t ldc, const Pair *A, size_t ars, size_t aks, const Pair *B,
                         size_t ldb, int K, bool add) {
    (void)rows, (void)ldc, (void)ars;
    real c[PAIR_VECS * W];
    for (int v = 0; v < vecs * W; v++) c[v] = add ? C[v] : 0;
    for (int k = 0; k < K; k++) {
        Pair a = A[(size_t)k * aks];
        for (int v = 0; v < vecs * W; v++) {
            Pair b = B[(size_t)k * ldb + (size_t)v];
            c[v] += pair_low(a) * pair_low(b) + pair_high(a) * pair_high(b);
        }
    }
    memcpy(C, c, (size_t)(vecs * W) * sizeof *C);
}
#endif
/* The kernel needs its numbers of rows and vectors at compile time. */
INLINE void pairs_rows(int vecs, real *C, size_t ldc, const Pair *A, size_t ars, size_t aks, const Pair *B, size_t ldb,
                       int M, int K, bool add) {
    for (int i = 0; i < M; i += PAIR_ROWS, C += PAIR_ROWS * ldc, A += PAIR_ROWS * ars) switch (imin(PAIR_ROWS, M - i)) {
        case 1: pairs_kernel(1, vecs, C, ldc, A, ars, aks, B, ldb, K, add); break;
#ifdef __AVX512BF16__
        case 2: pairs_kernel(2, vecs, C, ldc, A, ars, aks, B, ldb, K, add); break;
        case 3: pairs_kernel(3, vecs, C, ldc, A, ars, aks, B, ldb, K, add); break;
        case 4: pairs_kernel(4, vecs, C, ldc, A, ars, aks, B, ldb, K, add); break;
        case 5: pairs_kernel(5, vecs, C, ldc, A, ars, aks, B, ldb, K, add); break;
#endif
        default: pairs_kernel(PAIR_ROWS, vecs, C, ldc, A, ars, aks, B, ldb, K, add);
        }
}
/* As PairProduct. */
static void pairs_vectors(real *C, size_t ldc, const Pair *A, size_t ars, size_t aks, const Pair *B, size_t ldb, int M,
                          int K, int N, bool add) {
    for (int c = 0; c < N; c += PAIR_VECS * W) switch (imin(PAIR_VECS, (N - c) / W)) {
        case 1: pairs_rows(1, C + c, ldc, A, ars, aks, B + c, ldb, M, K, add); break;
        case 2: pairs_rows(2, C + c, ldc, A, ars, aks, B + c, ldb, M, K, add); break;
        case 3: pairs_rows(3, C + c, ldc, A, ars, aks, B + c, ldb, M, K, add); break;
        default: pairs_rows(PAIR_VECS, C + c, ldc, A, ars, aks, B + c, ldb, M, K, add);
        }
}
static inline void pairs_mm(PairProduct *tiles, real *C, size_t ldc, const Pair *A, size_t ars, size_t aks,
                            const Pair *B, size_t ldb, int M, int K, int N, bool add) {
    if (tiles)
        tiles(C, ldc, A, ars, aks, B, ldb, M, K, N, add);
    else
        pairs_vectors(C, ldc, A, ars, aks, B, ldb, M, K, N, add);
}
