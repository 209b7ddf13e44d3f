/* vec.h: the basic tools of the CPU kernels: the vector type of the current instruction set, exp, the small matrix
 * product of attention, and access to tensors that may be BF16. Only cpu.c includes it, once per instruction set. */
#pragma once
#include "ops/check.h"
#include "ops/device.h"

#if defined(__AVX512F__)
    #define VBYTES    64
    #define TILE_ROWS 6 /* 6 x 4 accumulators + 4 + 1 of 32 registers */
    #define TILE_VECS 4
#elif defined(__aarch64__)
    #define VBYTES    16
    #define TILE_ROWS 6 /* as many registers, shorter ones */
    #define TILE_VECS 4
#elif defined(__AVX2__)
    #define VBYTES    32
    #define TILE_ROWS 4 /* 4 x 2 + 2 + 1 of 16 */
    #define TILE_VECS 2
#else
    #define VBYTES    16
    #define TILE_ROWS 4
    #define TILE_VECS 2
#endif
#define VL ((int)(VBYTES / sizeof(real)))
typedef real Vec __attribute__((vector_size(VBYTES), aligned(sizeof(real)), may_alias));
#define INLINE static inline __attribute__((always_inline))

#ifdef KV_DOUBLE
    #define sqrt_real sqrt
#else
    #define sqrt_real sqrtf
#endif

/* Work with fewer operations than this stays on one thread: waking the other threads would cost more. */
enum { ALONE = 32768, ALONE_EXP = ALONE / 4 /* elements, when each needs an exp */ };
/* Sums over a row are sums of partial sums of this many elements, so that rounding does not grow with the row's
 * width. */
enum { SUM_RUN = 512 };

/* e^x to 2 ulp for x in [-87, 88], 0 below, e^88 above; NaN stays NaN. The float form has no branch and no call, so
 * that loops over it vectorise; the double form, which only checks gradients, is the library's. */
INLINE real exp_real(real x) {
#ifdef KV_DOUBLE
    return exp(x);
#else
    float y = x < -87.0f ? -87.0f : x;
    y = y > 88.0f ? 88.0f : y;
    float t = y * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: rounds to the nearest integer */
    union {
        float f;
        int32_t i;
    } n = {t}, two = {0};
    float k = t - 12582912.0f;
    y = y - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts */
    float p = 1.9875691500e-4f;
    p = p * y + 1.3981999507e-3f;
    p = p * y + 8.3334519073e-3f;
    p = p * y + 4.1665795894e-2f;
    p = p * y + 1.6666665459e-1f;
    p = p * y + 5.0000001201e-1f;
    p = p * y * y + y + 1.0f;
    two.i = (int32_t)((uint32_t)(n.i - 0x4B400000 + 127) << 23);
    return x < -87.0f ? 0.0f : p * two.f;
#endif
}

/* tanh x to 3 ulp, by the same rules: a polynomial (Cephes) where 1 - 2/(e^2x + 1) would cancel. */
INLINE real tanh_real(real x) {
#ifdef KV_DOUBLE
    return tanh(x);
#else
    float size = x < 0 ? -x : x, z = x * x, far = 1 - 2 / (1 + exp_real(2 * size)), p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    return size < 0.625f ? x + x * z * p : x < 0 ? -far : far;
#endif
}

/* C rows r < rows, columns of `vecs` vectors: C += A B, A element (r,k) at A[r*ars + k*aks]. */
INLINE void tile_kernel(int rows, int vecs, real *C, size_t ldc, const real *A, size_t ars, size_t aks, const real *B,
                        size_t ldb, int K) {
    Vec c[TILE_ROWS][TILE_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) c[r][v] = *(const Vec *)(C + (size_t)r * ldc + (size_t)(v * VL));
    for (int k = 0; k < K; k++) {
        Vec b[TILE_VECS];
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) b[v] = *(const Vec *)(B + (size_t)k * ldb + (size_t)(v * VL));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            real a = A[(size_t)r * ars + (size_t)k * aks];
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++) c[r][v] += a * b[v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) *(Vec *)(C + (size_t)r * ldc + (size_t)(v * VL)) = c[r][v];
}
/* The kernel needs its number of rows at compile time. */
INLINE void tile_rows(int rows, int vecs, real *C, size_t ldc, const real *A, size_t ars, size_t aks, const real *B,
                      size_t ldb, int K) {
    switch (rows) {
    case 1: tile_kernel(1, vecs, C, ldc, A, ars, aks, B, ldb, K); break;
    case 2: tile_kernel(2, vecs, C, ldc, A, ars, aks, B, ldb, K); break;
    case 3: tile_kernel(3, vecs, C, ldc, A, ars, aks, B, ldb, K); break;
#if TILE_ROWS == 6
    case 4: tile_kernel(4, vecs, C, ldc, A, ars, aks, B, ldb, K); break;
    case 5: tile_kernel(5, vecs, C, ldc, A, ars, aks, B, ldb, K); break;
#endif
    default: tile_kernel(TILE_ROWS, vecs, C, ldc, A, ars, aks, B, ldb, K);
    }
}
/* The same for fewer columns than a vector has, by copies that fill one: a head of 8 elements is half a vector of
 * AVX-512, and sums of one column at a time were a third of a small model's training. */
