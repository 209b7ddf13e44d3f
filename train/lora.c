#include "lora.h"
#include "../ops/half.h"
#include "../ops/host.h"
#include <fnmatch.h>

/* ---- declaring ------------------------------------------------------------------------------------------------------
 */

typedef struct {
    Lora *l;
    const LoraCfg *c;
    const char *glob; /* of a search */
    int found, at;
} Visit;

static bool wanted(const LoraCfg *c, const char *path) {
    for (int i = 0; i < c->targets.n; i++)
        if (!fnmatch(c->targets.v[i], path, 0)) return true;
    return false;
}
static void see_weight(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Visit *v = f->ctx;
    Lora *l = v->l;
    (void)flags;
    if (t->rank != 2 || !wanted(v->c, path)) return;
    l->part = xrealloc(l->part, (size_t)l->n + 1, sizeof *l->part);
    LoraPart *p = &l->part[l->n++];
    *p = (LoraPart){.w = *t};
    snprintf(p->name, sizeof p->name, "%s", path);
}
static void see_grad(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Visit *v = f->ctx;
    (void)flags;
    if (v->at < v->l->n && !strcmp(v->l->part[v->at].name, path)) v->l->part[v->at++].g = *t;
}

typedef struct {
    const ModelOpts *o;
    bool second;
    Fields *to;
} Moments;
static void see_moment(Fields *f, Tensor *t, const char *path, unsigned flags) {
    const Moments *m = f->ctx;
    if (m->second && m->o->second && !m->o->second(*t, flags)) {
        *t = ABSENT;
        return;
    }
    if (m->o->narrow_moments) t->dtype = BF16;
    m->to->see(m->to, t, path, flags);
}

void lora_fields(Lora *l, ParamRole role, Fields *to) {
    Moments m = {l->opts, role == PARAM_V, to};
    Fields wrap = {.see = see_moment, .ctx = &m}, *f = role < PARAM_M ? to : &wrap;
    for (int i = 0; i < l->n; i++) {
        LoraPart *p = &l->part[i];
        int rank = p->a[0].n[0], n = (int)strlen(p->name) - (int)strlen(".weight");
        CHECK(n > 0 && n < (int)sizeof f->scope - 1, "the name %s", p->name);
        snprintf(f->scope, sizeof f->scope, "%.*s.", n, p->name);
        field(f, &p->a[role], "lora_A.weight", FIELD_OWN, rank, p->w.n[1]);
        field(f, &p->b[role], "lora_B.weight", FIELD_OWN, p->w.n[0], rank);
    }
    f->scope[0] = 0;
}
void lora_bases(Lora *l, Fields *f) {
    f->scope[0] = 0;
    for (int i = 0; i < l->n; i++) field(f, &l->part[i].base, l->part[i].name, 0, l->part[i].w.n[0], l->part[i].w.n[1]);
}

static void place(Lora *l) {
    Fields f = arena_placer(&l->state);
    lora_bases(l, &f);
    lora_fields(l, PARAM_WEIGHT, &f);
    lora_fields(l, PARAM_M, &f);
    lora_fields(l, PARAM_V, &f);
}
static void place_grads(Lora *l) {
    Fields f = arena_placer(&l->grads);
    lora_fields(l, PARAM_GRAD, &f);
}

void lora_declare(Lora *l, Model *m, const LoraCfg *c) {
    Visit v = {.l = l, .c = c};
    *l = (Lora){.opts = &m->opts,
                .dev = m->dev,
                .state = {.name = "adapters"},
                .grads = {.name = "adapters' gradients"}};
    if (!c->rank) return;
    l->scale = c->alpha / c->rank;
    Fields f = {.see = see_weight, .ctx = &v};
    model_fields(m, &m->w, &f);
    f = (Fields){.see = see_grad, .ctx = &v};
    model_fields(m, &m->g, &f);
    CHECK(v.at == l->n, "%d gradients of %d matrices", v.at, l->n);
    for (int i = 0; i < l->n; i++) l->part[i].a[0].n[0] = c->rank;
    place(l);
    place_grads(l);
}

bool lora_open(Lora *l, Err *e) {
    if (!l->n) return true;
    const Memory *home = device_memory(l->dev, false);
    if (!arena_open_at(&l->state, home, "adapters", l->state.peak, false, e) ||
        !arena_open_at(&l->grads, home, "adapters' gradients", l->grads.peak, false, e))
        return false;
    place(l);
    place_grads(l);
    return true;
}

void lora_close(Lora *l) {
    arena_close(&l->state);
    arena_close(&l->grads);
    free(l->part);
    *l = (Lora){0};
}

/* ---- checks ---------------------------------------------------------------------------------------------------------
 */

static void see_search(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Visit *v = f->ctx;
    (void)flags;
    v->found += t->rank == 2 && !fnmatch(v->glob, path, 0);
}

