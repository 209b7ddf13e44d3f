/* gemm_wide.c: packing and the kernel of gemm_bf16.c for processors without a bf16 instruction. Only gemm_bf16.c
 * includes it.
 *
 * Operands are packed as f32 values that are rounded to bf16, so the kernel is an f32 kernel. A vector of B is the
 * even elements of W columns, then the odd ones; a pair of A is two elements next to each other. bf16 B is expanded as
 * it is packed. An element of C starts from its old value, or 0, and adds one product after another along k. So K
 * alone decides the order, because storing C between the steps rounds nothing. */
#include <string.h>
#if defined(__AVX2__)
    #include <immintrin.h>
#endif
#include "turn.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "two bf16 values are read as one word");

typedef float Vec __attribute__((vector_size(W * sizeof(float))));
typedef float VecAt __attribute__((vector_size(W * sizeof(float)), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(W * sizeof(uint32_t))));
typedef uint32_t BitsAt __attribute__((vector_size(W * sizeof(uint32_t)), aligned(2), may_alias));
typedef int32_t Ints __attribute__((vector_size(W * sizeof(int32_t))));
enum { LINE = 64 / sizeof(uint32_t) }; /* pairs of bf16 elements in a line of memory */
#define INLINE static inline __attribute__((always_inline))
/* Rows of C up to which few_columns computes them without a panel of B; more of them are lanes on AVX2. */
enum { COLUMNS = 4 };

/* The nearest bf16 value, ties to even; NaN stays NaN; a denormal is 0. */
INLINE Vec rounded(Vec x) {
    Bits u = (Bits)x, near = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000;
    Ints size = (Ints)(u & 0x7FFFFFFF), none = size > 0x7F800000, small = size < 0x00800000;
    near = ((Bits)none & (u | 0x400000) & 0xFFFF0000) | (~(Bits)none & near);
    return (Vec)(((Bits)small & u & 0x80000000) | (~(Bits)small & near));
}
/* n <= W elements, the rest 0. */
INLINE Vec some_of(const float *x, int n) {
    float all[W] = {0};
    if (n == W) return *(const VecAt *)x;
    memcpy(all, x, (size_t)n * sizeof *x);
    return *(const VecAt *)all;
}
INLINE Bits some_bf16(const uint16_t *x, int n) { /* n <= W, each in its own word */
    Bits all = {0};
    for (int i = 0; i < W; i++)
        if (i < n) all[i] = x[i];
    return all;
}
/* Round n elements to BF16. */
static inline void bf16_row(uint16_t *to, const float *x, int n) {
    for (int i = 0; i < n; i += W) {
        Bits r = (Bits)rounded(some_of(x + i, imin(W, n - i))) >> 16;
        for (int j = 0; j < imin(W, n - i); j++) to[i + j] = (uint16_t)r[j];
    }
}
/* n <= W pairs, each from the same column of two consecutive rows; odd NULL: zeros. The rest of W is 0. */
static inline void pack_columns(Pair *to, const float *even, const float *odd, int n) {
    VecAt *at = (VecAt *)to;
    at[0] = rounded(some_of(even, n));
    at[1] = odd ? rounded(some_of(odd, n)) : (Vec){0};
}
static inline void pack_columns_bf16(Pair *to, const uint16_t *even, const uint16_t *odd, int n) {
    VecAt *at = (VecAt *)to;
    at[0] = (Vec)(some_bf16(even, n) << 16);
    at[1] = odd ? (Vec)(some_bf16(odd, n) << 16) : (Vec){0};
}
/* Transpose W rows of W words, ld bytes apart: r[j] is element j of every row. */
INLINE void turned(Vec r[W], const char *x, size_t ld) {
#if defined(__AVX512F__)
    for (int i = 0; i < W; i++) memcpy(&r[i], x + (size_t)i * ld, sizeof r[i]); /* rows of bf16 begin at any 2 bytes */
    turn_registers((__m512i *)r);
#elif defined(__AVX2__)
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 2; h++) {
            const float *lo = (const float *)(x + (size_t)i * ld) + 4 * h,
                        *hi = (const float *)(x + (size_t)(i + 4) * ld) + 4 * h;
            r[4 * h + i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(lo)), _mm_loadu_ps(hi), 1);
        }
    for (int h = 0; h < W; h += 4) {
        __m256 a = _mm256_unpacklo_ps(r[h], r[h + 1]), b = _mm256_unpackhi_ps(r[h], r[h + 1]),
               c = _mm256_unpacklo_ps(r[h + 2], r[h + 3]), d = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
        r[h] = _mm256_shuffle_ps(a, c, 0x44), r[h + 1] = _mm256_shuffle_ps(a, c, 0xEE);
        r[h + 2] = _mm256_shuffle_ps(b, d, 0x44), r[h + 3] = _mm256_shuffle_ps(b, d, 0xEE);
    }
