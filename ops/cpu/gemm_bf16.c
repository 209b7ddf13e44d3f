/* gemm_bf16.c: C (+)= A B of f32 matrices with both operands rounded to bf16 and sums in f32. Compiled once per
 * OPS_ISA (baseline, avx2, avx512, avx512bf16, amx, neonbf16), each giving one function. This file has the common
 * part: the panels of B, and which thread packs and multiplies what. The rest is in
 * - gemm_vectors.c, or gemm_tiles.c with OPS_TILES (amx);
 * - gemm_neon.c with OPS_NEON (neonbf16), which packs and multiplies by vectors of four;
 * - gemm_wide.c with OPS_WIDE (baseline, avx2, avx512), for processors without a bf16 instruction: operands are packed
 *   as f32; gemm_lanes.c multiplies 9 to 32 rows on avx2.
 *
 * The instruction multiplies pairs: c += a.lo b.lo + a.hi b.hi. So operands are packed as pairs of elements that
 * follow each other along k. A panel of B is (K/2, width) pairs, width 1 to NV vectors.
 *
 * With few rows of C the time goes into reading B. Each panel is packed, a block of k at a time, by the thread that
 * multiplies it, and never leaves its caches.
 *
 * K alone decides the order of the sums, so neither threads nor the number of rows change anything. */
#include "ops/gemm_bf16.h"
#include <omp.h>
#ifdef OPS_NEON
enum { W = 4 };        /* elements in a vector */
typedef uint32_t Pair; /* low half: the even k */
#elif defined(__AVX512BF16__)
    #include "pairs.h"
#else
    #define OPS_WIDE
    #if defined(__AVX512F__)
        #define WIDTH          16
        #define MANY_REGISTERS 1
    #elif defined(__AVX2__)
        #define WIDTH 8
    #else
        #define WIDTH 4
    #endif
enum { W = WIDTH };
typedef struct {
    float even, odd;
} Pair;
#endif

enum {
    TASKS_PER_THREAD = 12,
    /* blocks of rows per thread; with few rows, runs of panels that are next to each other in memory, per thread */
    ENOUGH = 6,
    /* vectors that packing prefetches in rows that lie pages apart, which the hardware prefetcher does not follow */
    AHEAD = 4
};
/* ASK: pairs in a row of B between those that are used and those that are prefetched. */
#ifdef OPS_TILES
enum {
    MR = 16,    /* rows of a tile */
    NV = 2,     /* vectors in a panel of B: 2 x 2 tiles of sums, 2 of A and 2 of B are the processor's eight */
    KP = 192,   /* pairs of k between two visits to C: a panel of B then takes 24 KB of the first cache */
    ROWS = 128, /* rows of C in a task */
    ASK = 192,
    WHOLE = 16 /* K is padded with zeros to a multiple of so many pairs */
};
#elif defined(OPS_NEON)
enum {
    MR = 8,     /* rows of C that the kernel computes at once */
    NV = 3,     /* vectors: 8 x 3 sums, 3 of B and 2 of A in 32 registers */
    KP = 384,   /* pairs of k between two visits to C: a panel of B then takes 18 KB of the first cache */
    ROWS = 128, /* rows of C in a task: of A 192 KB */
    ASK = 192,
    WHOLE = 1
};
#elif defined(OPS_WIDE)
enum {
    MR = WIDTH == 16 ? 8 : 4, /* rows of C that the kernel computes at once */
    NV = 3,                   /* vectors: 8 x 3 sums of 32 registers, or 4 x 3 of 16, with 3 of B and a broadcast */
    KP = 128,                 /* pairs of k that a panel of B has in the first cache: 24 KB of vectors of 8 */
    ROWS = 128,               /* rows of C in a task */
    ASK = KP,
    WHOLE = 1
};
#else
enum {
    MR = 8, /* rows of C that the kernel computes at once */
    NV = 3, /* vectors of 16: 8 x 3 sums, 3 of B and a broadcast in 32 registers */
    /* pairs of k between two visits to C: a block of A then takes 256 KB of the second cache, a panel of B 192 KB;
     * both stream from there to the kernel at less than half of the cache's bandwidth */
    KP = 1024,
    ROWS = 64, /* rows of C in a task */
    ASK = 192,
    WHOLE = 1
};
#endif
/* For products over many rows k, such as those of weights' gradients: so many elements of k are packed and used up at
 * a time, so that they stay in the caches. They are whole blocks of k, which keeps the order of the sums. */
