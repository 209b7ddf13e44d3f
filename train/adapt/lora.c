#include "lora_ops.h"
#include "ops/host.h"
#include <fnmatch.h>

/* ---- declaring ------------------------------------------------------------------------------------------------------
 */

static void lora_hook(Lora *);
typedef struct {
    Lora *l;
    const LoraCfg *c;
    const char *glob; /* of a search */
    int found, at, unit;
} Visit;

static bool lora_wanted(const LoraCfg *c, const char *path) {
    for (int i = 0; i < c->targets.n; i++)
        if (!fnmatch(c->targets.v[i], path, 0)) return true;
    return false;
}
static void see_weight(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Visit *v = f->ctx;
    Lora *l = v->l;
    (void)flags;
    if (t->rank != 2 || !lora_wanted(v->c, path)) return;
    l->part = xrealloc(l->part, (size_t)l->n + 1, sizeof *l->part);
    LoraPart *p = &l->part[l->n++];
    *p = (LoraPart){.w = t, .base = *t, .unit = v->unit};
    p->sum = TENSOR(NULL, REAL, t->n[0], t->n[1]);
    p->dw = p->sum;
    snprintf(p->name, sizeof p->name, "%s", path);
}
static void lora_see_grad(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Visit *v = f->ctx;
    (void)flags;
    if (v->at < v->l->n && !strcmp(v->l->part[v->at].name, path)) v->l->part[v->at++].g = t;
}

void lora_fields(Lora *l, ParamRole role, Fields *f) {
    for (int i = 0; i < l->n; i++) {
        LoraPart *p = &l->part[i];
        int rank = p->a[0].n[0], n = (int)strlen(p->name) - (int)strlen(".weight");
        CHECK(n > 0 && n < (int)sizeof f->scope - 1, "the name %s", p->name);
        snprintf(f->scope, sizeof f->scope, "%.*s.", n, p->name);
        field(f, &p->a[role], "lora_A.weight", FIELD_OWN, rank, p->base.n[1]);
        field(f, &p->b[role], "lora_B.weight", FIELD_OWN, p->base.n[0], rank);
    }
    f->scope[0] = 0;
}
void lora_bases(Lora *l, Fields *f) {
    f->scope[0] = 0;
    for (int i = 0; i < l->n; i++) f->see(f, &l->part[i].base, l->part[i].name, 0);
}
size_t lora_params(const Lora *l) {
    size_t n = 0;
    for (int i = 0; i < l->n; i++) n += tensor_count(l->part[i].a[0]) + tensor_count(l->part[i].b[0]);
    return n;
}

static void lora_place(Lora *l) {
    Fields f = arena_placer(&l->state);
    lora_fields(l, PARAM_WEIGHT, &f);
}
static bool in_layer(const Lora *l, int unit) { return unit > 0 && unit < l->units - 1; }
/* From `room` on (NULL measures), each on lines of its own; the bytes. */
static size_t place_sums(Lora *l, int unit, char *room) {
    enum { LINE = 64 };
    size_t at = 0;
    for (int i = 0; i < l->n; i++) {
        LoraPart *p = &l->part[i];
        if (p->unit != unit) continue;
        Tensor *both[] = {&p->sum, &p->dw};
        for (int k = 0; k < 2; k++, at += (tensor_bytes(p->sum) + LINE - 1) / LINE * LINE)
            both[k]->p = room ? room + at : NULL;
    }
    return at;
}
/* Embedding and head have theirs; all layers share one place. */
static void place_grads(Lora *l) {
    Fields f = arena_placer(&l->grads);
    lora_fields(l, PARAM_GRAD, &f);
    const int ends[] = {0, l->units - 1};
    for (int k = 0; k < 2; k++)
        place_sums(l, ends[k], arena_take(&l->sums, place_sums(l, ends[k], NULL), "sums of the ends"));
    size_t most = 0;
    for (int u = 1; u < l->units - 1; u++) most = zmax(most, place_sums(l, u, NULL));
    char *room = arena_take(&l->sums, most, "sums of a layer");
    for (int u = 1; u < l->units - 1; u++) place_sums(l, u, room);
}

