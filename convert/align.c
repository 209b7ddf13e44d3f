/* align.c: see align.h. */
#include "align.h"
#include "lapack.h"

bool procrustes(double *R, double *nuclear, const double *c, int n, Err *e) {
    size_t nn = (size_t)n * (size_t)n;
    Lapack lapack;
    if (!lapack_open(&lapack, e)) return false;
    double *a = xcalloc(3 * nn + 2 * (size_t)n, sizeof *a), *u = a + nn, *vt = u + nn, *s = vt + nn, *work = s + n;
    memcpy(a, c, nn * sizeof *a);
    /* LAPACK's columns are our rows: it sees c^T = V S U^T */
    int info = lapack.dgesvd(BY_COLUMNS, 'A', 'A', n, n, a, n, s, u, n, vt, n, work);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += s[i];
    bool ok = info == 0 && isfinite(sum);
    for (int i = 0; ok && R && i < n; i++)
        for (int j = 0; j < n; j++) {
            double r = 0; /* (u vt)^T: u is V (its column k is row k of ours), vt is U^T */
            for (int k = 0; k < n; k++)
                r += u[(size_t)k * (size_t)n + (size_t)j] * vt[(size_t)i * (size_t)n + (size_t)k];
            R[(size_t)i * (size_t)n + (size_t)j] = r;
        }
    if (nuclear) *nuclear = sum;
    free(a);
    return ok ||
           err_runtime(
               e,
               "cannot compute the singular values of a %d x %d matrix (LAPACK: %d); check that all weights are finite",
               n, n, info);
}

/* Which elements of a key head may be mixed: pairs by a rotation, the rest freely. */
typedef struct {
    int D, npair, nrest;
    int (*pair)[2], *rest;
} Parts;
static void parts_make(Parts *p, int D, const Rope *turn) {
    int n = turn->n;
    *p = (Parts){.D = D, .npair = n / 2};
    p->pair = xcalloc((size_t)n / 2 + 1, sizeof *p->pair);
    p->rest = xcalloc((size_t)D + 1, sizeof *p->rest);
    for (int i = 0; i < n / 2; i++) {
        p->pair[i][0] = turn->at + (turn->interleaved ? 2 * i : i);
        p->pair[i][1] = turn->at + (turn->interleaved ? 2 * i + 1 : i + n / 2);
    }
    for (int i = 0; i < D; i++)
        if (i < turn->at || i >= turn->at + n) p->rest[p->nrest++] = i;
}
static void parts_free(Parts *p) {
    free(p->pair);
    free(p->rest);
}

/* The admissible R that brings a head nearest to a mean m, from c = E[m x^T] (D,D); *fit: tr(R^T c). R may be NULL. */
static bool align_fit(double *R, double *best, const double *c, const Parts *p, Err *e) {
    size_t D = (size_t)p->D;
    int n = p->nrest;
    double sum = 0, nuclear = 0;
    if (R) memset(R, 0, D * D * sizeof *R);
    for (int i = 0; i < p->npair; i++) {
        size_t a = (size_t)p->pair[i][0], b = (size_t)p->pair[i][1];
        double x = c[a * D + a] + c[b * D + b], y = c[b * D + a] - c[a * D + b], h = hypot(x, y);
        sum += h;
        if (!R) continue;
        R[a * D + a] = R[b * D + b] = h > 0 ? x / h : 1;
        R[b * D + a] = h > 0 ? y / h : 0;
        R[a * D + b] = -R[b * D + a];
    }
    bool ok = true;
    if (n) {
        double *some = xcalloc(2 * (size_t)n * (size_t)n, sizeof *some), *r = some + (size_t)n * (size_t)n;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) some[i * n + j] = c[(size_t)p->rest[i] * D + (size_t)p->rest[j]];
        ok = procrustes(R ? r : NULL, &nuclear, some, n, e);
        for (int i = 0; R && i < n; i++)
            for (int j = 0; j < n; j++) R[(size_t)p->rest[i] * D + (size_t)p->rest[j]] = r[i * n + j];
        free(some);
    }
    if (best) *best = sum + nuclear;
    return ok;
}