enum { SLICE = 2 * KP * (KP < 1024 ? 1024 / KP : 1) };
/* The layout of packed A: pair k of row i is at (i / MR) block + (i % MR) row + k step. */
typedef struct {
    size_t block, row, step;
} Lie;
static inline int pairs_in(GemmShape s) { return ((s.K + 1) / 2 + WHOLE - 1) / WHOLE * WHOLE; }
static inline void pack_columns(Pair *to, const float *even, const float *odd, int n);
static inline void pack_columns_bf16(Pair *to, const uint16_t *even, const uint16_t *odd, int n);
static inline size_t ahead_of(GemmShape s, int vecs, int k);
/* Prefetch the next elements of two rows. */
static inline void ask_rows(const void *even, const void *odd) {
    __builtin_prefetch((const char *)even + AHEAD * W * sizeof(float), 0, 3);
    if (odd) __builtin_prefetch((const char *)odd + AHEAD * W * sizeof(float), 0, 3);
}
/* n <= W pairs of the rows 2k and 2k+1 of K, ld elements apart, from column `at` on; the rest of W is 0. */
static inline void two_rows(Pair *to, const void *x, int ld, bool is_bf16, int K, int k, int at, int n) {
    size_t from = (size_t)(2 * k) * (size_t)ld + (size_t)at;
    bool both = 2 * k + 1 < K;
    if (is_bf16) {
        const uint16_t *even = (const uint16_t *)x + from, *odd = both ? even + ld : NULL;
        ask_rows(even, odd);
        pack_columns_bf16(to, even, odd, n);
    } else {
        const float *even = (const float *)x + from, *odd = both ? even + ld : NULL;
        ask_rows(even, odd);
        pack_columns(to, even, odd, n);
    }
}
#ifdef __AVX512BF16__
/* Distance, in elements, from column `at` of rows with n of them to what is prefetched: AHEAD vectors of f32 further
 * in the row, or, at its end, as far into the row that is used W pairs later. */
static inline size_t ask_on(int n, int ld, bool is_bf16, int at) {
    int on = AHEAD * W * (is_bf16 ? 2 : 1);
    return at + on < n ? (size_t)on : (size_t)(2 * W) * (size_t)ld + (size_t)(on - n);
}
/* Pairs of 2W columns of the rows 2k and 2k+1 from `at` on. */
static inline void two_lines(__m512i r[2], const void *x, int ld, bool is_bf16, int k, int at, size_t ask) {
    size_t from = (size_t)(2 * k) * (size_t)ld + (size_t)at;
    if (is_bf16) {
        const uint16_t *even = (const uint16_t *)x + from, *odd = even + ld;
        pairs_of_lines(r, _mm512_loadu_si512(even), _mm512_loadu_si512(odd));
        _mm_prefetch((const char *)(even + ask), _MM_HINT_T0);
        _mm_prefetch((const char *)(odd + ask), _MM_HINT_T0);
        return;
    }
    const float *even = (const float *)x + from, *odd = even + ld;
    for (int h = 0; h < 2; h++) {
        r[h] = pairs_of(_mm512_loadu_ps(even + h * W), _mm512_loadu_ps(odd + h * W));
        _mm_prefetch((const char *)(even + ask + h * W), _MM_HINT_T0);
        _mm_prefetch((const char *)(odd + ask + h * W), _MM_HINT_T0);
    }
}
#endif
#ifdef OPS_NEON
    #include "gemm_neon.c"
#endif
#ifdef OPS_WIDE
    #include "gemm_wide.c"
#endif

/* ---- B ----------------------------------------------------------------------------------------------------------- */

/* Panels have NV vectors. If NV is three and a single vector would be left at the end, it gets one from its
 * neighbour. */
