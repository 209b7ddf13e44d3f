/* gemm_bf16.c: C (+)= A B of f32 matrices with both operands rounded to bf16 and sums in f32. Compiled once per
 * OPS_ISA (baseline, avx2, avx512, avx512bf16), each giving one function.
 *
 * The processor's instruction multiplies pairs: c += a.lo b.lo + a.hi b.hi, so operands are packed as pairs of numbers
 * that follow each other along k. A panel of B is (K/2, width) pairs, width 16, 32 or 48; A is rows of pairs, or, where
 * k runs down its columns, panels of (K/2, 8). One call of the kernel makes 8 x 48 numbers of C in registers.
 *
 * Order of the sums is fixed by the shape alone, so threads change nothing. */
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

#ifdef __AVX512BF16__
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
static inline void turn(Pair *to, size_t ld, Pair rows[W][W]) {
    for (int k = 0; k < W; k++)
        for (int i = 0; i < W; i++) to[(size_t)k * ld + (size_t)i] = rows[i][k];
}

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
/* One panel of B, k along its rows. */
static void pack_b_rows(Pair *to, GemmShape s, const float *B, int p) {
    int first, vecs, pairs = (s.K + 1) / 2;
    panel(s.N, p, &first, &vecs);
    for (int v = first; v < first + vecs; v++) {
        size_t ld;
        Pair *at = place_b(to, s, p, v, &ld), rows[W][W];
        int n = imin(W, s.N - v * W);
        memset(rows, 0, sizeof rows);
        for (int k = 0; k < pairs; k += W) {
            int some = imin(W, pairs - k);
            for (int i = 0; i < n; i++)
                pack_row(rows[i], B + (size_t)(v * W + i) * (size_t)s.ldb + 2 * k, some, 2 * (k + some) > s.K);
            if (some == W)
                turn(at + (size_t)k * ld, ld, rows);
            else
                for (int j = 0; j < some; j++)
                    for (int i = 0; i < W; i++) at[(size_t)(k + j) * ld + (size_t)i] = rows[i][j];
        }
    }
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

/* rows <= MR rows of C, columns of `vecs` vectors of which the last has `last` numbers; first: C = instead of C +=. */
#ifdef __AVX512BF16__
static inline __attribute__((always_inline)) void kernel(int vecs, float *C, size_t ldc, const Pair *a, Lie l,
                                                         const Pair *b, int pairs, int rows, int last, bool first) {
    __m512 c[MR][NV];
    #pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) c[r][v] = _mm512_setzero_ps();
    for (int k = 0; k < pairs; k++) {
        __m512bh y[NV];
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++)
            y[v] = (__m512bh)_mm512_loadu_si512(b + ((size_t)k * (size_t)vecs + (size_t)v) * W);
    #pragma GCC unroll 8
        for (int r = 0; r < MR; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[(size_t)r * l.row + (size_t)k * l.step]);
    #pragma GCC unroll 3
            for (int v = 0; v < vecs; v++) c[r][v] = _mm512_dpbf16_ps(c[r][v], x, y[v]);
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < MR; r++) {
        if (r >= rows) break;
    #pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) {
            float *to = C + (size_t)r * ldc + (size_t)v * W;
            __mmask16 in = v == vecs - 1 ? (__mmask16)((1u << last) - 1) : (__mmask16)0xFFFF;
            __m512 sum = first ? c[r][v] : _mm512_add_ps(c[r][v], _mm512_maskz_loadu_ps(in, to));
            _mm512_mask_storeu_ps(to, in, sum);
        }
    }
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
static inline __attribute__((always_inline)) void kernel(int vecs, float *C, size_t ldc, const Pair *a, Lie l,
                                                         const Pair *b, int pairs, int rows, int last, bool first) {
    int width = vecs * W, end = width - W + last;
    for (int r = 0; r < rows; r++) {
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
    const Pair *A, *B;
    float *C;
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
                case 1: kernel(1, C, (size_t)s.ldc, a, w->a, b, some, rows, last, first); break;
                case 2: kernel(2, C, (size_t)s.ldc, a, w->a, b, some, rows, last, first); break;
                default: kernel(3, C, (size_t)s.ldc, a, w->a, b, some, rows, last, first);
                }
            }
        }
    }
}

void GEMM_BF16(OPS_ISA)(int threads, Arena *scratch, GemmShape s, float *C, const float *A, const float *B) {
    int np = panels(s.N), vecs = (s.N + W - 1) / W, blocks = (s.M + MR - 1) / MR, pairs = (s.K + 1) / 2;
    Lie a = lie(s);
    Mark mark = arena_mark(scratch);
    Pair *pa = arena_take(scratch, (size_t)blocks * a.block * sizeof(Pair), "A in bf16"),
         *pb = arena_take(scratch, (size_t)vecs * W * (size_t)pairs * sizeof(Pair), "B in bf16");
    if (scratch->base) {
        Work w = {s, a, pa, pb, C};
        int ni = (s.M + ROWS - 1) / ROWS, nj = imax(1, imin(np, (TASKS_PER_THREAD * threads + ni - 1) / ni));
        if (threads == 1) nj = 1;
#pragma omp parallel num_threads(threads) if ((double)s.M * s.N * s.K > 1e6)
        {
            if (s.tb) {
#pragma omp for schedule(dynamic, 1) nowait
                for (int p = 0; p < np; p++) pack_b_rows(pb, s, B, p);
            } else {
#pragma omp for schedule(dynamic, 1) nowait
                for (int k = 0; k < pairs; k += W) pack_b_columns(pb, s, B, k, imin(pairs, k + W));
            }
            if (s.ta) {
#pragma omp for schedule(dynamic, 1)
                for (int k = 0; k < pairs; k += W) pack_a_columns(pa, a, s, A, k, imin(pairs, k + W));
            } else {
#pragma omp for schedule(dynamic, MR)
                for (int i = 0; i < blocks * MR; i++)
                    pack_a_row(pa + (size_t)(i / MR) * a.block + (size_t)(i % MR) * a.row, s, A, i);
            }
#pragma omp for collapse(2) schedule(dynamic, 1)
            for (int i = 0; i < ni; i++)
                for (int j = 0; j < nj; j++)
                    task(&w, i * ROWS, imin(s.M, (i + 1) * ROWS), (int)((long)np * j / nj),
                         (int)((long)np * (j + 1) / nj));
        }
    }
    arena_release(scratch, mark);
}
