/* gemm_bf16.h: the kernels of ops/cpu/gemm_bf16.c, one per instruction set. Private to ops/ and its tests. */
#pragma once
#include "gemm.h"

#define GEMM_BF16_(isa) gemm_bf16_##isa
#define GEMM_BF16(isa)  GEMM_BF16_(isa)

GemmBf16 gemm_bf16_baseline;
#if defined(__x86_64__)
GemmBf16 gemm_bf16_avx2, gemm_bf16_avx512, gemm_bf16_avx512bf16;
#endif
#if defined(__aarch64__)
GemmBf16 gemm_bf16_neonbf16;
#endif

static inline void gemm_bf16_one(GemmBf16 *run, int threads, Arena *scratch, GemmShape s, void *C, const void *A,
                                 const void *B) {
    run(threads, scratch, 1, &(GemmJob){s, C, A, B, 0, 0, 0});
}
