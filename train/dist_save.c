/* dist_save.c: moments that no rank has whole: put aside, and in the hands of mixers at the end of a stage. */
#include "dist_in.h"
#include "../ops/host.h"
#include "../ops/side.h"

/* The numbers take what their own regions do, whose sizes are those of the rank with most. */
static void place(DistAside *a, const Dist *d) {
    for (int k = 0; k < d->own.n; k++)
        for (int role = PARAM_M; role <= PARAM_V; role++) {
            Tensor *t = &a->own.p[k].t[role];
            if (present(*t)) t->p = arena_take(&a->mem, tensor_bytes(*t), d->own.p[k].name);
        }
}
bool dist_aside_open(DistAside *a, const Dist *d, bool dry, Err *e) {
    size_t bytes = zmax(d->first.size, d->first.peak) + zmax(d->second.size, d->second.peak);
    *a = (DistAside){.mem = {.name = "copy of moments", .peak = bytes}};
    if (dry) return true;
    if (!arena_open(&a->mem, a->mem.name, bytes, false, e)) return false;
    a->own = (Params){.n = d->own.n, .cap = d->own.n, .p = xcalloc((size_t)d->own.n, sizeof *a->own.p)};
    if (d->own.n) memcpy(a->own.p, d->own.p, (size_t)d->own.n * sizeof *a->own.p);
    place(a, d);
    return true;
}
void dist_aside_take(DistAside *a, const Dist *d) {
    for (int k = 0; k < d->own.n; k++)
        for (int role = PARAM_M; role <= PARAM_V; role++) {
            Tensor to = a->own.p[k].t[role], from = d->own.p[k].t[role];
            if (!present(from)) continue;
            if (device_apart(d->m->dev))
                device_read(d->m->dev, to.p, from.p, tensor_bytes(from));
            else
                memcpy(to.p, from.p, tensor_bytes(from));
        }
}
void dist_aside_close(DistAside *a) {
    params_free(&a->own);
    arena_close(&a->mem);
    *a = (DistAside){0};
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
