/* gemm_bf16.h: the kernels of ops/cpu/gemm_bf16.c, one per instruction set. Private to ops/ and its tests. */
#pragma once
#include "gemm.h"

#define GEMM_BF16_(isa)    gemm_bf16_##isa
#define GEMM_BF16(isa)     GEMM_BF16_(isa)
#define PAIR_PRODUCT_(isa) pair_product_##isa
#define PAIR_PRODUCT(isa)  PAIR_PRODUCT_(isa)

GemmBf16 gemm_bf16_baseline;
#if defined(__x86_64__)
GemmBf16 gemm_bf16_avx2, gemm_bf16_avx512, gemm_bf16_avx512bf16;
#endif
#if defined(__aarch64__)
GemmBf16 gemm_bf16_neonbf16;
#endif

/* A small product of operands that are pairs already (cpu/pairs.h), for attention and recurrences: C (M,N) = A (M,2K)
 * B (2K,N), or += if `add`. M is at most 64, N whole vectors of 16. A's element (r,k) is at A[r ars + k aks]: one of
 * the two is 1; if it is ars, K is at most 32. A has memory for M rounded up to whole vectors, of any content. Runs in
 * the calling thread. */
typedef void PairProduct(real *C, size_t ldc, const uint32_t *A, size_t ars, size_t aks, const uint32_t *B, size_t ldb,
                         int M, int K, int N, bool add);

static inline void gemm_bf16_one(GemmBf16 *run, int threads, Arena *scratch, GemmShape s, void *C, const void *A,
                                 const void *B) {
    run(threads, scratch, 1, &(GemmJob){s, C, A, B, 0, 0, 0});
}
