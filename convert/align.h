/* align.h: aligns heads of keys and values in a common basis, without changing what the model computes. Targets that
 * pool heads call it. Private to convert/.
 *
 * With k_h, v_h what KV head h writes for a token, and orthogonal R_h, P_h of head_dim:
 *   v_h -> R_h v_h,  W_o of its queries -> W_o R_h^T            any R_h
 *   k_h -> P_h k_h,  q of its queries  -> P_h q                 P_h commutes with the rotation: turns every pair that
 *                                                               RoPE turns by an angle, and mixes the rest freely
 * leave every score and every output unchanged. Within a group the R_h and P_h are those of generalised Procrustes: the
 * mean m = 1/g sum R_h v_h, R_h = U V^T of the SVD of E[m v_h^T], 20 rounds from R_first = I; expectations are over
 * calibration tokens. Heads are grouped by how well they can be aligned. Sources: arXiv:2412.20677; rje/microlab
 * scripts/convert_gqa.py (zero-token losses); Gower 1975 (Procrustes). */
#pragma once
#include "ops/rope.h"

enum { ALIGN_ROUNDS = 20 };
typedef struct {
    int heads, groups, D;
    int *order;    /* (heads): group i holds the heads order[i*g .. i*g+g-1] */
    double *k, *v; /* (heads,D,D): P_h, R_h; by the head's number in the source */
    double *keep_k,
        *keep_v; /* (groups): factor that restores the norm of the pooled head to the mean of its members' */
} Gauge;

/* k, v: (heads*D)^2 sums over tokens of the outer products of all heads' keys and values. turn: the rotation; fixed:
 * keys stay unchanged (their norm has its own gains). similar: group by similarity, else by neighbourhood. False
 * (EXIT_RUNTIME): LAPACK failed on a matrix, as it does on values that are not finite. */
bool gauge_make(Gauge *, int heads, int groups, int D, const double *k, const double *v, const Rope *turn, bool fixed,
                bool similar, Err *);
void gauge_free(Gauge *);

/* orthogonal R (n,n) nearest to the row-major c (n,n), U V^T; *nuclear: the sum of the singular values. */
bool procrustes(double *R, double *nuclear, const double *c, int n, Err *);
