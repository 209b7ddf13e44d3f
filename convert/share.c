/* share.c: one layer's keys and values for several: cla, yoco.
 *
 * The owner o of a group makes the rows that the layers m of it read, from its own input x_o, while theirs were made of
 * x_m. mean and first leave that out. lstsq takes of every member what of its rows x_o tells, over calibration tokens,
 *     V_m = argmin E |V x_o - W_m x_m|^2 + r |V - W_m|^2 = W_m + W_m (E[x_m x_o^T] - E[x_o x_o^T]) (E[x_o x_o^T] +
 * r)^-1 for keys before their rotation and for values, [x; 1] in place of x where there are biases; the W with the
 * least sum of squares over the members is the mean of the V_m. r = ridge times the mean diagonal of E[x_o x_o^T]:
 * large, it is `mean`. V_o is W_o. aligned turns the heads of the V_m into a common basis first, which costs nothing
 * (align.h): the queries of m and its output projection are turned along, head g of every member with head g of the
 * others; the mean is then brought to the members' norm. Sources: own work; that heads want a common basis is
 * arXiv:2412.20677, mean over the readers github.com/whyNLP/LCKV, convert_pretrained.py. */
#include "heads.h"
#include "kinds.h"
#include "lapack.h"

enum { SHARE_MEAN, SHARE_FIRST, SHARE_LSTSQ, SHARE_ALIGNED };
static const char *const methods[] = {"mean", "first", "lstsq", "aligned", NULL};
typedef struct {
    int n, window, method;
    double ridge;
    int owner;    /* whose group the sums are of; -1: none's yet */
    double *sums; /* (members,N,N) of x_m x_o^T, the owner first */
    real *x;      /* (windows,T,d) x_o */
    Gauge *gauge; /* (L) of readers and owners that are turned */
    int L;
} Share;
#define METHOD                                                                                                       \
    {"method",                                                                                                       \
     KEY_CHOICE,                                                                                                     \
     offsetof(Share, method),                                                                                        \
     "mean",                                                                                                         \
     0,                                                                                                              \
     0,                                                                                                              \
     "keys and values of a group: the mean of its layers' weights, those of its first, lstsq: what reproduces its "  \
     "layers' best from its first's input, or aligned: the same of heads turned into a common basis, at their norm", \
     methods,                                                                                                        \
     0},                                                                                                             \
    {                                                                                                                \
        "ridge", KEY_FLOAT, offsetof(Share, ridge), "1e-3", 0, 1e9,                                                  \
            "lstsq, aligned: how much the layers' own weights count beside the text", 0, 0                           \
    }
static const Key cla_keys[] = {{"n", KEY_INT, offsetof(Share, n), "2", 2, LAYERS_MAX,
                                "layers that share one layer's keys and values", 0, 0},
                               METHOD,
                               {0}};
