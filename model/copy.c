/* copy.c: see copy.h. */
#include "copy.h"
#include "inside.h"
#include "ops/host.h"

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
static List copy_list_of(const Model *m) {
    List l = {.dev = m->dev, .opts = &m->opts};
    Fields f = {.see = see_list, .ctx = &l};
    Weights w = m->w; /* declaring sets shapes again */
    model_fields(m, &w, &f);
    return l;
}
/* Weights that no step changes are not copied, unless they are on a GPU. */
static bool copy_copied(const List *l, const char *path) {
    return device_apart(l->dev) || !l->opts->trained || l->opts->trained(l->opts->trained_ctx, path);
}
static void copy_see_place(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    const Tensor *own = &l->t[l->n++];
    (void)flags;
    t->p = copy_copied(l, path) ? arena_take(l->mem, tensor_bytes(*t), path) : own->p;
}
static void copy_place(ModelCopy *c, const Model *m) {
    List l = copy_list_of(m);
    l.mem = &c->mem;
    l.n = 0;
    Fields f = {.see = copy_see_place, .ctx = &l};
    model_fields(&c->view, &c->view.w, &f);
    free(l.t);
}

bool model_copy_open(ModelCopy *c, const Model *m, bool dry, Err *e) {
    *c = (ModelCopy){.view = *m, .mem = {.name = "checkpoint copy"}};
    weights_new(m, &c->view.w);
    c->view.g = (Weights){0};
    c->view.dev = NULL; /* its values are in host memory */
    copy_place(c, m);
    if (dry) return true;
    if (!arena_open(&c->mem, "checkpoint copy", c->mem.peak, false, e)) {
        model_copy_close(c);
        return false;
    }
    copy_place(c, m);
    return true;
}

static void see_copy(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    const Tensor *own = &l->t[l->n++];
    (void)path, (void)flags;
    if (t->p != own->p) host_copy(l->dev, t->p, own->p, tensor_bytes(*t));
}
void model_copy_take(ModelCopy *c, const Model *m) {
    List l = copy_list_of(m);
    Fields f = {.see = see_copy, .ctx = &l};
    l.n = 0;
    model_fields(&c->view, &c->view.w, &f);
    free(l.t);
}

void model_copy_close(ModelCopy *c) {
    arena_close(&c->mem);
    weights_free(&c->view, &c->view.w);
    *c = (ModelCopy){0};
}
