/* gemm_tiles.c: packing of A, and the kernel of gemm_bf16.c for processors with tiles (AMX). Only gemm_bf16.c includes
 * it.
 *
 * All tiles are whole: M, N and K are padded with zeros, which change no sum. An element of C starts from its old
 * value, or 0, and TILE_DOT adds step after step of 32 k. So K alone decides the order, because storing C between the
 * steps rounds nothing. Exchanging the operands changes nothing either, because products commute. So few rows of C are
 * computed as columns of C^T = B^T A^T. B^T, in bf16 with k along its rows, is then a left operand in place, and needs
 * no packing or transposing. */
#include "tiles.h"

#ifndef __AVX512BF16__
    #error "tiles are for processors that also have AVX-512-BF16"
#endif

enum { TILE = W * W /* pairs */ };
_Static_assert((int)MR == (int)W && (int)WHOLE == (int)W && (int)KP % W == 0 && ROWS % (2 * (int)MR) == 0 &&
                   (int)GEMM_BF16_FEW == 4 * W,
               "whole tiles");

/* ---- A ----------------------------------------------------------------------------------------------------------- */

/* Tiles of 16 rows (with few rows: 16 columns of A^T), which follow each other along k. */
static Lie lie(GemmShape s) { return (Lie){(size_t)pairs_in(s) * MR, W, 1}; }
/* Always false: tiles are whole, and lie one after the other. */
static bool taken_in_place(GemmShape s, const void *A, Lie *a) {
    (void)s, (void)A, (void)a;
    return false;
}
/* Pairs k0..k0+W-1 of all of A, k down its columns. */
static void pack_a_columns(Pair *to, Lie a, GemmShape s, const void *A, int k0, int k1) {
    for (int i = 0; i < s.M; i += MR) {
        Pair rows[W][W] __attribute__((aligned(64)));
        for (int k = k0; k < k1; k++) {
            if (2 * k >= s.K) {
                memset(rows[k - k0], 0, sizeof rows[0]);
                continue;
            }
            two_rows(rows[k - k0], A, s.lda, s.a_bf16, s.K, k, i, imin(W, s.M - i));
        }
        turn(to + (size_t)(i / MR) * a.block + (size_t)k0 * W, W, rows);
    }
}
/* Pack rows row..row+MR-1 of A, k along the rows; rows past the last are 0. */
static void pack_a_block(Pair *to, Lie a, GemmShape s, const void *A, int row) {
    bool turned = s.tb && s.M <= GEMM_BF16_FEW;
    GemmShape x = {.N = s.M, .K = s.K, .ldb = s.lda, .b_bf16 = s.a_bf16};
    int n = imin(W, s.M - row);
    for (int k = 0; k < pairs_in(s); k += W, to += TILE) {
        if (turned) {
            pack_block(to, W, x, A, row, n, k, W, 0);
            continue;
        }
        __m512i r[W];
        load_rows(r, x, A, row, n, k, 0);
        for (int i = 0; i < W; i++) _mm512_storeu_si512(to + (size_t)i * a.row, r[i]);
    }
}

/* ---- the sums ---------------------------------------------------------------------------------------------------- */

/* A left operand of ni tiles of rows, or a right one of nj tiles of columns. `apart`: bytes between a tile's rows;
 * `over`: to the next 16 rows or columns; `on`: to the next 16 pairs of k. */
typedef struct {
    const char *at;
    size_t apart, over, on;
} Side;

/* The position of the sums of tile c, one of ni x nj: with two tiles of rows at (c % 2, c / 2), with one in columns 0,
 * 2, 1 and 3. */
static inline int sum_i(int c, int ni) { return ni > 1 ? c % 2 : 0; }
static inline int sum_j(int c, int ni) { return c / 2 + (ni == 1 ? 2 * (c % 2) : 0); }
static inline bool sum_there(int c, int ni, int nj) { return sum_i(c, ni) < ni && sum_j(c, ni) < nj; }
#define EACH_SUM(X)                     \
    do {                                \
        if (sum_there(0, ni, nj)) X(0); \
        if (sum_there(1, ni, nj)) X(1); \
        if (sum_there(2, ni, nj)) X(2); \
        if (sum_there(3, ni, nj)) X(3); \
    } while (0)

