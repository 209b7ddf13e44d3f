/* open.c: what a model has in memory: its regions, measured by its passes, and walks over its fields. */
#include "act.h"
#include "../ops/half.h"
#include "../ops/host.h"

typedef struct {
    const ModelOpts *opts;
    bool second;
    Fields *to;
} Moments;
static void see_moment(Fields *f, Tensor *t, const char *path, unsigned flags) {
    const Moments *x = f->ctx;
    const ModelOpts *o = x->opts;
    if ((o->trained && !o->trained(o->trained_ctx, path)) || (x->second && o->second && !o->second(*t, flags))) {
        *t = ABSENT;
        return;
    }
    if (x->opts->narrow_moments && !(flags & FIELD_F32)) t->dtype = BF16;
    x->to->see(x->to, t, path, flags);
}
void model_moments(const Model *m, Weights *w, bool second, Fields *to) {
    Moments x = {&m->opts, second, to};
    Fields f = {.see = see_moment, .ctx = &x};
    model_fields(m, w, &f);
}

static void see_count(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path, (void)flags;
    *(size_t *)f->ctx += tensor_count(*t);
}
size_t model_params(const Model *m) {
    size_t n = 0;
    Fields f = {.see = see_count, .ctx = &n};
    Weights w = m->w;
    model_fields(m, &w, &f);
    return n;
}

void model_layer_stage_end(const Model *m, int l, Weights *w) {
    const Kind *k = m->layer[l].kind;
    if (k->mixer->stage_end) k->mixer->stage_end(m->dev, m->layer[l].cfg, w->layer[l].mix);
}
void model_stage_end(Model *m) {
    bool moments = m->opts.train && !(m->opts.without & MODEL_MOMENTS);
    Weights *w[] = {&m->w, &m->m, &m->v};
    for (int l = 0; l < m->L; l++)
        for (int i = 0; i < (moments ? 3 : 1); i++) model_layer_stage_end(m, l, w[i]);
}
void model_zero_grad(Model *m) {
    Fields f = fields_zero_at(m->dev);
    model_fields(m, &m->g, &f);
}

/* ---- regions ------------------------------------------------------------------------------------------------------
 */

void weights_new(const Model *m, Weights *w) {
    *w = (Weights){.layer = xcalloc((size_t)m->L, sizeof *w->layer)};
    for (int l = 0; l < m->L; l++) {
        w->layer[l].mix = xcalloc(1, m->layer[l].kind->mixer->w_size);
        w->layer[l].ffn = xcalloc(1, m->layer[l].ffn->ffn->w_size);
    }
}
void weights_free(const Model *m, Weights *w) {
    for (int l = 0; w->layer && l < m->L; l++) {
        free(w->layer[l].mix);
        free(w->layer[l].ffn);
    }
    free(w->layer);
}
enum { VALUES = -1, FIRST, SECOND }; /* weights or gradients; moments */
static void visit(const Model *m, Weights *w, int kind, Fields f) {
    if (kind == VALUES)
        model_fields(m, w, &f);
    else
        model_moments(m, w, kind == SECOND, &f);
}
static void see_shape(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)f, (void)t, (void)path, (void)flags;
}
static bool region(Model *m, Arena *a, const char *name, Weights *w, int kind, Err *e) {
    a->name = name;
    if (m->opts.without & (kind != VALUES ? MODEL_MOMENTS : w == &m->g ? MODEL_GRADS : 0)) {
        visit(m, w, kind, (Fields){.see = see_shape});
        return m->opts.dry || arena_open(a, name, 0, false, e);
    }
    visit(m, w, kind, arena_placer(a));
    if (m->opts.dry) return true;
    if (!arena_open_at(a, device_memory(m->dev, false), name, a->peak, m->opts.poison, e)) return false;
    visit(m, w, kind, arena_placer(a));
    return true;
}
/* Copies in bf16 of what products read: not of tables that rows are only looked up in. */
static void see_half(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Model *m = f->ctx;
    if (!half_wanted(m->dev, *t, flags) || (flags & FIELD_TABLE && t != (m->cfg.tied ? &m->w.embed : &m->w.head)))
        return;
    Tensor copy = arena_tensor(&m->ah, path, BF16, t->rank, t->n);
    t->halved = true;
    if (copy.p) half_keep(m->dev, *t, copy);
}
static bool copies(Model *m, Err *e) {
    Fields see = {.see = see_half, .ctx = m};
    m->ah.name = "weights in bf16";
    visit(m, &m->w, VALUES, see);
    if (m->opts.dry || !m->ah.peak) return true;
    if (!arena_open_at(&m->ah, device_memory(m->dev, false), m->ah.name, m->ah.peak, m->opts.poison, e)) return false;
    visit(m, &m->w, VALUES, see);
    return true;
}
bool model_scratch_open(Model *m, size_t bytes, size_t host, Err *e) {
    if (!arena_open_at(&m->scratch, device_memory(m->dev, false), "scratch", bytes, m->opts.poison, e)) return false;
    return !device_apart(m->dev) || arena_open(&m->host, "scratch of the host", host, m->opts.poison, e);
}
/* The sizes of `keep` and `scratch` are those of the passes themselves, run without memory. */
static void measure_passes(Model *m) {
    int N = m->opts.max_rows, B = imin(m->opts.max_samples, N);
    if (!N) return;
    int *all = xcalloc((size_t)N, sizeof *all);
    Batch b = {.B = B, .N = N, .off = all, .seq = all, .of = all, .pos = all, .first = all};
    Run r = model_run(m);
    if (m->opts.measure) m->opts.measure(m, &r, m->opts.measure_ctx);
    if (m->opts.train) model_teach(m, &b, all, all, NULL, NULL, m->opts.teach);
    if (m->opts.states)
        model_states(m, &b, all, TENSOR(NULL, REAL, N, m->cfg.d_model), NULL, NULL);
    else
        model_loss(m, &b, all, all, NULL);
    free(all);
}

