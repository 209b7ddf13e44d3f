/* recur.c: the gated delta rule row by row: what decoding does, and the walk over documents and chunks that the
 * chunkwise form shares. */
#include "vec.h"

/* One value head of one pass, as strided rows. */
typedef struct {
    int K, V;
    size_t ldq, ldv, ldg, ldb; /* of q and k; of v, o and do; of g; of beta */
    bool per_channel;
    const real *q, *k, *v, *g, *beta; /* at row 0; g, beta may be NULL */
    real scale;
} Head;
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
    Head a = {.K = K, .V = V, .ldq = (size_t)H * (size_t)K, .ldv = (size_t)HV * (size_t)V, .scale = (real)scale};
    a.q = R(x->q) + (size_t)hq * (size_t)K;
    a.k = R(x->k) + (size_t)hq * (size_t)K;
    a.v = R(x->v) + (size_t)h * (size_t)V;
    if (present(x->g)) {
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
} Span1;
static bool next_document(const Batch *b, int s, Span1 *d) {
    d->from = d->to;
    if (d->from >= b->off[s + 1]) return false;
    d->continues = b->first[d->from] == -1;
    for (d->to = d->from + 1; d->to < b->off[s + 1] && b->first[d->to] != d->to;) d->to++;
    d->last = d->to == b->off[s + 1];
    return true;
}

/* S <- Diag(a_t) S */
INLINE void decay_state(const Head *a, int t, real *S) {
    if (!a->g) return;
    const real *g = a->g + (size_t)t * a->ldg;
    for (int c = 0; c < a->K; c++) {
        real f = exp_real(g[a->per_channel ? c : 0]), *row = S + (size_t)c * (size_t)a->V;
        for (int v = 0; v < a->V; v++) row[v] *= f;
    }
}
/* u of row t from the decayed S. */
INLINE void delta_of(const Head *a, int t, const real *S, real *u) {
    const real *v = a->v + (size_t)t * a->ldv, *k = a->k + (size_t)t * a->ldq;
    if (!a->beta) {
        memcpy(u, v, (size_t)a->V * sizeof(real));
        return;
    }
    real beta = a->beta[(size_t)t * a->ldb];
    memset(u, 0, (size_t)a->V * sizeof(real));
    for (int c = 0; c < a->K; c++)
        for (int j = 0; j < a->V; j++) u[j] += k[c] * S[(size_t)c * (size_t)a->V + (size_t)j];
    for (int j = 0; j < a->V; j++) u[j] = beta * (v[j] - u[j]);
}
/* Row t: S is decayed and corrected, o is read. u is of V numbers. */
static void recur_row(const Head *a, int t, real *S, real *u, real *o) {
    const real *q = a->q + (size_t)t * a->ldq, *k = a->k + (size_t)t * a->ldq;
    int V = a->V;
    decay_state(a, t, S);
    delta_of(a, t, S, u);
    memset(o, 0, (size_t)V * sizeof(real));
    for (int c = 0; c < a->K; c++) {
        real *row = S + (size_t)c * (size_t)V, kc = k[c], qc = q[c] * a->scale;
        for (int j = 0; j < V; j++) {
            row[j] += kc * u[j];
            o[j] += qc * row[j];
        }
    }
}

static void recur(Run *r, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at) {
    const Batch *b = r->batch;
    int K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], size = K * V;
    recur_check(r, &x);
    Mark mark = arena_mark(r->scratch);
    Tensor mem = SCRATCH(r, "recurrence", r->dev->threads, size + V);
    if (!measuring(r)) {
        bool write = present(state) && !(r->mode & RUN_HOLD);
        size_t bytes = (size_t)size * sizeof(real);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(r->dev->threads) if ((long)b->N * HV * size > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < HV; h++) {
                Head a = head_of(&x, scale, h);
                real *S = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1], *u = S + size, *blob = NULL;
                if (present(state))
                    blob = R(state) + (size_t)b->seq[s] * (size_t)state.n[1] + (size_t)at + (size_t)h * (size_t)size;
                for (Span1 d = {.to = b->off[s]}; next_document(b, s, &d);) {
                    if (d.continues) {
                        CHECK(blob, "row %d continues a history that is not there", d.from);
                        memcpy(S, blob, bytes);
                    } else
                        memset(S, 0, bytes);
                    for (int t = d.from; t < d.to; t++) {
                        if (present(keep) && t > d.from && (t - d.from) % RECUR_CHUNK == 0)
                            memcpy(R(keep) + ((size_t)(t / RECUR_CHUNK - 1) * (size_t)HV + (size_t)h) * (size_t)size, S,
                                   bytes);
                        recur_row(&a, t, S, u, R(o) + ((size_t)t * (size_t)HV + (size_t)h) * (size_t)V);
                    }
                    if (d.last && write) memcpy(blob, S, bytes);
                }
            }
    }
    arena_release(r->scratch, mark);
}

/* Gradients of one value head; dq and dk are sums over the value heads that share them. */
typedef struct {
    real *q, *k, *v, *g, *beta; /* at row 0; any may be NULL */
} HeadGrad;