#else
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++) memcpy((char *)&r[j] + i * 4, x + (size_t)i * ld + j * 4, 4);
#endif
}
/* W pairs from k on of B's bf16 rows row.. (n <= W of them), transposed; missing ones are 0. It also prefetches
 * `ahead` bytes further, a line in each row; 0: nothing. */
INLINE void turned_pairs(Vec r[W], GemmShape s, const void *B, int row, int n, int k, size_t ahead) {
    const uint16_t *x = (const uint16_t *)B + (size_t)row * (size_t)s.ldb + 2 * (size_t)k;
    const size_t ld = (size_t)s.ldb;
    int left = s.K - 2 * k;
    if (ahead && k % LINE == 0)
        for (int i = 0; i < W; i++) __builtin_prefetch((const char *)(x + (size_t)i * ld) + ahead, 0, 2);
    if (n == W && left >= 2 * W) {
        turned(r, (const char *)x, ld * sizeof *x);
        return;
    }
    uint16_t edge[W][2 * W] = {{0}};
    for (int i = 0; i < n; i++) memcpy(edge[i], x + (size_t)i * ld, (size_t)imin(2 * W, left) * sizeof *x);
    turned(r, (const char *)edge, sizeof *edge);
}
INLINE Vec even_of(Vec pairs) { return (Vec)((Bits)pairs << 16); }
INLINE Vec odd_of(Vec pairs) { return (Vec)((Bits)pairs & 0xFFFF0000); }
/* B's rows row.. (n <= W of them, the rest counts as 0), `some` <= W pairs from k on (0 past K); k along the rows. */
INLINE void pack_block(Pair *to, size_t ld, GemmShape s, const void *B, int row, int n, int k, int some, size_t ahead) {
    Vec r[W];
    if (s.b_bf16) {
        turned_pairs(r, s, B, row, n, k, ahead);
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) {
            if (j >= some) continue;
            VecAt *pair = (VecAt *)(to + (size_t)j * ld);
            pair[0] = even_of(r[j]);
            pair[1] = odd_of(r[j]);
        }
        return;
    }
    for (int half = 0; half < 2; half++) {
        const float *x = (const float *)B + (size_t)row * (size_t)s.ldb + 2 * (size_t)k + half * W;
        int there = imax(0, imin(W, s.K - 2 * k - half * W));
        float rows[W][W];
        for (int i = 0; i < W; i++)
            *(VecAt *)rows[i] = i < n && there ? rounded(some_of(x + (size_t)i * (size_t)s.ldb, there)) : (Vec){0};
        turned(r, (const char *)rows, sizeof *rows);
        for (int j = 0; j < W; j++)
            if (half * W + j < 2 * some) ((VecAt *)(to + (size_t)((half * W + j) / 2) * ld))[j % 2] = r[j];
    }
}

INLINE Vec everywhere(float x) {
#if WIDTH == 8
    return _mm256_set1_ps(x); /* (Vec){0} + x would be an addition */
#else
    return x - (Vec){0};
#endif
}
/* c + x y. In asm for AVX2: compilers write a sum to another register or fold loads into it, and then sixteen registers
 * do not hold twelve sums. */
INLINE Vec plus_product(Vec c, Vec x, Vec y) {
#if WIDTH == 8
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(x), "x"(y));
    return c;
#else
    return c + x * y;
#endif
}

INLINE void from_c(int vecs, Vec c[NV], const float *C, int last, bool first) {
#pragma GCC unroll 3
    for (int v = 0; v < vecs; v++)
        c[v] = first                       ? (Vec){0}
               : v < vecs - 1 || last == W ? (Vec) * (const VecAt *)(C + v * W)
                                           : some_of(C + v * W, last);
}
INLINE void to_c(int vecs, float *C, const Vec c[NV], int last) {
    Vec end = c[vecs - 1]; /* a copy: a sum whose address is taken would be kept in memory */
#pragma GCC unroll 3
    for (int v = 0; v < vecs; v++)
        if (v < vecs - 1 || last == W) *(VecAt *)(C + v * W) = c[v];
    if (last < W) memcpy(C + (vecs - 1) * W, &end, (size_t)last * sizeof *C);
}
/* Where memory is prefetched while sums are computed: `step` bytes further for each pair of k, so that the lines come
 * one at a time (all at once would delay each other) and in the order of their addresses. A step of less than a line
 * asks for some lines again: a branch that avoids it costs a quarter of the kernel's time. */
