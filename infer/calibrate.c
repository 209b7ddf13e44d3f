#include "calibrate.h"
#include "basis_file.h"

/* Whether the lanes of layer l divide into groups of `heads`. */
static bool calibration_groups(const KvShape *k, int l, int heads, Err *e) {
    if (k->lanes % heads)
        return err_input(e, "--heads: layer %d has %d key/value heads; expected a divisor of that, got %d", l, k->lanes,
                         heads);
    return heads == 1 || (long)heads * imax(k->kdim, k->vdim) <= BASIS_WIDEST ||
           err_input(e, "--heads: %d heads of layer %d have %ld elements together; expected at most %d", heads, l,
                     (long)heads * imax(k->kdim, k->vdim), BASIS_WIDEST);
}
bool calibration_open(Calibration *c, const Session *s, int heads, Err *e) {
    const Model *m = s->model;
    bool any = false;
    *c = (Calibration){0};
    for (int l = 0; l < m->L; l++) {
        const KvShape *k = &m->layer[l].rows;
        if (!basis_layer(m, l)) continue;
        any = true;
        if (k->alias || k->evicts || k->carry_rows)
            return err_input(e, "calibrate: layer %d %s; --cache-dtype palu has nothing to store of such rows", l,
                             k->alias ? "stores latents, which have a low rank already" : "merges or evicts rows");
        if (!calibration_groups(k, l, heads, e)) return false;
    }
    if (!any) return err_input(e, "calibrate: no layer of this model stores rows");
    c->L = m->L, c->layer = xcalloc((size_t)m->L, sizeof *c->layer);
    for (int l = 0; l < m->L; l++)
        if (basis_layer(m, l)) kv_moments_open(&c->layer[l], kv_slot(&s->cache, l), heads);
    return true;
}
void calibration_free(Calibration *c) {
    for (int l = 0; l < c->L; l++) kv_moments_free(&c->layer[l]);
    free(c->layer);
    *c = (Calibration){0};
}
/* Tokens of a pass after which every layer still has their rows. */
static int calibration_piece(const Session *s) {
    int n = s->opts.chunk ? s->opts.chunk : CHUNK_ROWS;
    for (int l = 0; l < s->model->L; l++) {
        const int window = basis_layer(s->model, l) ? s->model->layer[l].rows.window : 0;
        if (window) n = imin(n, imax(1, window - 1));
    }
    return n;
}
bool calibration_read(Calibration *c, Session *s, const int *tok, int n, Err *e) {
    const Model *m = s->model;
    const int piece = calibration_piece(s), threads = device_threads(m->dev);
    session_reset(s, 0);
    for (int at = 0, now; at < n; at += now) {
        now = imin(piece, n - at);
        if (!session_extend(s, 1, &(Feed){0, now, tok + at}, WANT_LAST, ABSENT, e)) return false;
        for (int l = 0; l < m->L; l++)
            if (basis_layer(m, l)) kv_moments_add(&c->layer[l], kv_slot(&s->cache, l), 0, at, threads);
        c->tokens += (size_t)now;
    }
    return true;
}
void calibration_part(const Calibration *c, int layer, bool value, double *basis, double *eigenvalues) {
    const KvMoments *x = &c->layer[layer];
    const size_t w = (size_t)x->width[value], one = w * w;
    double *a = xcalloc(one + 1, sizeof *a);
    for (size_t h = 0; h < (size_t)x->groups; h++) {
        for (size_t i = 0; i < one; i++) a[i] = x->sum[value][h * one + i] / (double)zmax(1, x->rows[h]);
        basis_eigen((int)w, a, basis + h * one, eigenvalues + h * w);
    }
    free(a);
}

static void parts_layer(BasisFile *p, const Calibration *c, int l, double *kept) {
    const KvMoments *x = &c->layer[l];
    for (int i = 0; i < 2; i++) {
        char name[BASIS_NAME];
        const int w = x->width[i];
        basis_name(name, l, i, "basis");
        double *basis = basis_file_add(p, name, F64, 3, (int[]){x->groups, w, w});
        basis_name(name, l, i, "eigenvalues");
        double *values = basis_file_add(p, name, F64, 2, (int[]){x->groups, w});
        calibration_part(c, l, i, basis, values);
        for (int q = 0; q < 3 && kept; q++) {
            double all = 0, some = 0;
            for (int h = 0; h < x->groups; h++)
                for (int k = 0; k < w; k++) {
                    all += values[h * w + k];
                    if (k < imax(1, ((q + 1) * w + 2) / 4)) some += values[h * w + k];
                }
            kept[(2 * l + i) * 3 + q] = all > 0 ? some / all : 1;
        }
    }
}
bool calibration_write(const Calibration *c, const Model *m, uint64_t model, const char *path, double *kept, Err *e) {
    BasisFile p = basis_file(BASIS_TENSORS * c->L);
    bool ok = true;
    for (int l = 0; l < c->L; l++)
        if (basis_layer(m, l)) parts_layer(&p, c, l, kept);
    for (int i = 0; i < p.n && ok; i++)
        for (size_t k = 0; k < tensor_count(p.list.item[i].t) && ok; k++) ok = isfinite(((double *)p.own[i])[k]);
    if (!ok) err_runtime(e, "calibrate: keys or values of this model are not finite: its weights are damaged");
    ok = ok && basis_file_write(&p, path, BASIS_FORMAT, model, c->tokens, NULL, e);
    basis_file_free(&p);
    return ok;
}
