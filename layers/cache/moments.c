/* moments.c: second moments of the rows of a cache, and their eigenvectors. */
#include "basis.h"
#include "slot.h"

void kv_moments_open(KvMoments *m, const Slot *s, int heads) {
    const KvShape *k = &s->t.s;
    CHECK(k->lanes % heads == 0, "%d lanes in groups of %d", k->lanes, heads);
    *m = (KvMoments){.groups = k->lanes / heads, .heads = heads, .width = {heads * k->kdim, heads * k->vdim}};
    m->rows = xcalloc((size_t)m->groups + 1, sizeof *m->rows);
    for (int i = 0; i < 2; i++)
        m->sum[i] = xcalloc((size_t)m->groups * (size_t)m->width[i] * (size_t)m->width[i] + 1, sizeof *m->sum[i]);
}
void kv_moments_free(KvMoments *m) {
    free(m->rows);
    for (int i = 0; i < 2; i++) free(m->sum[i]);
    *m = (KvMoments){0};
}
/* One lane's rows at positions from `from` on, keys turned back: x (rows,.), each `ld` after the one before. Returns
 * how many. */
static int moments_rows(const Slot *s, const RowBasis *turn, int lane, bool value, int from, double *x, size_t ld) {
    const KvShape *k = &s->t.s;
    const int lo = s->t.lo[lane], s0 = s->t.s0[lane], sinks = imax(s0, imin(s0 + k->sinks, lo)),
              width = value ? k->vdim : k->kdim;
    const size_t bytes = (size_t)width * sizeof(real);
    real *part = xcalloc((size_t)width, sizeof *part);
    int n = 0;
    for (int row = s0 < sinks ? s0 : lo; row < s->t.hi[lane]; row = row + 1 == sinks ? lo : row + 1) {
        const size_t place = slot_place_of(s, lane, row);
        const int pos = s->t.pos[place];
        if (pos < from) continue;
        slot_read(s, value ? slot_value(s, place) : slot_key(s, place), part, bytes);
        if (!value) basis_turn(turn, part, pos, -1);
        for (int i = 0; i < width; i++) x[(size_t)n * ld + (size_t)i] = (double)part[i];
        n++;
    }
    free(part);
    return n;
}
int kv_rows_turned_back(const Slot *s, int seq, real *keys, real *values) {
    const KvShape *k = &s->t.s;
    RowBasis turn = {0};
    const int first = seq * k->lanes, n = s->t.hi[first] - s->t.lo[first];
    CHECK(rows_as(k) == ROWS_REAL && !s->t.nblocks && !k->alias && !k->window, "rows in %s", k->codec->name);
    basis_turns(&turn, s->turn);
    for (int h = 0; h < k->lanes; h++)
        for (int j = 0; j < n; j++) {
            const size_t place = slot_place_of(s, first + h, s->t.lo[first] + j), at = (size_t)(j * k->lanes + h);
            real *key = keys + at * (size_t)k->kdim;
            slot_read(s, slot_key(s, place), key, (size_t)k->kdim * sizeof(real));
            slot_read(s, slot_value(s, place), values + at * (size_t)k->vdim, (size_t)k->vdim * sizeof(real));
            basis_turn(&turn, key, s->t.pos[place], -1);
        }
    basis_free(&turn);
    return n;
}
/* Row a of the upper triangle of the sum of x x^T, in the order of the rows, whatever the threads. */
static void moments_sum(double *sum, const double *x, int n, int width, int threads) {
    const size_t w = (size_t)width;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int a = 0; a < width; a++)
        for (size_t j = 0; j < (size_t)n; j++)
            for (size_t b = (size_t)a; b < w; b++) sum[(size_t)a * w + b] += x[j * w + (size_t)a] * x[j * w + b];
    for (size_t a = 0; a < w; a++)
        for (size_t b = 0; b < a; b++) sum[a * w + b] = sum[b * w + a];
}
void kv_moments_add(KvMoments *m, const Slot *s, int seq, int from, int threads) {
    const KvShape *k = &s->t.s;
    RowBasis turn = {0};
    CHECK(rows_as(k) == ROWS_REAL && !s->t.nblocks && !k->alias, "moments of rows in %s", k->codec->name);
    basis_turns(&turn, s->turn);
    for (int g = 0; g < m->groups; g++)
        for (int i = 0; i < 2; i++) {
            const int first = seq * k->lanes + g * m->heads, part = i ? k->vdim : k->kdim;
            const size_t w = (size_t)m->width[i];
            const int most = s->t.hi[first] - s->t.s0[first];
            double *x = xcalloc((size_t)most * w + 1, sizeof *x);
            int n = 0;
            for (int h = 0; h < m->heads; h++) { /* who has the slot made sure that all lanes have the same rows */
                const int rows = moments_rows(s, &turn, first + h, i, from, x + h * part, w);
                CHECK(!h || rows == n, "%d and %d rows of lanes of a group", n, rows);
                n = rows;
            }
            moments_sum(m->sum[i] + (size_t)g * w * w, x, n, m->width[i], threads);
            if (!i) m->rows[g] += (size_t)n;
            free(x);
        }
    basis_free(&turn);
}

