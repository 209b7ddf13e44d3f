/* gemm_neon.c: packing and the kernel of gemm_bf16.c for aarch64 with FEAT_BF16. Only gemm_bf16.c includes it.
 *
 * BFDOT adds two products to each sum of a vector of four. So a panel of B is (K/2, 12) pairs, and all of A is in
 * panels of (K/2, 8). Per pair of k, 24 BFDOT use three vectors of B and two of A, each lane of which is one row.
 *
 * Unless a program asks for something else (FPCR.EBF), BFDOT rounds to odd: first the sum of the two products, then
 * the sum with what it adds to. An inexact result is cut and its last bit is set. The error is up to one unit in the
 * last place (rounding to nearest: half a unit), as often above as below. Denormal operands and results are 0, and a
 * NaN is the default one. FPCR.FZ and the rounding mode do not matter. (Arm Architecture Reference Manual, BFDOT (by
 * element).) */
#include <arm_neon.h>

typedef bfloat16x8_t Pairs; /* four pairs */

/* 4 pairs of a row of f32 from 8 elements; only the first `left` are there, the others count as 0. */
static inline Pairs pairs_of(const float *x, int left) {
    float some[2 * W] = {0};
    if (left < 2 * W) x = memcpy(some, x, (size_t)imax(left, 0) * sizeof *x);
    return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(vld1q_f32(x)), vld1q_f32(x + W));
}
static inline Pairs pairs_of_bf16(const uint16_t *x, int left) {
    uint16_t some[2 * W] = {0};
    if (left < 2 * W) x = memcpy(some, x, (size_t)imax(left, 0) * sizeof *x);
    return vreinterpretq_bf16_u16(vld1q_u16(x));
}
/* n <= W pairs, each from the same column of two consecutive rows; odd NULL: zeros. The rest of W is 0. */
static inline void pack_columns(Pair *to, const float *even, const float *odd, int n) {
    float some[2][W] = {{0}};
    if (n < W || !odd) {
        even = memcpy(some[0], even, (size_t)n * sizeof *even);
        odd = odd ? memcpy(some[1], odd, (size_t)n * sizeof *odd) : some[1];
    }
    uint16x4_t lo = vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(even))),
               hi = vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(odd)));
    vst1q_u32(to, vorrq_u32(vmovl_u16(lo), vshll_n_u16(hi, 16)));
}
static inline void pack_columns_bf16(Pair *to, const uint16_t *even, const uint16_t *odd, int n) {
    for (int i = 0; i < W; i++) to[i] = i < n ? even[i] | (odd ? (Pair)odd[i] << 16 : 0) : 0;
}
/* Round n elements to BF16. */
static inline void bf16_row(uint16_t *to, const float *x, int n) {
    int i = 0;
    for (; i + W <= n; i += W) vst1_u16(to + i, vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(x + i))));
    for (; i < n; i++) to[i] = vget_lane_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(vdupq_n_f32(x[i]))), 0);
}
/* Four rows of four pairs: to[k * ld + row] = row's pair k, k < some. */
static inline void turn(Pair *to, size_t ld, const Pairs rows[W], int some) {
    uint32x4_t r[W], t[W];
    for (int i = 0; i < W; i++) r[i] = vreinterpretq_u32_bf16(rows[i]);
    for (int i = 0; i < W; i += 2) t[i] = vtrn1q_u32(r[i], r[i + 1]), t[i + 1] = vtrn2q_u32(r[i], r[i + 1]);
    for (int i = 0; i < 2; i++) {
        uint64x2_t a = vreinterpretq_u64_u32(t[i]), b = vreinterpretq_u64_u32(t[2 + i]);
        r[i] = vreinterpretq_u32_u64(vtrn1q_u64(a, b)), r[2 + i] = vreinterpretq_u32_u64(vtrn2q_u64(a, b));
    }
    for (int k = 0; k < W; k++)
        if (k < some) vst1q_u32(to + (size_t)k * ld, r[k]);
}
/* Pack B's rows row.. (n <= W of them, the rest counts as 0), `some` pairs from k on, k along the rows. In bf16 rows
 * it also prefetches `ahead` bytes further; 0: nothing. */
