/* predict.c: see predict.h. */
#include "predict.h"
#include "basis_file.h"
#include "layers/cache/aqua.h"
#include "model/basis.h"

/* Added to each variance of what is predicted from, as a share of their mean: inputs may depend on each other. */
static const double ridge = 1e-4;

typedef struct Predictor {
    float *weight[2], *mean[2]; /* (out,inputs), (out) of keys and values; weight NULL: no inputs */
    int inputs[2];
    double left[2];
} Predictor;

static int predict_width(const Prediction *p, int l, bool value) {
    const KvShape *s = &p->s->model->layer[l].rows;
    return s->lanes * (value ? s->vdim : s->kdim);
}
bool prediction_open(Prediction *p, const Session *s, const RowCodec *codec, size_t tokens, Err *e) {
    const Model *m = s->model;
    *p = (Prediction){.s = s, .codec = *codec, .L = m->L, .layer = -1, .below = -1, .room = tokens};
    if (!basis_suits(m, codec->name, e) || !predictor_suits(m, codec->name, e)) return false;
    p->fit = xcalloc((size_t)m->L, sizeof *p->fit);
    for (int l = 0; l < m->L && !p->rows[0]; l++)
        for (int i = 0; i < 2 && basis_layer(m, l); i++) {
            const size_t n = tokens * (size_t)predict_width(p, l, i);
            p->rows[i] = xcalloc(n, sizeof(real)), p->beneath[i] = xcalloc(n, sizeof(real));
        }
    return true;
}
void prediction_close(Prediction *p) {
    for (int i = 0; i < 2; i++) {
        free(p->rows[i]), free(p->beneath[i]);
        for (int l = 0; p->fit && l < p->L; l++) free(p->fit[l].weight[i]), free(p->fit[l].mean[i]);
    }
    free(p->fit);
    *p = (Prediction){0};
}
bool prediction_next(Prediction *p) {
    p->below = p->layer;
    for (p->layer++; p->layer < p->L && !basis_layer(p->s->model, p->layer);) p->layer++;
    p->n = 0;
    return p->layer < p->L;
}
bool prediction_read(Prediction *p, Session *s, const int *tok, int n, Err *e) {
    const size_t K = (size_t)predict_width(p, p->layer, false), V = (size_t)predict_width(p, p->layer, true);
    CHECK(p->n + (size_t)n <= p->room, "%zu tokens, and %d more", p->n, n);
    session_reset(s, 0);
    if (!session_extend(s, 1, &(Feed){0, n, tok}, WANT_LAST, ABSENT, e)) return false;
    const int got = kv_rows_turned_back(kv_slot(&s->cache, p->layer), 0, p->rows[0] + p->n * K, p->rows[1] + p->n * V);
    CHECK(got == n, "%d rows of %d tokens", got, n);
    p->n += (size_t)n;
    return true;
}

/* ---- least squares -----------------------------------------------------------------------------------------------*/

/* n rows of `width` elements. */
typedef struct {
    const real *x;
    size_t n, width;
} Rows;
static void rows_mean(Rows r, double *mean) {
    for (size_t k = 0; k < r.width; k++) mean[k] = 0;
    for (size_t j = 0; j < r.n; j++)
        for (size_t k = 0; k < r.width; k++) mean[k] += (double)r.x[j * r.width + k];
    for (size_t k = 0; k < r.width; k++) mean[k] /= (double)r.n;
}
enum { COVARY_ROWS = 16 }; /* of the result, which stay in the cache while rows are read */
/* to (a.width, b.width) becomes the mean over rows of the products of their distances from the means. Of the upper
 * triangle alone where a is b. The order of a sum does not depend on the threads. */
static void rows_covary(double *to, Rows a, const double *ma, Rows b, const double *mb, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (size_t first = 0; first < a.width; first += COVARY_ROWS) {
        const size_t from = a.x == b.x ? first : 0, end = zmin(a.width, first + COVARY_ROWS);
        for (size_t at = first * b.width; at < end * b.width; at++) to[at] = 0;
        for (size_t j = 0; j < a.n; j++)
            for (size_t i = first; i < end; i++) {
                const double x = (double)a.x[j * a.width + i] - ma[i];
                const real *y = b.x + j * b.width;
                double *sum = to + i * b.width;
                for (size_t k = from; k < b.width; k++) sum[k] += x * ((double)y[k] - mb[k]);
            }
        for (size_t at = first * b.width; at < end * b.width; at++) to[at] /= (double)a.n;
    }
}
/* a (n,n), of which the upper triangle is read, becomes the factor U of U^T U; an element without a pivot has no part
 * in it. Golub and Van Loan, Matrix Computations, section 4.2. */
