/* few_rows.c: y = x w^T for few rows of x, in f32, which linear.c and groups.c use instead of the library. The library
 * packs w first; here w is read once, in place, at the speed of memory. There are two forms:
 * - dots, for any number of rows and used below LANES_LEAST: vectors run along k, and each sum is added up at the end;
 * - lanes, for LANES_LEAST to FEW_MOST rows: rows of x are the lanes of vectors, and elements of w are broadcast.
 * In each form K alone decides the order of a sum, so that neither other rows nor threads change a bit of it. */
#include "vec.h"

/* ---- dots -------------------------------------------------------------------------------------------------------- */

/* TILE rows of x and COLS rows of w are in registers at once; RUN_K elements of every row of x stay in the first
 * cache. */
#if defined(__AVX512F__) || defined(__aarch64__)
    #define COLS 4 /* 4 x 4 sums + 4 + 1 of 32 registers */
#else
    #define COLS 3 /* 4 x 3 + 3 + 1 of 16 */
#endif
enum { FEW = 32, TILE = 4, RUN_K = 192, LINE = (int)(64 / sizeof(real)) /* of memory */ };

/* Sum of a vector's elements, halves first. (By address: GCC 14 for aarch64 does not accept such a vector by value.) */
INLINE real total(const Vec *v) {
    real t[VL];
    *(Vec *)t = *v;
#pragma GCC unroll 4
    for (int w = VL / 2; w; w /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}

/* VL elements of each row. */
INLINE void dots_step(int rows, int cols, Vec sum[TILE][COLS], const real *x, size_t ldx, const real *w, int I) {
    Vec b[COLS];
#pragma GCC unroll 4
    for (int o = 0; o < cols; o++) b[o] = *(const Vec *)(w + (size_t)o * (size_t)I);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        Vec a = *(const Vec *)(x + (size_t)r * ldx);
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) sum[r][o] += a * b[o];
    }
}
/* Add the products of elements k..end-1 of `rows` rows of x, ldx apart, and `cols` rows of w to the sums kept in `s`.
 * The first call has k == 0; the last one writes y[r][o] = x_r . w_o. Every sum runs in the order of k, whatever other
 * rows there are. Line `mine` out of every `share` memory lines of w's rows, two times COLS further on, is prefetched
 * (-1: none): a read of few rows is too short for the hardware prefetcher. */
INLINE void dots(int rows, int cols, int share, int mine, real *y, size_t ldy, const real *x, size_t ldx, const real *w,
                 int I, int k, int end, Vec *s) {
    Vec sum[TILE][COLS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) sum[r][o] = k ? s[r * COLS + o] : (Vec){0};
    int i = k;
    for (; i + LINE <= end; i += LINE) {
        if ((i / LINE & (share - 1)) == mine)
#pragma GCC unroll 4
            for (int o = 0; o < cols; o++) __builtin_prefetch(w + (size_t)(2 * COLS + o) * (size_t)I + i, 0, 2);
#pragma GCC unroll 4
        for (int n = i; n < i + LINE; n += VL) dots_step(rows, cols, sum, x + n, ldx, w + n, I);
    }
    for (; i + VL <= end; i += VL) dots_step(rows, cols, sum, x + i, ldx, w + i, I);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < cols; o++) {
            if (end < I) {
                s[r * COLS + o] = sum[r][o];
                continue;
            }
            real t = total(&sum[r][o]);
            for (int n = i; n < I; n++) t += x[(size_t)r * ldx + (size_t)n] * w[(size_t)o * (size_t)I + (size_t)n];
            y[(size_t)r * ldy + (size_t)o] = t;
        }
}
/* The loop needs its number of rows at compile time. */
INLINE void dots_rows(int rows, int cols, int share, int mine, real *y, size_t ldy, const real *x, size_t ldx,
                      const real *w, int I, int k, int end, Vec *s) {
    switch (rows) {
    case 1: dots(1, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s); break;
    case 2: dots(2, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s); break;
    case 3: dots(3, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s); break;
    default: dots(TILE, cols, share, mine, y, ldy, x, ldx, w, I, k, end, s);
    }
}

