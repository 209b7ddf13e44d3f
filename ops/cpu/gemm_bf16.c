/* gemm_bf16.c: C (+)= A B of f32 matrices with both operands rounded to bf16 and sums in f32. Compiled once per
 * OPS_ISA (baseline, avx2, avx512, avx512bf16), each giving one function.
 *
 * The processor's instruction multiplies pairs: c += a.lo b.lo + a.hi b.hi, so operands are packed as pairs of numbers
 * that follow each other along k. A panel of B is (K/2, width) pairs, width 16, 32 or 48; A is rows of pairs, or, where
 * k runs down its columns, panels of (K/2, 8). One call of the kernel makes 8 x 48 numbers of C in registers.
 *
 * Few rows of C are bound by the reading of B: each panel is packed, a block of k at a time, by the thread that
 * multiplies it, and never leaves its caches.
 *
 * Order of the sums is fixed by K alone, so that neither threads nor the number of rows change anything. */
#include "../gemm_bf16.h"
#include <omp.h>

enum {
    MR = 8,     /* rows of C that the kernel makes at once */
    NV = 3,     /* vectors of 16: 8 x 3 sums, 3 of B and a broadcast in 32 registers */
    W = 16,     /* numbers in a vector */
    KP = 384,   /* pairs of k between two visits to C: an A block of ROWS then takes 192 KB of the second cache */
    ROWS = 128, /* rows of C in a task */
    TASKS_PER_THREAD = 6
};

#ifdef __x86_64__
    #include <immintrin.h>
#endif

typedef uint32_t Pair; /* low half: the even k */

static inline uint32_t rounded(float x) { /* to nearest, ties to even; NaN stays NaN; a denormal is 0 */
    union {
        float f;
        uint32_t u;
    } b = {x};
    uint32_t size = b.u & 0x7FFFFFFF;
    if (size > 0x7F800000) return (b.u >> 16) | 0x40;
    if (size < 0x00800000) return (b.u >> 16) & 0x8000;
    return (b.u + 0x7FFF + (b.u >> 16 & 1)) >> 16;
}
static inline Pair pair(float even, float odd) { return rounded(even) | rounded(odd) << 16; }

/* n pairs from 2n numbers in a row; `last`: the final odd one is missing and counts as 0. */
static void pack_row(Pair *to, const float *x, int n, bool last) {
    int i = 0, whole = last ? n - 1 : n;
#ifdef __AVX512BF16__
    for (; i + W <= whole; i += W)
        _mm512_storeu_si512(to + i,
                            (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 2 * i + W), _mm512_loadu_ps(x + 2 * i)));
