/* pairs.h: packs the operands of bf16 products for the CPU's kernels. The instruction multiplies pairs of elements
 * that follow each other along k, c += a.lo b.lo + a.hi b.hi. So the left operand is packed as rows of pairs, and the
 * right operand as vectors that hold the same pair of 16 columns. Files that are compiled per instruction set include
 * it. */
#pragma once
#include "ops/gemm_bf16.h"
#include "turn.h"
#include <string.h>

enum { W = 16 }; /* elements in a vector */

#if defined(__x86_64__) && !defined(KV_DOUBLE)
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
static inline Pair pair(real even, real odd) { return rounded((float)even) | rounded((float)odd) << 16; }

/* Pack 2n elements of a row as n pairs. `last`: the final odd element is missing and counts as 0. */
static inline void pack_row(Pair *to, const real *x, int n, bool last) {
    int i = 0, whole = last ? n - 1 : n;
#ifdef __AVX512BF16__
    for (; i + W <= whole; i += W)
        _mm512_storeu_si512(to + i,
                            (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 2 * i + W), _mm512_loadu_ps(x + 2 * i)));
#endif
    for (; i < whole; i++) to[i] = pair(x[2 * i], x[2 * i + 1]);
    if (last) to[i] = pair(x[2 * i], 0);
}
#ifdef __AVX512BF16__
/* W pairs, each from the same column of two consecutive rows. */
static inline __m512i pairs_of(__m512 even, __m512 odd) {
    static const uint16_t order[2 * W]
        __attribute__((aligned(64))) = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(order), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
static inline __m512i pairs_of_bf16(__m256i even, __m256i odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}
/* 2W pairs, each from the same column of two consecutive rows. */
static inline void pairs_of_lines(__m512i r[2], __m512i even, __m512i odd) {
    static const uint16_t order[2][2 * W]
        __attribute__((aligned(64))) = {{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
                                        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    r[0] = _mm512_permutex2var_epi16(even, _mm512_load_si512(order[0]), odd);
    r[1] = _mm512_permutex2var_epi16(even, _mm512_load_si512(order[1]), odd);
}
#endif
/* n <= W pairs, each from the same column of two consecutive rows; odd NULL: zeros. The rest of the W pairs is 0. */
static inline void pack_columns(Pair *to, const real *even, const real *odd, int n) {
#ifdef __AVX512BF16__
    __mmask16 in = (__mmask16)((1u << n) - 1);
    __m512 a = _mm512_maskz_loadu_ps(in, even), b = odd ? _mm512_maskz_loadu_ps(in, odd) : _mm512_setzero_ps();
    _mm512_storeu_si512(to, pairs_of(a, b));
#else
    for (int i = 0; i < W; i++) to[i] = i < n ? pair(even[i], odd ? odd[i] : 0) : 0;
#endif
}
/* The same for elements that are BF16 already. */
static inline void pack_columns_bf16(Pair *to, const uint16_t *even, const uint16_t *odd, int n) {
#ifdef __AVX512BF16__
    __mmask16 in = (__mmask16)((1u << n) - 1);
    __m256i a = _mm256_maskz_loadu_epi16(in, even),
            b = odd ? _mm256_maskz_loadu_epi16(in, odd) : _mm256_setzero_si256();
    _mm512_storeu_si512(to, pairs_of_bf16(a, b));
#else
    for (int i = 0; i < W; i++) to[i] = i < n ? even[i] | (odd ? (Pair)odd[i] << 16 : 0) : 0;
#endif
}
/* The same for rows: n pairs from 2n elements; the low half comes first, whatever the machine's byte order. */
static inline void pack_row_bf16(Pair *to, const uint16_t *x, int n, bool last) {
    int whole = last ? n - 1 : n;
    for (int i = 0; i < whole; i++) to[i] = x[2 * i] | (Pair)x[2 * i + 1] << 16;
    if (last) to[whole] = x[2 * whole];
}
/* Round n elements to BF16. */
static inline void bf16_row(uint16_t *to, const float *x, int n) {
    int i = 0;
#ifdef __AVX512BF16__
    for (; i < n; i += W) {
        __mmask16 in = n - i < W ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;
        _mm256_mask_storeu_epi16(to + i, in, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(in, x + i)));
    }
#endif
    for (; i < n; i++) to[i] = (uint16_t)rounded(x[i]);
}
/* Transpose 16 rows of 16 pairs: to[k * ld + row] = row's pair k. */
#ifdef __AVX512F__
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
