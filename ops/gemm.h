/* gemm.h: matrix products of the CPU. Ops call it; it uses oneDNN, or our own kernel with bf16 operands (gemm_use).
 * The double build, which is the oracle, uses a plain loop. */
#pragma once
#include "arena.h"

typedef struct Gemm Gemm; /* the library's engine and the cached primitives, one per shape */

typedef struct {
    int M, N, K;
    int lda, ldb, ldc;
    bool ta, tb;     /* A is stored (K,M), B is stored (N,K) */
    bool accumulate; /* C += A B instead of C = A B */
    bool b_bf16;     /* B is BF16 in memory; then the product must be one for our own kernel (gemm_use) */
    int64_t weights; /* elements of the weight matrix in this product */
    bool a_bf16;     /* A is BF16 in memory, as b_bf16 */
    bool c_bf16; /* C is BF16: each element is rounded to nearest once, after all products of a call are added to it */
} GemmShape;

bool gemm_open(Gemm **, Err *);
void gemm_close(Gemm *);
/* C (M,N) = or += A (M,K) B (K,N), row-major, with leading dimensions in elements. Takes the library's scratchpad from
 * `scratch` and gives it back; while scratch measures, nothing else happens. */
void gemm(Gemm *, Arena *scratch, GemmShape, void *C, const void *A, const void *B);

/* Several products in one call. The results have the same bits as one gemm() after the other.
 * - Products with equal `a` have the same A, which is packed once. The same holds for `b` and B.
 * - Products with equal `c` must follow each other and add to one C in that order. Other Cs must not overlap. */
typedef struct {
    GemmShape s;
    void *C;
    const void *A, *B;
    int a, b, c;
} GemmJob;
enum { GEMM_JOBS = 8 };
void gemm_many(Gemm *, Arena *scratch, int n, const GemmJob *);

/* A kernel for bf16 operands: A and B are rounded to bf16 (to nearest, ties to even), products and sums are f32.
 * Denormals may count as 0.
 * - Scratch: 2 M K or 2 N K bytes, rounded up, for every A and every B. With M <= GEMM_BF16_FEW, tb and not ta: 2 M K
 *   and a fixed amount for each thread. Kernels without a bf16 instruction need twice that for any M.
 * - Order: K alone decides the order of each sum. Threads, other rows and other products of the call change no bit.
 * - Either all products have at most GEMM_BF16_FEW rows or none has.
 * - BFDOT of aarch64 rounds each sum to odd, up to twice as far off as to nearest (cpu/gemm_neon.c). */
typedef void GemmBf16(int threads, Arena *scratch, int n, const GemmJob *);
enum { GEMM_BF16_FEW = 64 };
/* From now on gemm() computes products with at least `least` weights by this kernel; NULL: all by the library. Only
 * the number of weights decides, so rounding depends on the layer alone, never on batch or context. */
void gemm_use(Gemm *, GemmBf16 *, int threads, int64_t least);
/* gemm() would use our bf16 kernel for a product with so many weights. Ops that replace a product must
 * then round too. */
bool gemm_rounds(const Gemm *, int64_t weights);