/* `cols` columns of N <= FEW rows of y. */
INLINE void columns_dots(int cols, real *y, size_t ldy, const real *x, size_t ldx, const real *w, int N, int I) {
    Vec s[FEW * COLS];
    int k = 0, share = N > 3 * TILE ? 4 : N > TILE ? 2 : 1; /* a power of two, at most the tiles of x */
    do {
        int end = imin(I, k + RUN_K);
        for (int m = 0; m < N; m += TILE)
            dots_rows(imin(TILE, N - m), cols, share, cols == COLS && m / TILE < share ? m / TILE : -1,
                      y + (size_t)m * ldy, ldy, x + (size_t)m * ldx, ldx, w, I, k, end, s + m * COLS);
        k = end;
    } while (k < I);
}
/* Columns o0..o0+n-1 of N rows of y. */
static void rows_dots(real *y, size_t ldy, const real *x, size_t ldx, const real *w, int N, int o0, int n, int I) {
    for (int m = 0; m < N; m += FEW) {
        int rows = imin(FEW, N - m), o = o0;
        real *to = y + (size_t)m * ldy;
        x += m ? (size_t)FEW * ldx : 0;
        for (; o + COLS <= o0 + n; o += COLS)
            columns_dots(COLS, to + o, ldy, x, ldx, w + (size_t)o * (size_t)I, rows, I);
        for (; o < o0 + n; o++) columns_dots(1, to + o, ldy, x, ldx, w + (size_t)o * (size_t)I, rows, I);
    }
}
static void few_rows(real *y, const real *x, const real *w, int N, int o0, int n, int O, int I) {
    rows_dots(y, (size_t)O, x, (size_t)I, w, N, o0, n, I);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Up to FEW_MOST rows are faster here than in the library. Up to FEW rows lanes would be faster than dots as well, but
 * a sequence that is decoded alone and one in a batch of up to FEW must have the same bits. Without a broadcast in one
 * instruction dots are faster than lanes. */
#if defined(__AVX2__)
enum { LANES_LEAST = FEW + 1, FEW_MOST = 64 };
#else
enum { LANES_LEAST = FEW + 1, FEW_MOST = FEW };
#endif
/* FEW_OUTS rows of w are a task: a multiple of COLS and of the rows of w in every tile. Sums of LANES_K elements at a
 * time are added to those before, which keeps the elements of x in the first cache and the rounding of long sums small.
 */
enum { LANES_K = 128, FEW_OUTS = 24 };
/* Rows of w in a tile with one, two and three vectors of rows of x: sums enough to hide the latency of adding. */
#if defined(__AVX512F__) || defined(__aarch64__)
    #define LANES_TILE2 12 /* 12 x 2 sums, 2 and 1 of 32 registers */
    #define LANES_TILE3 8
#else
    #define LANES_TILE2 6 /* 6 x 2 sums, 2 and 1 of 16 */
    #define LANES_TILE3 4
#endif
enum { LANES_TILE1 = 8 };

static int lanes_width(int N) { return (N + VL - 1) / VL * VL; }
/* Vectors of the next group of rows, if `left` rows are left. One vector alone has too few sums for each load. */
static int lanes_vectors(int left) {
    int all = lanes_width(left) / VL;
    return all <= 3 ? all : all % 2 ? 3 : 2;
}
/* Transpose elements i0..i1-1 of N rows of x. A group of rows begins at its first row times I and is (I,lanes). */
static void lanes_pack(real *to, const real *x, int N, int I, int i0, int i1) {
    for (int m = 0, lanes; m < N; m += lanes) {
        lanes = lanes_vectors(N - m) * VL;
        real *at = to + (size_t)m * (size_t)I;
        for (int r = 0; r < lanes; r++)
            for (int i = i0; i < i1; i++)
                at[(size_t)i * (size_t)lanes + (size_t)r] = m + r < N ? x[(size_t)(m + r) * (size_t)I + (size_t)i] : 0;
    }
}
/* Add the products of `n` elements of `outs` rows of w, I apart, and of `vecs` vectors of rows of x to the sums s, lds
 * apart; first: they start from 0. Memory line `mine` out of every `share` lines of the next task's rows is prefetched
 * (-1: none), one row at a time, because prefetches issued all at once would delay each other. */
INLINE void lanes_tile(int outs, int vecs, real *s, size_t lds, const real *x, const real *w, size_t I, int n,
                       bool first, int share, int mine) {
    Vec sum[12][3];
#pragma GCC unroll 12
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) sum[o][v] = (Vec){0};
    int i = 0;
    for (; i + LINE <= n; i += LINE, x += LINE * vecs * VL, w += LINE) {
        const bool ask = (i / LINE & (share - 1)) == mine;
#pragma GCC unroll 16
        for (int j = 0; j < LINE; j++) {
            if (ask && j < outs) __builtin_prefetch(w + (size_t)(FEW_OUTS + j) * I, 0, 2);
            Vec a[3];
#pragma GCC unroll 3
            for (int v = 0; v < vecs; v++) a[v] = *(const Vec *)(x + (j * vecs + v) * VL);
#pragma GCC unroll 12
            for (int o = 0; o < outs; o++) {
                const real b = w[(size_t)o * I + (size_t)j];
#pragma GCC unroll 3
                for (int v = 0; v < vecs; v++) sum[o][v] += a[v] * b;
            }
        }
    }
    for (; i < n; i++, x += vecs * VL, w++)
#pragma GCC unroll 12
        for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
            for (int v = 0; v < vecs; v++) sum[o][v] += *(const Vec *)(x + v * VL) * w[(size_t)o * I];
#pragma GCC unroll 12
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) {
            Vec *to = (Vec *)(s + (size_t)o * lds + (size_t)(v * VL));
            *to = first ? sum[o][v] : (Vec)(*to + sum[o][v]);
        }
}
/* The same for `outs` <= FEW_OUTS rows of w: tiles of `step` of them, then of 4 and of 1, which prefetch nothing. */
INLINE void lanes_group(int step, int vecs, real *s, size_t lds, const real *x, const real *w, int outs, size_t I,
                        int n, bool first, int share, int mine) {
    int o = 0;
    for (; o + step <= outs; o += step)
        lanes_tile(step, vecs, s + (size_t)o * lds, lds, x, w + (size_t)o * I, I, n, first, share, mine);
    for (; step > 4 && o + 4 <= outs; o += 4)
        lanes_tile(4, vecs, s + (size_t)o * lds, lds, x, w + (size_t)o * I, I, n, first, 1, -1);
    for (; o < outs; o++) lanes_tile(1, vecs, s + (size_t)o * lds, lds, x, w + (size_t)o * I, I, n, first, 1, -1);
}
/* n <= FEW_OUTS columns of N rows of y, ldy apart. x: as lanes_pack writes it; asks: prefetch what follows w. */
static void lanes_columns(real *y, size_t ldy, const real *x, const real *w, int N, int n, int I, bool asks) {
    real s[FEW_OUTS * FEW_MOST] __attribute__((aligned(64)));
    const size_t lds = (size_t)lanes_width(N);
    const int share = lds >= (size_t)(8 * VL)  ? 4
                      : lds > (size_t)(3 * VL) ? 2
                                               : 1; /* a power of two, at most the groups */
    for (int k = 0; k < I; k += LANES_K)
        for (int m = 0, g = 0, vecs; m < N; m += vecs * VL, g++) {
            vecs = lanes_vectors(N - m);
            const real *a = x + (size_t)m * (size_t)I + (size_t)k * (size_t)(vecs * VL), *b = w + k;
            const int some = imin(LANES_K, I - k), mine = asks && g < share ? g : -1;
            switch (vecs) {
            case 1: lanes_group(LANES_TILE1, 1, s + m, lds, a, b, n, (size_t)I, some, k == 0, share, mine); break;
            case 2: lanes_group(LANES_TILE2, 2, s + m, lds, a, b, n, (size_t)I, some, k == 0, share, mine); break;
            default: lanes_group(LANES_TILE3, 3, s + m, lds, a, b, n, (size_t)I, some, k == 0, share, mine);
            }
        }
    for (int r = 0; r < N; r++)
        for (int o = 0; o < n; o++) y[(size_t)r * ldy + (size_t)o] = s[(size_t)o * lds + (size_t)r];
}