/* The sums of one kind of rows: block (a,b) is E[x_a x_b^T]. */
typedef struct {
    const double *m;
    int heads, D;
} Gram;
static double align_at(Gram g, int a, int i, int b, int j) {
    size_t n = (size_t)g.heads * (size_t)g.D;
    return g.m[((size_t)a * (size_t)g.D + (size_t)i) * n + (size_t)b * (size_t)g.D + (size_t)j];
}
static double align_trace(Gram g, int a) {
    double s = 0;
    for (int i = 0; i < g.D; i++) s += align_at(g, a, i, a, i);
    return s;
}
static void align_block(Gram g, int a, int b, double *c) {
    for (int i = 0; i < g.D; i++)
        for (int j = 0; j < g.D; j++) c[i * g.D + j] = align_at(g, a, i, b, j);
}
/* c += R E[x_b x_a^T] */
static void add_turned(Gram g, const double *R, int b, int a, double *c) {
    for (int i = 0; i < g.D; i++)
        for (int k = 0; k < g.D; k++) {
            double r = R[i * g.D + k];
            if (r == 0) continue; /* pairs: most are */
            for (int j = 0; j < g.D; j++) c[i * g.D + j] += r * align_at(g, b, k, a, j);
        }
}

/* ---- groups --------------------------------------------------------------------------------------------------------
 */

static double align_within(const double *s, int n, const int *order, int g) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n && k / g == i / g; k++) sum += s[order[i] * n + order[k]];
    return sum;
}

/* From the most similar pair outwards, then exchanges while they help; ascending in the end. Neighbours where those are
 * no better. */
static void align_group(const double *s, int n, int g, int *order) {
    bool *taken = xcalloc((size_t)n, sizeof *taken);
    int *found = xcalloc((size_t)n, sizeof *found), at = 0;
    while (at < n && g > 1) {
        int a = -1, b = -1, begin = at;
        for (int i = 0; i < n; i++)
            for (int k = i + 1; k < n; k++)
                if (!taken[i] && !taken[k] && (a < 0 || s[i * n + k] > s[a * n + b])) a = i, b = k;
        taken[a] = taken[b] = true;
        found[at++] = a, found[at++] = b;
        while (at < begin + g) {
            int best = -1;
            double most = 0;
            for (int i = 0; i < n; i++) {
                double sum = 0;
                if (taken[i]) continue;
                for (int k = begin; k < at; k++) sum += s[i * n + found[k]];
                if (best < 0 || sum > most) best = i, most = sum;
            }
            taken[best] = true;
            found[at++] = best;
        }
    }
    bool better = g > 1;
    for (int sweep = 0; better && sweep < 100; sweep++) {
        better = false;
        for (int i = 0; i < n; i++)
            for (int k = i + 1; k < n; k++) {
                if (i / g == k / g) continue;
                double before = align_within(s, n, found, g);
                int x = found[i];
                found[i] = found[k], found[k] = x;
                if (align_within(s, n, found, g) > before + 1e-12)
                    better = true;
                else
                    found[k] = found[i], found[i] = x;
            }
    }
    for (int i = 0; i < n; i++) order[i] = i;
    if (g > 1 && align_within(s, n, found, g) > align_within(s, n, order, g) + 1e-12) {
        int out = 0; /* groups by their least head, heads ascending */
        memset(taken, 0, (size_t)n * sizeof *taken);
        for (int h = 0; h < n; h++) {
            if (taken[h]) continue;
            int of = 0;
            while (found[of] != h) of++;
            for (int x = h; x < n; x++)
                for (int k = of / g * g; k < of / g * g + g; k++)
                    if (found[k] == x) order[out++] = x, taken[x] = true;
        }
    }
    free(found);
    free(taken);
}

static bool align_similarity(double *s, Gram g, const Parts *p, Err *e) {
    double *c = xcalloc((size_t)g.D * (size_t)g.D, sizeof *c), x;
    bool ok = true;
    for (int a = 0; ok && a < g.heads; a++)
        for (int b = a + 1; ok && b < g.heads; b++) {
            align_block(g, a, b, c);
            ok = align_fit(NULL, &x, c, p, e);
            double size = sqrt(align_trace(g, a) * align_trace(g, b));
            if (ok && size > 0) s[a * g.heads + b] += x / size, s[b * g.heads + a] += x / size;
        }
    free(c);
    return ok;
}

