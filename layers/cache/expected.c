/* expected.c: the attention that later queries are expected to pay. Queries before their rotation are taken as normal,
 * with the mean and covariance of the newest ones, and turned by the mean rotation of the next `ahead` positions: of
 * mean m and covariance C, E exp(q.k) = exp(m.k + k'Ck / 2). A row's score is that, as a share of all rows but the
 * sinks, times the norm of its value. Source: Devoto et al., "Expected Attention: KV Cache Compression by Estimating
 * Attention from Future Queries Distribution", arXiv:2510.00636. */
#include "policy.h"
#include "ops/rope.h"

/* Pair i of the rotated elements of x turns by the matrix (c -s; s c). */
static void turn_pair(const Rope *t, int i, double c, double s, double *x) {
    const int a = t->at + (t->interleaved ? 2 * i : i), b = t->interleaved ? a + 1 : a + t->n / 2;
    const double u = x[a], v = x[b];
    x[a] = c * u - s * v, x[b] = s * u + c * v;
}
static void turn_back(const Rope *t, int pos, double *x) {
    for (int i = 0; t && i < t->n / 2; i++) turn_pair(t, i, cos(pos * t->f[i]), -sin(pos * t->f[i]), x);
}
/* The mean rotation of the next positions: cosine and sine of each pair. The caller frees it. */
static double *turns_ahead(const Choice *c) {
    const int pairs = c->turn ? c->turn->n / 2 : 0, n = c->p->ahead;
    double *mean = xcalloc(2 * (size_t)pairs + 1, sizeof *mean);
    for (int i = 0; i < pairs; i++)
        for (int p = c->next; p < c->next + n; p++)
            mean[2 * i] += cos(p * c->turn->f[i]) / n, mean[2 * i + 1] += sin(p * c->turn->f[i]) / n;
    return mean;
}
static void turn_ahead(const Rope *t, const double *mean, double *x) {
    for (int i = 0; t && i < t->n / 2; i++) turn_pair(t, i, mean[2 * i], mean[2 * i + 1], x);
}
/* Mean (D) and half the covariance (D,D) of a head's queries, turned ahead. */
static void expected_queries(const Choice *c, int head, const double *ahead, double *mean, double *half) {
    const int D = c->kdim, from = imin(imax(0, c->p->sinks - (c->next - c->queries)), c->queries - 1),
              n = c->queries - from;
    double *x = xcalloc((size_t)n * (size_t)D, sizeof *x);
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < D; d++) x[i * D + d] = (double)policy_query(c, from + i, head)[d];
        turn_back(c->turn, c->next - n + i, x + i * D);
        for (int d = 0; d < D; d++) mean[d] += x[i * D + d] / n;
    }
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < D; d++) x[i * D + d] -= mean[d];
        turn_ahead(c->turn, ahead, x + i * D);
        for (int a = 0; a < D; a++) {
            const double xa = x[i * D + a] / (2 * n);
            for (int b = 0; b < D; b++) half[a * D + b] += xa * x[i * D + b];
        }
    }
    turn_ahead(c->turn, ahead, mean);
    free(x);
}
static void expected_head(const Choice *c, PolicyLane *l, int head, const double *ahead) {
    const int D = c->kdim, group = c->heads / c->lanes;
    double *mean = xcalloc((size_t)D, sizeof *mean), *half = xcalloc((size_t)D * (size_t)D, sizeof *half),
           *row = xcalloc((size_t)D, sizeof *row), *e = xcalloc((size_t)l->n + 1, sizeof *e), most = -INFINITY, sum = 0;
    expected_queries(c, head, ahead, mean, half);
    for (int j = 0; j < l->n; j++) {
        const real *k = l->key + j * D;
        memcpy(row, mean, (size_t)D * sizeof *row);
        for (int b = 0; b < D; b++) { /* symmetric: its rows are its columns, and no sum waits for another */
            const double *of = half + b * D, kb = (double)k[b];
            for (int a = 0; a < D; a++) row[a] += of[a] * kb;
        }
        for (int a = 0; a < D; a++) e[j] += row[a] * (double)k[a];
        if (l->pos[j] >= c->p->sinks) most = fmax(most, e[j]);
    }
    for (int j = 0; j < l->n; j++) sum += e[j] = l->pos[j] < c->p->sinks ? 0 : exp(e[j] - most);
    for (int j = 0; j < l->n; j++) {
        double norm = 0;
        for (int d = 0; d < c->vdim; d++) norm += pow((double)l->value[j * c->vdim + d], 2);
        if (sum > 0) l->score[j] += (real)(e[j] / sum / group * sqrt(norm));
    }
    free(mean), free(half), free(row), free(e);
}
static void expected_select(Choice *c) {
    double *ahead = turns_ahead(c);
    for (int h = 0; h < c->heads && c->queries; h++) expected_head(c, &c->lane[h * c->lanes / c->heads], h, ahead);
    free(ahead);
}
static const Key keys[] = {POLICY_BUDGET,
                           POLICY_WINDOW("1"),
                           POLICY_SINKS("4"),
                           POLICY_EVERY("0", 0),
                           POLICY_QUERIES("512"),
                           POLICY_KEY(ahead, KEY_INT, "512", 1, 1e6,
                                      "later positions whose mean rotation queries are turned by"),
                           {0}};
const Policy policy_expected = {.name = "expected",
                                .meaning = "the rows that later queries are expected to look at, by earlier queries",
                                .source = "arXiv:2510.00636 (Expected Attention)",
                                .lacks = "moments of the newest `queries` queries, not of all; not latents (mla)",
                                .keys = keys,
                                .ask = {.whom = ASK_QUERIES},
                                .needs = NEED_KEYS | NEED_VALUES | NEED_QUERIES | NEED_TURNS,
                                .select = expected_select};
