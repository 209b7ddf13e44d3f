/* gemm_vectors.c: packing of A, and the kernel of gemm_bf16.c in vectors. Only gemm_bf16.c includes it.
 *
 * A is rows of pairs, or, if k runs down its columns, panels of (K/2, 8). For 9 to GEMM_BF16_FEW rows, with the bf16
 * instruction, it is panels of (K/2, 16). One call of the kernel computes 8 x 48 elements of C in registers. */
static inline void tiles_open(void) {}
static inline void tiles_close(void) {}

#ifdef __AVX512BF16__
/* ---- A ----------------------------------------------------------------------------------------------------------- */

static Lie lie(GemmShape s) {
    size_t pairs = ((size_t)s.K + 1) / 2;
    if (s.tb && !s.ta && s.M > MR && s.M <= GEMM_BF16_FEW) return (Lie){pairs * MR, 1, W}; /* at even blocks */
    if (s.ta) return (Lie){pairs * MR, 1, MR};
    size_t ld = (pairs + W - 1) / W * W;
    if (ld % 256 == 0) ld += W; /* rows one page apart would compete for the same lines of the first cache */
    return (Lie){ld * MR, ld, 1};
}
/* bf16 rows with k along them are already pairs; the kernel reads MR of them at once. */
static bool taken_in_place(GemmShape s, const void *A, Lie *a) {
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !s.a_bf16 || s.ta) return false;
    if (s.K % 2 || s.lda % 2 || s.M % MR || (uintptr_t)A % sizeof(Pair)) return false;
    size_t ld = (size_t)s.lda / 2;
    *a = (Lie){ld * MR, ld, 1};
    return true;
}
/* Pairs k0..k1-1 of all of A, k down its columns. */
static void pack_a_columns(Pair *to, Lie a, GemmShape s, const void *A, int k0, int k1) {
    int i = 0;
    for (; (k1 - k0) % 2 == 0 && 2 * k1 <= s.K && i + 2 * W <= s.M; i += 2 * W) {
        size_t ask = ask_on(s.M, s.lda, s.a_bf16, i);
        Pair *at = to + (size_t)(i / MR) * a.block;
        for (int k = k0; k < k1; k += 2) { /* two pairs of 8 rows are a line */
            __m512i r[2], t[2];
            two_lines(r, A, s.lda, s.a_bf16, k, i, ask);
            two_lines(t, A, s.lda, s.a_bf16, k + 1, i, ask);
            for (int h = 0; h < 2; h++) {
                Pair *line = at + 2 * (size_t)h * a.block + (size_t)k * MR;
                _mm512_storeu_si512(line, _mm512_shuffle_i64x2(r[h], t[h], 0x44));
                _mm512_storeu_si512(line + a.block, _mm512_shuffle_i64x2(r[h], t[h], 0xEE));
            }
        }
    }
    for (; i < s.M; i += W)
        for (int k = k0; k < k1; k++) {
            Pair both[W] __attribute__((aligned(64))), *at = to + (size_t)(i / MR) * a.block + (size_t)k * MR;
            two_rows(both, A, s.lda, s.a_bf16, s.K, k, i, imin(W, s.M - i));
            memcpy(at, both, MR * sizeof(Pair));
            if (s.M - i > MR) memcpy(at + a.block, both + MR, MR * sizeof(Pair));
        }
}
/* Pack rows row..row+MR-1 of A, k along the rows; rows past the last are 0. */
static void pack_a_block(Pair *to, Lie a, GemmShape s, const void *A, int row) {
    int pairs = (s.K + 1) / 2;
    if (a.step == W) {
        GemmShape turned = {.K = s.K, .ldb = s.lda, .b_bf16 = s.a_bf16};
        for (int k = 0; k < pairs && row % W == 0; k += W)
            pack_block(to + (size_t)k * W, W, turned, A, row, imin(W, s.M - row), k, imin(W, pairs - k), 0);
        return;
    }
    for (int i = row; i < row + MR; i++, to += a.row)
        if (i < s.M && s.a_bf16)
            pack_row_bf16(to, (const uint16_t *)A + (size_t)i * (size_t)s.lda, pairs, s.K % 2);
        else if (i < s.M)
            pack_row(to, (const float *)A + (size_t)i * (size_t)s.lda, pairs, s.K % 2);
        else
            memset(to, 0, (size_t)pairs * sizeof *to);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* rows <= mr rows of C, columns of `vecs` vectors, the last of which has `last` elements; first: C = instead of C
 * +=. */
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
        if (k < mr * vecs) __builtin_prefetch(C + (size_t)(k / vecs) * ldc + (k % vecs) * W, 1, 3);
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
/* Continue 16 columns of C for `groups` times W of its rows, one lane each, by `some` pairs of k in the kernel's
 * order: `rows` elements of B, read in place, are multiplied by vectors of A. Meanwhile B's rows are prefetched
 * `ahead` bytes further, one row at a time, because prefetches issued all at once would delay each other. */
typedef int PairBits __attribute__((aligned(1), may_alias));
static inline __attribute__((always_inline)) void go_on(int rows, int groups, float *sums, const Pair *a, size_t block,
                                                        const char *b, size_t ld, int some, size_t ahead) {
    __m512 c[W][2];
    #pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < groups; g++) c[r][g] = _mm512_load_ps(sums + (g * W + r) * W);
    for (int k = 0; k < some; k++, a += W, b += sizeof(Pair)) {
        __m512bh x[2];
        for (int g = 0; g < groups; g++) x[g] = (__m512bh)_mm512_load_si512(a + (size_t)g * block);
        if (ahead && k % W < rows) _mm_prefetch(b + (size_t)(k % W) * (ld - sizeof(Pair)) + ahead, _MM_HINT_T1);
    #pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            __m512bh y = (__m512bh)_mm512_set1_epi32(*(const PairBits *)(b + (size_t)r * ld));
            for (int g = 0; g < groups; g++) c[r][g] = _mm512_dpbf16_ps(c[r][g], y, x[g]);
        }
    }
    #pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < groups; g++) _mm512_store_ps(sums + (g * W + r) * W, c[r][g]);
}
/* With rows of C as lanes, if there are enough of them: all rows of C, 16 columns of it. */
static inline void in_lanes(float *C, const Pair *a, Lie l, GemmShape s, const void *B, int row, int k0, int some,
                            bool first) {
    enum { RUN = 4 * W };
    float sums[GEMM_BF16_FEW / W][W * W] __attribute__((aligned(64)));
    Pair mem[W * RUN] __attribute__((aligned(64)));
    int n = imin(W, s.N - row), groups = (s.M + W - 1) / W;
    memset(sums, 0, (size_t)groups * sizeof *sums);
    for (int k = 0; k < some; k += RUN) {
        int run = imin(RUN, some - k);
        const char *b = (const char *)mem;
        size_t ld = RUN * sizeof(Pair), ahead = 0;
        if (s.b_bf16 && n == W && 2 * (k0 + k + run) <= s.K) {
            ld = (size_t)s.ldb * sizeof(uint16_t);
            b = (const char *)B + (size_t)row * ld + (size_t)(k0 + k) * sizeof(Pair);
            ahead = ahead_of(s, 1, k0 + k);
        } else { /* not bf16 pairs yet, or not complete */
            for (int j = 0; j < run; j += W) {
                __m512i r[W];
                load_rows(r, s, B, row, n, k0 + k + j, 0);
                for (int i = 0; i < W; i++) _mm512_store_si512(mem + i * RUN + j, r[i]);
            }
        }
        const Pair *ak = a + (size_t)k * W;
        int g = 0;
        for (; g + 2 <= groups; g += 2, ak += 4 * l.block, ahead = 0)
            for (int j = 0; j < W; j += W / 2)
                go_on(W / 2, 2, sums[g] + j * W, ak, 2 * l.block, b + (size_t)j * ld, ld, run, ahead);
        if (g < groups) go_on(W, 1, sums[g], ak, 2 * l.block, b, ld, run, ahead);
    }
    for (int i = 0; i < s.M; i += W) {
        __m512i r[W];
        for (int j = 0; j < W; j++) r[j] = _mm512_load_si512(sums[i / W] + j * W);
        turn_registers(r);
        for (int j = 0; j < imin(W, s.M - i); j++) {
            __m512 c[NV] = {(__m512)r[j]}; /* store expects up to so many */
            store(1, C + (size_t)(i + j) * (size_t)s.ldc, c, n, first);
        }
    }
}
/* With at most mr rows of C most lanes would be idle, so 16 columns are the lanes. W pairs of k at a time of B's rows
 * from `row` on are transposed and used up at once, so that memory loads the next ones while the sums are computed.
 * More rows of B at a time would be more streams than a processor prefetches. */
