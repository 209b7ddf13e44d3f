/* chunk.c: the gated delta rule over a chunk of rows at once, by products of small matrices, and its backward.
 *
 * With a_i = e^{g_i} and e_ij = a_{j+1} ... a_i (per channel), rows i >= j of a chunk of n rows after the state S0:
 *   P_ij = scale sum_d q_id k_jd e_ijd,  L_ij = sum_d k_id k_jd e_ijd (i > j)
 *   u_i = beta_i r_i,  r_i = v_i - S0^T (k_i c_i) - sum_j L_ij u_j       c_i = a_0 ... a_i; without delta u = v
 *   o_i = scale S0^T (q_i c_i) + sum_j P_ij u_j
 *   S1 = Diag(c_{n-1}) S0 + sum_j (k_j e_{n-1,j}) u_j^T
 * (the form of arXiv:2510.26692 section 3 with the inverse left out: the triangular system is solved by substitution,
 * which stays exact where powers of L explode).
 * Every decay is a product of factors <= 1 over a stretch of rows, never a quotient: nothing overflows, and small
 * decays behind strong ones keep their digits. Rows are taken in blocks of SUB: between blocks the decay splits at the
 * first row of the later block into one factor of each side; inside a block it is multiplied up, pair by pair
 * (backward) or for all later rows of a block at once. */
#include "pairs.h"
#include "vec.h"

enum { SUB = 16 };

/* One value head of one pass, as strided rows. */
typedef struct {
    int K, V;
    size_t ldq, ldv, ldg, ldb; /* of q and k; of v, o and do; of g; of beta */
    bool per_channel;
    const real *q, *k, *v, *g, *beta; /* at row 0; g, beta may be NULL */
    real scale;
} Head;

/* Matrices of a chunk: (n,K) or (n,V), and (n,n) with rows of RECUR_CHUNK. */
typedef struct {
    const Head *h;
    int t0, n, K, V;
    real *q, *k; /* q carries the scale */
    real *a;     /* decay of a row */
    real *f;     /* backward: since the first row of its block, that row's own left out */
    real *c;     /* since the chunk began: c_i */
    real *x;     /* k_j e_{ref,j} of the rows j < done */
    int ref, done;
    real *qc, *kc;          /* q c, k c */
    real *pt, *lt;          /* transposed: P_ij at j, i */
    real *r, *u;            /* without delta r is not used */
    real *pack, *since, *w; /* (K, 2 SUB); (K, SUB); (K) */
} Chunk;

