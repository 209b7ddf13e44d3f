/* chunk.c: computes the gated delta rule over a chunk of rows at once, by products of small matrices, and its
 * backward. recur.c includes it and calls it for every chunk.
 *
 * With a_i = e^{g_i} and e_ij = a_{j+1} ... a_i (per channel), rows i >= j of a chunk of n rows after the state S0:
 *   P_ij = scale sum_d q_id k_jd e_ijd,  L_ij = sum_d z_id k_jd e_ijd (i > j)       z: erase keys, k where absent
 *   u_i = beta_i r_i,  r_i = v_i - S0^T (z_i c_i) - sum_j L_ij u_j       c_i = a_0 ... a_i; without delta u = v
 *   o_i = scale S0^T (q_i c_i) + sum_j P_ij u_j
 *   S1 = Diag(c_{n-1}) S0 + sum_j (k_j e_{n-1,j}) u_j^T
 * This is the form of arXiv:2510.26692 section 3 without the inverse: the triangular system is solved by substitution,
 * which stays accurate where powers of L explode.
 * Where products take bf16, those of this form do, with sums in f32, but for L and what it multiplies: errors of L grow
 * with its powers. What is inside a block of SUB rows is computed in f32.
 * Every decay is a product of factors <= 1 over a range of rows, never a quotient. So nothing overflows, and small
 * decays after strong ones keep their digits. P, L and their gradients are computed in chunk_channels.c if every
 * channel has its own decay, else in chunk_scalar.c. */
#include "chunk_channels.c"
#include "chunk_scalar.c"

/* Prefetch a row: a head's rows lie too far apart for the hardware prefetcher. */
INLINE void ask_row(const void *x, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)x + i, 0, 2);
}
INLINE void ask_run(Tensor x, size_t at, int n) {
    size_t each = dtype_size(x.dtype);
    ask_row((const char *)x.p + at * each, (size_t)n * each);
}
/* Load rows t0.. and their decays, and prefetch as many rows from `next` on, unless it is negative. */
static void chunk_load(Chunk *c, int t0, int n, int next) {
    const Head *h = c->h;
    int K = c->K;
    c->t0 = t0, c->n = n, c->ref = c->done = 0;
    for (int i = 0; i < n; i++) {
        size_t at = h->atq + (size_t)(t0 + i) * h->ldq, row = (size_t)K * sizeof(real);
        real *qi = c->q + i * K, *ki = c->k + i * K;
        const real *q = run_of(h->q, at, (size_t)K, qi), *k = run_of(h->k, at, (size_t)K, ki);
        if (next >= 0) {
            size_t t = (size_t)(next + i);
            ask_run(h->q, h->atq + t * h->ldq, K), ask_run(h->k, h->atq + t * h->ldq, K);
            ask_run(h->v, h->atv + t * h->ldv, c->V);
            if (c->erase != c->k) ask_run(h->erase, h->atq + t * h->ldq, K);
            if (h->per_channel) ask_row(h->g + t * h->ldg, row);
        }
#pragma omp simd
        for (int d = 0; d < K; d++) qi[d] = q[d] * h->scale;
        if (k != ki) memcpy(ki, k, row);
        if (c->erase != c->k) {
            real *ei = c->erase + i * K;
            const real *e = run_of(h->erase, at, (size_t)K, ei);
            if (e != ei) memcpy(ei, e, row);
        }
        if (h->per_channel)
            channel_enter(c, i);
        else
            scalar_enter(c, i);
    }
    int past = (n + SUB - 1) / SUB * SUB - n; /* zero rows that fill up the last block */
    memset(c->q + n * K, 0, (size_t)(past * K) * sizeof(real));
    memset(c->k + n * K, 0, (size_t)(past * K) * sizeof(real));
    memset(c->erase + n * K, 0, (size_t)(past * K) * sizeof(real));
}

/* Set x to k_j e_{n-1,j} for all rows: what the state after the chunk adds. */
static void chunk_reach_end(Chunk *c) {
    if (c->h->per_channel)
        channel_reach(c, c->n - 1, c->n);
    else
        scalar_reach_end(c);
}
static void chunk_scores(Chunk *c) {
    if (c->h->per_channel)
        channel_scores(c);
    else
        scalar_scores(c);
}