static inline __attribute__((always_inline)) void in_columns(int mr, float *C, const Pair *a, Lie l, GemmShape s,
                                                             const void *B, int row, int k0, int some, bool first) {
    int n = imin(W, s.N - row);
    size_t ld = (size_t)s.ldb * sizeof(uint16_t);
    Pair b[W * W] __attribute__((aligned(64)));
    __m512 c[MR][NV]; /* store expects up to so many */
    #pragma GCC unroll 8
    for (int m = 0; m < mr; m++) c[m][0] = _mm512_setzero_ps();
    for (int k = 0; k < some; k += W) {
        pack_block(b, W, s, B, row, n, k0 + k, W, 0);
        const char *ask = s.b_bf16 ? (const char *)B + (size_t)row * ld + (size_t)(k0 + k) * sizeof(Pair) : NULL;
        if (ask) ask += ahead_of(s, 1, k0 + k);
        for (int j = 0; j < imin(W, some - k); j++) {
            __m512bh y = (__m512bh)_mm512_load_si512(b + j * W);
            if (ask) _mm_prefetch(ask + (size_t)j * ld, _MM_HINT_T1);
    #pragma GCC unroll 8
            for (int m = 0; m < mr; m++) {
                int x = (int)a[(size_t)m * l.row + (size_t)(k + j)];
                c[m][0] = _mm512_dpbf16_ps(c[m][0], (__m512bh)_mm512_set1_epi32(x), y);
            }
        }
    }
    #pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
        if (m < s.M) store(1, C + (size_t)m * (size_t)s.ldc, c[m], n, first);
}
static void few_columns(float *C, const Pair *a, Lie l, GemmShape s, const void *B, int row, int k0, int some,
                        bool first) {
    switch (s.M) {
    case 1: in_columns(1, C, a, l, s, B, row, k0, some, first); break;
    case 2: in_columns(2, C, a, l, s, B, row, k0, some, first); break;
    case 3:
    case 4: in_columns(4, C, a, l, s, B, row, k0, some, first); break;
    default:
        if (s.M <= MR)
            in_columns(MR, C, a, l, s, B, row, k0, some, first);
        else
            in_lanes(C, a, l, s, B, row, k0, some, first);
    }
}
#endif
#ifdef OPS_WIDE
static inline void tile(int vecs, float *C, size_t ldc, const Pair *a, Lie l, const Pair *b, int pairs, int rows,
                        int last, bool first) {
    tile_asks(vecs, C, ldc, a, l, b, pairs, rows, last, first, (Ask){(const char *)b, 0});
}
#else
static inline __attribute__((always_inline)) void tile(int vecs, float *C, size_t ldc, const Pair *a, Lie l,
                                                       const Pair *b, int pairs, int rows, int last, bool first) {
    switch (vecs) {
    case 1: kernel(MR, 1, C, ldc, a, l, b, pairs, rows, last, first); break;
    case 2: kernel(MR, 2, C, ldc, a, l, b, pairs, rows, last, first); break;
    default: kernel(MR, 3, C, ldc, a, l, b, pairs, rows, last, first);
    }
}
#endif