#endif
    for (; i < whole; i++) to[i] = pair(x[2 * i], x[2 * i + 1]);
    if (last) to[i] = pair(x[2 * i], 0);
}
/* n <= W pairs, from two rows below each other; odd NULL: zeros. The rest of W is 0. */
static inline void pack_columns(Pair *to, const float *even, const float *odd, int n) {
#ifdef __AVX512BF16__
    __mmask16 in = (__mmask16)((1u << n) - 1);
    __m512 a = _mm512_maskz_loadu_ps(in, even), b = odd ? _mm512_maskz_loadu_ps(in, odd) : _mm512_setzero_ps();
    __m512i lo = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a)),
            hi = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b));
    _mm512_storeu_si512(to, _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
#else
    for (int i = 0; i < W; i++) to[i] = i < n ? pair(even[i], odd ? odd[i] : 0) : 0;
#endif
}
/* 16 rows of 16 pairs turned: to[k * ld + row] = row's pair k. */
#ifdef __AVX512F__
static inline __attribute__((always_inline)) void turn_registers(__m512i r[W]) {
    __m512i t[W];
    #pragma GCC unroll 4
    for (int i = 0; i < W; i += 4) { /* 4 x 4 inside each quarter */
        __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]),
                c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c), t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d), t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    #pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* then the quarters: t[4 g + i] holds column 4 q + i of rows 4 g.. in quarter q */
        __m512i a = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x44), b = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xEE),
                c = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x44),
                d = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xEE);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88), r[4 + i] = _mm512_shuffle_i32x4(a, c, 0xDD);
        r[8 + i] = _mm512_shuffle_i32x4(b, d, 0x88), r[12 + i] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
}
static inline void turn(Pair *to, size_t ld, Pair rows[W][W]) {
    __m512i r[W];
    for (int i = 0; i < W; i++) r[i] = _mm512_loadu_si512(rows[i]);
    turn_registers(r);
    for (int k = 0; k < W; k++) _mm512_storeu_si512(to + (size_t)k * ld, r[k]);
}
#elif defined(__AVX2__)
static inline void turn(Pair *to, size_t ld, Pair rows[W][W]) {
    for (int i = 0; i < W; i += 8)
        for (int k = 0; k < W; k += 8) {
            __m256 r[8], t[8];
            for (int j = 0; j < 8; j++) r[j] = _mm256_loadu_ps((const float *)(rows[i + j] + k));
            for (int j = 0; j < 8; j += 4) {
                __m256 a = _mm256_unpacklo_ps(r[j], r[j + 1]), b = _mm256_unpackhi_ps(r[j], r[j + 1]),
                       c = _mm256_unpacklo_ps(r[j + 2], r[j + 3]), d = _mm256_unpackhi_ps(r[j + 2], r[j + 3]);
                t[j] = _mm256_shuffle_ps(a, c, 0x44), t[j + 1] = _mm256_shuffle_ps(a, c, 0xEE);
                t[j + 2] = _mm256_shuffle_ps(b, d, 0x44), t[j + 3] = _mm256_shuffle_ps(b, d, 0xEE);
            }
            for (int j = 0; j < 4; j++) {
                _mm256_storeu_ps((float *)(to + (size_t)(k + j) * ld + i),
                                 _mm256_permute2f128_ps(t[j], t[4 + j], 0x20));
                _mm256_storeu_ps((float *)(to + (size_t)(k + 4 + j) * ld + i),
                                 _mm256_permute2f128_ps(t[j], t[4 + j], 0x31));
            }
        }
}
#else
static inline void turn(Pair *to, size_t ld, Pair rows[W][W]) {
    for (int k = 0; k < W; k++)
        for (int i = 0; i < W; i++) to[(size_t)k * ld + (size_t)i] = rows[i][k];
}
#endif

/* ---- B ------------------------------------------------------------------------------------------------------------
 */

/* Panels of 3 vectors; a single vector that would be left at the end takes one of its neighbour's. */
static int panels(int N) {
    int vecs = (N + W - 1) / W;
    return (vecs + NV - 1) / NV;
}
static void panel(int N, int p, int *first, int *vecs) {
    int all = (N + W - 1) / W, n = panels(N);
    bool even = all % NV == 1 && n > 1;
    *first = NV * p - (even && p == n - 1);
    *vecs = (even && p == n - 2) ? NV - 1 : (p == n - 1 ? all - *first : NV);
}
/* Where vector v of the columns goes; *ld: from one pair of k to the next. */
static Pair *place_b(Pair *to, GemmShape s, int p, int v, size_t *ld) {
    int first, vecs;
    panel(s.N, p, &first, &vecs);
    *ld = (size_t)vecs * W;
    return to + (size_t)first * W * (((size_t)s.K + 1) / 2) + (size_t)(v - first) * W;
}
/* Pairs k0..k1-1 of all of B, k down its columns. */
static void pack_b_columns(Pair *to, GemmShape s, const float *B, int k0, int k1) {
    for (int p = 0; p < panels(s.N); p++) {
        int first, vecs;
        panel(s.N, p, &first, &vecs);
        for (int v = first; v < first + vecs; v++) {
            size_t ld;
            Pair *at = place_b(to, s, p, v, &ld);
            for (int k = k0; k < k1; k++) {
                const float *even = B + (size_t)(2 * k) * (size_t)s.ldb + v * W;
                pack_columns(at + (size_t)k * ld, even, 2 * k + 1 < s.K ? even + s.ldb : NULL, imin(W, s.N - v * W));
            }
        }
    }
}
/* B's rows row.. (n <= W of them, the rest counts as 0), pairs k..k+W-1, beyond K 0; k along the rows. Of narrow rows
 * what lies `ahead` bytes on is asked for as well; 0: nothing. */
