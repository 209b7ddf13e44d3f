/* lapack.h: the four routines of LAPACKE that conversions need, opened on demand, because the library needs megabytes
 * and threads of its own, which training and decoding should not pay for. Signatures are those of lapacke.h with 32-bit
 * integers; layout 101 is row-major, 102 column-major. Source: LAPACK 3.x. */
#pragma once
#include "ops/base.h"

enum { BY_ROWS = 101, BY_COLUMNS = 102 };
typedef struct {
    int (*dgesvd)(int layout, char u, char vt, int m, int n, double *a, int lda, double *s, double *U, int ldu,
                  double *VT, int ldvt, double *work);
    int (*dpotrf)(int layout, char uplo, int n, double *a, int lda);
    int (*dtrtrs)(int layout, char uplo, char trans, char diag, int n, int nrhs, const double *a, int lda, double *b,
                  int ldb);
    int (*dsyevd)(int layout, char job, char uplo, int n, double *a, int lda, double *w);
} Lapack;

/* EXIT_RUNTIME: there is no such library. It stays loaded. */
bool lapack_open(Lapack *, Err *);
