/* share.c: one layer's keys and values for several: cla, yoco.
 *
 * The owner o of a group makes the rows that the layers m of it read, from its own input x_o, while theirs were made of
 * x_m. mean and first ignore that. lstsq and aligned use the part of every member's rows that x_o predicts,
 *
 *     V_m = argmin E |V x_o - W_m x_m|^2 + r |V - W_m|^2
 *         = W_m + W_m (E[x_m x_o^T] - E[x_o x_o^T]) (E[x_o x_o^T] + r)^-1
 *
 * over calibration tokens, for keys before their rotation and for values; [x; 1] in place of x where there are biases;
 * r = ridge times the mean diagonal of E[x_o x_o^T]; V_o = W_o. Then, head by head,
 *
 *     lstsq      argmin over W         of sum_m E |V_m x_o - W x_o|^2_m      = (sum A_m)^-1 sum A_m V_m
 *     aligned    argmin over W and B_m of sum_m E |V_m x_o - B_m W x_o|^2_m
 *
 * B_m goes into the queries of m (q <- B_m^T q) and into its output projection (W_o <- W_o B_m), at no cost: any matrix
 * for values and for keys that nothing rotates, a complex number for a rotated pair. The stack of A_m^1/2 V_m at rank
 * head_dim (at complex rank 1) is that minimum: W from the leading eigenvectors of the stack's second moment.
 * |y|^2_m = y^T A_m y is the effect of an error on the stream after the mixer of m, as mla.c weighs it: of values
 * W_o^T W_o of the queries that read them; of keys, the queries' energy, of a rotated pair the mean of its two elements
 * (over all distances the rotation spreads it so), times the energy that the head's values add to the output; both over
 * that stream's mean square, since a norm follows.
 *
 * Sources: own work; fitting in the space of activations, and that heads want a common basis, is arXiv:2412.20677; the
 * mean over the readers github.com/whyNLP/LCKV, convert_pretrained.py. */
#include "heads.h"
#include "kinds.h"
#include "lapack.h"

enum { SHARE_MEAN, SHARE_FIRST, SHARE_LSTSQ, SHARE_ALIGNED };
static const char *const methods[] = {"mean", "first", "lstsq", "aligned", NULL};
typedef struct {
    int n, window, method;
    double ridge;
    int owner;       /* whose group the sums are of; -1: none's yet */
    double *sums;    /* (members,N,N) of x_m x_o^T, the owner first */
    real *x;         /* (windows,T,d) x_o */
    double *own;     /* (N,N) of x_m x_m^T */
    double stream;   /* sum of |x|^2 of the stream after the member's mixer */
    double *wk, *wv; /* (members,G,D), (members,G,D,D): weights of errors of keys and values */
    Gauge *gauge;    /* (L) B_m^T of the members, where heads_follow looks for turns */
    int L;
} Share;
#define METHOD_SAYS                                                                                                  \
    "weights of a group's keys and values: the mean of its layers', those of the first, lstsq (the best fit of all " \
    "layers' keys and values from the first layer's input), or aligned (lstsq, and queries and output projections "  \
    "adapt)"
#define METHOD_KEY \
    { "method", KEY_CHOICE, offsetof(Share, method), "mean", 0, 0, METHOD_SAYS, methods, 0 }
#define RIDGE_SAYS "lstsq, aligned: weight of the layers' own weights relative to the text"
#define RIDGE_KEY \
    { "ridge", KEY_FLOAT, offsetof(Share, ridge), "1e-3", 0, 1e9, RIDGE_SAYS, 0, 0 }
static const Key cla_keys[] = {{"n", KEY_INT, offsetof(Share, n), "2", 2, LAYERS_MAX,
                                "layers of a group, which share the keys and values of its first", 0, 0},
                               METHOD_KEY,
                               RIDGE_KEY,
                               {0}};
static const Key yoco_keys[] = {{"window", KEY_INT, offsetof(Share, window), NULL, 1, 1 << 30,
                                 "positions that a query sees in the lower half of the layers", 0, 0},
                                METHOD_KEY,
                                RIDGE_KEY,
                                {0}};

