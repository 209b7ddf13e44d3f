/* dist_save.c: moments that no rank has whole, to files and from them. */
#include "bf16.h"
#include "dist_in.h"
#include "../ops/host.h"
#include "../ops/side.h"

/* Numbers of moments as reals, and back: a BF16 is one exactly. */
static void widen(const Dist *d, real *to, Tensor from, size_t n) {
    const uint16_t *half = from.p;
    if (d->at) {
        if (from.dtype == REAL)
            device_copy(d->at, to, from.p, n * sizeof *to);
        else
            device_unhalve(d->at, to, half, n, false);
        return;
    }
    if (from.dtype == REAL) memcpy(to, from.p, n * sizeof *to);
    for (size_t i = 0; from.dtype == BF16 && i < n; i++) to[i] = (real)bf16_value(half[i]);
}
static void narrow(Tensor to, const real *from) {
    uint16_t *half = to.p;
    size_t n = tensor_count(to);
    if (to.dtype == REAL) memcpy(to.p, from, n * sizeof *from);
    for (size_t i = 0; to.dtype == BF16 && i < n; i++) half[i] = bf16_round((float)from[i]);
}

static bool collect_unit(Dist *d, int unit, int role, const Params *to, Err *e) {
    const DistUnit *u = &d->unit[unit];
    char title[24], name[64];
    for (int k = u->own; k < u->own + u->nown; k++) {
        Tensor t = d->own.p[k].t[role];
        if (present(t)) widen(d, d->buf + dist_at(d, k), t, tensor_count(t));
    }
    snprintf(name, sizeof name, "%s moments of %s", role == PARAM_M ? "first" : "second", dist_title(d, unit, title));
    if (!dist_gather(d, unit, name, e) || !comm_wait(d->comm, e)) return false;
    for (int i = u->first; to && i < u->first + u->n; i++) {
        Tensor t = to->p[i].t[role];
        if (!present(t)) continue;
        Tensor all = dist_run(d->buf + d->place[i].at, REAL, tensor_count(t)), view = view_open(d->m->dev, all, true);
        narrow(t, R(view));
        view_close(d->m->dev, all, view, false);
    }
    return true;
}

bool dist_collect(Dist *d, const Params *to, Err *e) {
    if (!d->stage) return true;
    for (int role = PARAM_M; role <= PARAM_V; role++)
        for (int u = 0; u < d->nunit; u++)
            if (!collect_unit(d, u, role, to, e)) return false;
    return true;
}

/* What own ranges have of tensor i, from `all` numbers of it or to them. */
static void own_of(Dist *d, int i, int role, Tensor all, bool to_own) {
    for (int k = 0; k < d->own.n; k++) {
        Tensor t = d->own.p[k].t[role];
        if (d->of[k] != i || !present(t)) continue;
        char *there = (char *)all.p + d->own.p[k].at * dtype_size(t.dtype);
        CHECK(t.dtype == all.dtype, "%s: %s and %s", d->own.p[k].name, dtype_name(t.dtype), dtype_name(all.dtype));
        if (to_own)
            device_copy(d->m->dev, t.p, there, tensor_bytes(t));
        else
            device_copy(d->m->dev, there, t.p, tensor_bytes(t));
    }
}
static int number_of(const Dist *d, const char *name) {
    int i = 0;
    while (i < d->all.n && strcmp(d->all.p[i].name, name)) i++;
    CHECK(i < d->all.n, "%s", name);
    return i;
}

static void see_load(Fields *f, Tensor *t, const char *path, unsigned flags) {
    DistLoad *x = f->ctx;
    Tensor whole = *t;
    whole.p = x->d->buf;
    x->inner->see(x->inner, &whole, path, flags);
    own_of(x->d, number_of(x->d, path), x->role, whole, true);
}
Fields dist_loader(DistLoad *x) { return (Fields){.see = see_load, .ctx = x}; }

/* ---- the end of a stage ---------------------------------------------------------------------------------------------
 */

typedef struct {
    Dist *d;
    int role;
    const DistUnit *unit;
    bool back;
} Layer1;
static void see_moment(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Layer1 *x = f->ctx;
    int i = number_of(x->d, path);
    (void)flags;
    if (i < x->unit->first || i >= x->unit->first + x->unit->n) return;
    if (!x->back) {
        t->p = arena_take(&x->d->units, tensor_bytes(*t), path);
        device_zero(x->d->m->dev, t->p, tensor_bytes(*t));
    }
    own_of(x->d, i, x->role, *t, x->back);
    if (x->back) t->p = NULL;
}

void dist_stage_end(Dist *d) {
    Model *m = d->m;
    for (int l = 0; d->stage && l < m->L; l++)
        for (int role = PARAM_M; m->layer[l].kind->mixer->stage_end && role <= PARAM_V; role++) {
            Weights *w = role == PARAM_M ? &m->m : &m->v;
            Mark mark = arena_mark(&d->units);
            Layer1 x = {d, role, &d->unit[l + 1], false};
            Fields f = {.see = see_moment, .ctx = &x};
            model_moments(m, w, role == PARAM_V, &f);
            model_layer_stage_end(m, l, w);
            x.back = true;
            model_moments(m, w, role == PARAM_V, &f);
            arena_release(&d->units, mark);
        }
}
