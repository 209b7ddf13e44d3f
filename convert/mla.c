/* mla.c: the target mla: converts grouped queries to latents.
 *
 * Without `rank`, exactly: the latent is what the value heads write, the rotated part holds one key per key head, and
 * the up-projection chooses each query head's value out of the latent (nope_dim 0). A model without rotation has keys
 * and values in the latent and no rotated part. The cache is as large as before: a place to start from.
 *
 * With `rank`, approximately: of every key head the pairs 0, c, 2c .. keep their rotation, c = head_dim / rope (their
 * frequencies theta^(-2pc/head_dim) are those of a rotation of `rope` elements); the other pairs lose theirs and join
 * the values in the latent. With W the rows [k without rotation; v] of all key heads, C = E[x x^T] over calibration
 * tokens and A block-diagonal, the rank-r W' that minimises |A (W - W') C^1/2| is A^-1 U U^T A W, U the r leading
 * eigenvectors of A W C W^T A^T. A weighs errors by their effect: of keys by the queries' second moment (scores: E
 * (q.dk)^2), scaled by 1/head_dim and the mean energy that the head's values add to the output; of values by W_o^T W_o.
 * Sources: arXiv:2502.14837 (partial rotation, joint decomposition), arXiv:2502.07864 (joint latent), section 2 of
 * both. */
#include "layers/mla/mla.h"
#include "kinds.h"
#include "lapack.h"

typedef struct {
    int rank, rope;
    int layer;     /* whose sums these are */
    double *c;     /* (d+1)^2 sums of outer products of [x; 1] */
    size_t tokens; /* that were summed */
} Cfg;
static const Key keys[] = {
    {"rank", KEY_INT, offsetof(Cfg, rank), "0", 0, 1 << 20, "width of the latent; 0: the lossless form", 0, 0},
    {"rope", KEY_INT, offsetof(Cfg, rope), "0", 0, 2 * ROPE_PAIRS,
     "with rank: elements of every key head that keep their rotation, a divisor of head_dim; 0: all", 0, 0},
    {0}};

/* Sizes of a layer's split: Dr rotated elements of a key head, Dn others. */
typedef struct {
    int H, G, D, Dn, Dr, n, r, d; /* n: rows of W */
    bool rank, whole;             /* whole: the latent is x */
} Split;
static Split split_of(const Cfg *c, const GqaCfg *g) {
    Split s = {.H = g->heads, .G = g->kv_heads, .D = g->head_dim, .d = g->base.d_model, .rank = c->rank};
    bool turns = g->rope.type != ROPE_NONE;
    s.Dr = !turns ? 0 : c->rank && c->rope ? c->rope : g->table.n;
    s.Dn = s.D - s.Dr;
    s.n = s.G * (s.Dn + s.D);
    s.whole = !c->rank && s.n > s.d && !g->qkv_bias;
    s.r = c->rank ? c->rank : s.whole ? s.d : s.n;
    return s;
}

static bool rank_plan(Job *j, const Cfg *c, int l, Err *e) {
    const GqaCfg *g = job_gqa(&j->a, l);
    if (!j->o->calib) return err_input(e, "rank needs activations; give a text with --calib FILE");
    if (!gqa_plain(j, l, true, true, false, e)) return false;
    Split s = split_of(c, g);
    if (c->rope && !g->table.n) return err_input(e, "rope: layer %d has no rotation to keep; leave it out", l);
    if (g->table.n && g->table.n < s.D && s.Dr != g->table.n)
        return err_input(e, "rope: this model's heads rotate %d elements; expected %d, got %d", g->table.n, g->table.n,
                         c->rope);
    if (s.Dr && s.Dr != g->table.n && (s.D % s.Dr || s.Dr % 2))
        return err_input(e, "rope: expected an even divisor of head_dim (%d), got %d", s.D, c->rope);
    if (s.Dr != g->table.n && s.Dr && g->rope.type != ROPE_DEFAULT && g->rope.type != ROPE_LINEAR &&
        g->rope.type != ROPE_LLAMA3)
        return err_input(e, "rope: this model's rotation depends on the number of rotated dimensions; expected %d, all",
                         s.D);
    if (s.Dr != g->table.n && s.Dr && g->rope.inclusive)
        return err_input(e, "rope: with inclusive frequencies some pairs would get other frequencies; expected %d, all",
                         s.D);
    return c->rank <= s.n ||
           err_input(e, "rank: expected at most %d, the rows of keys without rotation and of values, got %d", s.n,
                     c->rank);
}