/* The layer whose rows layer l will read. */
static int owner_of(const Job *j, int l) {
    const Share *c = j->cfg;
    return c->n ? l / c->n * c->n : l < j->a.L / 2 ? l : j->a.L / 2;
}
static bool share_plan(Job *j, json_t *model, Err *e) {
    Share *c = j->cfg;
    int most = 1;
    bool low[LAYERS_MAX];
    json_t *from = json_object();
    c->owner = -1;
    j->calibrates = c->method >= SHARE_LSTSQ;
    json_object_set_new(model, "kv_from", from);
    if (j->calibrates && !j->o->calib)
        return err_input(e, "method=%s needs activations; give a text with --calib FILE", methods[c->method]);
    if (j->a.L < 2) return err_input(e, "--to %s: a model of one layer has no layer to share with", j->target->name);
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l), *o = job_gqa(&j->a, owner_of(j, l));
        char name[16];
        low[l] = !c->n && l < j->a.L / 2;
        if (!g)
            return err_input(e, "--to %s: every layer must be gqa, layer %d is %s", j->target->name, l,
                             j->a.layer[l].kind->mixer->name);
        if (!gqa_plain(j, l, false, true, false, e)) return false;
        if (j->calibrates && (g->qk_norm || g->qk_norm_wide))
            return err_input(
                e,
                "method=%s: layer %d norms its keys (qk_norm), so they are not linear in its input; use mean or first",
                methods[c->method], l);
        if (owner_of(j, l) == l) continue;
        most = imax(most, l - owner_of(j, l) + 1);
        if (g->qk_norm != o->qk_norm || g->qk_norm_wide != o->qk_norm_wide || g->qkv_bias != o->qkv_bias ||
            g->table.n != o->table.n || (g->table.n && g->table.interleaved != o->table.interleaved) ||
            memcmp(g->table.f, o->table.f, (size_t)(g->table.n / 2) * sizeof *g->table.f))
            return err_input(e, "--to %s: layers %d and %d compute keys differently (rotation, norm or bias)",
                             j->target->name, owner_of(j, l), l);
        snprintf(name, sizeof name, "%d", l);
        json_object_set_new(from, name, json_integer(owner_of(j, l)));
    }
    for (int i = 0; !c->n && i < j->from.nkinds; i++) {
        if (!kind_gqa(j, j->from.kind[i].name)) continue;
        json_t *kind = json_deep_copy(json_object_get(json_object_get(model, "kinds"), j->from.kind[i].name));
        json_object_set_new(kind, "window", json_integer(c->window));
        kind_split(model, j->from.kind[i].name, "local", low, kind);
    }
    j->together = most;
    if (c->n)
        snprintf(j->report->rule, sizeof j->report->rule, "cla n=%d method=%s", c->n, methods[c->method]);
    else
        snprintf(j->report->rule, sizeof j->report->rule, "yoco window=%d method=%s", c->window, methods[c->method]);
    return true;
}

/* The layer after the group of owner l. */
static int group_end(const Job *j, int l) {
    int end = l + 1;
    while (end < j->a.L && owner_of(j, end) == l) end++;
    return end;
}
static int group_until(const Job *j, int l) { return j->calibrates ? group_end(j, owner_of(j, l)) - 1 : l; }
static size_t share_inputs(const GqaCfg *g) { return (size_t)g->base.d_model + g->qkv_bias; }

/* ---- least squares -------------------------------------------------------------------------------------------------
 */

static size_t share_memory(const Job *j, int l) {
    const int n = l < j->a.L && j->calibrates && owner_of(j, l) == l ? group_end(j, l) - l : 0;
    if (n < 2) return 0;
    const GqaCfg *g = job_gqa(&j->a, l);
    const size_t N = share_inputs(g), rows = 2 * (size_t)g->kv_heads * (size_t)g->head_dim, D = (size_t)g->head_dim,
                 m = (size_t)n;
    return ((m + 2) * N * N + (m + 1) * rows * N + m * rows * (D + 1) + 6 * m * m * D * D + 2 * m * D +
            (4 * m * D + 4 * (D + rows)) * N) *
               sizeof(double) +
           (size_t)j->win.calib * (size_t)j->win.T * (size_t)g->base.d_model * sizeof(real) + 65536;
}