void lora_declare(Lora *l, Model *m, const LoraCfg *c) {
    Visit v = {.l = l, .c = c};
    *l = (Lora){.opts = &m->opts,
                .dev = m->dev,
                .units = model_units(m),
                .at = -1,
                .state = {.name = "adapters"},
                .grads = {.name = "adapters' gradients"},
                .sums = {.name = "sums of a layer"}};
    if (!c->rank) return;
    l->scale = c->alpha / c->rank;
    for (v.unit = 0; v.unit < l->units; v.unit++) {
        Fields f = {.see = see_weight, .ctx = &v}, g = {.see = lora_see_grad, .ctx = &v};
        model_unit_fields(m, v.unit, &m->w, &f);
        model_unit_grads(m, v.unit, &g);
    }
    CHECK(v.at == l->n, "%d gradients of %d matrices", v.at, l->n);
    for (int i = 0; i < l->n; i++) l->part[i].a[0].n[0] = c->rank;
    lora_place(l);
    place_grads(l);
    lora_hook(l);
    m->sums = &l->hooks;
}

bool lora_open(Lora *l, Err *e) {
    if (!l->n) return true;
    const Memory *home = device_memory(l->dev, false);
    if (!arena_open_at(&l->state, home, "adapters", l->state.peak, false, e) ||
        !arena_open_at(&l->grads, home, "adapters' gradients", l->grads.peak, false, e) ||
        !arena_open_at(&l->sums, home, "sums of a layer", l->sums.peak, l->opts->poison, e))
        return false;
    lora_place(l);
    place_grads(l);
    return true;
}

void lora_close(Lora *l) {
    arena_close(&l->state);
    arena_close(&l->grads);
    arena_close(&l->sums);
    free(l->part);
    free(l->ops.room);
    *l = (Lora){0};
}

void lora_regions(const Lora *l, Regions *r) {
    regions_add(r, "adapters", &l->state, REGION_IF_ANY);
    regions_add(r, "adapter_gradients", &l->grads, REGION_IF_ANY);
    regions_add(r, "sums_of_a_layer", &l->sums, REGION_IF_ANY);
}

/* ---- checks ---------------------------------------------------------------------------------------------------------
 */

static void lora_see_search(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Visit *v = f->ctx;
    (void)flags;
    v->found += t->rank == 2 && !fnmatch(v->glob, path, 0);
}

bool lora_check(const Lora *l, const Model *m, const Config *c, int ranks, Err *e) {
    const LoraCfg *o = &c->lora;
    if (!o->rank) return true;
    if (ranks > 1)
        return err_input(
            e, "lora.rank: adapters are trained on one rank only, this run has %d; set lora.rank=0 or start one rank",
            ranks);
    for (int i = 0; i < o->targets.n; i++) {
        Visit v = {.glob = o->targets.v[i]};
        Fields f = {.see = lora_see_search, .ctx = &v};
        Weights w = m->w;
        model_fields(m, &w, &f);
        if (!v.found)
            return err_input(e, "lora.targets: %.100s matches no matrix; names are like %s", o->targets.v[i],
                             "model.layers.0.self_attn.q_proj.weight");
    }
    if (!l->n) return err_input(e, "lora.targets: expected globs of tensors' names, got none");
    for (int i = 0; i < l->n; i++) {
        const LoraPart *p = &l->part[i];
        if (o->rank > imin(p->base.n[0], p->base.n[1]))
            return err_input(e, "lora.rank: %d is more than the smaller side of %s (%d,%d)", o->rank, p->name,
                             p->base.n[0], p->base.n[1]);
    }
    for (int k = 0; k < m->L; k++)
        if (m->layer[k].kind->mixer->stage_end)
            return err_input(e,
                             "lora: the mixer %s of layer %d changes weights at the end of a stage, which adapters "
                             "cannot do; set lora.rank=0",
                             m->layer[k].kind->mixer->name, k);
    for (int i = 0; i < c->optim.ngroups; i++) {
        bool found = false;
        for (int k = 0; k < 2 * l->n; k++) {
            char name[256];
            const char *w = l->part[k / 2].name;
            snprintf(name, sizeof name, "%.*s.lora_%c.weight", (int)strlen(w) - 7, w, "AB"[k % 2]);
            found |= !fnmatch(c->optim.group[i].match, name, 0);
        }
        if (!found)
            return err_input(
                e, "optim.groups.%d.match: %.100s matches no adapter (NAME.lora_A.weight, NAME.lora_B.weight)", i,
                c->optim.group[i].match);
    }
    return true;
}