/* Rows i0..i1-1 of panels p0..p1-1. A: those rows, packed; C: the place of the first of these elements. */
static void task(const Work *w, const Pair *A, float *C, int i0, int i1, int p0, int p1) {
    const GemmShape s = w->s;
    int pairs = (s.K + 1) / 2, left, none;
    panel(s.N, p0, &left, &none);
    for (int k = 0; k < pairs; k += KP) {
        int some = imin(KP, pairs - k);
        bool first = k == 0 && !s.accumulate;
        for (int p = p0; p < p1; p++) {
            int v0, vecs;
            panel(s.N, p, &v0, &vecs);
            const Pair *b = w->B + (size_t)v0 * W * (size_t)pairs + (size_t)k * (size_t)vecs * W;
            int last = imin(W, s.N - (v0 + vecs - 1) * W);
            for (int i = i0; i < i1; i += MR) {
                const Pair *a = A + (size_t)((i - i0) / MR) * w->a.block + (size_t)k * w->a.step;
                float *to = C + (size_t)(i - i0) * (size_t)s.ldc + (size_t)(v0 - left) * W;
                tile(vecs, to, (size_t)s.ldc, a, w->a, b, some, imin(MR, s.M - i), last, first);
            }
        }
    }
}

/* ---- few rows ---------------------------------------------------------------------------------------------------- */

