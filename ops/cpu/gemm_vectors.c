/* gemm_vectors.c: how gemm_bf16.c packs A, and makes sums in vectors. Included by it alone.
 *
 * A is rows of pairs, or, where k runs down its columns, panels of (K/2, 8). One call of the kernel makes 8 x 48 numbers of
 * C in registers. */
static inline void tiles_open(void) {}
static inline void tiles_close(void) {}

#ifndef OPS_NEON
/* ---- A ------------------------------------------------------------------------------------------------------------
 */

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
            const float *even = A + (size_t)(2 * k) * (size_t)s.lda + i, *odd = 2 * k + 1 < s.K ? even + s.lda : NULL;
            ask_rows(even, odd);
    #ifdef __AVX512BF16__
            if (s.M - i >= W && odd) {
                __m512i p = pairs_of(_mm512_loadu_ps(even), _mm512_loadu_ps(odd));
                _mm256_storeu_si256((__m256i *)at, _mm512_castsi512_si256(p));
                _mm256_storeu_si256((__m256i *)(at + a.block), _mm512_extracti64x4_epi64(p, 1));
                continue;
            }
    #endif
            pack_columns(both, even, odd, imin(W, s.M - i));
            memcpy(at, both, MR * sizeof(Pair));
            if (s.M - i > MR) memcpy(at + a.block, both + MR, MR * sizeof(Pair));
        }
}
/* Rows row..row+MR-1 of A, k along the rows; behind the last row 0. */
static void pack_a_block(Pair *to, Lie a, GemmShape s, const float *A, int row) {
    int pairs = (s.K + 1) / 2;
    for (int i = row; i < row + MR; i++, to += a.row)
        if (i < s.M)
            pack_row(to, A + (size_t)i * (size_t)s.lda, pairs, s.K % 2);
        else
            memset(to, 0, (size_t)pairs * sizeof *to);
}
#endif

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
                                                           const void *B, int row, int k0, int some, bool first) {
    float sums[GEMM_BF16_FEW * NV * W] __attribute__((aligned(64)));
    Pair b[W * NV * W] __attribute__((aligned(64)));
    memset(sums, 0, (size_t)((s.M + MR - 1) / MR * MR) * NV * W * sizeof *sums);
    for (int k = 0; k < some; k += W) {
        for (int v = 0; v < vecs; v++)
            pack_block(b + v * W, (size_t)vecs * W, s, B, row + v * W, imin(W, s.N - row - v * W), k0 + k, W, 0);
        size_t ld = (size_t)s.ldb * sizeof(uint16_t);
        const char *ask = NULL;
        if (s.narrow)
            ask = (const char *)B + (size_t)row * ld + (size_t)(k0 + k) * sizeof(Pair) + ahead_of(s, vecs, k0 + k);
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
/* One row of C, 16 numbers of it: B's rows from `row` on go from memory through registers into the sums, in the order of
 * the kernel. More rows at a time would be more places in memory than a processor reads ahead at. */
static inline void one_row(float *C, const Pair *a, GemmShape s, const void *B, int row, int k0, int some, bool first) {
    int n = imin(W, s.N - row);
    __m512 c[NV] = {_mm512_setzero_ps()}; /* store is for up to so many */
    for (int k = 0; k < some; k += W) {
        __m512i r[W];
        load_rows(r, s, B, row, n, k0 + k, ahead_of(s, 1, k0 + k));
        turn_registers(r);
    #pragma GCC unroll 16
        for (int j = 0; j < W; j++)
            if (k + j < some) c[0] = _mm512_dpbf16_ps(c[0], (__m512bh)_mm512_set1_epi32((int)a[k + j]), (__m512bh)r[j]);
    }
    store(1, C, c, n, first);
}
#elif !defined(OPS_NEON)
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
            for (int v = 0; v < width; v++) {
                c[v] += lo * low(y[v]); /* two fused steps where a processor has them */
                c[v] += hi * high(y[v]);
            }
        }
        float *to = C + (size_t)r * ldc;
        for (int v = 0; v < end; v++) to[v] = first ? c[v] : to[v] + c[v];
    }
}
#endif
static inline __attribute__((always_inline)) void tile(int vecs, float *C, size_t ldc, const Pair *a, Lie l,
                                                       const Pair *b, int pairs, int rows, int last, bool first) {
    switch (vecs) {
    case 1: kernel(MR, 1, C, ldc, a, l, b, pairs, rows, last, first); break;
    case 2: kernel(MR, 2, C, ldc, a, l, b, pairs, rows, last, first); break;
    default: kernel(MR, 3, C, ldc, a, l, b, pairs, rows, last, first);
    }
}

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
                tile(vecs, C, (size_t)s.ldc, a, w->a, b, some, imin(MR, s.M - i), last, first);
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
#ifdef __AVX512BF16__
        float *C = w->C + (size_t)v0 * W;
        (void)mem, (void)last;
        for (int v = 0; s.M == 1 && v < vecs; v++) one_row(C + v * W, w->A + k, s, B, (v0 + v) * W, k, some, first);
        switch (s.M == 1 ? 0 : vecs) {
        case 0: break;
        case 1: all_rows(1, C, w->A + k, w->a, s, B, v0 * W, k, some, first); break;
        case 2: all_rows(2, C, w->A + k, w->a, s, B, v0 * W, k, some, first); break;
        default: all_rows(3, C, w->A + k, w->a, s, B, v0 * W, k, some, first);
        }
#else
        pack_b_rows(mem, s, B, p, k, k + some, true);
        for (int i = 0; i < s.M; i += MR) {
            float *C = w->C + (size_t)i * (size_t)s.ldc + (size_t)v0 * W;
            const Pair *a = w->A + (size_t)(i / MR) * w->a.block + (size_t)k * w->a.step;
            tile(vecs, C, (size_t)s.ldc, a, w->a, mem, some, imin(MR, s.M - i), last, first);
        }
#endif
    }
}
