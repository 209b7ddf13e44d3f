/* gemm.h: matrix product by the library (oneDNN; a plain loop in the double build, which is its oracle), or by our own
 * kernel with operands in bf16. */
#pragma once
#include "arena.h"

typedef struct Gemm Gemm; /* the library's engine and the cached primitives, one per shape */

typedef struct {
    int M, N, K;
    int lda, ldb, ldc;
    bool ta, tb;     /* A is stored (K,M), B is stored (N,K) */
    bool accumulate; /* C += A B instead of C = A B */
    bool narrow;     /* B is BF16 in memory: the product is our own, by gemm_use */
    int64_t weights; /* numbers of the weight matrix that takes part */
    bool narrow_a;   /* the same of A */
    bool narrow_c; /* of C: each number is rounded to the nearest, once, when all products of a call are added to it */
} GemmShape;

bool gemm_open(Gemm **, Err *);
void gemm_close(Gemm *);
/* C (M,N) = or += A (M,K) B (K,N), row-major with leading dimensions in numbers. Takes the library's scratchpad from
 * `scratch` and gives it back; while scratch measures, only that happens. */
void gemm(Gemm *, Arena *scratch, GemmShape, void *C, const void *A, const void *B);

/* Several products in one call. Products of one `a` have the same A, so that it is packed once; so B and `b`. Products
 * of one `c` stand behind each other and add to one C in that order; other Cs do not overlap. The numbers are those of
 * one gemm() after the other. */
typedef struct {
    GemmShape s;
    void *C;
    const void *A, *B;
    int a, b, c;
} GemmJob;
enum { GEMM_JOBS = 8 };
void gemm_many(Gemm *, Arena *scratch, int n, const GemmJob *);

/* Operands rounded to bf16 (to nearest, ties to even), products and sums in f32; denormals may count as 0. Takes, for
 * every A and every B, 2 M K or 2 N K bytes, rounded up, from scratch; with M <= GEMM_BF16_FEW, tb and not ta 2 M K and
 * a fixed number for each thread. Forms without an instruction for bf16 take twice that, whatever M is. Every number of
 * C is summed in an order that K alone gives: neither threads nor other rows nor other products of the call change a
 * bit. Either all products have so few rows or none. BFDOT of aarch64
 * rounds each sum to odd, up to twice as far off as to nearest (cpu/gemm_neon.c). */
typedef void GemmBf16(int threads, Arena *scratch, int n, const GemmJob *);
enum { GEMM_BF16_FEW = 64 };
/* From now on gemm() computes products with `least` weights and more by this; NULL: by the library. The rule looks at
 * the weights alone, so that the rounding is a layer's own: neither batch nor context change it. */
void gemm_use(Gemm *, GemmBf16 *, int threads, int64_t least);
/* Whether it would so compute a product with so many weights: others that stand in for it round, too. */
bool gemm_rounds(const Gemm *, int64_t weights);