/* ---- eigenvectors: cyclic Jacobi rotations -----------------------------------------------------------------------*/

enum { SWEEPS_MOST = 60 };
static double eigen_off(int n, const double *a) {
    double sum = 0;
    for (int p = 0; p < n; p++)
        for (int q = p + 1; q < n; q++) sum += a[p * n + q] * a[p * n + q];
    return sum;
}
/* Columns p and q of x (rows of it, `step` 1) become c x_p - s x_q and s x_p + c x_q. */
static void eigen_mix(double *p, double *q, int n, int step, double c, double s) {
    for (int k = 0; k < n; k++, p += step, q += step) {
        const double x = *p, y = *q;
        *p = c * x - s * y, *q = s * x + c * y;
    }
}
/* Golub and Van Loan, Matrix Computations, section 8.5: the rotation that makes a_pq zero. */
static void eigen_rotate(int n, double *a, double *v, int p, int q) {
    const double apq = a[p * n + q];
    if (apq == 0) return;
    const double tau = (a[q * n + q] - a[p * n + p]) / (2 * apq), t = (tau >= 0 ? 1 : -1) / (fabs(tau) + hypot(1, tau)),
                 c = 1 / hypot(1, t), s = t * c;
    eigen_mix(a + p, a + q, n, n, c, s);
    eigen_mix(a + p * n, a + q * n, n, 1, c, s);
    eigen_mix(v + p * n, v + q * n, n, 1, c, s);
    a[p * n + q] = a[q * n + p] = 0;
}
void basis_eigen(int n, double *a, double *v, double *value) {
    const size_t w = (size_t)n;
    double total = 0;
    for (size_t i = 0; i < w * w; i++) total += a[i] * a[i], v[i] = i % (w + 1) == 0;
    for (int sweep = 0; sweep < SWEEPS_MOST && eigen_off(n, a) > total * 1e-32; sweep++)
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) eigen_rotate(n, a, v, p, q);
    for (int i = 0; i < n; i++) value[i] = a[i * n + i];
    for (int i = 0; i < n; i++) { /* by selection: directions move with their values */
        int most = i, largest = 0;
        for (int j = i + 1; j < n; j++)
            if (value[j] > value[most]) most = j;
        const double other = value[i];
        value[i] = value[most], value[most] = other;
        for (int k = 0; k < n; k++) {
            const double x = v[i * n + k];
            v[i * n + k] = v[most * n + k], v[most * n + k] = x;
        }
        for (int k = 1; k < n; k++)
            if (fabs(v[i * n + k]) > fabs(v[i * n + largest])) largest = k;
        const double sign = v[i * n + largest] < 0 ? -1 : 1;
        for (int k = 0; k < n; k++) v[i * n + k] *= sign;
    }
}
