/* recur.c: the gated delta rule over a pass: walks over sequences, documents and chunks. A few rows, as in decoding,
 * are processed one by one (recur_rows.c), more rows as a chunk (chunk.c). Each value head of each sequence belongs to
 * one thread. */
#include "chunk.c"
#include "recur_rows.c"

static Head head_of(const Run *r, const Recur *x, double scale, int h) {
    int H = x->q.n[1], K = x->q.n[2], HV = x->v.n[1], V = x->v.n[2], hq = h / (HV / H);
    Head a = {.K = K,
              .V = V,
              .ldq = (size_t)H * (size_t)K,
              .ldv = (size_t)HV * (size_t)V,
              .q = x->q,
              .k = x->k,
              .v = x->v,
              .erase = x->e,
              .delta = recur_corrects(x),
              .atq = (size_t)hq * (size_t)K,
              .atv = (size_t)h * (size_t)V,
              .scale = (real)scale,
              .decays = present(x->g),
              .pairs = r->dev->pairs && K % W == 0 && V % W == 0,
              .tiles = r->dev->pair_product};
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

/* The state of value head h before the chunk that starts at row t. */
static real *kept(Tensor keep, int t, int h) {
    size_t size = (size_t)keep.n[2] * (size_t)keep.n[3];
    return R(keep) + ((size_t)(t / RECUR_CHUNK - 1) * (size_t)keep.n[1] + (size_t)h) * size;
}

/* It is read or written when that chunk comes: prefetched with the rows of the chunk before. */
static void kept_ahead(const Chunk *c, Tensor keep, int t, int h) {
    const size_t part = (size_t)keep.n[2] * (size_t)keep.n[3] * sizeof(real) / RECUR_CHUNK;
    ahead_row(c->ahead, kept(keep, t, h), part, part);
}

/* A document of one value head after the state S; fresh: S is zero. */
static void recur_document(Chunk *c, Document d, bool fresh, int h, real *S, Tensor o, Tensor keep) {
    const Head *a = c->h;
    for (int t = d.from, n; t < d.to; t += n, fresh = false) {
        n = imin(RECUR_CHUNK, d.to - t);
        if (present(keep) && t > d.from) memcpy(kept(keep, t, h), S, (size_t)a->K * (size_t)a->V * sizeof(real));
        if (n <= RECUR_FEW) {
            for (int i = t; i < t + n; i++) recur_row(c, i, S, o);
            continue;
        }
        chunk_load(c, t, n, t + 2 * n <= d.to ? t + n : -1);
        if (present(keep) && t + n < d.to) kept_ahead(c, keep, t + n, h);
        chunk_run(c, o, S, fresh);
    }
}

static void recur(Run *r, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at) {
    const Batch *b = r->batch;
    int K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], size = K * V;
    check_recur(r, &x);
    CHECK_ALIKE(o, x.v);
    Mark mark = arena_mark(r->scratch);
    Head any = head_of(r, &x, scale, 0);
    Tensor mem = SCRATCH(r, "recurrence", r->dev->threads, size + (int)chunk_place(&(Chunk){0}, &any, NULL));
    if (!measuring(r)) {
        bool write = present(state) && !(r->mode & RUN_HOLD);
        size_t bytes = (size_t)size * sizeof(real);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(r->dev->threads) if ((long)b->N * HV * size > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < HV; h++) {
                Head a = head_of(r, &x, scale, h);
                Chunk c;
                Ahead ahead;
                real *S = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1], *blob = NULL;
                chunk_place(&c, &a, S + size);
                c.ahead = &ahead;
                if (present(state))
                    blob = R(state) + (size_t)b->seq[s] * (size_t)state.n[1] + (size_t)at + (size_t)h * (size_t)size;
                if (write) S = blob;
                for (Document d = {.to = b->off[s]}; next_document(b, s, &d);) {
                    CHECK(!d.continues || blob, "row %d continues a history that is not there", d.from);
                    if (!d.continues)
                        memset(S, 0, bytes);
                    else if (S != blob)
                        memcpy(S, blob, bytes);
                    recur_document(&c, d, !d.continues, h, S, o, keep);
                }
            }
    }
    arena_release(r->scratch, mark);
}

/* A document of one value head, from its last chunk to its first. dS holds the gradient by the state after it on
 * entry, and by the state S0 before it on return (S0 NULL: zero). end: dS is not zero on entry. */
