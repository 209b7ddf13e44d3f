/* recur.c: the gated delta rule over a pass: the walk over sequences, documents and chunks. A few rows, as in decoding,
 * are taken in one by one, more of them as a chunk (chunk.c). */
#include "chunk.c"

enum { RECUR_FEW = 6 }; /* rows that are not worth a chunk */

static void recur_check(const Run *r, const Recur *x) {
    int N = r->batch->N;
    CHECK(r->in.n == N, "%d of %d rows", r->in.n, N);
    CHECK(x->q.n[0] == N && x->v.n[0] == N && x->v.n[1] % x->q.n[1] == 0 && x->k.n[1] == x->q.n[1] &&
              x->k.n[2] == x->q.n[2],
          "q (%d,%d,%d), v (%d,%d,%d)", x->q.n[0], x->q.n[1], x->q.n[2], x->v.n[0], x->v.n[1], x->v.n[2]);
    CHECK(!present(x->g) || (x->g.n[1] == x->v.n[1] && (x->g.n[2] == 1 || x->g.n[2] == x->q.n[2])), "g (%d,%d,%d)",
          x->g.n[0], x->g.n[1], x->g.n[2]);
}
static Head head_of(const Recur *x, double scale, int h) {
    int H = x->q.n[1], K = x->q.n[2], HV = x->v.n[1], V = x->v.n[2], hq = h / (HV / H);
    Head a = {.K = K,
              .V = V,
              .ldq = (size_t)H * (size_t)K,
              .ldv = (size_t)HV * (size_t)V,
              .scale = (real)scale,
              .decays = present(x->g)};
    a.q = R(x->q) + (size_t)hq * (size_t)K;
    a.k = R(x->k) + (size_t)hq * (size_t)K;
    a.v = R(x->v) + (size_t)h * (size_t)V;
    if (a.decays) {
        a.ldg = (size_t)HV * (size_t)x->g.n[2];
        a.g = R(x->g) + (size_t)h * (size_t)x->g.n[2];
        a.per_channel = x->g.n[2] == K && K > 1;
    }
    if (present(x->beta)) a.ldb = (size_t)HV, a.beta = R(x->beta) + h;
    return a;
}

/* The rows from..to-1 of one document in one sequence. */
typedef struct {
    int from, to;
    bool continues; /* a history */
    bool last;      /* of its sequence in this pass */
} Document;
static bool next_document(const Batch *b, int s, Document *d) {
    d->from = d->to;
    if (d->from >= b->off[s + 1]) return false;
    d->continues = b->first[d->from] == -1;
    for (d->to = d->from + 1; d->to < b->off[s + 1] && b->first[d->to] != d->to;) d->to++;
    d->last = d->to == b->off[s + 1];
    return true;
}

/* The columns j0.. of S, `vecs` vectors of them, through row t: read once for the correction, once more, while they are
 * still in the first cache, to be decayed, corrected and read out. a: the row's decays. */
INLINE void row_strip(int vecs, const Head *h, int t, const real *a, real *S, real *o, int j0) {
    const real *q = h->q + (size_t)t * h->ldq, *k = h->k + (size_t)t * h->ldq, *v = h->v + (size_t)t * h->ldv + j0;
    size_t ld = (size_t)h->V;
    Vec u[TILE_VECS], out[TILE_VECS];
    S += j0;
#pragma GCC unroll 8
    for (int i = 0; i < vecs; i++) u[i] = out[i] = (Vec){0};
    for (int d = 0; h->beta && d < h->K; d++) {
        real f = k[d] * a[d];
#pragma GCC unroll 8
        for (int i = 0; i < vecs; i++) u[i] += f * *(const Vec *)(S + (size_t)d * ld + i * VL);
    }
    real beta = h->beta ? h->beta[(size_t)t * h->ldb] : 1;
#pragma GCC unroll 8
    for (int i = 0; i < vecs; i++) u[i] = beta * (*(const Vec *)(v + i * VL) - u[i]);
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
    for (int i = 0; i < vecs; i++) *(Vec *)(o + j0 + i * VL) = h->scale * out[i];
}
/* One column: what is left of V. */
static void row_column(const Head *h, int t, const real *a, real *S, real *o, int j) {
    const real *q = h->q + (size_t)t * h->ldq, *k = h->k + (size_t)t * h->ldq;
    size_t ld = (size_t)h->V;
    real u = 0, out = 0;
    S += j;
    for (int d = 0; h->beta && d < h->K; d++) u += k[d] * a[d] * S[(size_t)d * ld];
    u = h->v[(size_t)t * h->ldv + (size_t)j] - u;
    if (h->beta) u *= h->beta[(size_t)t * h->ldb];
    for (int d = 0; d < h->K; d++) {
        real *s = S + (size_t)d * ld;
        *s = a[d] * *s + k[d] * u;
        out += q[d] * *s;
    }
    o[j] = h->scale * out;
}
/* The decays of row t, for all channels. */
static void decays(const Head *h, int t, real *a) {
    const real *g = h->g + (size_t)t * h->ldg;
    if (!h->per_channel)
        fill(a, h->decays ? exp_real(*g) : 1, (size_t)h->K);
    else
#pragma omp simd
        for (int d = 0; d < h->K; d++) a[d] = exp_real(g[d]);
}
/* Row t: S takes it in, o is read. a: room for K numbers. */
static void recur_row(const Head *h, int t, real *S, real *a, real *o) {
    decays(h, t, a);
    int j = 0;
    for (; j + TILE_VECS * VL <= h->V; j += TILE_VECS * VL) row_strip(TILE_VECS, h, t, a, S, o, j);
    for (; j + VL <= h->V; j += VL) row_strip(1, h, t, a, S, o, j);
    for (; j < h->V; j++) row_column(h, t, a, S, o, j);
}