/* y (n,N) += scale w (n,N) c (N,N) */
static void add_times(double *y, const double *w, const double *c, size_t n, size_t N, double scale) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < N; k++) {
            const double a = scale * w[i * N + k];
#pragma omp simd
            for (size_t m = 0; m < N; m++) y[i * N + m] += a * c[k * N + m];
        }
}
static double share_dot(const double *a, const double *b, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
/* Row `row` of a projection and its bias. */
static void share_row_of(Tensor w, Tensor b, size_t row, size_t N, double *out) {
    const size_t d = (size_t)w.n[1];
    for (size_t i = 0; i < d; i++) out[i] = R(w)[row * d + i];
    if (N > d) out[d] = R(b)[row];
}

/* The cost of an error in a key or a value of layer l, by its queries and output projection and by its own inputs. */
static void share_weigh(Job *j, int l, double *wk, double *wv) {
    const Share *c = j->cfg;
    const GqaCfg *g = job_gqa(&j->a, l);
    const Rope *turn = &g->table;
    const size_t N = share_inputs(g), D = (size_t)g->head_dim, G = (size_t)g->kv_heads, each = (size_t)g->heads / G;
    const Tensor wq = job_in(j, l, "self_attn.q_proj.weight"), bq = job_in(j, l, "self_attn.q_proj.bias"),
                 v = job_in(j, l, "self_attn.v_proj.weight"), bv = job_in(j, l, "self_attn.v_proj.bias"),
                 wo = job_in(j, l, "self_attn.o_proj.weight");
    double *row = xcalloc(2 * D * N, sizeof *row), *of = row + D * N;
    for (size_t h = 0; !j->failed && h < G; h++) {
        double *A = wv + h * D * D, *e = wk + h * D, energy = 0;
        memset(A, 0, D * D * sizeof *A);
        memset(e, 0, D * sizeof *e);
        for (size_t q = h * each; q < (h + 1) * each; q++)
            for (int r = 0; r < wo.n[0]; r++) {
                const real *o = R(wo) + (size_t)r * (size_t)wo.n[1] + q * D;
                for (size_t a = 0; a < D; a++)
                    for (size_t b = 0; b < D; b++) A[a * D + b] += (double)o[a] * o[b];
            }
        memset(of, 0, D * N * sizeof *of);
        for (size_t i = 0; i < D; i++) share_row_of(v, bv, h * D + i, N, row + i * N);
        add_times(of, row, c->own, D, N, 1);
        for (size_t a = 0; a < D; a++)
            for (size_t b = 0; b < D; b++) energy += A[a * D + b] * share_dot(of + a * N, row + b * N, N);
        for (size_t q = h * each; q < (h + 1) * each; q++) {
            memset(of, 0, D * N * sizeof *of);
            for (size_t i = 0; i < D; i++) share_row_of(wq, bq, q * D + i, N, row + i * N);
            add_times(of, row, c->own, D, N, 1);
            for (size_t i = 0; i < D; i++) e[i] += share_dot(of + i * N, row + i * N, N) * energy;
        }
        /* over all distances a rotation divides a pair's energy equally between its two elements */
        for (int i = 0; i < turn->n / 2; i++) {
            double *x = e + turn->at + (turn->interleaved ? 2 * i : i), *y = x + (turn->interleaved ? 1 : turn->n / 2);
            *x = *y = (*x + *y) / 2;
        }
        for (size_t i = 0; i < D; i++) e[i] /= c->stream; /* a norm follows: what counts is the part of the stream */
        for (size_t i = 0; i < D * D; i++) A[i] /= c->stream;
    }
    free(row);
}

/* sum (N,N) += over tokens [x; 1] [y; 1]^T */
static void share_add_outer(double *sum, const real *x, const real *y, int T, size_t d, size_t N) {
#pragma omp parallel for schedule(static)
    for (size_t a = 0; a < N; a++)
        for (int t = 0; t < T; t++) {
            const double p = a < d ? x[(size_t)t * d + a] : 1;
            const real *q = y + (size_t)t * d;
            double *to = sum + a * N;
#pragma omp simd
            for (size_t b = 0; b < d; b++) to[b] += p * q[b];
            if (N > d) to[d] += p;
        }
}

static void share_see(Job *j, const FlowView *v) {
    Share *c = j->cfg;
    const int o = owner_of(j, v->l), n = group_end(j, o) - o, T = v->in.n[0];
    if (n < 2) return;
    const GqaCfg *g = job_gqa(&j->a, o);
    const size_t N = share_inputs(g), d = (size_t)v->in.n[1], window = (size_t)T * d, G = (size_t)g->kv_heads,
                 D = (size_t)g->head_dim, m = (size_t)(v->l - o);
    if (c->owner != o) {
        const size_t bytes = (size_t)n * N * N * sizeof(double);
        arena_release(&j->work, (Mark){0});
        c->owner = o;
        c->sums = arena_take(&j->work, bytes, "products of inputs");
        c->x = arena_take(&j->work, (size_t)j->win.calib * window * sizeof(real), "inputs of the owner");
        c->own = arena_take(&j->work, N * N * sizeof(double), "products of own inputs");
        c->wk = arena_take(&j->work, (size_t)n * G * D * sizeof(double), "weights of keys");
        c->wv = arena_take(&j->work, (size_t)n * G * D * D * sizeof(double), "weights of values");
        memset(c->sums, 0, bytes);
    }
    real *of = c->x + (size_t)v->window * window;
    const real *in = R(v->in);
    if (v->l == o) memcpy(of, in, window * sizeof *of);
    if (v->window == 0) memset(c->own, 0, N * N * sizeof(double)), c->stream = 0;
    for (size_t i = 0; i < window; i++) c->stream += (double)R(v->mid)[i] * R(v->mid)[i];
    share_add_outer(c->sums + m * N * N, in, of, T, d, N);
    share_add_outer(c->own, in, in, T, d, N);
    if (v->window == j->win.calib - 1) share_weigh(j, v->l, c->wk + m * G * D, c->wv + m * G * D * D);
}

static bool share_lapack_failed(Err *e, int info) {
    return err_runtime(e, "LAPACK failed on the inputs' second moment (%d): it is not finite, or ridge is too small",
                       info);
}

/* Rows of keys, then of values, with their biases: of layer l into w (rows,N). */
static bool share_rows_read(Job *j, int l, double *w, size_t rows, size_t N) {
    const Tensor k = job_in(j, l, "self_attn.k_proj.weight"), v = job_in(j, l, "self_attn.v_proj.weight"),
                 bk = job_in(j, l, "self_attn.k_proj.bias"), bv = job_in(j, l, "self_attn.v_proj.bias");
    if (j->failed) return false;
    const size_t d = (size_t)k.n[1], half = rows / 2;
    for (size_t i = 0; i < rows; i++) {
        const real *from = R(i < half ? k : v) + i % half * d;
        for (size_t m = 0; m < d; m++) w[i * N + m] = from[m];
        if (N > d) w[i * N + d] = R(i < half ? bk : bv)[i % half];
    }
    return true;
}
static void rows_write(Job *j, int l, const double *w, size_t rows, size_t N) {
    Tensor k = job_out(j, l, "self_attn.k_proj.weight"), v = job_out(j, l, "self_attn.v_proj.weight"),
           bk = job_out(j, l, "self_attn.k_proj.bias"), bv = job_out(j, l, "self_attn.v_proj.bias");
    const size_t d = (size_t)k.n[1], half = rows / 2;
    for (size_t i = 0; i < rows; i++) {
        real *to = R(i < half ? k : v) + i % half * d;
        for (size_t m = 0; m < d; m++) to[m] = (real)w[i * N + m];
        if (N > d) R(i < half ? bk : bv)[i % half] = (real)w[i * N + d];
    }
}

/* V_m of all members, one after the other. */
static bool share_predict(Job *j, int o, int n, double *V, size_t rows, size_t N, Err *e) {
    const Share *c = j->cfg;
    Lapack lapack;
    const size_t NN = N * N;
    double *L = arena_take(&j->work, NN * sizeof *L, "second moment"),
           *B = arena_take(&j->work, rows * N * sizeof *B, "what inputs differ by"), trace = 0;
    if (!lapack_open(&lapack, e)) return false;
    memcpy(L, c->sums, NN * sizeof *L);
    for (size_t i = 0; i < N; i++) trace += L[i * N + i] / (double)N;
    for (size_t i = 0; i < N; i++) L[i * N + i] += c->ridge * trace;
    int info = lapack.dpotrf(BY_COLUMNS, 'L', (int)N, L, (int)N);
    if (info) return share_lapack_failed(e, info);
    for (int m = 0; m < n; m++) {
        double *W = V + (size_t)m * rows * N;
        if (!share_rows_read(j, o + m, W, rows, N)) return false;
        if (!m) continue;
        memset(B, 0, rows * N * sizeof *B);
        add_times(B, W, c->sums + (size_t)m * NN, rows, N, 1);
        add_times(B, W, c->sums, rows, N, -1);
        info = lapack.dtrtrs(BY_COLUMNS, 'L', 'N', 'N', (int)N, (int)rows, L, (int)N, B, (int)N);
        if (!info) info = lapack.dtrtrs(BY_COLUMNS, 'L', 'T', 'N', (int)N, (int)rows, L, (int)N, B, (int)N);
        if (info) return share_lapack_failed(e, info);
        for (size_t i = 0; i < rows * N; i++) W[i] += B[i];
    }
    return true;
}

/* Sizes of a group, and where rows of head h of member m begin in V. */
typedef struct {
    int o, n;
    size_t N, rows, D, G;
} Group;
static double *share_head_rows(double *V, const Group *s, int m, int h, int value) {
    return V + ((size_t)m * s->rows + (value ? s->rows / 2 : 0) + (size_t)h * s->D) * s->N;
}
static double *head_weight(const Share *c, const Group *s, int m, int h, int value) {
    const size_t at = (size_t)m * s->G + (size_t)h;
    return value ? c->wv + at * s->D * s->D : c->wk + at * s->D;
}

/* ---- with queries and output projections that follow ---------------------------------------------------------------
 */

/* Rank r of what n blocks of r rows have in common: S (n r, N) ~ U W' with W' = U^T S, U (n r, r) the leading
 * eigenvectors of S C S^T. */
static bool share_common(const double *S, const double *C, int n, int r, size_t N, double *U, double *W, double *tmp,
                         Err *e) {
    const size_t rows = (size_t)n * (size_t)r;
    double *SC = tmp, *M = SC + rows * N, *value = M + rows * rows;
    Lapack lapack;
    if (!lapack_open(&lapack, e)) return false;
    memset(SC, 0, rows * N * sizeof *SC);
    add_times(SC, S, C, rows, N, 1);
    for (size_t a = 0; a < rows; a++)
        for (size_t b = 0; b < rows; b++) M[a * rows + b] = share_dot(SC + a * N, S + b * N, N);
    int info = lapack.dsyevd(BY_ROWS, 'V', 'L', (int)rows, M, (int)rows, value);
    if (info) return share_lapack_failed(e, info);
    memset(W, 0, (size_t)r * N * sizeof *W);
    for (int k = 0; k < r; k++) { /* eigenvalues ascend; the largest entry of a vector is positive */
        const size_t col = rows - 1 - (size_t)k;
        double most = 0;
        for (size_t i = 0; i < rows; i++)
            if (fabs(M[i * rows + col]) > fabs(most) * (1 + 1e-9)) most = M[i * rows + col];
        for (size_t i = 0; i < rows; i++) {
            const double u = most < 0 ? -M[i * rows + col] : M[i * rows + col];
            U[i * (size_t)r + (size_t)k] = u;
            for (size_t x = 0; x < N; x++) W[(size_t)k * N + x] += u * S[i * N + x];
        }
    }
    return true;
}

/* E |W x|^2 up to a constant. */
static double share_energy(const double *W, const double *C, size_t rows, size_t N, double *tmp) {
    double sum = 0;
    memset(tmp, 0, rows * N * sizeof *tmp);
    add_times(tmp, W, C, rows, N, 1);
    for (size_t i = 0; i < rows; i++) sum += share_dot(tmp + i * N, W + i * N, N);
    return sum;
}

/* The rows `row[r]` of head h that nothing rotates: W' into member 0's place, A_m^T into the gauges. */
static bool share_free(Job *j, const Group *s, double *V, int h, int value, const int *row, int r, double *tmp,
                       Err *e) {
    const Share *c = j->cfg;
    const size_t D = s->D, N = s->N, R = (size_t)r, all = (size_t)s->n * R;
    double *S = tmp, *U = S + all * N, *W = U + all * R, *L = W + R * N, *rest = L + (size_t)s->n * R * R;
    Lapack lapack;
    if (!lapack_open(&lapack, e)) return false;
    for (int m = 0; m < s->n; m++) { /* S_m = L^T V_m, L L^T the weight */
        const double *w = head_weight(c, s, m, h, value), *rows = share_head_rows(V, s, m, h, value);
        double *l = L + (size_t)m * R * R, *to = S + (size_t)m * R * N;
        for (int a = 0; a < r; a++)
            for (int b = 0; b < r; b++)
                l[(size_t)a * R + (size_t)b] = value ? w[(size_t)row[a] * D + (size_t)row[b]] : a == b ? w[row[a]] : 0;
        int info = lapack.dpotrf(BY_ROWS, 'L', r, l, r);
        if (info) return share_lapack_failed(e, info);
        memset(to, 0, R * N * sizeof *to);
        for (int a = 0; a < r; a++)
            for (int b = a; b < r; b++)
                for (size_t x = 0; x < N; x++)
                    to[(size_t)a * N + x] += l[(size_t)b * R + (size_t)a] * rows[(size_t)row[b] * N + x];
    }
    if (!share_common(S, c->sums, s->n, r, N, U, W, rest, e)) return false;
    double *to = share_head_rows(V, s, 0, h, value), before = 0;
    for (int a = 0; a < r; a++) before += share_energy(to + (size_t)row[a] * N, c->sums, 1, N, rest);
    const double now = share_energy(W, c->sums, R, N, rest), scale = before > 0 && now > 0 ? sqrt(before / now) : 1;
    for (int m = 0; m < s->n; m++) { /* A_m = L^-T U_m */
        double *u = U + (size_t)m * R * R,
               *A = (value ? c->gauge[s->o + m].v : c->gauge[s->o + m].k) + (size_t)h * D * D;
        int info = lapack.dtrtrs(BY_ROWS, 'L', 'T', 'N', r, r, L + (size_t)m * R * R, r, u, r);
        if (info) return share_lapack_failed(e, info);
        for (int a = 0; a < r; a++)
            for (int b = 0; b < r; b++) A[(size_t)row[b] * D + (size_t)row[a]] = u[(size_t)a * R + (size_t)b] / scale;
    }
    for (int a = 0; a < r; a++)
        for (size_t x = 0; x < N; x++) to[(size_t)row[a] * N + x] = scale * W[(size_t)a * N + x];
    return true;
}

/* Elements x and y of the keys of head h, which a rotation turns together: the same with complex numbers of rank 1. As
 * real numbers: blocks of two rows [Re z; Im z], whose eigenvectors come in pairs, of which the first is enough. */
static bool share_pair(Job *j, const Group *s, double *V, int h, int x, int y, double *tmp, Err *e) {
    const Share *c = j->cfg;
    const size_t D = s->D, N = s->N, n = (size_t)s->n;
    double *SC = tmp, *M = SC + 2 * n * N, *value = M + 4 * n * n, *W = value + 2 * n;
    Lapack lapack;
    if (!lapack_open(&lapack, e)) return false;
    memset(SC, 0, 2 * n * N * sizeof *SC);
    for (int m = 0; m < s->n; m++) {
        const double *rows = share_head_rows(V, s, m, h, 0), w = sqrt(head_weight(c, s, m, h, 0)[x]);
        add_times(SC + (size_t)m * N, rows + (size_t)x * N, c->sums, 1, N, w);
        add_times(SC + (n + (size_t)m) * N, rows + (size_t)y * N, c->sums, 1, N, w);
    }
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < n; b++) {
            const double *rows = share_head_rows(V, s, (int)b, h, 0), w = sqrt(head_weight(c, s, (int)b, h, 0)[x]);
            const double *p = rows + (size_t)x * N, *q = rows + (size_t)y * N, *sx = SC + a * N, *sy = SC + (n + a) * N;
            const double re = w * (share_dot(sx, p, N) + share_dot(sy, q, N)),
                         im = w * (share_dot(sy, p, N) - share_dot(sx, q, N));
            M[a * 2 * n + b] = M[(n + a) * 2 * n + n + b] = re;
            M[a * 2 * n + n + b] = -im, M[(n + a) * 2 * n + b] = im;
        }
    int info = lapack.dsyevd(BY_ROWS, 'V', 'L', (int)(2 * n), M, (int)(2 * n), value);
    if (info) return share_lapack_failed(e, info);
    const size_t last = 2 * n - 1;
    double ore = M[last], oim = M[n * 2 * n + last], size = hypot(ore, oim); /* the owner's phase is 0 */
    if (!(size > 1e-12)) ore = size = 1, oim = 0;
    double *to = share_head_rows(V, s, 0, h, 0), before = share_energy(to + (size_t)x * N, c->sums, 1, N, SC) +
                                                          share_energy(to + (size_t)y * N, c->sums, 1, N, SC);
    memset(W, 0, 2 * N * sizeof *W);
    for (size_t m = 0; m < n; m++) { /* W' = sum conj(u_m) z_m */
        const double re = M[m * 2 * n + last], im = M[(n + m) * 2 * n + last], a = (re * ore + im * oim) / size,
                     b = (im * ore - re * oim) / size, w = sqrt(head_weight(c, s, (int)m, h, 0)[x]);
        const double *rows = share_head_rows(V, s, (int)m, h, 0), *p = rows + (size_t)x * N, *q = rows + (size_t)y * N;
        double *A = c->gauge[(size_t)s->o + m].k + (size_t)h * D * D;
        for (size_t i = 0; i < N; i++) W[i] += w * (a * p[i] + b * q[i]), W[N + i] += w * (a * q[i] - b * p[i]);
        A[(size_t)x * D + (size_t)x] = A[(size_t)y * D + (size_t)y] = a / w;
        A[(size_t)x * D + (size_t)y] = b / w, A[(size_t)y * D + (size_t)x] = -b / w;
    }
    const double now = share_energy(W, c->sums, 2, N, SC), scale = before > 0 && now > 0 ? sqrt(before / now) : 1;
    for (size_t i = 0; i < N; i++) to[(size_t)x * N + i] = scale * W[i], to[(size_t)y * N + i] = scale * W[N + i];
    for (size_t m = 0; m < n; m++) {
        double *A = c->gauge[(size_t)s->o + m].k + (size_t)h * D * D;
        for (int a = 0; a < 4; a++) A[(size_t)(a & 1 ? x : y) * D + (size_t)(a & 2 ? x : y)] /= scale;
    }
    return true;
}

