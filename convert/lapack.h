/* lapack.h: the four routines of LAPACKE that conversions need, looked up when one asks for them: a library that takes
 * megabytes and threads of its own as it is loaded is no burden to training and decoding. Signatures are those of
 * lapacke.h with 32-bit integers; layout 101 is by rows, 102 by columns. Source: LAPACK 3.x. */
#pragma once
#include "../ops/base.h"

enum { BY_ROWS = 101, BY_COLUMNS = 102 };
typedef struct {
    int (*dgesvd)(int layout, char u, char vt, int m, int n, double *a, int lda, double *s, double *U, int ldu,
                  double *VT, int ldvt, double *work);
    int (*dpotrf)(int layout, char uplo, int n, double *a, int lda);
    int (*dtrtrs)(int layout, char uplo, char trans, char diag, int n, int nrhs, const double *a, int lda, double *b,
                  int ldb);
    int (*dsyevd)(int layout, char job, char uplo, int n, double *a, int lda, double *w);
} Lapack;

/* EXIT_WORLD: there is no such library. It stays loaded. */
bool lapack_open(Lapack *, Err *);