static size_t chunk_numbers(int K, int V) {
    return (size_t)RECUR_CHUNK * (size_t)(8 * K + 2 * V + 2 * RECUR_CHUNK) + (size_t)(3 * SUB * K + K);
}
static void chunk_place(Chunk *c, const Head *h, real *mem) {
    size_t k = (size_t)RECUR_CHUNK * (size_t)h->K, v = (size_t)RECUR_CHUNK * (size_t)h->V,
           n = (size_t)RECUR_CHUNK * RECUR_CHUNK;
    *c = (Chunk){.h = h, .K = h->K, .V = h->V};
    real **part[] = {&c->q,  &c->k, &c->a, &c->f,  &c->c,  &c->x,    &c->qc,
                     &c->kc, &c->r, &c->u, &c->pt, &c->lt, &c->pack, &c->since};
    const size_t size[] = {k, k, k, k, k, k, k, k, v, v, n, n, (size_t)(2 * SUB * h->K), (size_t)(SUB * h->K)};
    for (int i = 0; i < 14; mem += size[i], i++) *part[i] = mem;
    c->w = mem;
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

/* The decays of row t, for all channels. */
static void decays(const Head *h, int t, real *a) {
    const real *g = h->g + (size_t)t * h->ldg;
    if (!h->g)
        fill(a, 1, (size_t)h->K);
    else if (!h->per_channel)
        fill(a, exp_real(*g), (size_t)h->K);
    else
#pragma omp simd
        for (int d = 0; d < h->K; d++) a[d] = exp_real(g[d]);
}

/* Asks for the lines of a row of n numbers: a head's rows lie too far apart for the processor to see where they go. */
INLINE void ask_row(const real *x, int n) {
    for (int i = 0; i < n; i += (int)(64 / sizeof *x)) __builtin_prefetch(x + i, 0, 2);
}
/* The rows t0.. and their decays; asks for those from `next` on, as many, where that is not negative. */
static void chunk_load(Chunk *c, int t0, int n, int next) {
    const Head *h = c->h;
    int K = c->K;
    c->t0 = t0, c->n = n, c->ref = c->done = 0;
    for (int i = 0; i < n; i++) {
        const real *q = h->q + (size_t)(t0 + i) * h->ldq, *k = h->k + (size_t)(t0 + i) * h->ldq;
        real *a = c->a + i * K, *cum = c->c + i * K;
        if (next >= 0) {
            size_t t = (size_t)(next + i);
            ask_row(h->q + t * h->ldq, K), ask_row(h->k + t * h->ldq, K), ask_row(h->v + t * h->ldv, c->V);
            if (h->g && h->per_channel) ask_row(h->g + t * h->ldg, K);
        }
        for (int d = 0; d < K; d++) c->q[i * K + d] = q[d] * h->scale;
        memcpy(c->k + i * K, k, (size_t)K * sizeof(real));
        decays(h, t0 + i, a);
        if (i)
            product(cum, cum - K, a, K);
        else
            memcpy(cum, a, (size_t)K * sizeof(real));
        product(c->qc + i * K, c->q + i * K, cum, K);
        product(c->kc + i * K, c->k + i * K, cum, K);
    }
    int past = (n + SUB - 1) / SUB * SUB - n; /* rows that fill up the last block: of nothing */
    memset(c->q + n * K, 0, (size_t)(past * K) * sizeof(real));
    memset(c->k + n * K, 0, (size_t)(past * K) * sizeof(real));
    fill(c->a + n * K, 1, (size_t)(past * K));
}

/* x for the rows j < rows at the reference row ref; references and rows only grow. */
static void chunk_reach(Chunk *c, int ref, int rows) {
    int K = c->K, m = ref;
    real *w = c->w;
    fill(w, 1, (size_t)K);
    for (int j = rows - 1; j >= c->done; j--) {
        for (; m > j; m--) times(w, c->a + m * K, K);
        product(c->x + j * K, c->k + j * K, w, K);
    }
    if (c->done) {
        for (; m > c->ref; m--) times(w, c->a + m * K, K);
        for (int j = 0; j < c->done; j++) times(c->x + j * K, w, K);
    }
    c->ref = ref, c->done = rows;
}
/* x becomes k_j e_{n-1,j} of all rows: what the state after the chunk takes in. */
static void chunk_reach_end(Chunk *c) { chunk_reach(c, c->n - 1, c->n); }

/* y (cols,rows) = x (rows,cols)^T, in stripes whose lines stay in the first cache. */
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

/* The pairs inside a block, for one channel after the other: lanes are its rows i, each with its decay since row j, and j
 * walks from the last row to the first, so that no sum runs along a vector; the products of JS rows j stay in
 * registers. a, k: the block's rows (SUB,K); qk (K,2,SUB): q and k turned; since (K,SUB): the decays, zeros before the
 * walk begins, since the first row when it has ended. L_jj becomes k_j.k_j, which nobody reads. */
enum { JS = VL >= 8 ? 8 : 4, LANES = SUB / VL };
static const real one_at[2 * SUB] = {[SUB] = 1}; /* behind SUB - j numbers: 1 in lane j */
INLINE void chunk_lanes(int j0, bool delta, const real *a, const real *k, int K, const real *qk, real *since, real *pt,
                        real *lt) {
    enum { LD = RECUR_CHUNK };
    Vec p[JS][LANES], l[JS][LANES];
#pragma GCC unroll 8
    for (int j = 0; j < JS; j++)
#pragma GCC unroll 8
        for (int v = 0; v < LANES; v++) p[j][v] = l[j][v] = (Vec){0};
    for (int d = 0; d < K; d++, qk += 2 * SUB, since += SUB) {
        Vec e[LANES];
#pragma GCC unroll 8
        for (int v = 0; v < LANES; v++) e[v] = *(const Vec *)(since + v * VL);
#pragma GCC unroll 8
        for (int j = JS - 1; j >= 0; j--) {
            const int at = j0 + j;
            const real next = a[imin(at + 1, SUB - 1) * K + d], kj = k[at * K + d];
#pragma GCC unroll 8
            for (int v = 0; v < LANES; v++) {
                e[v] = e[v] * next + *(const Vec *)(one_at + SUB - at + v * VL);
                Vec x = e[v] * kj;
                p[j][v] += x * *(const Vec *)(qk + v * VL);
                if (delta) l[j][v] += x * *(const Vec *)(qk + SUB + v * VL);
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < LANES; v++) *(Vec *)(since + v * VL) = e[v];
    }
#pragma GCC unroll 8
    for (int j = 0; j < JS; j++)
#pragma GCC unroll 8
        for (int v = 0; v < LANES; v++) {
            *(Vec *)(pt + (j0 + j) * LD + v * VL) = p[j][v];
            if (delta) *(Vec *)(lt + (j0 + j) * LD + v * VL) = l[j][v];
        }
}
static void chunk_scores(Chunk *c) {
    enum { LD = RECUR_CHUNK };
    int K = c->K;
    for (int i0 = 0; i0 < c->n; i0 += SUB) {
        const real *a = c->a + i0 * K, *k = c->k + i0 * K;
        real *pt = c->pt + i0 * LD + i0, *lt = c->lt + i0 * LD + i0;
        transpose(c->pack, 2 * SUB, c->q + i0 * K, (size_t)K, SUB, K);
        transpose(c->pack + SUB, 2 * SUB, k, (size_t)K, SUB, K);
        memset(c->since, 0, (size_t)(K * SUB) * sizeof(real));
        for (int j = SUB - JS; j >= 0; j -= JS)
            if (c->h->beta)
                chunk_lanes(j, true, a, k, K, c->pack, c->since, pt, lt);
            else
                chunk_lanes(j, false, a, k, K, c->pack, c->since, pt, lt);
        if (!i0) continue;
        chunk_reach(c, i0, i0);
        for (int d = 0; d < K; d++) {
            times(c->pack + d * 2 * SUB, c->since + d * SUB, SUB);
            times(c->pack + d * 2 * SUB + SUB, c->since + d * SUB, SUB);
        }
        for (int j = 0; j < i0; j++) {
            memset(c->pt + j * LD + i0, 0, SUB * sizeof(real));
            if (c->h->beta) memset(c->lt + j * LD + i0, 0, SUB * sizeof(real));
        }
        tile_mm(c->pt + i0, LD, c->x, (size_t)K, 1, c->pack, 2 * SUB, i0, K, SUB);
        if (c->h->beta) tile_mm(c->lt + i0, LD, c->x, (size_t)K, 1, c->pack + SUB, 2 * SUB, i0, K, SUB);
    }
}

/* r and u after the state S; S NULL: zero. */
static void chunk_solve(Chunk *c, const real *S) {
    enum { LD = RECUR_CHUNK };
    const Head *h = c->h;
    int K = c->K, V = c->V, n = c->n;
    size_t ldv = (size_t)V;
    if (!h->beta) {
        for (int i = 0; i < n; i++) memcpy(c->u + i * V, h->v + (size_t)(c->t0 + i) * h->ldv, (size_t)V * sizeof(real));
        return;
    }
    memset(c->r, 0, (size_t)(n * V) * sizeof(real));
    if (S) tile_mm(c->r, ldv, c->kc, (size_t)K, 1, S, ldv, n, K, V);
    for (int i0 = 0; i0 < n; i0 += SUB) {
        int m = imin(SUB, n - i0);
        if (i0) tile_mm(c->r + i0 * V, ldv, c->lt + i0, 1, LD, c->u, ldv, m, i0, V);
        for (int i = i0; i < i0 + m; i++) {
            real *r = c->r + i * V, *u = c->u + i * V, beta = h->beta[(size_t)(c->t0 + i) * h->ldb];
            const real *v = h->v + (size_t)(c->t0 + i) * h->ldv;
            for (int j = i0; j < i; j++) axpy(r, c->lt[j * LD + i], c->u + j * V, V);
#pragma omp simd
            for (int d = 0; d < V; d++) {
                r[d] = v[d] - r[d];
                u[d] = beta * r[d];
            }
        }
    }
}

/* o at row 0 of the pass; S as in chunk_solve. */
static void chunk_out(const Chunk *c, real *o, const real *S) {
    int K = c->K, V = c->V, n = c->n;
    size_t ld = c->h->ldv;
    o += (size_t)c->t0 * ld;
    for (int i = 0; i < n; i++) memset(o + (size_t)i * ld, 0, (size_t)V * sizeof(real));
    if (S) tile_mm(o, ld, c->qc, (size_t)K, 1, S, (size_t)V, n, K, V);
    for (int i0 = 0; i0 < n; i0 += SUB) {
        int m = imin(SUB, n - i0);
        tile_mm(o + (size_t)i0 * ld, ld, c->pt + i0, 1, RECUR_CHUNK, c->u, (size_t)V, m, i0 + m, V);
    }
}

/* S <- S1. */
static void chunk_state(Chunk *c, real *S) {
    int K = c->K, V = c->V;
    const real *end = c->c + (c->n - 1) * K;
    chunk_reach_end(c);
    for (int d = 0; d < K; d++)
        for (int j = 0; j < V; j++) S[(size_t)d * (size_t)V + (size_t)j] *= end[d];
    tile_mm(S, (size_t)V, c->x, 1, (size_t)K, c->u, (size_t)V, K, c->n, V);
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 * With dS the gradient of S1, do that of o, and U, R the matrices of u_i, r_i:
 *   dU = P^T do + X dS                      X_j = k_j e_{n-1,j}
 *   dR = (I + Diag(beta) L)^-T dU;  dv = beta dR;  dbeta_i = dR_i.r_i
 *   dP = tril(do U^T);  dL = -stril(beta dR U^T)
 *   dS0 = Diag(c_{n-1}) dS + (q c)^T do - (k c)^T (beta dR)
 * and with  row_i = what q_i, k_i receive as the later of a pair,  col_j = what k_j receives as the earlier one:
 *   the sum of b_i = g_0 + ... + g_i receives q_i dq_i + k_i (row_i - col_i), and b_{n-1} also what S1 holds of them;
 *   dg_i = sum over m >= i of b_m's. A pair i = j has no decay: it is left out of both sides there. */

/* Gradients of one value head at row 0; any may be NULL. */
typedef struct {
    size_t ldq; /* of q and k */
    real *q, *k, *v, *g, *beta;
    bool fresh_q, fresh_k, fresh_v, fresh_g, fresh_beta; /* are written, not added to */
} HeadGrad;
/* y (n), a row of one, += x. */
INLINE void grad_row(real *restrict y, bool fresh, const real *restrict x, int n) {
    if (fresh)
        memcpy(y, x, (size_t)n * sizeof *y);
    else
#pragma omp simd
        for (int i = 0; i < n; i++) y[i] += x[i];
}
typedef struct {
    real *dq, *row, *col; /* (n,K) */
    real *yq, *yk;        /* (n,K): q_i and k_i with the decay since the block in hand */
    real *du, *nr;        /* (n,V): dU, then dR; -beta dR */
    real *ut, *st;        /* (V,n) U^T; (V,K) a state transposed */
    real *dp, *dl;        /* (n,n) */
    real *end;            /* (K) */
} ChunkGrad;

static size_t chunk_grad_numbers(int K, int V) {
    return (size_t)RECUR_CHUNK * (size_t)(5 * K + 3 * V + 2 * RECUR_CHUNK) + (size_t)(V * K + K);
}
static void chunk_grad_place(ChunkGrad *g, const Head *h, real *mem) {
    size_t k = (size_t)RECUR_CHUNK * (size_t)h->K, v = (size_t)RECUR_CHUNK * (size_t)h->V,
           n = (size_t)RECUR_CHUNK * RECUR_CHUNK;
    real **part[] = {&g->dq, &g->row, &g->col, &g->yq, &g->yk, &g->du, &g->nr, &g->ut, &g->dp, &g->dl, &g->st};
    const size_t size[] = {k, k, k, k, k, v, v, v, n, n, (size_t)h->K * (size_t)h->V};
    for (int i = 0; i < 11; mem += size[i], i++) *part[i] = mem;
    g->end = mem;
}
/* du, nr. dout is at the chunk's first row; zero: dS is. */
static void chunk_solve_backward(Chunk *c, ChunkGrad *g, const real *dout, const real *dS, bool zero) {
    enum { LD = RECUR_CHUNK };
    const Head *h = c->h;
    int K = c->K, V = c->V, n = c->n;
    size_t ldv = (size_t)V;
    memset(g->du, 0, (size_t)(n * V) * sizeof(real));
    if (!zero) tile_mm(g->du, ldv, c->x, (size_t)K, 1, dS, ldv, n, K, V);
    for (int j0 = (n - 1) / SUB * SUB; j0 >= 0; j0 -= SUB) {
        int m = imin(SUB, n - j0), past = j0 + m;
        tile_mm(g->du + j0 * V, ldv, c->pt + j0 * LD + j0, LD, 1, dout + (size_t)j0 * h->ldv, h->ldv, m, n - j0, V);
        if (!h->beta) continue;
        if (past < n)
            tile_mm(g->du + j0 * V, ldv, c->lt + j0 * LD + past, LD, 1, g->nr + past * V, ldv, m, n - past, V);
        for (int j = past - 1; j >= j0; j--) {
            real *r = g->du + j * V, beta = h->beta[(size_t)(c->t0 + j) * h->ldb];
            for (int i = j + 1; i < past; i++) axpy(r, c->lt[j * LD + i], g->nr + i * V, V);
            for (int d = 0; d < V; d++) g->nr[j * V + d] = -beta * r[d];
        }
    }
}

/* Inside the chunk: dq, row and col of the pairs i > j, by blocks; x walks once more. */
static void chunk_pairs_backward(Chunk *c, ChunkGrad *g) {
    enum { LD = RECUR_CHUNK };
    int K = c->K, n = c->n;
    bool delta = c->h->beta;
    c->ref = c->done = 0;
    for (int i = 0; i < n; i++) {
        real *f = c->f + i * K;
        if (i % SUB)
            product(f, f - K, c->a + i * K, K);
        else
            fill(f, 1, (size_t)K);
    }
    for (int i0 = 0; i0 < n; i0 += SUB) { /* the rows of a block against all rows before it */
        int m = imin(SUB, n - i0);
        chunk_reach(c, i0, i0);
        tile_mm(g->dq + i0 * K, (size_t)K, g->dp + i0 * LD, LD, 1, c->x, (size_t)K, m, i0, K);
        if (delta) tile_mm(g->row + i0 * K, (size_t)K, g->dl + i0 * LD, LD, 1, c->x, (size_t)K, m, i0, K);
        times(g->dq + i0 * K, c->f + i0 * K, m * K);
        times(g->row + i0 * K, c->f + i0 * K, m * K);
    }
    for (int j0 = (n - 1) / SUB * SUB; j0 >= 0; j0 -= SUB) { /* against all rows behind it */
        int m = imin(SUB, n - j0), past = j0 + m;
        real *w = c->w;
        tile_mm(g->col + j0 * K, (size_t)K, g->dp + past * LD + j0, 1, LD, g->yq + past * K, (size_t)K, m, n - past, K);
        if (delta)
            tile_mm(g->col + j0 * K, (size_t)K, g->dl + past * LD + j0, 1, LD, g->yk + past * K, (size_t)K, m, n - past,
                    K);
        fill(w, 1, (size_t)K); /* from the block's last row back to its rows, then to the last row of the one before */
        for (int j = past - 1; j >= j0; j--) {
            times(g->col + j * K, w, K);
            times(w, c->a + j * K, K);
        }
        for (int i = past; i < n; i++) {
            times(g->yq + i * K, w, K);
            times(g->yk + i * K, w, K);
        }
        fill(w, 1, (size_t)K);
        for (int i = j0; i < past; i++) {
            times(w, c->a + i * K, K);
            product(g->yq + i * K, c->q + i * K, w, K);
            product(g->yk + i * K, c->k + i * K, w, K);
        }
        for (int j = j0; j < past; j++) { /* inside the block */
            fill(w, 1, (size_t)K);
            real *col = g->col + j * K;
            const real *k = c->k + j * K;
            for (int i = j + 1; i < past; i++) {
                real dp = g->dp[i * LD + j], dl = delta ? g->dl[i * LD + j] : 0, *dq = g->dq + i * K,
                     *row = g->row + i * K;
                const real *qi = c->q + i * K, *ki = c->k + i * K, *a = c->a + i * K;
#pragma omp simd
                for (int d = 0; d < K; d++) {
                    w[d] *= a[d];
                    dq[d] += dp * k[d] * w[d];
                    row[d] += dl * k[d] * w[d];
                    col[d] += (dp * qi[d] + dl * ki[d]) * w[d];
                }
            }
        }
    }
}

/* What the states before and after the chunk give q, k and the decays; end is what b_{n-1} receives. S NULL: zero. */
static void chunk_state_backward(Chunk *c, ChunkGrad *g, const real *dout, const real *S, const real *dS, bool zero) {
    int K = c->K, V = c->V, n = c->n;
    size_t ldk = (size_t)K, ldv = (size_t)V;
    const real *last = c->c + (n - 1) * K;
    fill(g->end, 0, ldk);
    if (S) {
        transpose(g->st, ldk, S, ldv, K, V);
        memset(g->yq, 0, (size_t)(n * K) * sizeof(real));
        tile_mm(g->yq, ldk, dout, c->h->ldv, 1, g->st, ldk, n, V, K);
        for (int i = 0; i < n * K; i++) g->dq[i] += g->yq[i] * c->c[i];
        if (c->h->beta) {
            memset(g->yq, 0, (size_t)(n * K) * sizeof(real));
            tile_mm(g->yq, ldk, g->nr, ldv, 1, g->st, ldk, n, V, K);
            for (int i = 0; i < n * K; i++) g->row[i] += g->yq[i] * c->c[i];
        }
        for (int d = 0; d < K; d++) g->end[d] = last[d] * dot(S + (size_t)d * (size_t)V, dS + (size_t)d * (size_t)V, V);
    }
    if (zero) return;
    transpose(g->st, ldk, dS, ldv, K, V);
    memset(g->yq, 0, (size_t)(n * K) * sizeof(real));
    tile_mm(g->yq, ldk, c->u, ldv, 1, g->st, ldk, n, V, K);
    real *w = c->w;
    fill(w, 1, ldk);
    for (int j = n - 2; j >= 0; j--) { /* the last row enters S1 without decay: see chunk_backward */
        times(w, c->a + (j + 1) * K, K);
        for (int d = 0; d < K; d++) {
            real t = g->yq[j * K + d] * w[d];
            g->col[j * K + d] += t;
            g->end[d] += t * c->k[j * K + d];
        }
    }
}

/* Rows t0..t0+n-1 after the state S (NULL: zero). dout at row 0 of the pass; dS: in, by S1, which nobody reads when
 * `zero`; out, by S, where that is not NULL. */
static void chunk_backward(Chunk *c, ChunkGrad *g, const HeadGrad *d, const real *dout, const real *S, real *dS,
                           bool zero) {
    enum { LD = RECUR_CHUNK };
    const Head *h = c->h;
    int K = c->K, V = c->V, n = c->n, t0 = c->t0;
    size_t all = (size_t)(n * K) * sizeof(real), ldk = (size_t)K, ldv = (size_t)V;
    bool delta = h->beta;
    dout += (size_t)t0 * h->ldv;
    chunk_scores(c);
    chunk_solve(c, S);
    chunk_reach_end(c);
    chunk_solve_backward(c, g, dout, dS, zero);
    transpose(g->ut, LD, c->u, ldv, n, V);
    memset(g->dp, 0, (size_t)(n * LD) * sizeof(real));
    memset(g->dl, 0, (size_t)(n * LD) * sizeof(real));
    for (int i0 = 0; i0 < n; i0 += SUB) {
        int m = imin(SUB, n - i0);
        tile_mm(g->dp + i0 * LD, LD, dout + (size_t)i0 * h->ldv, h->ldv, 1, g->ut, LD, m, V, i0 + m);
        if (delta) tile_mm(g->dl + i0 * LD, LD, g->nr + i0 * V, ldv, 1, g->ut, LD, m, V, i0 + m);
    }
    memset(g->dq, 0, all), memset(g->row, 0, all), memset(g->col, 0, all);
    chunk_pairs_backward(c, g);
    chunk_state_backward(c, g, dout, S, dS, zero);
    real *sum = c->w; /* of what the b_m receive, m >= i */
    memcpy(sum, g->end, ldk * sizeof(real));
    for (int i = n - 1; i >= 0; i--) {
        size_t t = (size_t)(t0 + i);
        const real *q = c->q + i * K, *k = c->k + i * K, *dq = g->dq + i * K, *row = g->row + i * K,
                   *col = g->col + i * K;
        real same = g->dp[i * LD + i]; /* the pair i = i */
#pragma omp simd
        for (int e = 0; e < K; e++) sum[e] += q[e] * dq[e] + k[e] * (row[e] - col[e]);
        if (d->g && h->per_channel)
            grad_row(d->g + t * h->ldg, d->fresh_g, sum, K);
        else if (d->g) {
            real s = 0;
            for (int e = 0; e < K; e++) s += sum[e];
            grad_row(d->g + t * h->ldg, d->fresh_g, &s, 1);
        }
        const real *late = g->yq + i * K; /* what S1 gives the last row */
        real *to = c->x;                  /* nobody needs it any more */
        if (d->q) {
#pragma omp simd
            for (int e = 0; e < K; e++) to[e] = h->scale * (dq[e] + same * k[e]);
            grad_row(d->q + t * d->ldq, d->fresh_q, to, K);
        }
        if (d->k) {
#pragma omp simd
            for (int e = 0; e < K; e++) to[e] = row[e] + col[e] + same * q[e];
            if (i == n - 1 && !zero) grad_row(to, false, late, K);
            grad_row(d->k + t * d->ldq, d->fresh_k, to, K);
        }
        if (d->v && delta) {
            to = g->nr + i * V; /* the state's gradient wants it as it is */
            real *v = d->v + t * h->ldv;
            if (d->fresh_v)
#pragma omp simd
                for (int e = 0; e < V; e++) v[e] = -to[e];
            else
#pragma omp simd
                for (int e = 0; e < V; e++) v[e] -= to[e];
        } else if (d->v)
            grad_row(d->v + t * h->ldv, d->fresh_v, g->du + i * V, V);
        if (d->beta && delta) {
            real by = dot(g->du + i * V, c->r + i * V, V);
            grad_row(d->beta + t * h->ldb, d->fresh_beta, &by, 1);
        }
    }
    if (!S) return;
    const real *last = c->c + (n - 1) * K;
    for (int e = 0; e < K; e++)
        for (int j = 0; j < V; j++) dS[(size_t)e * (size_t)V + (size_t)j] *= last[e];
    tile_mm(dS, ldv, c->qc, 1, ldk, dout, h->ldv, K, n, V);
    if (delta) tile_mm(dS, ldv, c->kc, 1, ldk, g->nr, ldv, K, n, V);
}
