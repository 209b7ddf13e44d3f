/* amx.h: checks whether this processor and system can compute products in x86-64 tiles (AMX), and whether the results
 * are right. ops/isa.c calls it when it lists instruction sets. Private to ops/ and its tests; only in f32 programs
 * for x86-64. */
#pragma once
#include "gemm_bf16.h"

/* Both need AVX-512-BF16 and everything checked here. */
GemmBf16 gemm_bf16_amx;
PairProduct pair_product_amx;

/* Processor and system support tiles and bf16 products in them: bits of ECX of CPUID leaf 1, EDX of
 * leaf 7, and XCR0. */
bool amx_in(uint32_t leaf1_ecx, uint32_t leaf7_edx, uint64_t xcr0);
bool amx_there(void); /* the same for this processor */
/* Ask the system for permission to use tiles, for all threads of this process. Repeated calls do no harm. False
 * (EXIT_RUNTIME): it refuses. */
bool amx_permitted(Err *);
/* Compute small products of every kind with both kernels and compare the results within a rounding bound, because the
 * order of sums may differ. False (EXIT_RUNTIME): they differ; the message names the product. */
bool gemm_bf16_agrees(GemmBf16 *, GemmBf16 *with, Err *);
