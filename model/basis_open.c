/* basis_open.c: the bases of a model's rows, of whichever codec it has; the matrices of one that predicts rows. */
#include "basis.h"
#include "inside.h"
#include "layers/cache/codec.h"
#include "model/files/safetensors.h"

/* What a model must not have where rows are predicted from those of the layer below, whatever the file. */
bool predictor_suits(const Model *m, const char *codec, Err *e) {
    const ModelOpts *o = &m->opts;
    int below = -1;
    if (policy_any(o->policy))
        return err_input(e,
                         "--cache-dtype %s: a row is read with the rows of the layers below, and --policy lets each "
                         "layer keep or read others; leave one of the two out",
                         codec);
    if (o->tier && o->tier->memory)
        return err_input(e,
                         "--cache-dtype %s: every layer's rows are read with those below, which --cache-memory "
                         "would have on disk; leave one of the two out",
                         codec);
    if (o->ranks && o->ranks->world > 1)
        return err_input(e,
                         "--cache-dtype %s: ranks that divide rows (--cache-ranks) cannot read them; leave one of "
                         "the two out",
                         codec);
    for (int l = 0; l < m->L; l++) {
        const KvShape *s = &m->layer[l].rows, *b = below < 0 ? s : &m->layer[below].rows;
        if (!basis_layer(m, l)) continue;
        if (s->window)
            return err_input(e,
                             "--cache-dtype %s: layer %d has a window, and the layers above need rows that leave it; "
                             "take another codec, such as int4",
                             codec, l);
        if (s->lanes != b->lanes || s->kdim != b->kdim || s->vdim != b->vdim)
            return err_input(
                e,
                "--cache-dtype %s: layer %d stores %d heads of %d and %d elements, layer %d below it %d of "
                "%d and %d; expected equal ones, take another codec, such as int4",
                codec, l, s->lanes, s->kdim, s->vdim, below, b->lanes, b->kdim, b->vdim);
        below = l;
    }
    return true;
}
/* A matrix (rows, columns), or a vector where columns is 0, to `to`. */
static bool predictor_read(const St *st, int l, bool value, const char *what, int rows, int columns, real **to,
                           Err *e) {
    char name[BASIS_NAME], shape[64];
    basis_name(name, l, value, what);
    const size_t n = (size_t)rows * (size_t)imax(1, columns);
    const StEntry *x = st_find(st, name);
    if (!x)
        return err_input(e, "%.*s: %s is missing; this file is of another model, run kvsmith calibrate", PATH_SHOWN,
                         st->path, name);
    double *all = xcalloc(n, sizeof *all);
    const Tensor t = columns ? TENSOR(all, F64, rows, columns) : TENSOR(all, F64, rows);
    bool ok = x->rank == t.rank && x->shape[0] == (uint64_t)rows && (!columns || x->shape[1] == (uint64_t)columns);
    if (!ok)
        err_input(e, "%.*s: %s: expected %s, got another shape; this file is of another model, run kvsmith calibrate",
                  PATH_SHOWN, st->path, name, tensor_shape(t, shape));
    ok = ok && st_read(st, x, t, e);
    for (size_t i = 0; ok && i < n; i++)
        ok = isfinite((real)all[i]) ||
             err_input(e, "%.*s: %s: element %zu is not finite; the file is damaged", PATH_SHOWN, st->path, name, i);
    if (ok) *to = xcalloc(n, sizeof **to);
    for (size_t i = 0; ok && i < n; i++) (*to)[i] = (real)all[i];
    free(all);
    return ok;
}
static bool predictor_layer(const Model *m, const St *st, int l, RowBasis *b, Err *e) {
    const KvShape *s = &m->layer[l].rows;
    const int K = s->lanes * s->kdim, V = s->lanes * s->vdim, width[2] = {s->kdim, s->vdim};
    b->lanes = s->lanes, b->heads = 1;
    for (int i = 0; i < 2; i++) {
        PartBasis *p = &b->part[i];
        *p = (PartBasis){.rank = width[i], .width = width[i], .inputs = (i ? K : 0) + (b->below ? i ? V : K : 0)};
        if (p->inputs && !predictor_read(st, l, i, "predictor", s->lanes * width[i], p->inputs, &p->weight, e))
            return false;
        if (!predictor_read(st, l, i, "mean", s->lanes * width[i], 0, &p->bias, e)) return false;
    }
    return true;
}
static bool predictors(Model *m, const St *st, Err *e) {
    int layers = 0;
    for (int l = 0; l < m->L; l++) layers += basis_layer(m, l);
    if (!basis_sound(st, PREDICTOR_FORMAT, layers * PREDICTOR_TENSORS - 1, layers, e)) return false;
    const RowBasis *below = NULL;
    for (int l = 0; l < m->L; l++) {
        RowBasis *b = &m->basis[l];
        if (!basis_layer(m, l)) continue;
        b->below = below;
        if (!predictor_layer(m, st, l, b, e)) return false;
        m->layer[l].rows.basis = below = b;
    }
    return true;
}

void model_basis_turns(Model *m) {
    for (int l = 0; m->basis && l < m->L; l++) {
        const Mixer *of = m->layer[l].kind->mixer;
        if (m->basis[l].lanes) basis_turns(&m->basis[l], of->turns ? of->turns(m->layer[l].cfg) : NULL);
    }
}
bool model_basis_open(Model *m, Err *e) {
    const RowCodec *c = m->opts.codec;
    St st;
    if (!c || !codec_calibrated(c)) return true;
    if (!c->basis)
        return err_input(e, "--cache-dtype %s: expected basis=FILE, which kvsmith calibrate writes", c->name);
    if (!basis_suits(m, c->name, e) || (c->predicts && !predictor_suits(m, c->name, e))) return false;
    char *path = xformat("%.*s", c->basis_n, c->basis);
    bool ok = st_open(&st, path, e);
    free(path);
    if (!ok) return false;
    m->basis = xcalloc((size_t)m->L, sizeof *m->basis);
    ok = c->predicts ? predictors(m, &st, e) : basis_leading(m, &st, e);
    if (ok) {
        for (int l = 0; l < m->L; l++) m->layer[l].rows.basis = m->layer[m->layer[l].kv_from].rows.basis;
        model_basis_turns(m);
        m->basis_sum = strtoull(basis_meta(&st, "checksum"), NULL, 16);
        m->basis_of = strtoull(basis_meta(&st, "model"), NULL, 16);
    }
    st_close(&st);
    return ok;
}
void model_basis_close(Model *m) {
    for (int l = 0; m->basis && l < m->L; l++) basis_free(&m->basis[l]);
    free(m->basis);
    m->basis = NULL;
}