/* A member whose errors cost nothing counts a little, so that its rows are something and not everything. */
static void weigh_least(const Share *c, const Group *s) {
    for (int h = 0; h < (int)s->G; h++)
        for (int value = 0; value < 2; value++) {
            double most = 0;
            for (int m = 0; m < s->n; m++)
                for (size_t i = 0; i < s->D; i++)
                    most = fmax(most, head_weight(c, s, m, h, value)[value ? i * s->D + i : i]);
            for (int m = 0; m < s->n; m++)
                for (size_t i = 0; i < s->D; i++)
                    head_weight(c, s, m, h, value)[value ? i * s->D + i : i] += most > 0 ? 1e-9 * most : 1;
        }
}

static bool share_turned(Job *j, const Group *s, double *V, Err *e) {
    Share *c = j->cfg;
    const GqaCfg *g = job_gqa(&j->a, s->o);
    const Rope *t = &g->table;
    const size_t DD = s->D * s->D, wide = (size_t)s->n * s->D;
    double *tmp = arena_take(&j->work, (4 * wide * s->N + 6 * wide * wide + 2 * wide) * sizeof *tmp, "a head");
    if (!c->gauge) c->gauge = xcalloc((size_t)j->a.L, sizeof *c->gauge);
    c->L = j->a.L;
    for (int m = 0; m < s->n; m++) {
        Gauge *x = &c->gauge[s->o + m];
        *x = (Gauge){.heads = g->kv_heads, .groups = g->kv_heads, .D = g->head_dim};
        x->order = xcalloc(s->G, sizeof *x->order);
        x->k = xcalloc(s->G * DD, sizeof *x->k);
        x->v = xcalloc(s->G * DD, sizeof *x->v);
        for (int h = 0; h < g->kv_heads; h++) x->order[h] = h;
    }
    int *row = xcalloc(2 * s->D, sizeof *row), *every = row + s->D, r = 0;
    for (int i = 0; i < g->head_dim; i++) {
        every[i] = i;
        if (i < t->at || i >= t->at + t->n) row[r++] = i;
    }
    bool ok = true;
    for (int h = 0; ok && h < g->kv_heads; h++) {
        ok = share_free(j, s, V, h, 1, every, g->head_dim, tmp, e) && (!r || share_free(j, s, V, h, 0, row, r, tmp, e));
        for (int i = 0; ok && i < t->n / 2; i++) {
            int x = t->at + (t->interleaved ? 2 * i : i);
            ok = share_pair(j, s, V, h, x, x + (t->interleaved ? 1 : t->n / 2), tmp, e);
        }
    }
    free(row);
    return ok;
}

