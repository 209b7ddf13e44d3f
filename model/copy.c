/* copy.c: see copy.h. The fields are placed in the order of the model's own regions, which therefore lie in the copy
 * one after the other, guards and all. */
#include "copy.h"
#include "act.h"
#include "../ops/host.h"

static void place(ModelCopy *c) {
    Fields f = arena_placer(&c->mem);
    model_fields(&c->view, &c->view.w, &f);
    if (c->view.opts.without & MODEL_MOMENTS) return;
    f = arena_placer(&c->mem);
    model_moments(&c->view, &c->view.m, false, &f);
    f = arena_placer(&c->mem);
    model_moments(&c->view, &c->view.v, true, &f);
}

bool model_copy_open(ModelCopy *c, const Model *m, bool dry, Err *e) {
    *c = (ModelCopy){.view = *m, .mem = {.name = "checkpoint copy"}};
    weights_new(m, &c->view.w);
    weights_new(m, &c->view.m);
    weights_new(m, &c->view.v);
    c->view.g = (Weights){0};
    c->view.dev = NULL; /* its numbers lie with the host */
    place(c);
    if (dry) return true;
    size_t size = c->mem.peak;
    CHECK(size == m->aw.used + m->am.used + m->av.used, "%zu bytes, the regions have %zu, %zu and %zu", size,
          m->aw.used, m->am.used, m->av.used);
    if (!arena_open(&c->mem, "checkpoint copy", size, false, e)) {
        model_copy_close(c);
        return false;
    }
    place(c);
    return true;
}

/* From a device tensor by tensor: what lies between them is nobody's. */
typedef struct {
    Tensor *t;
    int n;
    Device *dev;
} List;
static void see_list(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    (void)path, (void)flags;
    l->t = xrealloc(l->t, (size_t)l->n + 1, sizeof *l->t);
    l->t[l->n++] = *t;
}
static void see_read(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    (void)path, (void)flags;
    const void *from = l->t[l->n++].p;
    if (from) device_read(l->dev, t->p, from, tensor_bytes(*t)); /* else ranks have parts of it: see dist_collect */
}
static void walk(const Model *m, Weights *w, Weights *first, Weights *second, Fields f) {
    model_fields(m, w, &f);
    if (m->opts.without & MODEL_MOMENTS) return;
    model_moments(m, first, false, &f);
    model_moments(m, second, true, &f);
}
static void read_fields(ModelCopy *c, const Model *m) {
    List l = {.dev = m->dev};
    Weights w = m->w, first = m->m, second = m->v; /* declaring sets shapes again */
    walk(m, &w, &first, &second, (Fields){.see = see_list, .ctx = &l});
    l.n = 0;
    walk(m, &c->view.w, &c->view.m, &c->view.v, (Fields){.see = see_read, .ctx = &l});
    free(l.t);
}

void model_copy_take(ModelCopy *c, const Model *m) {
    enum { PIECE = 1 << 22 };
    if (device_apart(m->dev)) {
        read_fields(c, m);
        return;
    }
    const Arena *from[] = {&m->aw, &m->am, &m->av};
    char *to = c->mem.base;
    for (int k = 0; k < 3; k++) {
        size_t n = from[k]->used, pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) num_threads(device_threads(m->dev)) if (pieces > 1)
        for (size_t i = 0; i < pieces; i++)
            memcpy(to + i * PIECE, from[k]->base + i * PIECE, zmin(PIECE, n - i * PIECE));
        to += n;
    }
}

void model_copy_close(ModelCopy *c) {
    arena_close(&c->mem);
    weights_free(&c->view, &c->view.w);
    weights_free(&c->view, &c->view.m);
    weights_free(&c->view, &c->view.v);
    *c = (ModelCopy){0};
}