static inline void pack_block(Pair *to, size_t ld, GemmShape s, const void *B, int row, int n, int k, int some,
                              size_t ahead) {
    Pairs r[W];
    int left = s.K - 2 * k;
    for (int i = 0; i < W; i++) {
        size_t at = (size_t)(row + imin(i, n - 1)) * (size_t)s.ldb + 2 * (size_t)k;
        r[i] = s.b_bf16 ? pairs_of_bf16((const uint16_t *)B + at, i < n ? left : 0)
                        : pairs_of((const float *)B + at, i < n ? left : 0);
        if (s.b_bf16 && ahead) __builtin_prefetch((const uint16_t *)B + at + ahead / sizeof(uint16_t), 0, 2);
    }
    turn(to, ld, r, some);
}
static Lie lie(GemmShape s) { return (Lie){((size_t)s.K + 1) / 2 * MR, 1, MR}; }
/* Always false: rows of A are lanes. */
static bool taken_in_place(GemmShape s, const void *A, Lie *a) {
    (void)s, (void)A, (void)a;
    return false;
}
/* Pairs k0..k1-1 of all of A, k down its columns. */
static void pack_a_columns(Pair *to, Lie a, GemmShape s, const void *A, int k0, int k1) {
    for (int i = 0; i < s.M; i += W)
        for (int k = k0; k < k1; k++) {
            Pair *at = to + (size_t)(i / MR) * a.block + (size_t)k * a.step + i % MR;
            two_rows(at, A, s.lda, s.a_bf16, s.K, k, i, imin(W, s.M - i));
            if (i % MR == 0 && s.M - i <= W) vst1q_u32(at + W, vdupq_n_u32(0)); /* rows that are not there */
        }
}
/* Pack rows row..row+MR-1 of A, k along the rows; rows past the last are 0. */
static void pack_a_block(Pair *to, Lie a, GemmShape s, const void *A, int row) {
    for (int half = 0; half < MR; half += W)
        for (int k = 0; 2 * k < s.K; k += W) {
            Pairs r[W];
            for (int i = 0; i < W; i++) {
                int row_i = row + half + i, left = row_i < s.M ? s.K - 2 * k : 0;
                size_t at = (size_t)imin(row_i, s.M - 1) * (size_t)s.lda + 2 * (size_t)k;
                r[i] = s.a_bf16 ? pairs_of_bf16((const uint16_t *)A + at, left) : pairs_of((const float *)A + at, left);
            }
            turn(to + (size_t)k * a.step + half, a.step, r, imin(W, (s.K + 1) / 2 - k));
        }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void store(int vecs, float *C, const float32x4_t c[NV], int last,
                                                        bool first) {
#pragma GCC unroll 3
    for (int v = 0; v < vecs; v++) {
        float *to = C + (size_t)v * W, some[W];
        if (v < vecs - 1 || last == W) {
            vst1q_f32(to, first ? c[v] : vaddq_f32(vld1q_f32(to), c[v]));
            continue;
        }
        vst1q_f32(some, c[v]);
        for (int i = 0; i < last; i++) to[i] = first ? some[i] : to[i] + some[i];
    }
}
static inline __attribute__((always_inline)) Pairs pairs_at(const Pair *x) {
    return vreinterpretq_bf16_u32(vld1q_u32(x));
}
/* rows <= mr rows of C, columns of `vecs` vectors, the last of which has `last` elements; first: C = instead of C
 * +=. */
static inline __attribute__((always_inline)) void kernel_of(int mr, int vecs, float *C, size_t ldc, const Pair *a,
                                                            const Pair *b, int pairs, int rows, int last, bool first) {
    float32x4_t c[MR][NV];
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) c[r][v] = vdupq_n_f32(0);
    for (int k = 0; k < pairs; k++, a += MR, b += vecs * W) {
        Pairs y[NV], lo = pairs_at(a), hi = mr > W ? pairs_at(a + W) : lo;
#pragma GCC unroll 3
        for (int v = 0; v < vecs; v++) y[v] = pairs_at(b + v * W);
/* the lane is part of the instruction and cannot be a variable */
#define ROW(r, x) \
    if (r < mr)   \
        for (int v = 0; v < vecs; v++) c[r][v] = vbfdotq_laneq_f32(c[r][v], y[v], x, r % W)
        ROW(0, lo);
        ROW(1, lo);
        ROW(2, lo);
        ROW(3, lo);
        ROW(4, hi);
        ROW(5, hi);
        ROW(6, hi);
        ROW(7, hi);
#undef ROW
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
        if (r < rows) store(vecs, C + (size_t)r * ldc, c[r], last, first);
}
static inline __attribute__((always_inline)) void kernel(int mr, int vecs, float *C, size_t ldc, const Pair *a, Lie l,
                                                         const Pair *b, int pairs, int rows, int last, bool first) {
    (void)mr, (void)l;
    switch (rows) {
    case 1: kernel_of(1, vecs, C, ldc, a, b, pairs, rows, last, first); break;
    case 2: kernel_of(2, vecs, C, ldc, a, b, pairs, rows, last, first); break;
    case 3:
    case 4: kernel_of(4, vecs, C, ldc, a, b, pairs, rows, last, first); break;
    default: kernel_of(MR, vecs, C, ldc, a, b, pairs, rows, last, first);
    }
}