#ifdef __AVX512BF16__
static inline __attribute__((always_inline)) void load_rows(__m512i r[W], GemmShape s, const void *B, int row, int n,
                                                            int k, size_t ahead) {
    int left = s.K - 2 * k;
    __mmask32 in = left >= 2 * W ? 0xFFFFFFFF : (__mmask32)((1u << left) - 1);
    size_t at = (size_t)row * (size_t)s.ldb + 2 * (size_t)k;
    if (s.narrow && n == W && left >= 2 * W) {
        const uint16_t *x = (const uint16_t *)B + at;
    #pragma GCC unroll 16
        for (int i = 0; i < W; i++, x += s.ldb) {
            r[i] = _mm512_loadu_si512(x);
            if (ahead) _mm_prefetch((const char *)x + ahead, _MM_HINT_T1);
        }
        return;
    }
    #pragma GCC unroll 16
    for (int i = 0; i < W; i++, at += (size_t)s.ldb) {
        if (i >= n) {
            r[i] = _mm512_setzero_si512();
        } else if (s.narrow) {
            r[i] = _mm512_maskz_loadu_epi16(in, (const uint16_t *)B + at);
        } else {
            const float *x = (const float *)B + at;
            r[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps((__mmask16)(in >> W), x + W),
                                                _mm512_maskz_loadu_ps((__mmask16)in, x));
        }
    }
}
static inline void pack_block(Pair *to, size_t ld, GemmShape s, const void *B, int row, int n, int k, int some,
                              size_t ahead) {
    __m512i r[W];
    load_rows(r, s, B, row, n, k, ahead);
    turn_registers(r);
    #pragma GCC unroll 16
    for (int j = 0; j < W; j++)
        if (j < some) _mm512_storeu_si512(to + (size_t)j * ld, r[j]);
}
#else
static inline void pack_block(Pair *to, size_t ld, GemmShape s, const void *B, int row, int n, int k, int some,
                              size_t ahead) {
    Pair rows[W][W];
    if (n < W || some < W) memset(rows, 0, sizeof rows);
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)(row + i) * (size_t)s.ldb + 2 * (size_t)k;
        if (!s.narrow) {
            pack_row(rows[i], (const float *)B + at, some, 2 * (k + some) > s.K);
            continue;
        }
        const uint16_t *x = (const uint16_t *)B + at;
        if (ahead) __builtin_prefetch((const char *)x + ahead, 0, 2);
        /* low half first, whatever the machine's order of bytes */
        int whole = imin(some, (s.K - 2 * k) / 2);
        for (int j = 0; j < whole; j++) rows[i][j] = x[2 * j] | (Pair)x[2 * j + 1] << 16;
        if (whole < some) rows[i][whole] = x[2 * whole];
    }
    if (some == W)
        turn(to, ld, rows);
    else
        for (int j = 0; j < some; j++)
            for (int i = 0; i < W; i++) to[(size_t)j * ld + (size_t)i] = rows[i][j];
}
#endif
/* Pairs k0..k1-1 (k0 a multiple of W) of one panel of B, k along its rows; pair k0 goes to `to`. */
static void pack_b_rows(Pair *to, GemmShape s, const void *B, int p, int k0, int k1, size_t ahead) {
    int first, vecs;
    panel(s.N, p, &first, &vecs);
    size_t ld = (size_t)vecs * W;
    for (int v = 0; v < vecs; v++)
        for (int k = k0; k < k1; k += W)
            pack_block(to + (size_t)(k - k0) * ld + (size_t)v * W, ld, s, B, (first + v) * W,
                       imin(W, s.N - (first + v) * W), k, imin(W, k1 - k), ahead);
}