static void tile_rest(real *C, size_t ldc, const real *A, size_t ars, size_t aks, const real *B, size_t ldb, int M,
                      int K, int W) {
    enum { DEPTH = 64 };
    Vec b[DEPTH] = {0}, c[TILE_ROWS] = {0};
    const size_t bytes = (size_t)W * sizeof(real);
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        const int depth = imin(DEPTH, K - k0);
        for (int k = 0; k < depth; k++) memcpy(&b[k], B + (size_t)(k0 + k) * ldb, bytes);
        for (int i = 0; i < M; i += TILE_ROWS) {
            const int rows = imin(TILE_ROWS, M - i);
            for (int r = 0; r < rows; r++) memcpy(&c[r], C + (size_t)(i + r) * ldc, bytes);
            tile_rows(rows, 1, (real *)c, VL, A + (size_t)i * ars + (size_t)k0 * aks, ars, aks, (const real *)b, VL,
                      depth);
            for (int r = 0; r < rows; r++) memcpy(C + (size_t)(i + r) * ldc, &c[r], bytes);
        }
    }
}
/* C (M,W) += A (M,K) B (K,W). B and C have unit column stride, A has any strides. For operands that fit the first
 * caches. */
static void tile_mm(real *C, size_t ldc, const real *A, size_t ars, size_t aks, const real *B, size_t ldb, int M, int K,
                    int W) {
    int w = 0;
    for (; w + TILE_VECS * VL <= W; w += TILE_VECS * VL)
        for (int i = 0; i < M; i += TILE_ROWS)
            tile_rows(imin(TILE_ROWS, M - i), TILE_VECS, C + (size_t)i * ldc + w, ldc, A + (size_t)i * ars, ars, aks,
                      B + w, ldb, K);
    for (; TILE_VECS > 2 && w + 2 * VL <= W; w += 2 * VL)
        for (int i = 0; i < M; i += TILE_ROWS)
            tile_rows(imin(TILE_ROWS, M - i), 2, C + (size_t)i * ldc + w, ldc, A + (size_t)i * ars, ars, aks, B + w,
                      ldb, K);
    for (; w + VL <= W; w += VL)
        for (int i = 0; i < M; i += TILE_ROWS)
            tile_rows(imin(TILE_ROWS, M - i), 1, C + (size_t)i * ldc + w, ldc, A + (size_t)i * ars, ars, aks, B + w,
                      ldb, K);
    if (w < W) tile_rest(C + w, ldc, A, ars, aks, B + w, ldb, M, K, W - w);
}

/* Expand n bf16 elements to `real`s; rounded_to_bf16 rounds to nearest. */
INLINE void widened(real *to, const uint16_t *x, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) to[i] = (real)bf16_to(x[i]);
}
INLINE void rounded_to_bf16(uint16_t *to, const real *x, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) to[i] = bf16_from((float)x[i]);
}

/* Ops on tensors that may be BF16 work in runs of at most RUN elements. A run of a BF16 tensor is expanded into a
 * `room` that stays in the first cache (one room per tensor), computed with there, and rounded back with
 * rounded_to_bf16. Other tensors are used in place. So inner loops only know `real`s. */
enum { RUN = SUM_RUN };
/* The elements of t from `at` on, for reading; to change them, call run_done afterwards. */
INLINE real *run_of(Tensor t, size_t at, size_t n, real *room) {
    if (t.dtype != BF16) return R(t) + at;
    widened(room, (const uint16_t *)t.p + at, n);
    return room;
}
/* The place to write them to; call run_done afterwards. */
INLINE real *run_write(Tensor t, size_t at, real *room) { return t.dtype == BF16 ? room : R(t) + at; }
/* The elements of a gradient to add to (zeros if it is to be overwritten); call run_done afterwards. */
INLINE real *run_add(Into x, size_t at, size_t n, real *room) {
    if (!x.overwrite) return run_of(x.t, at, n, room);
    return memset(run_write(x.t, at, room), 0, n * sizeof(real));
}
INLINE void run_done(Tensor t, size_t at, size_t n, const real *from) {
    if (t.dtype == BF16) rounded_to_bf16((uint16_t *)t.p + at, from, n);
}
/* How many of a row of d numbers to take at a time: all that lie as `real`s, runs of others. */
static int run_width(Tensor t, int d) { return t.dtype == BF16 ? RUN : d; }
/* Copy n elements of x from `from` on to y from `at` on, in any combination of types. */
INLINE void run_copy(Tensor y, size_t at, Tensor x, size_t from, size_t n) {
    size_t each = dtype_size(y.dtype);
    if (y.dtype == x.dtype) {
        memcpy((char *)y.p + at * each, (const char *)x.p + from * each, n * each);
        return;
    }
    for (size_t k = 0; k < n; k += RUN) {
        real room[RUN];
        size_t m = zmin(RUN, n - k);
        run_done(y, at + k, m, run_of(x, from + k, m, run_write(y, at + k, room))); /* expands into y itself */
    }
}

/* Column sums over rows: each block of rows makes its own sums while its rows are in the cache, and these are added in
 * order. N alone decides the blocks, so one pass suffices and the number of threads changes no bit. */
enum { BLOCKS = 32, BLOCK_ROWS = 16 };
static int rows_of_block(int N) { return imax(BLOCK_ROWS, (N + BLOCKS - 1) / BLOCKS); }
static int blocks_of(int N) {
    return imin(BLOCKS, (N + BLOCK_ROWS - 1) / BLOCK_ROWS);
} /* at least as many as are used */
/* Add element k.. of every block's sums to sum[k..]. */
static void add_blocks(real *sum, const real *part, int N, int k, int n, int d) {
    for (int b = 0, size = rows_of_block(N); b * size < N; b++) {
        const real *p = part + (size_t)b * (size_t)d;
#pragma omp simd
        for (int c = k; c < k + n; c++) sum[c] += p[c];
    }
}

INLINE real dot(const real *a, const real *b, int n) {
    real s = 0;
#pragma omp simd reduction(+ : s)
    for (int i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
