/* chunk_scalar.c: pairs of rows of a chunk in which one decay a_i serves all channels of a head, or none does
 * (chunk.c). The decay then factors out of the sums over channels. With E_ij = e_ij for i >= j, 0 elsewhere, and .
 * element by element,
 *   P = scale Q K^T . E,  L = Z K^T . E                                       Z: erase keys, K where absent
 * and in the backward, with dP, dL as in chunk.c,
 *   dQ = (dP . E) K + Diag(c) do S0^T
 *   dK = (dP . E)^T Q + (dL . E)^T Z + Diag(e_{n-1}) U dS^T
 *   dZ = (dL . E) K - Diag(c) (beta dR) S0^T
 * a_i is a factor of all pairs of a row m >= i with a row j < i. Here the state before the chunk is row -1 and the
 * state after it is row n:
 *   dg_i = sum over m >= i > j of T_mj,  T = P . dP + L . dL;  T_m,-1 = c_m (q_m.S0 do_m - z_m.S0 beta_m dR_m),
 *   T_nj = e_{n-1,j} k_j.dS u_j,  T_n,-1 = c_{n-1} S0.dS
 * No term is a difference of sums. */
#include "chunk.h"

/* Enter row i, whose q and k are loaded: compute its decays and the values that include them. */
static void scalar_enter(Chunk *c, int i) {
    int K = c->K;
    const Head *h = c->h;
    real a = h->decays ? exp_real(h->g[(size_t)(c->t0 + i) * h->ldg]) : 1, cum = i ? c->c[i - 1] * a : a,
         *e = c->e + i * LD;
    for (int j = 0; j < i; j++) e[j] = e[j - LD] * a;
    e[i] = 1;
    fill(e + i + 1, 0, (size_t)(SUB - 1 - i % SUB));
    c->c[i] = cum;
    if (!h->decays) return;
    for (int d = 0; d < K; d++) {
        c->qc[i * K + d] = c->q[i * K + d] * cum;
        c->erase_c[i * K + d] = c->erase[i * K + d] * cum;
    }
}
static void scalar_reach_end(Chunk *c) {
    int K = c->K;
    if (!c->h->decays) return;
    for (int j = 0; j < c->n; j++)
        for (int d = 0; d < K; d++) c->x[j * K + d] = c->k[j * K + d] * c->e[(c->n - 1) * LD + j];
}

static void scalar_scores(Chunk *c) {
    int K = c->K, n = c->n;
    bool delta = c->h->delta;
    const int whole = (n + SUB - 1) / SUB * SUB;
    transpose(c->kt, LD, c->k, (size_t)K, whole, K);
    const Left q = left_rows(c, c->pa, c->q, (size_t)K, n, K);
    const Right kt = right_rows(c, c->pb, c->kt, LD, K, whole);
    for (int i0 = 0; i0 < n; i0 += SUB) {
        const int rows = imin(SUB, n - i0), w = i0 + SUB;
        real *p = c->p + i0 * LD, *l = c->l + i0 * LD;
        chunk_mm(c, p, LD, left_from(q, i0), kt, rows, K, w, false);
        for (int i = 0; delta && i < rows; i++) memset(l + i * LD, 0, (size_t)w * sizeof(real));
        if (delta) tile_mm(l, LD, c->erase + i0 * K, (size_t)K, 1, c->kt, LD, rows, K, w);
        for (int i = 0; i < rows; i++) {
            times(p + i * LD, c->e + (i0 + i) * LD, w);
            if (delta) times(l + i * LD, c->e + (i0 + i) * LD, w);
        }
    }
}