/* The owner's rows of head h: (sum A_m)^-1 sum A_m V_m; into member 0's place. */
static bool share_pool(Job *j, const Group *s, double *V, int h, int value, double *tmp, Err *e) {
    const Share *c = j->cfg;
    const size_t D = s->D, N = s->N;
    double *sum = tmp, *A = sum + D * N;
    Lapack lapack;
    memset(sum, 0, (D * N + D * D) * sizeof *sum);
    for (int m = 0; m < s->n; m++) {
        const double *w = head_weight(c, s, m, h, value), *rows = share_head_rows(V, s, m, h, value);
        for (size_t i = 0; i < D; i++)
            for (size_t k = 0; k < D; k++) {
                const double a = value ? w[i * D + k] : i == k ? w[i] : 0;
                if (a == 0) continue;
                A[i * D + k] += a;
                for (size_t x = 0; x < N; x++) sum[i * N + x] += a * rows[k * N + x];
            }
    }
    if (!lapack_open(&lapack, e)) return false;
    int info = lapack.dpotrf(BY_ROWS, 'L', (int)D, A, (int)D);
    if (!info) info = lapack.dtrtrs(BY_ROWS, 'L', 'N', 'N', (int)D, (int)N, A, (int)D, sum, (int)N);
    if (!info) info = lapack.dtrtrs(BY_ROWS, 'L', 'T', 'N', (int)D, (int)N, A, (int)D, sum, (int)N);
    if (info) return share_lapack_failed(e, info);
    memcpy(share_head_rows(V, s, 0, h, value), sum, D * N * sizeof *sum);
    return true;
}