#ifdef __AVX512BF16__
enum { FEW_MEM = 0 };
#else
enum { FEW_MEM = 1 };
#endif
static size_t few_pairs(GemmShape s) { return FEW_MEM * (size_t)imin(KP, (s.K + 1) / 2) * NV * W; }
#ifdef OPS_WIDE
/* All rows of panel p, which begins at w->C; mem: few_pairs. */
static void few_panel(const Work *w, const void *B, int p, Pair *mem) {
    const GemmShape s = w->s;
    int pairs = (s.K + 1) / 2, v0, vecs, tiles = (s.M + MR - 1) / MR;
    panel(s.N, p, &v0, &vecs);
    const int row = v0 * W, last = imin(W, s.N - row - (vecs - 1) * W);
    const size_t ldc = (size_t)s.ldc;
    float *C = w->C;
    if (w->a.step == W) { /* as_lanes */
        in_lanes(C, w->A, w->a, s, B, row, imin(vecs * W, s.N - row));
        return;
    }
    if (s.b_bf16 && s.M <= COLUMNS) {
        switch (vecs) {
        case 1: few_columns(1, C, ldc, w->A, w->a, s, B, row); break;
        case 2: few_columns(2, C, ldc, w->A, w->a, s, B, row); break;
        default: few_columns(NV, C, ldc, w->A, w->a, s, B, row);
        }
        return;
    }
    Ask ask = ask_next(s, B, row, vecs * W, tiles);
    for (int k = 0; k < pairs; k += KP) {
        int some = imin(KP, pairs - k);
        pack_b_rows(mem, s, B, p, k, k + some, false);
        for (int i = 0; i < s.M; i += MR) {
            const Pair *a = w->A + (size_t)(i / MR) * w->a.block + (size_t)k * w->a.step;
            tile_asks(vecs, C + (size_t)i * ldc, ldc, a, w->a, mem, some, imin(MR, s.M - i), last,
                      k == 0 && !s.accumulate, ask);
            ask.at += (size_t)some * ask.step;
        }
    }
}
#else
/* All rows of panel p, which begins at w->C; mem: few_pairs. */
static void few_panel(const Work *w, const void *B, int p, Pair *mem) {
    const GemmShape s = w->s;
    int pairs = (s.K + 1) / 2, v0, vecs;
    panel(s.N, p, &v0, &vecs);
    int last = imin(W, s.N - (v0 + vecs - 1) * W);
    for (int k = 0; k < pairs; k += KP) {
        int some = imin(KP, pairs - k);
        bool first = k == 0 && !s.accumulate;
    #ifdef __AVX512BF16__
        float *C = w->C;
        (void)mem, (void)last;
        for (int v = 0; v < vecs; v++)
            few_columns(C + v * W, w->A + (size_t)k * w->a.step, w->a, s, B, (v0 + v) * W, k, some, first);
    #else
        pack_b_rows(mem, s, B, p, k, k + some, true);
        for (int i = 0; i < s.M; i += MR) {
            float *C = (float *)w->C + (size_t)i * (size_t)s.ldc;
            const Pair *a = w->A + (size_t)(i / MR) * w->a.block + (size_t)k * w->a.step;
            tile(vecs, C, (size_t)s.ldc, a, w->a, mem, some, imin(MR, s.M - i), last, first);
        }
    #endif
    }
}
#endif
