/* gemm_lanes.c: products of 9 to LANES_ROWS rows of A on AVX2: these rows are the lanes of vectors, and pairs of B,
 * which is read where it lies if it is bf16, are broadcast and widened in registers. A panel of B would be used too few
 * times to be worth its packing. Only gemm_bf16.c includes it.
 *
 * A is panels of 8 rows: of every pair of k the even elements, then the odd ones. An element of C adds one product
 * after another along k, as in gemm_wide.c. */
enum {
    LANES_RUN = 96,   /* pairs of k at a time: the lanes of two vectors then take 12 KB of the first cache */
    LANES_TILE1 = 12, /* rows of B in a tile with one and two vectors of lanes: 12 sums, 1 or 2 of A, one of B */
    LANES_TILE2 = 6,
    LANES_ROWS = 32,    /* more are faster by panels */
    LANES_MOST = NV * W /* columns of C in a panel */
};
static bool as_lanes(GemmShape s) { return s.tb && !s.ta && s.M > W && s.M <= LANES_ROWS; }
/* Pack rows row..row+W-1 of A, which are a panel, k along the rows; missing ones are 0, and up to W pairs past K. */
static void pack_a_lanes(Pair *to, GemmShape s, const void *A, int row) {
    const int pairs = (s.K + 1) / 2, rows = imin(W, s.M - row);
    const size_t at = (size_t)row * (size_t)s.lda;
    Vec x[W] = {{0}}, r[W];
    for (int k = 0; k < 2 * pairs; k += W) {
        const int n = imax(0, imin(W, s.K - k));
        if (!s.a_bf16 && n == W)
            for (int i = 0; i < rows; i++)
                x[i] = rounded(*(const VecAt *)((const float *)A + at + (size_t)i * (size_t)s.lda + k));
        else
            for (int i = 0; i < rows; i++) {
                const size_t from = at + (size_t)i * (size_t)s.lda + (size_t)k;
                x[i] = s.a_bf16 ? (Vec)(some_bf16((const uint16_t *)A + from, n) << 16)
                                : rounded(some_of((const float *)A + from, n));
            }
        turned(r, (const char *)x, sizeof *x);
        for (int j = 0; j < W; j++) ((VecAt *)to)[k + j] = r[j];
    }
}
/* Round n elements of a row of B; room for LANES_RUN pairs. */
static void pairs_of_row(uint32_t *to, const float *x, int n) {
    for (int i = 0; i < n; i += 2 * W) {
        const __m256i lo = (__m256i)((Bits)rounded(some_of(x + i, imin(W, n - i))) >> 16),
                      hi = (__m256i)((Bits)rounded(some_of(x + i + W, imax(0, imin(W, n - i - W)))) >> 16);
        _mm256_storeu_si256((__m256i *)(to + i / 2), _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xD8));
    }
}
/* The even or odd element of a pair of row o < 3 in every lane. Asm, because a compiler would load a pair once for both
 * elements, hold the pairs of several rows, and spill sums. */
INLINE Vec everywhere_of(const char *w, size_t ld, const int o, const int odd) {
    static const Bits high = {~0xFFFFu, ~0xFFFFu, ~0xFFFFu, ~0xFFFFu, ~0xFFFFu, ~0xFFFFu, ~0xFFFFu, ~0xFFFFu};
    Bits b;
    switch (o) {
    case 0: __asm__ volatile("vpbroadcastd (%1), %0" : "=x"(b) : "r"(w) : "memory"); break;
    case 1: __asm__ volatile("vpbroadcastd (%1,%2), %0" : "=x"(b) : "r"(w), "r"(ld) : "memory"); break;
    default: __asm__ volatile("vpbroadcastd (%1,%2,2), %0" : "=x"(b) : "r"(w), "r"(ld) : "memory");
    }
    if (odd)
        __asm__("vpand %1, %0, %0" : "+x"(b) : "m"(high));
    else
        __asm__("vpslld $16, %0, %0" : "+x"(b));
    return (Vec)b;
}
/* Add the products of `pairs` pairs of `outs` rows of B, ld bytes apart, and of `vecs` panels of A, ldx apart, to the
 * sums, lds from one row of B to the next; ask: Ask. */