/* ---- numbers --------------------------------------------------------------------------------------------------------
 */

/* A as torch's Linear begins, by arXiv:1502.01852: evenly within 1/sqrt(in). */
void lora_begin(Lora *l, uint64_t seed) {
    for (int i = 0; i < l->n; i++) {
        LoraPart *p = &l->part[i];
        uint64_t key = rng_name(rng_mix(seed, rng_name(0, "adapters")), p->name);
        size_t n = tensor_count(p->a[0]);
        double bound = 1 / sqrt(p->base.n[1]);
        Tensor a = view_open(l->dev, p->a[0], false);
        for (size_t k = 0; k < n; k++) R(a)[k] = (real)(bound * (2 * rng_uniform(key, k) - 1));
        view_close(l->dev, p->a[0], a, true);
        device_zero(l->dev, p->b[0].p, tensor_bytes(p->b[0]));
    }
}

void lora_zero_grad(Lora *l) {
    Fields zero = fields_zero_at(l->dev);
    lora_fields(l, PARAM_GRAD, &zero);
}

static void lora_rest(void *ctx) {
    Lora *l = ctx;
    for (int i = 0; i < l->n; i++) *l->part[i].w = l->part[i].base;
    l->at = -1;
}
/* The parts of a unit, which follow each other, are *from..*to-1; false: it has none. */
static bool parts_of(const Lora *l, int unit, int *from, int *to) {
    *from = *to = 0;
    for (int i = 0; i < l->n; i++)
        if (l->part[i].unit == unit) *from = *to ? *from : i, *to = i + 1;
    return *to;
}
static void lora_need(void *ctx, Run *r, int unit) {
    Lora *l = ctx;
    const bool layer = in_layer(l, unit);
    if (l->reads) {
        int from, to;
        if (r->ops == &l->ops.table) lora_ops_end(l, r);
        if (layer && parts_of(l, unit, &from, &to)) lora_ops_read(l, r, from, to);
        if (layer) return;
    }
    if (layer && l->at == unit) return;
    for (int i = 0; i < l->n; i++) {
        LoraPart *p = &l->part[i];
        if (layer && p->unit == l->at) *p->w = p->base; /* whose memory is wanted now */
        if (p->unit != unit) continue;
        lora_sum(l, r, p);
        *p->w = p->sum;
    }
    if (layer) l->at = unit;
}
static void lora_grads_begin(void *ctx, Run *r, int unit) {
    Lora *l = ctx;
    CHECK(!in_layer(l, unit) || l->at == unit, "gradients of unit %d, but sums of %d", unit, l->at);
    int from, to;
    if (!parts_of(l, unit, &from, &to)) return;
    for (int i = from; i < to; i++) {
        LoraPart *p = &l->part[i];
        *p->g = p->dw;
        p->formed = !in_layer(l, unit);
        if (p->formed) r->ops->zero(r, p->dw);
    }
    if (in_layer(l, unit)) lora_ops_begin(l, r, from, to);
}
static void lora_done(void *ctx, Run *r, int unit) {
    Lora *l = ctx;
    int from, to;
    if (!parts_of(l, unit, &from, &to)) return;
    if (in_layer(l, unit)) lora_ops_end(l, r);
    for (int i = from; i < to; i++) {
        LoraPart *p = &l->part[i];
        *p->g = ABSENT;
        if (!p->formed && !measuring(r)) continue;
        Mark mark = arena_mark(r->scratch);
        r->ops->linear_backward(r, NOWHERE, p->a[PARAM_GRAD], ABSENT, lora_scaled(l, r, p), p->dw,
                                p->a[0]); /* s B^T dW */
        Tensor db = SCRATCH(r, "dW A^T", p->b[0].n[0], p->b[0].n[1]);
        r->ops->linear(r, db, p->dw, p->a[0], ABSENT);
        r->ops->axpby(r, p->b[PARAM_GRAD], l->scale, db, 1);
        arena_release(r->scratch, mark);
    }
}