/* ---- A ------------------------------------------------------------------------------------------------------------
 */

/* How A lies when packed: pair k of row i at (i / MR) block + (i % MR) row + k step. */
typedef struct {
    size_t block, row, step;
} Lie;
static Lie lie(GemmShape s) {
    size_t pairs = ((size_t)s.K + 1) / 2;
    if (s.ta) return (Lie){pairs * MR, 1, MR};
    size_t ld = (pairs + W - 1) / W * W;
    if (ld % 256 == 0) ld += W; /* rows one page apart would fall onto the same lines of the first cache */
    return (Lie){ld * MR, ld, 1};
}
/* Pairs k0..k1-1 of all of A, k down its columns. */
static void pack_a_columns(Pair *to, Lie a, GemmShape s, const float *A, int k0, int k1) {
    for (int i = 0; i < s.M; i += W)
        for (int k = k0; k < k1; k++) {
            Pair both[W], *at = to + (size_t)(i / MR) * a.block + (size_t)k * MR;
            const float *even = A + (size_t)(2 * k) * (size_t)s.lda + i;
            pack_columns(both, even, 2 * k + 1 < s.K ? even + s.lda : NULL, imin(W, s.M - i));
            memcpy(at, both, MR * sizeof(Pair));
            if (s.M - i > MR) memcpy(at + a.block, both + MR, MR * sizeof(Pair));
        }
}
static void pack_a_row(Pair *to, GemmShape s, const float *A, int row) {
    int pairs = (s.K + 1) / 2;
    if (row < s.M)
        pack_row(to, A + (size_t)row * (size_t)s.lda, pairs, s.K % 2);
    else
        memset(to, 0, (size_t)pairs * sizeof *to);
}

/* ---- the kernel ---------------------------------------------------------------------------------------------------
 */

/* rows <= mr rows of C, columns of `vecs` vectors of which the last has `last` numbers; first: C = instead of C +=. */
#ifdef __AVX512BF16__
static inline __attribute__((always_inline)) void store(int vecs, float *C, const __m512 c[NV], int last, bool first) {
    #pragma GCC unroll 3
    for (int v = 0; v < vecs; v++) {
        float *to = C + (size_t)v * W;
        __mmask16 in = v == vecs - 1 ? (__mmask16)((1u << last) - 1) : (__mmask16)0xFFFF;
        __m512 sum = first ? c[v] : _mm512_add_ps(c[v], _mm512_maskz_loadu_ps(in, to));
        _mm512_mask_storeu_ps(to, in, sum);
    }
}
static inline __attribute__((always_inline)) void kernel(int mr, int vecs, float *C, size_t ldc, const Pair *a, Lie l,
                                                         const Pair *b, int pairs, int rows, int last, bool first) {
    __m512 c[MR][NV];
    #pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) c[r][v] = _mm512_setzero_ps();
    for (int k = 0; k < pairs; k++) {
        __m512bh y[NV];
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++)
            y[v] = (__m512bh)_mm512_loadu_si512(b + ((size_t)k * (size_t)vecs + (size_t)v) * W);
    #pragma GCC unroll 8
        for (int r = 0; r < mr; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[(size_t)r * l.row + (size_t)k * l.step]);
    #pragma GCC unroll 3
            for (int v = 0; v < vecs; v++) c[r][v] = _mm512_dpbf16_ps(c[r][v], x, y[v]);
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
        if (r < rows) store(vecs, C + (size_t)r * ldc, c[r], last, first);
}
/* rows <= mr rows of sums go on by W pairs of k, in the order of the kernel. Meanwhile the rows of B `ld` bytes apart
 * from `ask` on are asked for, one of each vector at a time: all at once they would stand in each other's way. */
