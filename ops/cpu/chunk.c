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

/* Load rows t0.. and their decays. As many rows from `next` on are to be prefetched, unless it is negative. */
static void chunk_load(Chunk *c, int t0, int n, int next) {
    const Head *h = c->h;
    int K = c->K;
    c->t0 = t0, c->n = n, c->ref = c->done = 0;
    *c->ahead = (Ahead){.rows = n};
    if (next >= 0) {
        const size_t t = (size_t)next, atq = h->atq + t * h->ldq;
        ahead_rows(c->ahead, h->q, atq, h->ldq, K), ahead_rows(c->ahead, h->k, atq, h->ldq, K);
        ahead_rows(c->ahead, h->erase, atq, h->ldq, K), ahead_rows(c->ahead, h->v, h->atv + t * h->ldv, h->ldv, c->V);
        if (h->per_channel) ahead_row(c->ahead, h->g + t * h->ldg, h->ldg * sizeof(real), (size_t)K * sizeof(real));
    }
    for (int i = 0; i < n; i++) {
        size_t at = h->atq + (size_t)(t0 + i) * h->ldq, row = (size_t)K * sizeof(real);
        real *qi = c->q + i * K, *ki = c->k + i * K;
        const real *q = run_of(h->q, at, (size_t)K, qi), *k = run_of(h->k, at, (size_t)K, ki);
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

/* Compute what no state is needed for: P, L, and then x = k_j e_{n-1,j} of all rows, which the state after the chunk
 * adds. */
static void chunk_scores(Chunk *c) {
    if (c->h->per_channel) {
        channel_scores(c);
        channel_reach(c, c->n - 1, c->n);
    } else {
        scalar_scores(c);
        scalar_reach_end(c);
    }
}

/* P (n,n) as a left operand, zeros for later blocks of rows; turned: P^T. */
static Left chunk_p(const Chunk *c, bool turned) {
    const int n = c->n, pairs = (n + 1) / 2;
    const size_t row = turned ? c->pj : c->pi, step = turned ? c->pi : c->pj;
    if (!c->h->pairs) return (Left){.x = c->p, .row = row, .step = step};
    /* Lines of memory are rows of the operand, with pairs along them, or its columns, of which two make a line. */
    const int line = step == 1 ? 1 : 2;
    const bool from_block = c->h->per_channel; /* line i has P from its block on, else up to it */
    const Left p = {NULL, 0, 0, c->pa, step == 1 ? (size_t)pairs : 1, step == 1 ? 1 : LD};
    for (int i = 0; i < n; i += line) {
        const int block = i / SUB * SUB, from = from_block ? block : 0, to = from_block ? n : imin(n, block + SUB);
        const real *x = c->p + i * LD, *odd = i + 1 < n ? x + LD : NULL;
        Pair *y = c->pa + (line == 1 ? i * pairs : i / 2 * LD);
        if (line == 1) {
            memset(y, 0, (size_t)pairs * sizeof *y);
            pack_row(y + from / 2, x + from, (to - from + 1) / 2, (to - from) % 2);
        } else {
            memset(y, 0, LD * sizeof *y);
            for (int j = from; j < to; j += W) pack_columns(y + j, x + j, odd ? odd + j : NULL, imin(W, to - j));
        }
    }
    return p;
}
/* y (n,V) = P x, or P^T x if `turned`; += if `add`. */
static void chunk_by_p(const Chunk *c, real *y, size_t ldy, bool turned, Right x, bool add) {
    const int n = c->n, V = c->V;
    const Left p = chunk_p(c, turned);
    if (c->h->pairs) {
        chunk_mm(c, y, ldy, p, x, n, n, V, add);
        return;
    }
    for (int i = 0; i < n; i += SUB) {
        const int rows = imin(SUB, n - i), from = turned ? i : 0, to = turned ? n : i + rows;
        Left some = left_from(p, i);
        some.x += (size_t)from * p.step;
        chunk_mm(c, y + (size_t)i * ldy, ldy, some, right_from(x, from), rows, to - from, V, add);
    }
}

static real beta_of(const Head *h, int t) { return h->beta ? h->beta[(size_t)t * h->ldb] : 1; }
/* Row i of v; room for it is used if v is BF16. */
static const real *chunk_value(const Chunk *c, int i, real *room) {
    const Head *h = c->h;
    return run_of(h->v, h->atv + (size_t)(c->t0 + i) * h->ldv, (size_t)c->V, room);
}
/* Compute r and u after the state S; S NULL: zero. */
static void chunk_solve(Chunk *c, const Right *S) {
    const Head *h = c->h;
    const int K = c->K, V = c->V, n = c->n;
    const size_t ldv = (size_t)V;
    if (!h->delta) {
        for (int i = 0; i < n; i++) {
            real *u = c->u + i * V;
            const real *v = chunk_value(c, i, u);
            if (v != u) memcpy(u, v, ldv * sizeof(real));
        }
        return;
    }
    if (S)
        chunk_mm(c, c->r, ldv, left_rows(c, c->pa, c->erase_c, (size_t)K, n, K), *S, n, K, V, false);
    else
        memset(c->r, 0, (size_t)(n * V) * sizeof(real));
    for (int i0 = 0; i0 < n; i0 += SUB) {
        const int rows = imin(SUB, n - i0);
        const real *l = c->l + (size_t)i0 * c->pi;
        if (i0) tile_mm(c->r + i0 * V, ldv, l, c->pi, c->pj, c->u, ldv, rows, i0, V);
        for (int i = i0; i < i0 + rows; i++) {
            real *r = c->r + i * V, *u = c->u + i * V, beta = beta_of(h, c->t0 + i);
            const real *v = chunk_value(c, i, c->row);
            l = c->l + (size_t)i * c->pi + (size_t)i0 * c->pj;
            if (i > i0) tile_mm(r, ldv, l, 0, c->pj, c->u + i0 * V, ldv, 1, i - i0, V);
#pragma omp simd
            for (int d = 0; d < V; d++) {
                r[d] = v[d] - r[d];
                u[d] = beta * r[d];
            }
        }
    }
}

/* Write the chunk's rows of `to`; S as in chunk_solve. */
static void chunk_out(const Chunk *c, Tensor to, const Right *S, Right u) {
    const int K = c->K, V = c->V, n = c->n;
    const bool is_bf16 = to.dtype == BF16;
    const size_t at = c->h->atv + (size_t)c->t0 * c->h->ldv, ld = is_bf16 ? (size_t)V : c->h->ldv;
    real *o = run_write(to, at, c->r);
    if (S) chunk_mm(c, o, ld, left_rows(c, c->pa, c->qc, (size_t)K, n, K), *S, n, K, V, false);
    chunk_by_p(c, o, ld, false, u, S);
    for (int i = 0; is_bf16 && i < n; i++) run_done(to, at + (size_t)i * c->h->ldv, (size_t)V, o + (size_t)i * ld);
}

/* S <- Diag(c_{n-1}) S. */
static void chunk_decay(const Chunk *c, real *S) {
    int K = c->K, V = c->V, last = c->n - 1;
    for (int d = 0; c->h->decays && d < K; d++, S += V) {
        real a = c->h->per_channel ? c->c[last * K + d] : c->c[last];
        for (int i = 0; i < V; i++) S[i] *= a;
    }
}
/* The loaded chunk: write its rows of o, and S <- S1. S is zero before if `fresh`. */
static void chunk_run(Chunk *c, Tensor o, real *S, bool fresh) {
    const int K = c->K, V = c->V, n = c->n;
    const size_t ldk = (size_t)K, ldv = (size_t)V;
    Right before = {0};
    ahead_rows(c->ahead, o, c->h->atv + (size_t)c->t0 * c->h->ldv, c->h->ldv, V);
    chunk_scores(c);
    if (!fresh) before = right_rows(c, c->ps, S, ldv, K, V);
    chunk_solve(c, fresh ? NULL : &before);
    const Right u = right_rows(c, c->pu, c->u, ldv, n, V);
    chunk_out(c, o, fresh ? NULL : &before, u);
    chunk_decay(c, S);
    chunk_mm(c, S, ldv, left_columns(c, c->pa, c->x, ldk, K, n), u, K, n, V, true);
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

/* The chunk's rows of do as operands. */
static void chunk_dout(const Chunk *c, ChunkGrad *g, Tensor dout) {
    const Head *h = c->h;
    const size_t at = h->atv + (size_t)c->t0 * h->ldv, V = (size_t)c->V, half = V / 2;
    if (dout.dtype != BF16) {
        g->do_left = left_rows(c, g->do_pairs[0], R(dout) + at, h->ldv, c->n, c->V);
        g->do_right = right_rows(c, g->do_pairs[1], R(dout) + at, h->ldv, c->n, c->V);
        return;
    }
    const uint16_t *x = (const uint16_t *)dout.p + at;
    if (!h->pairs) {
        for (int i = 0; i < c->n; i++) run_of(dout, at + (size_t)i * h->ldv, V, g->dout + i * c->V);
        g->do_left = (Left){.x = g->dout, .row = V, .step = 1}, g->do_right = (Right){.x = g->dout, .ld = V};
        return;
    }
    for (int i = 0; i < c->n; i++, x += h->ldv) {
        pack_row_bf16(g->do_pairs[0] + (size_t)i * half, x, c->V / 2, false);
        for (int j = 0; i % 2 == 0 && j < c->V; j += W)
            pack_columns_bf16(g->do_pairs[1] + (size_t)(i / 2) * V + j, x + j, i + 1 < c->n ? x + h->ldv + j : NULL, W);
    }
    g->do_left = (Left){.p = g->do_pairs[0], .prow = half, .pstep = 1};
    g->do_right = (Right){.p = g->do_pairs[1], .pld = V};
}
/* Compute du and nr. */
static void chunk_solve_backward(const Chunk *c, ChunkGrad *g) {
    const Head *h = c->h;
    const int K = c->K, V = c->V, n = c->n;
    const size_t ldv = (size_t)V, pi = c->pi, pj = c->pj;
    chunk_by_p(c, g->du, ldv, true, g->do_right, false);
    if (!g->zero) {
        const Right dS = right_rows(c, c->ps, g->dS, ldv, K, V);
        chunk_mm(c, g->du, ldv, left_rows(c, c->pa, c->x, (size_t)K, n, K), dS, n, K, V, true);
    }
    for (int j0 = (n - 1) / SUB * SUB; h->delta && j0 >= 0; j0 -= SUB) {
        const int rows = imin(SUB, n - j0), past = j0 + rows;
        const real *l = c->l + (size_t)j0 * pj + (size_t)past * pi;
        if (past < n) tile_mm(g->du + j0 * V, ldv, l, pj, pi, g->nr + past * V, ldv, rows, n - past, V);
        for (int j = past - 1; j >= j0; j--) {
            real *r = g->du + j * V, beta = beta_of(h, c->t0 + j);
            l = c->l + (size_t)(j + 1) * pi + (size_t)j * pj;
            if (j + 1 < past) tile_mm(r, ldv, l, 0, pi, g->nr + (j + 1) * V, ldv, 1, past - j - 1, V);
            for (int d = 0; d < V; d++) g->nr[j * V + d] = -beta * r[d];
        }
    }
}
/* Compute the gradients by q, k, the erase keys and the decays, once du and nr are there. */
static void chunk_pairs_backward(Chunk *c, ChunkGrad *g, const HeadGrad *d) {
    const Head *h = c->h;
    const int V = c->V, n = c->n;
    const size_t ldv = (size_t)V;
    const Left by_u = left_rows(c, c->pu, c->u, ldv, n, V);
    const Right ut = right_turned(c, c->pb, g->ut, c->u, ldv, n, V);
    Left by_r = {0};
    if (h->delta) by_r = left_rows(c, g->pr, g->nr, ldv, n, V);
    for (int i0 = 0; i0 < n; i0 += SUB) {
        const int rows = imin(SUB, n - i0);
        chunk_mm(c, g->dp + i0 * LD, LD, left_from(g->do_left, i0), ut, rows, V, i0 + rows, false);
        if (h->delta) chunk_mm(c, g->dl + i0 * LD, LD, left_from(by_r, i0), ut, rows, V, i0 + rows, false);
    }
    if (h->per_channel)
        channel_backward(c, g, by_u, by_r);
    else
        scalar_backward(c, g, d, by_u, by_r);
}
/* Add the rows' gradients to d. */
static void chunk_rows_backward(const Chunk *c, ChunkGrad *g, const HeadGrad *d) {
    const Head *h = c->h;
    const int K = c->K, V = c->V;
    for (int i = c->n - 1; i >= 0; i--) {
        const size_t t = (size_t)(c->t0 + i);
        if (h->per_channel) channel_row(c, g, d, i);
        if (present(d->q.t)) grad_row(d->q, d->atq + t * d->ldq, h->scale, g->dq + i * K, K, c->row);
        if (present(d->k.t)) grad_row(d->k, d->atq + t * d->ldq, 1, g->dk + i * K, K, c->row);
        if (present(d->erase.t)) grad_row(d->erase, d->atq + t * d->ldq, 1, g->derase + i * K, K, c->row);
        if (present(d->v.t))
            grad_row(d->v, h->atv + t * h->ldv, h->delta ? -1 : 1, (h->delta ? g->nr : g->du) + i * V, V, c->row);
        if (present(d->beta.t)) {
            real by = dot(g->du + i * V, c->r + i * V, V);
            grad_row(d->beta, d->atbeta + t * h->ldb, 1, &by, 1, NULL);
        }
    }
}
/* dS becomes the gradient by the state before the chunk. */
static void chunk_state_backward(const Chunk *c, const ChunkGrad *g) {
    const int K = c->K, V = c->V, n = c->n;
    const size_t ldk = (size_t)K, ldv = (size_t)V;
    chunk_decay(c, g->dS);
    chunk_mm(c, g->dS, ldv, left_columns(c, c->pa, c->qc, ldk, K, n), g->do_right, K, n, V, true);
    if (!c->h->delta) return;
    const Right nr = right_rows(c, c->pb, g->nr, ldv, n, V);
    chunk_mm(c, g->dS, ldv, left_columns(c, c->pa, c->erase_c, ldk, K, n), nr, K, n, V, true);
}
/* What is to be prefetched in backward as well: do from row `next` on, as in chunk_load, and the gradients of this
 * chunk's rows. */
static void chunk_ahead_backward(const Chunk *c, const HeadGrad *d, Tensor dout, int next) {
    const Head *h = c->h;
    const size_t t = (size_t)c->t0, atq = d->atq + t * d->ldq;
    if (next >= 0) ahead_rows(c->ahead, dout, h->atv + (size_t)next * h->ldv, h->ldv, c->V);
    ahead_rows(c->ahead, d->q.t, atq, d->ldq, c->K), ahead_rows(c->ahead, d->k.t, atq, d->ldq, c->K);
    ahead_rows(c->ahead, d->erase.t, atq, d->ldq, c->K);
    ahead_rows(c->ahead, d->v.t, h->atv + t * h->ldv, h->ldv, c->V);
    if (h->per_channel) ahead_rows(c->ahead, d->g.t, d->atg + t * h->ldg, h->ldg, c->K);
}
/* The backward of the loaded chunk after the state S (NULL: zero). dS holds the gradient by S1 on entry (zeros if
 * `zero`), and the gradient by S on return, unless S is NULL. */
static void chunk_backward(Chunk *c, ChunkGrad *g, const HeadGrad *d, Tensor dout, int next, const real *S, real *dS,
                           bool zero) {
    Right before = {0};
    g->S = S, g->dS = dS, g->zero = zero;
    chunk_ahead_backward(c, d, dout, next);
    chunk_scores(c);
    if (S) before = right_rows(c, c->ps, S, (size_t)c->V, c->K, c->V);
    chunk_solve(c, S ? &before : NULL);
    chunk_dout(c, g, dout);
    chunk_solve_backward(c, g);
    chunk_pairs_backward(c, g, d);
    chunk_rows_backward(c, g, d);
    if (S) chunk_state_backward(c, g);
}
