/* chunk_channels.c: pairs of rows of a chunk in which every channel has its own decay (chunk.c), in blocks of SUB
 * rows. Between blocks the decay splits at the first row of the later block into one factor for each side. Inside a
 * block it is multiplied up, pair by pair (backward) or for all later rows of a block at once. */
#include "chunk.h"

/* Enter row i, whose q and k are loaded: compute its decays and the values that include them. */
static void channel_enter(Chunk *c, int i) {
    int K = c->K;
    const real *g = c->h->g + (size_t)(c->t0 + i) * c->h->ldg;
    real *a = c->a + i * K, *cum = c->c + i * K;
#pragma omp simd
    for (int d = 0; d < K; d++) a[d] = exp_real(g[d]);
    if (i)
        product(cum, cum - K, a, K);
    else
        memcpy(cum, a, (size_t)K * sizeof(real));
    product(c->qc + i * K, c->q + i * K, cum, K);
    product(c->erase_c + i * K, c->erase + i * K, cum, K);
}

/* x for the rows j < rows at the reference row ref; references and rows only grow. */
static void channel_reach(Chunk *c, int ref, int rows) {
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

/* The pairs inside a block, one channel after the other. Vector lanes are its rows i, each with its decay since row j,
 * and j walks from the last row to the first, so no sum runs along a vector. The products of JS rows j stay in
 * registers. a, k: the block's rows (SUB,K). qk (K,2,SUB): q and the erase keys transposed. since (K,SUB): the
 * decays, zeros before the walk, since the first row at its end. L_jj becomes e_j.k_j, which nothing reads. */
enum { JS = VL >= 8 ? 8 : 4, LANES = SUB / VL };
static const real one_at[2 * SUB] = {[SUB] = 1}; /* 1 in lane j when read from element SUB - j on */
INLINE void channel_lanes(int j0, bool delta, const real *a, const real *k, int K, const real *qk, real *since,
                          real *pt, real *lt) {
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
static void channel_scores(Chunk *c) {
    int K = c->K, n = c->n, whole = (n + SUB - 1) / SUB * SUB; /* zero rows that fill up the last block */
    fill(c->a + n * K, 1, (size_t)((whole - n) * K));
    for (int i0 = 0; i0 < c->n; i0 += SUB) {
        const real *a = c->a + i0 * K, *k = c->k + i0 * K;
        real *pt = c->p + i0 * LD + i0, *lt = c->l + i0 * LD + i0;
        transpose(c->pack, 2 * SUB, c->q + i0 * K, (size_t)K, SUB, K);
        transpose(c->pack + SUB, 2 * SUB, c->erase + i0 * K, (size_t)K, SUB, K);
        memset(c->since, 0, (size_t)(K * SUB) * sizeof(real));
        for (int j = SUB - JS; j >= 0; j -= JS)
            if (c->h->delta)
                channel_lanes(j, true, a, k, K, c->pack, c->since, pt, lt);
            else
                channel_lanes(j, false, a, k, K, c->pack, c->since, pt, lt);
        if (!i0) continue;
        channel_reach(c, i0, i0);
        for (int d = 0; d < K; d++) {
            times(c->pack + d * 2 * SUB, c->since + d * SUB, SUB);
            times(c->pack + d * 2 * SUB + SUB, c->since + d * SUB, SUB);
        }
        for (int j = 0; j < i0; j++)
            if (c->h->delta) memset(c->l + j * LD + i0, 0, SUB * sizeof(real));
        chunk_mm(c, c->p + i0, LD, left_rows(c, c->pa, c->x, (size_t)K, i0, K),
                 right_rows(c, c->pb, c->pack, 2 * SUB, K, SUB), i0, K, SUB, false);
        if (c->h->delta) tile_mm(c->l + i0, LD, c->x, (size_t)K, 1, c->pack + SUB, 2 * SUB, i0, K, SUB);
    }
}

/* dq, row and col of the pairs of row i with `some` earlier rows from j0 on, in VL channels from d on. w: the decay
 * from each of those to row i - 1, and then to row i. */
INLINE void channel_later(const Chunk *c, ChunkGrad *g, bool delta, int some, int j0, int i, int d, Vec *w, Vec *col) {
    const int K = c->K;
    const Vec a = *(const Vec *)(c->a + i * K + d), q = *(const Vec *)(c->q + i * K + d),
              e = *(const Vec *)(c->erase + i * K + d);
    Vec *to_q = (Vec *)(g->dq + i * K + d), *to_e = (Vec *)(g->derase + i * K + d), dq = *to_q, row = *to_e;
#pragma GCC unroll 8
    for (int j = 0; j < some; j++) {
        const real dp = g->dp[i * LD + j0 + j], dl = delta ? g->dl[i * LD + j0 + j] : 0;
        w[j] *= a;
        const Vec kw = *(const Vec *)(c->k + (j0 + j) * K + d) * w[j];
        dq += dp * kw;
        if (delta) row += dl * kw;
        col[j] += (delta ? dp * q + dl * e : dp * q) * w[j];
    }
    *to_q = dq;
    if (delta) *to_e = row;
}
enum { HELD = VL >= 16 ? 8 : 4 }; /* two vectors each: half of the registers */
/* The pairs inside a whole block, in VL channels from d on: the decays and sums of HELD rows stay in registers. */
INLINE void channel_inside(const Chunk *c, ChunkGrad *g, bool delta, int first, int d) {
    for (int j0 = first; j0 < first + SUB; j0 += HELD) {
        Vec w[HELD], col[HELD];
#pragma GCC unroll 8
        for (int j = 0; j < HELD; j++) w[j] = (Vec){0} + 1, col[j] = *(const Vec *)(g->col + (j0 + j) * c->K + d);
#pragma GCC unroll 8
        for (int i = 1; i < HELD; i++) channel_later(c, g, delta, i, j0, j0 + i, d, w, col);
        for (int i = j0 + HELD; i < first + SUB; i++) channel_later(c, g, delta, HELD, j0, i, d, w, col);
#pragma GCC unroll 8
        for (int j = 0; j < HELD; j++) *(Vec *)(g->col + (j0 + j) * c->K + d) = col[j];
    }
}

/* Inside the chunk: dq, row and col of the pairs i > j, by blocks; x walks once more. */
static void channel_pairs_backward(Chunk *c, ChunkGrad *g) {
    const int K = c->K, n = c->n;
    const size_t ldk = (size_t)K;
    bool delta = c->h->delta;
    c->ref = c->done = 0;
    for (int i = 0; i < n; i++) {
        real *f = g->f + i * K;
        if (i % SUB)
            product(f, f - K, c->a + i * K, K);
        else
            fill(f, 1, (size_t)K);
    }
    for (int i0 = 0; i0 < n; i0 += SUB) { /* the rows of a block against all rows before it */
        const int rows = imin(SUB, n - i0);
        real *dq = g->dq + i0 * K, *derase = g->derase + i0 * K;
        channel_reach(c, i0, i0);
        const Right x = right_rows(c, c->pb, c->x, ldk, i0, K);
        chunk_mm(c, dq, ldk, left_rows(c, c->pa, g->dp + i0 * LD, LD, rows, i0), x, rows, i0, K, true);
        if (delta) chunk_mm(c, derase, ldk, left_rows(c, c->pa, g->dl + i0 * LD, LD, rows, i0), x, rows, i0, K, true);
        times(dq, g->f + i0 * K, rows * K);
        times(derase, g->f + i0 * K, rows * K);
    }
    for (int j0 = (n - 1) / SUB * SUB; j0 >= 0; j0 -= SUB) { /* against all later rows */
        const int rows = imin(SUB, n - j0), past = j0 + rows, later = n - past;
        const size_t at = (size_t)past * LD + (size_t)j0;
        real *w = c->w, *sum = g->col + j0 * K;
        chunk_mm(c, sum, ldk, left_columns(c, c->pa, g->dp + at, LD, rows, later),
                 right_rows(c, c->pb, g->y + past * K, ldk, later, K), rows, later, K, true);
        if (delta)
            chunk_mm(c, sum, ldk, left_columns(c, c->pa, g->dl + at, LD, rows, later),
                     right_rows(c, c->pb, g->ye + past * K, ldk, later, K), rows, later, K, true);
        fill(w, 1, (size_t)K); /* from the block's last row back to its rows, then to the last row of the one before */
        for (int j = past - 1; j >= j0; j--) {
            times(g->col + j * K, w, K);
            times(w, c->a + j * K, K);
        }
        for (int i = past; i < n; i++) {
            times(g->y + i * K, w, K);
            times(g->ye + i * K, w, K);
        }
        fill(w, 1, (size_t)K);
        for (int i = j0; i < past; i++) {
            times(w, c->a + i * K, K);
            product(g->y + i * K, c->q + i * K, w, K);
            product(g->ye + i * K, c->erase + i * K, w, K);
        }
        const int whole = rows == SUB ? K / VL * VL : 0; /* channels that fill vectors */
        for (int d = 0; d < whole; d += VL)
            if (delta)
                channel_inside(c, g, true, j0, d);
            else
                channel_inside(c, g, false, j0, d);
        for (int j = j0; j < past && whole < K; j++) {
            fill(w, 1, (size_t)K);
            real *col = g->col + j * K;
            const real *k = c->k + j * K;
            for (int i = j + 1; i < past; i++) {
                real dp = g->dp[i * LD + j], dl = delta ? g->dl[i * LD + j] : 0, *dq = g->dq + i * K,
                     *row = g->derase + i * K;
                const real *qi = c->q + i * K, *ei = c->erase + i * K, *a = c->a + i * K;
#pragma omp simd
                for (int d = whole; d < K; d++) {
                    w[d] *= a[d];
                    dq[d] += dp * k[d] * w[d];
                    row[d] += dl * k[d] * w[d];
                    col[d] += (dp * qi[d] + dl * ei[d]) * w[d];
                }
            }
        }
    }
}

/* Add the parts of the states before and after the chunk to the gradients of q, k and the decays; end is the gradient
 * of b_{n-1}. S NULL: zero. */
static void channel_state_backward(const Chunk *c, ChunkGrad *g, Left by_u, Left by_r) {
    int K = c->K, V = c->V, n = c->n;
    size_t ldk = (size_t)K, ldv = (size_t)V;
    const real *last = c->c + (n - 1) * K;
    fill(g->end, 0, ldk);
    if (g->S) {
        const Right S = right_turned(c, c->ps, g->st, g->S, ldv, K, V);
        chunk_mm(c, g->y, ldk, g->do_left, S, n, V, K, false);
        for (int i = 0; i < n * K; i++) g->dq[i] += g->y[i] * c->c[i];
        if (c->h->delta) {
            chunk_mm(c, g->y, ldk, by_r, S, n, V, K, false);
            for (int i = 0; i < n * K; i++) g->derase[i] += g->y[i] * c->c[i];
        }
        for (int d = 0; d < K; d++) g->end[d] = last[d] * dot(g->S + (size_t)d * ldv, g->dS + (size_t)d * ldv, V);
    }
    if (g->zero) return;
    chunk_mm(c, g->y, ldk, by_u, right_turned(c, c->ps, g->st, g->dS, ldv, K, V), n, V, K, false);
    real *w = c->w;
    fill(w, 1, ldk);
    for (int j = n - 2; j >= 0; j--) { /* the last row enters S1 without decay: see channel_row */
        times(w, c->a + (j + 1) * K, K);
        for (int d = 0; d < K; d++) {
            real t = g->y[j * K + d] * w[d];
            g->col[j * K + d] += t;
            g->end[d] += t * c->k[j * K + d];
        }
    }
}

/* dq, dk, derase and the decays' gradients, except for what channel_row adds row by row. */
static void channel_backward(Chunk *c, ChunkGrad *g, Left by_u, Left by_r) {
    size_t all = (size_t)(c->n * c->K) * sizeof(real);
    memset(g->dq, 0, all), memset(g->dk, 0, all), memset(g->derase, 0, all), memset(g->col, 0, all);
    channel_pairs_backward(c, g);
    channel_state_backward(c, g, by_u, by_r);
}
/* Called for rows from the last to the first: g->end becomes dg of row i; dq, dk and derase are complete. */
static void channel_row(const Chunk *c, ChunkGrad *g, const HeadGrad *d, int i) {
    int K = c->K;
    const real *q = c->q + i * K, *k = c->k + i * K, *z = c->erase + i * K, *col = g->col + i * K,
               *row = g->derase + i * K; /* dk itself, where the erase key is k */
    real *restrict sum = g->end, *dq = g->dq + i * K, *dk = g->dk + i * K,
                   same = g->dp[i * LD + i]; /* the pair i = i */
#pragma omp simd
    for (int e = 0; e < K; e++) {
        sum[e] += q[e] * dq[e] + (z[e] * row[e] - k[e] * col[e]);
        dq[e] += same * k[e];
        dk[e] += col[e] + same * q[e];
    }
    if (i == c->n - 1 && !g->zero) axpy(dk, 1, g->y + i * K, K); /* what S1 gives the last row */
    if (present(d->g.t)) grad_row(d->g, d->atg + (size_t)(c->t0 + i) * c->h->ldg, 1, sum, K, NULL);
}
