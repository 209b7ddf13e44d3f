/* row_basis.h: a basis of the rows of one layer's cache: keys and values are stored as coefficients of a few
 * directions. A layer whose codec has a rank (RowCodec.rank) has one; model/basis.c makes it, layers/kv.c projects the
 * rows of a pass on it, and who reads rows gets them back by part_decode (run.h).
 *
 *   key    c = B R^-1 k,  k' = R B^T c    R: the model's rotation by the row's position, of each lane's part
 *                                         B: orthonormal (heads rank, heads width)
 *   value  c = B v,       v' = B^T c
 *
 * k and v are the parts of `heads` lanes that follow each other, a group, one after the other; each group has
 * directions of its own, heads rank of them, and lane i of it stores coefficients i rank .. (i + 1) rank - 1, so that
 * all lanes store alike. R is made from turns by the digits of the position, so that its tables do not grow with the
 * context. The rotation's attention factor stays in the key: R is orthogonal. */
#pragma once
#include "tensor.h"

enum { BASIS_WIDEST = 1024, TURN_BITS = 6, TURN_STEPS = 1 << TURN_BITS, TURN_DIGITS = 5 };
typedef struct {
    int rank, width; /* of a lane */
    real *direction; /* (lanes / heads, heads rank, heads width) */
    /* Of rows that are predicted: rank = width, and direction NULL. */
    int inputs;
    real *weight, *bias; /* (lanes width, inputs), (lanes width) */
} PartBasis;
typedef struct RowBasis RowBasis;
struct RowBasis {
    int lanes, pairs;
    int heads;         /* lanes of a group, 1 or more; divides lanes */
    PartBasis part[2]; /* of keys, of values */
    int (*pair)[2];    /* (pairs) elements of a key that turn together */
    real *cos, *sin;   /* (TURN_DIGITS,TURN_STEPS,pairs) by digit 0, 1, .. of a position's digit in base TURN_STEPS */
    const RowBasis *below; /* of rows that are predicted: that of the rows which they are predicted from; NULL: none */
};
/* Rows are stored as residuals (layers/cache/aqua.h), and part_decode does not know them. */
static inline bool basis_predicts(const RowBasis *b) { return b && b->part[0].bias; }

/* A key, turned by its position; `by` -1: turned back. */
static inline void basis_turn(const RowBasis *b, real *key, int pos, int by) {
    const size_t n = (size_t)b->pairs;
    for (size_t i = 0; i < n; i++) {
        real c = 1, s = 0;
        for (int d = 0, rest = pos; rest; d++, rest >>= TURN_BITS) {
            const size_t at = ((size_t)d * TURN_STEPS + (size_t)(rest & (TURN_STEPS - 1))) * n + i;
            const real cd = b->cos[at], sd = b->sin[at], old = c;
            c = old * cd - s * sd, s = old * sd + s * cd;
        }
        s *= (real)by;
        real *x = &key[b->pair[i][0]], *y = &key[b->pair[i][1]];
        const real first = *x;
        *x = c * first - s * *y, *y = s * first + c * *y;
    }
}
static inline const real *basis_directions(const RowBasis *b, bool value, int group) {
    const PartBasis *p = &b->part[value];
    const size_t heads = (size_t)b->heads;
    return p->direction + (size_t)group * heads * (size_t)p->rank * heads * (size_t)p->width;
}
/* The coefficients c (heads,rank) of a group's parts (heads,width) of a row at `pos`; keys are turned back in place. */
static inline void basis_project(const RowBasis *b, real *c, real *parts, bool value, int group, int pos) {
    const PartBasis *p = &b->part[value];
    const int rank = b->heads * p->rank, width = b->heads * p->width;
    const real *direction = basis_directions(b, value, group);
    for (int i = 0; i < b->heads && !value; i++) basis_turn(b, parts + i * p->width, pos, -1);
    for (int i = 0; i < rank; i++, direction += width) {
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < width; k++) sum += direction[k] * parts[k];
        c[i] = sum;
    }
}
/* The part of one lane, of the coefficients c (heads,rank) of its group. */
static inline void basis_expand(const RowBasis *b, real *part, const real *c, bool value, int lane, int pos) {
    const PartBasis *p = &b->part[value];
    const int rank = b->heads * p->rank, width = b->heads * p->width;
    const real *direction = basis_directions(b, value, lane / b->heads) + lane % b->heads * p->width;
    for (int k = 0; k < p->width; k++) part[k] = 0;
    for (int i = 0; i < rank; i++, direction += width)
#pragma omp simd
        for (int k = 0; k < p->width; k++) part[k] += c[i] * direction[k];
    if (!value) basis_turn(b, part, pos, 1);
}
