/* amx.h: whether products may be made in the tiles of x86-64 (AMX), and whether they come out right. Private to ops/
 * and its tests; of programs for x86-64 in f32. */
#pragma once
#include "gemm_bf16.h"

GemmBf16 gemm_bf16_amx; /* wants AVX-512-BF16 and all that is asked for here */

/* Processor and system have tiles and their products in bf16: of CPUID leaf 1's ECX and leaf 7's EDX, and of XCR0. */
bool amx_in(uint32_t leaf1_ecx, uint32_t leaf7_edx, uint64_t xcr0);
bool amx_there(void); /* of this processor */
/* Ask the system for the tiles, for all threads of this process; once is enough, more do no harm. False (EXIT_WORLD):
 * it refuses. */
bool amx_permitted(Err *);
/* Small products of every kind by two forms, whose sums may have any order; false (EXIT_WORLD): the first gives another
 * result than the second, which is named. */
bool gemm_bf16_agrees(GemmBf16 *, GemmBf16 *with, Err *);
