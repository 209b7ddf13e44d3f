/* copy.c: see copy.h. Moments are placed in the order of the model's own regions, which therefore lie in the copy one
 * after the other, guards and all. */
#include "copy.h"
#include "act.h"
#include "../ops/host.h"

typedef struct {
    Tensor *t; /* the model's own */
    int n;
    Device *dev;
    Arena *mem;
    const ModelOpts *opts;
} List;
static void see_list(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    (void)path, (void)flags;
    l->t = xrealloc(l->t, (size_t)l->n + 1, sizeof *l->t);
    l->t[l->n++] = *t;
}
static List list_of(const Model *m) {
    List l = {.dev = m->dev, .opts = &m->opts};
    Fields f = {.see = see_list, .ctx = &l};
    Weights w = m->w; /* declaring sets shapes again */
    model_fields(m, &w, &f);
    return l;
}
/* What no step changes is not copied, unless it lies on a device. */
static bool copied(const List *l, const char *path) {
    return device_apart(l->dev) || !l->opts->trained || l->opts->trained(l->opts->trained_ctx, path);
}
static void see_place(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    const Tensor *own = &l->t[l->n++];
    (void)flags;
    t->p = copied(l, path) ? arena_take(l->mem, tensor_bytes(*t), path) : own->p;
}
static void place(ModelCopy *c, const Model *m) {
    List l = list_of(m);
    l.mem = &c->mem;
    l.n = 0;
    Fields f = {.see = see_place, .ctx = &l};
    model_fields(&c->view, &c->view.w, &f);
    free(l.t);
    c->weights = c->mem.used;
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
    place(c, m);
    if (dry) return true;
    size_t size = c->mem.peak;
    CHECK(size == c->weights + m->am.used + m->av.used, "%zu bytes, the regions have %zu, %zu and %zu", size,
          c->weights, m->am.used, m->av.used);
    if (!arena_open(&c->mem, "checkpoint copy", size, false, e)) {
        model_copy_close(c);
        return false;
    }
    place(c, m);
    return true;
}

/* From a device tensor by tensor: what lies between them is nobody's. */
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
    Weights w = m->w, first = m->m, second = m->v;
    walk(m, &w, &first, &second, (Fields){.see = see_list, .ctx = &l});
    l.n = 0;
    walk(m, &c->view.w, &c->view.m, &c->view.v, (Fields){.see = see_read, .ctx = &l});
    free(l.t);
}

static void copy_bytes(const Model *m, char *to, const char *from, size_t n) {
    enum { PIECE = 1 << 22 };
    size_t pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(static) num_threads(device_threads(m->dev)) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) memcpy(to + i * PIECE, from + i * PIECE, zmin(PIECE, n - i * PIECE));
}
typedef struct {
    const Model *m;
    List own;
} Copying;
static void see_copy(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Copying *x = f->ctx;
    const Tensor *own = &x->own.t[x->own.n++];
    (void)path, (void)flags;
    if (t->p != own->p) copy_bytes(x->m, t->p, own->p, tensor_bytes(*t));
}
void model_copy_take(ModelCopy *c, const Model *m) {
    if (device_apart(m->dev)) {
        read_fields(c, m);
        return;
    }
    Copying x = {m, list_of(m)};
    Fields f = {.see = see_copy, .ctx = &x};
    x.own.n = 0;
    model_fields(&c->view, &c->view.w, &f);
    free(x.own.t);
    copy_bytes(m, c->mem.base + c->weights, m->am.base, m->am.used);
    copy_bytes(m, c->mem.base + c->weights + m->am.used, m->av.base, m->av.used);
}

void model_copy_close(ModelCopy *c) {
    arena_close(&c->mem);
    weights_free(&c->view, &c->view.w);
    weights_free(&c->view, &c->view.m);
    weights_free(&c->view, &c->view.v);
    *c = (ModelCopy){0};
}