static real beta_of(const Head *h, int t) { return h->beta ? h->beta[(size_t)t * h->ldb] : 1; }
/* Compute r and u after the state S; S NULL: zero. */
static void chunk_solve(Chunk *c, const real *S) {
    const Head *h = c->h;
    int K = c->K, V = c->V, n = c->n;
    size_t ldv = (size_t)V;
    if (!h->delta) {
        for (int i = 0; i < n; i++) {
            real *u = c->u + i * V;
            const real *v = run_of(h->v, h->atv + (size_t)(c->t0 + i) * h->ldv, ldv, u);
            if (v != u) memcpy(u, v, ldv * sizeof(real));
        }
        return;
    }
    memset(c->r, 0, (size_t)(n * V) * sizeof(real));
    if (S) chunk_mm(c, c->r, ldv, c->erase_c, (size_t)K, 1, S, ldv, n, K, V);
    for (int i0 = 0; i0 < n; i0 += SUB) {
        int m = imin(SUB, n - i0);
        if (i0) tile_mm(c->r + i0 * V, ldv, c->l + (size_t)i0 * c->pi, c->pi, c->pj, c->u, ldv, m, i0, V);
        for (int i = i0; i < i0 + m; i++) {
            real *r = c->r + i * V, *u = c->u + i * V, beta = beta_of(h, c->t0 + i);
            const real *v = run_of(h->v, h->atv + (size_t)(c->t0 + i) * h->ldv, ldv, c->row);
            for (int j = i0; j < i; j++) axpy(r, c->l[(size_t)i * c->pi + (size_t)j * c->pj], c->u + j * V, V);
#pragma omp simd
            for (int d = 0; d < V; d++) {
                r[d] = v[d] - r[d];
                u[d] = beta * r[d];
            }
        }
    }
}

/* Write the chunk's rows of `to`; S as in chunk_solve. */
static void chunk_out(const Chunk *c, Tensor to, const real *S) {
    int K = c->K, V = c->V, n = c->n;
    bool is_bf16 = to.dtype == BF16;
    size_t at = c->h->atv + (size_t)c->t0 * c->h->ldv, ld = is_bf16 ? (size_t)V : c->h->ldv;
    real *o = run_write(to, at, c->r);
    for (int i = 0; i < n; i++) memset(o + (size_t)i * ld, 0, (size_t)V * sizeof(real));
    if (S) chunk_mm(c, o, ld, c->qc, (size_t)K, 1, S, (size_t)V, n, K, V);
    for (int i0 = 0; i0 < n; i0 += SUB) {
        int m = imin(SUB, n - i0);
        chunk_mm(c, o + (size_t)i0 * ld, ld, c->p + (size_t)i0 * c->pi, c->pi, c->pj, c->u, (size_t)V, m, i0 + m, V);
    }
    for (int i = 0; is_bf16 && i < n; i++) run_done(to, at + (size_t)i * c->h->ldv, (size_t)V, o + (size_t)i * ld);
}

