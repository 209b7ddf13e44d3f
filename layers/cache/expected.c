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
/* Cosine and sine of each pair at the positions of the n newest queries: the same for all heads. The caller frees
 * it. */
static double *turns_back(const Choice *c, int n) {
    const int pairs = c->turn ? c->turn->n / 2 : 0;
    double *turn = xcalloc(2 * (size_t)n * (size_t)pairs + 1, sizeof *turn);
    for (int q = 0; q < n; q++)
        for (int i = 0; i < pairs; i++) {
            const double angle = (c->next - n + q) * c->turn->f[i];
            turn[2 * (q * pairs + i)] = cos(angle), turn[2 * (q * pairs + i) + 1] = -sin(angle);
        }
    return turn;
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
/* By a cosine and a sine for each pair. */
static void turn_by(const Rope *t, const double *turn, double *x) {
    for (int i = 0; t && i < t->n / 2; i++) turn_pair(t, i, turn[2 * i], turn[2 * i + 1], x);
}
/* Queries of which moments are made: the newest, but for those of sinks, and at least one. */
static int expected_newest(const Choice *c) {
    return c->queries - imin(imax(0, c->p->sinks - (c->next - c->queries)), c->queries - 1);
}
/* Mean (D) of a head's n newest queries, turned ahead, and a matrix U (D,D) of zeros below its diagonal for which k'Uk
 * is half of k'Ck: of the covariance C, each product of two channels once. */
static void expected_queries(const Choice *c, int head, int n, const double *back, const double *ahead, real *mean_out,
                             real *upper_out) {
    const int D = c->kdim, pairs = c->turn ? c->turn->n / 2 : 0;
    double *x = xcalloc((size_t)(n + 1 + D) * (size_t)D, sizeof *x), *mean = x + n * D, *upper = mean + D;
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < D; d++) x[i * D + d] = (double)policy_query(c, c->queries - n + i, head)[d];
        turn_by(c->turn, back + 2 * i * pairs, x + i * D);
        for (int d = 0; d < D; d++) mean[d] += x[i * D + d] / n;
    }
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < D; d++) x[i * D + d] -= mean[d];
        turn_by(c->turn, ahead, x + i * D);
        for (int a = 0; a < D; a++) {
            const double xa = x[i * D + a] / n;
            upper[a * D + a] += xa * x[i * D + a] / 2;
#pragma omp simd
            for (int b = a + 1; b < D; b++) upper[a * D + b] += xa * x[i * D + b];
        }
    }
    turn_by(c->turn, ahead, mean);
    for (int d = 0; d < D; d++) mean_out[d] = (real)mean[d];
    for (int d = 0; d < D * D; d++) upper_out[d] = (real)upper[d];
    free(x);
}
/* e[j] = k'mean + k'U k of n keys k: a product of keys and a matrix, ROWS by VECS vectors of it in registers. */
static void expected_scores(const real *mean, const real *upper, const real *keys, int n, int D, double *e) {
    enum { EACH = 16 / sizeof(real), ROWS = 4, VECS = 2, STEP = VECS * EACH };
    typedef real Part __attribute__((vector_size(16), aligned(sizeof(real)), may_alias));
    for (int j = 0; j < n; j += ROWS) {
        const real *k[ROWS];
        int a = 0;
        for (int r = 0; r < ROWS; r++) k[r] = keys + (size_t)imin(j + r, n - 1) * (size_t)D; /* the last again */
        double sum[ROWS] = {0};
        Part all[ROWS] = {{0}};
        for (; a + STEP <= D; a += STEP) {
            Part t[ROWS][VECS];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
                for (int v = 0; v < VECS; v++) t[r][v] = *(const Part *)(mean + a + v * EACH);
            for (int b = 0; b < a + STEP; b++)
#pragma GCC unroll 2
                for (int v = 0; v < VECS; v++) {
                    const Part of = *(const Part *)(upper + b * D + a + v * EACH);
#pragma GCC unroll 4
                    for (int r = 0; r < ROWS; r++) t[r][v] += k[r][b] * of;
                }
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
                for (int v = 0; v < VECS; v++) all[r] += t[r][v] * *(const Part *)(k[r] + a + v * EACH);
        }
        for (; a < D; a++)
            for (int r = 0; r < ROWS; r++) {
                real t = mean[a];
                for (int b = 0; b <= a; b++) t += k[r][b] * upper[b * D + a];
                sum[r] += (double)t * (double)k[r][a];
            }
        for (int r = 0; r < ROWS && j + r < n; r++) {
            for (int i = 0; i < EACH; i++) sum[r] += (double)all[r][i];
            e[j + r] = sum[r];
        }
    }
}
/* The norms of a lane's values, for all of its heads. */
static void expected_norms(const Choice *c, const PolicyLane *l, double *norm) {
    for (int j = 0; j < l->n; j++) {
        const real *v = l->value + (size_t)j * (size_t)c->vdim;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int d = 0; d < c->vdim; d++) sum += (double)v[d] * (double)v[d];
        norm[j] = sqrt(sum);
    }
}
static void expected_head(const Choice *c, PolicyLane *l, const real *mean, const real *upper, const double *norm,
                          double *e) {
    const int group = c->heads / c->lanes;
    double most = -INFINITY, sum = 0;
    expected_scores(mean, upper, l->key, l->n, c->kdim, e);
    for (int j = 0; j < l->n; j++)
        if (l->pos[j] >= c->p->sinks) most = fmax(most, e[j]);
    for (int j = 0; j < l->n; j++) sum += e[j] = l->pos[j] < c->p->sinks ? 0 : exp(e[j] - most);
    for (int j = 0; j < l->n && sum > 0; j++) l->score[j] += (real)(e[j] / sum / group * norm[j]);
}
/* What all lanes need. */
typedef struct {
    int n; /* newest queries */
    const double *back, *ahead;
} Turns;
static void expected_lane(Choice *c, int h, const void *with) {
    const Turns *t = with;
    const int group = c->heads / c->lanes, D = c->kdim;
    PolicyLane *l = &c->lane[h];
    real *mean = xcalloc((size_t)D * (size_t)(D + 1), sizeof *mean), *upper = mean + D;
    double *norm = xcalloc(2 * (size_t)l->n + 1, sizeof *norm);
    expected_norms(c, l, norm);
    for (int g = 0; g < group; g++) {
        expected_queries(c, h * group + g, t->n, t->back, t->ahead, mean, upper);
        expected_head(c, l, mean, upper, norm, norm + l->n);
    }
    free(norm), free(mean);
}
static void expected_select(Choice *c) {
    if (!c->queries) return;
    const int n = expected_newest(c);
    double *back = turns_back(c, n), *ahead = turns_ahead(c);
    policy_each_lane(c, expected_lane, &(Turns){n, back, ahead});
    free(back), free(ahead);
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