/* The numbers of S of value head h before the chunk that starts at row t. */
static real *kept(Tensor keep, int t, int h) {
    size_t size = (size_t)keep.n[2] * (size_t)keep.n[3];
    return R(keep) + ((size_t)(t / RECUR_CHUNK - 1) * (size_t)keep.n[1] + (size_t)h) * size;
}

/* A document of one value head after the state S; fresh: S is zero. */
static void recur_document(Chunk *c, Document d, bool fresh, int h, real *S, real *o, Tensor keep) {
    const Head *a = c->h;
    for (int t = d.from, n; t < d.to; t += n, fresh = false) {
        n = imin(RECUR_CHUNK, d.to - t);
        if (present(keep) && t > d.from) memcpy(kept(keep, t, h), S, (size_t)a->K * (size_t)a->V * sizeof(real));
        if (n <= RECUR_FEW) {
            for (int i = t; i < t + n; i++) recur_row(a, i, S, c->q, o + (size_t)i * a->ldv);
            continue;
        }
        chunk_load(c, t, n, t + 2 * n <= d.to ? t + n : -1);
        chunk_scores(c);
        chunk_solve(c, fresh ? NULL : S);
        chunk_out(c, o, fresh ? NULL : S);
        chunk_state(c, S);
    }
}

static void recur(Run *r, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at) {
    const Batch *b = r->batch;
    int K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], size = K * V;
    recur_check(r, &x);
    Mark mark = arena_mark(r->scratch);
    Head any = head_of(&x, scale, 0);
    Tensor mem = SCRATCH(r, "recurrence", r->dev->threads, size + (int)chunk_place(&(Chunk){0}, &any, NULL));
    if (!measuring(r)) {
        bool write = present(state) && !(r->mode & RUN_HOLD);
        size_t bytes = (size_t)size * sizeof(real);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(r->dev->threads) if ((long)b->N * HV * size > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < HV; h++) {
                Head a = head_of(&x, scale, h);
                Chunk c;
                real *S = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1], *blob = NULL;
                chunk_place(&c, &a, S + size);
                if (present(state))
                    blob = R(state) + (size_t)b->seq[s] * (size_t)state.n[1] + (size_t)at + (size_t)h * (size_t)size;
                if (write) S = blob;
                for (Document d = {.to = b->off[s]}; next_document(b, s, &d);) {
                    CHECK(!d.continues || blob, "row %d continues a history that is not there", d.from);
                    if (!d.continues)
                        memset(S, 0, bytes);
                    else if (S != blob)
                        memcpy(S, blob, bytes);
                    recur_document(&c, d, !d.continues, h, S, R(o) + (size_t)h * (size_t)V, keep);
                }
            }
    }
    arena_release(r->scratch, mark);
}

/* A document of one value head, from its last chunk to its first. dS: in, by the state behind it; out, by the one
 * before it. S0 is that one, NULL: zero. end: dS is not zero at first. */
