/* config_stages.c: reads `stages`, the list of training stages of a run. */
#include "config_keys.h"
#include "ops/oom.h"

static bool name_fits(const char *name) {
    size_t n = strlen(name);
    return n > 0 && n < STAGE_NAME_MAX &&
           !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")];
}

bool stages_list(Config *c, Node *root, Err *e) {
    const Node *list = tree_get(root, "stages"), *train = tree_get(root, "train"),
               *steps = train ? tree_get(train, "steps") : NULL;
    if (!list || node_null(list)) return true;
    if (list->type != NODE_LIST || list->n < 1 || list->n > STAGES_MAX)
        return node_refuse(list, "stages", e, "expected a list of 1 to %d maps {name: NAME, steps: N, set: {...}}",
                           STAGES_MAX);
    c->stage = xcalloc((size_t)list->n, sizeof *c->stage);
    int64_t sum = 0;
    for (int k = 0; k < list->n; k++) {
        const Node *x = list->kid[k];
        Stage *s = &c->stage[c->nstages++];
        char at[32];
        snprintf(at, sizeof at, "stages.%d", k);
        if (x->type != NODE_MAP)
            return node_refuse(x, at, e, "expected a map {name: NAME, steps: N, set: {...}}, got %s", node_type(x));
        if (!schema_read(stage_keys, x, at, NULL, s, e)) return false;
        if (!name_fits(s->name))
            return node_refuse(x, at, e, "name: expected 1 to %d letters, digits, - and _", STAGE_NAME_MAX - 1);
        for (int i = 0; i < k; i++)
            if (!strcmp(c->stage[i].name, s->name))
                return node_refuse(x, at, e, "two stages have the name %s", s->name);
        s->first = sum;
        sum += s->steps; /* at most STAGES_MAX 1e12 */
    }
    if (steps && c->train.steps != sum)
        return node_refuse(steps, "train.steps", e,
                           "%lld, but the stages have %lld together; leave it out, their steps decide",
                           (long long)c->train.steps, (long long)sum);
    c->train.steps = sum;
    return true;
}

/* True unless the key belongs to the whole run: where it writes, what it starts from, what decides its noise, and what
 * its ids and the optimizer's moments mean. */
static bool may_set(const Node *x, const char *path, Err *e) {
    static const char *const fixed[] = {"run",
                                        "dist",
                                        "stages",
                                        "init_from",
                                        "init_change",
                                        "lora",
                                        "train.max_seconds",
                                        "data.tokenizer",
                                        "data.eot",
                                        "model.vocab",
                                        "optim.kind",
                                        "optim.state_dtype",
                                        "train.frozen_dtype",
                                        NULL};
    char at[256];
    for (int i = 0; fixed[i]; i++) {
        size_t n = strlen(fixed[i]);
        if (!strncmp(path, fixed[i], n) && (!path[n] || path[n] == '.'))
            return node_refuse(x, path, e, "belongs to the run as a whole; a stage may not set it");
    }
    if (!strcmp(path, "train.steps")) return node_refuse(x, path, e, "is the stage's own `steps`; give it there");
    for (const Key *k = config_keys; x->type != NODE_MAP && k->name; k++)
        if (!strcmp(k->name, path)) return node_refuse(x, path, e, "expected a map of settings, got %s", node_type(x));
    for (int i = 0; x->type == NODE_MAP && i < x->n; i++)
        if (!may_set(x->kid[i], schema_join(at, path, x->kid[i]->key), e)) return false;
    return true;
}

static char *set_text(const Node *set) {
    char *text = NULL;
    size_t n;
    Writer w = {.first = true, .f = oom_stream(&text, &n)};
    write_node(&w, set);
    fclose(w.f);
    return text;
}

/* Mark settings that a stage does not set itself: no line of the file belongs to them. */
static void config_stages_relabel(Node *x, const char *where) {
    x->where = where, x->line = 0;
    for (int i = 0; i < x->n; i++) config_stages_relabel(x->kid[i], where);
}

/* Merge maps entry by entry; replace anything else. */
static bool config_stages_put(Node *root, const char *path, const Node *x, Err *e) {
    char at[256];
    if (x->type != NODE_MAP) return tree_put(root, path, tree_copy(x), x, e);
    for (int i = 0; i < x->n; i++)
        if (!config_stages_put(root, schema_join(at, path, x->kid[i]->key), x->kid[i], e)) return false;
    return true;
}

static bool stage_build(const Config *c, Stage *s, const char *base, const Node *map, const char *where,
                        ConfigReader *read, Err *e) {
    static const Node nothing = {.type = NODE_MAP, .where = ""};
    const Node *set = tree_get(map, "set");
    char steps[48];
    if (!set || node_null(set)) set = &nothing;
    if (set->type != NODE_MAP) return node_refuse(set, "set", e, "expected a map of settings, got %s", node_type(set));
    s->set = set_text(set);
    if (!may_set(set, "", e)) return false;
    Node *root = tree_yaml(base, strlen(base), where, e);
    if (!root) return false;
    config_stages_relabel(root, where);
    defaults_leave(c, root);
    snprintf(steps, sizeof steps, "train.steps=%lld", (long long)s->steps);
    if (!tree_override(root, steps, e) || !config_stages_put(root, "", set, e)) {
        tree_free(root);
        return false;
    }
    s->cfg = xcalloc(1, sizeof *s->cfg);
    return read(s->cfg, root, 0, NULL, e);
}

bool stages_build(Config *c, const Node *root, ConfigReader *read, Err *e) {
    const Node *list = tree_get(root, "stages");
    if (!c->nstages) return true;
    int n = c->nstages;
    c->nstages = 0; /* the settings that all stages start from */
    char *base = config_text(c);
    c->nstages = n;
    bool ok = true;
    for (int k = 0; ok && k < n; k++) {
        Err why = {0};
        ok = stage_build(c, &c->stage[k], base, list->kid[k], root->where, read, &why);
        if (!ok && why.status == EXIT_RUNTIME) err_runtime(e, "%s", why.msg);
        if (!ok && why.status != EXIT_RUNTIME) err_input(e, "stage %s: %.250s", c->stage[k].name, why.msg);
    }
    free(base);
    double all = 0;
    for (int k = 0; ok && k < n; k++) {
        const Config *s = c->stage[k].cfg;
        all += (double)s->train.steps * s->train.batch * s->data.seq_len;
    }
    if (ok && all > 4e18) ok = node_refuse(list, "stages", e, "%.3g tokens together; at most 4e18 can be counted", all);
    return ok;
}