static inline __attribute__((always_inline)) void go_on(int mr, int vecs, float *sums, const Pair *a, Lie l,
                                                        const Pair *b, int some, const char *ask, size_t ld) {
    __m512 c[MR][NV];
    #pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) c[r][v] = _mm512_loadu_ps(sums + (r * NV + v) * W);
    for (int k = 0; k < some; k++) {
        __m512bh y[NV];
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) {
            y[v] = (__m512bh)_mm512_loadu_si512(b + (k * vecs + v) * W);
            if (ask) _mm_prefetch(ask + (size_t)(k + v * W) * ld, _MM_HINT_T1);
        }
    #pragma GCC unroll 8
        for (int r = 0; r < mr; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[(size_t)r * l.row + (size_t)k * l.step]);
    #pragma GCC unroll 3
            for (int v = 0; v < vecs; v++) c[r][v] = _mm512_dpbf16_ps(c[r][v], x, y[v]);
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) _mm512_storeu_ps(sums + (r * NV + v) * W, c[r][v]);
}
/* All rows of C: W pairs of k at a time are turned and used up at once, so that the memory is at work on what comes
 * next while the sums are made. */
static inline __attribute__((always_inline)) void all_rows(int vecs, float *C, const Pair *a, Lie l, GemmShape s,
                                                           const void *B, int row, int k0, int some, bool first,
                                                           size_t ahead) {
    float sums[GEMM_BF16_FEW * NV * W] __attribute__((aligned(64)));
    Pair b[W * NV * W] __attribute__((aligned(64)));
    memset(sums, 0, (size_t)((s.M + MR - 1) / MR * MR) * NV * W * sizeof *sums);
    for (int k = 0; k < some; k += W) {
        for (int v = 0; v < vecs; v++)
            pack_block(b + v * W, (size_t)vecs * W, s, B, row + v * W, imin(W, s.N - row - v * W), k0 + k, W, 0);
        size_t ld = (size_t)s.ldb * sizeof(uint16_t);
        const char *ask = NULL;
        if (s.narrow && ahead) ask = (const char *)B + (size_t)row * ld + (size_t)(k0 + k) * sizeof(Pair) + ahead;
        for (int i = 0; i < s.M; i += MR, ask = NULL) {
            const Pair *ai = a + (size_t)(i / MR) * l.block + (size_t)k * l.step;
            float *to = sums + i * NV * W;
            int n = imin(W, some - k);
            switch (imin(MR, s.M - i)) {
            case 1: go_on(1, vecs, to, ai, l, b, n, ask, ld); break;
            case 2: go_on(2, vecs, to, ai, l, b, n, ask, ld); break;
            case 3:
            case 4: go_on(4, vecs, to, ai, l, b, n, ask, ld); break;
            default: go_on(MR, vecs, to, ai, l, b, n, ask, ld);
            }
        }
    }
    for (int i = 0; i < s.M; i++) {
        __m512 c[NV];
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) c[v] = _mm512_load_ps(sums + (i * NV + v) * W);
        store(vecs, C + (size_t)i * (size_t)s.ldc, c, imin(W, s.N - row - (vecs - 1) * W), first);
    }
}
/* One row of C: B, `vecs` vectors of rows from `row` on, goes from memory through registers into the sums, in the order
 * of the kernel. */
static inline __attribute__((always_inline)) void one_row(int vecs, float *C, const Pair *a, GemmShape s, const void *B,
                                                          int row, int k0, int some, bool first, size_t ahead) {
    __m512 c[NV];
    #pragma GCC unroll 3
    for (int v = 0; v < vecs; v++) c[v] = _mm512_setzero_ps();
    for (int k = 0; k < some; k += W)
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) {
            __m512i r[W];
            load_rows(r, s, B, row + v * W, imin(W, s.N - row - v * W), k0 + k, ahead);
            turn_registers(r);
    #pragma GCC unroll 16
            for (int j = 0; j < W; j++)
                if (k + j < some)
                    c[v] = _mm512_dpbf16_ps(c[v], (__m512bh)_mm512_set1_epi32((int)a[k + j]), (__m512bh)r[j]);
        }
    store(vecs, C, c, imin(W, s.N - row - (vecs - 1) * W), first);
}
#else
static inline float low(Pair p) {
    union {
        uint32_t u;
        float f;
    } b = {p << 16};
    return b.f;
}
static inline float high(Pair p) {
    union {
        uint32_t u;
        float f;
    } b = {p & 0xFFFF0000};
    return b.f;
}
static inline __attribute__((always_inline)) void kernel(int mr, int vecs, float *C, size_t ldc, const Pair *a, Lie l,
                                                         const Pair *b, int pairs, int rows, int last, bool first) {
    int width = vecs * W, end = width - W + last;
    for (int r = 0; r < imin(rows, mr); r++) {
        float c[NV * W] = {0};
        for (int k = 0; k < pairs; k++) {
            Pair x = a[(size_t)r * l.row + (size_t)k * l.step];
            const Pair *y = b + (size_t)k * (size_t)width;
            float lo = low(x), hi = high(x);
    #pragma omp simd
            for (int v = 0; v < width; v++) c[v] += lo * low(y[v]) + hi * high(y[v]);
        }
        float *to = C + (size_t)r * ldc;
        for (int v = 0; v < end; v++) to[v] = first ? c[v] : to[v] + c[v];
    }
}
#endif

