/* gemm.h: matrix product by the library (oneDNN; a plain loop in the double build, which is its oracle). */
#pragma once
#include "arena.h"

typedef struct Gemm Gemm; /* the library's engine and the cached primitives, one per shape */

typedef struct {
    int M, N, K;
    int lda, ldb, ldc;
    bool ta, tb;     /* A is stored (K,M), B is stored (N,K) */
    bool accumulate; /* C += A B instead of C = A B */
} GemmShape;

bool gemm_open(Gemm **, Err *);
void gemm_close(Gemm *);
/* C (M,N) = or += A (M,K) B (K,N), row-major with leading dimensions in numbers. Takes the library's scratchpad from
 * `scratch` and gives it back; while scratch measures, only that happens. */
void gemm(Gemm *, Arena *scratch, GemmShape, real *C, const real *A, const real *B);