/* Compute n steps. Meanwhile prefetch the left operand's rows `ahead` bytes further; 0: nothing. */
static inline __attribute__((always_inline)) void steps(const int ni, const int nj, Side a, Side b, int n,
                                                        size_t ahead) {
    for (int k = 0; k < n; k++, a.at += a.on, b.at += b.on) {
        TILE_LOAD(4, a.at, a.apart);
        TILE_LOAD(6, b.at, b.apart);
        TILE_DOT(0, 4, 6);
        if (ni > 1) {
            TILE_LOAD(5, a.at + a.over, a.apart);
            TILE_DOT(1, 5, 6);
        }
        if (nj > 1) {
            TILE_LOAD(7, b.at + b.over, b.apart);
            TILE_DOT(2, 4, 7);
            if (ni > 1) TILE_DOT(3, 5, 7);
        }
        if (nj > 2) {
            TILE_LOAD(6, b.at + 2 * b.over, b.apart);
            TILE_DOT(1, 4, 6);
        }
        if (nj > 3) {
            TILE_LOAD(7, b.at + 3 * b.over, b.apart);
            TILE_DOT(3, 4, 7);
        }
        for (int r = 0; ahead && r < ni * W; r++) _mm_prefetch(a.at + ahead + (size_t)r * a.apart, _MM_HINT_T1);
    }
}

/* Load m rows and n columns at a corner of C that is smaller than a tile; the rest is 0. */
static inline void edge_in(float edge[TILE], const float *C, size_t ldc, int m, int n) {
    memset(edge, 0, TILE * sizeof *edge);
    for (int r = 0; r < m; r++) memcpy(edge + r * W, C + (size_t)r * ldc, (size_t)n * sizeof *edge);
}
static inline void edge_out(const float edge[TILE], float *C, size_t ldc, int m, int n) {
    for (int r = 0; r < m; r++) memcpy(C + (size_t)r * ldc, edge + r * W, (size_t)n * sizeof *edge);
}
/* Compute ni x nj tiles of C, which has `rows` rows and `cols` columns there; first: C = instead of C +=. */
static inline __attribute__((always_inline)) void kernel(const int ni, const int nj, float *C, size_t ldc, Side a,
                                                         Side b, int n, int rows, int cols, bool first) {
    float edge[TILE] __attribute__((aligned(64)));
#define AT(c)     (C + (size_t)sum_i(c, ni) * W * ldc + sum_j(c, ni) * W)
#define ROWS_(c)  imin(W, rows - sum_i(c, ni) * W)
#define COLS_(c)  imin(W, cols - sum_j(c, ni) * W)
#define INSIDE(c) (ROWS_(c) == W && COLS_(c) == W)
#define C_IN(c)                                            \
    do {                                                   \
        if (first) {                                       \
            TILE_ZERO(c);                                  \
        } else if (INSIDE(c)) {                            \
            TILE_LOAD(c, AT(c), ldc * sizeof(float));      \
        } else {                                           \
            edge_in(edge, AT(c), ldc, ROWS_(c), COLS_(c)); \
            TILE_LOAD(c, edge, W * sizeof(float));         \
        }                                                  \
    } while (0)
#define C_OUT(c)                                            \
    do {                                                    \
        if (INSIDE(c)) {                                    \
            TILE_STORE(c, AT(c), ldc * sizeof(float));      \
        } else {                                            \
            TILE_STORE(c, edge, W * sizeof(float));         \
            edge_out(edge, AT(c), ldc, ROWS_(c), COLS_(c)); \
        }                                                   \
    } while (0)
    EACH_SUM(C_IN);
    steps(ni, nj, a, b, n, 0);
    EACH_SUM(C_OUT);
#undef AT
#undef ROWS_
#undef COLS_
#undef INSIDE
#undef C_IN
#undef C_OUT
}
/* Rows i0..i1-1 of panels p0..p1-1. A: those rows, packed; C: the place of the first of these elements. */
static void task(const Work *w, const Pair *A, float *C, int i0, int i1, int p0, int p1) {
    const GemmShape s = w->s;
    int pairs = pairs_in(s), left, none;
    panel(s.N, p0, &left, &none);
    for (int k = 0; k < pairs; k += KP) {
        int n = imin(KP, pairs - k) / W;
        bool first = k == 0 && !s.accumulate;
        for (int p = p0; p < p1; p++) {
            int v0, vecs;
            panel(s.N, p, &v0, &vecs);
            size_t width = (size_t)vecs * W * sizeof(Pair);
            const Pair *at = w->B + (size_t)v0 * W * (size_t)pairs + (size_t)k * (size_t)vecs * W;
            Side b = {(const char *)at, width, W * sizeof(Pair), width * W};
            for (int i = i0; i < i1; i += 2 * MR) {
                at = A + (size_t)((i - i0) / MR) * w->a.block + (size_t)k * W;
                Side a = {(const char *)at, W * sizeof(Pair), w->a.block * sizeof(Pair), TILE * sizeof(Pair)};
                size_t ldc = (size_t)s.ldc;
                float *to = C + (size_t)(i - i0) * ldc + (size_t)(v0 - left) * W;
                int rows = imin(2 * MR, i1 - i), cols = imin(vecs * W, s.N - v0 * W);
                switch (2 * (rows > MR) + (vecs > 1)) {
                case 0: kernel(1, 1, to, ldc, a, b, n, rows, cols, first); break;
                case 1: kernel(1, 2, to, ldc, a, b, n, rows, cols, first); break;
                case 2: kernel(2, 1, to, ldc, a, b, n, rows, cols, first); break;
                default: kernel(2, 2, to, ldc, a, b, n, rows, cols, first);
                }
            }
        }
    }
}