INLINE void lanes_tile(const int outs, const int vecs, float *sums, size_t lds, const float *x, size_t ldx,
                       const char *w, size_t ld, int pairs, Ask *ask) {
    enum { EACH = 3 }; /* rows that one register addresses */
    Vec c[LANES_TILE1][2];
    const char *row[LANES_TILE1 / EACH], *at = ask->at;
    const size_t step = ask->step;
#pragma GCC unroll 12
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) c[o][v] = *(const Vec *)(sums + (size_t)o * lds + v * W);
#pragma GCC unroll 4
    for (int o = 0; o < outs; o += EACH) row[o / EACH] = w + (size_t)o * ld;
    for (int k = 0; k < pairs; k++, x += 2 * W, at += step) {
        __builtin_prefetch(at, 0, 2);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            Vec a[2];
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) a[v] = *(const Vec *)(x + (size_t)v * ldx + odd * W);
#pragma GCC unroll 12
            for (int o = 0; o < outs; o++) {
                const Vec b = everywhere_of(row[o / EACH], ld, o % EACH, odd);
#pragma GCC unroll 2
                for (int v = 0; v < vecs; v++) c[o][v] = plus_product(c[o][v], a[v], b);
            }
        }
#pragma GCC unroll 4
        for (int o = 0; o < outs; o += EACH) row[o / EACH] += sizeof(uint32_t);
    }
#pragma GCC unroll 12
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) *(Vec *)(sums + (size_t)o * lds + v * W) = c[o][v];
    ask->at = at;
}
/* The same for n rows of B: tiles of `most`, of 4 and of 1. */
INLINE void lanes_tiles(const int most, const int vecs, float *sums, size_t lds, const float *x, size_t ldx,
                        const char *w, size_t ld, int n, int pairs, Ask *ask) {
    int o = 0;
    for (; o + most <= n; o += most)
        lanes_tile(most, vecs, sums + (size_t)o * lds, lds, x, ldx, w + (size_t)o * ld, ld, pairs, ask);
    for (; o + 4 <= n; o += 4)
        lanes_tile(4, vecs, sums + (size_t)o * lds, lds, x, ldx, w + (size_t)o * ld, ld, pairs, ask);
    for (; o < n; o++) lanes_tile(1, vecs, sums + (size_t)o * lds, lds, x, ldx, w + (size_t)o * ld, ld, pairs, ask);
}
/* n <= LANES_MOST columns of C, of rows of B from `row` on. */
static void in_lanes(float *C, const Pair *A, Lie l, GemmShape s, const void *B, int row, int n) {
    float sums[LANES_MOST * LANES_ROWS] __attribute__((aligned(64)));
    const int pairs = (s.K + 1) / 2, lds = (s.M + W - 1) / W * W;
    const size_t ld = (size_t)s.ldb * sizeof(uint16_t), ldx = 4 * l.block, ldc = (size_t)s.ldc;
    uint32_t mem[LANES_MOST][LANES_RUN];
    /* Rows a page apart compete for the same lines of the first cache, and one vector's tile has too many of them. */
    const bool moves = ld % 4096 == 0 && (s.M - 1) / W % 2 == 0;
    memset(sums, 0, (size_t)(n * lds) * sizeof *sums);
    for (int o = 0; s.accumulate && o < n; o++)
        for (int m = 0; m < s.M; m++) sums[o * lds + m] = C[(size_t)m * ldc + (size_t)o];
    Ask ask = ask_next(s, B, row, n, (s.M + 2 * W - 1) / (2 * W) * ((n + LANES_TILE2 - 1) / LANES_TILE2));
    for (int k = 0, some; k < pairs; k += some) {
        const size_t at = (size_t)row * (size_t)s.ldb + 2 * (size_t)k;
        const char *w = (const char *)((const uint16_t *)B + at);
        size_t apart = ld;
        some = imin(LANES_RUN, pairs - k);
        const int numbers = imin(2 * some, s.K - 2 * k);
        if (moves || !s.b_bf16 || numbers < 2 * some) {
            for (int o = 0; o < n; o++) {
                mem[o][some - 1] = 0; /* what the last pair lacks */
                if (s.b_bf16)
                    memcpy(mem[o], w + (size_t)o * ld, (size_t)numbers * sizeof(uint16_t));
                else
                    pairs_of_row(mem[o], (const float *)B + at + (size_t)o * (size_t)s.ldb, numbers);
            }
            w = (const char *)mem, apart = sizeof *mem;
        }
        for (int m = 0; m < s.M; m += 2 * W) {
            const float *x = (const float *)(A + (size_t)(m / W) * 2 * l.block + (size_t)k * W);
            if (s.M - m > W)
                lanes_tiles(LANES_TILE2, 2, sums + m, (size_t)lds, x, ldx, w, apart, n, some, &ask);
            else
                lanes_tiles(LANES_TILE1, 1, sums + m, (size_t)lds, x, ldx, w, apart, n, some, &ask);
        }
    }
    for (int o = 0; o < n; o += W)
        for (int m = 0; m < s.M; m += W) {
            Vec r[W];
            const int cols = imin(W, n - o);
            turned(r, (const char *)(sums + o * lds + m), (size_t)lds * sizeof *sums);
            for (int i = 0; i < imin(W, s.M - m); i++) to_c(1, C + (size_t)(m + i) * ldc + o, &r[i], cols);
        }
}