static void predict_factor(double *a, size_t n, int threads) {
    for (size_t i = 0; i < n; i++) {
        const double pivot = a[i * n + i] > 0 ? sqrt(a[i * n + i]) : 0;
        a[i * n + i] = pivot;
        for (size_t k = i + 1; k < n; k++) a[i * n + k] = pivot > 0 ? a[i * n + k] / pivot : 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (n - i > 64)
        for (size_t j = i + 1; j < n; j++) {
            const double by = a[i * n + j];
            for (size_t k = j; k < n; k++) a[j * n + k] -= by * a[i * n + k];
        }
    }
}
/* U^T U x = b for the m columns of b (n,m), in place. */
static void predict_solve(const double *u, double *b, size_t n, size_t m) {
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < m; c++) {
            double *x = b + c;
            for (size_t j = 0; j < i; j++) x[i * m] -= u[j * n + i] * x[j * m];
            x[i * m] = u[i * n + i] > 0 ? x[i * m] / u[i * n + i] : 0;
        }
    for (size_t i = n; i-- > 0;)
        for (size_t c = 0; c < m; c++) {
            double *x = b + c;
            for (size_t j = i + 1; j < n; j++) x[i * m] -= u[i * n + j] * x[j * m];
            x[i * m] = u[i * n + i] > 0 ? x[i * m] / u[i * n + i] : 0;
        }
}
/* The matrix and the mean that predict y from x. */
static void predict_least_squares(Predictor *p, bool value, Rows x, Rows y, int threads) {
    const size_t I = x.width, O = y.width;
    double *mx = xcalloc(I + 1, sizeof *mx), *my = xcalloc(O, sizeof *my), *a = xcalloc(I * I + 1, sizeof *a),
           *b = xcalloc(I * O + 1, sizeof *b), trace = 0;
    rows_mean(y, my);
    if (I) {
        rows_mean(x, mx);
        rows_covary(a, x, mx, x, mx, threads);
        rows_covary(b, x, mx, y, my, threads);
        for (size_t i = 0; i < I; i++) trace += a[i * I + i];
        for (size_t i = 0; i < I; i++) a[i * I + i] += ridge * trace / (double)I;
        predict_factor(a, I, threads);
        predict_solve(a, b, I, O);
    }
    p->inputs[value] = (int)I;
    p->weight[value] = I ? xcalloc(O * I, sizeof(float)) : NULL;
    p->mean[value] = xcalloc(O, sizeof(float));
    for (size_t o = 0; o < O; o++) {
        double mean = my[o];
        for (size_t i = 0; i < I; i++) {
            p->weight[value][o * I + i] = (float)b[i * O + o];
            mean -= (double)p->weight[value][o * I + i] * mx[i];
        }
        p->mean[value][o] = (float)mean;
    }
    free(mx), free(my), free(a), free(b);
}
/* y becomes what it is read back as, the prediction plus what the codec leaves of the residual; returns the share of
 * y's squared distance from its mean that the residual has. */