typedef struct {
    GemmShape s;
    Lie a;
    Pair *A, *B;
    float *C;
    bool packs_a, packs_b; /* else another product does */
    int more, ni, nj;      /* products behind this one that add to the same C; tasks of rows and of panels */
} Work;
/* Rows i0..i1-1 (i0 a multiple of MR) of panels p0..p1-1. */
static void task(const Work *w, int i0, int i1, int p0, int p1) {
    const GemmShape s = w->s;
    int pairs = (s.K + 1) / 2;
    for (int k = 0; k < pairs; k += KP) {
        int some = imin(KP, pairs - k);
        bool first = k == 0 && !s.accumulate;
        for (int p = p0; p < p1; p++) {
            int v0, vecs;
            panel(s.N, p, &v0, &vecs);
            const Pair *b = w->B + (size_t)v0 * W * (size_t)pairs + (size_t)k * (size_t)vecs * W;
            int last = imin(W, s.N - (v0 + vecs - 1) * W);
            for (int i = i0; i < i1; i += MR) {
                const Pair *a = w->A + (size_t)(i / MR) * w->a.block + (size_t)k * w->a.step;
                float *C = w->C + (size_t)i * (size_t)s.ldc + (size_t)v0 * W;
                int rows = imin(MR, s.M - i);
                switch (vecs) {
                case 1: kernel(MR, 1, C, (size_t)s.ldc, a, w->a, b, some, rows, last, first); break;
                case 2: kernel(MR, 2, C, (size_t)s.ldc, a, w->a, b, some, rows, last, first); break;
                default: kernel(MR, 3, C, (size_t)s.ldc, a, w->a, b, some, rows, last, first);
                }
            }
        }
    }
}

/* ---- few rows -----------------------------------------------------------------------------------------------------
 */

#ifdef __AVX512BF16__
enum { FEW_MEM = 0 };
#else
enum { FEW_MEM = 1 };
#endif
static size_t few_pairs(GemmShape s) { return FEW_MEM * (size_t)imin(KP, (s.K + 1) / 2) * NV * W; }
/* All rows of panel p; mem: few_pairs. */
static void few_panel(const Work *w, const void *B, int p, Pair *mem) {
    const GemmShape s = w->s;
    int pairs = (s.K + 1) / 2, v0, vecs;
    panel(s.N, p, &v0, &vecs);
    int last = imin(W, s.N - (v0 + vecs - 1) * W);
    for (int k = 0; k < pairs; k += KP) {
        int some = imin(KP, pairs - k);
        bool first = k == 0 && !s.accumulate;
        /* the same place in what comes next: the next block of these rows, or the first of the rows behind them */
        size_t ahead = k + KP < pairs ? KP * sizeof(Pair) : 2 * ((size_t)vecs * W * (size_t)s.ldb - 2 * (size_t)k);
#ifdef __AVX512BF16__
        float *C = w->C + (size_t)v0 * W;
        (void)mem, (void)last;
        switch (s.M == 1 ? -vecs : vecs) {
        case -1: one_row(1, C, w->A + k, s, B, v0 * W, k, some, first, ahead); break;
        case -2: one_row(2, C, w->A + k, s, B, v0 * W, k, some, first, ahead); break;
        case -3: one_row(3, C, w->A + k, s, B, v0 * W, k, some, first, ahead); break;
        case 1: all_rows(1, C, w->A + k, w->a, s, B, v0 * W, k, some, first, ahead); break;
        case 2: all_rows(2, C, w->A + k, w->a, s, B, v0 * W, k, some, first, ahead); break;
        default: all_rows(3, C, w->A + k, w->a, s, B, v0 * W, k, some, first, ahead);
        }
#else
        pack_b_rows(mem, s, B, p, k, k + some, ahead);
        for (int i = 0; i < s.M; i += MR) {
            float *C = w->C + (size_t)i * (size_t)s.ldc + (size_t)v0 * W;
            const Pair *a = w->A + (size_t)(i / MR) * w->a.block + (size_t)k * w->a.step;
            kernel(MR, vecs, C, (size_t)s.ldc, a, w->a, mem, some, imin(MR, s.M - i), last, first);
        }
#endif
    }
}

