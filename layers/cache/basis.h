/* basis.h: makes and measures bases of rows (ops/row_basis.h): model/basis.c reads their directions for the codec palu,
 * infer/calibrate.c finds them. */
#pragma once
#include "cache.h"
#include "ops/rope.h"

/* Keys of the basis are rotated so; NULL: they are not. May be called again. */
void basis_turns(RowBasis *, const Rope *);
void basis_free(RowBasis *);

/* Second moments of the rows of a slot: sums of x x^T, of keys turned back (0) and of values (1). A row x is the parts
 * of a group of `heads` lanes that follow each other. */
typedef struct {
    int groups, heads, width[2]; /* width: of a group */
    size_t *rows;                /* (groups) */
    double *sum[2];              /* (groups,width,width) */
} KvMoments;
/* heads must divide the slot's lanes. */
void kv_moments_open(KvMoments *, const Slot *, int heads);
void kv_moments_free(KvMoments *);
/* Adds the rows of sequence seq, stored as `real`s, at positions from `from` on. Waits for a device. */
void kv_moments_add(KvMoments *, const Slot *, int seq, int from, int threads);

/* The rows of a document of sequence seq that the slot has whole, stored as `real`s: keys (n,lanes,kdim), turned back,
 * and values (n,lanes,vdim). Returns n. */
int kv_rows_turned_back(const Slot *, int seq, real *keys, real *values);

/* The eigenvectors of a symmetric matrix a (n,n), which is used up, as rows of v (n,n) by descending eigenvalues, which
 * go to `value` (n). The element of a vector with the largest magnitude is positive. */
void basis_eigen(int n, double *a, double *v, double *value);
