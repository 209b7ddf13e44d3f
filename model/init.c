/* init.c: initial values of weights, each a function of the seed and its name. */
#include "inside.h"
#include "ops/host.h"

enum { STREAM_INIT = 1 };

typedef struct {
    Device *dev;
    uint64_t key;
    double std, residual;
} Init;
static void see_init(Fields *f, Tensor *t, const char *path, unsigned flags) {
    const Init *in = f->ctx;
    size_t n = tensor_count(*t);
    uint64_t key = rng_name(in->key, path);
    double std = flags & FIELD_RESIDUAL ? in->std * in->residual : in->std;
    if (flags & FIELD_OWN) return;
    Tensor view = view_open(in->dev, *t, false);
    if (t->dtype == BF16) {
        uint16_t *h = view.p;
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++) h[i] = bf16_from((float)(std * rng_normal(key, i)));
        view_close(in->dev, *t, view, true);
        return;
    }
    real *p = R(view), flat = flags & FIELD_ONES ? 1 : 0;
    if (flags & (FIELD_ONES | FIELD_ZEROS)) {
        for (size_t i = 0; i < n; i++) p[i] = flat;
    } else {
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++) p[i] = (real)(std * rng_normal(key, i));
    }
    view_close(in->dev, *t, view, true);
}
static Init init_of(const Model *m, uint64_t seed) {
    return (Init){m->dev, rng_mix(seed, STREAM_INIT), m->cfg.init_std, 1 / sqrt(2.0 * m->L)};
}
/* A mixer's own initial values are made by the host: its tensors are views meanwhile. */
typedef struct {
    Device *dev;
    Tensor *at;
    int n;
} Own;
static void see_own(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Own *o = f->ctx;
    (void)path;
    if (!(flags & FIELD_OWN)) return;
    o->at = xrealloc(o->at, (size_t)o->n + 1, sizeof *o->at);
    o->at[o->n++] = *t;
    *t = view_open(o->dev, *t, false);
}
static void see_own_done(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Own *o = f->ctx;
    (void)path;
    if (!(flags & FIELD_OWN)) return;
    view_close(o->dev, o->at[o->n], *t, true);
    *t = o->at[o->n++];
}
static void init_own(const Model *m, int l, Weights *w, uint64_t key) {
    const Layer *y = &m->layer[l];
    void *mix = w->layer[l].mix;
    Own own = {.dev = m->dev};
    Fields f = {.see = see_own, .ctx = &own}, done = {.see = see_own_done, .ctx = &own};
    fields_stored(m, &f), fields_stored(m, &done); /* by their full names */
    snprintf(f.scope, sizeof f.scope, "model.layers.%d.self_attn.", l);
    memcpy(done.scope, f.scope, sizeof f.scope);
    if (!y->kind->mixer->init) return;
    y->kind->mixer->weights(y->cfg, mix, &f);
    y->kind->mixer->init(y->cfg, mix, rng_mix(key, (uint64_t)l));
    own.n = 0;
    y->kind->mixer->weights(y->cfg, mix, &done);
    free(own.at);
}
void model_init(Model *m, uint64_t seed) {
    Init in = init_of(m, seed);
    Fields f = {.see = see_init, .ctx = &in};
    model_fields(m, &m->w, &f);
    for (int l = 0; l < m->L; l++) init_own(m, l, &m->w, in.key);
}
static void see_init_there(Fields *f, Tensor *t, const char *path, unsigned flags) {
    if (t->p) see_init(f, t, path, flags);
}
void model_layer_init(const Model *m, int l, Weights *w, uint64_t seed) {
    Init in = init_of(m, seed);
    Fields f = {.see = see_init_there, .ctx = &in};
    model_layer_fields(m, l, w, &f);
    init_own(m, l, w, in.key);
}