void lora_reads(Lora *l, bool on) {
    CHECK(l->at < 0 || !l->n, "a reading pass, but sums of unit %d", l->at);
    l->reads = on;
}

/* Rows of the sum in the order of A's, whatever the number of threads. */
void lora_merge(const Lora *l, int i, Tensor to) {
    const LoraPart *p = &l->part[i];
    const int O = p->base.n[0], I = p->base.n[1], rank = p->a[0].n[0];
    const real *a = R(p->a[0]), *b = R(p->b[0]);
    CHECK(tensor_count(to) == tensor_count(p->base), "%s", p->name);
#pragma omp parallel for schedule(static)
    for (int o = 0; o < O; o++) {
        real *row = R(to) + (size_t)o * (size_t)I;
        tensor_read(p->base, (size_t)o * (size_t)I, (size_t)I, row);
        for (int k = 0; k < rank; k++) {
            const real s = (real)l->scale * b[(size_t)o * (size_t)rank + (size_t)k], *from = a + (size_t)k * (size_t)I;
            for (int j = 0; j < I; j++) row[j] += s * from[j];
        }
    }
}
/* For a part whose tensors are on a GPU: with copies of them. */
static bool merge(void *ctx, const void *stored, Tensor to) {
    const Lora *l = ctx;
    int i = 0;
    while (i < l->n && l->part[i].base.p != stored) i++;
    if (i == l->n) return false;
    if (!present(to)) return true;
    LoraPart own = l->part[i];
    const Lora one = {.n = 1, .part = &own, .scale = l->scale};
    own.base = view_open(l->dev, l->part[i].base, true);
    own.a[0] = view_open(l->dev, l->part[i].a[0], true);
    own.b[0] = view_open(l->dev, l->part[i].b[0], true);
    lora_merge(&one, 0, to);
    view_close(l->dev, l->part[i].base, own.base, false);
    view_close(l->dev, l->part[i].a[0], own.a[0], false);
    view_close(l->dev, l->part[i].b[0], own.b[0], false);
    return true;
}
static void lora_hook(Lora *l) { l->hooks = (SumHooks){lora_need, lora_grads_begin, lora_done, lora_rest, merge, l}; }

/* ---- a copy ---------------------------------------------------------------------------------------------------------
 */

static void see_base(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Visit *v = f->ctx;
    (void)flags;
    if (v->at < v->l->n && !strcmp(v->l->part[v->at].name, path)) v->l->part[v->at++].base = *t;
}
bool lora_copy_open(Lora *c, const Lora *l, Model *view, bool dry, Err *e) {
    *c = *l;
    c->state = (Arena){.name = "adapters' copy"}, c->grads = c->sums = (Arena){0};
    c->dev = NULL;
    c->ops = (LoraOps){0}; /* a copy computes nothing */
    c->part = xcalloc((size_t)l->n + 1, sizeof *c->part);
    view->sums = NULL;
    if (!l->n) return true;
    memcpy(c->part, l->part, (size_t)l->n * sizeof *c->part);
    Visit v = {.l = c};
    Fields f = {.see = see_base, .ctx = &v};
    model_fields(view, &view->w, &f);
    CHECK(v.at == c->n, "%d of %d matrices", v.at, c->n);
    lora_hook(c);
    view->sums = &c->hooks;
    lora_place(c);
    if (dry) return true;
    if (!arena_open(&c->state, "adapters' copy", c->state.peak, false, e)) {
        lora_close(c);
        return false;
    }
    lora_place(c);
    return true;
}

void lora_copy_take(Lora *c, const Lora *l) {
    if (l->n && !device_apart(l->dev)) memcpy(c->state.base, l->state.base, l->state.used);
    for (int i = 0; i < l->n && device_apart(l->dev); i++) {
        const Tensor *to[] = {&c->part[i].a[PARAM_WEIGHT], &c->part[i].b[PARAM_WEIGHT]},
                     *from[] = {&l->part[i].a[PARAM_WEIGHT], &l->part[i].b[PARAM_WEIGHT]};
        for (int k = 0; k < 2; k++) device_read(l->dev, to[k]->p, from[k]->p, tensor_bytes(*from[k]));
    }
}