static int panels(int N) {
    int vecs = (N + W - 1) / W;
    return (vecs + NV - 1) / NV;
}
static void panel(int N, int p, int *first, int *vecs) {
    int all = (N + W - 1) / W, n = panels(N);
    bool even = NV > 2 && all % NV == 1 && n > 1;
    *first = NV * p - (even && p == n - 1);
    *vecs = (even && p == n - 2) ? NV - 1 : (p == n - 1 ? all - *first : NV);
}
/* The place of vector v of the columns; *ld: distance from one pair of k to the next. */
static Pair *place_b(Pair *to, GemmShape s, int v, size_t *ld) {
    int first, vecs, p = panels(s.N) - 1;
    panel(s.N, p, &first, &vecs);
    if (v < first) panel(s.N, v / NV, &first, &vecs);
    *ld = (size_t)vecs * W;
    return to + (size_t)first * W * (size_t)pairs_in(s) + (size_t)(v - first) * W;
}
/* Pairs k0..k1-1 of all of B, k down its columns. */
static void pack_b_columns(Pair *to, GemmShape s, const void *B, int k0, int k1) {
    int v = 0, vecs = (s.N + W - 1) / W;
#ifdef __AVX512BF16__
    for (; 2 * k1 <= s.K && (v + 2) * W <= s.N; v += 2) {
        size_t ld, ld2, ask = ask_on(s.N, s.ldb, s.b_bf16, v * W);
        Pair *at = place_b(to, s, v, &ld), *at2 = place_b(to, s, v + 1, &ld2);
        for (int k = k0; k < k1; k++) {
            __m512i r[2];
            two_lines(r, B, s.ldb, s.b_bf16, k, v * W, ask);
            _mm512_storeu_si512(at + (size_t)k * ld, r[0]);
            _mm512_storeu_si512(at2 + (size_t)k * ld2, r[1]);
        }
    }
#endif
    for (; v < vecs; v++) {
        size_t ld;
        Pair *at = place_b(to, s, v, &ld);
        for (int k = k0; k < k1; k++) {
            if (WHOLE > 1 && 2 * k >= s.K) {
                memset(at + (size_t)k * ld, 0, W * sizeof(Pair));
                continue;
            }
            two_rows(at + (size_t)k * ld, B, s.ldb, s.b_bf16, s.K, k, v * W, imin(W, s.N - v * W));
        }
    }
}
/* Load B's rows row.. (n <= W of them, the rest counts as 0), pairs k..k+W-1 (0 past K); k along the rows. In bf16
 * rows it also prefetches `ahead` bytes further; 0: nothing. */