/* ---- few rows ---------------------------------------------------------------------------------------------------- */

static size_t few_pairs(GemmShape s) { return (size_t)imin(KP, pairs_in(s)) * NV * W; }
/* Load m x n elements of C as columns of a tile; turned_out stores them. */
static inline void turned_in(Pair sums[W][W], const float *C, size_t ldc, int m, int n) {
    Pair rows[W][W] __attribute__((aligned(64)));
    memset(rows, 0, sizeof rows);
    for (int r = 0; r < m; r++) memcpy(rows[r], C + (size_t)r * ldc, (size_t)n * sizeof *C);
    turn(sums[0], W, rows);
}
static inline void turned_out(Pair sums[W][W], float *C, size_t ldc, int m, int n) {
    Pair rows[W][W] __attribute__((aligned(64)));
    turn(rows[0], W, sums);
    for (int r = 0; r < m; r++) memcpy(C + (size_t)r * ldc, rows[r], (size_t)n * sizeof *C);
}
/* Columns row.. of C, ni tiles of them, in nj tiles of rows; w->C is at column `left`. Rows of B go through mem if they
 * are missing, not in bf16, or end in half a tile. */
static inline __attribute__((always_inline)) void few_tiles(const int ni, const int nj, const Work *w, const void *B,
                                                            int left, int row, Pair *mem) {
    const GemmShape s = w->s;
    const int pairs = pairs_in(s), direct = s.b_bf16 && row + ni * W <= s.N ? s.K / (2 * W) * W : 0;
    const size_t ld = (size_t)s.ldb * sizeof(uint16_t), ldc = (size_t)s.ldc, over = (size_t)imin(KP, pairs) * W;
    Pair sums[W][W] __attribute__((aligned(64)));
    Side x = {(const char *)w->A, W * sizeof(Pair), w->a.block * sizeof(Pair), TILE * sizeof(Pair)};
#define AT(c)    ((float *)w->C + (size_t)sum_j(c, ni) * W * ldc + (row - left) + sum_i(c, ni) * W)
#define ROWS_(c) imin(W, s.M - sum_j(c, ni) * W)
#define COLS_(c) imin(W, s.N - row - sum_i(c, ni) * W)
#define C_IN(c)                                              \
    do {                                                     \
        if (s.accumulate) {                                  \
            turned_in(sums, AT(c), ldc, ROWS_(c), COLS_(c)); \
            TILE_LOAD(c, sums, W * sizeof(Pair));            \
        } else {                                             \
            TILE_ZERO(c);                                    \
        }                                                    \
    } while (0)
#define C_OUT(c)                                          \
    do {                                                  \
        TILE_STORE(c, sums, W * sizeof(Pair));            \
        turned_out(sums, AT(c), ldc, ROWS_(c), COLS_(c)); \
    } while (0)
    EACH_SUM(C_IN);
    for (int k = 0; k < direct; k += KP) {
        int n = imin(KP, direct - k) / W;
        /* the same place in what follows: the next block of these rows, or the first block of the next rows */
        size_t ahead = k + KP < direct ? KP * sizeof(Pair) : (size_t)ni * W * ld - (size_t)k * sizeof(Pair);
        Side b = {(const char *)B + (size_t)row * ld + (size_t)k * sizeof(Pair), ld, W * ld, W * sizeof(Pair)};
        steps(ni, nj, b, x, n, ahead);
        x.at += (size_t)n * x.on;
    }
    for (int k = direct; k < pairs; k += KP) {
        int some = imin(KP, pairs - k);
        for (int i = 0; i < ni; i++)
            for (int j = 0; j < some; j += W) {
                __m512i r[W];
                Pair *to = mem + (size_t)i * over + (size_t)j * W;
                load_rows(r, s, B, row + i * W, imin(W, s.N - row - i * W), k + j, 0);
                for (int m = 0; m < W; m++) _mm512_storeu_si512(to + m * W, r[m]);
            }
        Side b = {(const char *)mem, W * sizeof(Pair), over * sizeof(Pair), TILE * sizeof(Pair)};
        steps(ni, nj, b, x, some / W, 0);
        x.at += (size_t)(some / W) * x.on;
    }
    EACH_SUM(C_OUT);
#undef AT
#undef ROWS_
#undef COLS_
#undef C_IN
#undef C_OUT
}
/* All rows of panel p, which begins at w->C; mem: few_pairs. */
static void few_panel(const Work *w, const void *B, int p, Pair *mem) {
    int v0, vecs, nj = (w->s.M + W - 1) / W;
    panel(w->s.N, p, &v0, &vecs);
    if (vecs == 2 && nj <= 2) {
        if (nj == 1)
            few_tiles(2, 1, w, B, v0 * W, v0 * W, mem);
        else
            few_tiles(2, 2, w, B, v0 * W, v0 * W, mem);
        return;
    }
    for (int v = v0; v < v0 + vecs; v++) switch (nj) {
        case 1: few_tiles(1, 1, w, B, v0 * W, v * W, mem); break;
        case 2: few_tiles(1, 2, w, B, v0 * W, v * W, mem); break;
        case 3: few_tiles(1, 3, w, B, v0 * W, v * W, mem); break;
        default: few_tiles(1, 4, w, B, v0 * W, v * W, mem);
        }
}

