/* recur_rows.c: the gated delta rule over a few rows, one by one, as in decoding. Only recur.c includes it. */
enum { RECUR_FEW = 6 }; /* up to so many rows are not worth a chunk */

/* A row; a holds its decays for all channels. */
typedef struct {
    const real *q, *k, *v, *a, *erase;
    real *o, beta;
} RowIn;
/* Columns j0.. of S, `vecs` vectors of them, through one row: S is read once for the correction, and once more, while
 * it is still in the first cache, to be decayed, corrected and read out. */
INLINE void row_strip(int vecs, const Head *h, const RowIn *x, real *S, int j0) {
    const real *q = x->q, *k = x->k, *v = x->v + j0, *a = x->a, *e = x->erase;
    size_t ld = (size_t)h->V;
    Vec u[TILE_VECS], out[TILE_VECS];
    S += j0;
#pragma GCC unroll 8
    for (int i = 0; i < vecs; i++) u[i] = out[i] = (Vec){0};
    for (int d = 0; h->delta && d < h->K; d++) {
        real f = e[d] * a[d];
#pragma GCC unroll 8
        for (int i = 0; i < vecs; i++) u[i] += f * *(const Vec *)(S + (size_t)d * ld + i * VL);
    }
#pragma GCC unroll 8
    for (int i = 0; i < vecs; i++) u[i] = x->beta * (*(const Vec *)(v + i * VL) - u[i]);
    for (int d = 0; d < h->K; d++) {
        real f = a[d], kd = k[d], qd = q[d];
#pragma GCC unroll 8
        for (int i = 0; i < vecs; i++) {
            Vec *s = (Vec *)(S + (size_t)d * ld + i * VL);
            Vec now = f * *s + kd * u[i];
            *s = now;
            out[i] += qd * now;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < vecs; i++) *(Vec *)(x->o + j0 + i * VL) = h->scale * out[i];
}
/* One column: the rest of V. */
static void row_column(const Head *h, const RowIn *x, real *S, int j) {
    const real *q = x->q, *k = x->k, *a = x->a, *e = x->erase;
    size_t ld = (size_t)h->V;
    real u = 0, out = 0;
    S += j;
    for (int d = 0; h->delta && d < h->K; d++) u += e[d] * a[d] * S[(size_t)d * ld];
    u = x->beta * (x->v[j] - u);
    for (int d = 0; d < h->K; d++) {
        real *s = S + (size_t)d * ld;
        *s = a[d] * *s + k[d] * u;
        out += q[d] * *s;
    }
    x->o[j] = h->scale * out;
}
/* The decays of row t, for all channels. */
static void row_decays(const Head *h, int t, real *a) {
    const real *g = h->g + (size_t)t * h->ldg;
    if (!h->per_channel)
        fill(a, h->decays ? exp_real(*g) : 1, (size_t)h->K);
    else
#pragma omp simd
        for (int d = 0; d < h->K; d++) a[d] = exp_real(g[d]);
}
/* Row t: add it to S, read o. Only the memory of c is used. */
static void recur_row(const Chunk *c, int t, real *S, Tensor o) {
    const Head *h = c->h;
    size_t K = (size_t)h->K, V = (size_t)h->V, atq = h->atq + (size_t)t * h->ldq, atv = h->atv + (size_t)t * h->ldv;
    row_decays(h, t, c->q);
    const real *k = run_of(h->k, atq, K, c->k);
    const RowIn x = {.q = run_of(h->q, atq, K, c->q + K),
                     .k = k,
                     .erase = c->erase == c->k ? k : run_of(h->erase, atq, K, c->erase),
                     .v = run_of(h->v, atv, V, c->u),
                     .a = c->q,
                     .o = run_write(o, atv, c->r),
                     .beta = beta_of(h, t)};
    int j = 0;
    for (; j + TILE_VECS * VL <= h->V; j += TILE_VECS * VL) row_strip(TILE_VECS, h, &x, S, j);
    for (; j + VL <= h->V; j += VL) row_strip(1, h, &x, S, j);
    for (; j < h->V; j++) row_column(h, &x, S, j);
    run_done(o, atv, V, x.o);
}
