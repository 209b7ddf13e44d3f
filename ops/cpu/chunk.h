/* chunk.h: the data of one chunk of rows of the gated delta rule (formulas in chunk.c). Both kernels use it:
 * chunk_channels.c for a decay per channel, chunk_scalar.c for one decay for all channels, or none. Only those two
 * files include it. */
#pragma once
#include "pairs.h"
#include "vec.h"

enum { SUB = 16, LD = RECUR_CHUNK /* row length of matrices of rows by rows */ };

/* One value head of one pass, as strided rows. */
typedef struct {
    int K, V;
    size_t ldq, ldv, ldg, ldb; /* of q, k and erase; of v, o and do; of g; of beta */
    bool decays, per_channel;  /* g is present; g has one element for each channel */
    bool delta;                /* there is a correction */
    Tensor q, k, v, erase;     /* of all heads, erase absent where it is k; may be BF16, and then so are o and do */
    size_t atq, atv;           /* where row 0 begins in q, k and erase; in v, o and do */
    const real *g, *beta;      /* at row 0; may be NULL */
    real scale;
    bool pairs;         /* products round their operands to bf16 */
    PairProduct *tiles; /* of pairs; NULL: by vectors */
} Head;
/* Rows of `real`s, ld apart. */
typedef struct {
    const real *at;
    size_t ld;
} Rows;

/* Matrices of a chunk: (n,K) or (n,V), and (n,n) with rows of LD. */
typedef struct {
    const Head *h;
    int t0, n, K, V;
    real *q, *k;        /* q carries the scale */
    real *erase;        /* the erase keys, which may be k */
    real *qc, *erase_c; /* q c, erase c; without decay q and erase themselves */
    real *x; /* k_j e_{n-1,j}; without decay k. Per channel, while it is built: k_j e_{ref,j} of the rows j < done */
    real *c; /* decay since the chunk began: (n,K) per channel, (n) otherwise */
    real *p, *l; /* P_ij at i pi + j pj, L_ij too */
    size_t pi, pj;
    real *r, *u;   /* without delta r is not used; while o is computed, r is room for rows of BF16 */
    real *row;     /* for BF16: room for one more row of K or V elements */
    Pair *pa, *pb; /* with pairs: the operands of a product */
    /* The members of a decay per channel. */
    real *a; /* decay of a row */
    real *f; /* backward: decay since the first row of its block, that row's own decay excluded */
    int ref, done;
    real *pack, *since, *w; /* (K, 2 SUB); (K, SUB); (K) */
    /* The members of one decay for all channels, or none. */
    real *e, *kt; /* e_ij, 0 for j > i up to the end of i's block; (K,n) k transposed */
} Chunk;

/* Gradients of one value head. Any may be absent. Those of v, g and beta are laid out like v, g
 * and beta. */
typedef struct {
    Into q, k, v, g, beta, erase;
    size_t ldq, atq, atg, atbeta; /* of q, k and erase; where row 0 begins */
} HeadGrad;
typedef struct {
    real *dq, *dk, *y; /* (n,K): by the scaled q, by k; work space */
    real *derase;      /* by the erase keys: dk where they are k */
    real *du, *nr;     /* (n,V): dU, then dR; -beta dR */
    real *ut, *st;     /* (V,n) U^T; (V,K) a state transposed */
    real *dp, *dl;     /* (n,n) */
    real *dout;        /* (n,V), where do is BF16 */
    /* The members of a decay per channel; derase is first used as `row` (chunk.c). */
    real *col, *ye, *end; /* (n,K); (n,K): y and ye are q_i and e_i with the decay since the current block; (K) */
} ChunkGrad;

/* Take the next n elements of mem, of which *at are already taken. mem NULL: only count them. */
static real *part(real *mem, size_t *at, size_t n) {
    real *p = mem ? mem + *at : NULL;
    *at += n;
    return p;
}
/* Both functions return how many elements they take. */
static size_t chunk_place(Chunk *c, const Head *h, real *mem) {
    size_t K = (size_t)h->K, k = LD * K, v = LD * (size_t)h->V, n = LD * LD, at = 0;
    *c = (Chunk){.h = h, .K = h->K, .V = h->V, .pi = h->per_channel ? 1 : LD, .pj = h->per_channel ? LD : 1};
    c->q = part(mem, &at, k), c->k = part(mem, &at, k);
    c->erase = present(h->erase) ? part(mem, &at, k) : c->k;
    c->qc = c->q, c->erase_c = c->erase, c->x = c->k;
    if (h->decays) c->qc = part(mem, &at, k), c->erase_c = part(mem, &at, k), c->x = part(mem, &at, k);
    c->p = part(mem, &at, n), c->l = part(mem, &at, n);
    c->r = part(mem, &at, v), c->u = part(mem, &at, v);
    if (h->per_channel) {
        c->c = part(mem, &at, k), c->a = part(mem, &at, k), c->f = part(mem, &at, k);
        c->pack = part(mem, &at, 2 * SUB * K), c->since = part(mem, &at, SUB * K), c->w = part(mem, &at, K);
    } else
        c->c = part(mem, &at, LD), c->e = part(mem, &at, n), c->kt = part(mem, &at, k);
    if (h->v.dtype == BF16) c->row = part(mem, &at, (size_t)imax(h->K, h->V));
    if (h->pairs) {
        const size_t most = (size_t)imax(LD, imax(h->K, h->V));
        c->pa = (Pair *)part(mem, &at, LD * most / 2), c->pb = (Pair *)part(mem, &at, most * most / 2);
    }
    return at;
}
static size_t chunk_grad_place(ChunkGrad *g, const Head *h, real *mem) {
    size_t K = (size_t)h->K, k = LD * K, v = LD * (size_t)h->V, n = LD * LD, at = 0;
    *g = (ChunkGrad){0};
    g->dq = part(mem, &at, k), g->dk = part(mem, &at, k), g->y = part(mem, &at, k);
    g->derase = present(h->erase) ? part(mem, &at, k) : g->dk;
    g->du = part(mem, &at, v), g->nr = part(mem, &at, v), g->ut = part(mem, &at, v);
    g->dp = part(mem, &at, n), g->dl = part(mem, &at, n), g->st = part(mem, &at, K * (size_t)h->V);
    if (h->per_channel) g->col = part(mem, &at, k), g->ye = part(mem, &at, k), g->end = part(mem, &at, K);
    if (h->v.dtype == BF16) g->dout = part(mem, &at, v);
    return at;
}