/* ---- attention's products ---------------------------------------------------------------------------------------- */

/* A tile of columns k..k+n-1 of 16 rows, which lie as PairProduct has them; the rest is 0. */
static inline void left_tile(Pair *to, const Pair *A, size_t ars, size_t aks, int n) {
    __m512i r[W];
    for (int i = 0; i < W; i++) {
        const __mmask16 part = aks == 1 ? (__mmask16)((1u << n) - 1) : i < n ? 0xFFFF : 0;
        r[i] = _mm512_maskz_loadu_epi32(part, A + (size_t)i * (aks == 1 ? ars : aks));
    }
    if (aks != 1) turn_registers(r);
    for (int i = 0; i < W; i++) _mm512_storeu_si512(to + i * W, r[i]);
}
/* Two tiles of rows by two of columns at a time. What is in place is read in place; a last step of less than 16 pairs,
 * and a left operand with k down its columns, go through tiles of their own. */
void PAIR_PRODUCT(OPS_ISA)(real *C, size_t ldc, const Pair *A, size_t ars, size_t aks, const Pair *B, size_t ldb, int M,
                           int K, int N, bool add) {
    enum { ACROSS = 4, ALONG = 2 };
    const int whole = K / W * W, rest = K - whole, turned = aks != 1, along = turned ? (K + W - 1) / W : 1;
    Pair left[ACROSS * ALONG * TILE] __attribute__((aligned(64))), right[2 * TILE] __attribute__((aligned(64)));
    CHECK(M <= ACROSS * W && N % W == 0 && (aks == 1 || (ars == 1 && along <= ALONG)), "(%d,%d,%d), steps %zu, %zu", M,
          N, K, ars, aks);
    for (int i = 0; (turned || rest) && i < M; i += W)
        for (int k = turned ? 0 : whole, t = i / W * along; k < K; k += W, t++)
            left_tile(left + t * TILE, A + (size_t)i * ars + (size_t)k * aks, ars, aks, imin(W, K - k));
    const size_t row = W * sizeof(Pair), tile = TILE * sizeof(Pair);
    tiles_open();
    for (int c = 0; c < N; c += 2 * W) {
        const int nj = imin(2, (N - c) / W);
        if (rest) memset(right, 0, sizeof right);
        for (int k = 0; k < rest; k++)
            for (int j = 0; j < nj; j++)
                memcpy(right + j * TILE + k * W, B + (size_t)(whole + k) * ldb + (size_t)(c + j * W), row);
        for (int i = 0; i < M; i += 2 * W) {
            const Pair *packed = left + i / W * along * TILE;
            const Side placed = {(const char *)(A + (size_t)i * ars), ars * sizeof(Pair), W * ars * sizeof(Pair), row},
                       moved = {(const char *)packed, row, (size_t)along * tile, tile},
                       last = {(const char *)(packed + (along - 1) * TILE), row, (size_t)along * tile, tile},
                       b = {(const char *)(B + c), ldb * sizeof(Pair), row, W * ldb * sizeof(Pair)},
                       b_last = {(const char *)right, row, tile, tile};
            const Side a = turned ? moved : placed;
            float *to = C + (size_t)i * ldc + c;
            const int rows = imin(2 * W, M - i), cols = nj * W;
#define KERNEL(ni, nj)                                                                  \
    do {                                                                                \
        if (whole) kernel(ni, nj, to, ldc, a, b, whole / W, rows, cols, !add);          \
        if (rest) kernel(ni, nj, to, ldc, last, b_last, 1, rows, cols, !add && !whole); \
    } while (0)
            switch (2 * (rows > W) + (nj > 1)) {
            case 0: KERNEL(1, 1); break;
            case 1: KERNEL(1, 2); break;
            case 2: KERNEL(2, 1); break;
            default: KERNEL(2, 2);
            }
#undef KERNEL
        }
    }
    tiles_close();
}