#ifdef __AVX512BF16__
static inline __attribute__((always_inline)) void load_rows(__m512i r[W], GemmShape s, const void *B, int row, int n,
                                                            int k, size_t ahead) {
    int left = s.K - 2 * k;
    __mmask32 in = left >= 2 * W ? 0xFFFFFFFF : (__mmask32)((1u << left) - 1);
    size_t at = (size_t)row * (size_t)s.ldb + 2 * (size_t)k;
    if (s.b_bf16 && n == W && left >= 2 * W) {
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
        } else if (s.b_bf16) {
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
#endif
/* Distance, in bytes, from pair k of a panel's rows to what is prefetched meanwhile: a block further in these rows,
 * or, from the last block on, as far into the next rows. */
static inline size_t ahead_of(GemmShape s, int vecs, int k) {
    int at = k / ASK * ASK;
    bool on = at + ASK < (s.K + 1) / 2;
    return on ? ASK * sizeof(uint32_t) : 2 * ((size_t)vecs * W * (size_t)s.ldb - 2 * (size_t)at);
}
/* Pack pairs k0..k1-1 (k0 a multiple of W) of one panel of B, k along its rows; pair k0 goes to `to`. asks:
 * prefetch. */
static void pack_b_rows(Pair *to, GemmShape s, const void *B, int p, int k0, int k1, bool asks) {
    int first, vecs;
    panel(s.N, p, &first, &vecs);
    size_t ld = (size_t)vecs * W;
    for (int v = 0; v < vecs; v++)
        for (int k = k0; k < k1; k += W)
            pack_block(to + (size_t)(k - k0) * ld + (size_t)v * W, ld, s, B, (first + v) * W,
                       imin(W, s.N - (first + v) * W), k, imin(W, k1 - k), asks ? ahead_of(s, vecs, k) : 0);
}

typedef struct {
    GemmShape s;
    Lie a;
    const Pair *A;    /* all its rows as pairs; with rows that each thread packs for itself, the threads' parts */
    Pair *packed, *B; /* where A is packed, unless its rows are used in place */
    void *C;
    bool packs_a, packs_b; /* otherwise another product packs it, or A is used in place */
    bool in_place;
    int more, ni, nj; /* later products that add to the same C; tasks of rows and of panels */
} Work;

#ifdef OPS_TILES
    #include "gemm_tiles.c"
#else
    #include "gemm_vectors.c"
#endif

/* ---- all products of a call -------------------------------------------------------------------------------------- */

/* From so many rows on there are enough blocks of ROWS for all threads, and each thread packs what it multiplies. */
static int many(int threads) { return ENOUGH * threads * ROWS; }
static bool own_rows(int threads, int n, const GemmJob *jobs) {
    bool all = jobs->s.M >= many(threads);
    for (int j = 0; j < n; j++) all = all && !jobs[j].s.ta && jobs[j].s.M == jobs->s.M;
    return all;
}
/* True if the thread that multiplies B packs it panel by panel. Without the instruction the kernel is so much slower
 * than packing that this also pays for many rows of C: each block of rows packs B anew, and no packed B goes to
 * memory. */
static bool reads_rows(GemmShape s) {
#ifdef OPS_WIDE
    return s.tb && !s.ta;
#else
    return s.tb && !s.ta && s.M <= GEMM_BF16_FEW;
#endif
}
/* Find which products share operands, and the number of tasks, and take the packed operands' memory. With few rows
 * `panel` is one panel per thread instead of every B. With `by_rows` As have ROWS rows per thread, which is less than
 * fewer rows would take. */
static int prepare(int threads, Arena *scratch, int n, const GemmJob *jobs, Work *w, bool few, bool by_rows,
                   Pair **panel_mem) {
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
        CHECK(sa.M == s.M && sa.K == s.K && sa.ta == s.ta && sa.lda == s.lda && sb.N == s.N && sb.K == s.K &&
                  sb.tb == s.tb && sb.ldb == s.ldb && sb.b_bf16 == s.b_bf16 && sa.a_bf16 == s.a_bf16 &&
                  sc.c_bf16 == s.c_bf16 && sc.M == s.M && sc.N == s.N && (first == j || (s.accumulate && !few)) &&
                  few == reads_rows(s),
              "product %d, (%d,%d,%d), and those that it shares with", j, s.M, s.N, s.K);
        w[j] = (Work){.s = s, .a = lie(s), .C = jobs[j].C, .packs_a = like_a == j, .packs_b = like_b == j};
        /* Lanes: two blocks' rows. */
        size_t blocks = ((size_t)(by_rows ? many(threads) : s.M) + 2 * MR - 1) / (2 * MR) * 2;
        size_t whole = ((size_t)s.N + W - 1) / W * W * (size_t)pairs_in(s);
        /* also if A is used in place: another number of rows may not be */
        size_t room = blocks * w[j].a.block * sizeof(Pair);
        w[j].packed = w[j].packs_a ? arena_take(scratch, room, "A in bf16") : w[like_a].packed;
        w[j].A = w[j].packed;
        if (!few && taken_in_place(s, jobs[j].A, &w[j].a))
            w[j].in_place = true, w[j].packs_a = false, w[j].A = jobs[j].A;
        /* a pass of few rows must fit where one of many rows was measured */
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
static void pack_a_rows(const Work *w, Pair *to, const void *A, int i0, int i1) {
    for (int i = i0; i < i1; i += MR) pack_a_block(to + (size_t)((i - i0) / MR) * w->a.block, w->a, w->s, A, i);
}
/* All threads together: product w's part of packing; rows: without A's rows. */
static void pack(const Work *w, const GemmJob *job, bool rows) {
    const GemmShape s = w->s;
    int pairs = pairs_in(s);
    if (w->packs_b && s.tb) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int p = 0; p < panels(s.N); p++) {
            int first, n;
            panel(s.N, p, &first, &n);
            pack_b_rows(w->B + (size_t)first * W * (size_t)pairs, s, job->B, p, 0, pairs, false);
        }
    } else if (w->packs_b) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int k = 0; k < pairs; k += W) pack_b_columns(w->B, s, job->B, k, imin(pairs, k + W));
    }
    if (w->packs_a && s.ta) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int k = 0; k < pairs; k += W) pack_a_columns(w->packed, w->a, s, job->A, k, imin(pairs, k + W));
    } else if (w->packs_a && !rows) {
#pragma omp for schedule(dynamic, 1) nowait
        for (int i = 0; i < s.M; i += MR)
            pack_a_rows(w, w->packed + (size_t)(i / MR) * w->a.block, job->A, i, imin(s.M, i + MR));
    }
}
/* Rows of C in bf16 as f32, ld elements apart, and back. */
static void widen_rows(float *to, size_t ld, const uint16_t *C, size_t ldc, int rows, int n) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < n; c++) {
            union {
                uint32_t u;
                float f;
            } b = {(uint32_t)C[(size_t)r * ldc + (size_t)c] << 16};
            to[(size_t)r * ld + (size_t)c] = b.f;
        }
}
static void bf16_rows(uint16_t *C, size_t ldc, const float *x, size_t ld, int rows, int n) {
    for (int r = 0; r < rows; r++) bf16_row(C + (size_t)r * ldc, x + (size_t)r * ld, n);
}
/* The number of tasks with few rows: panels times blocks of rows. */
static int few_tasks(GemmShape s) { return panels(s.N) * ((s.M + ROWS - 1) / ROWS); }
/* Rows row.. of panel p of a product. Those of a BF16 C are summed in f32 and rounded by the thread that made them. */
static void few_block(const Work *w, const GemmJob *job, int p, int row, Pair *mem) {
    float sums[ROWS * NV * W] __attribute__((aligned(64)));
    Work block = *w;
    int v0, vecs;
    panel(w->s.N, p, &v0, &vecs);
    const int n = imin(vecs * W, w->s.N - v0 * W), rows = imin(ROWS, w->s.M - row);
    const size_t ldc = (size_t)w->s.ldc, at = (size_t)row * ldc + (size_t)v0 * W;
    block.s.M = rows;
    block.A += (size_t)(row / MR) * block.a.block;
    if (!w->s.c_bf16) {
        block.C = (float *)w->C + at;
        few_panel(&block, job->B, p, mem);
        return;
    }
    uint16_t *C = (uint16_t *)w->C + at;
    block.C = sums, block.s.ldc = NV * W;
    if (w->s.accumulate) widen_rows(sums, NV * W, C, ldc, rows, n);
    few_panel(&block, job->B, p, mem);
    bf16_rows(C, ldc, sums, NV * W, rows, n);
}
/* The panels of all products form one list: an idle thread takes the next one of any product. */
static void few_rows(int threads, int n, const GemmJob *jobs, const Work *w, Pair *mem, size_t own, double size) {
    int all = 0;
    bool alone = w->s.M <= GEMM_BF16_FEW; /* packing so few rows costs less than waiting for each other */
    for (int j = 0; j < n; j++) {
        const GemmShape s = w[j].s;
        all += few_tasks(s);
        if (w[j].packs_a && alone) pack_a_rows(&w[j], w[j].packed, jobs[j].A, 0, s.M);
    }
    int run = imax(1, imin(8, all / (ENOUGH * threads)));
#pragma omp parallel num_threads(threads) if (size > 1.5e5)
    {
        for (int j = 0; j < n && !alone; j++) {
            if (!w[j].packs_a) continue;
#pragma omp for schedule(dynamic, 1) nowait
            for (int i = 0; i < w[j].s.M; i += ROWS)
                pack_a_rows(&w[j], w[j].packed + (size_t)(i / MR) * w[j].a.block, jobs[j].A, i,
                            imin(i + ROWS, w[j].s.M));
        }
        if (!alone) {
#pragma omp barrier
        }
        tiles_open();
#pragma omp for schedule(guided, run) nowait
        for (int i = 0; i < all; i++) {
            int j = 0, t = i;
            for (; t >= few_tasks(w[j].s); j++) t -= few_tasks(w[j].s);
            int np = panels(w[j].s.N);
            few_block(&w[j], &jobs[j], t % np, t / np * ROWS, mem + (size_t)omp_get_thread_num() * own);
        }
        tiles_close();
    }
}