static void recur_document_backward(Chunk *c, ChunkGrad *g, const HeadGrad *d, Document doc, int h, const real *dout,
                                    const real *S0, real *dS, bool end, Tensor keep) {
    int chunks = (doc.to - doc.from + RECUR_CHUNK - 1) / RECUR_CHUNK;
    for (int k = chunks - 1; k >= 0; k--) {
        int t = doc.from + k * RECUR_CHUNK;
        chunk_load(c, t, imin(RECUR_CHUNK, doc.to - t), k ? t - RECUR_CHUNK : -1);
        chunk_backward(c, g, d, dout, k ? kept(keep, t, h) : S0, dS, !end && k == chunks - 1);
    }
}

/* y (N,H,K) += the sum over each group of value heads of x (N,HV,K). */
static void add_groups(const Run *r, Tensor y, Tensor x) {
    int rows = y.n[0] * y.n[1], K = y.n[2], group = x.n[1] / y.n[1];
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)rows * K > ALONE)
    for (int i = 0; i < rows; i++) {
        real *sum = run_add(y, (size_t)i * (size_t)K, (size_t)K, NULL);
        for (int j = 0; j < group; j++) axpy(sum, 1, R(x) + ((size_t)i * (size_t)group + (size_t)j) * (size_t)K, K);
    }
}

static void recur_backward(Run *r, const Recur *d, Tensor dout, Recur x, double scale, Tensor keep,
                           const RecurEnds *ends) {
    const Batch *b = r->batch;
    int H = x.q.n[1], K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], size = K * V;
    recur_check(r, &x);
    Mark mark = arena_mark(r->scratch);
    Head any = head_of(&x, scale, 0);
    Tensor mem =
        SCRATCH(r, "recurrence", r->dev->threads,
                size + (int)(chunk_place(&(Chunk){0}, &any, NULL) + chunk_grad_place(&(ChunkGrad){0}, &any, NULL)));
    Tensor dq = d->q, dk = d->k;
    if (HV > H) { /* value heads that share q and k must not add to the same numbers at once */
        dq = FRESH_OF(r, "d q of value heads", REAL, b->N, HV, K);
        dk = FRESH_OF(r, "d k of value heads", REAL, b->N, HV, K);
    }
    if (!measuring(r)) {
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(r->dev->threads) if ((long)b->N * HV * size > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < HV; h++) {
                Head a = head_of(&x, scale, h);
                Chunk c;
                ChunkGrad g;
                real *dS = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1];
                chunk_grad_place(&g, &a, dS + size + chunk_place(&c, &a, dS + size));
                HeadGrad hd = {.ldq = (size_t)HV * (size_t)K, /* HV = H or of the scratch */
                               .fresh_q = dq.fresh,
                               .fresh_k = dk.fresh,
                               .fresh_v = d->v.fresh,
                               .fresh_g = d->g.fresh,
                               .fresh_beta = d->beta.fresh};
                if (present(dq)) hd.q = R(dq) + (size_t)h * (size_t)K;
                if (present(dk)) hd.k = R(dk) + (size_t)h * (size_t)K;
                if (present(d->v)) hd.v = R(d->v) + (size_t)h * (size_t)V;
                if (present(d->g)) hd.g = R(d->g) + (size_t)h * (size_t)d->g.n[2];
                if (present(d->beta)) hd.beta = R(d->beta) + h;
                size_t blob = ends ? ((size_t)b->seq[s] * (size_t)HV + (size_t)h) * (size_t)size : 0;
                for (Document doc = {.to = b->off[s]}; next_document(b, s, &doc);) {
                    bool end = doc.last && ends && present(ends->dend);
                    CHECK(!doc.continues || (ends && present(ends->start)),
                          "row %d continues a history that is not there", doc.from);
                    memset(dS, 0, (size_t)size * sizeof(real));
                    if (end) memcpy(dS, R(ends->dend) + blob, (size_t)size * sizeof(real));
                    recur_document_backward(&c, &g, &hd, doc, h, R(dout) + (size_t)h * (size_t)V,
                                            doc.continues ? R(ends->start) + blob : NULL, dS, end, keep);
                    if (doc.continues && present(ends->dstart)) axpy(R(ends->dstart) + blob, 1, dS, size);
                }
            }
        if (HV > H && present(d->q)) add_groups(r, d->q, dq);
        if (HV > H && present(d->k)) add_groups(r, d->k, dk);
    }
    arena_release(r->scratch, mark);
}