bool lora_check(const Lora *l, const Model *m, const Config *c, int ranks, Err *e) {
    const LoraCfg *o = &c->lora;
    if (!o->rank) return true;
    if (ranks > 1) return err_input(e, "lora.rank: adapters are trained by one rank, not by %d; give rank 0", ranks);
    for (int i = 0; i < o->targets.n; i++) {
        Visit v = {.glob = o->targets.v[i]};
        Fields f = {.see = see_search, .ctx = &v};
        Weights w = m->w;
        model_fields(m, &w, &f);
        if (!v.found)
            return err_input(e, "lora.targets: %.100s matches no matrix; names are like %s", o->targets.v[i],
                             "model.layers.0.self_attn.q_proj.weight");
    }
    if (!l->n) return err_input(e, "lora.targets: expected globs of tensors' names, got none");
    for (int i = 0; i < l->n; i++) {
        const LoraPart *p = &l->part[i];
        if (o->rank > imin(p->w.n[0], p->w.n[1]))
            return err_input(e, "lora.rank: %d is more than %s (%d,%d) has", o->rank, p->name, p->w.n[0], p->w.n[1]);
    }
    for (int k = 0; k < m->L; k++)
        if (m->layer[k].kind->mixer->stage_end)
            return err_input(
                e,
                "lora: the mixer %s of layer %d sets weights at the end of a stage, which adapters cannot; "
                "train it without",
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
        double bound = 1 / sqrt(p->w.n[1]);
        device_copy(l->dev, p->base.p, p->w.p, tensor_bytes(p->w));
        Tensor a = view_open(l->dev, p->a[0], false);
        for (size_t k = 0; k < n; k++) R(a)[k] = (real)(bound * (2 * rng_uniform(key, k) - 1));
        view_close(l->dev, p->a[0], a, true);
        device_zero(l->dev, p->b[0].p, tensor_bytes(p->b[0]));
        for (int role = PARAM_M; role <= PARAM_V; role++) {
            if (present(p->a[role])) device_zero(l->dev, p->a[role].p, tensor_bytes(p->a[role]));
            if (present(p->b[role])) device_zero(l->dev, p->b[role].p, tensor_bytes(p->b[role]));
        }
    }
}

void lora_gradients(Run *r, Lora *l) {
    for (int i = 0; i < l->n; i++) {
        LoraPart *p = &l->part[i];
        Tensor da = p->a[PARAM_GRAD], db = p->b[PARAM_GRAD];
        r->ops->zero(r, da);
        r->ops->linear_backward(r, ABSENT, da, ABSENT, p->b[0], p->g, p->a[0]); /* B^T dW */
        r->ops->linear(r, db, p->g, p->a[0], ABSENT);                           /* dW A^T */
        r->ops->axpby(r, da, 0, da, l->scale);
        r->ops->axpby(r, db, 0, db, l->scale);
    }
}

void lora_apply(Run *r, Lora *l) {
    for (int i = 0; i < l->n; i++) {
        LoraPart *p = &l->part[i];
        Mark mark = arena_mark(r->scratch);
        Tensor b = SCRATCH(r, "scaled B", p->b[0].n[0], p->b[0].n[1]);
        r->ops->copy(r, b, p->b[0]);
        r->ops->axpby(r, b, 0, b, l->scale);
        r->ops->copy(r, p->w, p->base);
        r->ops->linear_backward(r, p->w, ABSENT, ABSENT, b, p->base, p->a[0]); /* += s B A */
        arena_release(r->scratch, mark);
    }
    if (!measuring(r)) half_refresh(r->dev);
}

/* ---- a copy ---------------------------------------------------------------------------------------------------------
 */

bool lora_copy_open(Lora *c, const Lora *l, bool dry, Err *e) {
    *c = *l;
    c->state = (Arena){.name = "adapters' copy"}, c->grads = (Arena){0};
    c->dev = NULL;
    c->part = xcalloc((size_t)l->n + 1, sizeof *c->part);
    if (l->n) memcpy(c->part, l->part, (size_t)l->n * sizeof *c->part);
    if (!l->n) return true;
    place(c);
    if (dry) return true;
    if (!arena_open(&c->state, "adapters' copy", c->state.peak, false, e)) {
        lora_close(c);
        return false;
    }
    place(c);
    return true;
}

static void read_tensor(Device *dev, Tensor to, Tensor from) {
    if (present(from)) device_read(dev, to.p, from.p, tensor_bytes(from));
}
void lora_copy_take(Lora *c, const Lora *l) {
    static const ParamRole kept[] = {PARAM_WEIGHT, PARAM_M, PARAM_V};
    if (l->n && !device_apart(l->dev)) memcpy(c->state.base, l->state.base, l->state.used);
    for (int i = 0; i < l->n && device_apart(l->dev); i++) {
        const LoraPart *to = &c->part[i], *from = &l->part[i];
        read_tensor(l->dev, to->base, from->base);
        for (int k = 0; k < 3; k++) {
            read_tensor(l->dev, to->a[kept[k]], from->a[kept[k]]);
            read_tensor(l->dev, to->b[kept[k]], from->b[kept[k]]);
        }
    }
}