/* Rows i.. of a product's A: in place, or packed `blocks` blocks from the beginning. */
static const Pair *rows_of(const Work *w, size_t blocks, int i) {
    return w->A + (w->in_place ? (size_t)(i / MR) : blocks) * w->a.block;
}
/* Rows i..end-1 of panels p0..p1-1 of a product and of the next ones that add to the same C. A's rows i.. are packed
 * `blocks` blocks from its beginning. */
static void sums_of(const Work *w, size_t blocks, int i, int end, int p0, int p1) {
    enum { GROUP = 8 }; /* panels whose sums stay in f32 while k continues, if A does not stay in the caches */
    float mem[ROWS * GROUP * NV * W] __attribute__((aligned(64)));
    const size_t ldc = (size_t)w->s.ldc;
    int step = !w->s.c_bf16 ? p1 - p0 : w->s.K > 2 * KP ? GROUP : 1;
    for (int p = p0; p < p1; p += step) {
        int next = imin(p1, p + step), left, last, vecs;
        panel(w->s.N, p, &left, &vecs);
        size_t at = (size_t)i * ldc + (size_t)left * W;
        if (!w->s.c_bf16) {
            for (int k = 0; k <= w->more; k++)
                task(&w[k], rows_of(&w[k], blocks, i), (float *)w->C + at, i, end, p, next);
            continue;
        }
        panel(w->s.N, next - 1, &last, &vecs);
        int n = imin((last + vecs) * W, w->s.N) - left * W, ld = step * NV * W;
        uint16_t *C = (uint16_t *)w->C + at;
        if (w->s.accumulate) widen_rows(mem, (size_t)ld, C, ldc, end - i, n);
        for (int k = 0; k <= w->more; k++) {
            Work one = w[k];
            one.s.ldc = ld;
            task(&one, rows_of(&one, blocks, i), mem, i, end, p, next);
        }
        bf16_rows(C, ldc, mem, (size_t)ld, end - i, n);
    }
}
/* Rows i.. of all products, which have the same number of rows; the thread's part of packed A holds so many. */
static void block_of_rows(int n, const GemmJob *jobs, const Work *w, int i) {
    int mine = omp_get_thread_num() * ROWS / MR, end = imin(w->s.M, i + ROWS);
    for (int j = 0; j < n; j++)
        if (w[j].packs_a) pack_a_rows(&w[j], w[j].packed + (size_t)mine * w[j].a.block, jobs[j].A, i, end);
    for (int j = 0; j < n; j += 1 + w[j].more) sums_of(&w[j], (size_t)mine, i, end, 0, panels(w[j].s.N));
}
/* Task t of all products, with the next ones that add to the same C. */
static void block_of_both(const Work *w, int t) {
    int j = 0;
    for (; t >= w[j].ni * w[j].nj; j += 1 + w[j].more) t -= w[j].ni * w[j].nj;
    int i = t / w[j].nj * ROWS, part = t % w[j].nj, np = panels(w[j].s.N);
    sums_of(&w[j], (size_t)(i / MR), i, imin(w[j].s.M, i + ROWS), (int)((long)np * part / w[j].nj),
            (int)((long)np * (part + 1) / w[j].nj));
}
static void multiply(int threads, Arena *scratch, int n, const GemmJob *jobs) {
    Work w[GEMM_JOBS];
    Pair *panel_mem;
    Mark mark = arena_mark(scratch);
    bool few = reads_rows(jobs->s), rows = !few && own_rows(threads, n, jobs);
    int tasks = prepare(threads, scratch, n, jobs, w, few, rows, &panel_mem);
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
            for (int j = 0; j < n; j++) pack(&w[j], &jobs[j], rows);
#pragma omp barrier
            tiles_open();
#pragma omp for schedule(dynamic, 1) nowait
            for (int t = 0; t < (rows ? (w->s.M + ROWS - 1) / ROWS : tasks); t++)
                if (rows)
                    block_of_rows(n, jobs, w, t * ROWS);
                else
                    block_of_both(w, t);
            tiles_close();
        }
    }
    arena_release(scratch, mark);
}