/* Layers of latents lose the projections that decide. True: there were some. */
static const char stayed[] = "latents that were evicted stay";
static bool latents_stay(const Job *j, json_t *model) {
    bool any = false;
    for (int l = 0; l < j->a.L; l++) any |= job_mla(&j->a, l) && job_mla(&j->a, l)->evict;
    for (json_t *k = NULL; any && (k = job_kind(model, "mla", k));) {
        static const char *const keys_of[] = {"evict", "delay", "temperature", "offset", "gain"};
        for (int i = 0; i < 5; i++) json_object_del(k, keys_of[i]);
    }
    return any;
}

static bool mla_plan(Job *j, json_t *model, Err *e) {
    Cfg *c = j->cfg;
    bool convert[LAYERS_MAX];
    c->layer = -1;
    j->together = 2;
    if (c->rope && !c->rank) return err_input(e, "rope: needs rank; without it all elements keep their rotation");
    const bool stay = latents_stay(j, model);
    if (stay && !c->rank && !layers_chosen(j, &(Ints){0}, 0, convert, NULL)) {
        snprintf(j->report->rule, sizeof j->report->rule, "mla: latents without the projections that evicted them");
        snprintf(j->report->note, sizeof j->report->note, "%s", stayed);
        return true;
    }
    if (!layers_chosen(j, &(Ints){0}, 0, convert, e)) return false;
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l);
        if (!g) continue;
        if (!gqa_plain(j, l, true, false, false, e) || (c->rank && !rank_plan(j, c, l, e))) return false;
        Split s = split_of(c, g);
        if (s.r > s.d)
            return err_input(e,
                             c->rank ? "rank: expected at most d_model (%d), got %d (layer %d)"
                                     : "--to mla: without rank the latent may have at most d_model (%d) elements; with "
                                       "biases of k and v it would have %d (layer %d); give rank",
                             s.d, s.r, l);
        if (g->rope.type == ROPE_YARN && g->rope.mscale_all_dim > 0)
            return err_input(e, "--to mla: layer %d has rope.mscale_all_dim, which mla also scales its scores by", l);
    }
    int ropes = 0;
    for (int i = 0; i < j->from.nkinds; i++) {
        const char *name = j->from.kind[i].name;
        const GqaCfg *g = kind_gqa(j, name);
        if (!g) continue;
        Split s = split_of(c, g);
        ropes = s.Dr;
        json_t *kind = json_object_get(json_object_get(model, "kinds"), name);
        bool biased = g->qkv_bias;
        kind_split(model, name, "mla", convert,
                   json_pack("{ss si si si si si si si si sO sb sb sb sb}", "mixer", "mla", "heads", s.H, "kv_rank",
                             s.r, "nope_dim", s.Dn, "rope_dim", s.Dr, "v_dim", s.D, "rope_heads", s.Dr ? s.G : 1,
                             "window", g->window, "sinks", g->sinks, "rope", json_object_get(kind, "rope"),
                             "latent_norm", 0, "a_bias", biased, "q_bias", biased, "o_bias", g->o_bias));
    }
    j->exact = j->moves = !c->rank && !stay;
    j->calibrates = c->rank;
    if (stay) snprintf(j->report->note, sizeof j->report->note, "%s", stayed);
    if (c->rank)
        snprintf(j->report->rule, sizeof j->report->rule, "mla rank=%d rope=%d", c->rank, ropes);
    else
        snprintf(j->report->rule, sizeof j->report->rule, "mla: lossless form, a rotated key for each key head");
    return true;
}

