/* dist_save.c: the optimizer's states in the hands of mixers at the end of a stage. */
#include "dist_in.h"
#include "ops/host.h"

/* Copies the own ranges of the k-th state of tensor i, from `all` of it or to it. */
static void own_of(Dist *d, int i, int k, Tensor all, bool to_own) {
    for (int o = 0; o < d->own.n; o++) {
        Tensor t = d->own.p[o].state[k].t;
        if (d->of[o] != i || !present(t)) continue;
        char *there = (char *)all.p + d->own.p[o].at * dtype_size(t.dtype);
        CHECK(t.dtype == all.dtype, "%s: %s and %s", d->own.p[o].name, dtype_name(t.dtype), dtype_name(all.dtype));
        if (to_own)
            device_copy(d->m->dev, t.p, there, tensor_bytes(t));
        else
            device_copy(d->m->dev, there, t.p, tensor_bytes(t));
    }
}

/* The k-th states of a layer's weights: the tensors themselves, or of those that ranks share a copy with this rank's
 * ranges. */
typedef struct {
    int i; /* of Dist.all */
    Tensor t;
} Lent;
typedef struct {
    Dist *d;
    const DistUnit *unit;
    int k, n;
    Lent *lent; /* (unit->n) */
} Lending;
static void dist_save_see_state(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Lending *x = f->ctx;
    Dist *d = x->d;
    int i = x->unit->first;
    (void)flags;
    while (i < x->unit->first + x->unit->n && strcmp(d->all.p[i].name, path)) i++;
    CHECK(i < x->unit->first + x->unit->n, "%s", path);
    *t = d->stage ? d->all.p[i].state[x->k].t : d->trained->p[i].state[x->k].t;
    if (!d->stage || !present(*t)) return;
    t->p = arena_take(&d->units, tensor_bytes(*t), path);
    device_zero(d->m->dev, t->p, tensor_bytes(*t));
    own_of(d, i, x->k, *t, false);
    x->lent[x->n++] = (Lent){i, *t};
}

void dist_stage_end(Dist *d) {
    const Model *m = d->m;
    for (int l = 0; l < m->L; l++)
        for (int k = 0; m->layer[l].kind->mixer->stage_end && k < STATES_MAX; k++) {
            const DistUnit *u = &d->unit[l + 1];
            Mark mark = arena_mark(&d->units);
            Lending x = {.d = d, .unit = u, .k = k, .lent = xcalloc((size_t)u->n, sizeof *x.lent)};
            Fields f = {.see = dist_save_see_state, .ctx = &x};
            model_layer_stage_end(m, l, &f);
            for (int i = 0; i < x.n; i++) own_of(d, x.lent[i].i, k, x.lent[i].t, true);
            free(x.lent);
            arena_release(&d->units, mark);
        }
}