bool model_able(Model *m, Err *e) {
    int l;
    const char *what = device_lack(m->dev, &l);
    if (!what) return true;
    const Layer *y = l >= 0 && l < m->L ? &m->layer[l] : NULL;
    const char *on = device_ops(m->dev)->name;
    if (!y) return err_input(e, "device %s does not have %s yet, which this model needs; take --device cpu", on, what);
    return err_input(e,
                     "device %s does not have %s yet, which layer %d needs (model.kinds.%s: mixer %s, ffn %s); take "
                     "--device cpu",
                     on, what, l, y->kind->name, y->kind->mixer->name, y->ffn->ffn->name);
}

bool model_open(Model *m, Device *dev, const ModelCfg *cfg, ModelOpts opts, Err *e) {
    *m = (Model){.dev = dev, .opts = opts};
    CHECK(!opts.train || opts.dry || !(opts.narrow_weights || opts.narrow_cache), "training keeps what it rounds");
    if (!model_map(m, cfg, e)) goto fail;
    for (int l = 0; l < m->L; l++) m->layer[l].rows.narrow = opts.narrow_cache && m->layer[l].rows.lanes;
    m->act = xcalloc((size_t)m->L, sizeof *m->act);
    m->kv = xcalloc((size_t)m->L, sizeof *m->kv);
    m->dkv = xcalloc((size_t)m->L, sizeof *m->dkv);
    m->inputs = xcalloc((size_t)m->L, sizeof *m->inputs);
    m->idx = xcalloc((size_t)imax(1, opts.max_rows), sizeof *m->idx);
    for (int i = 0; i < opts.max_rows; i++) m->idx[i] = i;
    for (int l = 0; l < m->L; l++) {
        m->layer[l].recompute = opts.recompute < 0 || l < opts.recompute;
        m->act[l].mix = xcalloc(1, m->layer[l].kind->mixer->s_size);
        m->act[l].ffn = xcalloc(1, m->layer[l].ffn->ffn->s_size);
    }
    weights_new(m, &m->w);
    if (!region(m, &m->aw, "weights", &m->w, VALUES, e) || !copies(m, e)) goto fail;
    if (opts.train) {
        weights_new(m, &m->g);
        weights_new(m, &m->m);
        weights_new(m, &m->v);
        if (!region(m, &m->ag, "gradients", &m->g, VALUES, e) || !region(m, &m->am, "first moments", &m->m, FIRST, e) ||
            !region(m, &m->av, "second moments", &m->v, SECOND, e))
            goto fail;
        if (!opts.dry && !(opts.without & MODEL_GRADS)) visit(m, &m->g, VALUES, fields_zero_at(dev));
        if (!opts.dry && !(opts.without & MODEL_MOMENTS)) {
            visit(m, &m->m, FIRST, fields_zero_at(dev));
            visit(m, &m->v, SECOND, fields_zero_at(dev));
        }
    }
    m->keep.name = "saved activations", m->scratch.name = "scratch", m->host.name = "scratch of the host";
    measure_passes(m);
    if (!model_able(m, e)) goto fail;
    if (opts.dry) return true;
    if (!arena_open_at(&m->keep, device_memory(dev, false), "saved activations", m->keep.peak, opts.poison, e) ||
        !model_scratch_open(m, m->scratch.peak, m->host.peak, e))
        goto fail;
    return true;
fail:
    model_close(m);
    return false;
}

void model_close(Model *m) {
    half_drop(m->dev, m->aw.base, m->aw.size);
    Arena *regions[] = {&m->ah, &m->aw, &m->ag, &m->am, &m->av, &m->keep, &m->scratch, &m->host};
    Weights *weights[] = {&m->w, &m->g, &m->m, &m->v};
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) arena_close(regions[i]);
    for (size_t i = 0; m->layer && i < sizeof weights / sizeof *weights; i++) weights_free(m, weights[i]);
    for (int l = 0; m->act && l < m->L; l++) {
        free(m->act[l].mix);
        free(m->act[l].ffn);
    }
    free(m->act);
    free(m->kv);
    free(m->dkv);
    free(m->inputs);
    free(m->idx);
    model_unmap(m);
    *m = (Model){0};
}