static size_t mla_memory(const Job *j, int l) {
    const Cfg *c = j->cfg;
    const GqaCfg *g = l < j->a.L ? job_gqa(&j->a, l) : NULL;
    if (!g || !c->rank) return 0;
    Split s = split_of(c, g);
    size_t d1 = (size_t)s.d + 1, n = (size_t)s.n, q = (size_t)s.H * (size_t)s.D;
    return (d1 * d1 + 3 * n * d1 + 3 * n * n + 2 * n + 2 * q * d1 + 8 * (size_t)s.D * (size_t)s.D) * sizeof(double) +
           16384;
}

static void mla_see(Job *j, const FlowView *v) {
    Cfg *c = j->cfg;
    if (!job_gqa(&j->a, v->l)) return;
    const size_t d = (size_t)v->in.n[1], n = d + 1;
    const int T = v->in.n[0];
    if (c->layer != v->l) {
        arena_release(&j->work, (Mark){0});
        c->layer = v->l, c->tokens = 0;
        c->c = arena_take(&j->work, n * n * sizeof(double), "second moment");
        memset(c->c, 0, n * n * sizeof(double));
    }
    const real *p = R(v->in);
    double *m = c->c;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int t = 0; t < T; t++) {
            const real *x = p + (size_t)t * d;
            double a = i < d ? x[i] : 1;
            for (size_t k = 0; k < d; k++) m[i * n + k] += a * x[k];
            m[i * n + d] += a;
        }
    c->tokens += (size_t)T;
}

/* Row of head-internal number i (0..Dn-1 without rotation, then Dr rotated) in the source's head. */
static int source_row(const Split *s, const GqaCfg *g, int i) {
    int c = s->Dr ? g->table.n / s->Dr : 1, half = s->D / 2, keep = s->Dr / 2;
    bool mixed = g->table.interleaved;
    if (!s->Dr) return i;
    if (g->table.n < s->D) { /* GPT-NeoX: some elements of a head are rotated, and all of those stay rotated */
        if (i >= s->Dn) return g->table.at + i - s->Dn;
        return i < g->table.at ? i : i + g->table.n;
    }
    if (i >= s->Dn) { /* pair p of the kept is pair p c of the source; the layout stays */
        int k = i - s->Dn, p = mixed ? k / 2 : k % keep, im = mixed ? k % 2 : k / keep;
        return mixed ? 2 * p * c + im : p * c + im * half;
    }
    for (int row = 0; row < s->D; row++) {
        int p = mixed ? row / 2 : row % half;
        if (p % c && i-- == 0) return row;
    }
    CHECK(false, "row %d", i);
    return 0;
}

static void mla_row_of(const Tensor w, const Tensor b, size_t row, size_t d, double *out) {
    for (size_t i = 0; i < d; i++) out[i] = R(w)[row * d + i];
    out[d] = present(b) ? R(b)[row] : 0;
}