static void recur_document_backward(Chunk *c, ChunkGrad *g, const HeadGrad *d, Document doc, int h, Tensor dout,
                                    const real *S0, real *dS, bool end, Tensor keep) {
    int chunks = (doc.to - doc.from + RECUR_CHUNK - 1) / RECUR_CHUNK;
    for (int k = chunks - 1; k >= 0; k--) {
        int t = doc.from + k * RECUR_CHUNK;
        const int next = k ? t - RECUR_CHUNK : -1;
        chunk_load(c, t, imin(RECUR_CHUNK, doc.to - t), next);
        if (k > 1) kept_ahead(c, keep, next, h);
        chunk_backward(c, g, d, dout, next, k ? kept(keep, t, h) : S0, dS, !end && k == chunks - 1);
    }
}

/* y (N,H,K) += the sum over each group of value heads of x (N,HV,K). */
static void add_groups(const Run *r, Into y, Tensor x) {
    int rows = y.t.n[0] * y.t.n[1], K = y.t.n[2], group = x.n[1] / y.t.n[1], run = run_width(y.t, K);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)rows * K > ALONE)
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < K; c += run) {
            int n = imin(run, K - c);
            size_t at = (size_t)i * (size_t)K + (size_t)c;
            real room[RUN], *sum = run_add(y, at, (size_t)n, room);
            for (int j = 0; j < group; j++)
                axpy(sum, 1, R(x) + ((size_t)i * (size_t)group + (size_t)j) * (size_t)K + c, n);
            run_done(y.t, at, (size_t)n, sum);
        }
}

static void recur_backward(Run *r, const RecurInto *d, Tensor dout, Recur x, double scale, Tensor keep,
                           const RecurEnds *ends) {
    const Batch *b = r->batch;
    int H = x.q.n[1], K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], size = K * V;
    check_recur(r, &x);
    CHECK_ALIKE(dout, x.v, d->q.t, d->k.t, d->v.t, d->e.t);
    Mark mark = arena_mark(r->scratch);
    Head any = head_of(r, &x, scale, 0);
    Tensor mem =
        SCRATCH(r, "recurrence", r->dev->threads,
                size + (int)(chunk_place(&(Chunk){0}, &any, NULL) + chunk_grad_place(&(ChunkGrad){0}, &any, NULL)));
    Into dq = d->q, dk = d->k, de = d->e;
    if (HV > H) { /* value heads that share q and k must not add to the same elements at once */
        dq = overwrite(SCRATCH(r, "d q of value heads", b->N, HV, K));
        dk = overwrite(SCRATCH(r, "d k of value heads", b->N, HV, K));
        if (present(x.e)) de = overwrite(SCRATCH(r, "d e of value heads", b->N, HV, K));
    }
    if (!measuring(r)) {
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(r->dev->threads) if ((long)b->N * HV * size > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < HV; h++) {
                Head a = head_of(r, &x, scale, h);
                Chunk c;
                Ahead ahead;
                ChunkGrad g;
                real *dS = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1];
                chunk_grad_place(&g, &a, dS + size + chunk_place(&c, &a, dS + size));
                c.ahead = &ahead;
                const HeadGrad hd = {.q = dq,
                                     .k = dk,
                                     .v = d->v,
                                     .g = d->g,
                                     .beta = d->beta,
                                     .erase = de,
                                     .ldq = (size_t)HV * (size_t)K, /* HV = H, or the layout of the scratch */
                                     .atq = (size_t)h * (size_t)K,
                                     .atg = (size_t)h * (size_t)d->g.t.n[2],
                                     .atbeta = (size_t)h};
                size_t blob = ends ? ((size_t)b->seq[s] * (size_t)HV + (size_t)h) * (size_t)size : 0;
                for (Document doc = {.to = b->off[s]}; next_document(b, s, &doc);) {
                    bool end = doc.last && ends && present(ends->dend);
                    CHECK(!doc.continues || (ends && present(ends->start)),
                          "row %d continues a history that is not there", doc.from);
                    memset(dS, 0, (size_t)size * sizeof(real));
                    if (end) memcpy(dS, R(ends->dend) + blob, (size_t)size * sizeof(real));
                    recur_document_backward(&c, &g, &hd, doc, h, dout, doc.continues ? R(ends->start) + blob : NULL, dS,
                                            end, keep);
                    if (doc.continues && present(ends->dstart)) axpy(R(ends->dstart) + blob, 1, dS, size);
                }
            }
        if (HV > H && present(d->q.t)) add_groups(r, d->q, dq.t);
        if (HV > H && present(d->k.t)) add_groups(r, d->k, dk.t);
        if (HV > H && present(d->e.t)) add_groups(r, d->e, de.t);
    }
    arena_release(r->scratch, mark);
}