/* Rows from..to-1, at most RECUR_CHUNK, after the state S0; dS: in, by S after them; out, by S0. mem: the states. */
static void recur_rows_backward(const Head *a, const HeadGrad *d, const real *dout, int from, int to, const real *S0,
                                real *dS, real *mem, real *u, real *du, real *dk) {
    int K = a->K, V = a->V;
    size_t size = (size_t)K * (size_t)V;
    memcpy(mem, S0, size * sizeof(real));
    for (int t = from; t < to; t++) {
        real *S = mem + (size_t)(t - from + 1) * size;
        memcpy(S, S - size, size * sizeof(real));
        recur_row(a, t, S, u, du);
        for (int c = 0; d->q && c < K; c++)
            d->q[(size_t)t * a->ldq + (size_t)c] +=
                a->scale * dot(S + (size_t)c * (size_t)V, dout + (size_t)t * a->ldv, V);
    }
    for (int t = to - 1; t >= from; t--) {
        const real *q = a->q + (size_t)t * a->ldq, *k = a->k + (size_t)t * a->ldq, *v = a->v + (size_t)t * a->ldv,
                   *go = dout + (size_t)t * a->ldv;
        real *D = mem + (size_t)(t - from) * size, beta = a->beta ? a->beta[(size_t)t * a->ldb] : 1, dbeta = 0;
        for (int c = 0; c < K; c++)
            for (int j = 0; j < V; j++) dS[(size_t)c * (size_t)V + (size_t)j] += a->scale * q[c] * go[j];
        decay_state(a, t, D);
        delta_of(a, t, D, u);
        memset(du, 0, (size_t)V * sizeof(real));
        for (int c = 0; c < K; c++)
            for (int j = 0; j < V; j++) du[j] += k[c] * dS[(size_t)c * (size_t)V + (size_t)j];
        for (int c = 0; c < K; c++) dk[c] = dot(dS + (size_t)c * (size_t)V, u, V);
        if (a->beta) {
            for (int j = 0; j < V; j++) {
                real p = 0;
                for (int c = 0; c < K; c++) p += k[c] * D[(size_t)c * (size_t)V + (size_t)j];
                dbeta += du[j] * (v[j] - p);
                du[j] *= beta;
            }
            for (int c = 0; c < K; c++)
                for (int j = 0; j < V; j++) {
                    dk[c] -= D[(size_t)c * (size_t)V + (size_t)j] * du[j];
                    dS[(size_t)c * (size_t)V + (size_t)j] -= k[c] * du[j];
                }
            if (d->beta) d->beta[(size_t)t * a->ldb] += dbeta;
        }
        if (d->v)
            for (int j = 0; j < V; j++) d->v[(size_t)t * a->ldv + (size_t)j] += du[j];
        if (d->k)
            for (int c = 0; c < K; c++) d->k[(size_t)t * a->ldq + (size_t)c] += dk[c];
        for (int c = 0; d->g && c < K; c++)
            d->g[(size_t)t * a->ldg + (size_t)(a->per_channel ? c : 0)] +=
                dot(dS + (size_t)c * (size_t)V, D + (size_t)c * (size_t)V, V);
        decay_state(a, t, dS);
    }
}

static void recur_backward(Run *r, const Recur *d, Tensor dout, Recur x, double scale, Tensor keep,
                           const RecurEnds *ends) {
    const Batch *b = r->batch;
    int H = x.q.n[1], K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], size = K * V, group = HV / H;
    recur_check(r, &x);
    Mark mark = arena_mark(r->scratch);
    Tensor mem = SCRATCH(r, "recurrence", r->dev->threads, (RECUR_CHUNK + 3) * size + 2 * V + K);
    if (!measuring(r)) {
        size_t bytes = (size_t)size * sizeof(real);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(r->dev->threads) if ((long)b->N * HV * size > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int hq = 0; hq < H; hq++)
                for (int h = hq * group; h < (hq + 1) * group; h++) {
                    Head a = head_of(&x, scale, h);
                    real *S0 = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1], *dS = S0 + size,
                         *states = dS + size, *u = states + (size_t)(RECUR_CHUNK + 1) * (size_t)size, *du = u + V,
                         *dk = du + V;
                    HeadGrad hd = {0};
                    if (present(d->q)) hd.q = R(d->q) + (size_t)hq * (size_t)K;
                    if (present(d->k)) hd.k = R(d->k) + (size_t)hq * (size_t)K;
                    if (present(d->v)) hd.v = R(d->v) + (size_t)h * (size_t)V;
                    if (present(d->g)) hd.g = R(d->g) + (size_t)h * (size_t)d->g.n[2];
                    if (present(d->beta)) hd.beta = R(d->beta) + h;
                    for (Span1 doc = {.to = b->off[s]}; next_document(b, s, &doc);) {
                        size_t blob = ((size_t)b->seq[s] * (size_t)HV + (size_t)h) * (size_t)size;
                        memset(dS, 0, bytes);
                        if (doc.last && ends && present(ends->dend)) memcpy(dS, R(ends->dend) + blob, bytes);
                        CHECK(!doc.continues || (ends && present(ends->start)),
                              "row %d continues a history that is not there", doc.from);
                        for (int t = doc.from + (doc.to - doc.from - 1) / RECUR_CHUNK * RECUR_CHUNK, end = doc.to;
                             t >= doc.from; end = t, t -= RECUR_CHUNK) {
                            if (t > doc.from)
                                memcpy(S0,
                                       R(keep) +
                                           ((size_t)(t / RECUR_CHUNK - 1) * (size_t)HV + (size_t)h) * (size_t)size,
                                       bytes);
                            else if (doc.continues)
                                memcpy(S0, R(ends->start) + blob, bytes);
                            else
                                memset(S0, 0, bytes);
                            recur_rows_backward(&a, &hd, R(dout) + (size_t)h * (size_t)V, t, end, S0, dS, states, u, du,
                                                dk);
                        }
                        if (doc.continues && present(ends->dstart))
                            for (int i = 0; i < size; i++) R(ends->dstart)[blob + (size_t)i] += dS[i];
                    }
                }
    }
    arena_release(r->scratch, mark);
}