/* y (n,d1) = w (n,d1) c (d1,d1) */
static void mla_times(double *y, const double *w, const double *c, size_t n, size_t d1) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        memset(y + i * d1, 0, d1 * sizeof *y);
        for (size_t k = 0; k < d1; k++) {
            const double a = w[i * d1 + k];
            for (size_t m = 0; m < d1; m++) y[i * d1 + m] += a * c[k * d1 + m];
        }
    }
}
static double mla_dot(const double *a, const double *b, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

static bool mla_lapack_failed(Err *e, const char *what, int info) {
    return err_runtime(e, "%s of a calibration's second moments failed (LAPACK: %d); check that all weights are finite",
                       what, info);
}

/* The lower Cholesky factor of s (n,n) with a little of its mean diagonal added, in place; A = its transpose. */
static bool mla_factor(double *s, int n, Err *e) {
    double mean = 0;
    Lapack lapack;
    if (!lapack_open(&lapack, e)) return false;
    for (int i = 0; i < n; i++) mean += s[i * n + i] / n;
    for (int i = 0; i < n; i++) s[i * n + i] += 1e-6 * mean + 1e-30;
    int info = lapack.dpotrf(BY_ROWS, 'L', n, s, n);
    return info == 0 || mla_lapack_failed(e, "the Cholesky factor", info);
}

/* The inputs of a layer's weights. */
typedef struct {
    Tensor wq, bq, wk, bk, wv, bv, wo, bo;
} Source;
static Source mla_source(Job *j, int l) {
    return (Source){job_in(j, l, "self_attn.q_proj.weight"), job_in(j, l, "self_attn.q_proj.bias"),
                    job_in(j, l, "self_attn.k_proj.weight"), job_in(j, l, "self_attn.k_proj.bias"),
                    job_in(j, l, "self_attn.v_proj.weight"), job_in(j, l, "self_attn.v_proj.bias"),
                    job_in(j, l, "self_attn.o_proj.weight"), job_in(j, l, "self_attn.o_proj.bias")};
}

/* Weights of the errors of key head g: (Dn,Dn) of its keys, (D,D) of its values, as factors A^T. */
static bool mla_weigh(const Split *s, const GqaCfg *c, const Source *w, const double *C, double tokens, int g,
                      double *q, double *qc, double *ak, double *av, Err *e) {
    const size_t d1 = (size_t)s->d + 1, D = (size_t)s->D;
    const int each = s->H / s->G;
    double energy = 0;
    memset(av, 0, D * D * sizeof *av);
    memset(ak, 0, (size_t)s->Dn * (size_t)s->Dn * sizeof *ak);
    for (int h = g * each; h < (g + 1) * each; h++)
        for (size_t a = 0; a < D; a++)
            for (size_t b = 0; b < D; b++)
                for (int r = 0; r < s->d; r++)
                    av[a * D + b] += (double)R(w->wo)[(size_t)r * (size_t)w->wo.n[1] + (size_t)h * D + a] *
                                     R(w->wo)[(size_t)r * (size_t)w->wo.n[1] + (size_t)h * D + b];
    for (size_t i = 0; i < D; i++) mla_row_of(w->wv, w->bv, (size_t)g * D + i, d1 - 1, q + i * d1);
    mla_times(qc, q, C, D, d1);
    for (size_t a = 0; a < D; a++)
        for (size_t b = 0; b < D; b++) energy += av[a * D + b] * mla_dot(qc + a * d1, q + b * d1, d1) / tokens / each;
    for (int h = g * each; s->Dn && h < (g + 1) * each; h++) {
        for (int i = 0; i < s->Dn; i++)
            mla_row_of(w->wq, w->bq, (size_t)h * D + (size_t)source_row(s, c, i), d1 - 1, q + (size_t)i * d1);
        mla_times(qc, q, C, (size_t)s->Dn, d1);
        for (int a = 0; a < s->Dn; a++)
            for (int b = 0; b < s->Dn; b++)
                ak[a * s->Dn + b] += mla_dot(qc + (size_t)a * d1, q + (size_t)b * d1, d1) / tokens * energy / s->D;
    }
    return (!s->Dn || mla_factor(ak, s->Dn, e)) && mla_factor(av, s->D, e);
}

/* x (rows of a block of n, width) <- A x with A = L^T; or A^-1 x. */
static bool mla_apply(double *x, const double *L, int n, size_t width, bool inverse, Err *e) {
    if (!n) return true;
    if (inverse) {
        Lapack lapack;
        if (!lapack_open(&lapack, e)) return false;
        int info = lapack.dtrtrs(BY_ROWS, 'L', 'T', 'N', n, (int)width, L, n, x, (int)width);
        return info == 0 || mla_lapack_failed(e, "the inverse of the weights", info);
    }
    for (int i = 0; i < n; i++) /* row i needs rows >= i alone: in place */
        for (size_t k = 0; k < width; k++) {
            double sum = 0;
            for (int m = i; m < n; m++) sum += L[m * n + i] * x[(size_t)m * width + k];
            x[(size_t)i * width + k] = sum;
        }
    return true;
}

/* down (r,d1): the latent's rows of [W b]; up (n,r). */
static bool mla_decompose(Job *j, const Split *s, const GqaCfg *c, const Source *w, double **down, double **up,
                          Err *e) {
    const Cfg *cfg = j->cfg;
    const size_t d1 = (size_t)s->d + 1, n = (size_t)s->n, D = (size_t)s->D, q = (size_t)s->H * D;
    double *W = arena_take(&j->work, n * d1 * sizeof *W, "rows"),
           *WC = arena_take(&j->work, n * d1 * sizeof *W, "rows C"),
           *M = arena_take(&j->work, n * n * sizeof *W, "matrix"), *val = arena_take(&j->work, n * sizeof *W, "values"),
           *rows = arena_take(&j->work, 2 * q * d1 * sizeof *W, "queries"),
           *A = arena_take(&j->work, n * n * sizeof *W, "weights");
    size_t at = 0;
    double *block = A; /* the factors one after the other: per head of keys, then of values */
    for (int g = 0; g < s->G; g++) {
        double *ak = block, *av = ak + s->Dn * s->Dn;
        if (!mla_weigh(s, c, w, cfg->c, (double)cfg->tokens, g, rows, rows + q * d1, ak, av, e)) return false;
        for (int i = 0; i < s->Dn; i++, at++)
            mla_row_of(w->wk, w->bk, (size_t)g * D + (size_t)source_row(s, c, i), d1 - 1, W + at * d1);
        for (size_t i = 0; i < D; i++, at++) mla_row_of(w->wv, w->bv, (size_t)g * D + i, d1 - 1, W + at * d1);
        double *first = W + (at - D - (size_t)s->Dn) * d1;
        if (!mla_apply(first, ak, s->Dn, d1, false, e) ||
            !mla_apply(first + (size_t)s->Dn * d1, av, s->D, d1, false, e))
            return false;
        block = av + D * D;
    }
    mla_times(WC, W, cfg->c, n, d1);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) M[i * n + k] = mla_dot(WC + i * d1, W + k * d1, d1);
    Lapack lapack;
    if (!lapack_open(&lapack, e)) return false;
    int info = lapack.dsyevd(BY_ROWS, 'V', 'L', (int)n, M, (int)n, val);
    if (info) return mla_lapack_failed(e, "the eigenvectors", info);
    *down = arena_take(&j->work, (size_t)s->r * d1 * sizeof *W, "down");
    *up = arena_take(&j->work, n * (size_t)s->r * sizeof *W, "up");
    for (int k = 0; k < s->r; k++) { /* eigenvalues ascend; the largest entry of a vector is positive */
        const size_t col = n - 1 - (size_t)k;
        double most = 0;
        for (size_t i = 0; i < n; i++)
            if (fabs(M[i * n + col]) > fabs(most) * (1 + 1e-9)) most = M[i * n + col];
        double *y = *down + (size_t)k * d1;
        memset(y, 0, d1 * sizeof *y);
        for (size_t i = 0; i < n; i++) {
            double u = most < 0 ? -M[i * n + col] : M[i * n + col];
            (*up)[i * (size_t)s->r + (size_t)k] = u;
            for (size_t m = 0; m < d1; m++) y[m] += u * W[i * d1 + m];
        }
    }
    at = 0, block = A;
    for (int g = 0; g < s->G; g++) {
        double *x = *up + at * (size_t)s->r;
        if (!mla_apply(x, block, s->Dn, (size_t)s->r, true, e) ||
            !mla_apply(x + s->Dn * s->r, block + s->Dn * s->Dn, s->D, (size_t)s->r, true, e))
            return false;
        at += (size_t)(s->Dn + s->D);
        block += s->Dn * s->Dn + s->D * s->D;
    }
    return true;
}