/* C (M,N) += A (M,K) B (K,N), as tile_mm; with pairs both operands are rounded to bf16, if N is whole vectors. */
static void chunk_mm(const Chunk *c, real *C, size_t ldc, const real *A, size_t ars, size_t aks, const real *B,
                     size_t ldb, int M, int K, int N) {
    const int pairs = (K + 1) / 2;
    if (!c->h->pairs || N % W) {
        tile_mm(C, ldc, A, ars, aks, B, ldb, M, K, N);
        return;
    }
    if (K == 0) return;
    for (int k = 0; k < pairs; k++) {
        const real *even = B + (size_t)(2 * k) * ldb, *odd = 2 * k + 1 < K ? even + ldb : NULL;
        for (int j = 0; j < N; j += W) pack_columns(c->pb + k * N + j, even + j, odd ? odd + j : NULL, W);
    }
    for (int i0 = 0, m; i0 < M; i0 += m) {
        m = imin(LD, M - i0);
        const real *a = A + (size_t)i0 * ars;
        const int across = (m + W - 1) / W * W;
        if (aks == 1)
            for (int i = 0; i < m; i++) pack_row(c->pa + i * pairs, a + (size_t)i * ars, pairs, K % 2);
        else
            for (int k = 0; k < pairs; k++) {
                const real *even = a + (size_t)(2 * k) * aks, *odd = 2 * k + 1 < K ? even + aks : NULL;
                for (int i = 0; i < m; i += W)
                    pack_columns(c->pa + k * across + i, even + i, odd ? odd + i : NULL, imin(W, m - i));
            }
        const size_t row = aks == 1 ? (size_t)pairs : 1, step = aks == 1 ? 1 : (size_t)across;
        pairs_mm(c->h->tiles, C + (size_t)i0 * ldc, ldc, c->pa, row, step, c->pb, (size_t)N, m, pairs, N, true);
    }
}

INLINE void times(real *restrict y, const real *restrict x, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] *= x[i];
}
INLINE void product(real *restrict y, const real *restrict a, const real *restrict b, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = a[i] * b[i];
}
INLINE void axpy(real *restrict y, real a, const real *restrict x, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] += a * x[i];
}
static void fill(real *y, real a, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a;
}

/* y (cols,rows) = x (rows,cols)^T, in stripes whose cache lines stay in the first-level cache. */
static void transpose(real *restrict y, size_t ldy, const real *restrict x, size_t ldx, int rows, int cols) {
    for (int i0 = 0; i0 < rows; i0 += SUB) {
        int m = imin(SUB, rows - i0), j = 0;
#if defined(__AVX512F__) && !defined(KV_DOUBLE)
        for (; m == W && j + W <= cols; j += W) {
            __m512i r[W];
            for (int i = 0; i < W; i++) r[i] = _mm512_loadu_si512(x + (size_t)(i0 + i) * ldx + j);
            turn_registers(r);
            for (int i = 0; i < W; i++) _mm512_storeu_si512(y + (size_t)(j + i) * ldy + i0, r[i]);
        }
#endif
        for (; j < cols; j++)
            for (int i = 0; i < m; i++) y[(size_t)j * ldy + (size_t)(i0 + i)] = x[(size_t)(i0 + i) * ldx + (size_t)j];
    }
}

/* Add a x to n elements of y from element `at` on. room: space for n elements, used if y is BF16. */
INLINE void grad_row(Into y, size_t at, real a, const real *restrict x, int n, real *room) {
    real *restrict sum = run_write(y.t, at, room);
    if (y.overwrite) {
#pragma omp simd
        for (int i = 0; i < n; i++) sum[i] = a * x[i];
    } else {
        run_of(y.t, at, (size_t)n, room);
        axpy(sum, a, x, n);
    }
    run_done(y.t, at, (size_t)n, sum);
}
