#include "freeze.h"
#include "train/trainer.h"
#include <fnmatch.h>

static bool freeze_matches(const Texts *globs, const char *path) {
    for (int i = 0; i < globs->n; i++)
        if (!fnmatch(globs->v[i], path, 0)) return true;
    return false;
}

bool freeze_trained(const void *config, const char *path) {
    const TrainCfg *c = &((const Config *)config)->train;
    if (((const Config *)config)->lora.rank) return false;
    return (!c->train_only.n || freeze_matches(&c->train_only, path)) && !freeze_matches(&c->freeze, path);
}

bool freeze_stored(const void *trainer, const char *path) {
    const Trainer *t = trainer;
    for (int k = 0; k <= t->stage; k++)
        if (freeze_trained(config_stage(t->run->cfg, k).cfg, path)) return false;
    return true;
}

static bool trained(const Model *m, const char *path) {
    return !m->opts.trained || m->opts.trained(m->opts.trained_ctx, path);
}

void freeze_mark(Params *p, const Model *m) {
    for (int i = 0; i < p->n; i++) p->p[i].frozen = !trained(m, p->p[i].name);
}

/* ---- checks ---------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const Model *m;
    const char *glob; /* NULL: any */
    bool only_trained;
    int found;
    size_t numbers;
} Search;
static void freeze_see_search(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Search *s = f->ctx;
    (void)flags;
    if ((s->glob && fnmatch(s->glob, path, 0)) || (s->only_trained && !trained(s->m, path))) return;
    s->found++;
    s->numbers += tensor_count(*t);
}
static Search freeze_search(const Model *m, const char *glob, bool only_trained) {
    Search s = {.m = m, .glob = glob, .only_trained = only_trained};
    Fields f = {.see = freeze_see_search, .ctx = &s};
    Weights w = m->w;
    model_fields(m, &w, &f);
    return s;
}

static bool all_match(const Model *m, const char *key, const Texts *globs, Err *e) {
    for (int i = 0; i < globs->n; i++)
        if (!freeze_search(m, globs->v[i], false).found)
            return err_input(e, "%s: %.100s matches no tensor; names are like %s", key, globs->v[i],
                             "model.layers.0.self_attn.q_proj.weight");
    return true;
}

bool freeze_check(const Model *m, const Config *c, Err *e) {
    if (c->lora.rank) return true; /* lora_check */
    if (!all_match(m, "train.train_only", &c->train.train_only, e) ||
        !all_match(m, "train.freeze", &c->train.freeze, e))
        return false;
    if (!freeze_search(m, NULL, true).found)
        return err_input(e, "train.%s: no tensor is left to train", c->train.freeze.n ? "freeze" : "train_only");
    for (int i = 0; i < c->optim.ngroups; i++)
        if (!freeze_search(m, c->optim.group[i].match, true).found)
            return err_input(e, "optim.groups.%d.match: %.100s matches no tensor that is trained", i,
                             c->optim.group[i].match);
    return true;
}

size_t freeze_count(const Model *m) { return freeze_search(m, NULL, true).numbers; }

void freeze_rates(Params *p, const OptimCfg *o) {
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < o->ngroups; k++)
            if (!fnmatch(o->group[k].match, p->p[i].name, 0)) {
                p->p[i].lr_scale = o->group[k].lr_scale;
                p->p[i].own_decay = true;
                p->p[i].decay = o->group[k].weight_decay;
                break;
            }
}

void freeze_since(Params *p, const Config *run, int k) {
    for (int i = 0; i < p->n; i++) {
        p->p[i].since = 0;
        for (int s = k; s >= 0 && freeze_trained(config_stage(run, s).cfg, p->p[i].name); s--)
            p->p[i].since = config_stage(run, s).first;
    }
}