static double predict_residuals(const Prediction *p, const Predictor *f, bool value, Rows x, real *y, int threads) {
    const int width = predict_width(p, p->layer, value), lanes = p->s->model->layer[p->layer].rows.lanes;
    const size_t O = (size_t)width, I = x.width, n = x.n;
    double *mean = xcalloc(O, sizeof *mean), *off = xcalloc(n, sizeof *off), *all = xcalloc(n, sizeof *all), left = 0,
           whole = 0;
    rows_mean((Rows){y, n, O}, mean);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t j = 0; j < n; j++) {
        real made[BASIS_WIDEST], code[BASIS_WIDEST];
        const size_t w = O / (size_t)lanes;
        for (size_t h = 0; h < (size_t)lanes; h++) {
            real *row = y + j * O + h * w;
            for (size_t k = 0; k < w; k++) {
                const size_t o = h * w + k;
                double sum = (double)f->mean[value][o];
                for (size_t i = 0; i < I; i++) sum += (double)f->weight[value][o * I + i] * (double)x.x[j * I + i];
                made[k] = (real)sum;
                all[j] += pow((double)row[k] - mean[o], 2);
                row[k] -= made[k];
                off[j] += (double)row[k] * (double)row[k];
            }
            aqua_recode(&p->codec, row, code, (int)w);
            for (size_t k = 0; k < w; k++) row[k] += made[k];
        }
    }
    for (size_t j = 0; j < n; j++) left += off[j], whole += all[j];
    free(mean), free(off), free(all);
    return whole > 0 ? left / whole : whole == 0 ? 1 : NAN;
}
/* Rows side by side, of widths that may be 0. */
static real *rows_joined(Rows a, Rows b) {
    const size_t w = a.width + b.width;
    real *to = xcalloc(a.n * w + 1, sizeof *to);
    for (size_t j = 0; j < a.n; j++) {
        memcpy(to + j * w, a.x + j * a.width, a.width * sizeof *to);
        memcpy(to + j * w + a.width, b.x + j * b.width, b.width * sizeof *to);
    }
    return to;
}
bool prediction_fit(Prediction *p, Err *e) {
    Predictor *f = &p->fit[p->layer];
    const int threads = device_threads(p->s->model->dev);
    const size_t K = (size_t)predict_width(p, p->layer, false), V = (size_t)predict_width(p, p->layer, true);
    const bool below = p->below >= 0;
    CHECK(p->n, "no rows of layer %d", p->layer);
    for (int i = 0; i < 2; i++) {
        const Rows keys = {i ? p->rows[0] : p->beneath[0], p->n, i || below ? K : 0},
                   values = {p->beneath[1], p->n, i && below ? V : 0};
        real *x = rows_joined(keys, values);
        const Rows in = {x, p->n, keys.width + values.width};
        predict_least_squares(f, i, in, (Rows){p->rows[i], p->n, i ? V : K}, threads);
        f->left[i] = predict_residuals(p, f, i, in, p->rows[i], threads);
        free(x);
        if (!isfinite(f->left[i]))
            return err_runtime(e, "calibrate: keys or values of layer %d are not finite: its weights are damaged",
                               p->layer);
    }
    for (int i = 0; i < 2; i++) {
        real *swap = p->rows[i];
        p->rows[i] = p->beneath[i], p->beneath[i] = swap;
    }
    p->tokens = p->n;
    return true;
}
double prediction_left(const Prediction *p, int l, bool value) { return p->fit[l].left[value]; }

bool prediction_write(const Prediction *p, uint64_t model, const char *path, Err *e) {
    BasisFile f = basis_file(PREDICTOR_TENSORS * p->L);
    char settings[CODEC_TEXT_MAX], name[BASIS_NAME];
    bool ok = true;
    for (int l = 0; l < p->L; l++)
        for (int i = 0; i < 2 && basis_layer(p->s->model, l); i++) {
            const Predictor *x = &p->fit[l];
            const size_t O = (size_t)predict_width(p, l, i), I = (size_t)x->inputs[i];
            basis_name(name, l, i, "predictor");
            if (I)
                memcpy(basis_file_add(&f, name, F32, 2, (int[]){(int)O, (int)I}), x->weight[i], O * I * sizeof(float));
            basis_name(name, l, i, "mean");
            memcpy(basis_file_add(&f, name, F32, 1, (int[]){(int)O}), x->mean[i], O * sizeof(float));
            for (size_t k = 0; k < O * I && ok; k++) ok = isfinite(x->weight[i][k]);
            for (size_t k = 0; k < O && ok; k++) ok = isfinite(x->mean[i][k]);
        }
    if (!ok) err_runtime(e, "calibrate: keys or values of this model are not finite: its weights are damaged");
    codec_settings(&p->codec, ',', settings);
    ok = ok && basis_file_write(&f, path, PREDICTOR_FORMAT, model, p->tokens, settings, e);
    basis_file_free(&f);
    return ok;
}