typedef struct {
    const char *at;
    size_t step;
} Ask;
/* For the n rows of B that follow n rows from `row` on, meanwhile used by `passes` loops over all pairs of K. */
INLINE Ask ask_next(GemmShape s, const void *B, int row, int n, int passes) {
    const size_t ld = (size_t)s.ldb * (s.b_bf16 ? sizeof(uint16_t) : sizeof(float)), bytes = (size_t)n * ld,
                 times = (size_t)passes * (((size_t)s.K + 1) / 2);
    return (Ask){(const char *)B + (size_t)(row + n) * ld, zmin(64, (bytes + times - 1) / times)};
}

/* ---- A ----------------------------------------------------------------------------------------------------------- */

#if WIDTH == 8
    #include "gemm_lanes.c"
#else
static bool as_lanes(GemmShape s) { return (void)s, false; }
static void pack_a_lanes(Pair *to, GemmShape s, const void *A, int row) { (void)to, (void)s, (void)A, (void)row; }
static void in_lanes(float *C, const Pair *A, Lie l, GemmShape s, const void *B, int row, int n) {
    (void)C, (void)A, (void)l, (void)s, (void)B, (void)row, (void)n;
}
#endif
static Lie lie(GemmShape s) {
    size_t pairs = ((size_t)s.K + 1) / 2;
    if (as_lanes(s)) return (Lie){(pairs + W - 1) / W * W * MR, 0, W}; /* a panel takes two blocks of rows */
    if (s.ta) return (Lie){pairs * MR, 1, MR};
    size_t ld = (pairs + W - 1) / W * W;
    if (ld % 128 == 0) ld += W; /* rows a page apart would compete for the same lines of the first cache */
    return (Lie){ld * MR, ld, 1};
}
/* Always false: elements are f32. */
static bool taken_in_place(GemmShape s, const void *A, Lie *a) {
    (void)s, (void)A, (void)a;
    return false;
}
/* Pairs k0..k1-1 of all of A, k down its columns. */
static void pack_a_columns(Pair *to, Lie a, GemmShape s, const void *A, int k0, int k1) {
    for (int i = 0; i < s.M; i += W)
        for (int k = k0; k < k1; k++) {
            Pair both[W];
            two_rows(both, A, s.lda, s.a_bf16, s.K, k, i, imin(W, s.M - i));
            const float *even = (const float *)both, *odd = even + W;
            for (int b = 0; b < W && i + b < s.M; b += MR) {
                Pair *at = to + (size_t)((i + b) / MR) * a.block + (size_t)k * MR;
                for (int r = 0; r < MR; r++) at[r] = (Pair){even[b + r], odd[b + r]};
            }
        }
}
/* Pack rows row..row+MR-1 of A, k along the rows; rows past the last are 0, and up to W pairs past K too. */
static void pack_a_block(Pair *to, Lie a, GemmShape s, const void *A, int row) {
    const int whole = (s.K + 2 * W - 1) / (2 * W) * 2 * W;
    if (as_lanes(s)) {
        if (row % W == 0) pack_a_lanes(to, s, A, row);
        return;
    }
    for (int i = row; i < row + MR; i++, to += a.row) {
        float *x = (float *)to;
        if (i >= s.M) {
            memset(x, 0, (size_t)whole * sizeof *x);
            continue;
        }
        size_t at = (size_t)i * (size_t)s.lda;
        for (int k = 0; k < whole; k += W) {
            int n = imax(0, imin(W, s.K - k));
            Vec r = s.a_bf16 ? (Vec)(some_bf16((const uint16_t *)A + at + k, n) << 16)
                             : rounded(some_of((const float *)A + at + k, n));
            *(VecAt *)(x + k) = r; /* a row has room for whole vectors */
        }
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* mr rows of C, columns of `vecs` vectors, the last of which has `last` elements; first: start from 0, else from the
 * old values. */
INLINE void kernel_of(const int mr, const int vecs, float *C, size_t ldc, const Pair *a, Lie l, const Pair *b,
                      int pairs, int last, bool first, Ask ask) {
    Vec c[MR][NV];
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) from_c(vecs, c[r], C + (size_t)r * ldc, last, first);
    for (int k = 0; k < pairs; k++, a += l.step, b += vecs * W, ask.at += ask.step) {
        __builtin_prefetch(ask.at, 0, 2);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            Vec y[NV];
#pragma GCC unroll 3
            for (int v = 0; v < vecs; v++) y[v] = *(const VecAt *)((const float *)(b + v * W) + half * W);
#pragma GCC unroll 8
            for (int r = 0; r < mr; r++) {
                const Vec x = everywhere(((const float *)(a + (size_t)r * l.row))[half]);
#pragma GCC unroll 3
                for (int v = 0; v < vecs; v++) c[r][v] = plus_product(c[r][v], x, y[v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) to_c(vecs, C + (size_t)r * ldc, c[r], last);
}
INLINE void kernel_asks(int vecs, float *C, size_t ldc, const Pair *a, Lie l, const Pair *b, int pairs, int rows,
                        int last, bool first, Ask ask) {
    switch (rows) {
    case 1: kernel_of(1, vecs, C, ldc, a, l, b, pairs, last, first, ask); break;
    case 2: kernel_of(2, vecs, C, ldc, a, l, b, pairs, last, first, ask); break;
    case 3: kernel_of(3, vecs, C, ldc, a, l, b, pairs, last, first, ask); break;
#ifdef MANY_REGISTERS
    case 4: kernel_of(4, vecs, C, ldc, a, l, b, pairs, last, first, ask); break;
    case 5: kernel_of(5, vecs, C, ldc, a, l, b, pairs, last, first, ask); break;
    case 6: kernel_of(6, vecs, C, ldc, a, l, b, pairs, last, first, ask); break;
    case 7: kernel_of(7, vecs, C, ldc, a, l, b, pairs, last, first, ask); break;
#endif
    default: kernel_of(MR, vecs, C, ldc, a, l, b, pairs, last, first, ask);
    }
}
static void tile_asks(int vecs, float *C, size_t ldc, const Pair *a, Lie l, const Pair *b, int pairs, int rows,
                      int last, bool first, Ask ask) {
    switch (vecs) {
    case 1: kernel_asks(1, C, ldc, a, l, b, pairs, rows, last, first, ask); break;
    case 2: kernel_asks(2, C, ldc, a, l, b, pairs, rows, last, first, ask); break;
    default: kernel_asks(NV, C, ldc, a, l, b, pairs, rows, last, first, ask);
    }
}
/* mr rows of C, so few that a panel would not be worth its memory. bf16 rows of B from `row` on are transposed in
 * registers and used up at once, `vecs` times W of them in parallel, whose sums hide each other's latency. */
INLINE void in_columns(const int mr, const int vecs, float *C, size_t ldc, const Pair *a, Lie l, GemmShape s,
                       const void *B, int row) {
    Vec c[MR][NV];
    const int pairs = (s.K + 1) / 2, last = imin(W, s.N - row - (vecs - 1) * W);
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++) from_c(vecs, c[m], C + (size_t)m * ldc, last, !s.accumulate);
    const char *ask = (const char *)B + (size_t)(row + vecs * W) * (size_t)s.ldb * sizeof(uint16_t);
    for (int k = 0; k < pairs; k += W) {
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) {
            Vec r[W];
            turned_pairs(r, s, B, row + v * W, v < vecs - 1 ? W : last, k, 0);
#pragma GCC unroll 16
            for (int j = 0; j < W; j++) {
                if (j % 2 == 0) __builtin_prefetch(ask, 0, 2), ask += 64; /* as many bytes as are read */
                const Vec lo = even_of(r[j]), hi = odd_of(r[j]);
#pragma GCC unroll 8
                for (int m = 0; m < mr; m++) {
                    const Pair *x = a + (size_t)m * l.row + (size_t)(k + j);
                    c[m][v] += x->even * lo;
                    c[m][v] += x->odd * hi;
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++) to_c(vecs, C + (size_t)m * ldc, c[m], last);
}
INLINE void few_columns(const int vecs, float *C, size_t ldc, const Pair *a, Lie l, GemmShape s, const void *B,
                        int row) {
    switch (s.M) {
    case 1: in_columns(1, vecs, C, ldc, a, l, s, B, row); break;
    case 2: in_columns(2, vecs, C, ldc, a, l, s, B, row); break;
    case 3: in_columns(3, vecs, C, ldc, a, l, s, B, row); break;
    default: in_columns(4, vecs, C, ldc, a, l, s, B, row);
    }
}