/* ---- bases ---------------------------------------------------------------------------------------------------------
 */

static bool align_rounds(double *R, Gram g, const Parts *p, const int *member, int n, Err *e) {
    size_t DD = (size_t)g.D * (size_t)g.D;
    double *c = xcalloc(DD, sizeof *c), *next = xcalloc(DD * (size_t)n, sizeof *next);
    bool ok = true;
    for (int i = 0; i < g.D; i++) R[(size_t)member[0] * DD + (size_t)(i * g.D + i)] = 1;
    for (int b = 1; ok && b < n; b++) {
        align_block(g, member[0], member[b], c);
        ok = align_fit(R + (size_t)member[b] * DD, NULL, c, p, e);
    }
    for (int round = 0; ok && n > 1 && round < ALIGN_ROUNDS; round++) {
        for (int a = 0; ok && a < n; a++) {
            memset(c, 0, DD * sizeof *c);
            for (int b = 0; b < n; b++) add_turned(g, R + (size_t)member[b] * DD, member[b], member[a], c);
            ok = align_fit(next + (size_t)a * DD, NULL, c, p, e);
        }
        for (int a = 0; ok && a < n; a++) memcpy(R + (size_t)member[a] * DD, next + (size_t)a * DD, DD * sizeof *R);
    }
    free(next);
    free(c);
    return ok;
}

/* mean |x_h| / |mean R_h x_h| over tokens. */
static double align_keep(const double *R, Gram g, const int *member, int n) {
    size_t DD = (size_t)g.D * (size_t)g.D;
    double *c = xcalloc(DD, sizeof *c), norms = 0, pooled = 0;
    for (int a = 0; a < n; a++) {
        norms += sqrt(align_trace(g, member[a])) / n;
        memset(c, 0, DD * sizeof *c);
        for (int b = 0; b < n; b++) add_turned(g, R + (size_t)member[b] * DD, member[b], member[a], c);
        for (size_t i = 0; i < DD; i++) pooled += c[i] * R[(size_t)member[a] * DD + i] / n / n;
    }
    free(c);
    return pooled > 0 ? norms / sqrt(pooled) : 1;
}

bool gauge_make(Gauge *x, int heads, int groups, int D, const double *k, const double *v, const Rope *turn, bool fixed,
                bool similar, Err *e) {
    size_t DD = (size_t)D * (size_t)D;
    int g = heads / groups;
    const Rope none = {0};
    Gram gk = {k, heads, D}, gv = {v, heads, D};
    Parts pk, pv;
    *x = (Gauge){.heads = heads, .groups = groups, .D = D};
    x->order = xcalloc((size_t)heads, sizeof *x->order);
    x->k = xcalloc((size_t)heads * DD, sizeof *x->k);
    x->v = xcalloc((size_t)heads * DD, sizeof *x->v);
    x->keep_k = xcalloc((size_t)groups, sizeof *x->keep_k);
    x->keep_v = xcalloc((size_t)groups, sizeof *x->keep_v);
    parts_make(&pk, D, turn);
    parts_make(&pv, D, &none);
    double *s = xcalloc((size_t)heads * (size_t)heads, sizeof *s);
    bool ok = !similar || g == 1 || (align_similarity(s, gk, &pk, e) && align_similarity(s, gv, &pv, e));
    if (ok) align_group(s, heads, similar ? g : 1, x->order);
    for (int h = 0; fixed && h < heads; h++)
        for (int i = 0; i < D; i++) x->k[(size_t)h * DD + (size_t)(i * D + i)] = 1;
    for (int i = 0; ok && i < groups; i++) {
        const int *member = x->order + i * g;
        ok = (fixed || align_rounds(x->k, gk, &pk, member, g, e)) && align_rounds(x->v, gv, &pv, member, g, e);
        x->keep_k[i] = fixed ? 1 : align_keep(x->k, gk, member, g);
        x->keep_v[i] = align_keep(x->v, gv, member, g);
    }
    free(s);
    parts_free(&pk);
    parts_free(&pv);
    if (!ok) gauge_free(x);
    return ok;
}

void gauge_free(Gauge *x) {
    free(x->order);
    free(x->k);
    free(x->v);
    free(x->keep_k);
    free(x->keep_v);
    *x = (Gauge){0};
}