void GEMM_BF16(OPS_ISA)(int threads, Arena *scratch, int n, const GemmJob *jobs) {
    CHECK(n > 0 && n <= GEMM_JOBS, "%d products", n);
    int K = jobs->s.K;
    bool slices = K > SLICE;
    for (int j = 0; j < n; j++)
        slices = slices && jobs[j].s.ta && !jobs[j].s.tb && !jobs[j].s.c_bf16 && jobs[j].s.K == K;
    if (!slices) {
        multiply(threads, scratch, n, jobs);
        return;
    }
    GemmJob part[GEMM_JOBS];
    memcpy(part, jobs, (size_t)n * sizeof *jobs);
    for (int k = 0; k < (scratch->base ? K : SLICE); k += SLICE) { /* measured: all slices take the same */
        for (int j = 0; j < n; j++) {
            part[j].s.K = imin(SLICE, K - k);
            part[j].s.accumulate = jobs[j].s.accumulate || k;
            const GemmShape *s = &jobs[j].s;
            part[j].A = (const char *)jobs[j].A + (size_t)k * (size_t)s->lda * (s->a_bf16 ? 2 : 4);
            part[j].B = (const char *)jobs[j].B + (size_t)k * (size_t)s->ldb * (s->b_bf16 ? 2 : 4);
        }
        multiply(threads, scratch, n, part);
    }
}