/* S <- Diag(c_{n-1}) S. */
static void chunk_decay(const Chunk *c, real *S) {
    int K = c->K, V = c->V, last = c->n - 1;
    for (int d = 0; c->h->decays && d < K; d++, S += V) {
        real a = c->h->per_channel ? c->c[last * K + d] : c->c[last];
        for (int j = 0; j < V; j++) S[j] *= a;
    }
}
/* S <- S1. */
static void chunk_state(Chunk *c, real *S) {
    int K = c->K, V = c->V;
    chunk_reach_end(c);
    chunk_decay(c, S);
    chunk_mm(c, S, (size_t)V, c->x, 1, (size_t)K, c->u, (size_t)V, K, c->n, V);
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 * With dS the gradient of S1, do that of o, and U, R the matrices of u_i, r_i:
 *   dU = P^T do + X dS                      X_j = k_j e_{n-1,j}
 *   dR = (I + Diag(beta) L)^-T dU;  dv = beta dR;  dbeta_i = dR_i.r_i
 *   dP = tril(do U^T);  dL = -stril(beta dR U^T)
 *   dS0 = Diag(c_{n-1}) dS + (q c)^T do - (z c)^T (beta dR)
 * and per channel, with  row_i = what z_i receives as the later of a pair,  col_j = what k_j receives as the
 * earlier:
 *   the sum of b_i = g_0 + ... + g_i receives q_i dq_i + z_i row_i - k_i col_i, and b_{n-1} also what S1 holds of them;
 *   dg_i = sum over m >= i of b_m's. A pair i = j has no decay: it is left out of both sides there. */

/* Compute du and nr. dout is at the chunk's first row; zero: dS is zero. */
static void chunk_solve_backward(Chunk *c, ChunkGrad *g, Rows dout, const real *dS, bool zero) {
    const Head *h = c->h;
    int K = c->K, V = c->V, n = c->n;
    size_t ldv = (size_t)V, pi = c->pi, pj = c->pj;
    memset(g->du, 0, (size_t)(n * V) * sizeof(real));
    if (!zero) chunk_mm(c, g->du, ldv, c->x, (size_t)K, 1, dS, ldv, n, K, V);
    for (int j0 = (n - 1) / SUB * SUB; j0 >= 0; j0 -= SUB) {
        int m = imin(SUB, n - j0), past = j0 + m;
        chunk_mm(c, g->du + j0 * V, ldv, c->p + (size_t)j0 * (pi + pj), pj, pi, dout.at + (size_t)j0 * dout.ld, dout.ld,
                 m, n - j0, V);
        if (!h->delta) continue;
        if (past < n)
            tile_mm(g->du + j0 * V, ldv, c->l + (size_t)j0 * pj + (size_t)past * pi, pj, pi, g->nr + past * V, ldv, m,
                    n - past, V);
        for (int j = past - 1; j >= j0; j--) {
            real *r = g->du + j * V, beta = beta_of(h, c->t0 + j);
            for (int i = j + 1; i < past; i++) axpy(r, c->l[(size_t)i * pi + (size_t)j * pj], g->nr + i * V, V);
            for (int d = 0; d < V; d++) g->nr[j * V + d] = -beta * r[d];
        }
    }
}

/* The chunk's rows of do. */
static Rows chunk_dout(const Chunk *c, const ChunkGrad *g, Tensor dout) {
    const Head *h = c->h;
    size_t at = h->atv + (size_t)c->t0 * h->ldv, V = (size_t)c->V;
    if (dout.dtype != BF16) return (Rows){R(dout) + at, h->ldv};
    for (int i = 0; i < c->n; i++) run_of(dout, at + (size_t)i * h->ldv, V, g->dout + i * c->V);
    return (Rows){g->dout, V};
}
/* The backward of rows t0..t0+n-1 after the state S (NULL: zero). dS holds the gradient by S1 on entry (not read if
 * `zero`), and the gradient by S on return, unless S is NULL. */
static void chunk_backward(Chunk *c, ChunkGrad *g, const HeadGrad *d, Tensor by_o, const real *S, real *dS, bool zero) {
    const Head *h = c->h;
    int K = c->K, V = c->V, n = c->n, t0 = c->t0;
    size_t ldk = (size_t)K, ldv = (size_t)V;
    bool delta = h->delta;
    const Rows dout = chunk_dout(c, g, by_o);
    chunk_scores(c);
    chunk_solve(c, S);
    chunk_reach_end(c);
    chunk_solve_backward(c, g, dout, dS, zero);
    transpose(g->ut, LD, c->u, ldv, n, V);
    memset(g->dp, 0, (size_t)(n * LD) * sizeof(real));
    memset(g->dl, 0, (size_t)(n * LD) * sizeof(real));
    for (int i0 = 0; i0 < n; i0 += SUB) {
        int m = imin(SUB, n - i0);
        chunk_mm(c, g->dp + i0 * LD, LD, dout.at + (size_t)i0 * dout.ld, dout.ld, 1, g->ut, LD, m, V, i0 + m);
        if (delta) chunk_mm(c, g->dl + i0 * LD, LD, g->nr + i0 * V, ldv, 1, g->ut, LD, m, V, i0 + m);
    }
    if (h->per_channel)
        channel_backward(c, g, dout, S, dS, zero);
    else
        scalar_backward(c, g, d, dout, S, dS, zero);
    for (int i = n - 1; i >= 0; i--) {
        size_t t = (size_t)(t0 + i);
        if (h->per_channel) channel_row(c, g, d, i, zero);
        if (present(d->q.t)) grad_row(d->q, d->atq + t * d->ldq, h->scale, g->dq + i * K, K, c->row);
        if (present(d->k.t)) grad_row(d->k, d->atq + t * d->ldq, 1, g->dk + i * K, K, c->row);
        if (present(d->erase.t)) grad_row(d->erase, d->atq + t * d->ldq, 1, g->derase + i * K, K, c->row);
        if (present(d->v.t))
            grad_row(d->v, h->atv + t * h->ldv, delta ? -1 : 1, (delta ? g->nr : g->du) + i * V, V, c->row);
        if (present(d->beta.t)) {
            real by = dot(g->du + i * V, c->r + i * V, V);
            grad_row(d->beta, d->atbeta + t * h->ldb, 1, &by, 1, NULL);
        }
    }
    if (!S) return;
    chunk_decay(c, dS);
    chunk_mm(c, dS, ldv, c->qc, 1, ldk, dout.at, dout.ld, K, n, V);
    if (delta) chunk_mm(c, dS, ldv, c->erase_c, 1, ldk, g->nr, ldv, K, n, V);
}