static bool fit_group(Job *j, int o, int n, Err *e) {
    const Share *c = j->cfg;
    const GqaCfg *g = job_gqa(&j->a, o);
    const Group s = {
        o, n, share_inputs(g), 2 * (size_t)g->kv_heads * (size_t)g->head_dim, (size_t)g->head_dim, (size_t)g->kv_heads};
    CHECK(c->owner == o, "layer %d was not looked at", o);
    double *V = arena_take(&j->work, (size_t)n * s.rows * s.N * sizeof *V, "rows of the members"),
           *tmp = arena_take(&j->work, (s.D * s.N + s.D * s.D) * sizeof *tmp, "rows of a head");
    if (!share_predict(j, o, n, V, s.rows, s.N, e)) return false;
    weigh_least(c, &s);
    if (c->method == SHARE_ALIGNED && !share_turned(j, &s, V, e)) return false;
    for (int h = 0; c->method == SHARE_LSTSQ && h < g->kv_heads; h++)
        for (int value = 0; value < 2; value++)
            if (!share_pool(j, &s, V, h, value, tmp, e)) return false;
    rows_write(j, o, V, s.rows, s.N);
    return !j->failed;
}

static bool share_layer(Job *j, int l, Err *e) {
    static const char *const names[] = {"self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.weight",
                                        "self_attn.v_proj.bias", "self_attn.k_norm.weight"};
    const Share *c = j->cfg;
    const int o = owner_of(j, l), end = group_end(j, o);
    if (end == o + 1) return true;
    if (j->calibrates) {
        if (l == o && !fit_group(j, o, end - o, e)) return false;
        if (c->method == SHARE_ALIGNED) heads_follow(j, l, &c->gauge[l]);
        return !j->failed;
    }
    if (l != o || c->method == SHARE_FIRST) return true;
    for (int t = 0; t < 5; t++) {
        Tensor out = job_out(j, l, names[t]), in[LAYERS_MAX];
        for (int k = l; k < end; k++) in[k - l] = job_in(j, k, names[t]);
        if (j->failed) return false;
        for (size_t i = 0; present(out) && i < tensor_count(out); i++) {
            double sum = 0;
            for (int k = l; k < end; k++) sum += R(in[k - l])[i];
            R(out)[i] = (real)(sum / (end - l));
        }
    }
    return true;
}

static void share_done(Job *j) {
    Share *c = j->cfg;
    for (int l = 0; l < c->L; l++) gauge_free(&c->gauge[l]);
    free(c->gauge);
}

const Target cla_target = {
    .name = "cla",
    .exact = "approximate",
    .needs = "gqa in all layers, each with keys and values of its own; method=lstsq, aligned: --calib, no QK-norm",
    .about = "groups of n neighbouring layers read the keys and values of the first",
    .keys = cla_keys,
    .cfg_size = sizeof(Share),
    .plan = share_plan,
    .layer = share_layer,
    .see = share_see,
    .until = group_until,
    .memory = share_memory,
    .done = share_done};
const Target yoco_target = {
    .name = "yoco",
    .exact = "approximate",
    .needs = "gqa in all layers, each with keys and values of its own; method=lstsq, aligned: --calib, no QK-norm",
    .about = "the lower half uses a window, the upper half reads the keys and values of its first layer",
    .keys = yoco_keys,
    .cfg_size = sizeof(Share),
    .plan = share_plan,
    .layer = share_layer,
    .see = share_see,
    .until = group_until,
    .memory = share_memory,
    .done = share_done};