static const Key yoco_keys[] = {{"window", KEY_INT, offsetof(Share, window), NULL, 1, 1 << 30,
                                 "positions that the lower half of the layers looks back", 0, 0},
                                METHOD,
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
        return err_input(e, "method=%s looks at activations: give it a text by --calib FILE", methods[c->method]);
    if (j->a.L < 2) return err_input(e, "--to %s: a model of one layer has none to share with", j->target->name);
    for (int l = 0; l < j->a.L; l++) {
        const GqaCfg *g = job_gqa(&j->a, l), *o = job_gqa(&j->a, owner_of(j, l));
        char name[16];
        low[l] = !c->n && l < j->a.L / 2;
        if (!g)
            return err_input(e, "--to %s: every layer must be gqa, layer %d is %s", j->target->name, l,
                             j->a.layer[l].kind->mixer->name);
        if (!gqa_plain(j, l, false, true, false, e)) return false;
        if (j->calibrates && g->qk_norm)
            return err_input(e,
                             "method=%s: layer %d norms its keys (qk_norm), which are then no linear map of its input; "
                             "take mean or first",
                             methods[c->method], l);
        if (owner_of(j, l) == l) continue;
        most = imax(most, l - owner_of(j, l) + 1);
        if (g->qk_norm != o->qk_norm || g->qkv_bias != o->qkv_bias || g->table.n != o->table.n ||
            (g->table.n && g->table.interleaved != o->table.interleaved) ||
            memcmp(g->table.f, o->table.f, (size_t)(g->table.n / 2) * sizeof *g->table.f))
            return err_input(e, "--to %s: layers %d and %d make keys in different ways (rotation, norm or bias)",
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

/* The layer behind the group of owner l. */
static int group_end(const Job *j, int l) {
    int end = l + 1;
    while (end < j->a.L && owner_of(j, end) == l) end++;
    return end;
}
static int group_until(const Job *j, int l) { return j->calibrates ? group_end(j, owner_of(j, l)) - 1 : l; }
static size_t inputs(const GqaCfg *g) { return (size_t)g->base.d_model + g->qkv_bias; }

/* ---- least squares -------------------------------------------------------------------------------------------------
 */

static size_t share_memory(const Job *j, int l) {
    const int n = l < j->a.L && j->calibrates && owner_of(j, l) == l ? group_end(j, l) - l : 0;
    if (n < 2) return 0;
    const GqaCfg *g = job_gqa(&j->a, l);
    const size_t N = inputs(g), rows = 2 * (size_t)g->kv_heads * (size_t)g->head_dim, D = (size_t)g->head_dim,
                 m = (size_t)n;
    return (m * N * N + N * N + m * rows * N + rows * N + 2 * m * m * D * D) * sizeof(double) +
           (size_t)j->win.calib * (size_t)j->win.T * (size_t)g->base.d_model * sizeof(real) + 65536;
}

static void share_see(Job *j, const FlowView *v) {
    Share *c = j->cfg;
    const int o = owner_of(j, v->l), n = group_end(j, o) - o, T = v->in.n[0];
    if (n < 2) return;
    const size_t N = inputs(job_gqa(&j->a, o)), d = (size_t)v->in.n[1], window = (size_t)T * d;
    if (c->owner != o) {
        const size_t bytes = (size_t)n * N * N * sizeof(double);
        arena_release(&j->work, (Mark){0});
        c->owner = o;
        c->sums = arena_take(&j->work, bytes, "products of inputs");
        c->x = arena_take(&j->work, (size_t)j->win.calib * window * sizeof(real), "inputs of the owner");
        memset(c->sums, 0, bytes);
    }
    real *of = c->x + (size_t)v->window * window;
    const real *in = R(v->in);
    double *sum = c->sums + (size_t)(v->l - o) * N * N;
    if (v->l == o) memcpy(of, in, window * sizeof *of);
#pragma omp parallel for schedule(static)
    for (size_t a = 0; a < N; a++)
        for (int t = 0; t < T; t++) {
            const double x = a < d ? in[(size_t)t * d + a] : 1;
            const real *y = of + (size_t)t * d;
            double *to = sum + a * N;
#pragma omp simd
            for (size_t b = 0; b < d; b++) to[b] += x * y[b];
            if (N > d) to[d] += x;
        }
}

/* y (n,N) += w (n,N) c (N,N) */
static void add_times(double *y, const double *w, const double *c, size_t n, size_t N, double scale) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < N; k++) {
            const double a = scale * w[i * N + k];
#pragma omp simd
            for (size_t m = 0; m < N; m++) y[i * N + m] += a * c[k * N + m];
        }
}

static bool lapack_failed(Err *e, int info) {
    return err_world(e, "LAPACK gave up on the inputs' second moment (%d): they are not finite, or ridge is too small",
                     info);
}

/* Rows of keys, then of values, with their biases: of layer l into w (rows,N). */
static bool rows_read(Job *j, int l, double *w, size_t rows, size_t N) {
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

/* V_m of all members, one behind the other. */
static bool predict(Job *j, int o, int n, double *V, size_t rows, size_t N, Err *e) {
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
    if (info) return lapack_failed(e, info);
    for (int m = 0; m < n; m++) {
        double *W = V + (size_t)m * rows * N;
        if (!rows_read(j, o + m, W, rows, N)) return false;
        if (!m) continue;
        memset(B, 0, rows * N * sizeof *B);
        add_times(B, W, c->sums + (size_t)m * NN, rows, N, 1);
        add_times(B, W, c->sums, rows, N, -1);
        info = lapack.dtrtrs(BY_COLUMNS, 'L', 'N', 'N', (int)N, (int)rows, L, (int)N, B, (int)N);
        if (!info) info = lapack.dtrtrs(BY_COLUMNS, 'L', 'T', 'N', (int)N, (int)rows, L, (int)N, B, (int)N);
        if (info) return lapack_failed(e, info);
        for (size_t i = 0; i < rows * N; i++) W[i] += B[i];
    }
    return true;
}

/* Gauges of all members, their V turned, and what brings the mean to their norm put in. */
static bool turn(Job *j, int o, int n, double *V, size_t rows, size_t N, Err *e) {
    Share *c = j->cfg;
    const GqaCfg *g = job_gqa(&j->a, o);
    const size_t D = (size_t)g->head_dim, DD = D * D, wide = (size_t)n * D;
    double *gram[2] = {arena_take(&j->work, wide * wide * sizeof(double), "products of keys"),
                       arena_take(&j->work, wide * wide * sizeof(double), "products of values")};
    double *y = xcalloc(D * N, sizeof *y);
    bool ok = true;
    if (!c->gauge) c->gauge = xcalloc((size_t)j->a.L, sizeof *c->gauge);
    c->L = j->a.L;
    for (int m = 0; m < n; m++) {
        Gauge *x = &c->gauge[o + m];
        *x = (Gauge){.heads = g->kv_heads, .groups = g->kv_heads, .D = g->head_dim};
        x->order = xcalloc((size_t)g->kv_heads, sizeof *x->order);
        x->k = xcalloc((size_t)g->kv_heads * DD, sizeof *x->k);
        x->v = xcalloc((size_t)g->kv_heads * DD, sizeof *x->v);
    }
    for (int h = 0; ok && h < g->kv_heads; h++) {
        const size_t at[2] = {(size_t)h * D * N, (rows / 2 + (size_t)h * D) * N};
        Gauge heads;
        for (int value = 0; value < 2; value++)
            for (int a = 0; a < n; a++) {
                memset(y, 0, D * N * sizeof *y);
                add_times(y, V + (size_t)a * rows * N + at[value], c->sums, D, N, 1);
                for (size_t i = 0; i < D; i++)
                    for (size_t b = 0; b < wide; b++) {
                        const double *w = V + b / D * rows * N + at[value] + b % D * N;
                        double s = 0;
                        for (size_t k = 0; k < N; k++) s += y[i * N + k] * w[k];
                        gram[value][((size_t)a * D + i) * wide + b] = s;
                    }
            }
        if (!(ok = gauge_make(&heads, n, 1, g->head_dim, gram[0], gram[1], &g->table, false, false, e))) break;
        for (int m = 0; m < n; m++) {
            Gauge *x = &c->gauge[o + m];
            x->order[h] = h;
            memcpy(x->k + (size_t)h * DD, heads.k + (size_t)m * DD, DD * sizeof *x->k);
            memcpy(x->v + (size_t)h * DD, heads.v + (size_t)m * DD, DD * sizeof *x->v);
            for (int value = 0; value < 2; value++) {
                double *w = V + (size_t)m * rows * N + at[value];
                const double *P = (value ? heads.v : heads.k) + (size_t)m * DD,
                             keep = value ? heads.keep_v[0] : heads.keep_k[0];
                memset(y, 0, D * N * sizeof *y);
                for (size_t i = 0; i < D; i++)
                    for (size_t k = 0; k < D; k++)
                        for (size_t x2 = 0; x2 < N; x2++) y[i * N + x2] += keep * P[i * D + k] * w[k * N + x2];
                memcpy(w, y, D * N * sizeof *y);
            }
        }
        gauge_free(&heads);
    }
    free(y);
    return ok;
}

static bool fit_group(Job *j, int o, int n, Err *e) {
    const Share *c = j->cfg;
    const GqaCfg *g = job_gqa(&j->a, o);
    const size_t N = inputs(g), rows = 2 * (size_t)g->kv_heads * (size_t)g->head_dim;
    CHECK(c->owner == o, "layer %d was not looked at", o);
    double *V = arena_take(&j->work, (size_t)n * rows * N * sizeof *V, "rows of the members");
    if (!predict(j, o, n, V, rows, N, e)) return false;
    if (c->method == SHARE_ALIGNED && !turn(j, o, n, V, rows, N, e)) return false;
    for (size_t i = 0; i < rows * N; i++) {
        double sum = 0;
        for (int m = 0; m < n; m++) sum += V[(size_t)m * rows * N + i];
        V[i] = sum / n;
    }
    rows_write(j, o, V, rows, N);
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
    .about = "groups of neighbouring layers read the keys and values of their first",
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
    .about = "the lower half looks back a window, the upper half reads the keys and values of its first",
    .keys = yoco_keys,
    .cfg_size = sizeof(Share),
    .plan = share_plan,
    .layer = share_layer,
    .see = share_see,
    .until = group_until,
    .memory = share_memory,
    .done = share_done};