/* Rows y_i <- s_i y_i; sum_i += x_i.y_i. */
static void scalar_rows(real *y, const real *s, const real *x, real *sum, int n, int K) {
    for (int i = 0; i < n; i++, y += K, x += K) {
        for (int d = 0; d < K; d++) y[d] *= s[i];
        sum[i] += dot(x, y, K);
    }
}
/* dk += the lower triangle of y, transposed, by x. */
static void scalar_columns(const Chunk *c, ChunkGrad *g, Right x, const real *y) {
    const int K = c->K, n = c->n;
    for (int i0 = 0; i0 < n; i0 += SUB)
        chunk_mm(c, g->dk + i0 * K, (size_t)K, left_columns(c, c->pa, y + i0 * LD + i0, LD, imin(SUB, n - i0), n - i0),
                 right_from(x, i0), imin(SUB, n - i0), n - i0, K, true);
}
/* dq, dk, derase and the decays' gradients. */
static void scalar_backward(const Chunk *c, ChunkGrad *g, const HeadGrad *d, Left by_u, Left by_r) {
    const Head *h = c->h;
    int K = c->K, V = c->V, n = c->n;
    size_t ldk = (size_t)K, ldv = (size_t)V, all = (size_t)(n * K) * sizeof(real);
    bool delta = h->delta;
    real to_end[LD] = {0}, from_start[LD] = {0}, through = 0; /* T_nj, T_m,-1, T_n,-1 */
    memset(g->dq, 0, all), memset(g->dk, 0, all), memset(g->derase, 0, all);
    if (!g->zero) {
        chunk_mm(c, g->dk, ldk, by_u, right_turned(c, c->ps, g->st, g->dS, ldv, K, V), n, V, K, false);
        if (h->decays) scalar_rows(g->dk, c->e + (n - 1) * LD, c->k, to_end, n, K);
    }
    if (g->S) {
        const Right S = right_turned(c, c->ps, g->st, g->S, ldv, K, V);
        chunk_mm(c, g->dq, ldk, g->do_left, S, n, V, K, false);
        if (h->decays) scalar_rows(g->dq, c->c, c->q, from_start, n, K);
        if (delta) {
            chunk_mm(c, g->y, ldk, by_r, S, n, V, K, false);
            if (h->decays) scalar_rows(g->y, c->c, c->erase, from_start, n, K);
            axpy(g->derase, 1, g->y, n * K);
        }
        if (h->decays && !g->zero) through = c->c[n - 1] * dot(g->S, g->dS, K * V);
    }
    for (int i = n - 1; i >= 0; i--) { /* to_end: sums over m >= i */
        real *dp = g->dp + i * LD, *dl = g->dl + i * LD;
        const real *e = c->e + i * LD, *p = c->p + i * LD, *l = c->l + i * LD;
        if (present(d->g.t)) {
            for (int j = 0; j < i; j++) to_end[j] += p[j] * dp[j];
            for (int j = 0; delta && j < i; j++) to_end[j] += l[j] * dl[j];
            through += from_start[i];
            real by = through;
#pragma omp simd reduction(+ : by)
            for (int j = 0; j < i; j++) by += to_end[j];
            grad_row(d->g, d->atg + (size_t)(c->t0 + i) * h->ldg, 1, &by, 1, NULL);
        }
        times(dp, e, i / SUB * SUB + SUB);
        if (delta) times(dl, e, i / SUB * SUB + SUB), dl[i] = 0;
    }
    const Right k = right_rows(c, c->pb, c->k, ldk, n, K);
    for (int i0 = 0; i0 < n; i0 += SUB) {
        const int rows = imin(SUB, n - i0), past = i0 + rows;
        const real *dp = g->dp + i0 * LD, *dl = g->dl + i0 * LD;
        chunk_mm(c, g->dq + i0 * K, ldk, left_rows(c, c->pa, dp, LD, rows, past), k, rows, past, K, true);
        if (delta)
            chunk_mm(c, g->derase + i0 * K, ldk, left_rows(c, c->pa, dl, LD, rows, past), k, rows, past, K, true);
    }
    scalar_columns(c, g, right_rows(c, c->pb, c->q, ldk, n, K), g->dp);
    if (delta) scalar_columns(c, g, right_rows(c, c->pb, c->erase, ldk, n, K), g->dl);
}