/* ---- all products of a call ---------------------------------------------------------------------------------------
 */

/* Which product shares what with which; how many tasks there are. Takes the packed operands' memory; of few rows
 * `panel` is a panel for each thread instead of every B. */
static int prepare(int threads, Arena *scratch, int n, const GemmJob *jobs, Work *w, bool few, Pair **panel_mem) {
    size_t own = 0;
    int rows = 0, tasks = 0;
    for (int j = 0; j < n; j++) own = zmax(own, few_pairs(jobs[j].s));
    *panel_mem = few ? arena_take(scratch, (size_t)threads * own * sizeof(Pair), "B in bf16") : NULL;
    for (int j = 0; j < n; j++) {
        const GemmShape s = jobs[j].s;
        int like_a = 0, like_b = 0, first = j;
        while (jobs[like_a].a != jobs[j].a) like_a++;
        while (jobs[like_b].b != jobs[j].b) like_b++;
        while (first > 0 && jobs[first - 1].c == jobs[j].c) first--;
        const GemmShape sa = jobs[like_a].s, sb = jobs[like_b].s, sc = jobs[first].s;
        CHECK(sa.M == s.M && sa.K == s.K && sa.ta == s.ta && sb.N == s.N && sb.K == s.K && sb.tb == s.tb &&
                  sb.narrow == s.narrow && sc.M == s.M && sc.N == s.N && (first == j || (s.accumulate && !few)) &&
                  (s.tb || !s.narrow) && few == (s.tb && !s.ta && s.M <= GEMM_BF16_FEW),
              "product %d, (%d,%d,%d), and those that it shares with", j, s.M, s.N, s.K);
        w[j] = (Work){.s = s, .a = lie(s), .C = jobs[j].C, .packs_a = like_a == j, .packs_b = like_b == j};
        size_t blocks = ((size_t)s.M + MR - 1) / MR, whole = ((size_t)s.N + W - 1) / W * W * (((size_t)s.K + 1) / 2);
        w[j].A = w[j].packs_a ? arena_take(scratch, blocks * w[j].a.block * sizeof(Pair), "A in bf16") : w[like_a].A;
        /* a pass of few rows must find room where one of many was measured */
        if (s.tb) whole = zmax(whole, (size_t)threads * few_pairs(s));
        if (!few) w[j].B = w[j].packs_b ? arena_take(scratch, whole * sizeof(Pair), "B in bf16") : w[like_b].B;
        if (first == j)
            rows += (s.M + ROWS - 1) / ROWS;
        else
            w[first].more++;
    }
    for (int j = 0; j < n; j += 1 + w[j].more) {
        int np = panels(w[j].s.N);
        w[j].ni = (w[j].s.M + ROWS - 1) / ROWS;
        w[j].nj = threads == 1 ? 1 : imax(1, imin(np, (TASKS_PER_THREAD * threads + rows - 1) / rows));
        tasks += w[j].ni * w[j].nj;
    }
    return tasks;
}
static void pack_a_rows(const Work *w, const float *A, int i) {
    pack_a_row(w->A + (size_t)(i / MR) * w->a.block + (size_t)(i % MR) * w->a.row, w->s, A, i);
}
/* By all threads together: product w's share of packing. */
static void pack(const Work *w, const GemmJob *job) {
    const GemmShape s = w->s;
    int pairs = (s.K + 1) / 2;
    if (w->packs_b && s.tb) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int p = 0; p < panels(s.N); p++) {
            int first, n;
            panel(s.N, p, &first, &n);
            pack_b_rows(w->B + (size_t)first * W * (size_t)pairs, s, job->B, p, 0, pairs, 0);
        }
    } else if (w->packs_b) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int k = 0; k < pairs; k += W) pack_b_columns(w->B, s, job->B, k, imin(pairs, k + W));
    }
    if (w->packs_a && s.ta) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int k = 0; k < pairs; k += W) pack_a_columns(w->A, w->a, s, job->A, k, imin(pairs, k + W));
    } else if (w->packs_a) {
#pragma omp for schedule(dynamic, MR) nowait
        for (int i = 0; i < (s.M + MR - 1) / MR * MR; i++) pack_a_rows(w, job->A, i);
    }
}
/* Panels of all products, one list: a thread that is done takes what is next, whosever it is. */
static void few_rows(int threads, int n, const GemmJob *jobs, const Work *w, Pair *mem, size_t own, double size) {
    int all = 0;
    for (int j = 0; j < n; j++) {
        all += panels(w[j].s.N);
        for (int i = 0; w[j].packs_a && i < (w[j].s.M + MR - 1) / MR * MR; i++) pack_a_rows(&w[j], jobs[j].A, i);
    }
    int run = imax(1, imin(8, all / (TASKS_PER_THREAD * threads)));
#pragma omp parallel for schedule(dynamic, run) num_threads(threads) if (size > 1.5e5)
    for (int i = 0; i < all; i++) {
        int j = 0, p = i;
        for (; p >= panels(w[j].s.N); j++) p -= panels(w[j].s.N);
        few_panel(&w[j], jobs[j].B, p, mem + (size_t)omp_get_thread_num() * own);
    }
}

