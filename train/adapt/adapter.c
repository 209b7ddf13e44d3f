#include "adapter.h"
#include "model/files/peft.h"
#include "ops/host.h"
#include <errno.h>
#include <sys/stat.h>

/* ---- the matrices ---------------------------------------------------------------------------------------------------
 */

typedef struct {
    int n; /* tensors seen: A and B in turn */
    PeftField *field;
    Tensor *at; /* (2 per field) where they lie, a device's or the host's */
} Adapters;
static void adapter_see(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Adapters *x = f->ctx;
    const int k = x->n++ / 2, b = (x->n - 1) % 2;
    (void)flags;
    if (!b) {
        x->field = xrealloc(x->field, (size_t)k + 1, sizeof *x->field);
        x->at = xrealloc(x->at, 2 * (size_t)k + 2, sizeof *x->at);
        const char *end = strstr(path, ".lora_A.weight");
        CHECK(end, "%s", path);
        x->field[k].path = xformat("%.*s.weight", (int)(end - path), path);
    }
    x->at[2 * k + b] = *t;
    *(b ? &x->field[k].b : &x->field[k].a) = *t;
}
static int adapter_collect(Lora *l, Adapters *x) {
    Fields f = {.see = adapter_see, .ctx = x};
    *x = (Adapters){0};
    lora_fields(l, PARAM_WEIGHT, &f);
    CHECK(x->n == 2 * l->n, "%d tensors of %d adapters", x->n, l->n);
    return l->n;
}
static void adapter_drop(Adapters *x) {
    for (int i = 0; i < x->n / 2; i++) free((char *)x->field[i].path);
    free(x->field);
    free(x->at);
}

/* ---- writing --------------------------------------------------------------------------------------------------------
 */

void adapter_base(Trainer *t, const char *checkpoint) {
    const char *from = t->cfg->init_from;
    char dir[4096];
    Err e = {0};
    if (!*from || peft_is(from)) return;
    char *last = checkpoint ? xformat("%s/adapter", checkpoint) : NULL;
    if (last && peft_is(last)) t->run->base = peft_base(last, &e);
    free(last);
    if (!t->run->base && model_dir_resolve(from, dir, NULL)) t->run->base = realpath(dir, NULL);
}

static const char *missing(const Trainer *t, Lora *l, char why[256]) {
    const char *from = t->cfg->init_from;
    char dir[4096], reason[200];
    *why = 0;
    if (!l->n || t->cfg->lora.save == LORA_MERGED) return why;
    if (!*from)
        snprintf(why, 256, "the base has random weights: give init_from");
    else if (peft_is(from))
        snprintf(why, 256,
                 "init_from is an adapter with its base merged: set init_from to the base and lora.init_from to the "
                 "adapter");
    else if (!t->run->base || !model_dir_resolve(t->run->base, dir, NULL))
        snprintf(why, 256, "init_from: %.150s no longer exists", from);
    else {
        Adapters x;
        int n = adapter_collect(l, &x);
        if (!peft_can(dir, &t->cfg->model, n, x.field, reason)) snprintf(why, 256, "%s", reason);
        adapter_drop(&x);
    }
    return why;
}
const char *adapter_missing(const Trainer *t, char why[256]) {
    Lora l = t->lora; /* declaring sets shapes again */
    return missing(t, &l, why);
}
void adapter_say(Trainer *t) {
    char why[256];
    if (*adapter_missing(t, why))
        progress_say(&t->run->progress, "checkpoints contain merged weights but no adapter/: %s", why);
}

bool adapter_write(const Trainer *t, Lora *l, const char *dir, Err *e) {
    char why[256], *to;
    Adapters x;
    if (!l->n || t->cfg->lora.save == LORA_MERGED || *missing(t, l, why)) return true;
    to = xformat("%s/adapter", dir);
    bool ok = !mkdir(to, 0777) || err_runtime(e, "cannot make %s: %s", to, strerror(errno));
    const int n = adapter_collect(l, &x);
    for (int i = 0; ok && i < n; i++) {
        x.field[i].a = view_open(l->dev, x.at[2 * i], true);
        x.field[i].b = view_open(l->dev, x.at[2 * i + 1], true);
    }
    ok = ok && peft_write(to, t->run->base, &t->cfg->model, n, x.field, t->cfg->lora.alpha, e);
    for (int i = 0; i < n; i++) {
        if (x.field[i].a.p != x.at[2 * i].p) view_close(l->dev, x.at[2 * i], x.field[i].a, false);
        if (x.field[i].b.p != x.at[2 * i + 1].p) view_close(l->dev, x.at[2 * i + 1], x.field[i].b, false);
    }
    adapter_drop(&x);
    free(to);
    return ok;
}

/* ---- reading --------------------------------------------------------------------------------------------------------
 */

bool adapter_check(const Config *c, Err *e) {
    Peft p;
    Err why = {0};
    if (!*c->lora.init_from) return true;
    if (!peft_open(&p, c->lora.init_from, &why)) return err_input(e, "lora.init_from: %.280s", why.msg);
    peft_close(&p);
    return true;
}

/* One matrix's pair; the host's copies are given back to a device. */
static bool adapter_take(Trainer *t, Peft *p, const PeftField *f, Err *e) {
    const LoraCfg *c = &t->cfg->lora;
    Tensor a = view_open(t->lora.dev, f->a, false), b = view_open(t->lora.dev, f->b, false);
    Err why = {0};
    bool ok = peft_take(p, &t->cfg->model, f->path, a, b, c->alpha / c->rank, &why);
    view_close(t->lora.dev, f->a, a, ok);
    view_close(t->lora.dev, f->b, b, ok);
    if (ok) return true;
    if (why.status) return err_input(e, "%s", why.msg);
    return err_input(e, "lora.targets: %.100s has no adapter in %.100s; targets must name its matrices", f->path,
                     c->init_from);
}

bool adapter_begin(Trainer *t, Err *e) {
    Peft p;
    Adapters x;
    if (!*t->cfg->lora.init_from) return true;
    if (!peft_open(&p, t->cfg->lora.init_from, e)) return false;
    const int n = adapter_collect(&t->lora, &x);
    bool ok = true;
    for (int i = 0; ok && i < n; i++) ok = adapter_take(t, &p, &x.field[i], e);
    for (int i = 0; ok && i < p.n; i++)
        if (!p.part[i].taken)
            ok = err_input(e, "lora.targets: %.100s matches no target, but %.100s has an adapter for it",
                           p.part[i].module, t->cfg->lora.init_from);
    adapter_drop(&x);
    peft_close(&p);
    return ok;
}