static void copy_row(Tensor to, size_t row, Tensor from, size_t at) {
    if (!present(to)) return;
    const size_t w = to.rank > 1 ? (size_t)to.n[1] : 1;
    memcpy(R(to) + row * w, R(from) + at * w, w * sizeof(real));
}

static bool layer(Job *j, int l, Err *e) {
    const GqaCfg *c = job_gqa(&j->a, l);
    if (!c) return true;
    const Split s = split_of(j->cfg, c);
    Source w = mla_source(j, l);
    double *down = NULL, *up = NULL;
    if (s.whole) { /* of the layer whose rows it reads */
        w.wk = job_in(j, j->a.layer[l].kv_from, "self_attn.k_proj.weight");
        w.wv = job_in(j, j->a.layer[l].kv_from, "self_attn.v_proj.weight");
    }
    if (j->failed || (s.rank && !mla_decompose(j, &s, c, &w, &down, &up, e))) return false;
    const size_t d = (size_t)s.d, d1 = d + 1;
    if (j->a.layer[l].owner) {
        Tensor wa = job_out(j, l, "self_attn.kv_a_proj_with_mqa.weight"),
               ba = job_out(j, l, "self_attn.kv_a_proj_with_mqa.bias");
        for (int i = 0; i < s.r; i++) { /* rows of W in order: per head its keys, then its values */
            int g = i / (s.Dn + s.D), k = i % (s.Dn + s.D);
            bool key = k < s.Dn;
            size_t at = (size_t)(g * s.D + (key ? source_row(&s, c, k) : k - s.Dn));
            for (size_t x = 0; s.rank && x < d; x++) R(wa)[(size_t)i * d + x] = (real)down[(size_t)i * d1 + x];
            if (s.rank && present(ba)) R(ba)[i] = (real)down[(size_t)i * d1 + d];
            for (size_t x = 0; s.whole && x < d; x++) R(wa)[(size_t)i * d + x] = x == (size_t)i;
            if (!s.rank && !s.whole)
                copy_row(wa, (size_t)i, key ? w.wk : w.wv, at), copy_row(ba, (size_t)i, key ? w.bk : w.bv, at);
        }
        for (int i = 0; i < s.G * s.Dr; i++) {
            size_t at = (size_t)(i / s.Dr * s.D + source_row(&s, c, s.Dn + i % s.Dr));
            copy_row(wa, (size_t)(s.r + i), w.wk, at);
            copy_row(ba, (size_t)(s.r + i), w.bk, at);
        }
    }
    if (!s.H) return true;
    Tensor q = job_out(j, l, "self_attn.q_proj.weight"), bq = job_out(j, l, "self_attn.q_proj.bias"),
           b = job_out(j, l, "self_attn.kv_b_proj.weight");
    const int each = s.H / s.G, rows = s.Dn + s.D;
    for (int h = 0; h < s.H; h++) {
        for (int i = 0; i < s.D; i++) {
            size_t at = (size_t)(h * s.D + source_row(&s, c, i));
            copy_row(q, (size_t)(h * s.D + i), w.wq, at);
            copy_row(bq, (size_t)(h * s.D + i), w.bq, at);
        }
        for (int i = 0; i < rows; i++) {
            const size_t from = (size_t)(h / each * rows + i);
            real *y = R(b) + (size_t)(h * rows + i) * (size_t)s.r;
            if (s.whole) {
                copy_row(b, (size_t)(h * rows + i), i < s.Dn ? w.wk : w.wv,
                         (size_t)(h / each * s.D + (i < s.Dn ? source_row(&s, c, i) : i - s.Dn)));
                continue;
            }
            for (int k = 0; k < s.r; k++) y[k] = s.rank ? (real)up[from * (size_t)s.r + (size_t)k] : (size_t)k == from;
        }
    }
    return true;
}

const Target mla_target = {.name = "mla",
                           .exact = "without rank: lossless; with rank, or where latents were evicted: approximate",
                           .needs = "no QK-norm; without rank, if k and v have biases: kv_heads (2 head_dim - rotated) "
                                    "<= d_model; with rank: --calib",
                           .about = "latents and rotated keys in every gqa layer; latents that are evicted stay",
                           .keys = keys,
                           .cfg_size = sizeof(Cfg),
                           .plan = mla_plan,
                           .layer = layer,
                           .see = mla_see,
                           .memory = mla_memory};