void GEMM_BF16(OPS_ISA)(int threads, Arena *scratch, int n, const GemmJob *jobs) {
    CHECK(n > 0 && n <= GEMM_JOBS, "%d products", n);
    Work w[GEMM_JOBS];
    Pair *panel_mem;
    Mark mark = arena_mark(scratch);
    bool few = jobs->s.tb && !jobs->s.ta && jobs->s.M <= GEMM_BF16_FEW;
    int tasks = prepare(threads, scratch, n, jobs, w, few, &panel_mem);
    double size = 0;
    size_t own = 0;
    for (int j = 0; j < n; j++) {
        size += (double)w[j].s.M * w[j].s.N * w[j].s.K;
        own = zmax(own, few_pairs(w[j].s));
    }
    if (scratch->base && few) {
        few_rows(threads, n, jobs, w, panel_mem, own, size);
    } else if (scratch->base) {
#pragma omp parallel num_threads(threads) if (size > 1e6)
        {
            for (int j = 0; j < n; j++) pack(&w[j], &jobs[j]);
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
            for (int t = 0; t < tasks; t++) {
                int j = 0, left = t;
                for (; left >= w[j].ni * w[j].nj; j += 1 + w[j].more) left -= w[j].ni * w[j].nj;
                int i = left / w[j].nj * ROWS, part = left % w[j].nj, np = panels(w[j].s.N);
                for (int k = j; k <= j + w[j].more; k++)
                    task(&w[k], i, imin(w[k].s.M, i + ROWS), (int)((long)np * part / w[j].nj),
                         (int)((long)np * (part + 1) / w[j].nj));
            }
        }
    }
    arena_release(scratch, mark);
}
